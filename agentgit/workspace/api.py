"""`Workspace`: takes snapshots of a directory and restores them without losing any file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any

from agentgit.async_api import async_twin
from agentgit.errors import InvalidInput, NotFound
from agentgit.workspace.engine import AUTO, EVENTS, MANUAL, NUMBER, POSITION, PRUNED, SAFETY, Engine, new_snapshot
from agentgit.workspace.files import MAX_FILE_SIZE
from agentgit.workspace.locations import Paths, create_storage, require_not_moved, resolve_workspace
from agentgit.workspace.undo_stack import UndoStack
from agentgit.workspace.values import Environment, FileCheckpoint, Options, Restored, WorkspaceDiff


class Workspace:
    """Snapshots of a directory. A restore first takes a safety snapshot, changes only what differs, and loses nothing.

    Args:
        workspace_dir: The directory, which is created if it does not exist.
        storage_dir: The directory for the snapshots; None for one in `$AGENTGIT_HOME` or `~/.local/share/agentgit`.
        environment: `"git"` (git can read the snapshots), `"directory"`, or an object of your own.
        auto_checkpoint: True if an agent with this workspace takes snapshots automatically before files are modified.
        max_checkpoints: The number of snapshots to keep, besides pinned ones; None keeps all. The oldest go first.
        exclude_patterns: Lines of a `.gitignore`, which count besides the `.gitignore` files of the workspace.
        max_file_size: The maximum size in bytes. A larger file is left out, unless an earlier snapshot contains it.

    Raises:
        InvalidInput: The path is not a directory, or is protected; or the storage belongs to another workspace.
        Unavailable: The storage cannot be used.
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
        root, name = resolve_workspace(workspace_dir), environment if isinstance(environment, str) else ""
        storage, patterns = create_storage(storage_dir, root), tuple(exclude_patterns)
        settings = Options(root, storage, name, auto_checkpoint, max_checkpoints, patterns, max_file_size)
        self._engine = Engine(settings, environment)

    @property
    def workspace_dir(self) -> str:
        """The real path of the directory."""
        return self._engine.root

    @property
    def storage_dir(self) -> str:
        """The real path of the directory of the snapshots."""
        return self._engine.storage

    @property
    def settings(self) -> dict[str, Any]:
        """The JSON-like settings: the directories and the options; `environment` is empty for one of your own."""
        return vars(self._engine.settings) | {"exclude_patterns": list(self._engine.settings.exclude_patterns)}

    @cached_property
    def undo_stack(self) -> UndoStack:
        """The undo stack: the files as they were before each call that modified them."""
        require_not_moved(os.fsencode(self.workspace_dir))
        return UndoStack(self._engine)

    def initialize(self) -> bool:
        """Finish an interrupted restore, as the first use does; return True."""
        with self._engine.locked():
            return True

    def save(
        self,
        message: str = "",
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        kind: str = MANUAL,
    ) -> FileCheckpoint:
        """Take a snapshot. If nothing has changed, it costs almost nothing.

        Args:
            message: A description of the snapshot.
            name: The name of the snapshot. It need not be unique.
            metadata: JSON-like metadata to store with it.
            kind: `manual`, or another kind, such as `auto`.

        Raises:
            Unavailable: The storage or the workspace cannot be used, or another process uses it for too long.
        """
        with self._engine.locked():
            return self._engine.save(new_snapshot(message, kind, name, metadata))

    def create(self, name: str | None = None, description: str = "") -> FileCheckpoint:
        """Take a snapshot with a name, by default `checkpoint-1`, `checkpoint-2`, and so on."""
        with self._engine.locked():
            if not name:
                number = (self._engine.catalog.get(NUMBER) or 0) + 1
                self._engine.catalog.set({NUMBER: number})
                name = f"checkpoint-{number}"
            return self._engine.save(new_snapshot(description, name=name))

    def checkpoint(self) -> str:
        """Take a snapshot and return its id, as the protocol `Environment` requires."""
        return self.save(kind=AUTO).id

    def list(self, limit: int | None = None) -> list[FileCheckpoint]:
        """Return the snapshots, newest first.

        Args:
            limit: The maximum number; None for all.
        """
        return [row.snapshot for row in self._engine.catalog.rows(limit=limit)]

    def get(self, ref: str) -> FileCheckpoint | None:
        """Return a snapshot by its id, a prefix of its id, or its name; None if there is none.

        If several have the name, return the newest of them.

        Raises:
            Ambiguous: Several ids start with this text.
        """
        row = self._engine.find(ref)
        return row.snapshot if row else None

    def restore(self, ref: str, *, paths: Paths = None) -> Restored:
        """Restore the files to a snapshot. A safety snapshot, which the result names, keeps the current files.

        Args:
            ref: The id, a prefix of it, or the name of the snapshot.
            paths: Only these files and directories; None for everything.

        Raises:
            NotFound: There is no such snapshot.
            Unavailable: A path cannot be written. The changes so far remain, and another restore continues from there.
            Corrupt: The stored contents of a path are lost; all other paths were restored.
        """
        with self._engine.locked():
            return self._engine.restore(ref, paths=self._engine.paths.relative_paths(paths))

    def plan_restore(self, ref: str, *, paths: Paths = None) -> Restored:
        """Return what `restore` would do, without changing anything.

        Args:
            ref: The snapshot, in any form that `restore` takes.
            paths: Only these files and directories; None for everything.

        Raises:
            NotFound: There is no such snapshot.
        """
        return self._engine.plan(ref, paths=self._engine.paths.relative_paths(paths))

    def rewind(self, steps: int = 1) -> Restored:
        """Go back a number of snapshots from the current position; safety snapshots do not count.

        Raises:
            InvalidInput: `steps` is not positive.
            NotFound: There are not that many earlier snapshots.
        """
        if steps < 1:
            raise InvalidInput("steps must be 1 or more.")
        with self._engine.locked():
            ids = [snapshot.id for snapshot in self.list() if snapshot.kind != SAFETY]
            position = self._engine.catalog.get(POSITION)
            index = ids.index(position) if position in ids else 0
            if index + steps >= len(ids):
                raise NotFound(f"Cannot go back {steps}: there are {max(0, len(ids) - 1 - index)} earlier snapshots.")
            return self._engine.restore(ids[index + steps])

    def undo(self) -> Restored | None:
        """Restore the newest snapshot that is not a safety snapshot; return None if there is none."""
        with self._engine.locked():
            newest = next((snapshot for snapshot in self.list() if snapshot.kind != SAFETY), None)
            return self._engine.restore(newest.id) if newest else None

    def diff(self, a: str | None = None, b: str | None = None, *, paths: Paths = None) -> WorkspaceDiff:
        """Return how two snapshots differ.

        Args:
            a: The first snapshot; None for the newest, and an empty text for nothing, so that every file is added.
            b: The second snapshot; None for the current files.
            paths: Only these files and directories; None for everything.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._engine.locked():
            engine, selected = self._engine, self._engine.paths.relative_paths(paths)
            newest = next(iter(engine.catalog.rows(limit=1)), None)
            old, new = (
                newest if a is None else engine.require(a) if a else None,
                engine.require(b) if b is not None else None,
            )
            return engine.files_for("diff").diff(old, new, selected)

    def delete(self, ref: str) -> FileCheckpoint:
        """Delete one snapshot. Its space is freed by `gc`, or automatically after more deletions.

        Raises:
            NotFound: There is no such snapshot.
        """
        with self._engine.locked():
            row = self._engine.require(ref)
            self._engine.delete([row])
            return row.snapshot

    def clear(self) -> tuple[FileCheckpoint, ...]:
        """Delete all snapshots that nothing needs, free their space, and return them. The files stay as they are.

        Snapshots that a session needs, and that belong to the undo stack, are kept.
        """
        with self._engine.locked():
            rows = self._engine.catalog.deletable()
            self._engine.delete(rows, PRUNED)
            self._engine.collect()
            return tuple(row.snapshot for row in rows)

    def gc(self) -> int:
        """Free the space of data that no snapshot needs, and return the number of bytes."""
        with self._engine.locked():
            return self._engine.collect()

    def on(self, event: str, callback: Callable[[Any], None]) -> None:
        """Call a function after each event of a kind. Exceptions that it raises are logged and ignored.

        Args:
            event: `created` and `deleted` (with the `FileCheckpoint`), `restored` (with the `Restored`), `pruned` (with
                a list of `FileCheckpoint`) or `failed` (with the exception).
            callback: The function to call, with one argument.

        Raises:
            InvalidInput: There is no such event.
        """
        if event not in EVENTS:
            raise InvalidInput(f"There is no event {event!r}. Use one of {', '.join(EVENTS)}.")
        self._engine.listeners[event].append(callback)

    def close(self) -> None:
        """Close the open files. The workspace can be used again afterwards."""
        self._engine.catalog.close()

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
    adelete = async_twin(delete)
    aclear = async_twin(clear)
    agc = async_twin(gc)


def engine_of(workspace: Workspace) -> Engine:
    """Return the engine of a workspace, for what sessions do with it."""
    return workspace._engine
