"""The base class of `Workspace`: its catalog and engine, its lock, pruning, and the normalization of paths."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgit.errors import AgentGitError, Ambiguous, InvalidInput, NotFound
from agentgit.workspace.catalog import PATIENCE, Catalog, CatalogRow
from agentgit.workspace.engines.custom import CustomEngine
from agentgit.workspace.engines.directory import DirectoryTrees
from agentgit.workspace.engines.files import Expected, FileEngine
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.locations import exclusive, record_storage
from agentgit.workspace.restore import Progress
from agentgit.workspace.scan.excluded import ExcludedRecord
from agentgit.workspace.trees import Trees, TreeWrite
from agentgit.workspace.undo.stack import UndoStack
from agentgit.workspace.values import FileCheckpoint, Restored, plain, utc_datetime

if TYPE_CHECKING:
    from agentgit.workspace.values import Environment

log = logging.getLogger(__name__)

CREATED, RESTORED, DELETED, PRUNED, FAILED = EVENTS = ("created", "restored", "deleted", "pruned", "failed")

MANUAL, AUTO, SAFETY = "manual", "auto", "safety"
"""The kinds of snapshots."""

LAST = "last"
"""A value of `expect` in `restore`, instead of a snapshot: the files as they were last saved or restored."""

POSITION, NUMBER, PLACE = "position", "number", "place"
"""Keys in the catalog: the current snapshot, the last number of a generated name, the owner of the storage."""

Paths = Iterable[str | os.PathLike[str]] | None


class StoredTree(NamedTuple):
    """A tree to store as a snapshot.

    Args:
        number: Its number.
        base: The number of an earlier tree that it changes; None for an empty tree.
        changes: What it changes there.
        left: The paths that it leaves out.
    """

    number: int
    base: int | None
    changes: Iterable[TreeWrite]
    left: ExcludedRecord


class Base(ABC):
    """The internals of `Workspace`, which sets these fields."""

    max_checkpoints: int | None
    _root: str
    _storage: str
    _patterns: tuple[str, ...]
    _max_file_size: int
    _environment: str | Environment
    _listeners: dict[str, list[Callable[[Any], None]]]
    _thread: threading.RLock
    _finished: Sequence[Restored] = ()

    @property
    @abstractmethod
    def undo_stack(self) -> UndoStack:
        """The undo stack: the files as they were before each call that modified them."""

    @property
    def _undo_dir(self) -> str:
        return os.path.join(self._storage, "undo")

    @cached_property
    def _catalog(self) -> Catalog:
        return Catalog(os.path.join(self._storage, "catalog.db"))

    @cached_property
    def _engine(self) -> FileEngine | CustomEngine:
        if not isinstance(self._environment, str):
            return CustomEngine(self._environment, self._catalog)
        if self._environment not in ("git", "directory"):
            raise InvalidInput(f'environment must be "git", "directory" or an object, not {self._environment!r}.')
        folder = os.path.join(self._storage, self._environment)
        trees: Trees = GitTrees(folder) if self._environment == "git" else DirectoryTrees(folder)
        return FileEngine(self._root, self._storage, trees, self._catalog, self._patterns, self._max_file_size)

    def _claim(self) -> None:
        """Record this workspace as the owner of the storage. A workspace that was moved keeps its storage.

        Raises:
            InvalidInput: The storage belongs to another workspace, whose files a restore would write here.
        """
        environment = self._environment if isinstance(self._environment, str) else "own"
        here = [self._storage, environment, self._root, os.stat(self._root).st_ino]
        before = json.loads(self._catalog.get(PLACE) or "null")
        if before and before[:1] == here[:1]:
            _, held, root, inode = before
            if held != environment or (root != self._root and inode != here[-1] and os.path.isdir(root)):
                raise InvalidInput(
                    f'The storage {self._storage} has the snapshots of {root}, with environment "{held}". '
                    "Use another storage_dir."
                )
        if before != here:
            self._catalog.set(PLACE, json.dumps(here))
        record_storage(self._storage, self._root)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the workspace for this thread and process, finish interrupted restores, and report errors."""
        with self._thread:
            if getattr(self, "_inner", False):
                yield
                return
            with exclusive(os.path.join(self._storage, "lock"), patience=PATIENCE, what=f"the workspace {self._root}"):
                self._inner = True
                try:
                    self._finished = self._engine.finish()
                    for done in self._finished:
                        self._catalog.set(POSITION, done.id)
                        self._tell(RESTORED, done)
                    yield
                except BaseException as error:
                    self._engine.forget()
                    if isinstance(error, AgentGitError):
                        self._tell(FAILED, error)
                    raise
                finally:
                    self._inner = False

    def _take_snapshot(
        self,
        new: FileCheckpoint,
        paths: tuple[bytes, ...] | None = None,
        progress: Progress | None = None,
        *,
        anew: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot; if `anew` is False, first look for an existing one of the current files."""
        saved = self._engine.snapshot(lambda files: replace(new, files_changed=files), paths, progress, always_new=anew)
        self._catalog.set(POSITION, saved.id)
        if saved.id == new.id:
            self._tell(CREATED, saved)
            self._prune()
        return saved

    @contextmanager
    def _reporting_safety_snapshot(self, wanted: CatalogRow) -> Iterator[None]:
        """Report the safety snapshot that the block takes, even if the block fails. Prune neither it nor the target."""
        before = self._catalog.rows(limit=1)
        try:
            yield
        finally:
            newest = self._catalog.rows(limit=1)
            if newest != before:
                self._tell(CREATED, newest[0].snapshot)
                self._prune(spared=(newest[0].snapshot.id, wanted.snapshot.id))

    def _new(
        self,
        message: str,
        kind: str,
        files: int = 0,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        pinned: bool = False,
    ) -> FileCheckpoint:
        try:
            kept = json.loads(json.dumps(dict(metadata or {})))
        except (TypeError, ValueError) as error:
            raise InvalidInput(f"metadata must be JSON: {error}. Use strings, numbers, lists and dicts.") from error
        now, called = utc_datetime(time.time_ns()), plain(name) if name else None
        return FileCheckpoint(secrets.token_hex(8), called, plain(message), now, files, kept, kind, pinned)

    def store_trees(self, trees: Iterable[StoredTree], holder: str) -> dict[int, str]:
        """Store trees as snapshots, and return the id of each by the number of its tree. All succeed, or none.

        Args:
            trees: The trees, in order. The directory of the workspace is not changed.
            holder: The name of the holder that pins the snapshots.

        Raises:
            InvalidInput: The workspace has a custom environment.
            Unavailable: The storage cannot be written.
        """
        with self._locked():
            if not isinstance(self._engine, FileEngine):
                raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')
            made: dict[int, str] = {}
            keys: dict[int, str] = {}
            try:
                for tree in trees:
                    new = self._new("imported", AUTO)
                    base = keys[tree.base] if tree.base is not None else None
                    keys[tree.number] = self._engine.put(new, base, tree.changes, tree.left)
                    made[tree.number] = new.id
                    self._catalog.hold(new.id, holder)
            except BaseException:
                self.discard(made.values())
                raise
        return made

    def discard(self, ids: Iterable[str]) -> None:
        """Remove snapshots that `store_trees` has stored."""
        self._catalog.remove(ids)

    def _prune(self, spared: Sequence[str] = ()) -> None:
        if self.max_checkpoints is None:
            return
        free = [row for row in self._catalog.rows(oldest_first=True) if not row.snapshot.pinned]
        if len(free) > self.max_checkpoints and os.path.exists(self._undo_dir):
            needed = self.undo_stack.wholes
            free = [row for row in free if row.snapshot.id not in needed]
        may_go = [row for row in free if row.snapshot.id not in spared]
        if old := may_go[: max(0, len(free) - self.max_checkpoints)]:
            self._drop(old, PRUNED)

    def _drop(self, rows: Sequence[CatalogRow], event: str) -> None:
        self._catalog.remove(row.snapshot.id for row in rows)
        snapshots = [row.snapshot for row in rows]
        self._tell(event, snapshots if event == PRUNED else snapshots[0])
        if len(self._catalog.waste()) >= max(1, (self.max_checkpoints or 100) // 10):
            self._collect()

    def _collect(self) -> None:
        """Free space. A failure is only reported, because the requested work is done and a later call tries again."""
        try:
            self._engine.collect()
        except Exception as error:
            log.warning("Could not free the space of old snapshots of %s", self._root, exc_info=True)
            self._tell(FAILED, error)

    def _find(self, ref: str) -> CatalogRow | None:
        found = self._catalog.find(plain(ref)) if ref else []
        if len(found) > 1:
            ids = tuple(row.snapshot.id for row in found)
            raise Ambiguous(f"{len(found)} snapshots begin with {ref!r}; write more of the id.", candidates=ids)
        return found[0] if found else None

    def _row(self, ref: str) -> CatalogRow:
        row = self._find(ref)
        if row is None:
            near = tuple(row.snapshot.name or row.snapshot.id for row in self._catalog.rows(limit=3))
            raise NotFound(f"There is no snapshot {ref!r} of {self._root}. List them with `list()`.", near=near)
        return row

    def _expected(self, ref: str) -> Expected:
        if ref == LAST and self._find(ref) is None:
            return Expected("they were last saved or restored", self._catalog.get("key"))
        row = self._row(ref)
        return Expected(row.snapshot.id, row.tree)

    def _inside(self, paths: Paths) -> tuple[bytes, ...] | None:
        """Return paths relative to the workspace, without following links in it.

        Raises:
            InvalidInput: A path is outside the workspace, or `paths` is not a list.
        """
        if paths is None:
            return None
        if isinstance(paths, str | bytes | os.PathLike):
            raise InvalidInput("paths must be a list of paths; write [path] for one.")
        return tuple(self._as_written(path) for path in paths)

    def _as_written(self, path: str | os.PathLike[str]) -> bytes:
        """Return a path relative to the workspace, even if it is absolute and reaches the workspace through a link."""
        above = whole = self._whole(path)
        while above != os.path.dirname(above):
            if above == self._root or os.path.realpath(above) == self._root:
                return b"" if above == whole else os.fsencode(os.path.relpath(whole, above))
            above = os.path.dirname(above)
        return self.relative(path)

    def _whole(self, path: str | os.PathLike[str]) -> str:
        """Return the absolute form of a path.

        Raises:
            InvalidInput: It cannot be the path of a file.
        """
        try:
            text = os.fsdecode(path)
            if text and b"\0" not in os.fsencode(text):
                return os.path.normpath(os.path.join(self._root, text))
        except (TypeError, UnicodeEncodeError):
            pass
        raise InvalidInput(f"{path!r} is not the path of a file.")

    def _paths_to_scan(self, paths: Paths) -> tuple[bytes, ...] | None:
        """Return the paths to scan: the given ones as written, and with the links in their directories resolved."""
        inside = self._inside(paths)
        if inside is None or paths is None:
            return None
        return tuple(dict.fromkeys([*inside, *(self.relative(path) for path in paths if self.holds(path))]))

    def relative(self, path: str | os.PathLike[str]) -> bytes:
        """Return a path relative to the workspace, without following a link at its end.

        Raises:
            InvalidInput: It is outside the workspace.
        """
        whole = self._whole(path)
        real = os.path.join(os.path.realpath(os.path.dirname(whole)), os.path.basename(whole))
        if whole == self._root:
            return b""
        if not real.startswith(self._root + os.sep):
            raise InvalidInput(f"{os.fspath(path)!r} is outside the workspace {self._root}.")
        return os.fsencode(os.path.relpath(real, self._root))

    def holds(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a path is in the workspace."""
        try:
            self.relative(path)
        except InvalidInput:
            return False
        return True

    def _tell(self, event: str, value: Any) -> None:
        for callback in self._listeners[event]:
            try:
                callback(value)
            except Exception:
                log.exception("A callback of the event %s of %s failed", event, self._root)
