"""The undo stack: the state of files before each call that modified them, a thin layer over the engine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

from agentgit.errors import InvalidInput
from agentgit.workspace.engine import PRUNED, Engine
from agentgit.workspace.values import FileCheckpoint, Restored


class UndoStack:
    """The state of files before each call that modified them, as `Workspace.undo_stack`. It survives a restart.

    Args:
        max_snapshots: The maximum number of entries, which can be set at any time; the oldest are removed first.
    """

    def __init__(self, engine: Engine, max_snapshots: int = 50) -> None:
        engine.files_for("the undo stack")
        self._engine, self._catalog, self.max_snapshots = engine, engine.catalog, max_snapshots

    def snapshot(self, label: str, paths: Iterable[str | os.PathLike[str]] | None = None) -> str:
        """Save the state of files before a call modifies them, and return the id of the entry.

        Args:
            label: The label of the entry, like `edit_file: a.txt`.
            paths: The paths of files and directories, which need not exist; None for the whole workspace.

        Raises:
            InvalidInput: A path is outside of the workspace.
            Unavailable: The workspace cannot be read, or the storage cannot be written.
        """
        with self._engine.locked():
            found = self._engine.paths.relative_paths(paths)
            entry = self._engine.save_entry(label, None if found is None else tuple(self._resolve(found)))
            self._evict_beyond(self.max_snapshots)
            return entry.id

    def peek(self) -> FileCheckpoint | None:
        """Return the newest entry, which `undo` uses next; None if there is none."""
        return self.history[-1] if self.history else None

    @property
    def depth(self) -> int:
        """The number of entries that can be undone."""
        return len(self.history)

    @property
    def history(self) -> tuple[FileCheckpoint, ...]:
        """The entries, oldest first. `message` is the label; `files_changed` has its paths."""
        return tuple(row.snapshot for row in self._catalog.undo_entries())

    def clear(self) -> None:
        """Delete all entries, and free their disk space."""
        with self._engine.locked():
            self._evict_beyond(0)
            self._engine.collect()

    def plan(self, n: int = 1) -> tuple[Restored, ...]:
        """Return what `undo(n)` would do to the current files, the newest entry first.

        Args:
            n: The number of entries, as `undo` takes it.
        """
        rows = self._catalog.undo_entries()[::-1][:n]
        return tuple(self._engine.plan(row.snapshot.id, paths=row.paths) for row in rows)

    def undo(self, n: int = 1) -> tuple[Restored, ...]:
        """Undo the last entries, the newest first; the `message` of each result is the label of its entry.

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
            finished = self._engine.finished
            done = [finished[0]] if finished is not None and finished[1] else []
            while len(done) < n and (rows := self._catalog.undo_entries()):
                done.append(self._engine.restore(rows[-1].snapshot.id, paths=rows[-1].paths, is_undo=True))
            self._evict_beyond(self.max_snapshots)
        return tuple(done)

    def _evict_beyond(self, limit: int) -> None:
        rows = self._catalog.undo_entries()
        self._engine.delete(rows[: max(0, len(rows) - limit)], PRUNED)

    def _resolve(self, paths: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the paths of files and, where one is a symbolic link, the path that it leads to."""
        engine = self._engine
        for path in paths:
            target = engine.paths.relative(os.path.realpath(os.path.join(engine.root, os.fsdecode(path))))
            yield from dict.fromkeys((path, target))
