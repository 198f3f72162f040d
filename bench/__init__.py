"""Benchmarks of agentgit and its alternatives: `python -m bench`; not part of the package."""
