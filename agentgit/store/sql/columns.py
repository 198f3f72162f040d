"""Building blocks of the tables: their MetaData, the column types, and the base class of all rows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    ColumnElement,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    text,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator, TypeEngine
from sqlmodel import Field, SQLModel

from agentgit.errors import Corrupt
from agentgit.store.sql.encryption import (
    Bound,
    PlainBytes,
    Seal,
    decode_text,
    decode_value,
    encode_text,
    encode_value,
    is_refused,
    seal_of_dialect,
)

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC time. SQLite has no type for times, and stores a text that sorts as the times do."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Text() if dialect.name == "sqlite" else DateTime(timezone=True))

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None:
            return None
        time = value.astimezone(UTC)
        if dialect.name == "sqlite":
            return time.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
        return time

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        time: datetime = datetime.fromisoformat(value) if dialect.name == "sqlite" else value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class Flag(TypeDecorator[bool]):
    """True or false. SQLite has no type for it, and stores 1 or 0."""

    impl = Boolean
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Integer() if dialect.name == "sqlite" else Boolean())

    def process_result_value(self, value: Any, dialect: Dialect) -> bool | None:
        return None if value is None else bool(value)


class SafeText(TypeDecorator[str]):
    """Text that survives U+0000 and lone surrogates, which PostgreSQL and UTF-8 refuse.

    A code point that cannot be stored is written as a backslash, `u` and four hex digits. A backslash is doubled.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else _escape(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or "\\" not in value:
            return value
        parts, index = [], 0
        while index < len(value):
            if value[index] != "\\":
                parts.append(value[index])
                index += 1
            elif value[index + 1] == "\\":
                parts.append("\\")
                index += 2
            else:
                parts.append(chr(int(value[index + 2 : index + 6], 16)))
                index += 6
        return "".join(parts)


def _escape(text: str) -> str:
    if "\\" not in text and "\0" not in text and text.isascii():
        return text
    return "".join(
        "\\\\" if c == "\\" else f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text
    )


class Payload(TypeDecorator[bytes]):
    """Bytes that are encrypted in a database with keys. See `agentgit.store.sql.encryption`."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, place: str, *, is_bound: bool = True) -> None:
        super().__init__()
        self.place, self.is_bound = place, is_bound

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return _WithRowKey(column) if self.is_bound else column

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        seal = seal_of_dialect(dialect)
        value, row_key = _split_bound(self, value, seal)
        return None if value is None else encode_value(seal, self.place, value, row_key)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        seal = seal_of_dialect(dialect)
        if self.is_bound:
            return decode_value(seal, self.place, *((value,) if seal is None else _split_row_key(value)))
        if is_refused(seal, value):
            return PlainBytes(value)
        try:
            return decode_value(seal, self.place, value)
        except Corrupt:  # its hash tells
            return value


class SealedText(SafeText):
    cache_ok = True

    def __init__(self, place: str) -> None:
        super().__init__()
        self.place, self.is_bound = place, True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return _WithRowKey(column)

    def process_bind_param(self, value: Any, dialect: Dialect) -> str | None:
        seal = seal_of_dialect(dialect)
        value, row_key = _split_bound(self, value, seal)
        escaped = super().process_bind_param(value, dialect)
        return None if escaped is None else encode_text(seal, self.place, escaped, row_key)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None:
            return None
        seal = seal_of_dialect(dialect)
        stored, row_key = (value, "") if seal is None else _split_row_key(value)
        return super().process_result_value(decode_text(seal, self.place, stored, row_key), dialect)


class _WithRowKey(ColumnElement[Any]):
    """An encrypted column in the SELECT of a database with keys: the key of the row, then the stored value.

    So a value is decrypted with the key of the row in which the database has it, whatever query reads it.
    """

    inherit_cache = False

    def __init__(self, column: ColumnElement[Any]) -> None:
        self.column, self.type = column, column.type


@compiles(_WithRowKey)
def _compile_with_row_key(element: _WithRowKey, compiler: Any, **options: Any) -> str:
    column: Any = getattr(element.column, "element", element.column)  # of a label
    value = str(compiler.process(column, **options))
    if seal_of_dialect(compiler.dialect) is None:
        return value
    names = key_names(next(iter(column.base_columns)).table)
    texts = [f"CAST({compiler.process(column.table.c[name], **options)} AS TEXT)" for name in names]
    key = " || ".join(f"length({text}) || ':' || {text}" for text in texts)
    if isinstance(column.type, SealedText):
        return f"length({key}) || ':' || {key} || {value}"
    if compiler.dialect.name == "sqlite":
        return f"CAST(length(CAST({key} AS BLOB)) || ':' || {key} || {value} AS BLOB)"
    return f"convert_to(octet_length(convert_to({key}, 'UTF8')) || ':' || {key}, 'UTF8') || {value}"


def _split_row_key(value: Any) -> tuple[Any, str]:
    """Return the stored value and the key of its row, which `_WithRowKey` selects together."""
    length, _, rest = value.partition(b":" if isinstance(value, bytes) else ":")
    key, stored = rest[: int(length)], rest[int(length) :]
    return stored, key.decode() if isinstance(key, bytes) else key


def _split_bound(column_type: Any, value: Any, seal: Seal | None) -> tuple[Any, str]:
    if isinstance(value, Bound):
        return value
    is_bound = seal is None or value is None or not column_type.is_bound
    assert is_bound, f"a value of {column_type.place} without the key of its row"  # noqa: S101
    return value, ""


@cache
def key_names(table: Table) -> Sequence[str]:
    return [column.name for column in table.primary_key]


def row_key(table: Table, row: Mapping[str, Any]) -> str:
    """Return the primary key of a row as `_WithRowKey` selects it; empty if no value is bound to it."""
    if not bound_columns(table):
        return ""
    columns = [table.c[name] for name in key_names(table)]
    texts = [_escape(row[c.name]) if isinstance(c.type, SafeText) else str(row[c.name]) for c in columns]
    return "".join([f"{len(text)}:{text}" for text in texts])


@cache
def bound_columns(table: Table) -> Sequence[str]:
    """Return the names of the columns of a table whose encrypted values are bound to their row."""
    return [c.name for c in table.c if isinstance(c.type, Payload | SealedText) and c.type.is_bound]


def bind_row(table: Table, row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a row whose values of encrypted columns are bound to its primary key."""
    names = [name for name in bound_columns(table) if row.get(name) is not None]
    if not names:
        return row
    key = row_key(table, row)
    return {**row, **{name: Bound(row[name], key) for name in names}}


ID = BigInteger().with_variant(Integer, "sqlite")
"""The type of ids. SQLite has one type of integers."""


FIRST_TIME, LAST_TIME = "'1970-01-01 00:00:00+00'", "'9000-01-01 00:00:00+00'"
"""The range of times. Python has no time for `infinity` of PostgreSQL, or outside of the years 1 to 9999."""


def field(kind: Any, *, nullable: bool = False, **kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(kind, nullable=nullable, autoincrement=False, **kwargs))


def reference(
    columns: str, target: str, *, cascade: bool = False, deferred: bool = False, mutual: bool = False
) -> ForeignKeyConstraint:
    """Return a foreign key from columns to a table and its columns, with spaces between; `mutual` if it refers back."""
    table, *others = target.split()
    return ForeignKeyConstraint(
        columns.split(),
        [f"{table}.{name}" for name in others or ["id"]],
        ondelete="CASCADE" if cascade else None,
        use_alter=mutual,
        deferrable=deferred or mutual or None,
        initially="DEFERRED" if deferred or mutual else None,
    )


def type_checks(table: Table) -> Iterator[CheckConstraint]:
    """Yield the constraints for what types do not say: the range of numbers and times, and on SQLite their form."""
    for column in table.c:
        if isinstance(column.type, UTCDateTime):
            yield CheckConstraint(f"{column.name} BETWEEN {FIRST_TIME} AND {LAST_TIME}", name=column.name)
            is_day = "date(julianday(substr({0}, 1, 10))) IS substr({0}, 1, 10)"  # SQLite takes 2026-02-30
            is_time = f"{is_day} AND datetime({{0}}) IS NOT NULL AND {{0}} GLOB '????-??-?? ??:??:??.??????'"
            is_valid, name = f"{{0}} IS NULL OR ({is_time})".format(column.name), f"{column.name}_form"
            yield CheckConstraint(is_valid, name=name).ddl_if(dialect="sqlite")
        elif isinstance(column.type, Flag):
            yield CheckConstraint(f"{column.name} IN (0, 1)", name=column.name).ddl_if(dialect="sqlite")
        elif type(column.type) is Integer:
            yield CheckConstraint(f"{column.name} >= {least(column)}", name=column.name)


def least(column: Column[Any]) -> int:
    """Return the smallest number that a column may have."""
    return int(column.info.get("least", 0))


def one_of(column: str, values: Iterable[str]) -> CheckConstraint:
    """Return a constraint that a column has one of some values."""
    words = sorted(values)
    info = {"column": column, "words": words}  # for the check of files
    return CheckConstraint(f"{column} IN ({', '.join(map(repr, words))})", name=column, info=info)


def partial_index(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class TableRow(SQLModel, registry=registry(metadata=METADATA)):
    """The base class of all rows. A table is called as its class is, without `Row` and in snake case."""

    metadata: ClassVar[MetaData] = METADATA

    def __init_subclass__(cls) -> None:
        cls.__tablename__ = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__.removesuffix("Row")).lower()
