"""`Workspace`: takes snapshots of a directory and restores them without losing any file."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from types import EllipsisType
from typing import Any

from agentgit.async_api import async_twin
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.workspace.base import (
    AUTO,
    DELETED,
    EVENTS,
    MANUAL,
    NUMBER,
    POSITION,
    PRUNED,
    RESTORED,
    SAFETY,
    Paths,
    WorkspaceBase,
    as_json,
)
from agentgit.workspace.catalog import LEFT_OUT
from agentgit.workspace.engines.files import FileEngine, RestoreTarget
from agentgit.workspace.locations import create_storage, require_directory, require_not_moved, resolve_workspace
from agentgit.workspace.restore import RestoreProgress
from agentgit.workspace.undo_stack import UndoStack
from agentgit.workspace.values import (
    UNDO,
    Environment,
    FileCheckpoint,
    Freed,
    Restored,
    RestorePlan,
    WorkspaceDiff,
    escape_surrogates,
)

DEFAULT_NAME_PREFIX = "checkpoint-"

MAX_FILE_SIZE = 100_000_000
"""The default maximum size of files in snapshots, in bytes: enough for most databases, models and tables."""


class Workspace(WorkspaceBase):
    """Snapshots of a directory. A restore first takes a safety snapshot, changes only what differs, and loses nothing.

    Args:
        workspace_dir: The directory, which is created if it does not exist.
        storage_dir: The directory for the snapshots; None for one in `$AGENTGIT_HOME`, by default
            `~/.local/share/agentgit`.
        environment: `"git"`, `"directory"` (needs no git), or an object with `checkpoint()` and `restore(id)`.
        auto_checkpoint: True if an agent with this workspace takes snapshots automatically before files are modified.
        max_checkpoints: The number of snapshots to keep. The oldest are deleted first. Pinned ones are kept and do not
            count. None keeps all.
        exclude_patterns: Patterns of files to leave out, in the syntax of `.gitignore`, besides those of the
            workspace's `.gitignore` files.
        max_file_size: The maximum size in bytes. A larger file is left out, unless an earlier snapshot contains it.

    Raises:
        InvalidInput: The path is not a directory, or a protected one, such as the home directory; or the storage
            belongs to another workspace.
        Unavailable: Git is not installed, or the storage cannot be used.

    Example:
        >>> import pathlib, tempfile
        >>> work = pathlib.Path(tempfile.mkdtemp())
        >>> workspace = Workspace(work, tempfile.mkdtemp())
        >>> _ = (work / "a.txt").write_text("one")
        >>> first = workspace.save("the first draft")
        >>> _ = (work / "a.txt").write_text("two")
        >>> print(workspace.diff(first.id))
        modified: a.txt
        >>> print(workspace.restore(first.id))
        restored: a.txt
        >>> (work / "a.txt").read_text()
        'one'
    """

    def __init__(
        self,
        workspace_dir: str | os.PathLike[str],
        storage_dir: str | os.PathLike[str] | None = None,
        *,
        environment: str | Environment = "git",
        auto_checkpoint: bool = True,
        max_checkpoints: int | None = 100,
        exclude_patterns: Iterable[str] = (),
        max_file_size: int = MAX_FILE_SIZE,
    ) -> None:
        if max_checkpoints is not None and max_checkpoints < 1:
            raise InvalidInput("max_checkpoints must be 1 or more, or None to keep all.")
        if isinstance(exclude_patterns, str):
            raise InvalidInput("exclude_patterns must be a list of patterns; write [pattern] for one.")
        self._root = resolve_workspace(workspace_dir)
        self._storage = create_storage(storage_dir, self._root)
        self._patterns, self._max_file_size = tuple(exclude_patterns), max_file_size
        self._environment = environment
        self.auto_checkpoint, self.max_checkpoints = auto_checkpoint, max_checkpoints
        self._listeners: dict[str, list[Callable[[Any], None]]] = {event: [] for event in EVENTS}
        self._thread_lock = threading.RLock()
        self._engine  # noqa: B018 - report a wrong environment now, not on the first use
        self._claim_storage()

    @property
    def workspace_dir(self) -> str:
        """The real path of the directory."""
        return self._root

    @property
    def storage_dir(self) -> str:
        """The real path of the directory of the snapshots."""
        return self._storage

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON-like settings from which `Workspace.of` opens this workspace in another process."""
        return {
            "workspace": self._root,
            "storage": self._storage,
            "environment": self._environment if isinstance(self._environment, str) else "",
            "max_checkpoints": self.max_checkpoints,
            "exclude_patterns": list(self._patterns),
            "max_file_size": self._max_file_size,
        }

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Workspace:
        """Open a workspace from its `settings`.

        Raises:
            InvalidInput: The directory does not exist here, or the workspace has a custom environment, which settings
                cannot describe.
        """
        if not settings.get("environment"):
            raise InvalidInput(
                f"Wrap the graph with the workspace {settings.get('workspace')} and its own environment."
            )
        require_directory(settings["workspace"])
        options = {name: value for name, value in settings.items() if name not in ("workspace", "storage")}
        return cls(settings["workspace"], settings["storage"], **options)

    @cached_property
    def undo_stack(self) -> UndoStack:
        """The undo stack: the files as they were before each call that modified them."""
        require_not_moved(os.fsencode(self._root))
        return UndoStack(self._root, self._undo_dir, whole=WholeSnapshots(self))

    def initialize(self) -> bool:
        """Create the storage and finish interrupted restores, as the first use does; return True."""
        with self._locked():
            return True

    def save(
        self,
        message: str = "",
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        paths: Paths = None,
        kind: str = MANUAL,
        progress: RestoreProgress | None = None,
    ) -> FileCheckpoint:
        """Take a snapshot. If nothing has changed, it costs almost nothing.

        Args:
            message: A description of the snapshot.
            name: The name of the snapshot. It need not be unique.
            metadata: JSON-like metadata to store with it.
            paths: The paths that may have changed; only these are scanned. None scans everything.
            kind: `manual`, or another kind, such as `auto`.
            progress: The function to call with the number of files done and their total.

        Raises:
            Unavailable: The storage or the workspace cannot be used, or another process uses it for too long.
        """
        with self._locked():
            snapshot = self._new_snapshot(message, kind, name=name, metadata=metadata)
            return self._take_snapshot(snapshot, self._paths_to_scan(paths), progress)

    def ensure_snapshot(self, message: str = "", *, kind: str = AUTO, holder: str | None = None) -> FileCheckpoint:
        """Return the newest snapshot of the files as they are now; take one if there is none.

        Args:
            message: A description of the snapshot, if a new one is taken.
            kind: The kind of a new snapshot.
            holder: The holder that pins the snapshot until `release_snapshot`; None to pin nothing.
        """
        with self._locked():
            snapshot = self._take_snapshot(self._new_snapshot(message, kind), always_new=False)
            if holder is None:
                return snapshot
            self._catalog.hold(snapshot.id, holder)
            return replace(snapshot, pinned=True)

    def hold(self, id: str, holder: str) -> None:
        """Pin a snapshot for a holder until `release_snapshot`, so that it is not pruned."""
        self._catalog.hold(id, holder)

    def release_snapshot(self, id: str, holder: str) -> None:
        """Release a holder's pin. Once nothing else pins the snapshot, it can be pruned."""
        self._catalog.release(id, holder)

    def adopt(self, source: Workspace, ref: str, *, pinned: bool = False) -> FileCheckpoint:
        """Copy a snapshot of another workspace into this one's storage, so that it can be restored here.

        Args:
            source: The other workspace.
            ref: The snapshot in the other workspace.
            pinned: True to pin the copy.

        Raises:
            NotFound: There is no such snapshot.
            InvalidInput: One of the two has a custom environment, whose snapshots cannot be copied.
        """
        with self._locked(), source._locked():
            row = source._require_row(ref)
            if not (isinstance(self._engine, FileEngine) and isinstance(source._engine, FileEngine)):
                raise InvalidInput('Snapshots are copied between workspaces with "git" or "directory" only.')
            existing = self._find_row(row.snapshot.id)
            if existing is not None:  # it was copied before
                return existing.snapshot
            copy = replace(row.snapshot, kind=AUTO, pinned=pinned)
            return self._engine.adopt(source._engine, row, copy)

    def create(self, name: str | None = None, description: str = "") -> FileCheckpoint:
        """Take a snapshot with a name, by default `checkpoint-1`, `checkpoint-2`, and so on."""
        with self._locked():
            if not name:
                number = int(self._catalog.get(NUMBER) or 0) + 1
                self._catalog.set(NUMBER, str(number))
                name = f"{DEFAULT_NAME_PREFIX}{number}"
            return self._take_snapshot(self._new_snapshot(description, MANUAL, name=name))

    def checkpoint(self) -> str:
        """Take a snapshot and return its id, as the protocol `Environment` requires."""
        return self.save(kind=AUTO).id

    def list(self, limit: int | None = None) -> list[FileCheckpoint]:
        """Return the snapshots, newest first.

        Args:
            limit: The maximum number; None for all.
        """
        return [row.snapshot for row in self._catalog.rows(limit=limit)]

    def get(self, ref: str) -> FileCheckpoint | None:
        """Return a snapshot by its id, a prefix of its id, or its name; None if there is none.

        If several have the name, return the newest of them.

        Raises:
            Ambiguous: Several ids start with this text.
        """
        row = self._find_row(ref)
        return row.snapshot if row else None

    def require_restorable(self, ref: str) -> None:
        """Check that a snapshot could be restored now.

        Raises:
            NotFound: There is no such snapshot.
            Unavailable: The directory of the workspace does not exist.
        """
        self._require_row(ref)
        if not os.path.isdir(self._root):
            raise Unavailable(f"The workspace {self._root} does not exist. Create it, then try again.")

    def restore(
        self,
        ref: str,
        *,
        paths: Paths = None,
        expect: str | None = None,
        force: bool = False,
        progress: RestoreProgress | None = None,
    ) -> Restored:
        """Restore the files to a snapshot. A safety snapshot, which the result names, keeps the current files.

        Args:
            ref: The id, a prefix of it, or the name of the snapshot.
            paths: Only these files and directories; None for everything.
            expect: The snapshot that the current files must match, or `last`: the last save or restore. None skips
                this check.
            force: True to restore even if they do not match.
            progress: The function to call with the number of files done and their total.

        Raises:
            NotFound: There is no such snapshot.
            WorkspaceChanged: A file that would be changed does not match `expect`; nothing was changed.
            Unavailable: A path cannot be written. The changes so far remain, and another restore continues from there.
        """
        with self._locked():
            expected = self._resolve_expected(expect) if expect is not None and not force else None
            target = RestoreTarget(self._require_row(ref), self._relative_paths(paths), expected)
            with self._reporting_safety_snapshot(target.row):
                safety = self._new_snapshot(f"before restoring {ref}", SAFETY)
                result = self._engine.restore(target, safety, progress)
            self._catalog.set(POSITION, result.id)
            interrupted = next((one for one in self._finished_restores if one.id == result.id), None)
            if interrupted is not None and paths is None and not (result.restored or result.deleted):
                return interrupted  # `_locked` has just finished an interrupted restore of the same snapshot
            self._notify_listeners(RESTORED, result)
            return result

    def plan_restore(self, ref: str, *, paths: Paths = None, since: str | None = None) -> RestorePlan:
        """Return what `restore` would do, without changing anything.

        Args:
            ref: The snapshot, in any form that `restore` takes.
            paths: Only these files and directories; None for everything.
            since: The snapshot with which `changed` compares. None, or a deleted one, means the last save or restore.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._locked():
            since_row = self._find_row(since) if since is not None else None
            return self._engine.plan(self._require_row(ref), self._relative_paths(paths), since_row)

    def rewind(self, steps: int = 1) -> Restored:
        """Go back a number of snapshots from the current position; safety snapshots do not count.

        Raises:
            InvalidInput: `steps` is not positive.
            NotFound: There are not that many earlier snapshots.
        """
        if steps < 1:
            raise InvalidInput("steps must be 1 or more.")
        with self._locked():
            ids = [row.snapshot.id for row in self._catalog.rows() if row.snapshot.kind != SAFETY]
            position = self._catalog.get(POSITION)
            index = ids.index(position) if position in ids else 0
            if index + steps >= len(ids):
                raise NotFound(f"Cannot go back {steps}: there are {max(0, len(ids) - 1 - index)} earlier snapshots.")
            return self.restore(ids[index + steps])

    def undo(self) -> Restored | None:
        """Restore the newest snapshot that is not a safety snapshot; return None if there is none."""
        with self._locked():
            row = next((row for row in self._catalog.rows() if row.snapshot.kind != SAFETY), None)
            return self.restore(row.snapshot.id) if row else None

    def diff(self, a: str | None = None, b: str | None = None, *, paths: Paths = None) -> WorkspaceDiff:
        """Return how two snapshots differ.

        Args:
            a: The first snapshot; None for the newest, and an empty text for nothing, so that every file is added.
            b: The second snapshot; None for the current files.
            paths: Only these files and directories; None for everything.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._locked():
            newest = self._catalog.rows(limit=1)
            first = (self._require_row(a) if a else None) if a is not None else newest[0] if newest else None
            return self._engine.diff(
                first, self._require_row(b) if b is not None else None, self._relative_paths(paths)
            )

    def changed(self) -> tuple[str, ...]:
        """Return the paths of the files that changed since they were last saved or restored."""
        with self._locked():
            return self._engine.changed()

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return the paths that the last scan left out, each with the reason."""
        return self._engine.skipped()

    def delete(self, ref: str) -> FileCheckpoint:
        """Delete one snapshot. Its space is freed by `gc`, or automatically after more deletions.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._locked():
            row = self._require_row(ref)
            self._delete_snapshots([row], DELETED)
            return row.snapshot

    def clear(self) -> tuple[FileCheckpoint, ...]:
        """Delete all snapshots that nothing needs, free their space, and return them. The files stay as they are.

        Snapshots that are pinned, that a session needs, and that belong to the undo stack are kept.
        """
        with self._locked():
            needed = self.undo_stack.wholes if os.path.exists(self._undo_dir) else ()
            rows = [row for row in self._catalog.rows() if not row.snapshot.pinned and row.snapshot.id not in needed]
            if rows:
                self._delete_snapshots(rows, PRUNED)
            self._engine.collect()
            return tuple(row.snapshot for row in rows)

    def annotate(
        self,
        ref: str,
        *,
        name: str | EllipsisType | None = ...,
        message: str | EllipsisType = ...,
        metadata: Mapping[str, Any] | EllipsisType | None = ...,
    ) -> FileCheckpoint:
        """Rename a snapshot, or change its message or metadata, and return it. Its files never change.

        Args:
            ref: The snapshot, in any form that `restore` takes.
            name: The new name, which need not be unique; None removes it.
            message: The new message.
            metadata: The new JSON-like metadata; None removes it.

        Raises:
            NotFound: There is no such snapshot.
            InvalidInput: The metadata is not JSON-like, or nothing is to be changed.
        """
        if name is ... and message is ... and metadata is ...:
            raise InvalidInput("There is nothing to change. Give a name, a message or metadata.")
        with self._locked():
            snapshot = self._require_row(ref).snapshot
            if name is not ...:
                snapshot = replace(snapshot, name=escape_surrogates(name) if name else None)
            if message is not ...:
                snapshot = replace(snapshot, message=escape_surrogates(message))
            if metadata is not ...:
                snapshot = replace(snapshot, metadata=as_json(metadata))
            self._catalog.annotate(snapshot)
            return snapshot

    def pin(self, ref: str) -> None:
        """Pin a snapshot, so that it is not pruned."""
        self._catalog.pin(self._require_row(ref).snapshot.id, True)

    def unpin(self, ref: str) -> None:
        """Unpin a snapshot, so that it can be pruned."""
        self._catalog.pin(self._require_row(ref).snapshot.id, False)

    def leave_out(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Never capture, restore or delete these files from now on, in any process that opens the workspace.

        Args:
            paths: Paths, such as those of a database that is in use. Paths outside the workspace are ignored.
        """
        relative_paths = {os.fsdecode(self.relative(path)) for path in paths if self.holds(path)}
        if relative_paths <= set(self._catalog.left_out()):
            return
        with self._locked():
            self._catalog.set(LEFT_OUT, json.dumps(sorted(relative_paths.union(self._catalog.left_out()))))

    def gc(self) -> Freed:
        """Free the space of data that no snapshot needs."""
        with self._locked():
            return Freed(self._engine.collect(), len(self._catalog.rows()))

    def on(self, event: str, callback: Callable[[Any], None]) -> None:
        """Call a function after each event of a kind. Exceptions that it raises are logged and ignored.

        Args:
            event: `created` and `deleted` (with the `FileCheckpoint`), `restored` (with the `Restored`), `pruned` (with
                a list of `FileCheckpoint`) or `failed` (with the exception).
            callback: The function to call, with one argument.

        Raises:
            InvalidInput: There is no such event.
        """
        if event not in self._listeners:
            raise InvalidInput(f"There is no event {event!r}. Use one of {', '.join(EVENTS)}.")
        self._listeners[event].append(callback)

    def close(self) -> None:
        """Close the open files. The workspace can be used again afterwards."""
        stack: UndoStack | None = self.__dict__.pop("undo_stack", None)
        if stack is not None:
            stack.close()
        self._catalog.close()

    def __enter__(self) -> Workspace:
        self.initialize()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    ainitialize = async_twin(initialize)
    asave = async_twin(save)
    acreate = async_twin(create)
    acheckpoint = async_twin(checkpoint)
    alist = async_twin(list)
    aget = async_twin(get)
    arestore = async_twin(restore)
    aplan_restore = async_twin(plan_restore)
    arewind = async_twin(rewind)
    aundo = async_twin(undo)
    adiff = async_twin(diff)
    achanged = async_twin(changed)
    adelete = async_twin(delete)
    aclear = async_twin(clear)
    aannotate = async_twin(annotate)
    apin = async_twin(pin)
    aunpin = async_twin(unpin)
    agc = async_twin(gc)


class WholeSnapshots:
    """Snapshots of a workspace for its undo stack, which alone uses them and deletes those that it no longer needs."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint(self) -> str:
        """Take a snapshot and return its id."""
        return self._workspace.save(kind=UNDO).id

    def restore(self, id: str) -> Any:
        """Restore a snapshot."""
        return self._workspace.restore(id)

    def release(self, id: str) -> None:
        """Delete a snapshot unless it has been pinned since."""
        snapshot = self._workspace.get(id)
        if snapshot is not None and not snapshot.pinned:
            self._workspace.delete(id)
