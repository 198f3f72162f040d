"""The storage of the undo stack: one SQLite file that stores each part of a file's contents once."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentgit.errors import Corrupt, Unavailable
from agentgit.workspace.disk.single_file import FileState
from agentgit.workspace.locations import exclusive_lock
from agentgit.workspace.values import escape_surrogates

UNDO, REDO, SAFETY = "undo", "redo", "safety"
"""The stack of an entry: to be undone, to be redone, or undone before another entry was added."""

FOLDER = "folder"
"""The kind of a row for a directory that did not exist."""

PATIENCE = 60.0
"""The maximum time to wait for another process, in seconds."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS entry (
  id INTEGER PRIMARY KEY AUTOINCREMENT, stack TEXT NOT NULL, label TEXT NOT NULL, created_at REAL NOT NULL, whole TEXT
);
CREATE TABLE IF NOT EXISTS state (
  entry INTEGER NOT NULL REFERENCES entry ON DELETE CASCADE, path BLOB NOT NULL, kind TEXT NOT NULL,
  mode INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL, target BLOB NOT NULL, PRIMARY KEY (entry, path)
);
CREATE TABLE IF NOT EXISTS part (
  entry INTEGER NOT NULL, path BLOB NOT NULL, number INTEGER NOT NULL, hash BLOB NOT NULL,
  PRIMARY KEY (entry, path, number), FOREIGN KEY (entry, path) REFERENCES state ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS part_hash ON part (hash);
CREATE TABLE IF NOT EXISTS content (hash BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS pending (
  entry INTEGER PRIMARY KEY REFERENCES entry ON DELETE CASCADE, kept INTEGER NOT NULL
);
"""

SETTINGS = (
    "PRAGMA auto_vacuum=FULL",  # free the space of deleted rows; must be set before the first table
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA journal_size_limit=0",
    "PRAGMA foreign_keys=ON",
)


@dataclass(frozen=True)
class StoredEntry:
    """An entry as it is stored: the state of files at one moment."""

    id: int
    label: str
    created_at: float
    whole: str | None
    states: Mapping[bytes, FileState]
    folders: Sequence[bytes]


class UndoStorage:
    """The rows of an undo stack. The caller must ensure that only one thread of one process uses it at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._transaction_depth = 0
        with _converting_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None, check_same_thread=False)
            for setting in SETTINGS:
                self._db.execute(setting).fetchall()
            self._db.executescript(SCHEMA)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the stack against other processes, for a whole undo. The lock of a killed process is released."""
        lock = self._path.with_suffix(".lock")
        with exclusive_lock(lock, timeout=PATIENCE, description=f"the undo stack {self._path}"):
            yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run a block in a transaction; a nested block joins the outer one."""
        with _converting_errors(self._path):
            if self._transaction_depth:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._transaction_depth += 1
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise
            finally:
                self._transaction_depth -= 1

    # -- entries

    def add(
        self,
        stack: str,
        label: str,
        states: Mapping[bytes, FileState],
        folders: Sequence[bytes] = (),
        whole: str | None = None,
    ) -> int:
        """Add an entry, and return its id."""
        with self.transaction():
            row = (stack, escape_surrogates(label), time.time(), whole)
            id = self._db.execute("INSERT INTO entry (stack, label, created_at, whole) VALUES (?,?,?,?)", row).lastrowid
            assert id is not None  # noqa: S101 - an insert has one
            path_states = [*states.items(), *((path, FileState(FOLDER)) for path in folders)]
            self._db.executemany(
                "INSERT INTO state VALUES (?,?,?,?,?,?,?)",
                [(id, path, one.kind, one.mode, *one.owner, one.target) for path, one in path_states],
            )
            self._db.executemany(
                "INSERT INTO part VALUES (?,?,?,?)",
                [(id, path, number, hash) for path, one in path_states for number, hash in enumerate(one.parts)],
            )
            return id

    def list(self, *stacks: str) -> Sequence[StoredEntry]:
        """Return the entries of some stacks, oldest first."""
        return [entry for id in self.ids(*stacks) if (entry := self.get(id))]

    def ids(self, *stacks: str) -> Sequence[int]:
        """Return the ids of the entries of some stacks, oldest first."""
        query = "SELECT id FROM entry WHERE stack IN (SELECT value FROM json_each(?)) ORDER BY id"
        return [row[0] for row in self._query(query, json.dumps(stacks))]

    def newest(self, stack: str) -> StoredEntry | None:
        """Return the newest entry of a stack; None if it is empty."""
        ids = self.ids(stack)
        return self.get(ids[-1]) if ids else None

    def get(self, id: int) -> StoredEntry | None:
        """Return one entry of any stack; None if it does not exist."""
        rows = self._query("SELECT * FROM entry WHERE id = ?", id)
        return self._stored_entry(rows[0]) if rows else None

    def whole_snapshots(self) -> Sequence[str]:
        """Return the ids of the snapshots of the whole workspace that entries need."""
        return [row[0] for row in self._query("SELECT whole FROM entry WHERE whole IS NOT NULL")]

    def retire_redo(self) -> None:
        """Move the redo entries to `SAFETY` after a new entry was added, so that they can only be redone by id."""
        self._execute("UPDATE entry SET stack = ? WHERE stack = ?", SAFETY, REDO)

    def evict(self, max_entries: int) -> Sequence[str]:
        """Delete the oldest entries, and return the ids of their snapshots of the whole workspace."""
        old_ids = [entry for stacks in ((UNDO,), (REDO, SAFETY)) for entry in self.ids(*stacks)[:-max_entries]]
        return self.forget(old_ids) if old_ids else ()

    def forget(self, ids: Sequence[int]) -> Sequence[str]:
        """Delete entries and contents that no other entry needs.

        Return the ids of their snapshots of the whole workspace.
        """
        with self.transaction():
            snapshot_ids = [entry.whole for id in ids if (entry := self.get(id)) and entry.whole is not None]
            self._execute("DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))", json.dumps(ids))
            self._execute("DELETE FROM content WHERE NOT EXISTS (SELECT 1 FROM part WHERE part.hash = content.hash)")
        return snapshot_ids

    def clear(self) -> Sequence[str]:
        """Delete all entries, and return the ids of their snapshots of the whole workspace."""
        snapshot_ids = self.forget(self.ids(UNDO, REDO, SAFETY))
        self._execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return snapshot_ids

    # -- contents

    def store_part(self, hash: bytes, data: bytes) -> None:
        """Store a part of a file under its hash."""
        self._execute("INSERT OR IGNORE INTO content VALUES (?,?)", hash, data)

    def read_part(self, hash: bytes) -> bytes:
        """Return a part of a file."""
        rows = self._query("SELECT data FROM content WHERE hash = ?", hash)
        if not rows:
            raise Corrupt(f"{self._path} has lost a part of a file; the files were not changed further.", row="content")
        return bytes(rows[0][0])

    # -- an undo in progress

    def begin(self, entry_id: int, saved_id: int) -> None:
        """Record that an entry is being undone, before any file is changed."""
        self._execute("INSERT INTO pending VALUES (?,?)", entry_id, saved_id)

    def cancel(self, entry_id: int) -> None:
        """Record that the undo of an entry was canceled; the entry stays on its stack."""
        self._execute("DELETE FROM pending WHERE entry = ?", entry_id)

    def pending(self) -> tuple[StoredEntry, StoredEntry] | None:
        """Return the entry whose undo was interrupted, and the entry with the files before; None if there is none."""
        rows = self._query("SELECT entry, kept FROM pending")
        if not rows:
            return None
        entry, saved = (self.get(id) for id in rows[0])
        return (entry, saved) if entry and saved else None

    # -- SQLite

    def _stored_entry(self, row: Sequence[Any]) -> StoredEntry:
        id, _, label, created_at, whole = row
        parts: dict[bytes, list[bytes]] = {}
        for path, hash in self._query("SELECT path, hash FROM part WHERE entry = ? ORDER BY path, number", id):
            parts.setdefault(path, []).append(hash)
        states: dict[bytes, FileState] = {}
        folders = []
        for path, kind, mode, uid, gid, target in self._query(
            "SELECT path, kind, mode, uid, gid, target FROM state WHERE entry = ? ORDER BY rowid", id
        ):
            if kind == FOLDER:
                folders.append(path)
            else:
                states[path] = FileState(kind, mode, (uid, gid), tuple(parts.get(path, ())), target)
        return StoredEntry(id, label, created_at, whole, states, folders)

    def _query(self, query: str, *values: Any) -> Sequence[Any]:
        with _converting_errors(self._path):
            return self._db.execute(query, values).fetchall()

    def _execute(self, statement: str, *values: Any) -> None:
        with _converting_errors(self._path):
            self._db.execute(statement, values).fetchall()


@contextmanager
def _converting_errors(path: Path) -> Iterator[None]:
    """Convert an error of SQLite or the operating system into one that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(
            f"The undo stack {path} cannot be used: {error}. Free some space or grant the permission."
        ) from error
