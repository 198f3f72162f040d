"""The undo stack: the state of files before each call that modified them, stored on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from agentgit.errors import InvalidInput, NotFound, Unavailable, WorkspaceChanged
from agentgit.values import escape_path
from agentgit.workspace.disk.single_file import ABSENT, FILE, LINK, OTHER, FileState, SingleFiles
from agentgit.workspace.locations import create_storage, resolve_workspace, undo_storage
from agentgit.workspace.undo_storage import REDO, SAFETY, UNDO, StoredEntry, UndoStorage
from agentgit.workspace.values import Undone

CHANGED = "it was changed during the undo"


class WholeWorkspaceSnapshots(Protocol):
    """An object that can take and restore snapshots of the whole workspace."""

    def checkpoint(self) -> str:
        """Take a snapshot, and return its id."""

    def restore(self, id: str, /) -> Any:
        """Restore a snapshot."""

    def release(self, id: str, /) -> None:
        """Release a snapshot that the stack no longer needs."""


@dataclass(frozen=True)
class UndoEntry:
    """The state of files before one call.

    Args:
        id: The id that `redo` takes.
        label: The label that the user gave the entry, like `edit_file: a.txt`.
        created_at: The time at which the entry was created, in UTC.
        paths: The paths of the files, relative to the workspace; empty for the whole workspace.
        whole: The id of the snapshot of the whole workspace; None for single files.
    """

    id: int
    label: str
    created_at: datetime
    paths: tuple[str, ...]
    whole: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-like values."""
        return {
            "id": self.id,
            "label": self.label,
            "created_at": self.created_at.isoformat(),
            "paths": list(self.paths),
            "whole": self.whole,
        }


class UndoStack:
    """The state of files before each call that modified them. It survives a restart, and a kill at any moment.

    Args:
        workspace_dir: The directory of the files.
        storage_dir: The directory that stores the stack, outside of the workspace; None for that of
            `Workspace(workspace_dir).undo_stack`, with the same entries.
        max_snapshots: The maximum number of entries; the oldest are removed first.
        whole: The object that takes snapshots of the whole workspace, for calls that do not name their files. None if
            there is none; such calls then raise `InvalidInput`.

    Raises:
        InvalidInput: `max_snapshots` is not a positive number, or no workspace can be at that path.
        Unavailable: The storage cannot be used.

    Example:
        >>> import pathlib, tempfile
        >>> work, storage = pathlib.Path(tempfile.mkdtemp()), tempfile.mkdtemp()
        >>> stack = UndoStack(work, storage)
        >>> entry = stack.snapshot("write_file: a.txt", ["a.txt"])
        >>> _ = (work / "a.txt").write_text("hello")
        >>> print(stack.undo())
        deleted: a.txt
        >>> print(stack.redo())
        restored: a.txt
    """

    def __init__(
        self,
        workspace_dir: str | os.PathLike[str],
        storage_dir: str | os.PathLike[str] | None = None,
        *,
        max_snapshots: int = 50,
        whole: WholeWorkspaceSnapshots | None = None,
    ) -> None:
        if max_snapshots < 1:
            raise InvalidInput(f"max_snapshots must be 1 or more, not {max_snapshots}.")
        if storage_dir is None:
            storage_dir = undo_storage(create_storage(None, resolve_workspace(workspace_dir)))
        self._files = SingleFiles(workspace_dir, Path(storage_dir) / "aside")
        self._storage = UndoStorage(Path(storage_dir) / "undo.db")
        self._max_snapshots = max_snapshots
        self._workspace_snapshots = whole
        self._thread_lock, self._is_locked = threading.RLock(), False

    # -- what is on it

    def snapshot(self, label: str, paths: Iterable[str | os.PathLike[str]] | None = None) -> int:
        """Save the state of files before a call modifies them, and return the id of the entry.

        Args:
            label: The label of the entry, like `edit_file: a.txt`.
            paths: The paths of the files, which need not exist; None for the whole workspace.

        Raises:
            InvalidInput: A path is outside of the workspace or not a file; or `paths` is None and this stack cannot
                take snapshots of the whole workspace.
            Unavailable: A file cannot be read, or the storage cannot be written.
        """
        with self._locked():
            self._finish_interrupted()
            with self._storage.transaction():
                if paths is None:
                    entry = self._storage.add(UNDO, label, {}, whole=self._require_snapshots().checkpoint())
                else:
                    relative_paths = [name for path in _require_list(paths) for name in self._files.resolve_paths(path)]
                    entry = self._add_entry(UNDO, label, relative_paths)
                self._storage.retire_redo()
                snapshot_ids = self._storage.evict(self._max_snapshots)
            self._release_snapshots(snapshot_ids)
            return entry

    def peek(self) -> UndoEntry | None:
        """Return the newest entry, which `undo` uses next; None if there is none."""
        with self._locked():
            newest = self._storage.newest(UNDO)
            return _undo_entry(newest) if newest else None

    @property
    def depth(self) -> int:
        """The number of entries that can be undone."""
        with self._locked():
            return len(self._storage.ids(UNDO))

    @property
    def history(self) -> tuple[UndoEntry, ...]:
        """The entries, oldest first."""
        with self._locked():
            return tuple(map(_undo_entry, self._storage.list(UNDO)))

    @property
    def wholes(self) -> frozenset[str]:
        """The ids of the snapshots of the whole workspace that entries need, read without waiting for the lock."""
        return frozenset(self._storage.whole_snapshots())

    @property
    def safety(self) -> tuple[UndoEntry, ...]:
        """The entries with the files as they were before each undo, oldest first. `redo(id)` restores one."""
        with self._locked():
            return tuple(map(_undo_entry, self._storage.list(REDO, SAFETY)))

    def clear(self) -> None:
        """Delete all entries, and free their disk space."""
        with self._locked():
            self._release_snapshots(self._storage.clear())

    def close(self) -> None:
        """Close the storage. All entries are already on disk."""
        with self._thread_lock:
            self._storage.close()

    # -- going back and forth

    def undo(self, n: int = 1) -> Undone:
        """Undo the newest entries: restore their files, and save the current ones for `redo`.

        An entry whose undo was interrupted is completed first and counts toward `n`.

        Args:
            n: The number of entries to undo; all if there are fewer.

        Raises:
            InvalidInput: `n` is less than one.
            Unavailable: A file cannot be written. The next use of the stack continues the undo.
        """
        if n < 1:
            raise InvalidInput(f"The number of entries to undo must be 1 or more, not {n}.")
        result = Undone()
        with self._locked():
            result += self._finish_interrupted(UNDO)
            for _ in range(n - len(result.labels)):
                newest = self._storage.newest(UNDO)
                if newest is None:
                    break
                result += self._swap(newest, REDO)
        return result

    def redo(self, id: int | None = None) -> Undone:
        """Revert the newest undo, and save the current files on the stack.

        Args:
            id: The id of an entry of `safety`; None for the newest undo, if no entry was added since.

        Raises:
            NotFound: There is no such entry.
            Unavailable: A file cannot be written. The next use of the stack continues the redo.
        """
        with self._locked():
            pending = self._storage.pending()
            result = self._finish_interrupted(REDO, SAFETY)
            if result and pending and id in (None, pending[0].id):
                return result
            entry = self._storage.newest(REDO) if id is None else self._storage.get(id)
            if id is not None and id not in self._storage.ids(REDO, SAFETY):
                raise NotFound(f"There is no undo {id} to redo. Use the id that an undo returned.")
            return self._swap(entry, UNDO) if entry else Undone()

    def _swap(self, entry: StoredEntry, target_stack: str) -> Undone:
        """Save the current files of an entry on the other stack, then restore the entry."""
        with self._storage.transaction():
            if entry.whole is not None:
                id = self._storage.add(target_stack, entry.label, {}, whole=self._require_snapshots().checkpoint())
            else:
                id = self._add_entry(target_stack, entry.label, entry.states, any_kind=True)
            self._storage.begin(entry.id, id)
        saved = self._storage.get(id)
        return self._apply(entry, saved) if saved else Undone()

    def _finish_interrupted(self, *stacks: str) -> Undone:
        """Complete an interrupted undo; return its result if its entry is of one of these stacks, else an empty one."""
        if pending := self._storage.pending():
            is_counted = pending[0].id in self._storage.ids(*stacks)
            try:
                result = self._recover(*pending) + self._apply(*pending)
            except WorkspaceChanged:  # somebody changed files since: keep the entry for the next undo
                self._storage.cancel(pending[0].id)
            else:
                return result if is_counted else Undone()
        return Undone()

    def _recover(self, entry: StoredEntry, saved: StoredEntry) -> Undone:
        """Remove temporary files of a process killed during an undo, and keep what other processes wrote."""
        left = []
        for path, target in entry.states.items():
            known_states = (state for state in (target, saved.states[path]) if state.kind in (FILE, LINK))
            if (aside_path := self._files.recover(path, *known_states)) is not None:
                left.append((os.fsdecode(path), f"{CHANGED}; that version is now at {os.fsdecode(aside_path)}"))
        return Undone(left=tuple(left))

    def _apply(self, entry: StoredEntry, saved: StoredEntry) -> Undone:
        """Restore the files of an entry that are not restored yet, and remove the entry from its stack."""
        result = Undone(labels=(entry.label,), safety=(saved.id,))
        if entry.whole is not None:
            result += self._restore_workspace(entry.whole)
        failures: list[Unavailable] = []
        for path, target in entry.states.items():
            try:
                result += self._restore_file(path, target, saved.states[path])
            except Unavailable as error:
                failures.append(error)
        if failures:
            raise failures[0] if len(failures) == 1 else Unavailable(" ".join(map(str, failures)))
        removed_folders = self._files.remove_folders(entry.folders)
        with self._storage.transaction():
            snapshot_ids = [*self._storage.forget([entry.id]), *self._storage.evict(self._max_snapshots)]
        self._release_snapshots(snapshot_ids)
        return result + Undone(deleted=tuple(map(os.fsdecode, removed_folders)))

    def _restore_workspace(self, id: str) -> Undone:
        try:
            result = self._require_snapshots().restore(id)
        except NotFound as error:  # the snapshot was deleted, so that the entry is useless
            return Undone(left=(("the workspace", str(error)),))
        left = [pair for name in ("conflicts", "missing", "left") for pair in getattr(result, name, ())]
        return Undone(wholes=(id,), left=tuple(left))

    def _restore_file(self, path: bytes, target: FileState, expected: FileState) -> Undone:
        """Restore a file, if its current state is the known one."""
        name, current = os.fsdecode(path), self._files.read_state(path)
        if current == target:
            return Undone()
        if current.kind == OTHER:
            return Undone(left=((name, "it is no longer a file"),))
        if current != expected or not self._files.put(
            path, target, self._storage.read_part, expected
        ):  # `put` checks again
            return Undone(left=((name, CHANGED),))
        return Undone(deleted=(name,)) if target.kind == ABSENT else Undone(restored=(name,))

    # -- keeping

    def _add_entry(self, stack: str, label: str, paths: Iterable[bytes], *, any_kind: bool = False) -> int:
        with self._storage.transaction():
            states = {path: self._files.read_state(path, self._storage.store_part) for path in dict.fromkeys(paths)}
            for path, state in states.items():
                if state.kind == OTHER and not any_kind:
                    raise InvalidInput(f"{escape_path(path)} is not a file; the undo stack keeps files only.")
            missing = dict.fromkeys(folder for path in states for folder in self._files.missing_folders(path))
            return self._storage.add(stack, label, states, list(missing))

    def _release_snapshots(self, snapshot_ids: Iterable[str]) -> None:
        for id in snapshot_ids:
            self._require_snapshots().release(id)

    def _require_snapshots(self) -> WholeWorkspaceSnapshots:
        if self._workspace_snapshots is None:
            raise InvalidInput("Name the paths: this stack cannot take snapshots of the whole workspace.")
        return self._workspace_snapshots

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the stack against other threads and processes. The lock of a killed process is released.

        The lock is reentrant in a thread, because a workspace callback for a snapshot may read the stack.
        """
        with self._thread_lock:
            if self._is_locked:
                yield
                return
            with self._storage.locked():
                self._is_locked = True
                try:
                    yield
                finally:
                    self._is_locked = False


def _require_list(paths: Iterable[str | os.PathLike[str]]) -> Iterable[str | os.PathLike[str]]:
    """Check that `paths` is not a single path: iterating over a string would yield its characters."""
    if isinstance(paths, str | bytes):
        raise InvalidInput(f"paths={paths!r} is one path; write paths=[{paths!r}].")
    return paths


def _undo_entry(entry: StoredEntry) -> UndoEntry:
    created_at = datetime.fromtimestamp(entry.created_at, UTC)
    return UndoEntry(entry.id, entry.label, created_at, tuple(map(os.fsdecode, entry.states)), entry.whole)
