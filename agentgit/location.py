"""The database that is used if none is named."""

import os

ENVIRONMENT = "AGENTGIT_DATABASE_URL"
"""The environment variable with the URL of the default database."""

DEFAULT = "agentgit.db"
"""The database if nothing names another one."""


def default_location() -> str:
    """Return the database that is used if none is named: the environment's, else a file in the current directory."""
    return os.environ.get(ENVIRONMENT) or DEFAULT
