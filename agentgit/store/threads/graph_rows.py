"""Graph checkpoints and pending writes as rows: their types, their SQL statements, and which channels are visible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from sqlalchemy import (
    ColumnElement,
    LargeBinary,
    Table,
    and_,
    bindparam,
    delete,
    exists,
    func,
    literal,
    or_,
    select,
    true,
    type_coerce,
)
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.errors import Corrupt
from agentgit.sessions.session import IMPORTED
from agentgit.store.objects.blobs import Leaf, compact, unpack
from agentgit.store.objects.content import Body, Encoded
from agentgit.store.objects.packing import HASH_BYTES, split_hashes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.driver_errors import unreadable_row
from agentgit.store.sql.rows import insert_missing
from agentgit.store.sql.tables import BRANCH, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading
from agentgit.values import UNREADABLE, as_object

INTERRUPT, RESUME, ERROR = "__interrupt__", "__resume__", "__error__"
"""LangGraph's channels for the interrupt that a task raises, for the answers to it, and for the task's failure."""

NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""LangGraph's id of the task to which it attributes what a caller's `Command` writes."""

BRANCH_TO = "branch:to:"
"""The beginning of the names of the channels with which LangGraph triggers a node."""

AS_NODE = "agentgit_as_node"
"""The key in the metadata of a graph checkpoint for the node as which a caller updated the state; LangGraph does not
record it."""

ASKED = "agentgit:asked"
"""The channel under which a turn keeps each question of a task; LangGraph keeps only the last one."""

ASKED_INDEX = -100
"""The index of the first question of a task; each later one has the index before."""

MAX_ASKED = 800
"""The most questions of one task that are kept."""

MAX_PLAIN_NUMBER = 1e15
"""The number from which on JSON may write a float with an exponent."""

PREVIOUS = "__previous__"
"""LangGraph's channel for the value that an entrypoint of the functional API saved."""

MODEL_CALLS, MODEL_MESSAGES = "__model_calls__", "__model_messages__"
"""The names under which a graph checkpoint keeps the model calls on the path to it, and what they refer to; see
`agentgit.store.threads.model_calls`. LangGraph never sees them."""

_SHOWN_CHANNELS = {"__root__", PREVIOUS}
_HIDDEN_PREFIXES = ("__", "branch:", "join:")


class GraphKey(NamedTuple):
    """The key of a graph checkpoint: its thread, its namespace (empty for the root graph), and its id."""

    thread: str
    ns: str
    checkpoint_id: str

    @property
    def namespace(self) -> Namespace:
        return self.thread, self.ns

    def columns(self) -> dict[str, Any]:
        return dict(zip(KEY_COLUMNS, self, strict=True))

    def conditions(self, table: Table) -> list[ColumnElement[bool]]:
        return [table.c[name] == value for name, value in self.columns().items()]


class GraphCheckpoint(NamedTuple):
    """A stored graph checkpoint, with its values as hashes."""

    key: GraphKey
    session_id: int
    """The owner of its values: a session, or a family of threads."""
    seq: int
    parent_id: str | None
    meta: dict[str, Any]
    header: dict[str, Any]
    channels: dict[str, bytes]
    state_hash: bytes
    message_count: int
    folded: dict[str, bytes]
    """Values that LangGraph stores as writes on earlier checkpoints; see `agentgit.store.threads.delta_values`."""
    model_calls: bytes | None = None
    """The two hashes of the model calls on the path to it; None if none were recorded."""

    @property
    def is_imported(self) -> bool:
        """True if a file brought it, or if it goes on from one that a file brought without a new message."""
        return IMPORTED in self.header

    @property
    def made_at(self) -> datetime:
        """The time at which it was made; now, if it records no valid time, as an imported one may."""
        try:
            return datetime.fromisoformat(self.header["ts"]).astimezone(UTC)
        except (ValueError, OverflowError):
            return datetime.now(UTC)

    def precedes(self, started_at: datetime | None) -> bool:
        """Return whether a call that began at this time is of the step after it; False if the time is not known."""
        return started_at is not None and started_at >= self.made_at

    @property
    def conversation_channel(self) -> str | None:
        """The channel of its conversation; None if it holds no messages."""
        return conversation_channel(self.header["counts"])

    @property
    def values(self) -> Mapping[str, bytes]:
        return {**self.channels, **self.folded} if self.folded else self.channels

    @property
    def digests(self) -> Mapping[str, bytes]:
        """The digests that stand in for the values that are not known, by channel."""
        return {name: bytes.fromhex(digest) for name, digest in self.header.get("digests", {}).items()}


class NewestState(NamedTuple):
    checkpoint: GraphCheckpoint | None = None
    is_interrupted: bool = False
    has_writes: bool = False

    @property
    def is_imported(self) -> bool:
        """True if there is one, and it is imported."""
        return self.checkpoint is not None and self.checkpoint.is_imported


class FoldedValue(NamedTuple):
    """A value that was computed from writes: in its stored form, in that of the next computation, and its size."""

    encoded: Encoded
    decoded: Any
    weight: int


class PendingWrite(NamedTuple):
    """A write that a task made on top of a graph checkpoint: the hash of a value, which belongs to `session_id`."""

    task_id: str
    channel: str
    value: bytes
    session_id: int
    task_path: str = ""


class GraphScope(NamedTuple):
    """A filter for the graph checkpoints to list; None means any."""

    thread: str | None = None
    ns: str | None = None
    checkpoint_id: str | None = None


ReadEarlier: TypeAlias = Callable[[], tuple[Body | None, Sequence[Body]] | None]
"""Reads the last full value of a channel, if there is one, and the writes after it. Returns None if some of them are
missing."""

Fold: TypeAlias = Callable[[FoldedValue | None, Sequence[Body], ReadEarlier], FoldedValue | None]
"""Computes a value from its previous value and the writes since. A previous value of None is computed from
the result of `ReadEarlier`. Returns None if the result of the writes cannot be computed."""


class NewModelCall(NamedTuple):
    messages: Sequence[Leaf]
    options: Leaf | None
    reply: Leaf
    is_in_tool: bool


class NewModelCalls(NamedTuple):
    step: int
    calls: Sequence[NewModelCall]
    earlier: bytes | None = None
    rewritten: Mapping[bytes, Leaf] = {}  # it is never modified


@dataclass(frozen=True, kw_only=True)
class Draft:
    parent_id: str | None
    meta: Mapping[str, Any]
    header: Mapping[str, Any]
    channels: Sequence[str]
    changed_channels: frozenset[str]
    encode: Callable[[str], Encoded]
    continues: bool = False
    folds: Mapping[str, Fold] = field(default_factory=dict)
    parent_thread: str | None = None
    model_calls: NewModelCalls | None = None


class NewCheckpoint(NamedTuple):
    """A graph checkpoint to store under a key."""

    key: GraphKey
    draft: Draft

    def as_imported(self) -> NewCheckpoint:
        """Return it with the mark that what waits there was asked for by a file."""
        return self._replace(draft=replace(self.draft, header={**self.draft.header, IMPORTED: True}))


class NewWrites(NamedTuple):
    """The writes of a task to store on top of a graph checkpoint: the index, channel and value of each.

    `task_path` orders the tasks of a step. `model_calls` has the calls of a step that ended without a graph checkpoint.
    """

    key: GraphKey
    task_id: str
    task_path: str
    writes: Sequence[tuple[int, str, Body]]
    model_calls: NewModelCalls | None = None


NewRows: TypeAlias = NewCheckpoint | NewWrites
"""What a saver stores."""

Namespace: TypeAlias = tuple[str, str]
"""The thread and the namespace of graph checkpoints."""


def is_shown(channel: str) -> bool:
    """Return whether a channel belongs to the visible state rather than to LangGraph's internal bookkeeping."""
    return channel in _SHOWN_CHANNELS or not channel.startswith(_HIDDEN_PREFIXES)


def hash_state(channels: Mapping[str, bytes]) -> bytes:
    """Hash a state with SHA-256 over the visible channels, sorted by name: each name, a NUL, and the value's hash."""
    named = sorted((name.encode(errors="surrogatepass"), value) for name, value in channels.items() if is_shown(name))
    return sha256(b"".join(b"%b\0%b" % pair for pair in named)).digest()


def conversation_channel(counts: Mapping[str, int]) -> str | None:
    """Return the channel of the conversation: `messages`, else the first one that holds messages."""
    return "messages" if "messages" in counts else next(iter(counts), None)


def parse_graph_checkpoint(row: Any) -> GraphCheckpoint:
    graph_key = GraphKey(row.thread_id, row.ns, row.checkpoint_id)
    try:
        header, meta, channels = as_object(row.header), as_object(row.meta), unpack(row.channels)
        if not isinstance(header["counts"], dict) or not isinstance(meta.get("parents") or {}, dict):
            raise ValueError("no counts of messages, or wrong parents")
        folded = {name: channels.pop(name) for name in header.get("folded", ())}
        model_calls = channels.pop(MODEL_CALLS, b"") + channels.pop(MODEL_MESSAGES, b"")
        return GraphCheckpoint(
            graph_key,
            row.external_session_id,
            row.seq,
            row.parent_id,
            meta,
            header,
            channels,
            row.state_hash,
            row.message_count,
            folded,
            model_calls or None,
        )
    except (Corrupt, *UNREADABLE) as error:
        raise unreadable_row("graph_checkpoint", "/".join(graph_key)) from error


def parse_newest_state(row: Any) -> NewestState:
    """Read the newest graph checkpoint of a branch from a row of an outer join, with what is known about it."""
    if row.checkpoint_id is None:
        return NewestState()
    return NewestState(parse_graph_checkpoint(row), bool(row.asks), bool(row.holds))


def parse_pending_writes(rows: Iterable[Any]) -> list[PendingWrite]:
    """Read rows of the table graph_write, by task path, task and index. Those of agentgit are left out."""
    # Sorted here, because databases differ in how they collate text.
    sorted_rows = sorted(rows, key=lambda row: (row.task_path, row.task_id, row.idx))
    return [parse_write(row) for row in sorted_rows if row.channel not in (ASKED, MODEL_CALLS)]


def referenced_hashes(row: Mapping[str, Any]) -> Iterable[bytes]:
    """Return the hashes of the values that a graph checkpoint or a write refers to."""
    if "channels" not in row:
        return split_hashes(row["value"])
    try:
        return unpack(row["channels"]).values()
    except ValueError as error:
        raise unreadable_row("graph_checkpoint", "/".join(row[name] for name in KEY_COLUMNS)) from error


def parse_write(row: Any) -> PendingWrite:
    return PendingWrite(row.task_id, row.channel, row.value[:HASH_BYTES], row.external_session_id, row.task_path)


def parse_writes_by_checkpoint(rows: Iterable[Any]) -> dict[str, list[PendingWrite]]:
    """Read rows of one namespace as `parse_pending_writes` does, and return them by the id of their checkpoint."""
    rows_by_id: dict[str, list[Any]] = {}
    for row in rows:
        rows_by_id.setdefault(row.checkpoint_id, []).append(row)
    return {checkpoint_id: parse_pending_writes(found) for checkpoint_id, found in rows_by_id.items()}


def parameter_conditions(table: Any, *names: str) -> list[Any]:
    return [table.c[name] == bindparam(name) for name in names]


def upsert(dialect: Any, kept_columns: Iterable[str], *conditions: Any) -> Any:
    """Build the upsert of a graph checkpoint. With conditions, it stores a row only if they hold."""
    statement = dialect.insert(GRAPH_CHECKPOINT)
    if conditions:
        values = select(*(bindparam(column.name, type_=column.type) for column in GRAPH_CHECKPOINT.c)).where(
            *conditions
        )
        statement = statement.from_select([column.name for column in GRAPH_CHECKPOINT.c], values)
    key = [column.name for column in GRAPH_CHECKPOINT.primary_key]
    updates = {c.name: statement.excluded[c.name] for c in GRAPH_CHECKPOINT.c if c.name not in {*key, *kept_columns}}
    return statement.on_conflict_do_update(index_elements=key, set_=updates)


def _upsert_write(dialect: Any) -> Any:
    statement = dialect.insert(GRAPH_WRITE)
    names = ("external_session_id", "task_path", "channel", "value")
    updates = {name: statement.excluded[name] for name in names}
    return statement.on_conflict_do_update(index_elements=[c.name for c in GRAPH_WRITE.primary_key], set_=updates)


def may_have(transaction: Reading, column: Any, name: str, value: Any) -> Any:
    """Return the condition that the JSON in a column may have an entry, because it has the text of it."""
    texts = [compact({name: one}) for one in _equal_values(value)]
    if not texts or any(text[:1] != b"{" for text in texts):
        return true()
    json = type_coerce(column, LargeBinary)
    find = func.instr if transaction.is_sqlite else func.pg_catalog.position
    # JSON that `compact` wrote in its slow way begins with a space, and has other texts.
    is_other_json = func.substr(json, 1, 1, type_=LargeBinary) == literal(b" ", LargeBinary)
    return or_(*(find(json, literal(text[1:-1], LargeBinary)) > 0 for text in texts), is_other_json)


def _equal_values(value: Any) -> list[Any]:
    """Return the values that JSON writes differently although Python regards them as equal; none for other types."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, int | float) or not abs(value) < MAX_PLAIN_NUMBER:
        return []
    if value != int(value):
        return [value]
    zeros = [-0.0] if value == 0 else []
    return [int(value), float(value), *zeros, *([bool(value)] if value in (0, 1) else [])]


_DIALECTS = {"sqlite": sqlite, "postgresql": postgresql}
NAMESPACE_COLUMNS = ("thread_id", "ns")
KEY_COLUMNS = (*NAMESPACE_COLUMNS, "checkpoint_id")
UPSERT = CompiledStatement({name: upsert(dialect, kept_columns=["seq"]) for name, dialect in _DIALECTS.items()})
REPLACE_WRITES = CompiledStatement({name: _upsert_write(dialect) for name, dialect in _DIALECTS.items()})
ADD_WRITES = insert_missing(GRAPH_WRITE)
_by_key = select(GRAPH_CHECKPOINT).where(*parameter_conditions(GRAPH_CHECKPOINT, *KEY_COLUMNS))
_newest = (
    select(GRAPH_CHECKPOINT)
    .where(*parameter_conditions(GRAPH_CHECKPOINT, *NAMESPACE_COLUMNS))
    .order_by(GRAPH_CHECKPOINT.c.seq.desc())
    .limit(1)
)
ONE, NEWEST = CompiledStatement(_by_key), CompiledStatement(_newest)
_by_id = parameter_conditions(GRAPH_CHECKPOINT, "external_session_id", "ns", "checkpoint_id")
WITH_PARENT = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.thread_id, GRAPH_CHECKPOINT.c.parent_id)
    .where(*_by_id, GRAPH_CHECKPOINT.c.parent_id.is_not(None))
    .limit(1)
)
"""A graph checkpoint on whichever branch of a session has the one before it."""
_write_matches = [GRAPH_WRITE.c[column.name] == column for column in GRAPH_CHECKPOINT.primary_key]
HAS_INTERRUPT = exists().where(*_write_matches, GRAPH_WRITE.c.channel == INTERRUPT)
_subgraph = GRAPH_CHECKPOINT.alias("below")
HAS_CONTENT = or_(
    exists().where(*_write_matches),
    exists().where(
        _subgraph.c.thread_id == GRAPH_CHECKPOINT.c.thread_id, _subgraph.c.root_id == GRAPH_CHECKPOINT.c.checkpoint_id
    ),
)


def is_newest(thread_id: Any) -> Any:
    """Build the condition that a graph checkpoint is the newest of the root graph of a thread."""
    other = GRAPH_CHECKPOINT.alias("newer")
    of_thread = (other.c.thread_id == thread_id, other.c.ns == "")
    return and_(
        GRAPH_CHECKPOINT.c.thread_id == thread_id,
        GRAPH_CHECKPOINT.c.ns == "",
        GRAPH_CHECKPOINT.c.seq == select(func.max(other.c.seq)).where(*of_thread).correlate(BRANCH).scalar_subquery(),
    )


# Locked, so that nobody deletes it, and then its values, before the next one is stored. SQLite has only one writer.
NEWEST_LOCKED = CompiledStatement(_newest.with_for_update(read=True, key_share=True))
CHECKPOINT_EXISTS = CompiledStatement(_by_key.with_only_columns(GRAPH_CHECKPOINT.c.seq))
WRITES = CompiledStatement(select(GRAPH_WRITE).where(*parameter_conditions(GRAPH_WRITE, *KEY_COLUMNS)))
_newest_key = _newest.with_only_columns(*(GRAPH_CHECKPOINT.c[name] for name in KEY_COLUMNS)).subquery()
WRITES_OF_NEWEST = CompiledStatement(
    select(_newest_key.c.checkpoint_id.label("newest"), GRAPH_WRITE).join_from(
        _newest_key,
        GRAPH_WRITE,
        and_(*(GRAPH_WRITE.c[name] == _newest_key.c[name] for name in KEY_COLUMNS)),
        isouter=True,
    )
)
"""The writes of the newest graph checkpoint, or one row without a write. Each row has that checkpoint's id."""
DELETE_WRITES = CompiledStatement(delete(GRAPH_WRITE).where(*parameter_conditions(GRAPH_WRITE, *KEY_COLUMNS)))


def state_channels(graph_key: GraphKey, draft: Draft, parent: GraphCheckpoint | None) -> Sequence[str]:
    """List the channels that have a value, including those whose value is spread over earlier writes.

    Spread values of subgraphs are left out, because the state of a subgraph is never shown.
    """
    if graph_key.ns or not (draft.folds or (parent and parent.folded)):
        return draft.channels
    # In the parent's order, so that `conversation_channel` picks the same channel at every step. A value may be spread
    # at one step and stored in full at the next.
    names = [*draft.channels, *sorted(draft.folds)]
    parent_channels = [name for name in parent.header["counts"] if name in names] if parent else []
    return list(dict.fromkeys([*parent_channels, *names]))


def unchanged_channels(names: Sequence[str], draft: Draft, parent: GraphCheckpoint | None) -> set[str]:
    """Return the channels that are unchanged since the parent: not in `changed_channels`, and with the same version."""
    if parent is None:
        return set()
    versions, parent_versions = draft.header["versions"], parent.header["versions"]
    return {
        name
        for name in names
        if name not in draft.changed_channels and name in versions and versions[name] == parent_versions.get(name)
    }


def count_messages(
    names: Iterable[str], new_values: Mapping[str, Encoded], parent: GraphCheckpoint | None
) -> dict[str, int]:
    """Count the messages of each visible channel that holds messages."""
    counts: dict[str, int] = {}
    parent_counts = parent.header["counts"] if parent else {}
    for name in filter(is_shown, names):
        value = new_values.get(name)
        if value is None:
            count = parent_counts.get(name)
        else:
            count = value.messages if isinstance(value.body, list) or name == PREVIOUS else None
        # An empty list does not reveal what it is a list of.
        if count or (count == 0 and name == "messages"):
            counts[name] = count
    return counts
