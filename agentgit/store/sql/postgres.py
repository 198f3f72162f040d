"""Connections to PostgreSQL: the pool, support for external poolers, and the settings of each transaction.

Each transaction makes the settings for row-level security right after it begins. They end with the transaction, so no
pool, inside the program or between it and the server, passes them on to another one.

PgBouncer in transaction mode may give each transaction another server connection, which does not know the statements
that the driver prepared. A pooler is detected by the process id of the server, because a pooler reports its own.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event
from sqlalchemy.exc import ArgumentError, DisconnectionError
from sqlalchemy.util import await_only

from agentgit.errors import InvalidInput, Unavailable
from agentgit.store.sql.batch import Batch, Statement, flush_batch

EVERYBODY = "all"
"""The user id of transactions that see the sessions of all users of a tenant."""

_BATCHED = "agentgit_batched"

MANUAL_BEGIN = {"isolation_level": "AUTOCOMMIT"}
"""The engine options without the driver's own BEGIN, which would be a separate round trip to the server."""

CARRIED = {"synchronous_commit": "off"}
"""The settings of a transaction that need not wait for the disk, because a later commit writes its changes too."""


def settings_of(values: Mapping[str, str]) -> list[Statement]:
    """Return the statements that make settings for one transaction.

    Example:
        >>> settings_of({"agentgit.tenant_name": "o'hara"})[0][:2]
        ('SELECT set_config(%s, %s, true)', [['agentgit.tenant_name', "o'hara"]])
    """
    if not values:
        return []
    sql = "SELECT " + ", ".join(["set_config(%s, %s, true)"] * len(values))
    return [Statement(sql, [[part for pair in values.items() for part in pair]])]


def begin_by_hand(engine: Engine) -> None:
    """Begin each transaction of an engine that was made with `MANUAL_BEGIN` with its first statement."""
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", flush_batch)


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_BATCHED) or options.get("isolation_level") == MANUAL_BEGIN["isolation_level"]:
        return  # its batch sends BEGIN, or the connection is in autocommit mode
    driver: Any = connection.connection.driver_connection
    # Never prepared, because an external pooler may use another server connection the next time.
    begun = driver.execute("BEGIN", prepare=False)
    if connection.dialect.is_async:
        await_only(begun)


@contextmanager
def transaction(engine: Engine, settings: Sequence[Statement], **kind: bool) -> Iterator[Connection]:
    """Yield a connection in a transaction with these settings. `kind` has the options of `Batch`."""
    with engine.connect() as connection, connection.execution_options(**{_BATCHED: True}).begin():
        batch = Batch(connection, settings, **kind)
        try:
            yield connection
            batch.commit()
        finally:
            batch.end()


IDLE_SECONDS = 5.0
"""The idle time after which a connection is pinged. A ping every time costs a third of a turn on PostgreSQL."""

_USED = "agentgit_used"


def ping_when_idle(engine: Engine) -> None:
    """Ping connections of a pool that have been idle, and replace those that do not answer."""

    def check(raw: Any, record: Any, _proxy: Any) -> None:
        now = time.monotonic()
        used = record.info.get(_USED, now)
        record.info[_USED] = now
        if now - used < IDLE_SECONDS:
            return
        try:
            engine.dialect.do_ping(raw)
        except engine.dialect.loaded_dbapi.Error as error:
            raise DisconnectionError("the server closed an idle connection") from error

    event.listen(engine, "checkout", check)


POOL_SIZE = 16
"""The default maximum number of connections of one open database; with async, of each event loop."""

POOL_SECONDS = 30
"""The time that a transaction waits for a connection before it gives up."""

THRESHOLD = "prepare_threshold"
"""The URL parameter for the number of runs before the driver prepares a statement, or `none`."""


def server(url: URL, pool_size: int) -> Engine:
    """Return a new engine for a server.

    Raises:
        InvalidInput: `pool_size` is less than 1, or the URL has an invalid setting.
        Unavailable: The driver is missing.
    """
    if pool_size < 1:
        raise InvalidInput(f"pool_size must be 1 or more, not {pool_size}.")
    try:
        engine = create_engine(without_own_parameters(url), **settings(pool_size))
    except ModuleNotFoundError as error:
        raise Unavailable('PostgreSQL needs its driver. Run: pip install "agentgit[postgres]"') from error
    except ArgumentError as error:
        raise InvalidInput(f"{url.render_as_string(hide_password=True)} cannot be used: {error}") from error
    watch(engine, url)
    return engine


def settings(pool_size: int) -> dict[str, Any]:
    """Return the arguments of an engine.

    The pool has no overflow, because opening a connection takes as long as several turns. The connection used last is
    used next, so that unneeded ones stay idle.
    """
    return {
        **MANUAL_BEGIN,
        "hide_parameters": True,  # errors must not contain values or secrets
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": POOL_SECONDS,
        "pool_use_lifo": True,
    }


def without_own_parameters(url: URL) -> URL:
    """Remove the parameters that are not for the driver from a URL."""
    return url.difference_update_query([THRESHOLD])


def watch(engine: Engine, url: URL) -> None:
    """Replace connections that were closed while they were idle, and prepare no statements behind a pooler.

    Raises:
        InvalidInput: The URL has an invalid setting.
    """
    ping_when_idle(engine)
    begin_by_hand(engine)
    wanted = _wanted(url)
    known: list[bool] = []
    """Whether there is a pooler, which is checked once."""

    def prepare(raw: Any, _record: Any) -> None:
        connection = getattr(raw, "driver_connection", raw)
        if wanted is not None:
            connection.prepare_threshold = wanted or None
            return
        if not known:
            known.append(_is_pooled(raw, connection))
        if known[0]:
            connection.prepare_threshold = None

    event.listen(engine, "connect", prepare)


def _wanted(url: URL) -> int | None:
    """Return the prepare threshold of a URL: 0 for `none`, None if the URL has no such parameter.

    Example:
        >>> from sqlalchemy import make_url
        >>> _wanted(make_url("postgresql://db/a?prepare_threshold=none")), _wanted(make_url("postgresql://db/a"))
        (0, None)
    """
    said = url.query.get(THRESHOLD)
    if said is None:
        return None
    if said == "none":
        return 0
    if isinstance(said, str) and said.isascii() and said.isdigit() and int(said):
        return int(said)
    raise InvalidInput(f"{THRESHOLD}={said} is not valid: use `none` or the number of runs before preparing.")


def _is_pooled(raw: Any, connection: Any) -> bool:
    """Return whether the server's process id differs from the one reported when the connection was opened."""
    cursor = raw.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    (process,) = cursor.fetchone()
    cursor.close()
    raw.rollback()
    return bool(process != connection.info.backend_pid)
