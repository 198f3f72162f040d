"""Conversion of the records and values of an export to rows with new ids and thread ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

from agentgit.effects.files import STORED, SnapshotRef
from agentgit.sessions.session import DONE, IMPORTED, RERUN, idle_status
from agentgit.store.objects.blobs import RECORD, Leaf, compact, leaf, list_hash, pack, unpack
from agentgit.store.objects.packing import CHUNK
from agentgit.store.objects.plain_values import (
    CUSTOM_SERDE,
    MESSAGE_MSGPACK,
    MESSAGES,
    MSGPACK,
    READERS,
    RUNS,
    read_plain_msgpack,
    show,
    show_message,
)
from agentgit.store.records.checkpoints import MERGE_KEY, merge_source_id
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import LIST
from agentgit.store.threads import pending_writes
from agentgit.store.threads.owners import thread_of_branch
from agentgit.store.transfer import json_checks
from agentgit.store.transfer.export_states import MAX_VALUE_BYTES, RecentLists
from agentgit.store.transfer.file_trees import decode_base64
from agentgit.store.transfer.json_checks import readable_message, require_flat, stored_message
from agentgit.store.transfer.lines import PART_BYTES
from agentgit.store.transfer.rerun_records import remap_report
from agentgit.values import as_object, to_json

VALUE_TYPES = frozenset({*READERS, MSGPACK, MESSAGE_MSGPACK, CUSTOM_SERDE, RECORD, "null", "bytes", "bytearray"})
"""The types of values that agentgit writes. A value of any other type, such as a pickle, is refused."""


PICKLE = b"pickle"
"""The type that LangGraph's serializer gives to a pickle, if pickles are enabled."""


class ListItems(NamedTuple):
    """A list with all of its items, and the list that it continues."""

    key: bytes
    items: tuple[bytes, ...]
    base: bytes | None


class ValueReader:
    """Reads the values of an export. A value in parts takes several records."""

    def __init__(self) -> None:
        self._recent = RecentLists()
        self._open_value: dict[str, Any] | None = None
        self._parts: list[bytes] = []

    @property
    def is_open(self) -> bool:
        """True while more parts of a value must follow."""
        return self._open_value is not None

    def read_value(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Return a value; None if its parts follow."""
        if sum(fields[name] is not None for name in ("text", "data", "parts")) != 1:
            raise ValueError("must have exactly one of text, data and parts")
        if fields["parts"] is not None:
            if not 1 < fields["parts"] <= MAX_VALUE_BYTES // PART_BYTES:
                raise ValueError(f"cannot have {fields['parts']} parts")
            self._open_value = dict(fields)
            return None
        data = fields["text"].encode() if fields["text"] is not None else decode_base64(fields["data"])
        return _make_leaf(fields, data)

    def read_part(self, fields: Mapping[str, Any]) -> Leaf | None:
        """Add a part; return the value if the part is the last one."""
        assert self._open_value is not None  # noqa: S101  # the caller checks `is_open`
        data = decode_base64(fields["data"])
        if len(data) > PART_BYTES:
            raise ValueError(f"has more than {PART_BYTES} bytes")
        self._parts.append(data)
        if len(self._parts) < self._open_value["parts"]:
            return None
        value = _make_leaf(self._open_value, b"".join(self._parts))
        self._open_value, self._parts = None, []
        return value

    def read_list(self, fields: Mapping[str, Any]) -> ListItems:
        """Return a list with all of its items."""
        base_items = self._recent.get(fields["base"]) if fields["base"] is not None else ()
        if base_items is None or fields["keep"] > len(base_items):
            raise ValueError("continues a list that did not come shortly before it")
        items = (*base_items[: fields["keep"]], *fields["items"])
        if list_hash(items) != fields["id"]:
            raise ValueError("does not match its hash")
        self._recent.add(fields["id"], items)
        return ListItems(fields["id"], items, fields["base"])


def _make_leaf(fields: Mapping[str, Any], data: bytes) -> Leaf:
    if fields["type"] in (LIST, CHUNK) or fields["type"] not in VALUE_TYPES:
        raise ValueError(f"has type {fields['type']!r}, which agentgit does not write")
    if fields["type"] == CUSTOM_SERDE and data.partition(b"\0")[0] == PICKLE:
        raise ValueError("is a pickle, which is not imported because reading it can run any code")
    value = leaf(fields["type"], data)
    if value.hash != fields["id"]:
        raise ValueError("does not match its hash")
    return value


def require_readable(value: Leaf) -> None:
    """Check that a value can be displayed. The check creates no objects from the value's data."""
    try:
        if value.type == RECORD:
            if not all(type(name) is str for name in unpack(value.data)):
                raise ValueError("has a name that is not text")
            return
        displayed = show(value)
        if value.type in READERS:
            require_flat(displayed)
        if value.type in RUNS and type(displayed) is not list:
            raise ValueError("is not a list")
        if value.type in MESSAGES:
            stored_message(read_plain_msgpack(value.data) if value.type == MESSAGE_MSGPACK else displayed)
    except Exception as error:  # untrusted bytes may cause any exception
        raise ValueError(f"of type {value.type} cannot be read ({_describe_error(error)})") from error


def is_message(value: Leaf) -> bool:
    """Return whether a value that passed `require_readable` can be an item of a conversation."""
    if value.type in MESSAGES or value.type == CUSTOM_SERDE:
        return True
    try:
        return value.type == MSGPACK and bool(readable_message(show_message(value)))
    except (ValueError, TypeError, LookupError, AttributeError):  # untrusted bytes
        return False


def _describe_error(error: Exception) -> str:
    return str(error) if type(error) is ValueError else type(error).__name__


Record = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ImportedRows:
    """Makes the rows of one imported session."""

    user_id: int
    session_id: int
    ids: Mapping[str, Mapping[int, int]]
    world_log_end: int
    files: Mapping[int, SnapshotRef] | None = None
    snapshots: Mapping[int, int] = field(default_factory=dict)

    def _new_id(self, kind: str, old_id: int | None) -> int | None:
        return None if old_id is None else self.ids[kind][old_id]

    def _branch_thread(self, old_id: int) -> str:
        return thread_of_branch(self.ids["branch"][old_id])

    def session(self, record: Record, name: str) -> dict[str, Any]:
        """Return the row of the session."""
        return {
            "id": self.session_id,
            "user_id": self.user_id,
            "session_name": name,
            "created_at": record["created_at"],
            "updated_at": datetime.now(UTC),
            "is_active": True,
            "current_branch_id": self.ids["branch"][record["current"]],
            "meta": to_json({IMPORTED: True}),
        }

    def branch(self, record: Record) -> dict[str, Any]:
        """Return the row of a branch."""
        meta = json_checks.remap_metadata(json_checks.check_metadata(record["meta"]), self.ids)
        return {
            "id": self._new_id("branch", record["id"]),
            "external_session_id": self.session_id,
            "thread_id": self._branch_thread(record["id"]),
            "name": record["name"],
            "status": idle_status(meta),
            "owner": None,
            "epoch": 0,
            "world_seen": self.world_log_end,
            "head_id": self._new_id("checkpoint", record["head"]),
            "parent_id": self._new_id("branch", record["parent"]),
            "branch_point_id": self._new_id("checkpoint", record["point"]),
            "inherited": record["inherited"],
            "created_at": record["created_at"],
            "meta": to_json(meta),
        }

    def state(self, record: Record) -> dict[str, Any]:
        """Return the row of a graph checkpoint."""
        return {
            "thread_id": self._branch_thread(record["branch"]),
            "ns": record["ns"],
            "checkpoint_id": record["id"],
            "external_session_id": self.session_id,
            "seq": record["seq"],
            "parent_id": record["parent"],
            "root_id": record["root"],
            "run_id": None,
            "message_count": record["messages"],
            # LangGraph goes on with what waits if a run has the id that is recorded here, even if that is None.
            "meta": compact({name: value for name, value in record["meta"].items() if name != "run_id"}),
            "header": compact({**record["header"], IMPORTED: True}),
            "channels": pack(record["channels"]),
            "state_hash": record["state_hash"],
        }

    def write(self, record: Record) -> dict[str, Any]:
        """Return the row of a pending write."""
        return {
            "thread_id": self._branch_thread(record["branch"]),
            "ns": record["ns"],
            "checkpoint_id": record["state"],
            "task_id": record["task"],
            "idx": record["idx"],
            "external_session_id": self.session_id,
            "task_path": record["path"],
            "channel": record["channel"],
            "value": b"".join(record["value"]),
        }

    def checkpoint(self, record: Record) -> dict[str, Any]:
        """Return the row of a checkpoint."""
        return {
            "id": self._new_id("checkpoint", record["id"]),
            "internal_session_id": self._new_id("branch", record["branch"]),
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
            "workspace_snapshot_id": self._new_id("snapshot", self.snapshots.get(record["id"])),
            "pending": _pack_pending(record["pending"]),
        }

    def has_files(self, snapshot: Record) -> bool:
        """Return whether the files of a snapshot are imported."""
        return self.files is not None and snapshot["tree"] is not None

    def snapshot(self, record: Record) -> dict[str, Any]:
        """Return the row of a snapshot."""
        snapshot_ref = (self.files or {})[record["tree"]]
        return {
            "id": self._new_id("snapshot", record["id"]),
            "external_session_id": self.session_id,
            "internal_session_id": self._new_id("branch", record["branch"]),
            "snapshot": snapshot_ref.snapshot,
            "settings": to_json(snapshot_ref.settings),
            "changed_by": STORED,
            "created_at": record["created_at"],
        }

    def _data(self, data: bytes | None) -> bytes | None:
        """Return the data of a checkpoint, with the new id of the checkpoint that was merged into it."""
        source_id = merge_source_id(data)
        if data is None or source_id is None or source_id not in self.ids["checkpoint"]:
            return data  # the merged branch is not in the export, so it cannot be merged again here
        fields = as_object(data)
        return to_json({**fields, MERGE_KEY: {**fields[MERGE_KEY], "checkpoint": self.ids["checkpoint"][source_id]}})

    def tag(self, record: Record) -> dict[str, Any]:
        """Return the row of a tag."""
        return {
            "external_session_id": self.session_id,
            "name": record["name"],
            "checkpoint_id": self._new_id("checkpoint", record["checkpoint"]),
            "description": record["description"],
            "user_id": self.user_id,
            "created_at": record["created_at"],
        }

    def call(self, record: Record) -> dict[str, Any]:
        """Return the row of a call, with `made_on` set to mark it as imported."""
        return {
            "id": self._new_id("call", record["id"]),
            "external_session_id": self.session_id,
            "internal_session_id": self._new_id("branch", record["branch"]),
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
            "tool_path": None,
            "enclosing": None,
            "owner": None,
            "kind": record["kind"],
            "identity": record["identity"],
            "replay_of": self._new_id("call", record["replay_of"]),
            "answers": to_json(record["answers"]) if record["answers"] is not None else None,
            "made_on": record["made_on"],
            "parent_id": self._new_id("call", record["parent"]),
        }

    def operation(self, record: Record) -> dict[str, Any]:
        """Return the row of an operation. It is finished and is kept as history."""
        calls = self.ids["call"]
        request = record["request"] | {
            "accepted": [calls[id] for id in record["accepted"]],
            "steps": [{**step, "invocation": calls[step["invocation"]]} for step in record["steps"]],
            "files": None,
            "files_known": None,
        }
        if record["kind"] == RERUN:
            report = remap_report(record["report"], calls)
        else:
            groups = record["report"].items()
            report = {
                group: [{**item, "invocation": calls[item["invocation"]]} for item in items] for group, items in groups
            } | {"files": None}
        return {
            "id": self._new_id("operation", record["id"]),
            "external_session_id": self.session_id,
            "user_id": self.user_id,
            "kind": record["kind"],
            "status": DONE,
            "request_id": record["request_id"],
            "source_id": self._new_id("branch", record["source"]),
            "target_id": self.ids["checkpoint"].get(record["target"]),
            "internal_session_id": self._new_id("branch", record["branch"]),
            "owner": None,
            "request": to_json(request),
            "report": to_json(report),
            "created_at": record["created_at"],
            "ended_at": record["ended_at"],
        }

    def log(self, record: Record) -> dict[str, Any]:
        """Return the row of an entry of the world log."""
        return {
            "external_session_id": self.session_id,
            "seq": record["seq"],
            "invocation_id": self._new_id("call", record["call"]),
            "action": record["action"],
            "operation_id": self._new_id("operation", record["operation"]),
            "created_at": record["created_at"],
        }


def _pack_pending(entries: Sequence[Record] | None) -> bytes | None:
    """Return the pending writes of a checkpoint in the form of `agentgit.store.threads.pending_writes`."""
    if entries is None:
        return None
    return pending_writes.pack(
        [entry["ns"], entry["state"], [_pack_write(write) for write in entry["writes"]]] for entry in entries
    )


def _pack_write(write: Record) -> list[Any]:
    return [write["task"], write["idx"], write["path"], write["channel"], b"".join(write["value"]).hex()]


def new_ids(old_ids: Mapping[str, set[int]]) -> dict[str, dict[int, int]]:
    """Return a new id for each old one, by kind. The new ids sort like the old ones."""
    return {kind: {id: new_id() for id in sorted(ids)} for kind, ids in old_ids.items()}
