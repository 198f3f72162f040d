"""The URL of a database: parsed from a path, a URL or libpq's parameters, and shown without its passwords."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from agentgit.errors import InvalidInput, Unavailable
from agentgit.next_steps import Next

POSTGRES_DRIVER = "postgresql+psycopg"

PREPARE_THRESHOLD = "prepare_threshold"
"""The URL parameter for the number of runs before the driver prepares a statement, or `none`."""

_DRIVERS = {"postgresql": POSTGRES_DRIVER, "postgres": POSTGRES_DRIVER, "sqlite+pysqlite": "sqlite"}
"""The driver names that mean the same as one of the supported ones."""

_LIBPQ_WORDS = "host|hostaddr|port|dbname|user|password|passfile|service|servicefile|sslmode|application_name|options"
_LIBPQ_STRING = re.compile(rf"\s*(?:{_LIBPQ_WORDS})\s*=", re.ASCII)


def parse_url(location: str | Path | URL) -> URL:
    """Return the URL of a database that a user gave as a path, `:memory:`, a SQLAlchemy URL or libpq's parameters."""
    if isinstance(location, URL):
        return _with_supported_driver(location)
    text = str(location)
    if not text:
        raise InvalidInput("The database is an empty string. Give a path, a URL or :memory:.")
    if isinstance(location, str) and _LIBPQ_STRING.match(text):
        return libpq_url(text)
    if "://" not in text:
        return URL.create("sqlite", database=text)
    if _has_several_hosts(text):
        text, threshold = _split_off(PREPARE_THRESHOLD, text)
        return libpq_url(text).update_query_dict(threshold)
    return _with_supported_driver(read_url(text))


def _with_supported_driver(url: URL) -> URL:
    name = _DRIVERS.get(url.drivername, url.drivername)
    if name == "sqlite" and str(url.database).startswith("file:"):
        raise InvalidInput("agentgit opens a SQLite file by its path, not by a URI of SQLite: sqlite:///agentgit.db")
    if name in ("sqlite", POSTGRES_DRIVER):
        return url.set(drivername=name)
    backend, _, driver = url.drivername.partition("+")
    if backend not in ("sqlite", "postgresql", "postgres"):
        raise InvalidInput(f"agentgit supports SQLite and PostgreSQL, not {backend}.")
    supported = "sqlite:///…" if backend == "sqlite" else "postgresql+psycopg://… (or postgresql://…)"
    raise InvalidInput(
        f"agentgit does not use the driver {driver}. Write {supported}: sync and async methods take the same URL."
    )


def _split_off(name: str, text: str) -> tuple[str, dict[str, str]]:
    """Return a URL without a parameter, and the parameter."""
    found = re.search(rf"(?<=[?&]){name}=([^&#]*)&?", text)
    return (text.replace(found[0], "", 1).rstrip("?&"), {name: found[1]}) if found else (text, {})


def _has_several_hosts(text: str) -> bool:
    """Return whether a URL of PostgreSQL lists several hosts, as only libpq reads it."""
    scheme, _, rest = text.partition("://")
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    return scheme in ("postgresql", "postgres", POSTGRES_DRIVER) and "," in authority.rpartition("@")[2]


def libpq_url(text: str, parameters: Mapping[str, Any] | None = None) -> URL:
    try:
        psycopg, conninfo = import_module("psycopg"), import_module("psycopg.conninfo")
    except ImportError as error:
        raise Unavailable("PostgreSQL needs its driver.", Next("install", package="agentgit[postgres]")) from error
    try:
        found = conninfo.conninfo_to_dict(
            text.replace(f"{POSTGRES_DRIVER}://", "postgresql://", 1), **(parameters or {})
        )
    except psycopg.ProgrammingError:
        raise InvalidInput(
            "This is not a valid connection string of PostgreSQL. Use host=… dbname=… user=…, with values that have "
            "spaces in single quotes, or postgresql://user:password@host:5432/name. It is not shown, because it may "
            "contain a password."
        ) from None
    values = {name: str(value) for name, value in found.items() if value is not None}
    host, port = values.get("host", ""), values.get("port", "")
    is_single = bool(host) and "," not in host and not host.startswith(("/", "@")) and (not port or port.isdigit())
    return URL.create(
        POSTGRES_DRIVER,
        username=values.pop("user", None),
        password=values.pop("password", None),
        host=values.pop("host") if is_single else None,
        port=int(values.pop("port")) if is_single and port else None,
        database=values.pop("dbname", None),
        query=values,
    )


def read_url(text: str) -> URL:
    """Parse a URL. The error does not contain its text, which may have a password anywhere."""
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


def in_schema(location: str | Path | URL, name: str) -> URL:
    """Return the URL of a PostgreSQL database whose connections are in a schema."""
    url = parse_url(location)
    if url.get_backend_name() == "sqlite":
        raise InvalidInput("A SQLite file has no schemas. Use a file for each.")
    quoted = '"' + name.replace('"', '""') + '"'
    options = (url.query.get("options"), "-csearch_path=" + re.sub(r"([\\\s])", r"\\\1", quoted))
    return url.update_query_dict({"options": " ".join(str(one) for one in options if one)})


def sqlite_path(url: URL) -> str | None:
    """Return the absolute path of the file of a SQLite database; None if the database is in memory."""
    return None if url.database in (None, "", ":memory:") else os.path.realpath(str(url.database))


def redacted_url(url: URL) -> str:
    """Return the text of a URL without its passwords."""
    masked = {name: "***" for name in url.query if "password" in name or "secret" in name}
    return url.update_query_dict(masked).render_as_string(hide_password=True).replace("%2A%2A%2A", "***")
