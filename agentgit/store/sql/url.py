"""The URL of a database: parsed from a path or a URL, and shown without its passwords."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from agentgit.errors import InvalidInput


def parse_url(location: str | Path | URL) -> URL:
    """Return the URL of a database that a user gave as a path, `:memory:`, or a SQLAlchemy URL.

    Args:
        location: The database.

    Raises:
        InvalidInput: The value is none of these, or the database is not supported.

    Example:
        >>> parse_url("notes.db").render_as_string()
        'sqlite:///notes.db'
    """
    if isinstance(location, URL):
        return location
    text = str(location)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    url = read_url(text)
    if url.drivername in ("postgresql", "postgres"):
        url = url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidInput(f"agentgit supports SQLite and PostgreSQL, not {url.get_backend_name()}.")
    return url


def read_url(text: str) -> URL:
    """Parse a URL. The error does not contain its text, which may have a password anywhere.

    Raises:
        InvalidInput: The text is not a URL, or its name or password has an unescaped delimiter.

    Example:
        >>> read_url("postgresql://me:p@ss@host/db")
        Traceback (most recent call last):
        agentgit.errors.InvalidInput: This URL has more than one @. In a name or password, write @ as %40 ...
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError):
        scheme = text.partition("://")[0] if "://" in text else ""
        raise InvalidInput(
            f"{scheme}://… is not a valid database URL. Use a path, sqlite:///agentgit.db or "
            "postgresql://user:password@host:5432/name. Percent-encode the password, for example @ as %40."
        ) from None
    if url.get_backend_name() != "sqlite" and "@" in f"{url.host or ''}{url.database or ''}":
        raise InvalidInput(
            "This URL has more than one @. In a name or password, write @ as %40 and % as %25. The URL is not shown, "
            "because it may contain part of the password."
        )
    return url


def redacted_url(url: URL) -> str:
    """Return the text of a URL without its passwords.

    Example:
        >>> redacted_url(parse_url("postgresql://me:se%40cret@host/db?password=more"))
        'postgresql+psycopg://me:***@host/db?password=***'
    """
    masked = {name: "***" for name in url.query if "password" in name}
    return url.update_query_dict(masked).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")
