"""Rows: read in parts, made into values, and written as a whole.

In a database with keys, each encrypted value is bound to the row that it is written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Row, Select, Table, and_, bindparam, insert, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.store.sql.batch import slices
from agentgit.store.sql.columns import bind_row, bound_columns, key_names
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.transaction import Reading, Writing

T = TypeVar("T")


def rows_with(
    transaction: Reading, query: Select[Any], column: Any, values: Iterable[Any], **parameters: Any
) -> list[Row[Any]]:
    """Read the rows that have one of these values in a column, however many there are."""
    parts = slices(sorted(values))
    return [row for part in parts for row in transaction.execute(query.where(column.in_(part)), parameters)]


def value_of(kind: Callable[..., T], row: Any, **others: Any) -> T:
    """Return a value with the columns of a row that have the names of its fields. Other fields are given."""
    return kind(**{name: getattr(row, name) for name in _shared_names(kind, row._fields)} | others)


@cache
def _shared_names(kind: Any, columns: Sequence[str]) -> list[str]:
    names = kind._fields if issubclass(kind, tuple) else [one.name for one in fields(kind)]
    return [name for name in names if name in columns]


def insert_missing(table: Table) -> CompiledStatement:
    """Return the statement that inserts rows whose key is not there yet."""
    dialects = {"sqlite": sqlite, "postgresql": postgresql}
    return CompiledStatement({name: one.insert(table).on_conflict_do_nothing() for name, one in dialects.items()})


def insert_rows(transaction: Writing, table: Table, *rows: Mapping[str, Any]) -> None:
    """Insert new rows. Without any, do nothing."""
    if rows:  # without rows, the statement would insert a row of defaults
        is_encrypted = transaction.seal is not None
        transaction.execute(insert(table), [bind_row(table, row) for row in rows] if is_encrypted else list(rows))


def update_rows(transaction: Writing, table: Table, *conditions: Any, **values: Any) -> int:
    encrypted, keys = bound_columns(table), key_names(table)
    is_bound = encrypted and not values.keys().isdisjoint([*encrypted, *keys])
    if transaction.seal is None or not is_bound:
        return int(transaction.execute(update(table).where(*conditions).values(**values)).rowcount)
    query = select(table).where(*conditions).order_by(*table.primary_key).with_for_update(key_share=True)
    rows = transaction.execute(query).all()
    for row in rows:
        # A row with a new key needs all its values encrypted again.
        kept = {} if values.keys().isdisjoint(keys) else {name: getattr(row, name) for name in encrypted}
        bound = bind_row(table, row._asdict() | kept | values)
        new_values = {name: bound[name] for name in kept.keys() | values.keys()}
        is_row = and_(*(key == getattr(row, key.name) for key in table.primary_key))
        transaction.execute(update(table).where(is_row).values(**new_values))
    return len(rows)


def copy_rows(transaction: Writing, table: Table, *conditions: Any, **values: Any) -> None:
    if transaction.seal is not None:
        rows = transaction.execute(select(table).where(*conditions)).all()
        insert_rows(transaction, table, *({**row._asdict(), **values} for row in rows))
        return
    expressions = [literal(values[c.name], c.type).label(c.name) if c.name in values else c for c in table.c]
    query = select(*expressions).where(*conditions)
    transaction.execute(insert(table).from_select([column.name for column in table.c], query))


def queue_insert(transaction: Writing, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a new row as `insert_rows` does, but with a compiled statement, which is queued on a server."""
    _compiled_insert(table, tuple(row)).run(transaction, row)


@cache
def _compiled_insert(table: Table, columns: Sequence[str]) -> CompiledStatement:
    return CompiledStatement(insert(table).values({name: bindparam(name) for name in columns}))


class CompiledUpdate:
    """A compiled update of one row, for updates that every turn makes."""

    def __init__(self, table: Table, *columns: str, conditions: Sequence[str] = ()) -> None:
        where = [key == bindparam(f"of_{key.name}") for key in table.primary_key]
        where += [table.c[name] == bindparam(f"if_{name}") for name in conditions]
        self._table = table
        self._update = CompiledStatement(
            update(table).where(*where).values({name: bindparam(f"new_{name}") for name in columns})
        )

    def run(
        self, transaction: Writing, key: Mapping[str, Any], conditions: Mapping[str, Any] | None = None, **values: Any
    ) -> bool:
        """Update the row, and return whether it met the conditions. Without conditions, return True."""
        parameters = {f"of_{name}": value for name, value in key.items()}
        parameters |= {f"if_{name}": value for name, value in (conditions or {}).items()}
        bound = bind_row(self._table, {**key, **values}) if transaction.seal is not None else values
        parameters |= {f"new_{name}": bound[name] for name in values}
        if conditions is None:
            self._update.run(transaction, parameters)
            return True
        return self._update.count(transaction, parameters) == 1
