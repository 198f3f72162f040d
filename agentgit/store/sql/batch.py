"""Statements on their way to a server: what nobody needs at once waits, and goes along with the next one.

Statements on their way to a server: what nobody needs at once waits, and goes along with what somebody does. The way
to a server and back takes as long as several small statements. So in a transaction on PostgreSQL a statement is sent
only when its answer, or that of a later one, is asked for, or with the commit; all that wait then go in one pipeline.
Their order stays, and a failure of one of them is that of the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection
from sqlalchemy.util import await_only

T = TypeVar("T")

AT_ONCE = 500
"""The greatest number of parameters in one statement. SQLite allows 999 in old builds."""


def slices(many: Sequence[T], most: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """Return a sequence in pieces, in order.

    Args:
        many: The sequence.
        most: The greatest number of items in a piece.

    Example:
        >>> list(slices([1, 2, 3, 4, 5], 2))
        [[1, 2], [3, 4], [5]]
    """
    for start in range(0, len(many), most):
        yield many[start : start + most]


_BATCH = "agentgit_batch"
"""The key under which a connection keeps the batch of its transaction."""


class Statement(NamedTuple):
    """A statement as the driver takes it.

    Args:
        sql: The text of the statement.
        rows: The parameters, once for each time that it runs.
        answer: The receiver of the count of rows it touched and those that it read; None if nobody wants them.
        prepare: False if it must never be prepared; None leaves it to the driver.
    """

    sql: str
    rows: Sequence[Any] = ()
    answer: Callable[[int, list[Any]], None] | None = None
    prepare: bool | None = None


BEGIN, COMMIT = Statement("BEGIN", prepare=False), Statement("COMMIT", prepare=False)
BEGIN_OF_ONE_MOMENT = Statement("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY", prepare=False)


class Batch:
    """The statements of one transaction that are not sent yet.

    Args:
        connection: A connection that has begun for SQLAlchemy; the server is told with the first statement.
        settings: The settings of the transaction.
        only_reads: True if each way to the server may be a transaction of its own.
        one_moment: True if everything must be seen as it was at the first statement.
    """

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
        self._is_async = connection.dialect.is_async
        self._settings = settings
        self._only_reads = only_reads and not one_moment
        self._begin = BEGIN_OF_ONE_MOMENT if one_moment else BEGIN
        self._has_begun = False
        self._waiting: list[Statement] = []
        self.foreseen: dict[tuple[Any, ...], Any] = {}
        """The answers that were asked for before they are needed."""
        self._info = connection.info
        self._info[_BATCH] = self

    def add(self, statement: Statement) -> None:
        """Let a statement wait for the next one whose answer is asked for."""
        self._waiting.append(statement)

    def send(self) -> None:
        """Send what waits, and take the answers."""
        if self._waiting:
            waiting, self._waiting = self._waiting, []
            self._send([*self._before(), *waiting])

    def begin(self) -> None:
        """Send what waits, and let the transaction have begun: what comes next does not come this way."""
        self._only_reads = False
        waiting, self._waiting = self._waiting, []
        if sent := [*self._before(), *waiting]:
            self._send(sent)

    def commit(self) -> None:
        """Send what waits, and the commit with it."""
        waiting, self._waiting = self._waiting, []
        if self._has_begun:
            self._send([*waiting, COMMIT])
        elif waiting and not self._only_reads:
            self._send([*self._settings, *waiting])  # one pipeline is one transaction

    def end(self) -> None:
        """Forget what was not sent: the transaction is over."""
        self._info.pop(_BATCH, None)

    def _before(self) -> Sequence[Statement]:
        """Return what must come before the next statements."""
        if self._has_begun:
            return ()
        if self._only_reads:
            return self._settings
        self._has_begun = True
        return (self._begin, *self._settings)

    def _send(self, statements: Sequence[Statement]) -> None:
        try:
            if self._is_async:
                await_only(_asend(self._driver, statements))
            else:
                _send(self._driver, statements)
        except BaseException:
            # What the server passed over behind a failure, psycopg takes for prepared: it would fail ever after.
            self._connection.invalidate()
            raise


def batch_of(connection: Connection) -> Batch | None:
    """Return the batch of a connection's transaction; None where statements do not wait."""
    return connection.info.get(_BATCH)


def catch_up(connection: Connection, *_: Any) -> None:
    """Send what waits before a statement that goes by another way."""
    batch = batch_of(connection)
    if batch is not None:
        batch.begin()


@contextmanager
def _held_back(failures: list[Exception]) -> Iterator[None]:
    """Keep a failure until its pipeline has ended; psycopg would log a warning that the end fails then, too."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # `_raised` raises it
        failures.append(error)


@contextmanager
def _raised(failures: list[Exception]) -> Iterator[None]:
    """Raise what was held back, in the place of what the end of the pipeline says."""
    try:
        yield
    except Exception as error:  # noqa: BLE001  # it is raised below
        # Where the commit itself failed, psycopg cannot leave the pipeline, and says that in the place of why.
        failures.append(_commit_failure(error))
    if failures:
        raise failures[0]


def _commit_failure(error: Exception) -> Exception:
    """Return why a pipeline could not commit.

    The server's answer to a failed commit belongs to no statement. psycopg gives it as the context of its own failure,
    or runs out of statements to match answers with: then the reason is lost, but nothing was committed.
    """
    first = error.__context__
    if isinstance(first, Exception) and getattr(first, "sqlstate", None):
        return first
    if isinstance(error, IndexError):
        refused: Exception = import_module("psycopg.errors").SerializationFailure("the server refused the commit")
        return refused
    return error


def _send(driver: Any, statements: Sequence[Statement]) -> None:
    silent, cursors = driver.cursor(), []
    failures: list[Exception] = []
    with _raised(failures), driver.pipeline(), _held_back(failures):
        for sql, rows, answer, prepare in statements:
            cursor = driver.cursor() if answer is not None else silent
            if answer is not None:
                cursors.append((cursor, answer))
            if len(rows) > 1:
                cursor.executemany(sql, rows)
                silent = driver.cursor() if cursor is silent else silent  # it is for one statement only
            else:
                cursor.execute(sql, *rows, prepare=prepare)
    for cursor, answer in cursors:
        answer(cursor.rowcount, cursor.fetchall() if cursor.rownumber is not None else [])


async def _asend(driver: Any, statements: Sequence[Statement]) -> None:
    silent, cursors = driver.cursor(), []
    failures: list[Exception] = []
    with _raised(failures):
        async with driver.pipeline():
            with _held_back(failures):
                for sql, rows, answer, prepare in statements:
                    cursor = driver.cursor() if answer is not None else silent
                    if answer is not None:
                        cursors.append((cursor, answer))
                    if len(rows) > 1:
                        await cursor.executemany(sql, rows)
                        silent = driver.cursor() if cursor is silent else silent  # it is for one statement only
                    else:
                        await cursor.execute(sql, *rows, prepare=prepare)
    for cursor, answer in cursors:
        answer(cursor.rowcount, await cursor.fetchall() if cursor.rownumber is not None else [])
