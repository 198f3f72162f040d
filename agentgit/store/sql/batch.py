"""Batches of statements that are sent to a server together.

A round trip to a server takes as long as several small statements. Inside a transaction on PostgreSQL, a statement is
therefore queued until its result, or the result of a later statement, is needed, or until the commit. All queued
statements are then sent in one pipeline, in order. If one of them fails, the transaction fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection

T = TypeVar("T")

MAX_PARAMETERS = 500
"""The maximum number of parameters in one statement. Old builds of SQLite allow 999."""


def slices(items: Sequence[T], size: int = MAX_PARAMETERS) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


class Statement(NamedTuple):
    """A statement in the form that the driver takes."""

    sql: str
    rows: Sequence[Any] = ()
    on_result: Callable[[int, list[Any]], None] | None = None
    prepare: bool | None = None


BEGIN, COMMIT = Statement("BEGIN", prepare=False), Statement("COMMIT", prepare=False)
BEGIN_SNAPSHOT = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", prepare=False)


class Batch:
    """The statements of one transaction that have not been sent yet."""

    def __init__(
        self,
        connection: Connection,
        settings: Sequence[Statement] = (),
        *,
        only_reads: bool = False,
        one_moment: bool = False,
    ) -> None:
        self._connection = connection
        self._driver: Any = connection.connection.driver_connection
        self._settings = settings
        self._only_reads = only_reads and not one_moment
        self._begin = BEGIN_SNAPSHOT if one_moment else BEGIN
        self._has_begun = False
        self._queued: list[Statement] = []

    def add(self, statement: Statement) -> None:
        self._queued.append(statement)

    def send(self) -> None:
        if self._queued:
            queued, self._queued = self._queued, []
            self._send([*self._leading_statements(), *queued])

    def begin(self) -> None:
        """Begin the transaction and send the queued statements, before statements that bypass the batch."""
        self._only_reads = False
        queued, self._queued = self._queued, []
        if statements := [*self._leading_statements(), *queued]:
            self._send(statements)

    def commit(self) -> None:
        queued, self._queued = self._queued, []
        if self._has_begun:
            self._send([*queued, COMMIT])
        elif queued and not self._only_reads:
            self._send([*self._settings, *queued])  # one pipeline is one transaction

    def _leading_statements(self) -> Sequence[Statement]:
        """Return the statements that must precede the next ones."""
        if self._has_begun:
            return ()
        if self._only_reads:
            return self._settings
        self._has_begun = True
        return (self._begin, *self._settings)

    def _send(self, statements: Sequence[Statement]) -> None:
        try:
            cursors = _send(self._driver, statements)
        except BaseException:
            # psycopg regards statements that the server skipped after a failure as prepared, so they would always fail.
            self._connection.invalidate()
            raise
        for cursor, (_, _, on_result, _) in zip(cursors, statements, strict=True):
            if on_result is not None:
                on_result(cursor.rowcount, cursor.fetchall() if cursor.rownumber is not None else [])


def _send(driver: Any, statements: Sequence[Statement]) -> Sequence[Any]:
    """Run statements, and return a cursor for each."""
    if len(statements) == 1 and len(statements[0].rows) < 2:  # a pipeline of one takes twice as long
        sql, rows, _, prepare = statements[0]
        return [driver.execute(sql, *rows, prepare=prepare)]
    shared = driver.cursor()
    cursors = [driver.cursor() if one.on_result is not None or len(one.rows) > 1 else shared for one in statements]
    _send_pipeline(driver, zip(cursors, statements, strict=True))
    return cursors


def _send_pipeline(driver: Any, statements: Iterable[tuple[Any, Statement]]) -> None:
    failures: list[Exception] = []
    try:
        with driver.pipeline():
            try:
                for cursor, (sql, rows, _, prepare) in statements:
                    if len(rows) > 1:
                        cursor.executemany(sql, rows)
                    else:
                        cursor.execute(sql, *rows, prepare=prepare)
            # Raised below: while the pipeline goes on, psycopg would log a warning, because its end fails too.
            except Exception as error:  # noqa: BLE001
                failures.append(error)
    except Exception as error:  # noqa: BLE001  # it is raised below
        # If the commit itself failed, psycopg cannot leave the pipeline and reports that instead of the cause.
        failures.append(_commit_failure(error))
    if failures:
        raise failures[0]


def _commit_failure(error: Exception) -> Exception:
    """Return the reason why a pipeline could not commit.

    The server's answer to a failed commit belongs to no statement. psycopg sets it as the context of its own exception,
    or runs out of statements to match answers with. In the second case the reason is lost, but nothing was committed.
    """
    cause = error.__context__
    if isinstance(cause, Exception) and getattr(cause, "sqlstate", None):
        return cause
    if isinstance(error, IndexError):
        serialization_failure: Exception = import_module("psycopg.errors").SerializationFailure(
            "the server refused the commit"
        )
        return serialization_failure
    return error
