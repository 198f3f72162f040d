"""Row-level security: for whom a transaction on PostgreSQL works is said right after it begins.

The settings end with the transaction, so no pool, inside of the program or between it and the server, carries one over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.util import await_only

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
