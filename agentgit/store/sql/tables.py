"""Every table of agentgit, as SQLModel classes on their own MetaData.

No sequences, no `relationship()`. Rows do not leave the store: the repository returns the values of `sessions`,
`checkpoints` and `effects`.
"""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    Column,
    ColumnElement,
    FetchedValue,
    FromClause,
    Index,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlmodel import Field

from agentgit.auth.principal import ROLES, SCOPES, SIGN_IN
from agentgit.effects.files import CHANGED_BY
from agentgit.effects.invocation import (
    CALL_KINDS,
    FAILED,
    PAUSED,
    REVERSE_UNKNOWN,
    REVERSED,
    SIMULATED,
    TRANSITIONS,
    UNKNOWN,
)
from agentgit.effects.kinds import RECORDED_KINDS
from agentgit.effects.plan import ROLLBACK, SWITCH
from agentgit.sessions.events import KINDS
from agentgit.sessions.session import BRANCH_STATUSES, DONE, PARTIAL, RERUN, RUNNING
from agentgit.store.sql import columns as column
from agentgit.store.sql.columns import METADATA, SafeText, TableRow, partial_index

__all__ = ["METADATA"]  # it has all tables after this module is imported

CALL_STATUSES = frozenset({*TRANSITIONS, FAILED, PAUSED, REVERSED, SIMULATED})
LOGGED_STATUSES = frozenset({DONE, FAILED, UNKNOWN, REVERSED, REVERSE_UNKNOWN})
"""The statuses after which the world may have changed. A change to one of them is written to the world log."""
CHECKPOINT_KINDS = ("before", "after", "tools", "branch", "named")
MESSAGE, CALL, NAMED = TEXT_KINDS = ("message", "call", "checkpoint")
OPERATION_KINDS = (ROLLBACK, SWITCH, "fork", RERUN)
OPERATION_STATUSES = (RUNNING, DONE, PARTIAL)


class UserRow(TableRow, table=True):
    """A user, who owns sessions and makes checkpoints."""

    __tablename__ = "user"
    __table_args__ = (UniqueConstraint("name"),)
    id: int = column.bigint(primary_key=True)
    name: str = column.safe_text()
    created_at: datetime = column.timestamp()
    is_admin: bool = column.flag(server_default=text("false"))
    disabled_at: datetime | None = column.timestamp(nullable=True)


class ApiKeyRow(TableRow, table=True):
    """An API key, or a link that gives a browser one. Only the SHA-256 of its secret is stored."""

    __tablename__ = "api_key"
    __table_args__ = (
        Index(None, "user_id", "id"),
        column.reference("user_id", "user"),
        column.one_of("scope", (*SCOPES, SIGN_IN)),
    )
    id: int = column.bigint(primary_key=True)
    user_id: int = column.bigint()
    name: str = column.safe_text()
    hash: bytes = column.binary()
    scope: str = column.string()
    created_at: datetime = column.timestamp()
    expires_at: datetime | None = column.timestamp(nullable=True)
    last_used_at: datetime | None = column.timestamp(nullable=True)
    revoked_at: datetime | None = column.timestamp(nullable=True)


class ExternalSessionRow(TableRow, table=True):
    """A session with the name that its owner gave it. `current_branch_id` changes.

    `thread_id` is the id by which clients of a served graph know it. It stays when the session is renamed.
    """

    __tablename__ = "external_session"
    __table_args__ = (
        UniqueConstraint("user_id", "session_name"),
        column.reference("user_id", "user"),
        column.reference("id current_branch_id", "internal_session external_session_id id", mutual=True),
        Index(None, "user_id", "thread_id"),
        Index(None, "user_id", "updated_at", "id"),
    )
    id: int = column.bigint(primary_key=True)
    user_id: int = column.bigint()
    session_name: str = column.safe_text()
    thread_id: str | None = column.safe_text(nullable=True)
    created_at: datetime = column.timestamp()
    updated_at: datetime = column.timestamp()
    is_active: bool = column.flag()
    current_branch_id: int | None = column.nullable_bigint()
    meta: bytes = column.encrypted("external_session.meta")


class SessionMemberRow(TableRow, table=True):
    """The role of a user in another user's session. `link_id` is the link that granted it, or 0."""

    __tablename__ = "session_member"
    __table_args__ = (
        Index(None, "user_id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("user_id", "user"),
        column.one_of("role", ROLES),
    )
    external_session_id: int = column.bigint(primary_key=True)
    user_id: int = column.bigint(primary_key=True)
    link_id: int = column.bigint(primary_key=True)
    role: str = column.string()
    created_at: datetime = column.timestamp()
    expires_at: datetime | None = column.timestamp(nullable=True)


class SessionLinkRow(TableRow, table=True):
    """A link with a token to join a session. Only the SHA-256 of its secret is stored."""

    __tablename__ = "session_link"
    __table_args__ = (
        Index(None, "external_session_id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.one_of("role", ROLES[:-1]),
    )
    id: int = column.bigint(primary_key=True)
    external_session_id: int = column.bigint()
    hash: bytes = column.binary()
    role: str = column.string()
    created_at: datetime = column.timestamp()
    expires_at: datetime | None = column.timestamp(nullable=True)
    revoked_at: datetime | None = column.timestamp(nullable=True)


class InternalSessionRow(TableRow, table=True):
    """One branch, which is one LangGraph thread.

    `head_id`, `status`, `owner`, `lease_until`, `epoch`, `world_seen` and `searched` change. `epoch` counts the runs
    that took the branch. On a server, `lease_until` is the time until which the current run is surely alive.
    `world_seen` is the position in the world log up to which the branch has seen the world. `searched` is the number of
    its last checkpoint in the search index.
    """

    __tablename__ = "internal_session"
    __table_args__ = (
        UniqueConstraint("external_session_id", "name"),
        UniqueConstraint("thread_id"),
        Index("ix_internal_session_running", "external_session_id", **partial_index("status = 'running'")),
        UniqueConstraint("external_session_id", "id"),
        Index(None, "parent_id", **partial_index("parent_id IS NOT NULL")),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("external_session_id parent_id", "internal_session external_session_id id"),
        column.reference("id head_id", "checkpoint internal_session_id id", mutual=True),
        column.reference("parent_id branch_point_id", "checkpoint internal_session_id id", mutual=True),
        column.one_of("status", BRANCH_STATUSES),
    )
    id: int = column.bigint(primary_key=True)
    external_session_id: int = column.bigint()
    thread_id: str = column.string()
    name: str = column.safe_text()
    status: str = column.string()
    owner: str | None = column.string(nullable=True)
    lease_until: datetime | None = column.timestamp(nullable=True)
    epoch: int = column.integer(server_default="0")
    world_seen: int = column.integer(server_default="0")
    searched: int = column.integer(server_default="0")
    head_id: int | None = column.nullable_bigint()
    parent_id: int | None = column.nullable_bigint()
    branch_point_id: int | None = column.nullable_bigint()
    inherited: int = column.integer()
    created_at: datetime = column.timestamp()
    meta: bytes = column.encrypted("internal_session.meta")


_BY_TIME = ("internal_session_id", "created_at", "id")
_HAS_NAME = partial_index("name IS NOT NULL")


class CheckpointRow(TableRow, table=True):
    """A saved point of a branch. Its state is in the graph checkpoint that it refers to.

    `pending` has the pending writes at that time (`agentgit.store.threads.pending_writes`); None if they were not
    recorded.
    """

    __tablename__ = "checkpoint"
    __table_args__ = (
        UniqueConstraint("internal_session_id", "number"),
        # For the log, newest first, with the columns that it counts and filters by, so that the rows need not be read.
        Index("ix_checkpoint_log", *_BY_TIME, "number", "is_auto", "user_id"),
        Index("ix_checkpoint_name", "internal_session_id", "name", "created_at", "id", **_HAS_NAME),
        UniqueConstraint("internal_session_id", "id"),
        Index(None, "workspace_snapshot_id", **partial_index("workspace_snapshot_id IS NOT NULL")),
        column.reference("internal_session_id", "internal_session", cascade=True),
        column.reference("workspace_snapshot_id", "workspace_snapshot", deferred=True),
        column.one_of("kind", CHECKPOINT_KINDS),
        CheckConstraint("(kind = 'named') <> is_auto", name="named"),
    )
    id: int = column.bigint(primary_key=True)
    internal_session_id: int = column.bigint()
    number: int = column.integer()
    name: str | None = column.safe_text(nullable=True)
    description: str | None = column.encrypted_text("checkpoint.description", nullable=True)
    kind: str = column.string()
    is_auto: bool = column.flag()
    user_id: int = column.bigint()
    created_at: datetime = column.timestamp()
    graph_checkpoint_id: str | None = column.string(nullable=True)
    state_hash: bytes = column.binary()
    position: int = column.integer()
    message_count: int = column.integer()
    restore_point: str | None = column.safe_text(nullable=True)
    data: bytes | None = column.encrypted("checkpoint.data", nullable=True)
    workspace_snapshot_id: int | None = column.nullable_bigint()
    pending: bytes | None = column.binary(nullable=True)


class TagRow(TableRow, table=True):
    """A name that a person gave to one checkpoint of a session. The checkpoint is kept as long as it has the tag."""

    __tablename__ = "tag"
    __table_args__ = (
        Index(None, "checkpoint_id"),
        column.reference("checkpoint_id", "checkpoint"),
        column.reference("external_session_id", "external_session", cascade=True),
    )
    external_session_id: int = column.bigint(primary_key=True)
    name: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: int = column.bigint()
    description: str | None = column.encrypted_text("tag.description", nullable=True)
    user_id: int = column.bigint()
    created_at: datetime = column.timestamp()


SEARCH_INDEX = "ix_search_text_words"
"""The GIN index of the words on PostgreSQL, which the migration creates."""


class SearchTextRow(TableRow, table=True):
    """A text in the search index: a message by its `hash`, a call or a named checkpoint by its `row_id`.

    `number` is the number of the first checkpoint of the branch that holds the text. On PostgreSQL the words are in
    `words`, which has a GIN index. On SQLite they are in the FTS5 table `search_words`, under the same id.
    """

    __tablename__ = "search_text"
    __table_args__ = (
        Index(None, "internal_session_id", "number"),
        column.reference("internal_session_id", "internal_session", cascade=True),
        column.one_of("kind", TEXT_KINDS),
    )
    id: int = column.bigint(primary_key=True)
    internal_session_id: int = column.bigint()
    number: int = column.integer()
    kind: str = column.string()
    hash: bytes | None = column.binary(nullable=True)
    row_id: int | None = column.nullable_bigint()
    words: str | None = Field(
        default=None, sa_column=Column(Text().with_variant(TSVECTOR(), "postgresql"), nullable=True)
    )


class WorkspaceSnapshotRow(TableRow, table=True):
    """A snapshot of a workspace's files as a branch left or found them. The files are in the workspace's own store.

    `snapshot` is the snapshot's id in that store. `settings` has what is needed to open the workspace again.
    `changed_by` says who changed the files since the row before; see `agentgit.effects.files`.
    """

    __tablename__ = "workspace_snapshot"
    __table_args__ = (
        column.reference(
            "external_session_id internal_session_id", "internal_session external_session_id id", cascade=True
        ),
        Index(None, "external_session_id", "id"),
        column.one_of("changed_by", CHANGED_BY),
    )
    id: int = column.bigint(primary_key=True)
    external_session_id: int = column.bigint()
    internal_session_id: int = column.bigint()
    snapshot: str = column.safe_text()
    settings: bytes = column.encrypted("workspace_snapshot.settings")
    changed_by: str = column.string()
    created_at: datetime = column.timestamp()


class ToolInvocationRow(TableRow, table=True):
    """One call of one tool. `status` changes by the rules of the journal.

    `arrival` numbers the calls of a branch in the order in which they were recorded; (`batch`, `batch_index`) is their
    order in the AI messages. `kind` is `call` if the tool ran for a call, `redo` if it ran again for an earlier call
    (off the track), and `replay` if it did not run because the record had the answer. `identity` is the hash of what
    makes two calls the same. `answers` records which of a person's answers the call used, and the question that it
    waits for, if any. `made_on` is the branch that made the call, as its id in the session that the call was imported
    from; None if the call was made here. `tool_path` is the qualified name of the tool's function, and `enclosing` the
    name of the innermost tool or subgraph node that contains the call. `task` is the name of the task that made a call
    which no AI message asked for. The task has the same name when it runs again, also on a fork.
    `parent_id` is the call whose tool made this one.
    """

    __tablename__ = "tool_invocation"
    __table_args__ = (
        UniqueConstraint("internal_session_id", "arrival"),
        Index(None, "external_session_id", "status"),
        # Few rows have these columns set, so the other rows are left out of the indexes.
        Index(None, "external_session_id", "identity", **partial_index("identity IS NOT NULL")),
        Index("ix_tool_invocation_memory", "identity", **partial_index("effect = 'memory'")),
        Index(None, "parent_id", **partial_index("parent_id IS NOT NULL")),
        Index(None, "replay_of", **partial_index("replay_of IS NOT NULL")),
        Index(None, "external_session_id", "task", **partial_index("task IS NOT NULL")),
        column.reference(
            "external_session_id internal_session_id", "internal_session external_session_id id", cascade=True
        ),
        column.reference("replay_of", "tool_invocation", deferred=True),
        column.reference("parent_id", "tool_invocation", deferred=True),
        column.one_of("effect", map(str, RECORDED_KINDS)),
        column.one_of("status", CALL_STATUSES),
        column.one_of("kind", CALL_KINDS),
    )
    id: int = column.bigint(primary_key=True)
    external_session_id: int = column.bigint()
    internal_session_id: int = column.bigint()
    arrival: int = column.integer()
    batch: int = column.integer()
    batch_index: int = column.integer()
    tool_name: str = column.safe_text()
    tool_call_id: str | None = column.safe_text(nullable=True)
    effect: str = column.string()
    status: str = column.string()
    args: bytes = column.encrypted("tool_invocation.args")
    result: bytes | None = column.encrypted("tool_invocation.result", nullable=True)
    error_message: str | None = column.encrypted_text("tool_invocation.error_message", nullable=True)
    started_at: datetime = column.timestamp()
    ended_at: datetime | None = column.timestamp(nullable=True)
    idempotency_key: str = column.string()
    undo: str | None = column.safe_text(nullable=True)
    verify: str | None = column.safe_text(nullable=True)
    precheck: str | None = column.safe_text(nullable=True)
    tool_path: str | None = column.safe_text(nullable=True)
    enclosing: str | None = column.safe_text(nullable=True)
    owner: str | None = column.string(nullable=True)
    kind: str = column.string(server_default="call")
    identity: str | None = column.string(nullable=True)
    replay_of: int | None = column.nullable_bigint()
    answers: bytes | None = column.encrypted("tool_invocation.answers", nullable=True)
    made_on: int | None = column.nullable_bigint()
    task: str | None = column.string(nullable=True)
    parent_id: int | None = column.nullable_bigint()


class WorldLogRow(TableRow, table=True):
    """The order in which effects happened in the world of a session, across its branches."""

    __tablename__ = "world_log"
    __table_args__ = (
        Index(None, "invocation_id"),
        Index(None, "operation_id", **partial_index("operation_id IS NOT NULL")),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("invocation_id", "tool_invocation"),
        column.reference("operation_id", "operation"),
        column.one_of("action", LOGGED_STATUSES),
    )
    external_session_id: int = column.bigint(primary_key=True)
    seq: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    invocation_id: int = column.bigint()
    action: str = column.string()
    operation_id: int | None = column.nullable_bigint()
    created_at: datetime = column.timestamp()


class OperationRow(TableRow, table=True):
    """A rollback or fork, in progress or done. `status`, `report`, `owner` and `lease_until` change."""

    __tablename__ = "operation"
    __table_args__ = (
        UniqueConstraint("external_session_id", "request_id"),
        Index(None, "target_id", **partial_index("target_id IS NOT NULL")),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("external_session_id source_id", "internal_session external_session_id id"),
        column.reference("external_session_id internal_session_id", "internal_session external_session_id id"),
        column.reference("target_id", "checkpoint"),
        column.one_of("kind", OPERATION_KINDS),
        column.one_of("status", OPERATION_STATUSES),
    )
    id: int = column.bigint(primary_key=True)
    external_session_id: int = column.bigint()
    user_id: int = column.bigint()
    kind: str = column.string()
    status: str = column.string()
    request_id: str = column.string()
    source_id: int = column.bigint()
    target_id: int | None = column.nullable_bigint()
    internal_session_id: int = column.bigint()
    owner: str | None = column.string(nullable=True)
    lease_until: datetime | None = column.timestamp(nullable=True)
    request: bytes = column.encrypted("operation.request")
    report: bytes = column.encrypted("operation.report")
    created_at: datetime = column.timestamp()
    ended_at: datetime | None = column.timestamp(nullable=True)


class GraphCheckpointRow(TableRow, table=True):
    """A checkpoint that LangGraph saves at every super-step.

    `external_session_id` is the owner of the values that the row refers to, as in `BlobRow`. `seq` numbers the
    checkpoints of a thread's namespace in the order in which they were stored. `root_id` is the checkpoint of the whole
    graph to which a subgraph's checkpoint belongs. A thread that was copied at a later one lacks it, and has only what
    the subgraph remembers.
    """

    __tablename__ = "graph_checkpoint"
    __table_args__ = (
        UniqueConstraint("thread_id", "ns", "seq"),
        Index(None, "external_session_id"),
        # Only checkpoints of subgraphs have a root. Most rows are roots themselves, and are left out of this index.
        Index(None, "thread_id", "root_id", **partial_index("root_id IS NOT NULL")),
    )
    thread_id: str = Field(sa_column=Column(SafeText, primary_key=True))
    ns: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: str = column.string(primary_key=True)
    external_session_id: int = column.bigint()
    seq: int = column.integer()
    parent_id: str | None = column.string(nullable=True)
    root_id: str | None = column.string(nullable=True)
    run_id: str | None = column.safe_text(nullable=True)
    message_count: int = column.integer()
    meta: bytes = column.encrypted("graph_checkpoint.meta")
    header: bytes = column.encrypted("graph_checkpoint.header")
    channels: bytes = column.binary()
    state_hash: bytes = column.binary()


class GraphWriteRow(TableRow, table=True):
    """A write that a task made on top of a graph checkpoint."""

    __tablename__ = "graph_write"
    __table_args__ = (Index(None, "external_session_id"),)
    thread_id: str = Field(sa_column=Column(SafeText, primary_key=True))
    ns: str = Field(sa_column=Column(SafeText, primary_key=True))
    checkpoint_id: str = column.string(primary_key=True)
    task_id: str = column.string(primary_key=True)
    idx: int = Field(sa_column=Column(Integer, primary_key=True, autoincrement=False))
    external_session_id: int = column.bigint()
    task_path: str = column.safe_text()
    channel: str = column.safe_text()
    value: bytes = column.binary()


LIST = "list"
"""The type of a blob that is a list of hashes; no other value may have it."""


class BlobRow(TableRow, table=True):
    """A value, stored once per session under the hash of its uncompressed bytes.

    For threads that belong to no session, `external_session_id` is a negative number: their family. A thread and its
    copies are one family.
    """

    __tablename__ = "blob"
    __table_args__ = (CheckConstraint("codec BETWEEN 0 AND 3", name="codec"),)
    external_session_id: int = column.bigint(primary_key=True)
    hash: bytes = column.binary(primary_key=True)
    type: str = column.string()
    codec: int = column.integer()
    size: int = column.integer()
    data: bytes = column.encrypted("blob.data", is_hashed=True)


class EventRow(TableRow, table=True):
    """An event of the trail. Triggers refuse changes, and a deletion while the session exists or if there is none.

    `epoch`, `ordinal` and `id` are its place in the feed. The database gives the ordinal: SQLite an
    `INTEGER PRIMARY KEY AUTOINCREMENT`, PostgreSQL the number of the transaction. `external_session_id` is NULL for an
    event that belongs to no session. `owner_id` is the owner of the session, and `user_id` is the user who acted.
    """

    __tablename__ = "event"
    __table_args__ = (
        Index(None, "epoch", "ordinal"),
        Index(None, "owner_id", "epoch", "ordinal", "id"),
        Index(None, "external_session_id", "epoch", "ordinal", "id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.one_of("kind", KINDS),
    )
    id: int = column.bigint(primary_key=True)
    epoch: int = Field(sa_column=Column(Integer, nullable=False))
    ordinal: int = Field(sa_column=Column(column.ID, nullable=False, server_default=FetchedValue()))
    external_session_id: int | None = column.nullable_bigint()
    internal_session_id: int | None = column.nullable_bigint()
    owner_id: int | None = column.nullable_bigint()
    user_id: int | None = column.nullable_bigint()
    kind: str = column.string()
    detail: bytes = column.binary()
    created_at: datetime = column.timestamp()


class EncryptionKeyRow(TableRow, table=True):
    """A key that values may be encrypted with. `proof` is encrypted with it.

    The proof reveals another key of the same name, and tells whether the database has unencrypted values.
    """

    __tablename__ = "encryption_key"
    id: str = column.string(primary_key=True)
    proof: bytes = column.binary()
    created_at: datetime = column.timestamp()


def table_of(row_class: type[TableRow]) -> Table:
    """Return the table that SQLModel made for a row class."""
    table: Table = row_class.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table
    table.dialect_options["sqlite"]["strict"] = True
    for constraint in column.sqlite_checks(table):
        table.append_constraint(constraint)
    return table


USER = table_of(UserRow)
API_KEY = table_of(ApiKeyRow)
SESSION = table_of(ExternalSessionRow)
SESSION_MEMBER = table_of(SessionMemberRow)
SESSION_LINK = table_of(SessionLinkRow)
BRANCH = table_of(InternalSessionRow)
CHECKPOINT = table_of(CheckpointRow)
TAG = table_of(TagRow)
SEARCH_TEXT = table_of(SearchTextRow)
WORKSPACE_SNAPSHOT = table_of(WorkspaceSnapshotRow)
TOOL_INVOCATION = table_of(ToolInvocationRow)
WORLD_LOG = table_of(WorldLogRow)
OPERATION = table_of(OperationRow)
GRAPH_CHECKPOINT = table_of(GraphCheckpointRow)
GRAPH_WRITE = table_of(GraphWriteRow)
BLOB = table_of(BlobRow)
EVENT = table_of(EventRow)
ENCRYPTION_KEY = table_of(EncryptionKeyRow)


def is_running(branch: FromClause) -> ColumnElement[bool]:
    """Return the condition that a branch is running."""
    # A database uses a partial index only for a condition that holds for every execution of the statement.
    return branch.c.status == literal_column("'running'")
