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
from agentgit.workspace.scan.excluded import ExcludedPath, ExcludedRecord, decode_record, encode_record
from agentgit.workspace.scan.index import IndexEntry, SkippedPath, Stamp, WorkspaceIndex
from agentgit.workspace.trees import TreeEntry
from agentgit.workspace.values import UNDO, FileCheckpoint, utc_datetime

LEFT_OUT = "left_out"
"""The key in the catalog of the list of paths that no snapshot may contain."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS snapshot (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, tree TEXT NOT NULL, name TEXT,
    message TEXT NOT NULL, created_at INTEGER NOT NULL, kind TEXT NOT NULL, files_changed TEXT NOT NULL,
    change_count INTEGER NOT NULL, metadata TEXT NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, left_out TEXT NOT NULL);
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

COLUMNS = f"id, tree, name, message, created_at, kind, files_changed, metadata, {PINNED}, seq, left_out, change_count"

DIRECTORY = 0o040000

INODE_MASK = (1 << 64) - 1
"""A mask to convert a stored inode: inodes are unsigned 64-bit integers, and SQLite's integers are signed."""


class CatalogRow(NamedTuple):
    """A snapshot, the key of its tree, its sequence number, and the id of the record of what it left out."""

    snapshot: FileCheckpoint
    tree: str
    seq: int
    excluded_id: str


class RestoreRecord(NamedTuple):
    """A restore that has begun: the ids of its snapshots, the keys of the trees before and after, and its paths."""

    id: int
    snapshot_id: str
    target_tree: str
    safety_id: str
    before_tree: str
    paths: tuple[bytes, ...] | None


class Catalog:
    """A catalog in one file."""

    def __init__(self, path: str) -> None:
        self._path, self._process_id = path, 0
        self._lock = threading.RLock()
        self._cached_connection: sqlite3.Connection | None = None
        self._finalizer: Callable[[], object] | None = None
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise Unavailable(f"{path}: {error.strerror}. Free some space or grant the permission.") from error
        with self._open() as db:
            _use_wal(db)
            db.executescript(SCHEMA)

    def load_index(self, cached_index: WorkspaceIndex | None) -> WorkspaceIndex:
        """Return the index of the files."""
        with self._open() as db:
            state = dict(db.execute("SELECT name, value FROM state"))
            if cached_index is not None and cached_index.generation == state.get("generation", ""):
                return cached_index
            index = WorkspaceIndex(
                state.get("key") or None, state.get("settings", ""), generation=state.get("generation", "")
            )
            for path, mode, oid, why, *columns in db.execute("SELECT * FROM seen"):
                stamp = (
                    None
                    if columns[0] is None
                    else (columns[0], columns[1], columns[2], columns[3] & INODE_MASK, columns[4])
                )
                if why is not None:
                    index.skipped[path] = SkippedPath(why, stamp or (0, 0, 0, 0, 0))
                elif mode & 0o170000 == DIRECTORY:
                    index.folders[path] = IndexEntry(TreeEntry(mode), stamp)
                else:
                    index.files[path] = IndexEntry(TreeEntry(mode, oid), stamp)
            return index

    def store_snapshot(
        self, snapshot: FileCheckpoint | None, index: WorkspaceIndex, excluded: ExcludedRecord | None = None
    ) -> None:
        """Store a new snapshot and the index. A new snapshot survives a power failure."""
        with self._transaction(durable=snapshot is not None) as db:
            if snapshot is not None:
                _insert_snapshot(db, snapshot, index.key or "", excluded or {})
            if index.dirty or snapshot is not None:
                index.generation = str(time.time_ns())
                _save_index(db, index)
        index.dirty.clear()

    def rows(self, *, limit: int | None = None, oldest_first: bool = False) -> list[CatalogRow]:
        """Return the snapshots, by default newest first."""
        order = "ASC" if oldest_first else "DESC"
        query = f"SELECT {COLUMNS} FROM snapshot ORDER BY seq {order} LIMIT ?"  # noqa: S608
        with self._open() as db:
            return [_catalog_row(columns) for columns in db.execute(query, (-1 if limit is None else limit,))]

    def find(self, ref: str) -> list[CatalogRow]:
        """Return the snapshot with this id, or else the newest with this name, or else all whose id starts with it."""
        with self._open() as db:
            for where in ("id = ?", "name = ?", "substr(id, 1, length(?)) = ?1"):
                query = f"SELECT {COLUMNS} FROM snapshot WHERE {where} ORDER BY seq DESC"  # noqa: S608
                if rows := [_catalog_row(columns) for columns in db.execute(query, (ref,))]:
                    return rows if where.startswith("substr") else rows[:1]
        return []

    def add(self, snapshot: FileCheckpoint, tree: str, excluded: ExcludedRecord) -> None:
        """Store a snapshot whose files were not taken from this workspace."""
        with self._transaction(durable=True) as db:
            _insert_snapshot(db, snapshot, tree, excluded)

    def find_by_tree(self, tree: str, excluded: ExcludedRecord) -> FileCheckpoint | None:
        """Return the newest snapshot with this tree and exactly these left-out paths; None if there is none.

        Snapshots of the undo stack are not returned, because the stack deletes them.
        """
        where = "tree = ? AND left_out = ? AND kind <> ?"
        query = f"SELECT {COLUMNS} FROM snapshot WHERE {where} ORDER BY seq DESC LIMIT 1"  # noqa: S608
        with self._open() as db:
            columns = db.execute(query, (tree, encode_record(excluded)[0], UNDO)).fetchone()
        return _catalog_row(columns).snapshot if columns else None

    def excluded_from(self, snapshot_id: str) -> dict[bytes, ExcludedPath]:
        """Return the paths that a snapshot left out."""
        query = "SELECT paths FROM left_out WHERE id = (SELECT left_out FROM snapshot WHERE id = ?)"
        with self._open() as db:
            row = db.execute(query, (snapshot_id,)).fetchone()
        return decode_record(row[0]) if row else {}

    def remove(self, ids: Iterable[str]) -> None:
        """Remove snapshots from the catalog, and record that their trees may be waste."""
        with self._transaction() as db:
            for id in ids:
                db.execute("INSERT OR IGNORE INTO dropped SELECT tree FROM snapshot WHERE id = ?", (id,))
                db.execute("DELETE FROM snapshot WHERE id = ?", (id,))
                db.execute("DELETE FROM holding WHERE snapshot = ?", (id,))

    def unneeded_trees(self) -> set[str]:
        """Return the trees of removed snapshots that nothing needs any more."""
        with self._open() as db:
            return {tree for (tree,) in db.execute("SELECT tree FROM dropped")} - self.needed_trees()

    def forget_trees(self, trees: Iterable[str]) -> None:
        """Forget waste that has been deleted, and free the space of the catalog itself."""
        with self._transaction() as db:
            db.executemany("DELETE FROM dropped WHERE tree = ?", [(tree,) for tree in trees])
            db.execute("DELETE FROM left_out WHERE NOT EXISTS (SELECT 1 FROM snapshot WHERE left_out = left_out.id)")
        with self._open() as db:
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def pin(self, id: str, pinned: bool) -> None:
        """Pin or unpin a snapshot."""
        with self._transaction() as db:
            db.execute("UPDATE snapshot SET pinned = ? WHERE id = ?", (pinned, id))

    def annotate(self, snapshot: FileCheckpoint) -> None:
        """Store the name, message and metadata of a snapshot that exists."""
        values = (snapshot.name, snapshot.message, json.dumps(dict(snapshot.metadata)), snapshot.id)
        with self._transaction(durable=True) as db:
            db.execute("UPDATE snapshot SET name = ?, message = ?, metadata = ? WHERE id = ?", values)

    def hold(self, id: str, holder: str) -> None:
        """Pin a snapshot for a holder. Several holders can pin the same snapshot."""
        with self._transaction() as db:
            db.execute("INSERT OR IGNORE INTO holding VALUES (?, ?)", (id, holder))

    def release(self, id: str, holder: str) -> None:
        """Release a holder's pin of a snapshot."""
        with self._transaction() as db:
            db.execute("DELETE FROM holding WHERE snapshot = ? AND holder = ?", (id, holder))

    def needed_trees(self) -> set[str]:
        """Return the keys of all trees that are needed: by snapshots, the index and unfinished restores."""
        with self._open() as db:
            tree_keys = {key for (key,) in db.execute("SELECT tree FROM snapshot")}
            tree_keys |= {
                value for (value,) in db.execute("SELECT value FROM state WHERE name = 'key' AND value <> ''")
            }
            for target, before in db.execute("SELECT target, before FROM restoring WHERE status = 'running'"):
                tree_keys |= {target, before}
        return tree_keys

    def begin(
        self, snapshot_id: str, target_tree: str, safety_id: str, before_tree: str, paths: Iterable[bytes] | None
    ) -> int:
        """Record that a restore begins; return its id."""
        encoded_paths = None if paths is None else json.dumps([path.decode("latin-1") for path in paths])
        values = (snapshot_id, target_tree, safety_id, before_tree, encoded_paths, "running", time.time_ns())
        with self._transaction() as db:
            query = (
                "INSERT INTO restoring (snapshot, target, safety, before, paths, status, created_at)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)"
            )
            return int(db.execute(query, values).lastrowid or 0)

    def end(self, id: int, status: str) -> None:
        """Record the result of a restore: `done` or `failed`."""
        with self._transaction() as db:
            db.execute("UPDATE restoring SET status = ? WHERE id = ?", (status, id))

    def unfinished_restores(self) -> list[RestoreRecord]:
        """Return the restores that were interrupted, oldest first."""
        query = "SELECT id, snapshot, target, safety, before, paths FROM restoring WHERE status = 'running' ORDER BY id"
        with self._open() as db:
            return [
                RestoreRecord(id, snapshot, target, safety, before, _decode_paths(paths))
                for id, snapshot, target, safety, before, paths in db.execute(query)
            ]

    def get(self, name: str) -> str:
        """Return a value by its name; an empty string if there is none."""
        with self._open() as db:
            row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
            return row[0] if row else ""

    def set(self, name: str, value: str) -> None:
        """Store a value under a name."""
        with self._transaction() as db:
            _set_value(db, name, value)

    def record_mode(self, path: bytes, mode: int, inode: int) -> None:
        """Record the mode of a path before it is changed temporarily."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO permit VALUES (?, ?, ?)", (path, mode, _signed_inode(inode)))

    def delete_mode(self, path: bytes) -> None:
        """Delete the recorded mode of a path, which is not needed any more."""
        with self._transaction() as db:
            db.execute("DELETE FROM permit WHERE path = ?", (path,))

    def recorded_modes(self) -> list[tuple[bytes, int, int]]:
        """Return the paths whose mode a killed process changed temporarily, each with its recorded mode and inode."""
        with self._open() as db:
            return [(path, mode, inode & INODE_MASK) for path, mode, inode in db.execute("SELECT * FROM permit")]

    def left_out(self) -> list[str]:
        """Return the paths that no snapshot may contain and no restore may change, relative to the workspace."""
        return list(json.loads(self.get(LEFT_OUT) or "[]"))

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._cached_connection = self._finalizer = None

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
        if (
            self._cached_connection is None or self._process_id != os.getpid()
        ):  # a connection must not be used after a fork
            self._cached_connection = sqlite3.connect(
                self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._process_id, self._finalizer = os.getpid(), weakref.finalize(self, self._cached_connection.close)
        return self._cached_connection

    @contextmanager
    def _transaction(self, *, durable: bool = False) -> Iterator[sqlite3.Connection]:
        """Run a block in a transaction."""
        with self._open() as db:
            db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
            except BaseException:
                db.rollback()
                raise
            db.commit()


def _insert_snapshot(db: sqlite3.Connection, snapshot: FileCheckpoint, tree: str, excluded: ExcludedRecord) -> None:
    query = (
        "INSERT INTO snapshot"
        " (id, tree, name, message, created_at, kind, files_changed, change_count, metadata, pinned, left_out)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    record = encode_record(excluded)
    db.execute("INSERT OR IGNORE INTO left_out VALUES (?, ?)", record)
    created_at = int(snapshot.timestamp.timestamp() * 1_000_000) * 1000
    values = (snapshot.id, tree, snapshot.name, snapshot.message, created_at, snapshot.kind)
    changes = json.dumps(snapshot.files_changed), snapshot.change_count
    more_values = json.dumps(dict(snapshot.metadata)), snapshot.pinned
    db.execute(query, (*values, *changes, *more_values, record[0]))


def _save_index(db: sqlite3.Connection, index: WorkspaceIndex) -> None:
    """Store the entries of the index that have changed."""
    rows: list[tuple[Any, ...]] = []
    removed: list[tuple[bytes]] = []
    for path in index.dirty:
        if index_entry := index.files.get(path) or index.folders.get(path):
            rows.append((path, index_entry.entry.mode, index_entry.entry.oid, None, *_stamp_columns(index_entry.stamp)))
        elif skipped := index.skipped.get(path):
            rows.append((path, None, None, skipped.why, *_stamp_columns(skipped.stamp)))
        else:
            removed.append((path,))
    db.executemany("DELETE FROM seen WHERE path = ?", removed)
    db.executemany("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    for name, value in (("key", index.key or ""), ("settings", index.settings), ("generation", index.generation)):
        _set_value(db, name, value)


def _stamp_columns(stamp: Stamp | None) -> tuple[int | None, ...]:
    if stamp is None:
        return (None,) * 5
    return *stamp[:3], _signed_inode(stamp[3]), stamp[4]


def _signed_inode(inode: int) -> int:
    return inode - (1 << 64) if inode >> 63 else inode


def _set_value(db: sqlite3.Connection, name: str, value: str) -> None:
    db.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))


def _catalog_row(columns: tuple[Any, ...]) -> CatalogRow:
    id, tree, name, message, created_at, kind, files_changed, metadata, pinned, seq, excluded_id, change_count = columns
    snapshot = FileCheckpoint(
        id,
        name,
        message,
        utc_datetime(created_at),
        tuple(json.loads(files_changed)),
        json.loads(metadata),
        kind,
        bool(pinned),
        change_count,
    )
    return CatalogRow(snapshot, tree, seq, excluded_id)


def _decode_paths(encoded: str | None) -> tuple[bytes, ...] | None:
    return None if encoded is None else tuple(path.encode("latin-1") for path in json.loads(encoded))


def _use_wal(db: sqlite3.Connection) -> None:
    """Turn on WAL mode, so that readers and a writer can work at the same time.

    Retry if another process turns it on too, because SQLite's own timeout does not apply here.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)
