"""A check of every statement that the library sends to PostgreSQL.

None names a schema, because the connection decides. None calls a volatile function in an update or has a subquery among
values, which Citus refuses, and none reads a snapshot beside a table, which may be on another node. The check is on the
cursors of the driver, where all ways of sending end.
"""

from __future__ import annotations

import functools
import logging
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import sqlglot
from sqlalchemy import Connection, event, text
from sqlalchemy.pool import Pool
from sqlglot import exp

from agentgit.store.sql.tables import METADATA

ROOT = Path(__file__).parents[2]

TRANSACTION = str(ROOT / "agentgit/store/sql/transaction.py")

EXEMPT = {
    "alembic/": "creates the tables",
    "agentgit/store/schema/": "migrates, with a lock that only migrations and grants take, on one machine",
}
"""The senders whose statements are not checked, as a path or as a path and a function, each with the reason."""

LOCAL_FUNCTIONS = {
    "set_config": "sets something for this transaction on the machine that the program is connected to",
    "pg_try_advisory_lock": "locks a name on that machine, against other programs that are connected to it",
    "pg_advisory_unlock": "releases such a lock",
    "pg_total_relation_size": "shows the size of a table on that machine",
}
"""The volatile functions that a statement without any table of ours may call: it runs on the machine that gets it."""

UNCHECKED = (
    exp.Transaction, exp.Commit, exp.Rollback, exp.Set, exp.Create, exp.Drop, exp.Alter, exp.Grant, exp.Revoke,
)  # fmt: skip
"""Statements that neither read nor write rows."""

UNCHECKED_COMMANDS = {";", "BEGIN", "REINDEX", "RELEASE", "SAVEPOINT", "SHOW", "VACUUM"}
"""The first words of such statements that sqlglot does not parse. A ping is only a semicolon."""


class Breach(NamedTuple):
    """A statement that breaks a rule, and who sent it."""

    rule: str
    sender: str
    sql: str

    def __str__(self) -> str:
        return f"{self.sender} {self.rule}: {self.sql}"


_volatile: set[str] = set()
"""The names of the volatile functions of the server."""

_breaches: dict[Breach, None] = {}
_recorded: list[list[str]] = []


def read_volatile_functions(connection: Connection) -> None:
    """Read which functions are volatile from the server's own catalog."""
    _volatile.update(connection.execute(text("SELECT proname FROM pg_proc WHERE provolatile = 'v'")).scalars())


def watch_connections() -> None:
    """Check the statements of every connection that SQLAlchemy opens to PostgreSQL from now on."""
    event.listen(Pool, "connect", lambda connection, _record: _watch(connection, check))


def before_each(act: Callable[[Any], None]) -> None:
    """Call a function with each statement before it runs, on every connection that SQLAlchemy opens from now on."""

    def watch(connection: Any, _record: Any) -> None:
        _watch(connection, act)
        if isinstance(connection, sqlite3.Connection):
            connection.set_trace_callback(act)

    event.listen(Pool, "connect", watch)


def take_breaches() -> list[Breach]:
    taken = list(_breaches)
    for breach in taken:
        del _breaches[breach]
    return taken


@contextmanager
def recording() -> Iterator[list[str]]:
    """Yield a list that receives the statements which the library sends until the block ends."""
    statements: list[str] = []
    _recorded.append(statements)
    try:
        yield statements
    finally:
        _recorded.remove(statements)


def _watch(dbapi_connection: Any, act: Callable[[Any], None]) -> None:
    connection = getattr(dbapi_connection, "driver_connection", dbapi_connection)
    for factory in ("cursor_factory", "server_cursor_factory"):
        if plain := getattr(connection, factory, None):  # SQLite's connections have none
            setattr(connection, factory, _watched(plain, act))


@functools.cache
def _watched(cursor_class: Any, act: Callable[[Any], None]) -> Any:
    """Return a subclass of a sync or async cursor that calls a function with what it sends."""

    class Watched(cursor_class):
        def execute(self, query: Any, *args: Any, **options: Any) -> Any:
            act(query)
            return super().execute(query, *args, **options)

        def executemany(self, query: Any, *args: Any, **options: Any) -> Any:
            act(query)
            return super().executemany(query, *args, **options)

    return Watched


def check(query: Any) -> None:
    """Check a statement, and keep its breaches unless its sender is exempt."""
    sql = query if isinstance(query, str) else query.as_string()
    rules = list_breaches(sql)
    if not rules and not _recorded:
        return
    sender = _find_sender()
    if sender is not None:
        for statements in _recorded:
            statements.append(sql)
        _breaches.update(dict.fromkeys(Breach(rule, sender, sql) for rule in rules))


def _find_sender() -> str | None:
    """Return the function of the library that sends the current statement; None for tests and exempt senders.

    The innermost frame outside of the installed packages is the sender, but for a transaction, which passes on what it
    is given. So SQL that a test passes to the library is the test's own.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(str(ROOT)) and "/.venv/" not in file and file not in (__file__, TRANSACTION):
            path = file[len(str(ROOT)) + 1 :]
            sender = f"{path} {frame.f_code.co_name}"
            is_ours = path.startswith("agentgit/") and not any(sender.startswith(one) for one in EXEMPT)
            return sender if is_ours else None
        frame = frame.f_back
    return None


# -- the rules


@functools.cache
def list_breaches(sql: str) -> tuple[str, ...]:
    statement = _parse(sql)
    if isinstance(statement, UNCHECKED):
        return ()
    if statement is None or isinstance(statement, exp.Command):
        word = sql.partition(" ")[0].upper()
        return () if word in UNCHECKED_COMMANDS else ("locks a table",) if word == "LOCK" else ("cannot be parsed",)
    common = {one.alias_or_name for one in statement.find_all(exp.CTE)}
    tables = [
        one
        for one in statement.find_all(exp.Table)
        if one.name in METADATA.tables and one.name not in common and not isinstance(one.parent, exp.Lock)
    ]
    called = {_function_name(one) for one in statement.find_all(exp.Func)} & _volatile
    if not tables:
        called -= LOCAL_FUNCTIONS.keys()
    breaches = [f"calls the volatile {name}()" for name in sorted(called)]
    if tables and "pg_current_snapshot" in sql:
        breaches.append("reads the snapshot of the node that has the table")
    if any(values.find(exp.Select) for values in statement.find_all(exp.Values)):
        breaches.append("inserts the value of a subquery")
    breaches += [f"names the schema of {name}" for name in sorted({one.name for one in tables if one.db})]
    return tuple(breaches)


def _parse(sql: str) -> Any:
    logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of each statement that it does not parse
    try:
        # psycopg's %% is a percent sign.
        (statement,) = sqlglot.parse(sql.replace("%%", "%"), dialect="postgres")
    except (sqlglot.ParseError, ValueError):
        return None
    return statement


def _function_name(function: exp.Func) -> str:
    if isinstance(function, exp.Anonymous):
        return str(function.this).lower()
    if isinstance(function, (exp.Binary, exp.Case, exp.Cast)):
        return ""
    return function.sql(dialect="postgres").partition("(")[0].lower()
