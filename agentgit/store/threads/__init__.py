"""Graph checkpoints and their writes: forks, delta values, ancestry, and the lifecycle of a thread."""
