"""The repository: an open handle on one database, bound to one user."""

from agentgit.repository.opening import modules_to_trust, open
from agentgit.repository.repository import Repository

__all__ = ["Repository", "modules_to_trust", "open"]
