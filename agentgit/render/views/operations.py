"""Rollbacks, switches and forks, one line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, tzinfo

from agentgit.render.lines import Line, Span, table
from agentgit.render.text import clean, clock
from agentgit.sessions.operation import DONE, Operation


def lines(
    operations: Sequence[Operation], branches: Mapping[int, str], *, width: int = 100, zone: tzinfo | None = UTC
) -> list[Line]:
    """Draw a list of operations.

    Args:
        operations: The operations, in the order to show them.
        branches: The names of the session's branches, by their ids.
        width: The longest line, in terminal cells.
        zone: The zone of the times; None is this machine's.
    """
    return table([_row(operation, branches, zone) for operation in operations], width=width)


def _row(operation: Operation, branches: Mapping[int, str], zone: tzinfo | None) -> list[Span]:
    source, target = (
        clean(branches.get(branch, "?")) for branch in (operation.source_session_id, operation.internal_session_id)
    )
    status = operation.status
    return [
        Span(str(operation.id), "reference"),
        Span(clock(operation.created_at, zone), "dim"),
        Span(clean(operation.kind)),
        Span(source if source == target else f"{source} -> {target}", "name"),
        Span(clean(status), "" if status == DONE else "bad"),
        Span(_counted(operation), "dim"),
    ]


def _counted(operation: Operation) -> str:
    """Count what became of the effects."""
    return ", ".join(f"{len(items)} {group}" for group, items in operation.report.items() if items)
