"""Checkpoints: the saved points of a branch. Pure values and algorithms, no IO."""

from agentgit.checkpoints.checkpoint import Checkpoint
from agentgit.checkpoints.retention import Retention

__all__ = ["Checkpoint", "Retention"]
