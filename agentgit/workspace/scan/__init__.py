"""Scanning of a workspace: what stands in it, what is left out, and what changed."""
