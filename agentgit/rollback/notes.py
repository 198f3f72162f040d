"""Notes for a model about changes in the world; a note is kept with the branch until a message can carry it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from agentgit.effects import RollbackPlan
from agentgit.effects.plan import GONE, REDO
from agentgit.effects.report import ReportItem
from agentgit.store.records.sessions import Found
from agentgit.store.store import Store
from agentgit.values import as_object

CHANGED = "world_note"
"""The key in a branch's metadata for the differences from its conversation that a switch with sync="note" found."""

DRIFTED = "world_drift"
"""The key for the calls that ran again and returned something else than the conversation has, by their id."""

TOLD: Mapping[str, Any] = {CHANGED: None, DRIFTED: None}
"""The facts of a branch whose model was told."""


def at_switch(meta: Mapping[str, Any], plan: RollbackPlan, sync: str) -> dict[str, Any]:
    """Return the facts of a branch that is switched to: what was to be told before may not hold any more.

    Args:
        meta: The metadata of the branch.
        plan: The plan that would bring the world to it.
        sync: One of `SYNC_MODES`.
    """
    moved = {str(step.invocation.first_id) for step in plan.steps}
    waiting = {} if sync == "ignore" else meta.get(DRIFTED) or {}
    drifted = {call: said for call, said in waiting.items() if call not in moved}
    return {CHANGED: _changed(plan) if sync == "note" else None, DRIFTED: drifted}


def after_drift(meta: Mapping[str, Any], items: Sequence[ReportItem]) -> dict[str, Any]:
    """Return the facts of a branch some of whose calls ran again and returned something else.

    Args:
        meta: The metadata of the branch.
        items: These calls, with what they returned.
    """
    said = {str(item.invocation.first_id): f"- {item.invocation} ran again: {item.reason}" for item in items}
    return {DRIFTED: {**(meta.get(DRIFTED) or {}), **said}}


def waiting(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return what waits to be told, for a branch that goes on with the same conversation.

    Args:
        meta: The metadata of the branch that is left.
    """
    return {name: meta.get(name) for name in TOLD}


def note_of(meta: Mapping[str, Any]) -> str | None:
    """Return what the model of a branch is to be told; None if there is nothing.

    Args:
        meta: The metadata of the branch.
    """
    drifted = meta.get(DRIFTED) or {}
    again = ["Calls of this conversation ran again and returned something different:", *drifted.values()]
    parts = [meta.get(CHANGED), "\n".join(again) if drifted else None]
    return "\n".join(part for part in parts if part) or None


def renote(store: Store, connection: Connection, branch: Found, facts: Mapping[str, Any]) -> None:
    """Write down what the model of a branch is to be told now, if that is something else than before.

    Args:
        store: The store of the database.
        connection: A connection in a transaction that writes.
        branch: The row of the branch.
        facts: As `at_switch` and `after_drift` give them.
    """
    meta = as_object(branch.meta)
    if any((meta.get(name) or None) != (fact or None) for name, fact in facts.items()):
        store.sessions.note(connection, branch.id, facts)


def _changed(plan: RollbackPlan) -> str | None:
    """Describe how the world differs from what a conversation tells."""
    lines = [f"- {step.invocation} was reversed" for step in plan.steps if step.action in (REDO, GONE)]
    lines += [f"- {step.invocation} was done elsewhere" for step in plan.steps if step.action not in (REDO, GONE)]
    return "\n".join(["Since the last turn of this conversation, the world has changed:", *lines]) if lines else None
