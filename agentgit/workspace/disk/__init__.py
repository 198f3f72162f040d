"""Changes to files that lose no data and never leave the workspace."""
