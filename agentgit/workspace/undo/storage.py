"""The undo stack on disk: one SQLite file, in which each part of a file's contents is kept once."""

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
from agentgit.workspace.locations import exclusive
from agentgit.workspace.values import plain

UNDO, REDO, SAFETY = "undo", "redo", "safety"
"""The place of an entry: on the stack, undone and next to be redone, or undone before something else was done."""

FOLDER = "folder"
"""The kind of a directory that was not there."""

PATIENCE = 60.0
"""The time that one process waits for another, in seconds."""

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
    "PRAGMA auto_vacuum=FULL",  # what is forgotten gives its space back; it has to come before the first table
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA journal_size_limit=0",
    "PRAGMA foreign_keys=ON",
)


@dataclass(frozen=True)
class StoredEntry:
    """The files as they were at one moment.

    Args:
        id, label: The id and the label of the entry.
        created_at: The time in seconds since 1970.
        whole: The id of the snapshot of the whole workspace, instead of single files.
        states: The state of each path.
        folders: The directories that did not exist.
    """

    id: int
    label: str
    created_at: float
    whole: str | None
    states: Mapping[bytes, FileState]
    folders: Sequence[bytes]


class UndoStorage:
    """The rows of an undo stack. Its user makes sure that only one thread of one process uses it at a time.

    Args:
        path: The path of the SQLite file, which is made with the first use.

    Raises:
        Unavailable: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._depth = 0
        with _told(path):
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
        """Keep other processes out, from the first to the last file of an undo; the lock of a process goes with it.

        Raises:
            Unavailable: Another one takes longer than a minute.
        """
        lock = self._path.with_suffix(".lock")
        with exclusive(lock, patience=PATIENCE, what=f"the undo stack {self._path}"):
            yield

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Do all of a block or nothing of it; a block inside of one belongs to it."""
        with _told(self._path):
            if self._depth:
                yield
                return
            self._db.execute("BEGIN IMMEDIATE")
            self._depth += 1
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                self._db.rollback()
                raise
            finally:
                self._depth -= 1

    # -- entries

    def add(
        self,
        stack: str,
        label: str,
        states: Mapping[bytes, FileState],
        folders: Sequence[bytes] = (),
        whole: str | None = None,
    ) -> int:
        """Add an entry; give its id.

        Args:
            stack: `UNDO` or `REDO`.
            label: The label of the entry.
            states: The state of each path.
            folders: Directories that are not there.
            whole: The id of a snapshot of the whole workspace.
        """
        with self.writing():
            row = (stack, plain(label), time.time(), whole)
            id = self._db.execute("INSERT INTO entry (stack, label, created_at, whole) VALUES (?,?,?,?)", row).lastrowid
            assert id is not None  # noqa: S101 - an insert has one
            kinds = [*states.items(), *((path, FileState(FOLDER)) for path in folders)]
            self._db.executemany(
                "INSERT INTO state VALUES (?,?,?,?,?,?,?)",
                [(id, path, one.kind, one.mode, *one.owner, one.target) for path, one in kinds],
            )
            self._db.executemany(
                "INSERT INTO part VALUES (?,?,?,?)",
                [(id, path, at, hash) for path, one in kinds for at, hash in enumerate(one.parts)],
            )
            return id

    def list(self, *stacks: str) -> Sequence[StoredEntry]:
        """Return the entries of some stacks, oldest first."""
        return [entry for id in self.ids(*stacks) if (entry := self.get(id))]

    def ids(self, *stacks: str) -> Sequence[int]:
        """Return the ids of the entries of some stacks, oldest first."""
        query = "SELECT id FROM entry WHERE stack IN (SELECT value FROM json_each(?)) ORDER BY id"
        return [row[0] for row in self._all(query, json.dumps(stacks))]

    def newest(self, stack: str) -> StoredEntry | None:
        """Return the newest entry of a stack; None if it is empty."""
        ids = self.ids(stack)
        return self.get(ids[-1]) if ids else None

    def get(self, id: int) -> StoredEntry | None:
        """Return one entry of any stack."""
        rows = self._all("SELECT * FROM entry WHERE id = ?", id)
        return self._entry(rows[0]) if rows else None

    def wholes(self) -> Sequence[str]:
        """Return the snapshots of the whole workspace that entries need."""
        return [row[0] for row in self._all("SELECT whole FROM entry WHERE whole IS NOT NULL")]

    def retire_redo(self) -> None:
        """Something else was done: what was undone before is kept, and is no longer next to be redone."""
        self._run("UPDATE entry SET stack = ? WHERE stack = ?", SAFETY, REDO)

    def evict(self, most: int) -> Sequence[str]:
        """Forget the oldest entries; give the snapshots of the whole workspace that were theirs.

        Args:
            most: The number of entries that stay on the stack, and of those that were undone.
        """
        forgotten = [entry for stacks in ((UNDO,), (REDO, SAFETY)) for entry in self.ids(*stacks)[:-most]]
        return self.forget(forgotten) if forgotten else ()

    def forget(self, ids: Sequence[int]) -> Sequence[str]:
        """Forget entries, and contents that no other needs; give their snapshots of the whole workspace.

        Args:
            ids: The ids of the entries.
        """
        with self.writing():
            wholes = [entry.whole for id in ids if (entry := self.get(id)) and entry.whole is not None]
            self._run("DELETE FROM entry WHERE id IN (SELECT value FROM json_each(?))", json.dumps(ids))
            self._run("DELETE FROM content WHERE NOT EXISTS (SELECT 1 FROM part WHERE part.hash = content.hash)")
        return wholes

    def clear(self) -> Sequence[str]:
        """Forget everything; give the snapshots of the whole workspace that were its."""
        wholes = self.forget(self.ids(UNDO, REDO, SAFETY))
        self._run("PRAGMA wal_checkpoint(TRUNCATE)")
        return wholes

    # -- contents

    def keep(self, hash: bytes, data: bytes) -> None:
        """Keep a part of a file."""
        self._run("INSERT OR IGNORE INTO content VALUES (?,?)", hash, data)

    def part(self, hash: bytes) -> bytes:
        """Return a part of a file.

        Raises:
            Corrupt: It is not there.
        """
        rows = self._all("SELECT data FROM content WHERE hash = ?", hash)
        if not rows:
            raise Corrupt(f"{self._path} has lost a part of a file; the files were not changed further.", row="content")
        return bytes(rows[0][0])

    # -- an undo that is under way

    def begin(self, entry: int, kept: int) -> None:
        """Write down that an entry is being undone, before any file is touched.

        Args:
            entry: The id of the entry.
            kept: The id of the entry with what stands now.
        """
        self._run("INSERT INTO pending VALUES (?,?)", entry, kept)

    def cancel(self, entry: int) -> None:
        """An entry is not being undone any more, and stays where it is."""
        self._run("DELETE FROM pending WHERE entry = ?", entry)

    def pending(self) -> tuple[StoredEntry, StoredEntry] | None:
        """Return the entry whose undo was broken off, and what stood before; None if there is none."""
        rows = self._all("SELECT entry, kept FROM pending")
        if not rows:
            return None
        entry, kept = (self.get(id) for id in rows[0])
        return (entry, kept) if entry and kept else None

    # -- SQLite

    def _entry(self, row: Sequence[Any]) -> StoredEntry:
        id, _, label, created_at, whole = row
        parts: dict[bytes, list[bytes]] = {}
        for path, hash in self._all("SELECT path, hash FROM part WHERE entry = ? ORDER BY path, number", id):
            parts.setdefault(path, []).append(hash)
        states: dict[bytes, FileState] = {}
        folders = []
        for path, kind, mode, uid, gid, target in self._all(
            "SELECT path, kind, mode, uid, gid, target FROM state WHERE entry = ? ORDER BY rowid", id
        ):
            if kind == FOLDER:
                folders.append(path)
            else:
                states[path] = FileState(kind, mode, (uid, gid), tuple(parts.get(path, ())), target)
        return StoredEntry(id, label, created_at, whole, states, folders)

    def _all(self, query: str, *values: Any) -> Sequence[Any]:
        with _told(self._path):
            return self._db.execute(query, values).fetchall()

    def _run(self, statement: str, *values: Any) -> None:
        with _told(self._path):
            self._db.execute(statement, values).fetchall()


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Convert an error of SQLite or the operating system into one that names the file."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise Unavailable(
            f"The undo stack {path} cannot be used: {error}. Free some space or grant the permission."
        ) from error
