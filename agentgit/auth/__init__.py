"""Who somebody is and what they may do. Pure values, no IO."""

from agentgit.auth.user import User

__all__ = ["User"]
