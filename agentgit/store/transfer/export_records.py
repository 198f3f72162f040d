"""Conversion of rows to records of an export; see `agentgit.store.transfer.records` for their fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Row

from agentgit.checkpoints.queries import Tag
from agentgit.effects.invocation import INTENDED, REVERSE_UNKNOWN, REVERSING, UNKNOWN
from agentgit.effects.report import GROUPS
from agentgit.sessions.session import IMPORTED, RERUN
from agentgit.store.objects.blobs import unpack
from agentgit.store.objects.packing import split_hashes
from agentgit.store.threads import pending_writes
from agentgit.store.transfer.records import SETTINGS
from agentgit.values import as_object, stored_json

Record = dict[str, Any]

EXPORTED_STATUS = {INTENDED: UNKNOWN, REVERSING: REVERSE_UNKNOWN}
"""The status to export for a call in progress, by its status. An importer cannot find out how the call ended."""


def branch_record(row: Row[Any], **other: Any) -> Record:
    """Return the record of a branch."""
    return {
        "record": "branch",
        "id": row.id,
        "name": row.name,
        "parent": row.parent_id,
        "point": row.branch_point_id,
        "inherited": row.inherited,
        "head": row.head_id,
        "created_at": row.created_at.isoformat(),
        "meta": as_object(row.meta),
        **other,
    }


def state_record(row: Mapping[str, Any], branch_id: int, **other: Any) -> Record:
    """Return the record of a graph checkpoint."""
    channels = {name: value.hex() for name, value in unpack(row["channels"]).items()}
    return {
        "record": "state",
        "branch": branch_id,
        "ns": row["ns"],
        "id": row["checkpoint_id"],
        "seq": row["seq"],
        "parent": row["parent_id"],
        "root": row["root_id"],
        "run": row["run_id"],
        "messages": row["message_count"],
        "meta": stored_json(row["meta"]),
        "header": {name: value for name, value in as_object(row["header"]).items() if name != IMPORTED},
        "channels": channels,
        "state_hash": row["state_hash"].hex(),
        **other,
    }


def write_record(row: Mapping[str, Any], branch_id: int) -> Record:
    """Return the record of a pending write."""
    return {
        "record": "write",
        "branch": branch_id,
        "ns": row["ns"],
        "state": row["checkpoint_id"],
        "task": row["task_id"],
        "idx": row["idx"],
        "path": row["task_path"],
        "channel": row["channel"],
        "value": [key.hex() for key in split_hashes(row["value"])],
    }


def checkpoint_record(row: Row[Any], **other: Any) -> Record:
    """Return the record of a checkpoint."""
    return {
        "record": "checkpoint",
        "id": row.id,
        "branch": row.internal_session_id,
        "number": row.number,
        "name": row.name,
        "description": row.description,
        "kind": row.kind,
        "is_auto": row.is_auto,
        "created_at": row.created_at.isoformat(),
        "state": row.graph_checkpoint_id,
        "state_hash": row.state_hash.hex() or None,
        "position": row.position,
        "messages": row.message_count,
        "restore_point": row.restore_point,
        "data": stored_json(row.data) if row.data is not None else None,
        "pending": _pending_records(row),
        **other,
    }


def _pending_records(row: Row[Any]) -> list[Record] | None:
    """Return the pending writes that a checkpoint recorded; None if it did not record them."""
    pending = pending_writes.unpack(row.pending, f"checkpoint {row.id}")
    if pending is None:
        return None
    return [
        {
            "ns": pending_at.ns,
            "state": pending_at.checkpoint_id,
            "writes": [_pending_write_record(write) for write in pending_at.writes],
        }
        for pending_at in pending
    ]


def _pending_write_record(write: Mapping[str, Any]) -> Record:
    return {
        "task": write["task_id"],
        "idx": write["idx"],
        "path": write["task_path"],
        "channel": write["channel"],
        "value": [key.hex() for key in split_hashes(write["value"])],
    }


def tag_record(tag: Tag) -> Record:
    """Return the record of a tag."""
    return {
        "record": "tag",
        "name": tag.name,
        "checkpoint": tag.checkpoint_id,
        "description": tag.description,
        "created_at": tag.created_at.isoformat(),
    }


def snapshot_record(row: Row[Any], **other: Any) -> Record:
    """Return the record of a snapshot, without the location of its workspace."""
    return {
        "record": "snapshot",
        "id": row.id,
        "branch": row.internal_session_id,
        "created_at": row.created_at.isoformat(),
        **other,
    }


def call_record(row: Row[Any], **other: Any) -> Record:
    """Return the record of a call, without the names of its functions: a file must not choose functions to run."""
    return {
        "record": "call",
        "id": row.id,
        "branch": row.internal_session_id,
        "made_on": row.made_on or row.internal_session_id,
        "arrival": row.arrival,
        "batch": row.batch,
        "batch_index": row.batch_index,
        "tool": row.tool_name,
        "tool_call_id": row.tool_call_id,
        "effect": row.effect,
        "status": EXPORTED_STATUS.get(row.status, row.status),
        "args": stored_json(row.args),
        "result": [stored_json(row.result)] if row.result is not None else [],
        "error": row.error_message,
        "started_at": row.started_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "key": row.idempotency_key,
        "kind": row.kind,
        "identity": row.identity,
        "replay_of": row.replay_of,
        "parent": row.parent_id,
        "answers": _answers_record(row.answers),
        **other,
    }


def _answers_record(answers: bytes | None) -> Any:
    """Return what a call recorded about answers, without the tasks and graphs that it ran, which a turn needs."""
    if answers is None:
        return None
    return {name: value for name, value in as_object(answers).items() if name not in ("calls", "graphs")}


def operation_record(row: Row[Any]) -> Record:
    """Return the record of a finished operation, without its files, because they are not exported."""
    request, report = as_object(row.request), as_object(row.report)
    groups = {group: _without_next_steps(report.get(group, ())) for group in GROUPS}
    return {
        "record": "operation",
        "id": row.id,
        "kind": row.kind,
        "request_id": row.request_id,
        "source": row.source_id,
        "target": row.target_id,
        "branch": row.internal_session_id,
        "created_at": row.created_at.isoformat(),
        "ended_at": row.ended_at.isoformat() if row.ended_at else None,
        "request": {name: value for name, value in request.items() if name in SETTINGS and value is not None},
        "steps": _without_next_steps(request["steps"]),
        "accepted": request.get("accepted", []),
        "report": report if row.kind == RERUN else groups,
    }


def log_record(row: Row[Any], **other: Any) -> Record:
    """Return the record of an entry of the world log."""
    return {
        "record": "log",
        "seq": row.seq,
        "call": row.invocation_id,
        "action": row.action,
        "operation": row.operation_id,
        "created_at": row.created_at.isoformat(),
        **other,
    }


def referenced_hashes(states: Iterable[Mapping[str, Any]], writes: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return the hashes of the values that graph checkpoints and pending writes refer to."""
    state_hashes = [key for row in states for key in unpack(row["channels"]).values()]
    return state_hashes + [key for row in writes for key in split_hashes(row["value"])]


def _without_next_steps(items: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of an operation without what to do next, which names calls of this database."""
    return [{name: value for name, value in item.items() if name != "next"} for item in items]
