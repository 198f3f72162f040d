"""The repository: an open handle on one database, bound to one user."""

from agentgit.repository.repository import DEFAULT, ENVIRONMENT, Repository, open, trusted

__all__ = ["DEFAULT", "ENVIRONMENT", "Repository", "open", "trusted"]
