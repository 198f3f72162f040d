"""Building blocks of the tables: their MetaData, the column types, and the base class of all rows."""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    text,
)
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

from agentgit.errors import Corrupt
from agentgit.store.sql.encryption import (
    PlainBytes,
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
        "pk": "pk_%(table_name)s",
    }
)


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC time, also on databases that do not store time zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        time: datetime = value
        return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


class SafeText(TypeDecorator[str]):
    """Text that survives U+0000 and lone surrogates, which PostgreSQL and UTF-8 refuse.

    A code point that cannot be stored is written as a backslash, `u` and four hex digits. A backslash is doubled.
    """

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or ("\\" not in value and "\0" not in value and value.isascii()):
            return value
        return "".join(
            "\\\\" if c == "\\" else f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value
        )

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


class Payload(TypeDecorator[bytes]):
    """Bytes that are encrypted in a database with keys. See `agentgit.store.sql.encryption`."""

    impl = LargeBinary
    cache_ok = True

    def __init__(self, column_name: str, *, is_hashed: bool = False) -> None:
        super().__init__()
        self.place, self.is_hashed = column_name, is_hashed

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else encode_value(seal_of_dialect(dialect), self.place, value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> bytes | None:
        if value is None:
            return None
        seal = seal_of_dialect(dialect)
        if self.is_hashed and is_refused(seal, value):
            return PlainBytes(value)
        try:
            return decode_value(seal, self.place, value)
        except Corrupt:
            if not self.is_hashed:
                raise
            return value


class SealedText(SafeText):
    """Text that is encrypted in a database with keys."""

    cache_ok = True

    def __init__(self, column_name: str) -> None:
        super().__init__()
        self.place = column_name

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        escaped = super().process_bind_param(value, dialect)
        return None if escaped is None else encode_text(seal_of_dialect(dialect), self.place, escaped)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        escaped = None if value is None else decode_text(seal_of_dialect(dialect), self.place, value)
        return super().process_result_value(escaped, dialect)


def bigint(**kwargs: Any) -> Any:
    return Field(sa_column=Column(BigInteger, nullable=False, autoincrement=False, **kwargs))


def nullable_bigint() -> Any:
    return Field(default=None, sa_column=Column(BigInteger, nullable=True))


def timestamp(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(UTCDateTime, nullable=nullable))


def safe_text(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(SafeText, nullable=nullable))


def string(length: int, *, nullable: bool = False, **kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(String(length), nullable=nullable, **kwargs))


def binary(*, nullable: bool = False, **kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(LargeBinary, nullable=nullable, **kwargs))


def encrypted(column_name: str, *, nullable: bool = False, is_hashed: bool = False) -> Any:
    return Field(default=None, sa_column=Column(Payload(column_name, is_hashed=is_hashed), nullable=nullable))


def encrypted_text(column_name: str, *, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(SealedText(column_name), nullable=nullable))


def mac() -> Any:
    """Return a column for the message authentication code of the row. See `agentgit.store.sql.row_codes`."""
    return binary(nullable=True)


def integer(*, small: bool = False, **kwargs: Any) -> Any:
    return Field(default=0, sa_column=Column(SmallInteger if small else Integer, nullable=False, **kwargs))


def tenant_foreign_key(column: str, table: str) -> ForeignKeyConstraint:
    """Return a foreign key to a row of the same tenant."""
    return ForeignKeyConstraint(["tenant_id", column], [f"{table}.tenant_id", f"{table}.id"])


def partial_index(condition: str) -> dict[str, Any]:
    """Return the arguments for an index of only the rows that meet a condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


class TableRow(SQLModel, registry=registry(metadata=METADATA)):
    """The base class of all tables."""

    metadata: ClassVar[MetaData] = METADATA
