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
    bindparam,
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

_DIGITS = re.sub(r"\d", "[0-9]", "2026-01-01 00:00:00.000000")
"""The same format as a GLOB pattern for SQLite."""

FIRST, LAST = datetime(1, 1, 2, tzinfo=UTC), datetime(9999, 12, 30, tzinfo=UTC)
"""The range of times that Python can hold. PostgreSQL has a wider range, and `infinity`."""

SHOWN = 40
"""The number of characters of a wrong value that a finding shows."""


class _Kind(NamedTuple):
    """A kind of column.

    Args:
        what: The name of the kind in a finding.
        types: The types that SQLite returns for it.
        neutral: The value that replaces a cell which holds something else.
    """

    what: str
    types: tuple[type, ...]
    neutral: Any


_KINDS: Sequence[tuple[type, _Kind]] = (
    (DateTime, _Kind("a time", (str,), FIRST)),
    (Boolean, _Kind("a Boolean", (int, bool), False)),
    (Integer, _Kind("a whole number", (int,), 0)),
    (String, _Kind("text", (str,), "")),
    (LargeBinary, _Kind("bytes", (bytes, memoryview), b"")),
)
"""The kinds of columns, with Boolean before Integer. Columns of other types are not checked."""


class Read(NamedTuple):
    """A row that was read.

    Args:
        row: The values, by the names of the columns.
        problems: The problems of its cells, as sentences.
        has_key: True if all cells of the key can be read.
        cells: The reader of the cells.
        raw: The values that the driver returned.
    """

    row: Any
    problems: Sequence[str]
    has_key: bool
    cells: Cells
    raw: Sequence[Any]

    @property
    def name(self) -> str:
        """The table and the primary key, as stored."""
        return self.cells.name_of(self.raw)


class Cells:
    """Reads the rows of one query.

    Args:
        connection: Any open connection.
        query: A select. The columns that belong to the table of its first column are checked.
        given: The parameters of a query that is used repeatedly; None if it has none.
    """

    def __init__(self, connection: Connection, query: Any, given: Mapping[str, Any] | None = None) -> None:
        columns = list(query.selected_columns)
        dialect = connection.dialect
        self._statement = _prepared(query) if given is not None else CompiledStatement(query)
        self._connection, self._given = connection, given
        self._table: Any = getattr(columns[0], "table", None)
        self._columns = [_Cell.of(column, self._table, dialect) for column in columns]
        names = [cell.name for cell in self._columns]
        keys = [column.name for column in getattr(self._table, "primary_key", ()) if column.name != "tenant_id"]
        self._key = [names.index(name) for name in keys if name in names]
        self._make = _maker(names)
        self._closer = [n for n, cell in enumerate(self._columns) if cell.needs_value_check]
        self._sound: set[tuple[type, ...]] = set()

    def pages(self) -> Iterator[list[Read]]:
        """Yield all rows, a page at a time. On SQLite, call it inside `any_text`."""
        for page in self._statement.pages(self._connection, self._given, raw=True):
            yield [self._read(raw) for raw in page]

    def _read(self, raw: Sequence[Any]) -> Read:
        types = tuple(map(type, raw))
        values, wrong = list(raw), dict[int, str]()
        # Most rows have the types of an earlier sound row. Of those, check only cells whose type is not enough.
        for n in self._closer if types in self._sound else range(len(values)):
            value = raw[n]
            if type(value) is str and self._columns[n].is_plain and value.isascii() and "\\" not in value:
                continue
            try:
                values[n] = self._columns[n].read(value)
            except (ValueError, TypeError, LookupError, ArithmeticError, KeyMissing, Corrupt) as error:
                wrong[n] = str(error)
                values[n] = self._columns[n].neutral
        if not wrong:
            self._sound.add(types)
            return Read(self._make(values), (), True, self, raw)
        return Read(self._make(values), [*wrong.values()], wrong.keys().isdisjoint(self._key), self, raw)

    def name_of(self, raw: Sequence[Any]) -> str:
        """Return the name of a row for findings: its table and its primary key."""
        key = "/".join([str(raw[n]) if type(raw[n]) is int else shown(raw[n]) for n in self._key])
        return f"{getattr(self._table, 'name', '')} {key}".strip()


def _maker(names: Sequence[str]) -> Callable[[Sequence[Any]], Any]:
    make: Callable[[Sequence[Any]], Any] = getattr(namedtuple("Row", names), "_make")  # noqa: B009
    return make


class _Cell(NamedTuple):
    """A reader of one column of a query."""

    name: str
    kind: _Kind | None
    may_be_null: bool
    is_sqlite: bool
    convert: Callable[[Any], Any] | None
    is_plain: bool
    """True if ASCII text without backslashes needs neither checks nor conversion."""
    needs_value_check: bool
    """True if the type of a value is not enough to validate or convert it."""

    @classmethod
    def of(cls, column: Any, table: Any, dialect: Dialect) -> _Cell:
        plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
        # If an expression is selected under a column's name, the column of the table says whether it may be NULL.
        own: Any = table.c.get(column.name) if isinstance(column, Label) else column if column.table is table else None
        return cls(
            name=column.name,
            kind=next((kind for type_, kind in _KINDS if isinstance(plain, type_)), None),
            may_be_null=own is None or own.nullable,
            is_sqlite=dialect.name == "sqlite",
            convert=column.type.dialect_impl(dialect).result_processor(dialect, None),
            is_plain=isinstance(plain, String) and not isinstance(column.type, SealedText),
            needs_value_check=isinstance(column.type, Payload) or isinstance(plain, Boolean | String | DateTime),
        )

    @property
    def neutral(self) -> Any:
        return None if self.kind is None or self.may_be_null else self.kind.neutral

    def read(self, value: Any) -> Any:
        """Convert a stored value.

        Raises:
            ValueError: The column cannot hold this value.
        """
        if value is None:
            if not self.may_be_null:
                raise ValueError(f"its {self.name} is not {self.kind.what if self.kind else 'a value'}")
            return None
        kind = self.kind
        if self.is_sqlite and kind is not None and not self._fits(kind, value):
            raise ValueError(f"its {self.name} is {shown(value)}, which is not {kind.what}")
        try:
            return self.convert(value) if self.convert is not None else value
        except UnencryptedValue as error:
            raise ValueError(f"its {self.name} is not encrypted, although this database is") from error
        except (KeyMissing, Corrupt) as error:
            raise ValueError(f"its {self.name} cannot be decrypted with its key") from error
        except Exception as error:  # a type may raise anything for a value that it did not write
            raise ValueError(f"its {self.name} is {shown(value)}, which cannot be read") from error

    def _fits(self, kind: _Kind, value: Any) -> bool:
        if type(value) not in kind.types:
            return False
        if isinstance(value, str):
            is_text = value.isascii() or not any("\udc80" <= c <= "\udcff" for c in value)
            return is_text and (kind.what != "a time" or _TIME.fullmatch(value) is not None)
        return kind.what != "a Boolean" or value in (0, 1)


def shown(value: Any) -> str:
    """Format a value so that any terminal can show it.

    Example:
        >>> shown(7), shown("main"), shown(b"ab"), shown("a" + chr(10))
        ('7', 'main', '6162', "'a\\\\n'")
    """
    if isinstance(value, bytes | memoryview):
        text = bytes(value[:SHOWN]).hex() or "b''"
    else:
        text = str(value)
        text = text if text.isprintable() and text.isascii() and text else ascii(value)
    return text if len(text) <= 2 * SHOWN else text[: 2 * SHOWN] + "…"


@cache
def suspicious(table: Table, *, is_sqlite: bool) -> Any:
    """Build a query for the rows of a `tenant` that have a suspicious cell. The database finds them quickly."""
    found = [one for column in table.c for one in _suspicions(column, is_sqlite)]
    mine = (table.c.tenant_id if "tenant_id" in table.c else table.c.id) == bindparam("tenant")
    return select(*(_light(column, is_sqlite) for column in table.c)).where(mine, or_(*found))


@cache
def _prepared(query: Any) -> CompiledStatement:
    return CompiledStatement(query)


def _suspicions(column: Any, is_sqlite: bool) -> list[Any]:
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    # SQLite trusts NOT NULL, so `IS NULL` never finds a NULL in such a column.
    is_empty = func.typeof(column) == "null" if is_sqlite else column.is_(None)
    found = [] if column.nullable else [is_empty]
    bare = type_coerce(column, Text)  # compared as stored
    if isinstance(column.type, SafeText):
        found.append(func.instr(bare, "\\") > 0 if is_sqlite else func.strpos(bare, "\\") > 0)
    if not is_sqlite:
        if isinstance(plain, DateTime):
            found.append(not_(column.between(FIRST, LAST)))
        return found
    is_of = {Integer: "integer", Boolean: "integer", LargeBinary: "blob", String: "text", DateTime: "text"}
    wanted = next((name for type_, name in is_of.items() if isinstance(plain, type_)), None)
    if wanted is not None:
        found.append(and_(func.typeof(column) != wanted, func.typeof(column) != "null"))
    if isinstance(plain, Boolean):
        found.append(not_(type_coerce(column, Integer).between(0, 1)))
    if isinstance(plain, String):
        found.append(bare.op("GLOB")("*[^ -~]*"))
    if isinstance(plain, DateTime):
        found.append(bare.op("NOT GLOB")(_DIGITS))
        found.append(and_(column.is_not(None), func.datetime(bare).is_(None)))
    return found


def _light(column: Any, is_sqlite: bool) -> Any:
    """Build the expression to select a column. Of large values it only selects whether they are bytes."""
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if isinstance(plain, LargeBinary) and not column.primary_key:
        sound = func.typeof(column) == "blob" if is_sqlite else column.is_not(None)
        other = type_coerce(column, LargeBinary) if is_sqlite else None
        return case((sound, literal(b"", LargeBinary)), else_=other).label(column.name)
    return readable(column, is_sqlite=is_sqlite)


def readable(column: Any, *, is_sqlite: bool) -> Any:
    """Build the expression to select a column. On a server, times that the driver cannot read become NULL."""
    plain = column.type.impl_instance if isinstance(column.type, TypeDecorator) else column.type
    if is_sqlite or not isinstance(plain, DateTime):
        return column
    return case((column.between(FIRST, LAST), column)).label(column.name)


@contextmanager
def any_text(connection: Connection) -> Iterator[None]:
    """Make SQLite return text that is not valid UTF-8, with a lone surrogate for each invalid byte."""
    if connection.dialect.name != "sqlite":
        yield
        return
    raw: Any = connection.connection.dbapi_connection
    before, raw.text_factory = raw.text_factory, partial(str, encoding="utf-8", errors="surrogateescape")
    try:
        yield
    finally:
        raw.text_factory = before
