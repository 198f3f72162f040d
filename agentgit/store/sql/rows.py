"""Rows: read in parts, made into values, and inserted where they are missing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import Row, Select, Table
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.transaction import Reading

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


def insert_missing(table: Table) -> CompiledStatement:
    """Return the statement that inserts rows whose key is not there yet."""
    dialects = {"sqlite": sqlite, "postgresql": postgresql}
    return CompiledStatement({name: one.insert(table).on_conflict_do_nothing() for name, one in dialects.items()})


@cache
def _shared_names(kind: Any, columns: Sequence[str]) -> list[str]:
    names = kind._fields if issubclass(kind, tuple) else [one.name for one in fields(kind)]
    return [name for name in names if name in columns]
