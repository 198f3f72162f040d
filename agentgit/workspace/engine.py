"""The engine of a workspace: its lock, its catalog, and snapshots of its files or of an environment of the user."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from agentgit.errors import AgentGitError, Ambiguous, InvalidInput, NotFound, Unavailable
from agentgit.next_steps import Next
from agentgit.workspace.catalog import PATIENCE, PENDING, Catalog, CatalogRow
from agentgit.workspace.disk import ASIDE
from agentgit.workspace.files import Captured, Files
from agentgit.workspace.left_out import Chosen
from agentgit.workspace.locations import WorkspacePaths, exclusive_lock, is_known, remember_storage
from agentgit.workspace.objects import Objects
from agentgit.workspace.restore import Choose, PendingRestore, keep_nothing
from agentgit.workspace.values import UNDO, Environment, FileCheckpoint, Options, Restored, escape_surrogates

log = logging.getLogger(__name__)

CREATED, RESTORED, DELETED, PRUNED, FAILED = EVENTS = ("created", "restored", "deleted", "pruned", "failed")

MANUAL, AUTO, SAFETY = "manual", "auto", "safety"

CATALOG = "catalog.db"

POSITION, NUMBER, PLACE, NOT_OURS, DROPPED = "position", "number", "place", "left_out", "dropped"
"""Keys in the catalog: the current snapshot, the last number of a generated name, the owner of the storage, the paths
that no snapshot may contain and no restore may change, and the number of snapshots deleted since space was freed."""


class CustomEnvironment:
    """Snapshots that an environment of the user takes and restores. Their contents are opaque to agentgit."""

    def __init__(self, environment: Environment) -> None:
        if not isinstance(environment, Environment):
            raise InvalidInput(f"{environment!r} is not an environment: it needs checkpoint() -> id and restore(id).")
        self._environment, self.name = environment, type(environment).__name__
        self.takes_safety = bool(getattr(environment, "takes_safety", False))
        """True if `restore` takes the safety snapshot itself, and returns its id as `safety`."""

    def capture(self) -> Captured:
        return Captured(str(self.call("checkpoint")))

    def call(self, method: str, *arguments: str) -> Any:
        """Call a method, if the environment has it; convert an exception into `Unavailable`, if it is another."""
        try:
            return getattr(self._environment, method, lambda *_: None)(*arguments)
        except AgentGitError:
            raise
        except Exception as error:
            raise Unavailable(f"{self.name}.{method} failed: {type(error).__name__}: {error}") from error


class Engine:
    def __init__(self, settings: Options, environment: str | Environment) -> None:
        self.settings, self.root, self.storage = settings, settings.workspace, settings.storage
        self.paths = WorkspacePaths(self.root)
        self.catalog = Catalog(os.path.join(self.storage, CATALOG))
        self.listeners: dict[str, list[Callable[[Any], None]]] = {event: [] for event in EVENTS}
        self._thread_lock, self._is_locked = threading.RLock(), False
        self.finished: tuple[Restored, bool] | None = None
        """The restore that `locked` has just finished, because a kill had interrupted it, and whether it is an undo."""
        self.custom: CustomEnvironment | None = None
        if not isinstance(environment, str):
            self.custom, environment = CustomEnvironment(environment), "own"
        elif environment not in ("git", "directory"):
            raise InvalidInput(f'environment must be "git", "directory" or an object, not {environment!r}.')
        else:
            objects = Objects(os.path.join(self.storage, environment), is_repository=environment == "git")
            self._files = Files(settings, objects, self.catalog, self._outside)
        self._claim_storage([self.storage, environment, self.root, os.stat(self.root).st_ino])

    def files_for(self, feature: str) -> Files:
        """Return the files; refuse what only they can do if there is a custom environment."""
        if self.custom is not None:
            text = f'{self.custom.name} can only take and restore snapshots; {feature} needs "git" or "directory".'
            raise InvalidInput(text)
        return self._files

    def _outside(self) -> set[bytes]:
        """Return the paths in the workspace that do not belong to it."""
        paths = {ASIDE, *map(os.fsencode, self.catalog.get(NOT_OURS) or ())}
        if self.storage.startswith(self.root + os.sep):
            paths.add(os.fsencode(os.path.relpath(self.storage, self.root)))
        return paths

    def leave_out(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Never capture, restore or delete these files from now on. Paths outside the workspace are ignored."""
        real = [os.path.realpath(os.path.join(self.root, path)) for path in paths]
        new = {os.fsdecode(self.paths.relative(path)) for path in real if self.paths.holds(path)}
        old = set(self.catalog.get(NOT_OURS) or ())
        if not new <= old:
            with self.locked():
                self.catalog.set({NOT_OURS: sorted(new | old)})

    def _claim_storage(self, owner: list[Any]) -> None:
        """Record this workspace as the owner of the storage. A workspace that was moved keeps its storage."""
        recorded = self.catalog.get(PLACE)
        if recorded and recorded[0] == self.storage:
            _, environment, root, inode = recorded
            is_another = root != self.root and inode != owner[-1] and os.path.isdir(root)
            if environment != owner[1] or is_another:
                raise InvalidInput(
                    f'The storage {self.storage} has the snapshots of {root}, with environment "{environment}". '
                    "Use another storage_dir."
                )
        if recorded != owner:
            self.catalog.set({PLACE: owner})
        remember_storage(self.storage)

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
                    if text := self.catalog.get(PENDING):
                        pending = PendingRestore.decode(text)
                        self.finished = self._run(pending, is_resumed=True), pending.is_undo
                    yield
                except AgentGitError as error:
                    self.notify(FAILED, error)
                    raise
                finally:
                    self._is_locked = False

    def notify(self, event: str, value: Any) -> None:
        for callback in self.listeners[event]:
            try:
                callback(value)
            except Exception:
                log.exception("A callback of the event %s of %s failed", event, self.root)

    # -- snapshots

    def save(self, snapshot: FileCheckpoint, *, is_new: bool = True) -> FileCheckpoint:
        """Take a snapshot. If `is_new` is False, return an existing one of the same files if there is one."""
        snapshot = self._add(snapshot, self._capture(), is_new=is_new)
        self.catalog.set({POSITION: snapshot.id})
        self._prune(protected=())
        return snapshot

    def save_entry(self, label: str, paths: Chosen) -> FileCheckpoint:
        """Take a snapshot for the undo stack, which restores some paths of it, or all."""
        return self._add(new_snapshot(label, UNDO), self._capture(), paths, is_new=True)

    def _capture(self) -> Captured:
        return (self.custom or self._files).capture()

    def _add(
        self, snapshot: FileCheckpoint, captured: Captured, paths: Chosen = None, *, is_new: bool = False
    ) -> FileCheckpoint:
        """Add a snapshot to the catalog, unless there is one of the same files and no new one is wanted."""
        if not is_new and captured.index is not None:
            existing = self.catalog.find_by_tree(captured.tree, captured.left_out)
            if existing is not None:
                if captured.index.dirty:
                    self.catalog.store_index(captured.index)
                self._files.cached_index = captured.index
                return existing
        changed = list(paths or ())
        if paths is None and self.custom is None:
            current = self.catalog.get_row(self.catalog.get(POSITION)) or next(iter(self.catalog.rows(limit=1)), None)
            changed = self._files.changed(current, captured)
        snapshot = snapshot.with_left_out(changed, captured.left_out)
        self.catalog.add(CatalogRow(snapshot, captured.tree, captured.left_out, paths), index=captured.index)
        if captured.index is not None:
            self._files.cached_index = captured.index
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
        row = self.find(ref)
        if row is None:
            suggestions = tuple(row.snapshot.name or row.snapshot.id for row in self.catalog.rows(limit=3))
            raise NotFound(f"There is no snapshot {ref!r} of {self.root}.", Next("list_snapshots"), near=suggestions)
        return row

    def adopt(self, source: Engine, ref: str, holder: str) -> None:
        """Copy a snapshot of another workspace into this storage, so that it can be restored here, and pin it."""
        with self.locked(), source.locked():
            row = source.require(ref)
            if self.find(row.snapshot.id) is None:
                copy = row._replace(snapshot=replace(row.snapshot, kind=AUTO))
                self.copy(source.files_for("copying a snapshot").objects, [copy], holder)
            self.catalog.hold(row.snapshot.id, holder)

    def copy(self, source: Objects, rows: Sequence[CatalogRow], holder: str) -> None:
        """Store snapshots whose contents are in another store, and pin them. All succeed, or none."""
        with self.locked():
            self.files_for("copying a snapshot").copy(source, {bytes.fromhex(row.tree) for row in rows})
            self.catalog.add(*rows, holder=holder)

    # -- restoring

    def plan(self, ref: str, *, paths: Chosen = None, choose: Choose = keep_nothing) -> Restored:
        """Return what `restore` would do."""
        with self.locked():
            return self.files_for("a plan").plan(self.require(ref), paths, choose)

    def restore(
        self, ref: str, *, paths: Chosen = None, choose: Choose = keep_nothing, is_undo: bool = False, aside: str = ""
    ) -> Restored:
        """Restore a snapshot after a safety snapshot; what is chosen stays; an undo deletes it."""
        row, safety = self.require(ref), new_snapshot(f"before restoring {ref}", SAFETY)
        if self.custom is not None:
            return self._restore_custom(self.custom, row, safety, paths)
        captured = self._capture()
        kept = self._files.prepare(choose, row, captured, paths)
        safety = self._add(safety, captured)
        pending = PendingRestore(row.snapshot.id, safety.id, aside or secrets.token_hex(8), paths, kept, is_undo)
        self.catalog.set({PENDING: pending.encode()})
        try:
            result = self._run(pending)
        finally:
            self._prune(protected=(safety.id, row.snapshot.id))
        if self.finished is not None and paths is None and not (aside or result.restored or result.deleted):
            interrupted, _ = self.finished
            result = interrupted if interrupted.id == result.id else result
        return result

    def is_at(self, ref: str) -> bool:
        """Return whether the files as they were last saved or restored are those of a snapshot."""
        return self.custom is not None or self._files.tree == self.require(ref).tree

    def _restore_custom(
        self, custom: CustomEnvironment, row: CatalogRow, safety: FileCheckpoint, paths: Chosen
    ) -> Restored:
        if paths is not None:
            self.files_for("paths")
        stored = None if custom.takes_safety else self._add(safety, custom.capture())
        done, origin = custom.call("restore", row.tree), row.snapshot
        if custom.takes_safety and getattr(done, "safety", None) is not None:
            stored = self._add(safety, Captured(done.safety))
        kept, left = stored.id if stored is not None else None, tuple(getattr(done, "left", ()))
        result = Restored(origin.id, kept, left=left, everything=True, name=origin.name)
        result = replace(result, message=origin.message, time_str=origin.time)
        self.catalog.set({POSITION: origin.id})
        self._prune(protected=(origin.id, result.safety or ""))
        self.notify(RESTORED, result)
        return result

    def _run(self, pending: PendingRestore, *, is_resumed: bool = False) -> Restored:
        try:
            row, safety = self.require(pending.snapshot), self.require(pending.safety)
            result = self._files.restore(row, safety, pending, is_resumed=is_resumed)
        except Exception:
            self.catalog.set({PENDING: None})
            raise
        position = {POSITION: pending.snapshot} if pending.paths is None and not pending.is_undo else {}
        self.catalog.set({PENDING: None, **position}, removed=[pending.snapshot] if pending.is_undo else ())
        self.notify(RESTORED, result)
        return result

    # -- deleting

    def _prune(self, protected: Collection[str]) -> None:
        if (limit := self.settings.max_checkpoints) is not None:
            rows = self.catalog.deletable(kept=limit, protected=protected)
            self.delete([row for row in rows[::-1] if row.snapshot.id not in protected], PRUNED)

    def delete(self, rows: Iterable[CatalogRow], event: str = DELETED) -> None:
        """Delete snapshots; after enough of them, free their space. What an environment cannot delete yet stays."""
        deleted = list[FileCheckpoint]()
        for row in rows:
            try:
                if self.custom is not None and self.catalog.trees().count(row.tree) == 1:
                    with suppress(NotFound):
                        self.custom.call("delete", row.tree)
            except AgentGitError as error:  # others go; a later call tries this one again
                if event == DELETED:
                    raise
                self.notify(FAILED, error)
                continue
            deleted.append(row.snapshot)
        if not deleted:
            return
        total = (self.catalog.get(DROPPED) or 0) + len(deleted)
        self.catalog.set({DROPPED: total}, removed=[one.id for one in deleted])
        if total >= max(1, (self.settings.max_checkpoints or 100) // 10):
            try:
                self.collect()
            except Exception as error:  # the requested work is done, and a later call tries again
                log.warning("Could not free the space of old snapshots of %s", self.root, exc_info=True)
                self.notify(FAILED, error)
        self.notify(event, deleted if event == PRUNED else deleted[0])

    def collect(self) -> int:
        """Free the space of data that no snapshot needs, and return the number of bytes."""
        freed = self._files.collect(set(self.catalog.trees())) if self.custom is None else 0
        self.catalog.set({DROPPED: 0})
        self.catalog.shrink()
        return freed

    def captures(self, path: str | os.PathLike[str]) -> bool:
        """Return whether snapshots have the file at a path: it is in the workspace, and not excluded."""
        return self.custom is None and self.paths.holds(path) and self._files.captures(self.paths.relative(path))


def owner_of(storage: str) -> str | None:
    """Return the workspace whose snapshots a storage has; None if it has none, or nobody here has opened it."""
    path = os.path.join(storage, CATALOG)
    if not os.path.isfile(path) or not is_known(storage):
        return None
    with closing(Catalog(path)) as catalog:
        recorded = catalog.get(PLACE)
    return str(recorded[2]) if recorded and recorded[0] == storage else None


def new_snapshot(
    message: str, kind: str = MANUAL, name: str | None = None, metadata: Mapping[str, Any] | None = None
) -> FileCheckpoint:
    try:
        stored: dict[str, Any] = json.loads(json.dumps(dict(metadata or {})))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"metadata must be JSON: {error}. Use strings, numbers, lists and dicts.") from error
    id, name = secrets.token_hex(8), escape_surrogates(name) if name else None
    return FileCheckpoint(id, name, escape_surrogates(message), datetime.now(UTC), metadata=stored, kind=kind)
