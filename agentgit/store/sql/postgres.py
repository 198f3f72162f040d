"""Connections to PostgreSQL: how many there may be, behind a pooler, and for whom row-level security lets them work.

Row-level security: for whom a transaction on PostgreSQL works is said right after it begins. The settings end with the
transaction, so no pool, inside of the program or between it and the server, carries one over.

Connections to a server: how many there may be, and what a pooler between it and us cannot do. PgBouncer in transaction
mode gives each transaction another connection of the server, where the statements that the driver has prepared are not
known. It is told by the number of the server's process: a pooler gives one of its own.
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
from agentgit.store.sql.batch import Batch, Statement, catch_up

EVERYBODY = "all"
"""The user whose transactions see the sessions of all users of a tenant: what concerns everybody does so."""

_BATCHED = "agentgit_batched"

BY_HAND = {"isolation_level": "AUTOCOMMIT"}
"""The driver's own BEGIN has room for nothing else, and is one more way to the server."""

CARRIED = {"synchronous_commit": "off"}
"""The settings of a transaction that need not wait for the disk, because a later commit carries its changes there."""


def settings_of(values: Mapping[str, str]) -> list[Statement]:
    """Write the statements that make settings for one transaction.

    Example:
        >>> settings_of({"agentgit.tenant_name": "o'hara"})[0][:2]
        ('SELECT set_config(%s, %s, true)', [['agentgit.tenant_name', "o'hara"]])
    """
    if not values:
        return []
    sql = "SELECT " + ", ".join(["set_config(%s, %s, true)"] * len(values))
    return [Statement(sql, [[part for pair in values.items() for part in pair]])]


def begin_by_hand(engine: Engine) -> None:
    """Let the transactions of an engine, which was made with `BY_HAND`, begin with their first statement."""
    event.listen(engine, "begin", _begin)
    event.listen(engine, "before_cursor_execute", catch_up)


def _begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if options.get(_BATCHED) or options.get("isolation_level") == BY_HAND["isolation_level"]:
        return  # its batch begins it, or nobody wants a transaction
    driver: Any = connection.connection.driver_connection
    # Never prepared: a pool between would not have it the next time.
    begun = driver.execute("BEGIN", prepare=False)
    if connection.dialect.is_async:
        await_only(begun)


@contextmanager
def transaction(engine: Engine, settings: Sequence[Statement], **kind: bool) -> Iterator[Connection]:
    """Yield a connection in a transaction with these settings, of a kind that `Batch` knows."""
    with engine.connect() as connection, connection.execution_options(**{_BATCHED: True}).begin():
        batch = Batch(connection, settings, **kind)
        try:
            yield connection
            batch.commit()
        finally:
            batch.end()


IDLE_SECONDS = 5.0
"""After so long a connection is asked; asking every time costs a third of a turn on PostgreSQL."""

_USED = "agentgit_used"


def ask_when_idle(engine: Engine) -> None:
    """Replace connections of a pool that have been idle and do not answer."""

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
"""Connections that one open database has at most; on event loops, each loop."""

POOL_SECONDS = 30
"""The time that a transaction waits for a connection before it gives up."""

THRESHOLD = "prepare_threshold"
"""In a URL: how often a statement runs before the driver prepares it, or `none`."""


def server(url: URL, pool_size: int) -> Engine:
    """Make the engine of a server.

    Raises:
        InvalidInput: The pool has no room, or the URL has a setting that cannot be meant.
        Unavailable: The driver is missing.
    """
    if pool_size < 1:
        raise InvalidInput(f"pool_size must be 1 or more, not {pool_size}.")
    try:
        engine = create_engine(without_ours(url), **settings(pool_size))
    except ModuleNotFoundError as error:
        raise Unavailable('PostgreSQL needs its driver. Run: pip install "agentgit[postgres]"') from error
    except ArgumentError as error:
        raise InvalidInput(f"{url.render_as_string(hide_password=True)} cannot be used: {error}") from error
    watch(engine, url)
    return engine


def settings(pool_size: int) -> dict[str, Any]:
    """Return the arguments of an engine.

    No connection is beyond the pool: opening one takes as long as several turns. The one used last is used next, so
    that those which nobody needs stay idle.
    """
    return {
        **BY_HAND,
        "hide_parameters": True,  # what a failure shows has no contents and no secrets
        "pool_size": pool_size,
        "max_overflow": 0,
        "pool_timeout": POOL_SECONDS,
        "pool_use_lifo": True,
    }


def without_ours(url: URL) -> URL:
    """Take out of a URL what is not the driver's."""
    return url.difference_update_query([THRESHOLD])


def watch(engine: Engine, url: URL) -> None:
    """Replace connections that were closed while they were idle, and prepare no statements behind a pooler.

    Raises:
        InvalidInput: The URL has a setting that cannot be meant.
    """
    ask_when_idle(engine)
    begin_by_hand(engine)
    wanted = _wanted(url)
    known: list[bool] = []
    """The answer to whether there is a pooler, which is asked once."""

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
    """Read what a URL says of prepared statements: 0 is none, None is nothing.

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
    """Return whether the process that the server names is another one than that which the connection was told of."""
    cursor = raw.cursor()
    cursor.execute("SELECT pg_backend_pid()")
    (process,) = cursor.fetchone()
    cursor.close()
    raw.rollback()
    return bool(process != connection.info.backend_pid)
