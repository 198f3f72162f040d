"""Exports and imports: rows of a session to records of a file, and back."""
