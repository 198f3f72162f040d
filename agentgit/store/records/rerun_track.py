"""The own track of a branch whose calls ran again: the runs take the places of the calls that they repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, select

from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import CALL, DONE, FAILED, INTENDED, REPLAY, REVERSED, UNKNOWN
from agentgit.store.records.journal import Journal
from agentgit.store.records.sessions import Found, SessionStore
from agentgit.store.sql import row_codes
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.slices import slices
from agentgit.store.sql.tables import TOOL_INVOCATION

SHOWN = {FAILED: FAILED, UNKNOWN: UNKNOWN, INTENDED: UNKNOWN, REVERSED: REVERSED}
"""The status that a call has where it was taken over from the record; DONE for all others."""


class PlacedCall(NamedTuple):
    """A place on the track.

    `row_id` is the call that has this place on the track of the parent, `original_id` the call that it stands for:
    itself, or the one whose result answered it. `run_id` is the run that takes its place; None if the record answers.
    """

    row_id: int
    original_id: int
    run_id: int | None


def place(
    connection: Connection, journal: Journal, sessions: SessionStore, branch_id: int, track: Sequence[PlacedCall]
) -> None:
    """Write a branch's own track, in place of the one that it inherits.

    Args:
        connection: A connection in a transaction that writes.
        journal: The store of the invocations.
        sessions: The store of the branches.
        branch_id: A branch that has made no calls except those that ran again.
        track: The calls of the track, in order.
    """
    ids = [one.row_id for one in track]
    found = [row for part in slices(ids) for row in _rows(connection, journal, TOOL_INVOCATION.c.id.in_(part))]
    rows = {row.id: row for row in found}
    # Past all arrivals that there were and will be, because no two of a branch may be equal at any moment.
    behind = len(track) + journal.arrivals(connection, branch_id)
    for row in _rows(connection, journal, TOOL_INVOCATION.c.internal_session_id == branch_id):
        journal.change(connection, row.id, arrival=row.arrival + behind)
    batches: dict[tuple[int, int], int] = {}
    for arrival, one in enumerate(track):
        row = rows[one.row_id]
        batch = batches.setdefault((row.internal_session_id, row.batch), len(batches))
        at = {"arrival": arrival, "batch": batch, "batch_index": row.batch_index}
        if one.run_id is None:
            row_codes.add(connection, TOOL_INVOCATION, _taken(row, branch_id, one.original_id) | at)
        else:
            journal.change(connection, one.run_id, **at, kind=CALL, tool_call_id=row.tool_call_id)
    sessions.inherit_nothing(connection, branch_id)


def bring(connection: Connection, journal: Journal, branch: Found, calls: Sequence[ToolInvocation]) -> None:
    """Copy recorded calls to a branch of another session, as calls that were made in another world.

    Args:
        connection: A connection in a transaction that writes.
        journal: The invocations.
        branch: The row of a branch without calls.
        calls: A track of the other session, in order.
    """
    ids = [call.id for call in calls]
    found = [row for part in slices(ids) for row in _rows(connection, journal, TOOL_INVOCATION.c.id.in_(part))]
    rows = {row.id: row for row in found}
    batches: dict[tuple[int, int], int] = {}
    for arrival, id in enumerate(ids):
        row = rows[id]
        batch = batches.setdefault((row.internal_session_id, row.batch), len(batches))
        there = {
            "external_session_id": branch.external_session_id,
            "arrival": arrival,
            "batch": batch,
            "kind": CALL,
            "replay_of": None,
            "made_on": row.made_on or row.internal_session_id,
            "status": DONE if row.status == REVERSED else SHOWN.get(row.status, DONE),
            "answers": row.answers,
        }
        row_codes.add(connection, TOOL_INVOCATION, _taken(row, branch.id, id) | there)


def _rows(connection: Connection, journal: Journal, condition: Any) -> Sequence[Row[Any]]:
    mine = TOOL_INVOCATION.c.tenant_id == journal.tenant_id
    return journal.authentic(connection, connection.execute(select(TOOL_INVOCATION).where(mine, condition)).all())


def _taken(row: Row[Any], branch_id: int, original_id: int) -> dict[str, Any]:
    """Make the row of a call that is taken over from the record: it shows what that came to, and nothing ran."""
    status = SHOWN.get(row.status, DONE)
    nothing = dict.fromkeys(("undo", "verify", "precheck", "owner", "answers"))
    return {
        **row._asdict(),
        **nothing,
        "id": new_id(),
        "internal_session_id": branch_id,
        "status": status,
        "kind": REPLAY,
        "replay_of": original_id,
        "error_message": row.error_message if status == FAILED else None,
    }
