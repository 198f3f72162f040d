"""The files of a workspace: snapshots, their differences, and plans and results of restores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from agentgit.next_steps import Next, Reason
from agentgit.render.text import clean
from agentgit.render.view import Line, Span, Table, Time, View, facts
from agentgit.render.views.diff import patch
from agentgit.values import count, escape_path
from agentgit.workspace.values import EVERYTHING

if TYPE_CHECKING:
    from agentgit.workspace.values import FileCheckpoint, Restored, WorkspaceDiff

SHORT_ID_LENGTH = 10
"""The number of characters of an id that a list shows."""

SHOWN_PATHS = 5
"""The number of changed paths that one snapshot shows."""


def snapshots(values: Sequence[FileCheckpoint]) -> View:
    """Show a list of snapshots."""
    rows = [
        [
            Span(clean(snapshot.id[:SHORT_ID_LENGTH]), "reference"),
            Time(snapshot.timestamp),
            Span(clean(snapshot.kind)),
            Span(f"{snapshot.change_count} changed", "dim"),
            Span(
                " - ".join(clean(text) for text in (snapshot.name, snapshot.message) if text),
                "name" if snapshot.name else "",
            ),
        ]
        for snapshot in values
    ]
    return [Table(rows, empty=Reason("no snapshots yet", Next("save_files")))]


def snapshot(value: FileCheckpoint, changes_since: WorkspaceDiff) -> View:
    """Show one snapshot, and the files that have changed since."""
    shown = value.files_changed[:SHOWN_PATHS]
    more = ", …" if value.change_count > len(shown) else ""
    paths = f": {', '.join(map(escape_path, shown))}{more}" if shown else ""
    known = {
        "id": value.id,
        "name": value.name,
        "message": value.message,
        "created": (Time(value.timestamp, seconds=True), Span(f" ({clean(value.kind)})")),
        "changed": f"{count(value.change_count, 'file')}{paths}",
        "metadata": repr(dict(value.metadata)) if value.metadata else None,
        "kept": "until it is deleted" if value.pinned else None,
    }
    changes = _changes(changes_since) or [(Span("nothing", "dim"),)]
    return [facts(known), (), (Span("changed since", "heading"),), *changes]


def difference(diff: WorkspaceDiff) -> View:
    """Show a diff: the paths that differ, then the unified diff."""
    if not diff:
        return [(Span("no difference", "dim"),)]
    return [*_changes(diff), *patch(diff.diff_content)]


def _changes(diff: WorkspaceDiff) -> list[Line]:
    return [
        *_paths("added", "added", diff.added_files),
        *_paths("modified", "changed", diff.modified_files),
        *_paths("deleted", "removed", diff.deleted_files),
    ]


def plan(value: Restored) -> View:
    """Show what a restore would do."""
    summary = f"{count(len(value.restored), 'file')} to restore, {len(value.deleted)} to delete"
    return _paths_and_summary(value, summary, "There is nothing to restore.")


def restored(value: Restored) -> View:
    """Show what a restore did."""
    summary = f"The previous files are in snapshot {value.safety[:SHORT_ID_LENGTH]}." if value.safety else ""
    return _paths_and_summary(value, summary, "There was nothing to restore.")


def _paths_and_summary(value: Restored, summary: str, empty: str) -> View:
    ed = "d" if value.is_done else ""
    lines = [
        *_paths("impossible", "bad", value.impossible),
        *_paths(f"restore{ed}", "added", [EVERYTHING] if value.everything else value.restored),
        *_paths(f"delete{ed}", "removed", (*value.deleted, *value.deleted_directories)),
        *_paths(f"create{ed}", "added", value.created_directories),
        *_paths(f"move{ed} aside", "changed", value.moved_aside, " -> "),
        *_paths("changed since the last snapshot", "bad", value.changed),
        *_paths("conflict", "bad", value.conflicts),
        *_paths("missing", "bad", value.missing),
        *_paths("left", "dim", value.left),
    ]
    notes = _paths("note", "dim", value.unseen)
    return [*lines, *notes, (Span(clean(summary if lines else empty), "dim"),)]


def undone(values: Sequence[Restored]) -> View:
    """Show what an undo did."""
    lines = [
        line for one in values for line in ((Span("undone  ", "changed"), Span(clean(one.message))), *restored(one))
    ]
    return lines or [(Span("There is nothing to undo.", "dim"),)]


def _paths(label: str, style: str, paths: Iterable[str | tuple[str, str]], separator: str = ": ") -> list[Line]:
    """Show paths, each with its detail if it has one, a line for each."""
    texts = (path if isinstance(path, str) else separator.join(path) for path in paths)
    return [(Span(f"{label}  ", style), Span(escape_path(text))) for text in texts]
