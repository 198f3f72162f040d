"""Importing the threads of other savers."""
