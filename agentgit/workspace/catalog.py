"""The catalog of a workspace's snapshots: one SQLite file, with the journal of restores and the index of the files.

The files of a snapshot are written first. Then the snapshot and the index are stored here in one transaction. So a
process that is killed in between leaves only unused files behind.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from agentgit.errors import Unavailable
from agentgit.workspace.scan.excluded import ExcludedPath, ExcludedRecord, packed, unpacked
from agentgit.workspace.scan.index import IndexEntry, SkippedPath, Stamp, WorkspaceIndex
from agentgit.workspace.trees import TreeEntry
from agentgit.workspace.values import UNDO, FileCheckpoint, utc_datetime

LEFT_OUT = "left_out"
"""The key in the catalog of the list of paths that no snapshot may contain."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshot (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tree TEXT NOT NULL, name TEXT,
    message TEXT NOT NULL, created_at INTEGER NOT NULL, kind TEXT NOT NULL, files_changed INTEGER NOT NULL,
    metadata TEXT NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, left_out TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS left_out (id TEXT PRIMARY KEY, paths BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS permit (
    path BLOB PRIMARY KEY, mode INTEGER NOT NULL, inode INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS seen (
    path BLOB PRIMARY KEY, mode INTEGER, oid TEXT, why TEXT,
    mtime INTEGER, ctime INTEGER, size INTEGER, ino INTEGER, looks INTEGER);
CREATE TABLE IF NOT EXISTS restoring (
    id INTEGER PRIMARY KEY AUTOINCREMENT, snapshot TEXT NOT NULL, target TEXT NOT NULL, safety TEXT NOT NULL,
    before TEXT NOT NULL, paths TEXT, status TEXT NOT NULL, created_at INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS holding (snapshot TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (snapshot, holder));
CREATE TABLE IF NOT EXISTS dropped (tree TEXT PRIMARY KEY);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""

PATIENCE = 30.0
"""The maximum time to wait for another process, in seconds."""

PINNED = "pinned OR EXISTS (SELECT 1 FROM holding WHERE holding.snapshot = snapshot.id)"

COLUMNS = f"id, tree, name, message, created_at, kind, files_changed, metadata, {PINNED}, seq, left_out"

DIRECTORY = 0o040000

INODES = (1 << 64) - 1
"""A mask to convert a stored inode: inodes are unsigned 64-bit integers, and SQLite's integers are signed."""


class CatalogRow(NamedTuple):
    """A snapshot, the key of its tree, its sequence number, and the id of the record of what it left out."""

    snapshot: FileCheckpoint
    tree: str
    seq: int
    left: str


class Restoring(NamedTuple):
    """A restore that has begun: the ids of its snapshots, the keys of the trees before and after, and its paths."""

    id: int
    snapshot: str
    target: str
    safety: str
    before: str
    paths: tuple[bytes, ...] | None


class Catalog:
    """A catalog in one file.

    Args:
        path: The path of the file, which is created if it does not exist.

    Raises:
        Unavailable: The file cannot be opened or written.
    """

    def __init__(self, path: str) -> None:
        self._path, self._process = path, 0
        self._lock = threading.RLock()
        self._held: sqlite3.Connection | None = None
        self._closing: Callable[[], object] | None = None
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}. Free some space or grant the permission.") from error
        with self._open() as db:
            _use_wal(db)
            db.executescript(SCHEMA)

    def load_index(self, before: WorkspaceIndex | None) -> WorkspaceIndex:
        """Return the index of the files.

        Args:
            before: The index that this process read last; it is returned if the stored one has not changed since.
        """
        with self._open() as db:
            state = dict(db.execute("SELECT name, value FROM state"))
            if before is not None and before.generation == state.get("generation", ""):
                return before
            known = WorkspaceIndex(
                state.get("key") or None, state.get("settings", ""), generation=state.get("generation", "")
            )
            for path, mode, oid, why, *stamp in db.execute("SELECT * FROM seen"):
                looks = None if stamp[0] is None else (stamp[0], stamp[1], stamp[2], stamp[3] & INODES, stamp[4])
                if why is not None:
                    known.skipped[path] = SkippedPath(why, looks or (0, 0, 0, 0, 0))
                elif mode & 0o170000 == DIRECTORY:
                    known.folders[path] = IndexEntry(TreeEntry(mode), looks)
                else:
                    known.files[path] = IndexEntry(TreeEntry(mode, oid), looks)
            return known

    def store_snapshot(
        self, snapshot: FileCheckpoint | None, known: WorkspaceIndex, left: ExcludedRecord | None = None
    ) -> None:
        """Store a new snapshot and the index. A new snapshot survives a power failure.

        Args:
            snapshot: The new snapshot; None to store only the index.
            known: The current index; `known.key` is the tree of the snapshot.
            left: The paths that the snapshot left out; None if there are none.
        """
        with self._write(lasting=snapshot is not None) as db:
            if snapshot is not None:
                _insert(db, snapshot, known.key or "", left or {})
            if known.dirty or snapshot is not None:
                known.generation = str(time.time_ns())
                _save(db, known)
        known.dirty.clear()

    def rows(self, *, limit: int | None = None, oldest_first: bool = False) -> list[CatalogRow]:
        """Return the snapshots, by default newest first."""
        order = "ASC" if oldest_first else "DESC"
        query = f"SELECT {COLUMNS} FROM snapshot ORDER BY seq {order} LIMIT ?"  # noqa: S608
        with self._open() as db:
            return [_row(found) for found in db.execute(query, (-1 if limit is None else limit,))]

    def find(self, ref: str) -> list[CatalogRow]:
        """Return the snapshot with this id, or else the newest with this name, or else all whose id starts with it."""
        with self._open() as db:
            for where in ("id = ?", "name = ?", "substr(id, 1, length(?)) = ?1"):
                query = f"SELECT {COLUMNS} FROM snapshot WHERE {where} ORDER BY seq DESC"  # noqa: S608
                if found := [_row(one) for one in db.execute(query, (ref,))]:
                    return found if where.startswith("substr") else found[:1]
        return []

    def add(self, snapshot: FileCheckpoint, tree: str, left: ExcludedRecord) -> None:
        """Store a snapshot whose files were not taken from this workspace.

        Args:
            snapshot: The new snapshot.
            tree: The key of its tree.
            left: The paths that it left out.
        """
        with self._write(lasting=True) as db:
            _insert(db, snapshot, tree, left)

    def find_by_tree(self, tree: str, left: ExcludedRecord) -> FileCheckpoint | None:
        """Return the newest snapshot with this tree and exactly these left-out paths; None if there is none.

        Snapshots of the undo stack are not returned, because the stack deletes them.

        Args:
            tree: The key of the tree.
            left: The paths that are left out.
        """
        where = "tree = ? AND left_out = ? AND kind <> ?"
        query = f"SELECT {COLUMNS} FROM snapshot WHERE {where} ORDER BY seq DESC LIMIT 1"  # noqa: S608
        with self._open() as db:
            found = db.execute(query, (tree, packed(left)[0], UNDO)).fetchone()
        return _row(found).snapshot if found else None

    def excluded_from(self, snapshot: str) -> dict[bytes, ExcludedPath]:
        """Return the paths that a snapshot left out.

        Args:
            snapshot: The id of the snapshot.
        """
        query = "SELECT paths FROM left_out WHERE id = (SELECT left_out FROM snapshot WHERE id = ?)"
        with self._open() as db:
            found = db.execute(query, (snapshot,)).fetchone()
        return unpacked(found[0]) if found else {}

    def remove(self, ids: Iterable[str]) -> None:
        """Remove snapshots from the catalog, and record that their trees may be waste."""
        with self._write() as db:
            for id in ids:
                db.execute("INSERT OR IGNORE INTO dropped SELECT tree FROM snapshot WHERE id = ?", (id,))
                db.execute("DELETE FROM snapshot WHERE id = ?", (id,))
                db.execute("DELETE FROM holding WHERE snapshot = ?", (id,))

    def waste(self) -> set[str]:
        """Return the trees of removed snapshots that nothing needs any more."""
        with self._open() as db:
            return {tree for (tree,) in db.execute("SELECT tree FROM dropped")} - self.trees()

    def forget_trees(self, trees: Iterable[str]) -> None:
        """Forget waste that has been deleted, and free the space of the catalog itself."""
        with self._write() as db:
            db.executemany("DELETE FROM dropped WHERE tree = ?", [(tree,) for tree in trees])
            db.execute("DELETE FROM left_out WHERE NOT EXISTS (SELECT 1 FROM snapshot WHERE left_out = left_out.id)")
        with self._open() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def pin(self, id: str, pinned: bool) -> None:
        """Pin or unpin a snapshot."""
        with self._write() as db:
            db.execute("UPDATE snapshot SET pinned = ? WHERE id = ?", (pinned, id))

    def hold(self, id: str, holder: str) -> None:
        """Pin a snapshot for a holder. Several holders can pin the same snapshot."""
        with self._write() as db:
            db.execute("INSERT OR IGNORE INTO holding VALUES (?, ?)", (id, holder))

    def release(self, id: str, holder: str) -> None:
        """Release a holder's pin of a snapshot."""
        with self._write() as db:
            db.execute("DELETE FROM holding WHERE snapshot = ? AND holder = ?", (id, holder))

    def trees(self) -> set[str]:
        """Return the keys of all trees that are needed: by snapshots, the index and unfinished restores."""
        with self._open() as db:
            found = {key for (key,) in db.execute("SELECT tree FROM snapshot")}
            found |= {value for (value,) in db.execute("SELECT value FROM state WHERE name = 'key' AND value <> ''")}
            for target, safety in db.execute("SELECT target, before FROM restoring WHERE status = 'running'"):
                found |= {target, safety}
        return found

    def begin(self, snapshot: str, target: str, safety: str, before: str, paths: Iterable[bytes] | None) -> int:
        """Record that a restore begins; return its id."""
        limited = None if paths is None else json.dumps([path.decode("latin-1") for path in paths])
        values = (snapshot, target, safety, before, limited, "running", time.time_ns())
        with self._write() as db:
            query = (
                "INSERT INTO restoring (snapshot, target, safety, before, paths, status, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
            )
            return int(db.execute(query, values).lastrowid or 0)

    def end(self, id: int, status: str) -> None:
        """Record the result of a restore: `done` or `failed`."""
        with self._write() as db:
            db.execute("UPDATE restoring SET status = ? WHERE id = ?", (status, id))

    def unfinished(self) -> list[Restoring]:
        """Return the restores that were interrupted, oldest first."""
        query = "SELECT id, snapshot, target, safety, before, paths FROM restoring WHERE status = 'running' ORDER BY id"
        with self._open() as db:
            return [
                Restoring(id, snapshot, target, safety, before, _paths(paths))
                for id, snapshot, target, safety, before, paths in db.execute(query)
            ]

    def get(self, name: str) -> str:
        """Return a value by its name; an empty string if there is none."""
        with self._open() as db:
            found = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
            return found[0] if found else ""

    def set(self, name: str, value: str) -> None:
        """Store a value under a name."""
        with self._write() as db:
            _set(db, name, value)

    def permit(self, path: bytes, mode: int, inode: int) -> None:
        """Record the mode of a path before it is changed temporarily."""
        with self._write() as db:
            db.execute("INSERT OR REPLACE INTO permit VALUES (?, ?, ?)", (path, mode, _signed(inode)))

    def unpermit(self, path: bytes) -> None:
        """Delete the recorded mode of a path, which is not needed any more."""
        with self._write() as db:
            db.execute("DELETE FROM permit WHERE path = ?", (path,))

    def permits(self) -> list[tuple[bytes, int, int]]:
        """Return the paths whose mode a killed process changed temporarily, each with its recorded mode and inode."""
        with self._open() as db:
            return [(path, mode, inode & INODES) for path, mode, inode in db.execute("SELECT * FROM permit")]

    def left_out(self) -> list[str]:
        """Return the paths that no snapshot may contain and no restore may change, relative to the workspace."""
        return list(json.loads(self.get(LEFT_OUT) or "[]"))

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            if self._closing is not None:
                self._closing()
            self._held = self._closing = None

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Yield the connection, which stays open: closing the last one to a file writes the whole WAL back."""
        with self._lock:
            try:
                yield self._connection()
            except sqlite3.Error as error:
                raise Unavailable(
                    f"{self._path}: {error}. Free some space or grant the permission, then try again."
                ) from error

    def _connection(self) -> sqlite3.Connection:
        if self._held is None or self._process != os.getpid():  # a connection must not be used after a fork
            self._held = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            self._process, self._closing = os.getpid(), weakref.finalize(self, self._held.close)
        return self._held

    @contextmanager
    def _write(self, *, lasting: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block in a transaction.

        Args:
            lasting: True to make this transaction and all earlier ones survive a power failure.
        """
        with self._open() as db:
            db.execute(f"PRAGMA synchronous={'FULL' if lasting else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()


def _insert(db: sqlite3.Connection, snapshot: FileCheckpoint, tree: str, left: ExcludedRecord) -> None:
    query = (
        "INSERT INTO snapshot (id, tree, name, message, created_at, kind, files_changed, metadata, pinned, left_out)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    record = packed(left)
    db.execute("INSERT OR IGNORE INTO left_out VALUES (?, ?)", record)
    created = int(snapshot.timestamp.timestamp() * 1_000_000) * 1000
    values = (snapshot.id, tree, snapshot.name, snapshot.message, created, snapshot.kind, snapshot.files_changed)
    kept = json.dumps(dict(snapshot.metadata)), snapshot.pinned
    db.execute(query, (*values, *kept, record[0]))


def _save(db: sqlite3.Connection, known: WorkspaceIndex) -> None:
    """Store the entries of the index that have changed."""
    rows: list[tuple[Any, ...]] = []
    gone: list[tuple[bytes]] = []
    for path in known.dirty:
        if seen := known.files.get(path) or known.folders.get(path):
            rows.append((path, seen.entry.mode, seen.entry.oid, None, *_stored(seen.stamp)))
        elif skipped := known.skipped.get(path):
            rows.append((path, None, None, skipped.why, *_stored(skipped.stamp)))
        else:
            gone.append((path,))
    db.executemany("DELETE FROM seen WHERE path = ?", gone)
    db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    for name, value in (("key", known.key or ""), ("settings", known.settings), ("generation", known.generation)):
        _set(db, name, value)


def _stored(stamp: Stamp | None) -> tuple[int | None, ...]:
    if stamp is None:
        return (None,) * 5
    return *stamp[:3], _signed(stamp[3]), stamp[4]


def _signed(inode: int) -> int:
    return inode - (1 << 64) if inode >> 63 else inode


def _set(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def _row(found: tuple[Any, ...]) -> CatalogRow:
    id, tree, name, message, created_at, kind, files_changed, metadata, pinned, seq, left = found
    snapshot = FileCheckpoint(
        id, name, message, utc_datetime(created_at), files_changed, json.loads(metadata), kind, bool(pinned)
    )
    return CatalogRow(snapshot, tree, seq, left)


def _paths(stored: str | None) -> tuple[bytes, ...] | None:
    return None if stored is None else tuple(path.encode("latin-1") for path in json.loads(stored))


def _use_wal(db: sqlite3.Connection) -> None:
    """Turn on WAL mode, so that readers and a writer can work at the same time.

    Retry if another process turns it on too, because SQLite's own timeout does not apply here.
    """
    until = time.monotonic() + PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
