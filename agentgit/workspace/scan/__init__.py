"""Scans of a workspace: its files, the paths that are left out, and the changes since the last scan."""
