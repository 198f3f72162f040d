"""Helpers for the tests of exports: they compare two sessions and forge files."""

from __future__ import annotations

import json
from collections.abc import Callable
from io import BytesIO
from typing import Any

import backend
from sqlalchemy import func, select

from agentgit import Checkpoint, InternalSession
from agentgit.store.sql.tables import BRANCH, METADATA, TOOL_INVOCATION, WORLD_LOG
from agentgit.store.transfer.lines import LineWriter

ITS_OWN = ("id", "internal_session_id", "replay_of", "made_on", "undo", "verify", "precheck", "tool_path", "enclosing")
"""The fields of a call that an import changes."""


def carried(source: Any, ref: Any, target: Any, name: str | None = None, **how: Any) -> Any:
    return target.import_(BytesIO(written(source, ref, **how)), session=name)


def written(repo: Any, ref: Any, **how: Any) -> bytes:
    file = BytesIO()
    if isinstance(ref, Checkpoint):
        repo.session(checkpoint=ref).export(file, checkpoint=ref, **how)
    elif isinstance(ref, InternalSession):
        repo.session(ref.external_session_id).export(file, branch=ref, **how)
    else:
        repo.session(ref).export(file, **how)
    return file.getvalue()


def call(found: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a call that an import keeps."""
    return {name: value for name, value in found.items() if name not in ITS_OWN}


def point(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint with the fields that an import changes removed or set to 0."""
    found = checkpoint.to_dict()
    calls = [call(one) for one in found["tool_invocations"]]
    metadata = {name: value for name, value in found["metadata"].items() if name != "workspace_snapshot"}
    return {**found, "id": 0, "internal_session_id": 0, "user_id": 0, "tool_invocations": calls, "metadata": metadata}


def path(repo: Any, session: Any, branch: str) -> list[dict[str, Any]]:
    """Return the contents of the checkpoints on a branch, and its tool track."""
    return [
        *map(point, repo.session(session).checkpoints(branch=branch)),
        *(call(c.to_dict()) for c in repo.session(session).tool_track(branch=branch)),
    ]


def world(repo: Any, session: Any) -> list[tuple[Any, ...]]:
    """Return each call ever made in a session, and its world log."""
    session_id = repo.session(session).id
    with backend.reading(repo) as transaction:
        of = TOOL_INVOCATION.c.external_session_id == session_id
        names = {row.id: row.name for row in transaction.execute(select(BRANCH.c.id, BRANCH.c.name))}
        rows = transaction.execute(select(TOOL_INVOCATION).where(of).order_by(TOOL_INVOCATION.c.id)).all()
        known = {row.id: (names[row.internal_session_id], row.arrival) for row in rows}
        of = WORLD_LOG.c.external_session_id == session_id
        found = transaction.execute(select(WORLD_LOG).where(of).order_by(WORLD_LOG.c.seq))
        log = [(known[row.invocation_id], row.action) for row in found]
    facts = [
        (known[row.id], row.tool_name, row.status, row.effect, row.kind, row.identity, row.idempotency_key,
         known.get(row.replay_of), row.args, row.result, row.answers)
        for row in rows
    ]  # fmt: skip
    return [*facts, *log]


def everything(repo: Any, session: Any) -> dict[str, Any]:
    """Return everything that users can see of a session."""
    branches = repo.session(session).branches()
    return {
        "branches": [(b.name, b.is_current, b.status, b.session_state, b.conversation_history) for b in branches],
        "paths": {b.name: path(repo, session, b.name) for b in branches},
        "world": world(repo, session),
        "tree": str(repo.session(session).tree()).partition(":")[2],
        "operations": [(one.kind, one.status, one.request_id) for one in repo.session(session).operations()],
    }


def rows(repo: Any) -> dict[str, int]:
    with backend.reading(repo) as transaction:
        return {
            name: transaction.execute(select(func.count()).select_from(table)).scalar_one()
            for name, table in METADATA.tables.items()
        }


def forged(data: bytes, change: Callable[[list[dict[str, Any]]], None]) -> BytesIO:
    """Change the records of an export, and compute a valid hash for the changed file."""
    records = [json.loads(line) for line in data.splitlines()[:-1]]
    change(records)
    file = BytesIO()
    writer = LineWriter(file)
    for record in records:
        writer.write(record)
    writer.end()
    file.seek(0)
    return file


SHORT = {
    "session": "external_session", "branch": "internal_session", "state": "graph_checkpoint", "write": "graph_write",
    "call": "tool_invocation", "log": "world_log", "snapshot": "workspace_snapshot",
}  # fmt: skip
"""Short names of tables."""


def of(records: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """Return the records of a kind: a table, `value` or `list`."""
    if kind in ("value", "list"):
        return [one for one in of(records, "blob") if (one["type"] == "list") == (kind == "list")]
    return [record for record in records if record.get("record") == SHORT.get(kind, kind)]
