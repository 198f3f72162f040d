"""A reader for rows whose cells may hold anything: SQLite stores any type anywhere, and an owner can drop constraints.

A cell with a value that its column cannot hold is a finding. It is read as a neutral value, so that the other cells of
the row and the other rows are still checked.
"""

from __future__ import annotations

import re
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache, partial
from typing import Any, NamedTuple

from sqlalchemy import (
    Boolean,
    Connection,
    DateTime,
    Dialect,
    Integer,
    LargeBinary,
    String,
    Table,
    Text,
    and_,
    case,
    func,
    literal,
    not_,
    or_,
    select,
    type_coerce,
)
from sqlalchemy.sql.elements import Label
from sqlalchemy.types import TypeDecorator

from agentgit.errors import Corrupt, KeyMissing
from agentgit.store.sql.columns import Payload, SafeText, SealedText
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import UnencryptedValue

_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{6}")
"""The format in which SQLAlchemy writes a time on SQLite."""

_TIME_GLOB = re.sub(r"\d", "[0-9]", "2026-01-01 00:00:00.000000")
"""The same format as a GLOB pattern for SQLite."""

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The range of times that Python can hold. PostgreSQL has a wider range, and `infinity`."""

SHOWN_CHARACTERS = 40
"""The number of characters of a wrong value that a finding shows."""


class _ColumnKind(NamedTuple):
    """A kind of column."""

    name: str
    types: tuple[type, ...]
    neutral: Any


_KINDS: Sequence[tuple[type, _ColumnKind]] = (
    (DateTime, _ColumnKind("a time", (str,), FIRST)),
    (Boolean, _ColumnKind("a Boolean", (int, bool), False)),
    (Integer, _ColumnKind("a whole number", (int,), 0)),
    (String, _ColumnKind("text", (str,), "")),
    (LargeBinary, _ColumnKind("bytes", (bytes, memoryview), b"")),
)
"""The kinds of columns, with Boolean before Integer. Columns of other types are not checked."""


class CheckedRow(NamedTuple):
    """A row that was read."""

    row: Any
    problems: Sequence[str]
    has_key: bool
    reader: RowReader
    raw: Sequence[Any]

    @property
    def name(self) -> str:
        """The table and the primary key, as stored."""
        return self.reader.format_name(self.raw)


class RowReader:
    """Reads the rows of one query."""

    def __init__(self, connection: Connection, query: Any, parameters: Mapping[str, Any] | None = None) -> None:
        columns = list(query.selected_columns)
        dialect = connection.dialect
        self._statement = _compile_query(query) if parameters is not None else CompiledStatement(query)
        self._connection, self._parameters = connection, parameters
        self._table: Any = getattr(columns[0], "table", None)
        self._columns = [_ColumnReader.from_column(column, self._table, dialect) for column in columns]
        names = [cell.name for cell in self._columns]
        key_names = [column.name for column in getattr(self._table, "primary_key", ())]
        self._key_indexes = [names.index(name) for name in key_names if name in names]
        self._make_row = _row_factory(names)
        self._indexes_to_check = [n for n, cell in enumerate(self._columns) if cell.needs_value_check]
        self._valid_types: set[tuple[type, ...]] = set()

    def pages(self) -> Iterator[list[CheckedRow]]:
        """Yield all rows, a page at a time. On SQLite, call it inside `tolerate_invalid_text`."""
        for page in self._statement.pages(self._connection, self._parameters, raw=True):
            yield [self._read_row(raw) for raw in page]

    def _read_row(self, raw: Sequence[Any]) -> CheckedRow:
        types = tuple(map(type, raw))
        values, problems = list(raw), dict[int, str]()
        # Most rows have the types of an earlier sound row. Of those, check only cells whose type is not enough.
        for n in self._indexes_to_check if types in self._valid_types else range(len(values)):
            value = raw[n]
            if type(value) is str and self._columns[n].is_plain and value.isascii() and "\\" not in value:
                continue
            try:
                values[n] = self._columns[n].read(value)
            except (ValueError, TypeError, LookupError, ArithmeticError, KeyMissing, Corrupt) as error:
                problems[n] = str(error)
                values[n] = self._columns[n].neutral
        if not problems:
            self._valid_types.add(types)
            return CheckedRow(self._make_row(values), (), True, self, raw)
        return CheckedRow(
            self._make_row(values), [*problems.values()], problems.keys().isdisjoint(self._key_indexes), self, raw
        )

    def format_name(self, raw: Sequence[Any]) -> str:
        """Return the name of a row for findings: its table and its primary key."""
        key = "/".join([str(raw[n]) if type(raw[n]) is int else format_value(raw[n]) for n in self._key_indexes])
        return f"{getattr(self._table, 'name', '')} {key}".strip()


def _row_factory(names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    factory: Callable[[Sequence[Any]], Any] = getattr(namedtuple("Row", names), "_make")  # noqa: B009
    return factory


class _ColumnReader(NamedTuple):
    """A reader of one column of a query."""

    name: str
    kind: _ColumnKind | None
    may_be_null: bool
    is_sqlite: bool
    convert: Callable[[Any], Any] | None
    is_plain: bool
    """True if ASCII text without backslashes needs neither checks nor conversion."""
    needs_value_check: bool
    """True if the type of a value is not enough to validate or convert it."""

    @classmethod
    def from_column(cls, column: Any, table: Any, dialect: Dialect) -> _ColumnReader:
        base_type = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
        # If an expression is selected under a column's name, the column of the table says whether it may be NULL.
        table_column: Any = (
            table.c.get(column.name) if isinstance(column, Label) else column if column.table is table else None
        )
        return cls(
            name=column.name,
            kind=next((kind for type_, kind in _KINDS if isinstance(base_type, type_)), None),
            may_be_null=table_column is None or table_column.nullable,
            is_sqlite=dialect.name == "sqlite",
            convert=column.type.dialect_impl(dialect).result_processor(dialect, None),
            is_plain=isinstance(base_type, String) and not isinstance(column.type, SealedText),
            needs_value_check=isinstance(column.type, Payload) or isinstance(base_type, Boolean | String | DateTime),
        )

    @property
    def neutral(self) -> Any:
        return None if self.kind is None or self.may_be_null else self.kind.neutral

    def read(self, value: Any) -> Any:
        """Convert a stored value."""
        if value is None:
            if not self.may_be_null:
                raise ValueError(f"its {self.name} is not {self.kind.name if self.kind else 'a value'}")
            return None
        kind = self.kind
        if self.is_sqlite and kind is not None and not self._is_valid(kind, value):
            raise ValueError(f"its {self.name} is {format_value(value)}, which is not {kind.name}")
        try:
            return self.convert(value) if self.convert is not None else value
        except UnencryptedValue as error:
            raise ValueError(f"its {self.name} is not encrypted, although this database is") from error
        except (KeyMissing, Corrupt) as error:
            raise ValueError(f"its {self.name} cannot be decrypted with its key") from error
        except Exception as error:  # a type may raise anything for a value that it did not write
            raise ValueError(f"its {self.name} is {format_value(value)}, which cannot be read") from error

    def _is_valid(self, kind: _ColumnKind, value: Any) -> bool:
        if type(value) not in kind.types:
            return False
        if isinstance(value, str):
            is_text = value.isascii() or not any("\udc80" <= c <= "\udcff" for c in value)
            return is_text and (kind.name != "a time" or _TIME.fullmatch(value) is not None)
        return kind.name != "a Boolean" or value in (0, 1)


def format_value(value: Any) -> str:
    """Format a value so that any terminal can show it.

    Example:
        >>> format_value(7), format_value("main"), format_value(b"ab"), format_value("a" + chr(10))
        ('7', 'main', '6162', "'a\\\\n'")
    """
    if isinstance(value, bytes | memoryview):
        text = bytes(value[:SHOWN_CHARACTERS]).hex() or "b''"
    else:
        text = str(value)
        text = text if text.isprintable() and text.isascii() and text else ascii(value)
    return text if len(text) <= 2 * SHOWN_CHARACTERS else text[: 2 * SHOWN_CHARACTERS] + "…"


@cache
def select_suspicious(table: Table, *, is_sqlite: bool) -> Any:
    """Build a query for the rows that have a suspicious cell. The database finds them quickly."""
    conditions = [condition for column in table.c for condition in _suspicious_conditions(column, is_sqlite)]
    return select(*(_light_column(column, is_sqlite) for column in table.c)).where(or_(*conditions))


@cache
def _compile_query(query: Any) -> CompiledStatement:
    return CompiledStatement(query)


def _suspicious_conditions(column: Any, is_sqlite: bool) -> list[Any]:
    base_type = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    # SQLite trusts NOT NULL, so `IS NULL` never finds a NULL in such a column.
    is_null = func.typeof(column) == "null" if is_sqlite else column.is_(None)
    conditions = [] if column.nullable else [is_null]
    stored_text = type_coerce(column, Text)  # compared as stored
    if isinstance(column.type, SafeText):
        conditions.append(func.instr(stored_text, "\\") > 0 if is_sqlite else func.strpos(stored_text, "\\") > 0)
    if not is_sqlite:
        if isinstance(base_type, DateTime):
            conditions.append(not_(column.between(FIRST, LAST)))
        return conditions
    storage_classes = {Integer: "integer", Boolean: "integer", LargeBinary: "blob", String: "text", DateTime: "text"}
    storage_class = next((name for type_, name in storage_classes.items() if isinstance(base_type, type_)), None)
    if storage_class is not None:
        conditions.append(and_(func.typeof(column) != storage_class, func.typeof(column) != "null"))
    if isinstance(base_type, Boolean):
        conditions.append(not_(type_coerce(column, Integer).between(0, 1)))
    if isinstance(base_type, String):
        conditions.append(stored_text.op("GLOB")("*[^ -~]*"))
    if isinstance(base_type, DateTime):
        conditions.append(stored_text.op("NOT GLOB")(_TIME_GLOB))
        conditions.append(and_(column.is_not(None), func.datetime(stored_text).is_(None)))
    return conditions


def _light_column(column: Any, is_sqlite: bool) -> Any:
    """Build the expression to select a column. Of large values it only selects whether they are bytes."""
    base_type = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if isinstance(base_type, LargeBinary) and not column.primary_key:
        is_valid = func.typeof(column) == "blob" if is_sqlite else column.is_not(None)
        invalid_value = type_coerce(column, LargeBinary) if is_sqlite else None
        return case((is_valid, literal(b"", LargeBinary)), else_=invalid_value).label(column.name)
    return readable_column(column, is_sqlite=is_sqlite)


def readable_column(column: Any, *, is_sqlite: bool) -> Any:
    """Build the expression to select a column. On a server, times that the driver cannot read become NULL."""
    base_type = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if is_sqlite or not isinstance(base_type, DateTime):
        return column
    return case((column.between(FIRST, LAST), column)).label(column.name)


@contextmanager
def tolerate_invalid_text(connection: Connection) -> Iterator[None]:
    """Make SQLite return text that is not valid UTF-8, with a lone surrogate for each invalid byte."""
    if connection.dialect.name != "sqlite":
        yield
        return
    dbapi_connection: Any = connection.connection.dbapi_connection
    previous_factory, dbapi_connection.text_factory = (
        dbapi_connection.text_factory,
        partial(str, encoding="utf-8", errors="surrogateescape"),
    )
    try:
        yield
    finally:
        dbapi_connection.text_factory = previous_factory
