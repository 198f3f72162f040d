"""The undo stack: the state of files before each call that modified them, a thin layer over the engine."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from agentgit.errors import InvalidInput, NotFound
from agentgit.values import escape_path
from agentgit.workspace.disk import Disk
from agentgit.workspace.engine import Engine
from agentgit.workspace.files import MAX_FILE_SIZE
from agentgit.workspace.left_out import parent_folders
from agentgit.workspace.locations import create_storage, resolve_workspace
from agentgit.workspace.restore import RestoreOutcome, RestoreSteps
from agentgit.workspace.trees import (
    PLAIN_DIRECTORY,
    Changes,
    TreeChange,
    TreeEntry,
    decode_entries,
    encode_entries,
)
from agentgit.workspace.values import UNDO, JsonLike, Undone, escape_surrogates

REDO, SAFETY = "redo", "safety"
"""The stack of an entry that can be redone, and of one that was undone before another entry was added."""

MAX_LINKS = 40
"""The maximum length of a chain of symbolic links, as in Linux."""


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


class _Files(NamedTuple):
    """The files of an entry by path, None for an absent one, and the directories that did not exist."""

    entries: dict[bytes, TreeEntry | None]
    folders: list[bytes]

    def encode(self) -> str:
        folders = [path.decode("latin-1") for path in self.folders]
        return json.dumps({"files": encode_entries(self.entries), "folders": folders})

    @classmethod
    def decode(cls, text: str) -> _Files:
        data = json.loads(text)
        return cls(decode_entries(data["files"]), [path.encode("latin-1") for path in data["folders"]])


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
            names = None if paths is None else [name for path in paths for name in self._resolve(path)]
            id = self._add(UNDO, label, names)
            self._catalog.move_undo([row[0] for row in self._catalog.undo_rows(REDO)], SAFETY)
            self._evict(self._max_snapshots)
            return id

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
        return tuple(entry for entry, _ in self._entries(UNDO))

    @property
    def safety(self) -> tuple[UndoEntry, ...]:
        """The entries with the files as they were before each undo, oldest first. `redo(id)` restores one."""
        return tuple(entry for entry, _ in self._entries(REDO, SAFETY))

    def clear(self) -> None:
        """Delete all entries, and free their disk space."""
        with self._engine.locked():
            self._evict(0)
            self._engine.collect()

    def close(self) -> None:
        """Close the storage. All entries are already on disk."""
        self._engine.close()

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
            result = self._interrupted(REDO)
            while len(result.labels) < n and (entries := self._entries(UNDO)):
                result += self._swap(*entries[-1], REDO)
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
            if result := self._interrupted(UNDO):
                return result
            stacks = (REDO,) if id is None else (REDO, SAFETY)
            entries = [pair for pair in self._entries(*stacks) if id in (None, pair[0].id)]
            if id is not None and not entries:
                raise NotFound(f"There is no undo {id} to redo. Use the id that an undo returned.")
            return self._swap(*entries[-1], UNDO) if entries else Undone()

    def _swap(self, entry: UndoEntry, files: _Files, stack: str) -> Undone:
        """Save the current files of an entry on another stack, then restore the entry."""
        paths = None if entry.whole is not None else list(files.entries)
        saved = self._add(stack, entry.label, paths, any_kind=True)
        result = Undone(labels=(entry.label,), safety=(saved,))
        try:
            if entry.whole is not None:
                result += self._restore_workspace(entry.id, entry.whole, saved)
            else:
                result += self._restore_files(entry.id, files, saved)
        except BaseException:  # a later undo begins anew; what this one has replaced can be redone by its id
            self._catalog.move_undo([saved], SAFETY)
            raise
        self._evict(self._max_snapshots)
        return result

    def _restore_workspace(self, id: int, snapshot: str, saved: int) -> Undone:
        try:
            done = self._engine.restore(snapshot, undo=(id, saved))
        except NotFound as error:  # the snapshot was deleted, so that the entry is useless
            self._catalog.move_undo([id], None)
            return Undone(left=(("the workspace", str(error)),))
        self._catalog.move_undo([id], None)
        self._release([snapshot])
        return Undone(wholes=(snapshot,), left=(*done.conflicts, *done.missing, *done.left))

    def _restore_files(self, id: int, files: _Files, saved: int) -> Undone:
        now = next(files for entry, files in self._entries(UNDO, REDO) if entry.id == saved)
        changes: Changes = {path: TreeChange(TreeEntry(PLAIN_DIRECTORY), None) for path in files.folders}
        left: list[tuple[str, str]] = []
        for path, wanted in files.entries.items():
            current = now.entries[path]
            if _is_no_file(current) or self._is_blocked(path):
                left.append((os.fsdecode(path), "it is no longer a file"))
            elif current != wanted:
                changes[path] = TreeChange(current, wanted)
        record = self._engine.files.record("", "", RestoreSteps(changes), undo=(id, saved))
        self._catalog.begin(record.encode())
        outcome, _ = self._engine.run(record)
        return _undone(outcome) + Undone(left=tuple(left))

    def _interrupted(self, stack: str) -> Undone:
        """Return the result of the undo that a kill interrupted and the lock has just completed."""
        if self._engine.finished is None or self._engine.finished[0].undo is None:
            return Undone()
        record, outcome, result = self._engine.finished
        assert record.undo is not None  # noqa: S101 - checked above
        saved = [entry for entry, _ in self._entries(stack) if entry.id == record.undo[1]]
        if not saved:
            return Undone()
        label = Undone(labels=(saved[0].label,), safety=(saved[0].id,))
        return label + (Undone(wholes=(result.id,)) if record.snapshot else _undone(outcome))

    # -- keeping

    def _entries(self, *stacks: str) -> list[tuple[UndoEntry, _Files]]:
        entries = []
        for id, _, label, created_at, whole, encoded in self._catalog.undo_rows(*stacks):
            files = _Files.decode(encoded)
            paths = tuple(map(os.fsdecode, files.entries))
            entries.append((UndoEntry(id, label, datetime.fromtimestamp(created_at, UTC), paths, whole), files))
        return entries

    def _add(self, stack: str, label: str, paths: list[bytes] | None, *, any_kind: bool = False) -> int:
        """Save the files at some paths, or the whole workspace, as an entry of a stack, and return its id."""
        whole = self._engine.save(kind=UNDO).id if paths is None else None
        files: dict[bytes, TreeEntry | None] = {}
        disk = Disk(os.fsencode(self._engine.root))
        with self._engine.files.objects.writing() as writer:
            for path in paths or ():
                files[path] = disk.read_entry(path, writer)
                if _is_no_file(files[path]) and not any_kind:
                    raise InvalidInput(f"{escape_path(path)} is not a file; the undo stack keeps files only.")
        folders = dict.fromkeys(parent for path in files for parent in parent_folders(path) if not self._exists(parent))
        return self._catalog.add_undo(stack, escape_surrogates(label), whole, _Files(files, list(folders)).encode())

    def _exists(self, path: bytes) -> bool:
        return os.path.lexists(os.path.join(os.fsencode(self._engine.root), path))

    def _is_blocked(self, path: bytes) -> bool:
        """Return whether something that is not a directory is in the place of a parent of a path."""
        root = os.fsencode(self._engine.root)
        parents = (os.path.join(root, parent) for parent in parent_folders(path))
        return any(
            os.path.islink(parent) or (os.path.lexists(parent) and not os.path.isdir(parent)) for parent in parents
        )

    def _evict(self, limit: int) -> None:
        """Delete the oldest entries beyond a limit."""
        stacks = (self._entries(UNDO), self._entries(REDO, SAFETY))
        old = [entry for entries in stacks for entry, _ in entries[: max(0, len(entries) - limit)]]
        self._catalog.move_undo([entry.id for entry in old], None)
        self._release([entry.whole for entry in old if entry.whole is not None])
        self._engine.drop(f"undo {entry.id}" for entry in old if entry.paths)

    def _release(self, snapshots: Iterable[str]) -> None:
        """Delete snapshots of the whole workspace, unless they have been pinned since."""
        for id in snapshots:
            row = self._engine.find(id)
            if row is not None and not row.snapshot.pinned:
                self._engine.delete([row])

    def _resolve(self, path: str | bytes | os.PathLike[str]) -> Iterator[bytes]:
        """Yield the path of a file and, if it is a symbolic link, the paths that it leads to."""
        root, number = os.fsencode(self._engine.root), 0
        absolute = os.path.join(root, os.fsencode(path))
        while True:
            parent, name = os.path.split(absolute)
            full = os.path.join(os.path.realpath(parent), name) if b"\0" not in absolute else b""
            if name in (b"", b".", b"..") or not full.startswith(root.rstrip(b"/") + b"/"):
                raise InvalidInput(f"{os.fsdecode(path)!r} is not a file inside the workspace {self._engine.root}.")
            yield os.path.relpath(full, root)
            if not os.path.islink(full):
                return
            number += 1
            if number > MAX_LINKS:
                raise InvalidInput(f"{os.fsdecode(path)!r} is a symbolic link that leads to itself.")
            absolute = os.path.join(os.path.dirname(full), os.readlink(full))


def _is_no_file(entry: TreeEntry | None) -> bool:
    """Return whether there is something else than a file or a link: only those have an id."""
    return entry is not None and not entry.oid


def _undone(outcome: RestoreOutcome) -> Undone:
    deleted = map(os.fsdecode, (*outcome.deleted, *outcome.removed_folders))
    left = tuple((os.fsdecode(path), why) for path, why in outcome.conflicts)
    return Undone(restored=tuple(map(os.fsdecode, outcome.restored)), deleted=tuple(deleted), left=left)
