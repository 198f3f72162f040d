"""The records of an export as rows: with ids of their own, on threads of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from agentgit.effects.files import FilesAt
from agentgit.sessions.operation import DONE
from agentgit.sessions.session import OPEN
from agentgit.store.objects.blobs import compact, pack
from agentgit.store.records.checkpoints import MERGED, merged_by
from agentgit.store.sql.ids import new_id
from agentgit.store.threads import pending_writes
from agentgit.store.transfer import branch_metadata
from agentgit.values import as_object, to_json

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
            "meta": to_json(branch_metadata.moved(branch_metadata.checked(record["meta"]), self.ids)),
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
