"""Changing files without losing any, and without leaving the workspace."""
