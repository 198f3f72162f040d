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
from sqlalchemy.dialects.postgresql import TSVECTOR
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


def _where(condition: str) -> dict[str, Any]:
    """Index only the rows that meet a condition."""
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


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
    """One branch, which is one LangGraph thread.

    `head_id`, `status`, `owner`, `epoch`, `world_seen` and `searched` move. `epoch` counts the runs that took the
    branch; `world_seen` is the place in the world log that it is up to date with; `searched` is the number of its last
    checkpoint whose words can be found.
    """

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
    epoch: int = _number(server_default="0")
    world_seen: int = _number(server_default="0")
    searched: int = _number(server_default="0")
    head_id: int | None = _ref()
    parent_id: int | None = _ref()
    branch_point_id: int | None = _ref()
    inherited: int = _number()
    created_at: datetime = _when()
    meta: bytes = _bytes()


_BY_TIME = ("internal_session_id", "tenant_id", "created_at", "id")
_NAMED = _where("name IS NOT NULL")


class CheckpointRow(Row, table=True):
    """A saved point of a branch; its state is the graph checkpoint it names."""

    __tablename__ = "checkpoint"
    __table_args__ = (
        UniqueConstraint("tenant_id", "internal_session_id", "number"),
        # The log, newest first, and what it counts and filters by without a look at the rows. It leads with the branch:
        # with the tenant, SQLite would read all of it to find a few ids.
        Index("ix_checkpoint_log", *_BY_TIME, "number", "is_auto", "user_id"),
        Index("ix_checkpoint_name", "tenant_id", "internal_session_id", "name", "created_at", "id", **_NAMED),
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
    workspace_snapshot_id: int | None = _ref()


class TagRow(Row, table=True):
    """A name that a person gave to one checkpoint of a session, which stays as long as it has it."""

    __tablename__ = "tag"
    __table_args__ = (
        Index(None, "tenant_id", "checkpoint_id"),
        _same_tenant("checkpoint_id", "checkpoint"),
        _same_tenant("external_session_id", "external_session"),
    )

    tenant_id: int = _id(primary_key=True)
    external_session_id: int = _id(primary_key=True)
    name: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: int = _id()
    description: str | None = _text(nullable=True)
    user_id: int = _id()
    created_at: datetime = _when()


class SearchTextRow(Row, table=True):
    """A text that can be found: a message by its `hash`, a call or a named checkpoint by its `row_id`.

    `number` is that of the first checkpoint of the branch that holds it. The words themselves are in `words` on
    PostgreSQL, which has a GIN index on them, and on SQLite in the FTS5 table `search_words`, by the same id.
    """

    __tablename__ = "search_text"
    __table_args__ = (
        Index(None, "tenant_id", "internal_session_id", "number"),
        _same_tenant("internal_session_id", "internal_session"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    internal_session_id: int = _id()
    number: int = _number()
    kind: str = _word(16)
    hash: bytes | None = _bytes(nullable=True)
    row_id: int | None = _ref()
    words: str | None = Field(
        default=None, sa_column=Column(Text().with_variant(TSVECTOR(), "postgresql"), nullable=True)
    )


class WorkspaceSnapshotRow(Row, table=True):
    """The files of a workspace as a branch left or found them; the files themselves are in the workspace's own store.

    `snapshot` is its id there; `settings` is what opens that workspace again.
    """

    __tablename__ = "workspace_snapshot"
    __table_args__ = (
        _same_tenant("external_session_id", "external_session"),
        Index(None, "tenant_id", "external_session_id", "id"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    external_session_id: int = _id()
    internal_session_id: int = _id()
    snapshot: str = _text()
    settings: bytes = _bytes()
    created_at: datetime = _when()


class ToolInvocationRow(Row, table=True):
    """One call of one tool. `status` moves, by the rules of the journal.

    `arrival` counts the calls of a branch as they were recorded; (`batch`, `batch_index`) is their order in the AI
    messages. `kind` says whether the tool ran for a call, ran again for an earlier one (`redo`, off the track), or was
    not run because the record had the answer (`replay`). `identity` is the hash of what makes two calls the same.
    `answers` says which of a person's answers it took, and what it waits to be told, if it asked. `made_on` is the
    branch that made it, by its id in the session that it was imported from; None if it was made here.
    """

    __tablename__ = "tool_invocation"
    __table_args__ = (
        UniqueConstraint("tenant_id", "internal_session_id", "arrival"),
        Index(None, "tenant_id", "external_session_id", "status"),
        # Few rows have them, so the others stay out of these indexes.
        Index(None, "tenant_id", "external_session_id", "identity", **_where("identity IS NOT NULL")),
        Index(None, "tenant_id", "external_session_id", "replay_of", **_where("replay_of IS NOT NULL")),
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
    verify: str | None = _text(nullable=True)
    precheck: str | None = _text(nullable=True)
    owner: str | None = _word(128, nullable=True)
    kind: str = _word(16, server_default="call")
    identity: str | None = _word(64, nullable=True)
    replay_of: int | None = _ref()
    answers: bytes | None = _bytes(nullable=True)
    made_on: int | None = _ref()


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
        Index(None, "tenant_id", "thread_id", "root_id", **_where("root_id IS NOT NULL")),
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


class DictionaryRow(Row, table=True):
    """What zstd packs short values with. Its `id` is zstd's, made of the data; each value names it."""

    __tablename__ = "dictionary"

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    hash: bytes = _bytes()
    data: bytes = _bytes()
    created_at: datetime = _when()


class AuditEventRow(Row, table=True):
    """One thing that happened, chained to the one before it in its session by `hash`. Triggers refuse to change it.

    A session that is gone keeps its trail, so nothing here refers to other rows; `external_session_id` is 0 for what
    belongs to no session. `owner_id` is whose session it is, `user_id` who did it.
    """

    __tablename__ = "audit_event"
    __table_args__ = (UniqueConstraint("tenant_id", "owner_id", "id"),)

    tenant_id: int = _id(primary_key=True)
    external_session_id: int = _id(primary_key=True)
    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    id: int = _id()
    internal_session_id: int | None = _ref()
    owner_id: int | None = _ref()
    user_id: int | None = _ref()
    kind: str = _word(32)
    detail: bytes = _bytes()
    created_at: datetime = _when()
    hash: bytes = _bytes()


class WebhookRow(Row, table=True):
    """Where a user's events are sent. `secret` is the key of the signatures, or `env:` and the variable that has it."""

    __tablename__ = "webhook"

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    user_id: int = _id()
    external_session_id: int | None = _ref()
    url: str = _text()
    kinds: bytes = _bytes()
    secret: str = _text()
    created_at: datetime = _when()


class WebhookDeliveryRow(Row, table=True):
    """An event that is still to be sent, or was given up. `status`, `attempts`, `next_at` and `owner` move."""

    __tablename__ = "webhook_delivery"
    __table_args__ = (
        Index(None, "tenant_id", "status", "next_at"),
        Index(None, "tenant_id", "webhook_id", "status"),
        _same_tenant("webhook_id", "webhook"),
    )

    tenant_id: int = _id(primary_key=True)
    id: int = _id(primary_key=True)
    webhook_id: int = _id()
    external_session_id: int = _id()
    seq: int = _number()
    status: str = _word(16)
    attempts: int = _number()
    next_at: datetime = _when()
    owner: str | None = _word(64, nullable=True)
    last_error: str | None = _text(nullable=True)
    created_at: datetime = _when()
