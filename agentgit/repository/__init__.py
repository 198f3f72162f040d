"""The repository: an open handle on one database, bound to one user."""

from agentgit.repository.opening import DEFAULT, ENVIRONMENT, open, trusted
from agentgit.repository.repository import Repository

__all__ = ["DEFAULT", "ENVIRONMENT", "Repository", "open", "trusted"]
