"""The engine of a workspace: its lock, its catalog, and snapshots of its files or of an environment of the user."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from agentgit.errors import AgentGitError, Ambiguous, InvalidInput, NotFound, Unavailable
from agentgit.values import count, escape_path
from agentgit.workspace.catalog import PATIENCE, PENDING, Catalog, CatalogRow
from agentgit.workspace.custom import CustomEnvironment
from agentgit.workspace.files import MAX_NAMED_PATHS, Captured, Files, RestoreRecord
from agentgit.workspace.left_out import LeftOutPaths
from agentgit.workspace.locations import WorkspacePaths, exclusive_lock, record_storage
from agentgit.workspace.objects import Objects
from agentgit.workspace.packs import PackWriter
from agentgit.workspace.restore import RestoreOutcome
from agentgit.workspace.scan import Progress
from agentgit.workspace.trees import TreeEntry, put_tree
from agentgit.workspace.values import (
    Environment,
    FileCheckpoint,
    Restored,
    RestorePlan,
    WorkspaceDiff,
    escape_surrogates,
    utc_datetime,
)

log = logging.getLogger(__name__)

CREATED, RESTORED, DELETED, PRUNED, FAILED = EVENTS = ("created", "restored", "deleted", "pruned", "failed")

MANUAL, AUTO, SAFETY = "manual", "auto", "safety"

LAST = "last"
"""A value of `expect` in `restore`, instead of a snapshot: the files as they were last saved or restored."""

POSITION, NUMBER, PLACE, NOT_OURS = "position", "number", "place", "left_out"
"""Keys in the catalog: the current snapshot, the last number of a generated name, the owner of the storage, and the
paths that no snapshot may contain and no restore may change."""


class StoredTree(NamedTuple):
    number: int
    entries: Mapping[bytes, TreeEntry]
    left_out: LeftOutPaths


class Engine:
    def __init__(
        self,
        root: str,
        storage: str,
        environment: str | Environment | None,
        max_checkpoints: int | None,
        patterns: tuple[str, ...],
        max_file_size: int,
    ) -> None:
        self.root, self.storage, self._max_checkpoints = root, storage, max_checkpoints
        self.paths = WorkspacePaths(root)
        self._patterns, self._max_file_size = patterns, max_file_size
        self.catalog = Catalog(os.path.join(storage, "catalog.db"))
        self._owner = json.loads(self.catalog.get(PLACE) or "null")
        if environment is None:
            environment = self._owner[1] if self._owner else "git"
        self.custom: CustomEnvironment | None = None
        if not isinstance(environment, str):
            self.custom = CustomEnvironment(environment)
        elif environment not in ("git", "directory"):
            raise InvalidInput(f'environment must be "git", "directory" or an object, not {environment!r}.')
        self.environment = environment if isinstance(environment, str) else "own"
        self.listeners: dict[str, list[Callable[[Any], None]]] = {event: [] for event in EVENTS}
        self._thread_lock, self._is_locked = threading.RLock(), False
        self.finished: tuple[RestoreRecord, RestoreOutcome, Restored] | None = None
        if self.custom is None:
            self.files  # noqa: B018 - report a wrong storage or pattern now, not at the first use
        self._claim_storage()

    @cached_property
    def files(self) -> Files:
        """The files of the directory. With a custom environment, only the undo stack uses them."""
        folder = self.environment if self.custom is None else "directory"
        objects = Objects(os.path.join(self.storage, folder), is_repository=folder == "git")
        options = (self._patterns, self._max_file_size, self._outside)
        return Files(self.root, self.storage, objects, self.catalog, *options)

    def _outside(self) -> set[bytes]:
        """Return the paths in the workspace that do not belong to it."""
        paths = {os.fsencode(path) for path in json.loads(self.catalog.get(NOT_OURS) or "[]")}
        if self.storage.startswith(self.root + os.sep):
            paths.add(os.fsencode(os.path.relpath(self.storage, self.root)))
        return paths

    def leave_out(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Never capture, restore or delete these files from now on. Paths outside the workspace are ignored."""
        new = {os.fsdecode(self.paths.relative(path)) for path in paths if self.paths.holds(path)}
        old = set(json.loads(self.catalog.get(NOT_OURS) or "[]"))
        if not new <= old:
            with self.locked():
                self.catalog.set(NOT_OURS, json.dumps(sorted(new | old)))

    def _claim_storage(self) -> None:
        """Record this workspace as the owner of the storage. A workspace that was moved keeps its storage."""
        owner = [self.storage, self.environment, self.root, os.stat(self.root).st_ino]
        recorded = self._owner
        if recorded and recorded[:1] == owner[:1]:
            _, environment, root, inode = recorded
            is_another = root != self.root and inode != owner[-1] and os.path.isdir(root)
            if environment != self.environment or is_another:
                raise InvalidInput(
                    f'The storage {self.storage} has the snapshots of {root}, with environment "{environment}". '
                    "Use another storage_dir."
                )
        if recorded != owner:
            self.catalog.set(PLACE, json.dumps(owner))
        record_storage(self.storage, self.root)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the workspace for this thread and process, finish an interrupted restore, and report errors."""
        with self._thread_lock:
            if self._is_locked:
                yield
                return
            lock = os.path.join(self.storage, "lock")
            with exclusive_lock(lock, timeout=PATIENCE, description=f"the workspace {self.root}"):
                self._is_locked, self.finished = True, None
                try:
                    self._finish_interrupted()
                    yield
                except BaseException as error:
                    if "files" in self.__dict__:
                        self.files.discard_cache()
                    if isinstance(error, AgentGitError):
                        self.notify(FAILED, error)
                    raise
                finally:
                    self._is_locked = False

    def _finish_interrupted(self) -> None:
        if pending := self.catalog.get(PENDING):
            record = RestoreRecord.decode(pending)
            self.finished = (record, *self.run(record, is_resumed=True))

    def notify(self, event: str, value: Any) -> None:
        for callback in self.listeners[event]:
            try:
                callback(value)
            except Exception:
                log.exception("A callback of the event %s of %s failed", event, self.root)

    # -- snapshots

    def save(
        self,
        message: str = "",
        kind: str = MANUAL,
        *,
        name: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        progress: Progress | None = None,
        is_new: bool = True,
    ) -> FileCheckpoint:
        """Take a snapshot. If `is_new` is False, return an existing one of the same files if there is one."""
        snapshot = new_snapshot(message, kind, name, metadata)
        captured = self._capture(progress)
        snapshot = self._store(snapshot, captured, is_new=is_new)
        self.catalog.set(POSITION, snapshot.id)
        self._prune(protected=())
        return snapshot

    def _capture(self, progress: Progress | None = None) -> Captured:
        return self.files.capture(progress) if self.custom is None else self.custom.capture()

    def _store(self, snapshot: FileCheckpoint, captured: Captured, *, is_new: bool = False) -> FileCheckpoint:
        """Add a snapshot to the catalog, unless there is one of the same files and no new one is wanted."""
        if not is_new and self.custom is None:
            existing = self.catalog.find_by_tree(captured.tree, captured.left_out)
            if existing is not None:
                if captured.index is not None and captured.index.dirty:
                    self.catalog.store_index(captured.index)
                return existing
        snapshot = snapshot.with_left_out(captured.changed, captured.left_out)
        self.catalog.add(snapshot, captured.tree, captured.left_out, captured.index)
        self.notify(CREATED, snapshot)
        return snapshot

    def find(self, ref: str) -> CatalogRow | None:
        """Return a snapshot by its id, the start of its id, or its name; None if there is none."""
        rows = self.catalog.find(escape_surrogates(ref)) if ref else []
        if len(rows) > 1:
            ids = tuple(row.snapshot.id for row in rows)
            raise Ambiguous(f"{len(rows)} snapshots begin with {ref!r}; write more of the id.", candidates=ids)
        return rows[0] if rows else None

    def require(self, ref: str) -> CatalogRow:
        """Return a snapshot in any of these forms."""
        row = self.find(ref)
        if row is None:
            suggestions = tuple(row.snapshot.name or row.snapshot.id for row in self.catalog.rows(limit=3))
            raise NotFound(
                f"There is no snapshot {ref!r} of {self.root}. Workspace.list() lists them.", near=suggestions
            )
        return row

    def adopt(self, source: Engine, ref: str, holder: str) -> FileCheckpoint:
        """Copy a snapshot of another workspace into this storage, so that it can be restored here, and pin it."""
        with self.locked(), source.locked():
            row = source.require(ref)
            if self.custom is not None or source.custom is not None:
                raise InvalidInput('Snapshots are copied between workspaces with "git" or "directory" only.')
            if self.find(row.snapshot.id) is None:
                self.files.copy(source.files, row.tree)
                self.catalog.add(replace(row.snapshot, kind=AUTO), row.tree, row.left_out)
            self.catalog.hold(row.snapshot.id, holder)
            return self.require(row.snapshot.id).snapshot

    def store_trees(self, write: Callable[[PackWriter], Iterable[StoredTree]], holder: str) -> dict[int, str]:
        """Store trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        with self.locked():
            if self.custom is not None:
                raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')
            trees: list[tuple[StoredTree, bytes]] = []
            with self.files.objects.writing() as writer:
                for tree in write(writer):
                    trees.append((tree, put_tree(writer, tree.entries)))
                    writer.name_tree(trees[-1][1])
            ids: dict[int, str] = {}
            try:
                for tree, key in trees:
                    snapshot = new_snapshot("imported", AUTO).with_left_out((), tree.left_out)
                    self.catalog.add(snapshot, key.hex(), tree.left_out)
                    ids[tree.number] = snapshot.id
                    self.catalog.hold(snapshot.id, holder)
            except BaseException:
                self.catalog.remove(ids.values())
                raise
            return ids

    def plan(self, ref: str, paths: tuple[bytes, ...] | None, since: str | None) -> RestorePlan:
        """Return what a restore would do; see `Workspace.plan_restore`."""
        if self.custom is not None:
            self.custom.refuse("plan_restore")
        return self.files.plan(self.require(ref), paths, self.find(since) if since is not None else None)

    def diff(self, a: str | None, b: str | None, paths: tuple[bytes, ...] | None) -> WorkspaceDiff:
        """Return how two snapshots differ; see `Workspace.diff`."""
        if self.custom is not None:
            self.custom.refuse("diff")
        first = next(iter(self.catalog.rows(limit=1)), None) if a is None else self.require(a) if a else None
        return self.files.diff(first, self.require(b) if b is not None else None, paths)

    # -- restoring

    def require_restorable(self, ref: str) -> None:
        self.require(ref)
        if not os.path.isdir(self.root):
            raise Unavailable(f"The workspace {self.root} does not exist. Create it, then try again.")
        if self.custom is None:
            with self.locked():
                impossible = self.plan(ref, None, None).impossible
            if impossible:
                named = ", ".join(f"{escape_path(path)} ({why})" for path, why in impossible[:MAX_NAMED_PATHS])
                raise Unavailable(f"{count(len(impossible), 'path')} cannot be restored: {named}.")

    def restore(
        self,
        ref: str,
        *,
        paths: tuple[bytes, ...] | None = None,
        expect: str | None = None,
        progress: Progress | None = None,
        undo: tuple[int, int] | None = None,
    ) -> Restored:
        """Restore a snapshot, after a safety snapshot of the current files."""
        row, expected = self.require(ref), self._expected(expect)
        safety = new_snapshot(f"before restoring {ref}", SAFETY)
        if self.custom is not None:
            return self._restore_custom(self.custom, row, safety, paths is not None, expected is not None)
        captured = self.files.capture()
        steps = self.files.prepare(row, captured, paths)
        if expected is not None:
            self.files.require_expected(steps, captured, *expected)
        safety = self._store(safety, captured)
        record = self.files.record(row.snapshot.id, safety.id, steps, paths=paths, undo=undo)
        try:
            self.catalog.begin(record.encode())
            _, result = self.run(record, progress)
        finally:
            self._prune(protected=(safety.id, row.snapshot.id))
        interrupted = self.finished[2] if self.finished is not None else None
        is_same = interrupted is not None and interrupted.id == result.id and paths is None
        if interrupted is not None and is_same and not (result.restored or result.deleted):
            return interrupted  # `locked` has just finished an interrupted restore of the same snapshot
        return result

    def _expected(self, ref: str | None) -> tuple[str, str] | None:
        """Return the tree that the workspace must have, and its name in errors."""
        if ref is None:
            return None
        if ref == LAST and self.find(ref) is None:
            return self.catalog.get("tree"), "they were last saved or restored"
        row = self.require(ref)
        return row.tree, row.snapshot.id

    def _restore_custom(
        self, custom: CustomEnvironment, row: CatalogRow, safety: FileCheckpoint, has_paths: bool, has_expected: bool
    ) -> Restored:
        if has_paths or has_expected:
            custom.refuse("paths" if has_paths else "expect")
        stored = None if custom.takes_safety else self._store(safety, custom.capture())
        result, taken = custom.restore(row.snapshot.id, row.tree)
        if taken is not None:
            stored = self._store(safety, Captured(taken, {}, ()))
        result = replace(result, safety=stored.id if stored is not None else None)
        self.catalog.set(POSITION, row.snapshot.id)
        self._prune(protected=(row.snapshot.id, result.safety or ""))
        self.notify(RESTORED, result)
        return result

    def run(
        self, record: RestoreRecord, progress: Progress | None = None, *, is_resumed: bool = False
    ) -> tuple[RestoreOutcome, Restored]:
        """Make the changes of a restore that has begun, and record that it is done."""
        try:
            outcome, disk = self.files.run(record, progress, is_resumed=is_resumed)
        except Exception:
            self.catalog.end()
            raise
        row = self.find(record.snapshot) if record.snapshot else None
        result = self.files.result(record, row, outcome, disk)
        if record.undo is not None:
            self.catalog.move_undo([record.undo[0]], None)
        if record.snapshot:
            self.catalog.set(POSITION, record.snapshot)
        self.catalog.end()
        if record.snapshot:
            self.notify(RESTORED, result)
        return outcome, result

    # -- deleting

    def _needed(self) -> set[str]:
        return {snapshot for _, _, _, _, snapshot, _ in self.catalog.undo_rows("undo", "redo", "safety") if snapshot}

    def _prune(self, protected: Collection[str]) -> None:
        """Delete the oldest snapshots beyond the limit."""
        if self._max_checkpoints is None or self.catalog.count_unpinned() <= self._max_checkpoints:
            return
        needed = self._needed()
        rows = [row for row in reversed(self.catalog.rows()) if not row.snapshot.pinned]
        rows = [row for row in rows if row.snapshot.id not in needed]
        excess = max(0, len(rows) - self._max_checkpoints)
        if old := [row for row in rows if row.snapshot.id not in protected][:excess]:
            self.delete(old, PRUNED)

    def delete(self, rows: Sequence[CatalogRow], event: str = DELETED) -> None:
        """Delete snapshots; after enough of them, free their space."""
        self.catalog.remove(row.snapshot.id for row in rows)
        snapshots = [row.snapshot for row in rows]
        self.notify(event, snapshots if event == PRUNED else snapshots[0])
        self._collect_if_worth()

    def drop(self, waste: Iterable[str]) -> None:
        """Record what else may be waste, under any names."""
        if self.custom is None:
            self.catalog.drop(waste)
            self._collect_if_worth()

    def _collect_if_worth(self) -> None:
        if len(self.catalog.dropped_trees()) >= max(1, (self._max_checkpoints or 100) // 10):
            try:
                self.collect()
            except Exception as error:  # the requested work is done, and a later call tries again
                log.warning("Could not free the space of old snapshots of %s", self.root, exc_info=True)
                self.notify(FAILED, error)

    def clear(self) -> tuple[FileCheckpoint, ...]:
        needed = self._needed()
        rows = [row for row in self.catalog.rows() if not row.snapshot.pinned and row.snapshot.id not in needed]
        if rows:
            self.delete(rows, PRUNED)
        self.collect()
        return tuple(row.snapshot for row in rows)

    def collect(self) -> int:
        """Free the space of data that no snapshot needs, and return the number of bytes."""
        dropped = self.catalog.dropped_trees()
        if self.custom is not None:
            for tree in self.custom.collect(dropped):
                self.catalog.forget_trees([tree])
            dropped = set()
        freed = 0
        if self.custom is None or os.path.exists(os.path.join(self.storage, "directory")):
            trees = {row.tree for row in self.catalog.rows()} if self.custom is None else set()
            freed = self.files.collect(trees, self._undo_objects())
        self.catalog.forget_trees(dropped)
        return freed

    def _undo_objects(self) -> set[bytes]:
        files = [json.loads(row[5])["files"] for row in self.catalog.undo_rows("undo", "redo", "safety")]
        return {bytes.fromhex(entry[1]) for one in files for entry in one.values() if entry is not None and entry[1]}

    def captures(self, path: str | os.PathLike[str]) -> bool:
        """Return whether snapshots have the file at a path: it is in the workspace, and not excluded."""
        return self.custom is None and self.paths.holds(path) and self.files.captures(self.paths.relative(path))

    def close(self) -> None:
        """Close the open files. They are opened again when they are needed."""
        self.catalog.close()


def new_snapshot(
    message: str, kind: str, name: str | None = None, metadata: Mapping[str, Any] | None = None
) -> FileCheckpoint:
    try:
        stored: dict[str, Any] = json.loads(json.dumps(dict(metadata or {})))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be JSON: {error}. Use strings, numbers, lists and dicts.") from error
    id, name = secrets.token_hex(8), escape_surrogates(name) if name else None
    created = utc_datetime(time.time_ns())
    return FileCheckpoint(id, name, escape_surrogates(message), created, metadata=stored, kind=kind)
