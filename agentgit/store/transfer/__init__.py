"""Export and import of sessions: the records and lines of an export file, and trajectories."""
