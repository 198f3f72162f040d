"""Explorations: the same steps in several variants, each on its own branch."""
