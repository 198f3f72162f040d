"""Every table of agentgit, as SQLModel classes on their own MetaData.

Rules (docs/architecture.md): every primary and unique key leads with `tenant_id`; no sequences; no foreign key leaves a
tenant; no `relationship()`. Rows stay below the repository: what users get are the values of `sessions`,
`checkpoints` and `tools`.
"""

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import registry
from sqlalchemy.types import TypeDecorator
from sqlmodel import Field, SQLModel

METADATA = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


class UTCDateTime(TypeDecorator[datetime]):
    """An aware UTC time, also where the database itself knows no zones."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value.astimezone(UTC) if value is not None else None

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        found: datetime = value
        return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


class SafeText(TypeDecorator[str]):
    """Text that survives U+0000 and lone surrogates, which PostgreSQL and UTF-8 refuse.

    A code point that cannot be stored is written as backslash, `u`, four hex digits; a backslash is doubled.
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
        out, i = [], 0
        while i < len(value):
            if value[i] != "\\":
                out.append(value[i])
                i += 1
            elif value[i + 1] == "\\":
                out.append("\\")
                i += 2
            else:
                out.append(chr(int(value[i + 2 : i + 6], 16)))
                i += 6
        return "".join(out)


def _id(**kwargs: Any) -> Any:
    return Field(sa_column=Column(BigInteger, nullable=False, autoincrement=False, **kwargs))


def _ref() -> Any:
    return Field(default=None, sa_column=Column(BigInteger, nullable=True))


def _when(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(UTCDateTime, nullable=nullable))


def _text(*, nullable: bool = False) -> Any:
    return Field(default=None, sa_column=Column(SafeText, nullable=nullable))


def _word(length: int, *, nullable: bool = False, **kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(String(length), nullable=nullable, **kwargs))


def _bytes(*, nullable: bool = False, **kwargs: Any) -> Any:
    return Field(default=None, sa_column=Column(LargeBinary, nullable=nullable, **kwargs))


def _number(*, small: bool = False, **kwargs: Any) -> Any:
    return Field(default=0, sa_column=Column(SmallInteger if small else Integer, nullable=False, **kwargs))


def _same_tenant(column: str, table: str) -> ForeignKeyConstraint:
    """Refer to a row of the same tenant, and of no other."""
    return ForeignKeyConstraint(["tenant_id", column], [f"{table}.tenant_id", f"{table}.id"])


_NESTED = text("root_id IS NOT NULL")


class Row(SQLModel, registry=registry(metadata=METADATA)):
    """The base of all tables."""

    metadata: ClassVar[MetaData] = METADATA


class TenantRow(Row, table=True):
    """One isolated customer of a database; an embedded database has one."""

    __tablename__ = "tenant"

    id: int = _id(primary_key=True)
    name: str = _text()
    created_at: datetime = _when()


class UserRow(Row, table=True):
    """Who owns sessions and makes checkpoints."""

    __tablename__ = "user"
    __table_args__ = (UniqueConstraint("tenant_id", "name"),)

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    name: str = _text()
    created_at: datetime = _when()


class ExternalSessionRow(Row, table=True):
    """What a person calls a session. `current_branch_id` moves."""

    __tablename__ = "external_session"
    __table_args__ = (UniqueConstraint("tenant_id", "user_id", "session_name"),)

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    user_id: int = _id()
    session_name: str = _text()
    created_at: datetime = _when()
    updated_at: datetime = _when()
    is_active: bool = Field(default=True, sa_column=Column(Boolean, nullable=False))
    current_branch_id: int | None = _ref()
    meta: bytes = _bytes()


class InternalSessionRow(Row, table=True):
    """One branch, which is one LangGraph thread. `head_id`, `status` and `owner` move."""

    __tablename__ = "internal_session"
    __table_args__ = (
        UniqueConstraint("tenant_id", "external_session_id", "name"),
        UniqueConstraint("tenant_id", "thread_id"),
        _same_tenant("external_session_id", "external_session"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    external_session_id: int = _id()
    thread_id: str = _word(64)
    name: str = _text()
    status: str = _word(16)
    owner: str | None = _word(128, nullable=True)
    head_id: int | None = _ref()
    parent_id: int | None = _ref()
    branch_point_id: int | None = _ref()
    inherited: int = _number()
    created_at: datetime = _when()
    meta: bytes = _bytes()


class CheckpointRow(Row, table=True):
    """A saved point of a branch; its state is the graph checkpoint it names."""

    __tablename__ = "checkpoint"
    __table_args__ = (
        UniqueConstraint("tenant_id", "internal_session_id", "number"),
        _same_tenant("internal_session_id", "internal_session"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    internal_session_id: int = _id()
    number: int = _number()
    name: str | None = _text(nullable=True)
    description: str | None = _text(nullable=True)
    kind: str = _word(16)
    is_auto: bool = Field(sa_column=Column(Boolean, nullable=False))
    user_id: int = _id()
    created_at: datetime = _when()
    graph_checkpoint_id: str | None = _word(64, nullable=True)
    state_hash: bytes = _bytes()
    position: int = _number()
    message_count: int = _number()
    restore_point: str | None = _text(nullable=True)
    data: bytes | None = _bytes(nullable=True)


class ToolInvocationRow(Row, table=True):
    """One call of one tool. `status` moves, by the rules of the journal.

    `arrival` counts the calls of a branch as they were recorded; (`batch`, `batch_index`) is their order in the AI
    messages.
    """

    __tablename__ = "tool_invocation"
    __table_args__ = (
        UniqueConstraint("tenant_id", "internal_session_id", "arrival"),
        Index(None, "tenant_id", "external_session_id", "status"),
        _same_tenant("internal_session_id", "internal_session"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    external_session_id: int = _id()
    internal_session_id: int = _id()
    arrival: int = _number()
    batch: int = _number()
    batch_index: int = _number()
    tool_name: str = _text()
    tool_call_id: str | None = _text(nullable=True)
    effect: str = _word(16)
    status: str = _word(16)
    args: bytes = _bytes()
    result: bytes | None = _bytes(nullable=True)
    error_message: str | None = _text(nullable=True)
    started_at: datetime = _when()
    ended_at: datetime | None = _when(nullable=True)
    idempotency_key: str = _word(64)
    undo: str | None = _text(nullable=True)
    owner: str | None = _word(128, nullable=True)
    replay_of: int | None = _ref()


class WorldLogRow(Row, table=True):
    """The order in which effects really happened in the world of a session, across its branches."""

    __tablename__ = "world_log"
    __table_args__ = (
        Index(None, "tenant_id", "invocation_id"),
        _same_tenant("external_session_id", "external_session"),
    )

    tenant_id: int = _id(primary_key=True)
    external_session_id: int = _id(primary_key=True)
    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    invocation_id: int = _id()
    action: str = _word(16)
    operation_id: int | None = _ref()
    created_at: datetime = _when()


class OperationRow(Row, table=True):
    """A rollback or fork, in progress or done. `status` and `report` move."""

    __tablename__ = "operation"
    __table_args__ = (
        UniqueConstraint("tenant_id", "external_session_id", "request_id"),
        _same_tenant("external_session_id", "external_session"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    external_session_id: int = _id()
    user_id: int = _id()
    kind: str = _word(16)
    status: str = _word(16)
    request_id: str = _word(64)
    source_id: int = _id()
    target_id: int = _id()
    internal_session_id: int = _id()
    owner: str | None = _word(128, nullable=True)
    request: bytes = _bytes()
    report: bytes = _bytes()
    created_at: datetime = _when()
    ended_at: datetime | None = _when(nullable=True)


class GraphCheckpointRow(Row, table=True):
    """What LangGraph saves at every super-step. `seq` counts the checkpoints of a thread's namespace as they came.

    `root_id` is the checkpoint of the whole graph that a subgraph's checkpoint belongs to.
    """

    __tablename__ = "graph_checkpoint"
    __table_args__ = (
        UniqueConstraint("tenant_id", "thread_id", "ns", "seq"),
        # Only subgraphs have a root: most rows are roots themselves and stay out of this index.
        Index(None, "tenant_id", "thread_id", "root_id", sqlite_where=_NESTED, postgresql_where=_NESTED),
    )

    tenant_id: int = _id(primary_key=True)
    thread_id: str = Field(sa_column=Column(SafeText, primary_key=True))
    ns: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: str = _word(64, primary_key=True)
    seq: int = _number()
    parent_id: str | None = _word(64, nullable=True)
    root_id: str | None = _word(64, nullable=True)
    run_id: str | None = _text(nullable=True)
    message_count: int = _number()
    meta: bytes = _bytes()
    header: bytes = _bytes()
    channels: bytes = _bytes()
    state_hash: bytes = _bytes()


class GraphWriteRow(Row, table=True):
    """A write that a task made on top of a graph checkpoint."""

    __tablename__ = "graph_write"

    tenant_id: int = _id(primary_key=True)
    thread_id: str = Field(sa_column=Column(SafeText, primary_key=True))
    ns: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: str = _word(64, primary_key=True)
    task_id: str = _word(64, primary_key=True)
    idx: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    task_path: str = _text()
    channel: str = _text()
    value: bytes = _bytes()


class BlobRow(Row, table=True):
    """A value, stored once per tenant under the hash of its uncompressed bytes."""

    __tablename__ = "blob"

    tenant_id: int = _id(primary_key=True)
    hash: bytes = _bytes(primary_key=True)
    type: str = _word(32)
    codec: int = _number(small=True)
    size: int = _number()
    data: bytes = _bytes()
