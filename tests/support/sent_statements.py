"""A check of every statement that the library sends to PostgreSQL, so that the tables can be distributed by tenant.

Citus refuses volatile functions in updates, has no triggers on distributed tables, and sends a statement to one machine
only if the statement names the tenant. The check is on the cursors of the driver, where all ways of sending end.
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
from sqlalchemy.util import greenlet_spawn
from sqlglot import exp

from agentgit.store.sql.tables import METADATA

ROOT = Path(__file__).parents[2]
TENANT_TABLES = frozenset(name for name, table in METADATA.tables.items() if "tenant_id" in table.c)

EXEMPT = {
    "alembic/": "creates the tables",
    "agentgit/store/schema/schema.py": "migrates, with a lock that only migrations and grants take, on one machine",
}
"""The senders whose statements are not checked, as a path or as a path and a function, each with the reason."""

LOCAL_FUNCTIONS = {
    "set_config": "sets something for this transaction on the machine that the program is connected to",
    "pg_try_advisory_lock": "locks a name on that machine, against other programs that are connected to it",
    "pg_advisory_unlock": "releases such a lock",
    "pg_database_size": "shows the size of the database on that machine",
}
"""The volatile functions that a statement without any table may call: it runs on the machine that gets it."""

UNCHECKED = (
    exp.Transaction, exp.Commit, exp.Rollback, exp.Set, exp.Create, exp.Drop, exp.Alter, exp.Grant, exp.Revoke,
)  # fmt: skip
"""Statements that neither read nor write rows."""

UNCHECKED_COMMANDS = {";", "BEGIN", "RELEASE", "SAVEPOINT", "SHOW", "VACUUM"}
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

    The innermost frame outside of the installed packages is the sender, so SQL that a test passes to the library is the
    test's own.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(str(ROOT)) and "/.venv/" not in file and file != __file__:
            path = file[len(str(ROOT)) + 1 :]
            sender = f"{path} {frame.f_code.co_name}"
            is_ours = path.startswith("agentgit/") and not any(sender.startswith(one) for one in EXEMPT)
            return sender if is_ours else None
        # SQLAlchemy awaits an async driver outside of the greenlet that sent the statement.
        is_async = frame.f_code is greenlet_spawn.__code__
        frame = frame.f_locals["context"].gr_frame if is_async else frame.f_back
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
    if not statement.find(exp.Table):
        called -= LOCAL_FUNCTIONS.keys()
    breaches = [f"calls the volatile {name}()" for name in sorted(called)]
    untold = sorted({one.name for one in tables if one.name in TENANT_TABLES and not _names_tenant(one)})
    breaches += [f"names no tenant of {name}" for name in untold]
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


KNOWN = "(known)"
"""A tenant that is a parameter or a constant, or comes from another query, where it is checked."""

OTHER = "(other)"
"""A value that is neither known nor the tenant of a table."""


def _names_tenant(table: exp.Table) -> bool:
    """Return whether the statement that reads or writes a table limits it to tenants that are known."""
    owner = table.find_ancestor(exp.Select, exp.Insert, exp.Update, exp.Delete)
    if isinstance(owner, exp.Insert):
        return any(column.name == "tenant_id" for column in owner.this.expressions)
    if owner is None:  # TRUNCATE, COPY or TABLE
        return False
    tables = {
        one.alias_or_name
        for one in owner.find_all(exp.Table)
        if one.name in TENANT_TABLES and one.find_ancestor(exp.Select, exp.Insert, exp.Update, exp.Delete) is owner
    }
    facts = {fact for condition in _conditions(owner) for fact in _facts(condition, tables)}
    known = {KNOWN}
    while more := {name for fact in facts if fact & known for name in fact} - known:
        known |= more
    return table.alias_or_name in known


def _conditions(owner: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the conditions of WHERE and of the joins of a statement, without those of the queries inside of it."""
    for one in owner.find_all(exp.Where, exp.Join):
        if one.find_ancestor(exp.Select, exp.Insert, exp.Update, exp.Delete) is owner:
            condition = one.this if isinstance(one, exp.Where) else one.args.get("on")
            if condition is not None:
                yield condition


def _facts(condition: exp.Expression, tables: set[str]) -> set[frozenset[str]]:
    """Return the pairs of tables that a condition gives the same tenant; `KNOWN` is also one of a pair."""
    condition = condition.unnest()
    if isinstance(condition, exp.And):
        return _facts(condition.left, tables) | _facts(condition.right, tables)
    if isinstance(condition, exp.Or):
        return _facts(condition.left, tables) & _facts(condition.right, tables)
    if isinstance(condition, exp.EQ):
        return _pairs(condition.left, condition.right, tables)
    if isinstance(condition, exp.In) and condition.expressions:
        return set.intersection(*(_pairs(condition.this, one, tables) for one in condition.expressions))
    return set()


def _pairs(left: exp.Expression, right: exp.Expression, tables: set[str]) -> set[frozenset[str]]:
    sides = [[_tenant(element, tables) for element in _elements(side)] for side in (left, right)]
    return {frozenset(pair) for pair in zip(*sides, strict=False) if OTHER not in pair}


def _elements(side: exp.Expression) -> list[exp.Expression]:
    return side.expressions if isinstance(side, exp.Tuple) else [side]


def _tenant(value: exp.Expression, tables: set[str]) -> str:
    """Return the alias of the table whose tenant a value is, `KNOWN` or `OTHER`."""
    value = value.unnest()
    if isinstance(value, exp.Column) and value.name == "tenant_id":
        alias = value.table or (next(iter(tables)) if len(tables) == 1 else "")
        return alias if alias in tables else KNOWN
    return OTHER if value.find(exp.Column, exp.Query) else KNOWN
