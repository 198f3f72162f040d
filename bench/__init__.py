"""Measurements of agentgit beside what it is compared with: `python -m bench`. Not part of the package."""
