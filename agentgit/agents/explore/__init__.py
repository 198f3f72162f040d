"""Exploring: the same steps in several variants, each on a branch of its own."""
