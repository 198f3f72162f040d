"""Exports: the lines and records of the file that a session is carried in, and trajectories. Pure, no IO."""
