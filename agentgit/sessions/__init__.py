"""Sessions, their branches and the tree they form. Pure values and algorithms, no IO."""

from agentgit.sessions.session import ExternalSession, InternalSession
from agentgit.sessions.tree import Tree

__all__ = ["ExternalSession", "InternalSession", "Tree"]
