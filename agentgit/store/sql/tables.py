"""Every table of agentgit, as SQLModel classes on their own MetaData.

No sequences, no `relationship()`. Rows do not leave the store: the repository returns the values of `sessions`,
`checkpoints` and `effects`.
"""

from datetime import datetime

from sqlalchemy import (
    CheckConstraint,
    ColumnElement,
    FetchedValue,
    FromClause,
    Index,
    Integer,
    LargeBinary,
    Table,
    Text,
    UniqueConstraint,
    literal_column,
    text,
)
from sqlalchemy.dialects.postgresql import TSVECTOR

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
from agentgit.store.sql.columns import (
    ID,
    METADATA,
    Flag,
    Payload,
    SafeText,
    SealedText,
    TableRow,
    UTCDateTime,
    field,
    partial_index,
)

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

    __table_args__ = (UniqueConstraint("name"),)
    id: int = field(ID, primary_key=True)
    name: str = field(SafeText)
    created_at: datetime = field(UTCDateTime)
    is_admin: bool = field(Flag, server_default=text("false"))
    disabled_at: datetime | None = field(UTCDateTime, nullable=True)


class ApiKeyRow(TableRow, table=True):
    """An API key, or a link that gives a browser one. Only the SHA-256 of its secret is stored."""

    __table_args__ = (
        Index(None, "user_id", "id"),
        column.reference("user_id", "user"),
        column.one_of("scope", (*SCOPES, SIGN_IN)),
    )
    id: int = field(ID, primary_key=True)
    user_id: int = field(ID)
    name: str = field(SafeText)
    hash: bytes = field(LargeBinary)
    scope: str = field(Text)
    created_at: datetime = field(UTCDateTime)
    expires_at: datetime | None = field(UTCDateTime, nullable=True)
    last_used_at: datetime | None = field(UTCDateTime, nullable=True)
    revoked_at: datetime | None = field(UTCDateTime, nullable=True)


class ExternalSessionRow(TableRow, table=True):
    """A session with the name that its owner gave it. `current_branch_id` changes.

    `thread_id` is the id by which clients of a served graph know it. It stays when the session is renamed.
    """

    __table_args__ = (
        UniqueConstraint("user_id", "session_name"),
        column.reference("user_id", "user"),
        column.reference("id current_branch_id", "internal_session external_session_id id", mutual=True),
        Index(None, "user_id", "thread_id"),
        Index(None, "user_id", "updated_at", "id"),
    )
    id: int = field(ID, primary_key=True)
    user_id: int = field(ID)
    session_name: str = field(SafeText)
    thread_id: str | None = field(SafeText, nullable=True)
    created_at: datetime = field(UTCDateTime)
    updated_at: datetime = field(UTCDateTime)
    is_active: bool = field(Flag)
    current_branch_id: int | None = field(ID, nullable=True)
    meta: bytes = field(Payload("external_session.meta"))


class SessionMemberRow(TableRow, table=True):
    """The role of a user in another user's session. `link_id` is the link that granted it, or 0."""

    __table_args__ = (
        Index(None, "user_id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("user_id", "user"),
        column.one_of("role", ROLES),
    )
    external_session_id: int = field(ID, primary_key=True)
    user_id: int = field(ID, primary_key=True)
    link_id: int = field(ID, primary_key=True)
    role: str = field(Text)
    created_at: datetime = field(UTCDateTime)
    expires_at: datetime | None = field(UTCDateTime, nullable=True)


class SessionLinkRow(TableRow, table=True):
    """A link with a token to join a session. Only the SHA-256 of its secret is stored."""

    __table_args__ = (
        Index(None, "external_session_id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.one_of("role", ROLES[:-1]),
    )
    id: int = field(ID, primary_key=True)
    external_session_id: int = field(ID)
    hash: bytes = field(LargeBinary)
    role: str = field(Text)
    created_at: datetime = field(UTCDateTime)
    expires_at: datetime | None = field(UTCDateTime, nullable=True)
    revoked_at: datetime | None = field(UTCDateTime, nullable=True)


class InternalSessionRow(TableRow, table=True):
    """One branch, which is one LangGraph thread.

    `head_id`, `status`, `owner`, `lease_until`, `epoch`, `world_seen` and `searched` change. `epoch` counts the runs
    that took the branch. On a server, `lease_until` is the time until which the current run is surely alive.
    `world_seen` is the position in the world log up to which the branch has seen the world. `searched` is the number of
    its last checkpoint in the search index.
    """

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
        CheckConstraint("parent_id <> id", name="parent"),
        CheckConstraint("(parent_id IS NULL) = (branch_point_id IS NULL)", name="branch_point"),
    )
    id: int = field(ID, primary_key=True)
    external_session_id: int = field(ID)
    thread_id: str = field(Text)
    name: str = field(SafeText)
    status: str = field(Text)
    owner: str | None = field(Text, nullable=True)
    lease_until: datetime | None = field(UTCDateTime, nullable=True)
    epoch: int = field(Integer, server_default="0")
    world_seen: int = field(Integer, server_default="0")
    searched: int = field(Integer, server_default="0")
    head_id: int | None = field(ID, nullable=True)
    parent_id: int | None = field(ID, nullable=True)
    branch_point_id: int | None = field(ID, nullable=True)
    inherited: int = field(Integer)
    created_at: datetime = field(UTCDateTime)
    meta: bytes = field(Payload("internal_session.meta"))


_BY_TIME = ("internal_session_id", "created_at", "id")
_HAS_NAME = partial_index("name IS NOT NULL")


class CheckpointRow(TableRow, table=True):
    """A saved point of a branch. Its state is in the graph checkpoint that it refers to.

    `pending` has the pending writes at that time (`agentgit.store.threads.pending_writes`); None if they were not
    recorded.
    """

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
    id: int = field(ID, primary_key=True)
    internal_session_id: int = field(ID)
    number: int = field(Integer, info={"least": 1})
    name: str | None = field(SafeText, nullable=True)
    description: str | None = field(SealedText("checkpoint.description"), nullable=True)
    kind: str = field(Text)
    is_auto: bool = field(Flag)
    user_id: int = field(ID)
    created_at: datetime = field(UTCDateTime)
    graph_checkpoint_id: str | None = field(Text, nullable=True)
    state_hash: bytes = field(LargeBinary)
    position: int = field(Integer)
    message_count: int = field(Integer)
    restore_point: str | None = field(SafeText, nullable=True)
    data: bytes | None = field(Payload("checkpoint.data"), nullable=True)
    workspace_snapshot_id: int | None = field(ID, nullable=True)
    pending: bytes | None = field(LargeBinary, nullable=True)


class TagRow(TableRow, table=True):
    """A name that a person gave to one checkpoint of a session. The checkpoint is kept as long as it has the tag."""

    __table_args__ = (
        Index(None, "checkpoint_id"),
        column.reference("checkpoint_id", "checkpoint"),
        column.reference("external_session_id", "external_session", cascade=True),
    )
    external_session_id: int = field(ID, primary_key=True)
    name: str = field(SafeText, primary_key=True)
    checkpoint_id: int = field(ID)
    description: str | None = field(SealedText("tag.description"), nullable=True)
    user_id: int = field(ID)
    created_at: datetime = field(UTCDateTime)


SEARCH_INDEX = "ix_search_text_words"
"""The GIN index of the words on PostgreSQL, which the migration creates."""


class SearchTextRow(TableRow, table=True):
    """A text in the search index: a message by its `hash`, a call or a named checkpoint by its `row_id`.

    `number` is the number of the first checkpoint of the branch that holds the text. On PostgreSQL the words are in
    `words`, which has a GIN index. On SQLite they are in the FTS5 table `search_words`, under the same id.
    """

    __table_args__ = (
        Index(None, "internal_session_id", "number"),
        column.reference("internal_session_id", "internal_session", cascade=True),
        column.one_of("kind", TEXT_KINDS),
    )
    id: int = field(ID, primary_key=True)
    internal_session_id: int = field(ID)
    number: int = field(Integer)
    kind: str = field(Text)
    hash: bytes | None = field(LargeBinary, nullable=True)
    row_id: int | None = field(ID, nullable=True)
    words: str | None = field(Text().with_variant(TSVECTOR(), "postgresql"), nullable=True)


class WorkspaceSnapshotRow(TableRow, table=True):
    """A snapshot of a workspace's files as a branch left or found them. The files are in the workspace's own store.

    `snapshot` is the snapshot's id in that store. `settings` has what is needed to open the workspace again.
    `changed_by` says who changed the files since the row before; see `agentgit.effects.files`.
    """

    __table_args__ = (
        column.reference(
            "external_session_id internal_session_id", "internal_session external_session_id id", cascade=True
        ),
        Index(None, "external_session_id", "id"),
        column.one_of("changed_by", CHANGED_BY),
    )
    id: int = field(ID, primary_key=True)
    external_session_id: int = field(ID)
    internal_session_id: int = field(ID)
    snapshot: str = field(SafeText)
    settings: bytes = field(Payload("workspace_snapshot.settings"))
    changed_by: str = field(Text)
    created_at: datetime = field(UTCDateTime)


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
    id: int = field(ID, primary_key=True)
    external_session_id: int = field(ID)
    internal_session_id: int = field(ID)
    arrival: int = field(Integer)
    batch: int = field(Integer, info={"least": -1})
    batch_index: int = field(Integer)
    tool_name: str = field(SafeText)
    tool_call_id: str | None = field(SafeText, nullable=True)
    effect: str = field(Text)
    status: str = field(Text)
    args: bytes = field(Payload("tool_invocation.args"))
    result: bytes | None = field(Payload("tool_invocation.result"), nullable=True)
    error_message: str | None = field(SealedText("tool_invocation.error_message"), nullable=True)
    started_at: datetime = field(UTCDateTime)
    ended_at: datetime | None = field(UTCDateTime, nullable=True)
    idempotency_key: str = field(Text)
    undo: str | None = field(SafeText, nullable=True)
    verify: str | None = field(SafeText, nullable=True)
    precheck: str | None = field(SafeText, nullable=True)
    tool_path: str | None = field(SafeText, nullable=True)
    enclosing: str | None = field(SafeText, nullable=True)
    owner: str | None = field(Text, nullable=True)
    kind: str = field(Text, server_default="call")
    identity: str | None = field(Text, nullable=True)
    replay_of: int | None = field(ID, nullable=True)
    answers: bytes | None = field(Payload("tool_invocation.answers"), nullable=True)
    made_on: int | None = field(ID, nullable=True)
    task: str | None = field(Text, nullable=True)
    parent_id: int | None = field(ID, nullable=True)


class WorldLogRow(TableRow, table=True):
    """The order in which effects happened in the world of a session, across its branches."""

    __table_args__ = (
        Index(None, "invocation_id"),
        Index(None, "operation_id", **partial_index("operation_id IS NOT NULL")),
        column.reference("external_session_id", "external_session", cascade=True),
        column.reference("invocation_id", "tool_invocation"),
        column.reference("operation_id", "operation"),
        column.one_of("action", LOGGED_STATUSES),
    )
    external_session_id: int = field(ID, primary_key=True)
    seq: int = field(Integer, primary_key=True, info={"least": 1})
    invocation_id: int = field(ID)
    action: str = field(Text)
    operation_id: int | None = field(ID, nullable=True)
    created_at: datetime = field(UTCDateTime)


class OperationRow(TableRow, table=True):
    """A rollback or fork, in progress or done. `status`, `report`, `owner` and `lease_until` change."""

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
    id: int = field(ID, primary_key=True)
    external_session_id: int = field(ID)
    user_id: int = field(ID)
    kind: str = field(Text)
    status: str = field(Text)
    request_id: str = field(Text)
    source_id: int = field(ID)
    target_id: int | None = field(ID, nullable=True)
    internal_session_id: int = field(ID)
    owner: str | None = field(Text, nullable=True)
    lease_until: datetime | None = field(UTCDateTime, nullable=True)
    request: bytes = field(Payload("operation.request"))
    report: bytes = field(Payload("operation.report"))
    created_at: datetime = field(UTCDateTime)
    ended_at: datetime | None = field(UTCDateTime, nullable=True)


class GraphCheckpointRow(TableRow, table=True):
    """A checkpoint that LangGraph saves at every super-step.

    `external_session_id` is the owner of the values that the row refers to, as in `BlobRow`. `seq` numbers the
    checkpoints of a thread's namespace in the order in which they were stored. `root_id` is the checkpoint of the whole
    graph to which a subgraph's checkpoint belongs. A thread that was copied at a later one lacks it, and has only what
    the subgraph remembers.
    """

    __table_args__ = (
        UniqueConstraint("thread_id", "ns", "seq"),
        Index(None, "external_session_id"),
        # Only checkpoints of subgraphs have a root. Most rows are roots themselves, and are left out of this index.
        Index(None, "thread_id", "root_id", **partial_index("root_id IS NOT NULL")),
    )
    thread_id: str = field(SafeText, primary_key=True)
    ns: str = field(SafeText, primary_key=True)
    checkpoint_id: str = field(Text, primary_key=True)
    external_session_id: int = field(ID)
    seq: int = field(Integer, info={"least": 1})
    parent_id: str | None = field(Text, nullable=True)
    root_id: str | None = field(Text, nullable=True)
    run_id: str | None = field(SafeText, nullable=True)
    message_count: int = field(Integer)
    meta: bytes = field(Payload("graph_checkpoint.meta"))
    header: bytes = field(Payload("graph_checkpoint.header"))
    channels: bytes = field(LargeBinary)
    state_hash: bytes = field(LargeBinary)


class GraphWriteRow(TableRow, table=True):
    """A write that a task made on top of a graph checkpoint."""

    __table_args__ = (Index(None, "external_session_id"),)
    thread_id: str = field(SafeText, primary_key=True)
    ns: str = field(SafeText, primary_key=True)
    checkpoint_id: str = field(Text, primary_key=True)
    task_id: str = field(Text, primary_key=True)
    idx: int = field(Integer, primary_key=True, info={"least": -1000})  # below 0 for special channels
    external_session_id: int = field(ID)
    task_path: str = field(SafeText)
    channel: str = field(SafeText)
    value: bytes = field(LargeBinary)


LIST = "list"
"""The type of a blob that is a list of hashes; no other value may have it."""


class BlobRow(TableRow, table=True):
    """A value, stored once per session under the hash of its uncompressed bytes.

    For threads that belong to no session, `external_session_id` is a negative number: their family. A thread and its
    copies are one family.
    """

    __table_args__ = (CheckConstraint("codec <= 3", name="known_codec"),)
    external_session_id: int = field(ID, primary_key=True)
    hash: bytes = field(LargeBinary, primary_key=True)
    type: str = field(Text)
    codec: int = field(Integer)
    size: int = field(Integer)
    data: bytes = field(Payload("blob.data", is_bound=False))


class EventRow(TableRow, table=True):
    """An event of the trail. Triggers refuse changes, and a deletion while the session exists or if there is none.

    `epoch`, `ordinal` and `id` are its place in the feed. The database gives the ordinal: SQLite an
    `INTEGER PRIMARY KEY AUTOINCREMENT`, PostgreSQL the number of the transaction. `external_session_id` is NULL for an
    event that belongs to no session. `owner_id` is the owner of the session, and `user_id` is the user who acted.
    """

    __table_args__ = (
        Index(None, "epoch", "ordinal"),
        Index(None, "owner_id", "epoch", "ordinal", "id"),
        Index(None, "external_session_id", "epoch", "ordinal", "id"),
        column.reference("external_session_id", "external_session", cascade=True),
        column.one_of("kind", KINDS),
    )
    id: int = field(ID, primary_key=True)
    epoch: int = field(Integer)
    ordinal: int = field(ID, server_default=FetchedValue())
    external_session_id: int | None = field(ID, nullable=True)
    internal_session_id: int | None = field(ID, nullable=True)
    owner_id: int | None = field(ID, nullable=True)
    user_id: int | None = field(ID, nullable=True)
    kind: str = field(Text)
    detail: bytes = field(LargeBinary)
    created_at: datetime = field(UTCDateTime)


class EncryptionKeyRow(TableRow, table=True):
    """A key that values may be encrypted with. `proof` is encrypted with it.

    The proof reveals another key of the same name, and tells whether the database has unencrypted values.
    """

    id: str = field(Text, primary_key=True)
    proof: bytes = field(LargeBinary)
    created_at: datetime = field(UTCDateTime)


def table_of(row_class: type[TableRow]) -> Table:
    table: Table = row_class.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table
    table.dialect_options["sqlite"]["strict"] = True
    for constraint in column.type_checks(table):
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
    # A database uses a partial index only for a condition that holds for every execution of the statement.
    return branch.c.status == literal_column("'running'")
