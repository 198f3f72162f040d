"""The records and values of an export as rows: with ids of their own, on threads of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from agentgit.effects.files import FilesAt
from agentgit.sessions.operation import DONE
from agentgit.sessions.session import OPEN
from agentgit.store.objects.blobs import RECORD, Leaf, compact, leaf, list_hash, pack, unpack
from agentgit.store.objects.packing import CHUNK
from agentgit.store.objects.plain_values import (
    MESSAGE_MSGPACK,
    MESSAGES,
    MSGPACK,
    READERS,
    RUNS,
    SEALED,
    show,
    show_message,
    structure,
)
from agentgit.store.records.checkpoints import MERGED, merged_by
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import LIST
from agentgit.store.threads import pending_writes
from agentgit.store.transfer import json_checks
from agentgit.store.transfer.export_states import LARGEST, RecentLists
from agentgit.store.transfer.file_trees import unbased
from agentgit.store.transfer.json_checks import readable_message, require_flat, stored_message
from agentgit.store.transfer.lines import PART_BYTES
from agentgit.values import as_object, to_json

TYPES = frozenset({*READERS, MSGPACK, MESSAGE_MSGPACK, SEALED, RECORD, "null", "bytes", "bytearray"})
"""The types of values that agentgit writes; what is of another is not taken: a pickle, for example."""


PICKLE = b"pickle"
"""The name that LangGraph's serializer gives a pickle, if somebody allows it."""


class ListItems(NamedTuple):
    """A list that was read, with all of its items, and the list that it leans on."""

    key: bytes
    items: tuple[bytes, ...]
    base: bytes | None


class ValueReader:
    """Puts the values of an export together; one that comes in parts takes several records."""

    def __init__(self) -> None:
        self._recent = RecentLists()
        self._open: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """True while parts of a value are to come."""
        return self._open is not None

    def value(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Read a value; None if its parts are still to come.

        Raises:
            ValueError: It is none, or does not match its hash.
        """
        if sum(fields[name] is not None for name in ("text", "data", "parts")) != 1:
            raise ValueError("must have exactly one of text, data and parts")
        if fields["parts"] is not None:
            if not 1 < fields["parts"] <= LARGEST // PART_BYTES:
                raise ValueError(f"cannot have {fields['parts']} parts")
            self._open = dict(fields)
            return None
        data = fields["text"].encode() if fields["text"] is not None else unbased(fields["data"])
        return _leaf(fields, data)

    def part(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Read a part; give the value if it is the last one."""
        assert self._open is not None  # noqa: S101  # whoever calls has looked
        data = unbased(fields["data"])
        if len(data) > PART_BYTES:
            raise ValueError(f"has more than {PART_BYTES} bytes")
        self._parts.append(data)
        if len(self._parts) < self._open["parts"]:
            return None
        found = _leaf(self._open, b"".join(self._parts))
        self._open, self._parts = None, []
        return found

    def list(self, fields: Mapping[str, Any]) -> ListItems:
        """Read a list.

        Raises:
            ValueError: It leans on one that did not come shortly before, or does not match its hash.
        """
        base = self._recent.get(fields["base"]) if fields["base"] is not None else ()
        if base is None or fields["keep"] > len(base):
            raise ValueError("continues a list that did not come shortly before it")
        items = (*base[: fields["keep"]], *fields["items"])
        if list_hash(items) != fields["id"]:
            raise ValueError("does not match its hash")
        self._recent.add(fields["id"], items)
        return ListItems(fields["id"], items, fields["base"])


def _leaf(fields: Mapping[str, Any], data: bytes) -> Leaf:
    if fields["type"] in (LIST, CHUNK) or fields["type"] not in TYPES:
        raise ValueError(f"has type {fields['type']!r}, which agentgit does not write")
    if fields["type"] == SEALED and data.partition(b"\0")[0] == PICKLE:
        raise ValueError("is a pickle, which is not imported because reading it can run any code")
    found = leaf(fields["type"], data)
    if found.hash != fields["id"]:
        raise ValueError("does not match its hash")
    return found


def require_readable(value: Leaf) -> None:
    """Read a value as people are shown it; that builds no objects.

    Raises:
        ValueError: It cannot be read.
    """
    try:
        if value.type == RECORD:
            if not all(type(name) is str for name in unpack(value.data)):
                raise ValueError("has a name that is not text")
            return
        shown = show(value)
        if value.type in READERS:
            require_flat(shown)
        if value.type in RUNS and type(shown) is not list:
            raise ValueError("is not a list")
        if value.type in MESSAGES:
            stored_message(structure(value.data) if value.type == MESSAGE_MSGPACK else shown)
    except Exception as error:  # its bytes may lead to anything
        raise ValueError(f"of type {value.type} cannot be read ({_why(error)})") from error


def is_message(value: Leaf) -> bool:
    """Return whether a value that was read can be an item of a conversation."""
    if value.type in MESSAGES or value.type == SEALED:
        return True
    try:
        return value.type == MSGPACK and bool(readable_message(show_message(value)))
    except (ValueError, TypeError, LookupError, AttributeError):  # its bytes may be of anything
        return False


def _why(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__


Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ImportedRows:
    """Makes the rows of one imported session.

    Args:
        tenant_id: The tenant.
        user_id: The user who owns the new session.
        session_id: The new id of the session.
        ids: For each kind of record, the new id of each old one.
        seen: The length of the world log. Every branch is up to date with it.
        files: The new place of each tree of files; None leaves them out.
        snapshots: For each checkpoint with files, its snapshot, by their old ids.
    """

    tenant_id: int
    user_id: int
    session_id: int
    ids: Mapping[str, Mapping[int, int]]
    seen: int
    files: Mapping[int, FilesAt] | None = None
    snapshots: Mapping[int, int] = field(default_factory=dict)

    def _id(self, kind: str, old: int | None) -> int | None:
        return None if old is None else self.ids[kind][old]

    def _branch_thread(self, old: int) -> str:
        return thread_of(self.ids["branch"][old])

    def session(self, record: Record, name: str) -> dict[str, Any]:
        """Make the row of the session."""
        return {
            "tenant_id": self.tenant_id,
            "id": self.session_id,
            "user_id": self.user_id,
            "session_name": name,
            "created_at": record["created_at"],
            "updated_at": datetime.now(UTC),
            "is_active": True,
            "current_branch_id": self.ids["branch"][record["current"]],
            "meta": to_json({}),
        }

    def branch(self, record: Record) -> dict[str, Any]:
        """Make the row of a branch."""
        return {
            "tenant_id": self.tenant_id,
            "id": self._id("branch", record["id"]),
            "external_session_id": self.session_id,
            "thread_id": self._branch_thread(record["id"]),
            "name": record["name"],
            "status": OPEN,
            "owner": None,
            "epoch": 0,
            "world_seen": self.seen,
            "head_id": self._id("checkpoint", record["head"]),
            "parent_id": self._id("branch", record["parent"]),
            "branch_point_id": self._id("checkpoint", record["point"]),
            "inherited": record["inherited"],
            "created_at": record["created_at"],
            "meta": to_json(json_checks.moved_metadata(json_checks.checked_metadata(record["meta"]), self.ids)),
        }

    def state(self, record: Record) -> dict[str, Any]:
        """Make the row of a graph checkpoint."""
        return {
            "tenant_id": self.tenant_id,
            "thread_id": self._branch_thread(record["branch"]),
            "ns": record["ns"],
            "checkpoint_id": record["id"],
            "seq": record["seq"],
            "parent_id": record["parent"],
            "root_id": record["root"],
            "run_id": record["run"],
            "message_count": record["messages"],
            "meta": compact(record["meta"]),
            "header": compact(record["header"]),
            "channels": pack(record["channels"]),
            "state_hash": record["state_hash"],
        }

    def write(self, record: Record) -> dict[str, Any]:
        """Make the row of a pending write."""
        return {
            "tenant_id": self.tenant_id,
            "thread_id": self._branch_thread(record["branch"]),
            "ns": record["ns"],
            "checkpoint_id": record["state"],
            "task_id": record["task"],
            "idx": record["idx"],
            "task_path": record["path"],
            "channel": record["channel"],
            "value": b"".join(record["value"]),
        }

    def checkpoint(self, record: Record) -> dict[str, Any]:
        """Make the row of a checkpoint."""
        return {
            "tenant_id": self.tenant_id,
            "id": self._id("checkpoint", record["id"]),
            "internal_session_id": self._id("branch", record["branch"]),
            "number": record["number"],
            "name": record["name"],
            "description": record["description"],
            "kind": record["kind"],
            "is_auto": record["is_auto"],
            "user_id": self.user_id,
            "created_at": record["created_at"],
            "graph_checkpoint_id": record["state"],
            "state_hash": record["state_hash"] or b"",
            "position": record["position"],
            "message_count": record["messages"],
            "restore_point": record["restore_point"],
            "data": self._data(record["data"]),
            "workspace_snapshot_id": self._id("snapshot", self.snapshots.get(record["id"])),
            "pending": _pending(record["pending"]),
        }

    def has(self, snapshot: Record) -> bool:
        """Return whether the files of a snapshot came along."""
        return self.files is not None and snapshot["tree"] is not None

    def snapshot(self, record: Record) -> dict[str, Any]:
        """Make the row of a snapshot, which nobody has looked at here."""
        at = (self.files or {})[record["tree"]]
        return {
            "tenant_id": self.tenant_id,
            "id": self._id("snapshot", record["id"]),
            "external_session_id": self.session_id,
            "internal_session_id": self._id("branch", record["branch"]),
            "snapshot": at.snapshot,
            "settings": to_json(at.settings),
            "created_at": record["created_at"],
        }

    def _data(self, data: bytes | None) -> bytes | None:
        """Return what was kept with a checkpoint; what a merge brought to it has another id here."""
        source = merged_by(data)
        if data is None or source is None or source not in self.ids["checkpoint"]:
            return data  # that branch is not in the export: it cannot be merged again here
        facts = as_object(data)
        return to_json({**facts, MERGED: {**facts[MERGED], "checkpoint": self.ids["checkpoint"][source]}})

    def tag(self, record: Record) -> dict[str, Any]:
        """Make the row of a tag."""
        return {
            "tenant_id": self.tenant_id,
            "external_session_id": self.session_id,
            "name": record["name"],
            "checkpoint_id": self._id("checkpoint", record["checkpoint"]),
            "description": record["description"],
            "user_id": self.user_id,
            "created_at": record["created_at"],
        }

    def call(self, record: Record) -> dict[str, Any]:
        """Make the row of a call, which is marked as one that was made elsewhere."""
        return {
            "tenant_id": self.tenant_id,
            "id": self._id("call", record["id"]),
            "external_session_id": self.session_id,
            "internal_session_id": self._id("branch", record["branch"]),
            "arrival": record["arrival"],
            "batch": record["batch"],
            "batch_index": record["batch_index"],
            "tool_name": record["tool"],
            "tool_call_id": record["tool_call_id"],
            "effect": record["effect"],
            "status": record["status"],
            "args": record["args"],
            "result": record["result"][0] if record["result"] else None,
            "error_message": record["error"],
            "started_at": record["started_at"],
            "ended_at": record["ended_at"],
            "idempotency_key": record["key"],
            "undo": None,
            "verify": None,
            "precheck": None,
            "owner": None,
            "kind": record["kind"],
            "identity": record["identity"],
            "replay_of": self._id("call", record["replay_of"]),
            "answers": to_json(record["answers"]) if record["answers"] is not None else None,
            "made_on": record["made_on"],
        }

    def operation(self, record: Record) -> dict[str, Any]:
        """Make the row of an operation, which is history: it is done, and never goes on."""
        calls = self.ids["call"]
        request = record["request"] | {
            "accepted": [calls[id] for id in record["accepted"]],
            "steps": [{**step, "invocation": calls[step["invocation"]]} for step in record["steps"]],
            "files": None,
            "files_known": None,
        }
        report = {
            group: [{**item, "invocation": calls[item["invocation"]]} for item in items]
            for group, items in record["report"].items()
        }
        return {
            "tenant_id": self.tenant_id,
            "id": self._id("operation", record["id"]),
            "external_session_id": self.session_id,
            "user_id": self.user_id,
            "kind": record["kind"],
            "status": DONE,
            "request_id": record["request_id"],
            "source_id": self._id("branch", record["source"]),
            "target_id": self.ids["checkpoint"].get(record["target"], 0),
            "internal_session_id": self._id("branch", record["branch"]),
            "owner": None,
            "request": to_json(request),
            "report": to_json({**report, "files": None}),
            "created_at": record["created_at"],
            "ended_at": record["ended_at"],
        }

    def log(self, record: Record) -> dict[str, Any]:
        """Make the row of an entry of the world log."""
        return {
            "tenant_id": self.tenant_id,
            "external_session_id": self.session_id,
            "seq": record["seq"],
            "invocation_id": self._id("call", record["call"]),
            "action": record["action"],
            "operation_id": self._id("operation", record["operation"]),
            "created_at": record["created_at"],
        }


def _pending(places: Sequence[Record] | None) -> bytes | None:
    """Write the pending writes of a checkpoint as `agentgit.store.threads.pending_writes` keeps them."""
    if places is None:
        return None
    return pending_writes.pack([at["ns"], at["state"], [_kept(write) for write in at["writes"]]] for at in places)


def _kept(write: Record) -> list[Any]:
    return [write["task"], write["idx"], write["path"], write["channel"], b"".join(write["value"]).hex()]


def thread_of(branch_id: int) -> str:
    """Name the LangGraph thread of a branch."""
    return f"agentgit-{branch_id}"


def new_ids(old: Mapping[str, set[int]]) -> dict[str, dict[int, int]]:
    """Make a new id for each old one, in the same order."""
    return {kind: {id: new_id() for id in sorted(ids)} for kind, ids in old.items()}
