"""Measurements of the files: `python -m bench --only workspace`."""
