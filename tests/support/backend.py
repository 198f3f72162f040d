"""The database behind a repository, for tests that look at rows or change them past the library."""

from sqlalchemy import URL


def database(repo):
    """Return the database of a repository, a session or an agent."""
    return repo.context.store.database


def url(repo) -> URL:
    """Return the place of the database, to open it once more."""
    return database(repo).url


def address(repo) -> str:
    """Return the same as text, with its password."""
    return url(repo).render_as_string(hide_password=False)


def is_sqlite(repo) -> bool:
    """Return True for SQLite, False for PostgreSQL."""
    return database(repo).is_sqlite


def reading(repo):
    """Open a transaction that reads."""
    return database(repo).reading()


def write(repo, do):
    """Run a function in a transaction that writes; it gets the connection."""
    return database(repo).write(do)
