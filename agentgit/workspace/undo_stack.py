"""The undo stack: the state of files before each call that modified them, a thin layer over the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from agentgit.errors import InvalidInput, NotFound
from agentgit.workspace.catalog import CatalogRow
from agentgit.workspace.engine import Engine
from agentgit.workspace.files import MAX_FILE_SIZE
from agentgit.workspace.locations import create_storage, resolve_workspace
from agentgit.workspace.values import UNDO, JsonLike, Restored, Undone, escape_surrogates

REDO, SAFETY = "redo", "safety"
"""The stack of an entry that can be redone, and of one that was undone before another entry was added."""


@dataclass(frozen=True)
class UndoEntry(JsonLike):
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


class UndoStack:
    """The state of files before each call that modified them. It survives a restart, and a kill at any moment.

    Args:
        workspace_dir: The directory of the files.
        storage_dir: The storage of the workspace; None for the default one. `Workspace.undo_stack` has the same
            entries.
        max_snapshots: The maximum number of entries; the oldest are removed first.
        engine: The engine of a workspace that is open already.

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
        engine: Engine | None = None,
    ) -> None:
        if max_snapshots < 1:
            raise InvalidInput(f"max_snapshots must be 1 or more, not {max_snapshots}.")
        self._max_snapshots = max_snapshots
        if engine is None:
            root = resolve_workspace(workspace_dir)
            engine = Engine(root, create_storage(storage_dir, root), None, None, (), MAX_FILE_SIZE)
        engine.files_for("the undo stack")
        self._engine, self._catalog = engine, engine.catalog

    # -- what is on it

    def snapshot(self, label: str, paths: Iterable[str | os.PathLike[str]] | None = None) -> int:
        """Save the state of files before a call modifies them, and return the id of the entry.

        Args:
            label: The label of the entry, like `edit_file: a.txt`.
            paths: The paths of the files, which need not exist; None for the whole workspace.

        Raises:
            InvalidInput: A path is outside of the workspace or not a file.
            Unavailable: A file cannot be read, or the storage cannot be written.
        """
        if isinstance(paths, str | bytes):
            raise InvalidInput(f"paths={paths!r} is one path; write paths=[{paths!r}].")
        with self._engine.locked():
            names = None if paths is None else list(self._resolve(paths))
            row = self._engine.save_undo(escape_surrogates(label), UNDO, names)
            self._catalog.move([one.snapshot.id for one in self._catalog.stacked(REDO)], SAFETY)
            self._evict(self._max_snapshots)
            return row.number

    def peek(self) -> UndoEntry | None:
        """Return the newest entry, which `undo` uses next; None if there is none."""
        return self.history[-1] if self.history else None

    @property
    def depth(self) -> int:
        """The number of entries that can be undone."""
        return len(self.history)

    @property
    def history(self) -> tuple[UndoEntry, ...]:
        """The entries, oldest first."""
        return tuple(map(_entry, self._catalog.stacked(UNDO)))

    @property
    def safety(self) -> tuple[UndoEntry, ...]:
        """The entries with the files as they were before each undo, oldest first. `redo(id)` restores one."""
        return tuple(map(_entry, self._catalog.stacked(REDO, SAFETY)))

    def clear(self) -> None:
        """Delete all entries, and free their disk space."""
        with self._engine.locked():
            self._evict(0)
            self._engine.collect()

    def close(self) -> None:
        """Close the storage. All entries are already on disk."""
        self._catalog.close()

    # -- going back and forth

    def undo(self, n: int = 1) -> Undone:
        """Undo the newest entries: restore their files, and save the current ones for `redo`.

        An entry whose undo was interrupted by a kill is completed first and counts toward `n`.

        Args:
            n: The number of entries to undo; all if there are fewer.

        Raises:
            InvalidInput: `n` is less than one.
            Unavailable: A file cannot be written. The entry stays on the stack.
        """
        if n < 1:
            raise InvalidInput(f"The number of entries to undo must be 1 or more, not {n}.")
        with self._engine.locked():
            result = self._interrupted(UNDO)
            while len(result.labels) < n and (rows := self._catalog.stacked(UNDO)):
                result += self._swap(rows[-1], REDO)
            return result

    def redo(self, id: int | None = None) -> Undone:
        """Revert the newest undo, and save the current files on the stack.

        Args:
            id: The id of an entry of `safety`; None for the newest undo, if no entry was added since.

        Raises:
            NotFound: There is no such entry.
            Unavailable: A file cannot be written. The entry stays where it is.
        """
        with self._engine.locked():
            if result := self._interrupted(REDO):
                return result
            stacks = (REDO,) if id is None else (REDO, SAFETY)
            rows = [row for row in self._catalog.stacked(*stacks) if id in (None, row.number)]
            if id is not None and not rows:
                raise NotFound(f"There is no undo {id} to redo. Use the id that an undo returned.")
            return self._swap(rows[-1], UNDO) if rows else Undone()

    def _swap(self, row: CatalogRow, stack: str) -> Undone:
        """Save the current files of an entry on another stack, then restore the entry."""
        is_file = self._engine.files_for("the undo stack").is_file
        paths = None if row.paths is None else tuple(filter(is_file, row.paths))
        saved = self._engine.save_undo(row.snapshot.message, stack, paths)
        try:
            done = self._engine.restore_from(row, saved.snapshot.id, paths, is_undo=True)
        except BaseException:  # a later undo begins anew; what this one has replaced can be redone by its id
            self._catalog.move([saved.snapshot.id], SAFETY)
            raise
        self._evict(self._max_snapshots)
        blocked = [os.fsdecode(path) for path in row.paths or () if path not in (paths or ())]
        left = tuple((path, "it is no longer a file") for path in blocked)
        return _undone(row, done, saved.number) + Undone(left=left)

    def _interrupted(self, stack: str) -> Undone:
        """Return the result of the undo that a kill interrupted and the lock has just completed."""
        if self._engine.finished is None or self._engine.finished[0].stack != stack:
            return Undone()
        row, done = self._engine.finished
        saved = self._catalog.get_row(done.safety or "")
        return _undone(row, done, saved.number if saved is not None else 0)

    def _evict(self, limit: int) -> None:
        """Delete the oldest entries beyond a limit."""
        stacks = (self._catalog.stacked(UNDO), self._catalog.stacked(REDO, SAFETY))
        self._engine.drop(row for rows in stacks for row in rows[: max(0, len(rows) - limit)])

    def _resolve(self, paths: Iterable[str | bytes | os.PathLike[str]]) -> Iterator[bytes]:
        """Yield the paths of files and, where one is a symbolic link, the path that it leads to."""
        root, is_file = os.fsencode(self._engine.root), self._engine.files_for("the undo stack").is_file
        for path in paths:
            parent, name = os.path.split(os.path.join(root, os.fsencode(path)))
            full = os.path.join(os.path.realpath(parent), name) if b"\0" not in parent + name else b""
            for one in dict.fromkeys((full, os.path.realpath(full))):
                relative = os.path.relpath(one, root) if one.startswith(root.rstrip(b"/") + b"/") else b""
                if name in (b"", b".", b"..") or not relative or not is_file(relative):
                    raise InvalidInput(
                        f"{os.fsdecode(path)!r} is not a file inside the workspace {self._engine.root}; the undo stack "
                        "keeps files only."
                    )
                yield relative


def _entry(row: CatalogRow) -> UndoEntry:
    paths = tuple(map(os.fsdecode, row.paths or ()))
    whole = row.snapshot.id if row.paths is None else None
    return UndoEntry(row.number, row.snapshot.message, row.snapshot.timestamp, paths, whole)


def _undone(row: CatalogRow, done: Restored, saved: int) -> Undone:
    label = Undone(labels=(row.snapshot.message,), safety=(saved,))
    if row.paths is None:
        return label + Undone(wholes=(row.snapshot.id,), left=(*done.conflicts, *done.missing, *done.left))
    return label + Undone(restored=done.restored, deleted=done.deleted + done.deleted_directories, left=done.conflicts)
