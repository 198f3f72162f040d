"""Workspaces: snapshots of a directory or a container, and the undo stack."""
