"""Notes that tell a model about changes in the world. They are stored with the branch until a message carries them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan
from agentgit.effects.plan import GONE, REDO
from agentgit.effects.report import ReportItem
from agentgit.store.records.sessions import StoredRow
from agentgit.store.store import Store
from agentgit.values import as_object

CHANGED = "world_note"
"""The key in a branch's metadata for how the world differs from the conversation, as a sync="note" switch found it."""

DRIFTED = "world_drift"
"""The key for the calls that ran again and returned something different from the conversation, by the call's id."""

DELIVERED: Mapping[str, Any] = {CHANGED: None, DRIFTED: None}
"""The metadata of a branch whose notes have been delivered."""


def at_switch(meta: Mapping[str, Any], plan: RollbackPlan, sync: str) -> dict[str, Any]:
    """Return the notes of the branch that a switch leads to, without earlier notes that no longer apply."""
    changed_ids = {str(step.invocation.first_id) for step in plan.steps}
    undelivered = {} if sync == "ignore" else meta.get(DRIFTED) or {}
    drifted = {call_id: note for call_id, note in undelivered.items() if call_id not in changed_ids}
    return {CHANGED: _describe_changes(plan) if sync == "note" else None, DRIFTED: drifted}


def after_drift(meta: Mapping[str, Any], items: Sequence[ReportItem]) -> dict[str, Any]:
    """Return the notes of a branch with calls that ran again and returned something different."""
    drift_notes = {str(item.invocation.first_id): f"- {item.invocation} ran again: {item.reason}" for item in items}
    return {DRIFTED: {**(meta.get(DRIFTED) or {}), **drift_notes}}


def undelivered_notes(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the undelivered notes, for a new branch that continues the same conversation."""
    return {name: meta.get(name) for name in DELIVERED}


def note_for_model(meta: Mapping[str, Any]) -> str | None:
    """Return the note for the model of a branch; None if there is none."""
    drifted = meta.get(DRIFTED) or {}
    drift_lines = ["Calls of this conversation ran again and returned something different:", *drifted.values()]
    parts = [meta.get(CHANGED), "\n".join(drift_lines) if drifted else None]
    return "\n".join(part for part in parts if part) or None


def store_notes(store: Store, connection: Connection, branch: StoredRow, notes: Mapping[str, Any]) -> None:
    """Store the notes of a branch, if they have changed."""
    meta = as_object(branch.meta)
    if any((meta.get(name) or None) != (note or None) for name, note in notes.items()):
        store.sessions.merge_metadata(connection, branch.id, notes)


def _describe_changes(plan: RollbackPlan) -> str | None:
    """Describe how the world differs from the conversation; None if it does not."""
    lines = [f"- {step.invocation} was reversed" for step in plan.steps if step.action in (REDO, GONE)]
    lines += [f"- {step.invocation} was done elsewhere" for step in plan.steps if step.action not in (REDO, GONE)]
    return "\n".join(["Since the last turn of this conversation, the world has changed:", *lines]) if lines else None
