"""The files of a workspace: snapshots, their differences, and plans and results of restores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC
from typing import TYPE_CHECKING

from agentgit.render.text import Line, Span, Zone, clean, format_time, table
from agentgit.render.views.diff import patch
from agentgit.values import count, escape_path
from agentgit.workspace.values import EVERYTHING

if TYPE_CHECKING:
    from agentgit.workspace.values import FileCheckpoint, Restored, RestorePlan, Undone, WorkspaceDiff

SHORT_ID_LENGTH = 10
"""The number of characters of an id that a list shows."""

SHOWN_PATHS = 5
"""The number of changed paths that one snapshot shows."""


def snapshot_lines(snapshots: Sequence[FileCheckpoint], *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw a list of snapshots."""
    rows = [
        [
            Span(clean(snapshot.id[:SHORT_ID_LENGTH]), "reference"),
            Span(format_time(snapshot.timestamp, zone), "dim"),
            Span(clean(snapshot.kind)),
            Span(f"{snapshot.change_count} changed", "dim"),
            Span(
                " - ".join(clean(text) for text in (snapshot.name, snapshot.message) if text),
                "name" if snapshot.name else "",
            ),
        ]
        for snapshot in snapshots
    ]
    return table(rows, width=width)


def diff_lines(diff: WorkspaceDiff) -> list[Line]:
    """Draw a diff: the paths that differ, then the unified diff."""
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
    """Draw what a restore would do."""
    lines = [
        *_pairs("impossible", "bad", plan.impossible, ": "),
        *_paths("restore", "added", plan.restore),
        *_paths("delete", "removed", plan.delete),
        *_paths("move aside", "changed", plan.aside),
        *_paths("changed since the last snapshot", "bad", plan.changed),
        *_pairs("missing", "bad", plan.missing, ": "),
        *_pairs("left", "dim", plan.left, ": "),
    ]
    summary = f"{count(len(plan.restore), 'file')} to restore, {len(plan.delete)} to delete"
    notes = _paths("note", "dim", plan.unseen)
    return [*lines, *notes, (Span(summary if lines else "There is nothing to restore.", "dim"),)]


def restored_lines(restored: Restored) -> list[Line]:
    """Draw what a restore did."""
    lines = [
        *_paths("restored", "added", [EVERYTHING] if restored.everything else ()),
        *_paths("restored", "added", restored.restored),
        *_paths("deleted", "removed", (*restored.deleted, *restored.deleted_directories)),
        *_paths("created", "added", restored.created_directories),
        *_pairs("moved aside", "changed", restored.moved_aside, " -> "),
        *_pairs("conflict", "bad", restored.conflicts, ": "),
        *_pairs("missing", "bad", restored.missing, ": "),
        *_pairs("left", "dim", restored.left, ": "),
    ]
    safety_text = f"The previous files are in snapshot {restored.safety[:SHORT_ID_LENGTH]}." if restored.safety else ""
    notes = _paths("note", "dim", restored.unseen)
    return [*lines, *notes, (Span(clean(safety_text if lines else "There was nothing to restore."), "dim"),)]


def undone_lines(undone: Undone) -> list[Line]:
    """Draw what an undo did."""
    lines = [
        *((Span("undone  ", "changed"), Span(clean(label))) for label in undone.labels),
        *_paths("  restored", "added", undone.restored),
        *_paths("  deleted", "removed", undone.deleted),
        *_pairs("  left", "bad", undone.left, ": "),
    ]
    return lines or [(Span("There is nothing to undo.", "dim"),)]


def _paths(label: str, style: str, paths: Iterable[str]) -> list[Line]:
    return [(Span(f"{label}  ", style), Span(escape_path(path))) for path in paths]


def _pairs(label: str, style: str, pairs: Iterable[tuple[str, str]], separator: str) -> list[Line]:
    return [
        (Span(f"{label}  ", style), Span(f"{escape_path(path)}{separator}{escape_path(detail)}"))
        for path, detail in pairs
    ]


def show_lines(
    snapshot: FileCheckpoint, changes_since: WorkspaceDiff, *, width: int = 100, zone: Zone = UTC
) -> list[Line]:
    """Draw one snapshot, and the files that have changed since."""
    values = {
        "id": snapshot.id,
        "name": snapshot.name,
        "message": snapshot.message,
        "created": f"{format_time(snapshot.timestamp, zone, seconds=True)} ({snapshot.kind})",
        "changed": _changed_files(snapshot),
        "metadata": repr(dict(snapshot.metadata)) if snapshot.metadata else None,
        "kept": "until it is deleted" if snapshot.pinned else None,
    }
    facts = [[Span(name, "dim"), Span(clean(str(value)))] for name, value in values.items() if value]
    changes = _changes(changes_since) or [(Span("nothing", "dim"),)]
    return [*table(facts, width=width), (), (Span("changed since", "heading"),), *changes]


def _changed_files(snapshot: FileCheckpoint) -> str:
    """Return the number of files that a snapshot changed, and the first of their paths."""
    shown = snapshot.files_changed[:SHOWN_PATHS]
    more = ", …" if snapshot.change_count > len(shown) else ""
    paths = f": {', '.join(map(escape_path, shown))}{more}" if shown else ""
    return f"{count(snapshot.change_count, 'file')}{paths}"
