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
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from agentgit.errors import AgentGitError, Ambiguous, InvalidInput, NotFound
from agentgit.workspace.catalog import PATIENCE, Catalog, CatalogRow
from agentgit.workspace.engines.custom import CustomEngine
from agentgit.workspace.engines.directory import DirectoryTrees
from agentgit.workspace.engines.files import ExpectedState, FileEngine
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.locations import exclusive_lock, record_storage, undo_storage
from agentgit.workspace.restore import RestoreProgress
from agentgit.workspace.scan.excluded import ExcludedRecord
from agentgit.workspace.trees import Trees, TreeWrite
from agentgit.workspace.undo_stack import UndoStack
from agentgit.workspace.values import FileCheckpoint, Restored, escape_surrogates, utc_datetime

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
    """A tree to store as a snapshot."""

    number: int
    base: int | None
    changes: Iterable[TreeWrite]
    excluded: ExcludedRecord


class WorkspaceBase(ABC):
    """The internals of `Workspace`, which sets these fields."""

    max_checkpoints: int | None
    _root: str
    _storage: str
    _patterns: tuple[str, ...]
    _max_file_size: int
    _environment: str | Environment
    _listeners: dict[str, list[Callable[[Any], None]]]
    _thread_lock: threading.RLock
    _finished_restores: Sequence[Restored] = ()

    @property
    @abstractmethod
    def undo_stack(self) -> UndoStack:
        """The undo stack: the files as they were before each call that modified them."""

    @property
    def _undo_dir(self) -> str:
        return undo_storage(self._storage)

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

    def _claim_storage(self) -> None:
        """Record this workspace as the owner of the storage. A workspace that was moved keeps its storage."""
        environment = self._environment if isinstance(self._environment, str) else "own"
        owner = [self._storage, environment, self._root, os.stat(self._root).st_ino]
        recorded = json.loads(self._catalog.get(PLACE) or "null")
        if recorded and recorded[:1] == owner[:1]:
            _, recorded_environment, recorded_root, recorded_inode = recorded
            if recorded_environment != environment or (
                recorded_root != self._root and recorded_inode != owner[-1] and os.path.isdir(recorded_root)
            ):
                raise InvalidInput(
                    f"The storage {self._storage} has the snapshots of {recorded_root}, with environment "
                    f'"{recorded_environment}". '
                    "Use another storage_dir."
                )
        if recorded != owner:
            self._catalog.set(PLACE, json.dumps(owner))
        record_storage(self._storage, self._root)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Lock the workspace for this thread and process, finish interrupted restores, and report errors."""
        with self._thread_lock:
            if getattr(self, "_inner", False):
                yield
                return
            with exclusive_lock(
                os.path.join(self._storage, "lock"), timeout=PATIENCE, description=f"the workspace {self._root}"
            ):
                self._inner = True
                try:
                    self._finished_restores = self._engine.recover()
                    for restored in self._finished_restores:
                        self._catalog.set(POSITION, restored.id)
                        self._notify_listeners(RESTORED, restored)
                    yield
                except BaseException as error:
                    self._engine.discard_cache()
                    if isinstance(error, AgentGitError):
                        self._notify_listeners(FAILED, error)
                    raise
                finally:
                    self._inner = False

    def _take_snapshot(
        self,
        new_snapshot: FileCheckpoint,
        paths: tuple[bytes, ...] | None = None,
        progress: RestoreProgress | None = None,
        *,
        always_new: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot; if `always_new` is False, first look for an existing one of the current files."""
        snapshot = self._engine.take_snapshot(new_snapshot, paths, progress, always_new=always_new)
        self._catalog.set(POSITION, snapshot.id)
        if snapshot.id == new_snapshot.id:
            self._notify_listeners(CREATED, snapshot)
            self._prune()
        return snapshot

    @contextmanager
    def _reporting_safety_snapshot(self, target: CatalogRow) -> Iterator[None]:
        """Report the safety snapshot that the block takes, even if the block fails. Prune neither it nor the target."""
        newest_before = self._catalog.rows(limit=1)
        try:
            yield
        finally:
            newest_after = self._catalog.rows(limit=1)
            if newest_after != newest_before:
                self._notify_listeners(CREATED, newest_after[0].snapshot)
                self._prune(protected_ids=(newest_after[0].snapshot.id, target.snapshot.id))

    def _new_snapshot(
        self,
        message: str,
        kind: str,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        pinned: bool = False,
    ) -> FileCheckpoint:
        return FileCheckpoint(
            secrets.token_hex(8),
            escape_surrogates(name) if name else None,
            escape_surrogates(message),
            utc_datetime(time.time_ns()),
            metadata=as_json(metadata),
            kind=kind,
            pinned=pinned,
        )

    def store_trees(self, trees: Iterable[StoredTree], holder: str) -> dict[int, str]:
        """Store trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        with self._locked():
            if not isinstance(self._engine, FileEngine):
                raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')
            ids: dict[int, str] = {}
            tree_keys: dict[int, str] = {}
            try:
                for tree in trees:
                    snapshot = self._new_snapshot("imported", AUTO)
                    base = tree_keys[tree.base] if tree.base is not None else None
                    tree_keys[tree.number] = self._engine.store_snapshot(snapshot, base, tree.changes, tree.excluded)
                    ids[tree.number] = snapshot.id
                    self._catalog.hold(snapshot.id, holder)
            except BaseException:
                self.discard(ids.values())
                raise
        return ids

    def discard(self, ids: Iterable[str]) -> None:
        """Remove snapshots that `store_trees` has stored."""
        self._catalog.remove(ids)

    def _prune(self, protected_ids: Sequence[str] = ()) -> None:
        if self.max_checkpoints is None:
            return
        unpinned = [row for row in self._catalog.rows(oldest_first=True) if not row.snapshot.pinned]
        if len(unpinned) > self.max_checkpoints and os.path.exists(self._undo_dir):
            needed_ids = self.undo_stack.wholes
            unpinned = [row for row in unpinned if row.snapshot.id not in needed_ids]
        candidates = [row for row in unpinned if row.snapshot.id not in protected_ids]
        if excess := candidates[: max(0, len(unpinned) - self.max_checkpoints)]:
            self._delete_snapshots(excess, PRUNED)

    def _delete_snapshots(self, rows: Sequence[CatalogRow], event: str) -> None:
        self._catalog.remove(row.snapshot.id for row in rows)
        snapshots = [row.snapshot for row in rows]
        self._notify_listeners(event, snapshots if event == PRUNED else snapshots[0])
        if len(self._catalog.unneeded_trees()) >= max(1, (self.max_checkpoints or 100) // 10):
            self._collect_garbage()

    def _collect_garbage(self) -> None:
        """Free space. A failure is only reported, because the requested work is done and a later call tries again."""
        try:
            self._engine.collect()
        except Exception as error:
            log.warning("Could not free the space of old snapshots of %s", self._root, exc_info=True)
            self._notify_listeners(FAILED, error)

    def _find_row(self, ref: str) -> CatalogRow | None:
        rows = self._catalog.find(escape_surrogates(ref)) if ref else []
        if len(rows) > 1:
            ids = tuple(row.snapshot.id for row in rows)
            raise Ambiguous(f"{len(rows)} snapshots begin with {ref!r}; write more of the id.", candidates=ids)
        return rows[0] if rows else None

    def _require_row(self, ref: str) -> CatalogRow:
        row = self._find_row(ref)
        if row is None:
            suggestions = tuple(row.snapshot.name or row.snapshot.id for row in self._catalog.rows(limit=3))
            raise NotFound(
                f"There is no snapshot {ref!r} of {self._root}. Workspace.list() lists them.", near=suggestions
            )
        return row

    def _resolve_expected(self, ref: str) -> ExpectedState:
        if ref == LAST and self._find_row(ref) is None:
            return ExpectedState("they were last saved or restored", self._catalog.get("key"))
        row = self._require_row(ref)
        return ExpectedState(row.snapshot.id, row.tree)

    def _relative_paths(self, paths: Paths) -> tuple[bytes, ...] | None:
        """Return paths relative to the workspace, without following links in it."""
        if paths is None:
            return None
        if isinstance(paths, str | bytes | os.PathLike):
            raise InvalidInput("paths must be a list of paths; write [path] for one.")
        return tuple(self._relative_as_written(path) for path in paths)

    def _relative_as_written(self, path: str | os.PathLike[str]) -> bytes:
        """Return a path relative to the workspace, even if it is absolute and reaches the workspace through a link."""
        ancestor = absolute = self._absolute_path(path)
        while ancestor != os.path.dirname(ancestor):
            if ancestor == self._root or os.path.realpath(ancestor) == self._root:
                return b"" if ancestor == absolute else os.fsencode(os.path.relpath(absolute, ancestor))
            ancestor = os.path.dirname(ancestor)
        return self.relative(path)

    def _absolute_path(self, path: str | os.PathLike[str]) -> str:
        """Return the absolute form of a path."""
        try:
            text = os.fsdecode(path)
            if text and b"\0" not in os.fsencode(text):
                return os.path.normpath(os.path.join(self._root, text))
        except (TypeError, UnicodeEncodeError):
            pass
        raise InvalidInput(f"{path!r} is not the path of a file.")

    def _paths_to_scan(self, paths: Paths) -> tuple[bytes, ...] | None:
        """Return the paths to scan: the given ones as written, and with the links in their directories resolved."""
        relative_paths = self._relative_paths(paths)
        if relative_paths is None or paths is None:
            return None
        return tuple(dict.fromkeys([*relative_paths, *(self.relative(path) for path in paths if self.holds(path))]))

    def relative(self, path: str | os.PathLike[str]) -> bytes:
        """Return a path relative to the workspace, without following a link at its end."""
        absolute = self._absolute_path(path)
        real = os.path.join(os.path.realpath(os.path.dirname(absolute)), os.path.basename(absolute))
        if absolute == self._root:
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

    def captures(self, path: str | os.PathLike[str]) -> bool:
        """Return whether snapshots have the file at a path: it is in the workspace, and not excluded."""
        return self.holds(path) and self._engine.captures(self.relative(path))

    def _notify_listeners(self, event: str, value: Any) -> None:
        for callback in self._listeners[event]:
            try:
                callback(value)
            except Exception:
                log.exception("A callback of the event %s of %s failed", event, self._root)


def as_json(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return metadata as it is stored."""
    try:
        stored: dict[str, Any] = json.loads(json.dumps(dict(metadata or {})))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be JSON: {error}. Use strings, numbers, lists and dicts.") from error
    return stored
