"""`Workspace`: snapshots of a directory, and going back to any of them without losing anything."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from agentgit.async_api import async_twin
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.workspace.base import DELETED, EVENTS, NUMBER, POSITION, RESTORED, Base, Paths
from agentgit.workspace.catalog import LEFT_OUT
from agentgit.workspace.engines.files import Files, Target
from agentgit.workspace.locations import require_in_place, storage_place, workspace_place
from agentgit.workspace.restore import Progress
from agentgit.workspace.undo.stack import UndoStack
from agentgit.workspace.values import UNDO, Environment, FileCheckpoint, Freed, Restored, RestorePlan, WorkspaceDiff

MANUAL, AUTO, SAFETY = "manual", "auto", "safety"

NUMBERED = "checkpoint-"

MAX_FILE_SIZE = 100_000_000
"""The size from which a file is left out of snapshots by default, in bytes: databases, models and tables fit below."""


class Workspace(Base):
    """Snapshots of a directory. Going back takes a snapshot first, touches only what differs, and loses nothing.

    Args:
        workspace_dir: The directory.
        storage_dir: The directory of the snapshots; None is in `$AGENTGIT_HOME`, by default `~/.local/share/agentgit`.
        environment: `"git"`, `"directory"` (needs no git), or something with `checkpoint()` and `restore(id)`.
        auto_checkpoint: True if an agent with this workspace takes snapshots by itself before files are modified.
        max_checkpoints: The number to keep. The oldest go first. Pinned ones stay and do not count. None keeps all.
        exclude_patterns: Patterns to leave out besides those of the workspace's `.gitignore` files, in their syntax.
        max_file_size: The greatest size in bytes. A greater file is left out, unless an earlier snapshot holds it.

    Raises:
        InvalidInput: There is no such directory, or it is protected, such as the home directory; or the storage is that
            of another workspace.
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
        self._root = workspace_place(workspace_dir)
        self._storage = storage_place(storage_dir, self._root)
        self._patterns, self._max_file_size = tuple(exclude_patterns), max_file_size
        self._environment = environment
        self.auto_checkpoint, self.max_checkpoints = auto_checkpoint, max_checkpoints
        self._listeners: dict[str, list[Callable[[Any], None]]] = {event: [] for event in EVENTS}
        self._thread = threading.RLock()
        self._engine  # noqa: B018 - what cannot work is told at once
        self._claim()

    @property
    def workspace_dir(self) -> str:
        """The real path of the directory."""
        return self._root

    @property
    def storage_dir(self) -> str:
        """The real path of where snapshots are kept."""
        return self._storage

    @property
    def settings(self) -> dict[str, Any]:
        """The settings from which `Workspace.of` makes this workspace again, in another process; JSON-like."""
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
        """Make a workspace of its `settings`.

        Raises:
            InvalidInput: Its directory is not here, or only the process that made its environment has that.
        """
        if not settings.get("environment"):
            raise InvalidInput(
                f"Wrap the graph with the workspace {settings.get('workspace')} and its own environment."
            )
        options = {name: value for name, value in settings.items() if name not in ("workspace", "storage")}
        return cls(settings["workspace"], settings["storage"], **options)

    @cached_property
    def undo_stack(self) -> UndoStack:
        """The undo stack: the files as they were before each call that modified them."""
        require_in_place(os.fsencode(self._root))
        return UndoStack(self._root, self._undo_dir, whole=WholeSnapshots(self))

    def initialize(self) -> bool:
        """Make the storage, and finish what was killed; the first use does it too. Give True."""
        with self._working():
            return True

    def save(
        self,
        message: str = "",
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        paths: Paths = None,
        kind: str = MANUAL,
        progress: Progress | None = None,
    ) -> FileCheckpoint:
        """Take a snapshot. If nothing changed, that costs next to nothing.

        Args:
            message: A description of the snapshot.
            name: The name of the snapshot. Another may have the same name.
            metadata: Metadata that is kept with it, JSON-like.
            paths: Only these may have changed: nothing else is looked at.
            kind: `manual`, or what took it.
            progress: The function to call with the number of files done and their total.

        Raises:
            Unavailable: The storage or the workspace cannot be used, or another process does for long.
        """
        with self._working():
            new = self._new(message, kind, name=name, metadata=metadata)
            return self._taken(new, self._looked_at(paths), progress)

    def keep(self, message: str = "", *, kind: str = AUTO, holder: str | None = None) -> FileCheckpoint:
        """Return the snapshot that the files stand at; take one if they stand at none.

        Args:
            message: A description of the snapshot, if a new one is taken.
            kind: The kind of a new snapshot: what takes it.
            holder: The holder that needs it until `let_go`, however many come after it; None if nobody does.
        """
        with self._working():
            found = self._taken(self._new(message, kind), anew=False)
            if holder is None:
                return found
            self._catalog.hold(found.id, holder)
            return replace(found, pinned=True)

    def hold(self, id: str, holder: str) -> None:
        """Take note that a holder needs a snapshot until `let_go`, however many come after it."""
        self._catalog.hold(id, holder)

    def release_snapshot(self, id: str, holder: str) -> None:
        """Take note that a holder does not need a snapshot any more; it goes when its time comes, if no other does."""
        self._catalog.release(id, holder)

    def adopt(self, source: Workspace, ref: str, *, pinned: bool = False) -> FileCheckpoint:
        """Copy a snapshot of another workspace into this one's storage, so that it can be restored here.

        Args:
            source: The other workspace.
            ref: The snapshot there.
            pinned: True to keep it however many come after it.

        Raises:
            NotFound: There is no such snapshot.
            InvalidInput: One of the two has an environment of its user's own, which alone knows its snapshots.
        """
        with self._working(), source._working():
            row = source._row(ref)
            if not (isinstance(self._engine, Files) and isinstance(source._engine, Files)):
                raise InvalidInput('Snapshots are copied between workspaces with "git" or "directory" only.')
            held = self._find(row.snapshot.id)
            if held is not None:  # it was copied before
                return held.snapshot
            new = replace(row.snapshot, kind=AUTO, pinned=pinned)
            return self._engine.adopt(source._engine, row, lambda files: replace(new, files_changed=files))

    def create(self, name: str | None = None, description: str = "") -> FileCheckpoint:
        """Take a snapshot with a name; without one it is `checkpoint-1`, `checkpoint-2`, and so on."""
        with self._working():
            if not name:
                number = int(self._catalog.get(NUMBER) or 0) + 1
                self._catalog.set(NUMBER, str(number))
                name = f"{NUMBERED}{number}"
            return self._taken(self._new(description, MANUAL, name=name))

    def checkpoint(self) -> str:
        """Take a snapshot, as any `Environment` does; give its id."""
        return self.save(kind=AUTO).id

    def list(self, limit: int | None = None) -> list[FileCheckpoint]:
        """Return the snapshots, newest first.

        Args:
            limit: The greatest number of them.
        """
        return [row.snapshot for row in self._catalog.rows(limit=limit)]

    def get(self, ref: str) -> FileCheckpoint | None:
        """Return a snapshot by its id, a beginning of its id, or its name (then the newest); None if there is none.

        Raises:
            Ambiguous: Several ids begin with this text.
        """
        row = self._find(ref)
        return row.snapshot if row else None

    def expect(self, ref: str) -> None:
        """Check that a snapshot could be restored now.

        Raises:
            NotFound: There is no such snapshot.
            Unavailable: The directory of the workspace does not exist.
        """
        self._row(ref)
        if not os.path.isdir(self._root):
            raise Unavailable(f"The workspace {self._root} does not exist. Create it, then try again.")

    def restore(
        self,
        ref: str,
        *,
        paths: Paths = None,
        expect: str | None = None,
        force: bool = False,
        progress: Progress | None = None,
    ) -> Restored:
        """Bring the files back to a snapshot. What stands now is in the safety snapshot that the result names.

        Args:
            ref: The id, a beginning of it, or the name of the snapshot.
            paths: Only these files and directories; None is everything.
            expect: A snapshot that the files should be like now, or `last`: as they were last saved or restored. None
                is whatever they are: the safety snapshot holds it.
            force: True to go on if they are not.
            progress: The function to call with the number of files done and their total.

        Raises:
            NotFound: There is no such snapshot.
            WorkspaceChanged: A file that would be touched is not as in `expect`; nothing was touched.
            Unavailable: A path cannot be written; what is done stays, and restoring again goes on from there.
        """
        with self._working():
            expected = self._expected(expect) if expect is not None and not force else None
            target = Target(self._row(ref), self._inside(paths), expected)
            with self._safety_told(target.row):
                done = self._engine.restore(target, partial(self._new, f"before restoring {ref}", SAFETY), progress)
            self._catalog.set(POSITION, done.id)
            killed = next((one for one in self._finished if one.id == done.id), None)
            if killed is not None and paths is None and not (done.restored or done.deleted):
                return killed  # it was killed, and is done with what was just finished
            self._tell(RESTORED, done)
            return done

    def plan_restore(self, ref: str, *, paths: Paths = None, since: str | None = None) -> RestorePlan:
        """Return what `restore` would do; nothing is touched.

        Args:
            ref: The snapshot, in any form that `restore` takes.
            paths: Only these files and folders; None is all.
            since: The snapshot that `changed` is told against; None, or one that is gone, is the last save or restore.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._working():
            known = self._find(since) if since is not None else None
            return self._engine.plan(self._row(ref), self._inside(paths), known)

    def rewind(self, steps: int = 1) -> Restored:
        """Go back so many snapshots from where the workspace is; safety snapshots do not count.

        Raises:
            InvalidInput: `steps` is no positive number.
            NotFound: There are not so many.
        """
        if steps < 1:
            raise InvalidInput("steps must be 1 or more.")
        with self._working():
            ids = [row.snapshot.id for row in self._catalog.rows() if row.snapshot.kind != SAFETY]
            position = self._catalog.get(POSITION)
            at = ids.index(position) if position in ids else 0
            if at + steps >= len(ids):
                raise NotFound(f"Cannot go back {steps}: there are {max(0, len(ids) - 1 - at)} earlier snapshots.")
            return self.restore(ids[at + steps])

    def undo(self) -> Restored | None:
        """Go back to the most recent snapshot that is no safety snapshot; None if there is none."""
        with self._working():
            row = next((row for row in self._catalog.rows() if row.snapshot.kind != SAFETY), None)
            return self.restore(row.snapshot.id) if row else None

    def diff(self, a: str | None = None, b: str | None = None, *, paths: Paths = None) -> WorkspaceDiff:
        """Return how two snapshots differ.

        Args:
            a: The first; None is the newest.
            b: The second; None is the workspace as it is now.
            paths: Only these files and directories.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._working():
            newest = self._catalog.rows(limit=1)
            first = self._row(a) if a is not None else newest[0] if newest else None
            return self._engine.diff(first, self._row(b) if b is not None else None, self._inside(paths))

    def changed(self) -> tuple[str, ...]:
        """Return the paths of the files that changed since they were last saved or restored."""
        with self._working():
            return self._engine.changed()

    def skipped(self) -> tuple[tuple[str, str], ...]:
        """Return the paths that snapshots leave out, as last seen, each with the reason."""
        return self._engine.skipped()

    def delete(self, ref: str) -> FileCheckpoint:
        """Delete one snapshot; its space comes back with `gc`, or by itself after some more.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._working():
            row = self._row(ref)
            self._drop([row], DELETED)
            return row.snapshot

    def pin(self, ref: str) -> None:
        """Keep a snapshot however many come after it."""
        self._catalog.pin(self._row(ref).snapshot.id, True)

    def unpin(self, ref: str) -> None:
        """Let a snapshot go when its time comes."""
        self._catalog.pin(self._row(ref).snapshot.id, False)

    def leave_out(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Never capture, restore or delete these files from now on, whoever opens the workspace.

        Args:
            paths: Paths such as those of a database that is in use. Those outside of the workspace do not matter.
        """
        inside = {os.fsdecode(self.relative(path)) for path in paths if self.holds(path)}
        if inside <= set(self._catalog.left_out()):
            return
        with self._working():
            self._catalog.set(LEFT_OUT, json.dumps(sorted(inside.union(self._catalog.left_out()))))

    def gc(self) -> Freed:
        """Return the space of what no snapshot needs."""
        with self._working():
            return Freed(self._engine.collect(), len(self._catalog.rows()))

    def on(self, event: str, callback: Callable[[Any], None]) -> None:
        """Have a function called after something happened; what it raises is logged and stops nothing.

        Args:
            event: `created` and `deleted` (with the `FileCheckpoint`), `restored` (with the `Restored`), `pruned` (with
                a list of `FileCheckpoint`) or `failed` (with the failure).
            callback: The function to call, with one argument.

        Raises:
            InvalidInput: There is no such event.
        """
        if event not in self._listeners:
            raise InvalidInput(f"There is no event {event!r}. Use one of {', '.join(EVENTS)}.")
        self._listeners[event].append(callback)

    def close(self) -> None:
        """Close what is open. The workspace may be used again afterwards."""
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
    apin = async_twin(pin)
    aunpin = async_twin(unpin)
    agc = async_twin(gc)


class WholeSnapshots:
    """The snapshots of a workspace that its undo stack takes. Nothing else uses them: they go when the stack says so.

    Args:
        workspace: The workspace.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint(self) -> str:
        """Take a snapshot; give its id."""
        return self._workspace.save(kind=UNDO).id

    def restore(self, id: str) -> Any:
        """Go back to one."""
        return self._workspace.restore(id)

    def release(self, id: str) -> None:
        """Delete one, but not if somebody has pinned it meanwhile."""
        found = self._workspace.get(id)
        if found is not None and not found.pinned:
            self._workspace.delete(id)
