"""The web interface: HTML pages and an HTTP API. Needs `pip install "agentgit[server]"`.

Example:
    >>> import agentgit
    >>> from agentgit.web import app
    >>> site = app(agentgit.open(":memory:"))
"""

from agentgit.web.app import app
from agentgit.web.authentication import OwnerLink
from agentgit.web.site import Limits

__all__ = ["Limits", "OwnerLink", "app"]
