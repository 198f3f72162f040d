"""Graph checkpoints and their writes: forks, delta values, ancestry, and the life of a thread."""
