"""The catalog of a workspace: one SQLite file with its snapshots, its index, and a restore in progress.

The index has what the last scan found in each directory, with a stamp of each file, as git's index has one.

Contents are written first. Then everything that refers to them is stored here in one transaction. So a process that is
killed in between leaves only unused objects behind.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import ormsgpack

from agentgit.errors import Unavailable
from agentgit.workspace.left_out import Chosen, LeftOut, LeftOutPaths, decode_left_out, encode_left_out
from agentgit.workspace.locations import exclusive_lock, naming
from agentgit.workspace.values import UNDO, FileCheckpoint

P = ParamSpec("P")
T = TypeVar("T")

FORMAT = 4
"""The version of the tables."""

SCHEMA = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS snapshot (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, name TEXT, kind TEXT NOT NULL, tree TEXT NOT NULL,
    left_out BLOB NOT NULL, fields TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS holding (
    snapshot TEXT NOT NULL, holder TEXT NOT NULL, PRIMARY KEY (snapshot, holder)) STRICT;
CREATE TABLE IF NOT EXISTS folder (path BLOB PRIMARY KEY, found BLOB NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
PRAGMA user_version = {FORMAT};
COMMIT;
"""

PATIENCE = 30.0
"""The maximum time to wait for another process, in seconds."""

COLUMNS = "id, name, kind, tree, left_out, fields"

IS_HELD = "EXISTS (SELECT 1 FROM holding WHERE holding.snapshot = snapshot.id)"

IS_LISTED = f"kind <> '{UNDO}'"
"""Entries of the undo stack are not listed with the other snapshots."""

SETTINGS, GENERATION, PENDING = "settings", "generation", "pending"
"""Keys of `state`: the settings of the index, when it was stored, and the restore in progress."""


Stamp = tuple[int, int, int, int]
"""Modification and change times in nanoseconds, size and inode. An unchanged stamp means unchanged content and mode."""

RECENT, RECENT_COARSE = 20_000_000, 2_000_000_000
"""The period, in nanoseconds, in which a file can change without a new time. The second is for whole-second times."""


def stamp_of(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def reliable_stamp(status: os.stat_result, at: int | None = None) -> Stamp | None:
    """Return the stamp if any change of the file after it was taken is certain to change it, else None."""
    newest = max(status.st_mtime_ns, status.st_ctime_ns)
    period = RECENT if newest % 10**9 else RECENT_COARSE
    return stamp_of(status) if newest < (time.time_ns() if at is None else at) - period else None


class KnownFile(NamedTuple):
    stamp: Stamp | None
    mode: int
    oid: bytes


@dataclass(slots=True)
class Folder:
    """A captured directory. `rules` is the stamp of its `.gitignore`; `stamp` is None if its names must be listed."""

    mode: int
    stamp: Stamp | None = None
    rules: Stamp | None = None
    tree: bytes = b""
    files: dict[bytes, KnownFile] = field(default_factory=dict)
    folders: list[bytes] = field(default_factory=list)
    left_out: dict[bytes, LeftOut] = field(default_factory=dict)

    def encode(self) -> bytes:
        files = [(name, *one) for name, one in self.files.items()]
        left_out = [(name, *one) for name, one in self.left_out.items()]
        return ormsgpack.packb([self.mode, self.stamp, self.rules, self.tree, files, self.folders, left_out])

    @classmethod
    def decode(cls, data: bytes) -> Folder:
        mode, stamp, rules, tree, files, folders, left_out = ormsgpack.unpackb(data)
        known = {name: KnownFile(stamp and tuple(stamp), mode, oid) for name, stamp, mode, oid in files}
        skipped = {name: LeftOut(*values) for name, *values in left_out}
        return cls(mode, stamp and tuple(stamp), rules and tuple(rules), tree, known, folders, skipped)


@dataclass
class Index:
    """The index of a workspace: its directories by path, which of them are not stored yet, and their tree."""

    settings: str | None = None
    generation: str | None = None
    folders: dict[bytes, Folder] = field(default_factory=dict)
    dirty: set[bytes] = field(default_factory=set)

    @property
    def tree(self) -> bytes:
        """The id of the tree of all files; empty before the first scan."""
        return self.folders[b""].tree if self.folders else b""

    def left_out(self) -> dict[bytes, LeftOut]:
        return {join(path, name): one for path, folder in self.folders.items() for name, one in folder.left_out.items()}


def join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name


class CatalogRow(NamedTuple):
    """A snapshot; `paths` are those that an entry of the undo stack restores, None for all."""

    snapshot: FileCheckpoint
    tree: str
    left_out: LeftOutPaths
    paths: Chosen = None


def _connected(
    method: Callable[Concatenate[Catalog, sqlite3.Connection, P], T],
) -> Callable[Concatenate[Catalog, P], T]:
    """Call a method with the connection, and end the transaction that it begins.

    Both end in C, where Ctrl-C cannot come in between. Rows are fetched at once: a traceback may keep a cursor, whose
    old view of the file would let no later transaction write.
    """

    @wraps(method)
    def call(self: Catalog, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            with self._lock, self._connection() as db:
                return method(self, db, *args, **kwargs)
        except sqlite3.Error as error:
            damaged = (
                "Go on without the files, put a copy of it in its place, or give another directory for the snapshots."
            )
            is_damaged = not isinstance(error, sqlite3.OperationalError)
            advice = damaged if is_damaged else "Free some space or grant the permission, then try again."
            raise Unavailable(f"{self._path}: {error}. {advice}") from error

    return call


def _begin(db: sqlite3.Connection, *, durable: bool = False) -> None:
    db.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
    db.execute("BEGIN IMMEDIATE")


class Catalog:
    def __init__(self, path: str) -> None:
        self._path, self._process_id = path, 0
        self._lock = threading.RLock()
        self._cached_connection: sqlite3.Connection | None = None
        self._finalizer: Callable[[], object] | None = None
        with naming(path), suppress(FileExistsError):  # to close a file that SQLite has open would drop its locks
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        # SQLite's own timeout does not apply to the pragma.
        with exclusive_lock(f"{path}-opening", timeout=PATIENCE, description=path):
            self._create_tables()

    @_connected
    def _create_tables(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA journal_mode=WAL")
        is_new = db.execute("SELECT 1 FROM sqlite_master").fetchone() is None
        if not is_new and db.execute("PRAGMA user_version").fetchone() != (FORMAT,):
            raise Unavailable(
                f"{self._path} was made by another version of agentgit. Nothing was changed. Use that version, "
                "or give another directory for the snapshots."
            )
        db.executescript(SCHEMA)

    # -- snapshots

    @_connected
    def add(
        self, db: sqlite3.Connection, *rows: CatalogRow, index: Index | None = None, holder: str | None = None
    ) -> None:
        """Store new snapshots, pinned for a holder, and the index of the files, safe from a power failure."""
        _begin(db, durable=True)
        for one, tree, left_out, paths in rows:
            encoded = None if paths is None else [os.fsdecode(path) for path in paths]
            fields = one.message, one.timestamp.isoformat(), one.files_changed, dict(one.metadata), one.change_count
            values = one.id, one.name, one.kind, tree, encode_left_out(left_out), json.dumps([*fields, encoded])
            db.execute(f"INSERT INTO snapshot ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?)", values)  # noqa: S608
            if holder is not None:
                db.execute("INSERT INTO holding VALUES (?, ?)", (one.id, holder))
        if index is not None:
            _save_index(db, index)

    def rows(self, *, limit: int | None = None) -> list[CatalogRow]:
        return self._rows(f"WHERE {IS_LISTED} ORDER BY seq DESC LIMIT ?", -1 if limit is None else limit)

    def undo_entries(self) -> list[CatalogRow]:
        """Return the snapshots on the undo stack, oldest first."""
        return self._rows("WHERE kind = ? ORDER BY seq", UNDO)

    def deletable(self, *, kept: int = 0, protected: Iterable[str] = ()) -> list[CatalogRow]:
        """Return the snapshots that no session and no undo stack needs, newest first, without the first `kept` ones.

        Protected ones are the first.
        """
        order = "id IN (SELECT value FROM json_each(?)) DESC, seq DESC LIMIT -1 OFFSET ?"
        return self._rows(f"WHERE {IS_LISTED} AND NOT {IS_HELD} ORDER BY {order}", json.dumps([*protected]), kept)

    @_connected
    def trees(self, db: sqlite3.Connection) -> list[str]:
        """Return the tree of each snapshot."""
        return [tree for (tree,) in db.execute("SELECT tree FROM snapshot").fetchall()]

    def find(self, ref: str) -> list[CatalogRow]:
        """Return the snapshot with this id, or else the newest with this name, or else all whose id starts with it."""
        for where in ("id = ? LIMIT 1", "name = ? ORDER BY seq DESC LIMIT 1", "instr(id, ?) = 1"):
            if rows := self._rows(f"WHERE {where}", ref):
                return rows
        return []

    def get_row(self, id: str) -> CatalogRow | None:
        return next(iter(self._rows("WHERE id = ?", id)), None)

    def find_by_tree(self, tree: str, left_out: LeftOutPaths) -> FileCheckpoint | None:
        """Return the newest snapshot with this tree and exactly these left-out paths that is not on the undo stack."""
        where = f"WHERE tree = ? AND left_out = ? AND {IS_LISTED} ORDER BY seq DESC LIMIT 1"
        return next((row.snapshot for row in self._rows(where, tree, encode_left_out(left_out))), None)

    @_connected
    def _rows(self, db: sqlite3.Connection, clauses: str, *values: object) -> list[CatalogRow]:
        query = f"SELECT {COLUMNS}, {IS_HELD} FROM snapshot {clauses}"  # noqa: S608
        return [_catalog_row(*row) for row in db.execute(query, values).fetchall()]

    @_connected
    def shrink(self, db: sqlite3.Connection) -> None:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @_connected
    def hold(self, db: sqlite3.Connection, id: str, holder: str) -> None:
        """Pin a snapshot for a holder. Several holders can pin the same snapshot."""
        _begin(db)
        db.execute("INSERT OR IGNORE INTO holding VALUES (?, ?)", (id, holder))

    @_connected
    def release(self, db: sqlite3.Connection, id: str, holder: str) -> None:
        _begin(db)
        db.execute("DELETE FROM holding WHERE snapshot = ? AND holder = ?", (id, holder))

    # -- the index

    @_connected
    def load_index(self, db: sqlite3.Connection, cached_index: Index | None) -> Index:
        """Return the index of the files: the cached one if no other process has stored another."""
        generation, settings = self.get(GENERATION), self.get(SETTINGS)
        if cached_index is not None and cached_index.generation == generation:
            return cached_index
        folders = {path: Folder.decode(found) for path, found in db.execute("SELECT * FROM folder").fetchall()}
        return Index(settings, generation, folders)

    @_connected
    def store_index(self, db: sqlite3.Connection, index: Index) -> None:
        _begin(db)
        _save_index(db, index)

    # -- other values

    @_connected
    def get(self, db: sqlite3.Connection, name: str) -> Any:
        row = db.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return json.loads(row[0]) if row else None

    @_connected
    def set(self, db: sqlite3.Connection, values: Mapping[str, Any], *, removed: Iterable[str] = ()) -> None:
        """Set values, and remove snapshots, in one transaction."""
        _begin(db)
        _set_values(db, values)
        for id in removed:
            db.execute("DELETE FROM snapshot WHERE id = ?", (id,))
            db.execute("DELETE FROM holding WHERE snapshot = ?", (id,))

    def close(self) -> None:
        """Close the file. The next use opens it again."""
        with self._lock:
            if self._finalizer is not None:
                self._finalizer()
            self._cached_connection = self._finalizer = None

    def _connection(self) -> sqlite3.Connection:
        """Return the connection, which stays open: closing the last one to a file writes the whole WAL back."""
        if self._cached_connection is None or self._process_id != os.getpid():  # none may be used after a fork
            self._cached_connection = sqlite3.connect(
                self._path, timeout=PATIENCE, isolation_level=None, check_same_thread=False
            )
            self._process_id, self._finalizer = os.getpid(), weakref.finalize(self, self._cached_connection.close)
        return self._cached_connection


def _save_index(db: sqlite3.Connection, index: Index) -> None:
    changed = [(path, index.folders[path].encode()) for path in index.dirty if path in index.folders]
    db.executemany("DELETE FROM folder WHERE path = ?", [(path,) for path in index.dirty if path not in index.folders])
    db.executemany("INSERT OR REPLACE INTO folder VALUES (?, ?)", changed)
    index.generation = str(time.time_ns())
    _set_values(db, {SETTINGS: index.settings, GENERATION: index.generation})
    index.dirty.clear()


def _set_values(db: sqlite3.Connection, values: Mapping[str, Any]) -> None:
    encoded = [(name, json.dumps(value)) for name, value in values.items()]
    db.executemany("INSERT OR REPLACE INTO state VALUES (?, ?)", encoded)


def _catalog_row(id: str, name: str, kind: str, tree: str, record: bytes, encoded: str, is_held: int) -> CatalogRow:
    message, created, changed, metadata, count, paths = json.loads(encoded)
    left_out, at = decode_left_out(record), datetime.fromisoformat(created)
    skipped = tuple((os.fsdecode(path), one.why) for path, one in left_out.items())
    snapshot = FileCheckpoint(id, name, message, at, tuple(changed), metadata, kind, bool(is_held), count, skipped)
    return CatalogRow(snapshot, tree, left_out, None if paths is None else tuple(map(os.fsencode, paths)))
