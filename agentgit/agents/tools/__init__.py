"""The tools of a graph: what is declared about them, their arguments and results, and calling them again."""
