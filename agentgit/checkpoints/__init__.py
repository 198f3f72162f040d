"""Checkpoints: the saved points of a branch. Pure values and algorithms, no IO."""

from agentgit.checkpoints.checkpoint import Checkpoint

__all__ = ["Checkpoint"]
