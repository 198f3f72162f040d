"""Merge and cherry-pick."""
