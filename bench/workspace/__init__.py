"""Benchmarks of workspaces: `python -m bench --only workspace`."""
