"""`agentgit workspace`: snapshots of a folder, without an agent: save, list, show, restore, diff, delete, undo."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.checkpoints import references
from agentgit.cli import output
from agentgit.cli.options import GROUP, Limit, Yes, usage
from agentgit.errors import NotFound, PlanChanged, WorkspaceChanged
from agentgit.next_steps import Next
from agentgit.render.views import files

if TYPE_CHECKING:
    from agentgit.workspace.api import Workspace
    from agentgit.workspace.values import FileCheckpoint, Restored

app = typer.Typer(**GROUP)

Dir = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The folder.")]
Store = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="The directory of its snapshots; by default in $AGENTGIT_HOME."),
]
Ref = Annotated[str, typer.Argument(metavar="REF", help="A snapshot: its id, the start of its id, its name, or last.")]
Refs = Annotated[
    list[str] | None, typer.Argument(metavar="[A] [B] [PATH]...", help="The snapshots to compare, then the paths.")
]
Paths = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="Only these paths.")]
CURRENT_FOLDER = Path()
LAST_NAMES = ("last", "latest")


@app.command()
def save(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="A description of the snapshot.")] = "",
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the snapshot.")] = None,
    folder: Dir = CURRENT_FOLDER,
    store: Store = None,
) -> None:
    """Save the files as they are now."""
    with _workspace(folder, store) as workspace:
        snapshot = workspace.save(message, name=name)
        _print_snapshot(snapshot)


@app.command("list")
def list_(limit: Limit = None, folder: Dir = CURRENT_FOLDER, store: Store = None) -> None:
    """List the snapshots, newest first."""
    with _workspace(folder, store) as workspace:
        output.emit_list(workspace.list(limit=limit), files.snapshots, lambda snapshot: snapshot.to_dict())


@app.command()
def show(ref: Ref, folder: Dir = CURRENT_FOLDER, store: Store = None) -> None:
    """Show a snapshot, and the files that have changed since then."""
    with _workspace(folder, store) as workspace:
        snapshot = _require_snapshot(workspace, ref)
        changes = workspace.diff(snapshot.id)
        output.emit(
            lambda: {**snapshot.to_dict(), "since": changes.to_dict()},
            lambda: files.snapshot(snapshot, changes),
        )


@app.command()
def restore(
    ref: Ref,
    paths: Paths = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also restore files that changed since the last snapshot.")
    ] = False,
    yes: Yes = False,
    folder: Dir = CURRENT_FOLDER,
    store: Store = None,
) -> None:
    """Restore files: show the plan, ask, save the current files, then restore."""
    with _workspace(folder, store) as workspace:
        snapshot = _require_snapshot(workspace, ref)
        plan = workspace.plan_restore(snapshot.id, paths=paths)
        if not force:
            _require_saved(plan)
        if not yes:
            _confirm("Restore?", (plan,), lambda: (workspace.plan_restore(snapshot.id, paths=paths),))
        restored = workspace.restore(snapshot.id, paths=paths)
        output.emit(restored.to_dict, lambda: files.restored(restored))


@app.command(cls=usage("[A]", "[B]", "[PATH]..."))
def diff(words: Refs = None, folder: Dir = CURRENT_FOLDER, store: Store = None) -> None:
    """Compare two snapshots, or one (by default the newest) with the current files."""
    with _workspace(folder, store) as workspace:
        remaining = list(words or ())
        snapshot_ids: list[str] = []
        while remaining and len(snapshot_ids) < 2 and (snapshot := _find_snapshot(workspace, remaining[0])) is not None:
            snapshot_ids.append(snapshot.id)
            remaining.pop(0)
        difference = workspace.diff(*snapshot_ids, paths=remaining or None)
        output.emit(difference.to_dict, lambda: files.difference(difference))


@app.command()
def delete(ref: Ref, yes: Yes = False, folder: Dir = CURRENT_FOLDER, store: Store = None) -> None:
    """Delete a snapshot; the files stay as they are."""
    with _workspace(folder, store) as workspace:
        snapshot = _require_snapshot(workspace, ref)
        output.confirm("Delete?", lambda: output.show(files.snapshots([snapshot])), yes=yes)
        _print_snapshot(workspace.delete(snapshot.id))


@app.command()
def undo(
    steps: Annotated[
        int, typer.Argument(metavar="N", min=1, help="The number of tool calls to undo.", show_default=False)
    ] = 1,
    yes: Yes = False,
    folder: Dir = CURRENT_FOLDER,
    store: Store = None,
) -> None:
    """Undo what the last tool calls did to files: show the plan, ask, save the current files, then restore."""
    with _workspace(folder, store) as workspace:
        stack = workspace.undo_stack
        if not yes and (plan := stack.plan(steps)):
            _confirm("Undo?", plan, lambda: stack.plan(steps))
        undone = stack.undo(steps)
        output.emit(lambda: [one.to_dict() for one in undone], lambda: files.undone(undone))


# -- shared helpers


@contextmanager
def _workspace(folder: Path, store: Path | None) -> Iterator[Workspace]:
    from agentgit.workspace.api import Workspace
    from agentgit.workspace.locations import require_directory

    require_directory(folder)  # a mistyped name must not become a folder
    with Workspace(folder, store) as workspace:
        yield workspace


def _find_snapshot(workspace: Workspace, ref: str) -> FileCheckpoint | None:
    """Find a snapshot; `last` is the newest one that was not taken before a restore."""
    snapshot = workspace.get(ref)
    if snapshot is None and ref in LAST_NAMES:
        return next((candidate for candidate in workspace.list() if candidate.kind != "safety"), None)
    return snapshot


def _require_snapshot(workspace: Workspace, ref: str) -> FileCheckpoint:
    snapshot = _find_snapshot(workspace, ref)
    if snapshot is None:
        names = [name for candidate in workspace.list() for name in (candidate.name, candidate.id) if name]
        raise NotFound(
            f"There is no snapshot {ref!r}.", Next("list_snapshots"), near=references.similar_names(ref, names)
        )
    return snapshot


def _confirm(question: str, shown: Sequence[Restored], plan: Callable[[], Sequence[Restored]]) -> None:
    """Show what would be restored and ask; refuse if the files have changed meanwhile."""
    output.confirm(question, lambda: output.show([line for one in shown for line in files.plan(one)]), yes=False)
    if plan() != shown:
        raise PlanChanged("The files have changed since the plan was shown. Nothing was restored.", plan=shown[0])


def _require_saved(plan: Restored) -> None:
    unsaved = sorted({*plan.restored, *plan.deleted} & set(plan.changed))
    if unsaved:
        raise WorkspaceChanged(
            f"Changed since the last snapshot: {', '.join(unsaved)}. Nothing was changed.",
            Next("save_files"),
            Next("force_restore"),
        )


def _print_snapshot(snapshot: FileCheckpoint) -> None:
    output.emit(snapshot.to_dict, lambda: files.snapshots([snapshot]))
