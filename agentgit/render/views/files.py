"""The files of a workspace: snapshots, their differences, and plans and results of restores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, tzinfo
from typing import TYPE_CHECKING

from agentgit.render.text import Line, Span, clean, count, format_time, table
from agentgit.render.views.diff import patch
from agentgit.values import escape_path
from agentgit.workspace.values import EVERYTHING

if TYPE_CHECKING:
    from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, Undone, WorkspaceDiff

SHORT = 10
"""The number of characters of an id that a list shows."""


def snapshot_lines(snapshots: Sequence[FileCheckpoint], *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw a list of snapshots.

    Args:
        snapshots: The snapshots, in the order to show them.
        width: The maximum width of a line, in terminal cells.
        zone: The time zone of the times; None for the local one.
    """
    rows = [
        [
            Span(clean(one.id[:SHORT]), "reference"),
            Span(format_time(one.timestamp, zone), "dim"),
            Span(clean(one.kind)),
            Span(f"{one.files_changed} changed", "dim"),
            Span(" - ".join(clean(text) for text in (one.name, one.message) if text), "name" if one.name else ""),
        ]
        for one in snapshots
    ]
    return table(rows, width=width)


def diff_lines(diff: WorkspaceDiff) -> list[Line]:
    """Draw a diff: the paths that differ, then the unified diff.

    Args:
        diff: The difference of two snapshots.
    """
    if not diff:
        return [(Span("no difference", "dim"),)]
    return [*_changes(diff), *patch(diff.diff_content)]


def _changes(diff: WorkspaceDiff) -> list[Line]:
    return [
        *_paths("added", "added", diff.added_files),
        *_paths("modified", "changed", diff.modified_files),
        *_paths("deleted", "removed", diff.deleted_files),
    ]


def plan_lines(plan: RestorePlan) -> list[Line]:
    """Draw what a restore would do.

    Args:
        plan: The plan.
    """
    lines = [
        *_paths("restore", "added", plan.restore),
        *_paths("delete", "removed", plan.delete),
        *_paths("move aside", "changed", plan.aside),
        *_paths("changed since the last snapshot", "bad", plan.changed),
        *_pairs("missing", "bad", plan.missing, ": "),
        *_pairs("left", "dim", plan.left, ": "),
    ]
    said = f"{count(len(plan.restore), 'file')} to restore, {len(plan.delete)} to delete"
    return [*lines, (Span(said if lines else "There is nothing to restore.", "dim"),)]


def restored_lines(done: Restored) -> list[Line]:
    """Draw what a restore did.

    Args:
        done: The report to draw.
    """
    lines = [
        *_paths("restored", "added", [EVERYTHING] if done.everything else ()),
        *_paths("restored", "added", done.restored),
        *_paths("deleted", "removed", (*done.deleted, *done.deleted_directories)),
        *_paths("created", "added", done.created_directories),
        *_pairs("moved aside", "changed", done.moved_aside, " -> "),
        *_pairs("skipped", "dim", done.skipped, ": "),
        *_pairs("conflict", "bad", done.conflicts, ": "),
        *_pairs("missing", "bad", done.missing, ": "),
        *_pairs("left", "dim", done.left, ": "),
    ]
    before = f"The previous files are in snapshot {done.safety[:SHORT]}." if done.safety else ""
    return [*lines, (Span(clean(before if lines else "There was nothing to restore."), "dim"),)]


def undone_lines(done: Undone) -> list[Line]:
    """Draw what an undo did.

    Args:
        done: The report to draw.
    """
    lines = [
        *((Span("undone  ", "changed"), Span(clean(label))) for label in done.labels),
        *_paths("  restored", "added", done.restored),
        *_paths("  deleted", "removed", done.deleted),
        *_pairs("  left", "bad", done.left, ": "),
    ]
    return lines or [(Span("There is nothing to undo.", "dim"),)]


def _paths(what: str, style: str, paths: Iterable[str]) -> list[Line]:
    return [(Span(f"{what}  ", style), Span(escape_path(path))) for path in paths]


def _pairs(what: str, style: str, pairs: Iterable[tuple[str, str]], between: str) -> list[Line]:
    return [
        (Span(f"{what}  ", style), Span(f"{escape_path(path)}{between}{escape_path(other)}")) for path, other in pairs
    ]


def show_lines(
    snapshot: FileCheckpoint, since: WorkspaceDiff, *, width: int = 100, zone: tzinfo | None = UTC
) -> list[Line]:
    """Draw one snapshot, and the files that have changed since.

    Args:
        snapshot: The snapshot to draw.
        since: The differences between it and the present files.
        width: The maximum width of a line, in terminal cells.
        zone: The time zone of the times; None for the local one.
    """
    known = {
        "id": snapshot.id,
        "name": snapshot.name,
        "message": snapshot.message,
        "created": f"{format_time(snapshot.timestamp, zone, seconds=True)} ({snapshot.kind})",
        "changed": count(snapshot.files_changed, "file"),
        "metadata": repr(dict(snapshot.metadata)) if snapshot.metadata else None,
        "kept": "until it is deleted" if snapshot.pinned else None,
    }
    facts = [[Span(name, "dim"), Span(clean(str(value)))] for name, value in known.items() if value]
    changes = _changes(since) or [(Span("nothing", "dim"),)]
    return [*table(facts, width=width), (), (Span("changed since", "heading"),), *changes]
