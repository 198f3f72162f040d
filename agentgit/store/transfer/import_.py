"""An export becomes a session: read once to be checked whole, and once more to be stored, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, Table

from agentgit.checkpoints.references import free_name
from agentgit.effects.files import FilesAt
from agentgit.errors import Conflict, Corrupt
from agentgit.store.audit.trail import note
from agentgit.store.objects.blobs import Blobs, Leaf
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import AT_ONCE as ROWS_AT_ONCE
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import (
    BRANCH,
    CHECKPOINT,
    GRAPH_CHECKPOINT,
    GRAPH_WRITE,
    OPERATION,
    SESSION,
    TAG,
    TOOL_INVOCATION,
    WORKSPACE_SNAPSHOT,
    WORLD_LOG,
)
from agentgit.store.store import Store
from agentgit.store.transfer.export_states import AT_ONCE
from agentgit.store.transfer.file_trees import Keeps
from agentgit.store.transfer.import_check import Checker
from agentgit.store.transfer.import_rows import ImportedRows, ListItems, new_ids
from agentgit.store.transfer.lines import LineReader, damaged, read
from agentgit.store.transfer.records import checked, require_header

BYTES_AT_ONCE = 4 * 2**20
"""Bytes of values that wait to be stored."""

TABLES: Mapping[str, Table] = {
    "branch": BRANCH,
    "state": GRAPH_CHECKPOINT,
    "write": GRAPH_WRITE,
    "checkpoint": CHECKPOINT,
    "tag": TAG,
    "snapshot": WORKSPACE_SNAPSHOT,
    "call": TOOL_INVOCATION,
    "operation": OPERATION,
    "log": WORLD_LOG,
}


def records(stream: LineReader, checker: Checker) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the records of an export, each checked before it is given.

    Args:
        stream: The file, at any place.
        checker: A new checker.

    Raises:
        InvalidInput: It is no export, or has another format.
        Corrupt: A line is damaged, or does not fit to the others; the text says which line, and what is wrong.
    """
    stream.seek(0)
    number = 0
    for number, found, checker.seal in read(stream):
        if number == 1:
            require_header(found)
        try:
            if checker.is_whole:
                raise ValueError("comes after the end")
            kind, record = checked(found)
            checker.take(kind, record)
        except ValueError as error:
            raise damaged(number, str(error)) from error
        yield kind, record
    if number == 0:
        require_header(None)
    if not checker.is_whole:
        raise Corrupt(
            f"The export ends with line {number}, and its end is missing: it is truncated. Nothing was imported. "
            "Export the session again.",
            row=f"line {number}",
        )


def check(stream: LineReader, keeps: Keeps | None = None) -> Checker:
    """Read an export and hold it against itself; nothing is stored.

    Args:
        stream: The file, at any place.
        keeps: The keeper of its files; None only checks them.

    Raises:
        InvalidInput, Corrupt: As `records`.
    """
    checker = Checker(keeps)
    for _ in records(stream, checker):
        pass
    return checker


class Import:
    """Makes a session of an export.

    Args:
        store: The store of the tenant.
        user_id: The user who owns the new session.
        stream: The file; it can be read again.
        name: The name of the session; None for its own name, or the next free one like it.
    """

    def __init__(self, store: Store, user_id: int, stream: LineReader, name: str | None) -> None:
        self.store = store
        self.user_id = user_id
        self.stream = stream
        self.name = name

    def run(self, whole: Checker, files: Mapping[int, FilesAt] | None = None) -> int:
        """Import it; give the id of the session.

        Args:
            whole: The checker, as `check` returned it.
            files: The new place of each tree; None leaves the files out.

        Raises:
            InvalidInput, Corrupt: As `records`; nothing is stored.
            Conflict: There is a session of that name.
            NotAllowed: The user was deleted.
        """
        return self.store.database.write(lambda c: self._store(c, whole, files), durable=True)

    def _store(self, connection: Connection, whole: Checker, files: Mapping[int, FilesAt] | None) -> int:
        rows = ImportedRows(
            tenant_id=self.store.tenant_id,
            user_id=self.user_id,
            session_id=new_id(),
            ids=new_ids(whole.ids),
            seen=whole.last_seq,
            files=files,
            snapshots=whole.files.snapshots if files is not None else {},
        )
        self.store.users.expect(connection, self.user_id)
        row = rows.session(whole.session, self._name(connection, whole.session["name"]))
        row_codes.add(connection, SESSION, row)
        # Of its own, because the memory of another one would tell of lists that are not stored if this is rolled back.
        values = _ValueImport(Blobs(self.store.tenant_id, self.store.compression), connection)
        tables = _Tables(connection, rows)
        checker = Checker()
        for kind, record in records(self.stream, checker):
            if kind in TABLES and (kind != "snapshot" or rows.has(record)):
                tables.add(kind, record)
            elif kind in ("value", "part", "list"):
                values.add(checker.made)
        if checker.seal != whole.seal:
            raise _changed()
        values.flush()
        tables.flush()
        note(
            connection,
            self.store.tenant_id,
            "session.imported",
            session_id=rows.session_id,
            user_id=self.user_id,
            name=whole.session["name"],
            checkpoints=whole.counts["checkpoint"],
            calls=whole.counts["call"],
        )
        return rows.session_id

    def _name(self, connection: Connection, own: str) -> str:
        taken = set(self.store.sessions.names(connection, self.user_id))
        if self.name is not None:
            if self.name in taken:
                raise Conflict(f"Session {self.name!r} already exists. Import it under another name.")
            return self.name
        return free_name(own, taken)


def _changed() -> Corrupt:
    return Corrupt("The export was changed while it was read. Nothing was imported. Import it again.")


class _ValueImport:
    """Stores values, some at a time."""

    def __init__(self, blobs: Blobs, connection: Connection) -> None:
        self.blobs = blobs
        self.connection = connection
        self._waiting: list[Leaf] = []
        self._size = 0

    def add(self, made: Leaf | ListItems | None) -> None:
        if isinstance(made, Leaf):
            self._waiting.append(made)
            self._size += len(made.data)
        if isinstance(made, ListItems):
            self.flush(made)
        elif len(self._waiting) >= AT_ONCE or self._size > BYTES_AT_ONCE:
            self.flush()

    def flush(self, *lists: ListItems) -> None:
        self.blobs.put_many(self.connection, self._waiting, lists)
        self._waiting, self._size = [], 0


class _Tables:
    """Stores rows, some of one table at a time."""

    def __init__(self, connection: Connection, rows: ImportedRows) -> None:
        self.connection = connection
        self._make: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            kind: getattr(rows, kind) for kind in TABLES
        }
        self._waiting: dict[str, list[dict[str, Any]]] = {kind: [] for kind in TABLES}

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        waiting = self._waiting[kind]
        try:
            waiting.append(self._make[kind](record))
        except KeyError as error:  # an id that was not there when the file was checked
            raise _changed() from error
        if len(waiting) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Store what waits; in the order of the tables, because some refer to others."""
        for kind in TABLES:
            if self._waiting[kind]:
                row_codes.add(self.connection, TABLES[kind], *self._waiting[kind])
                self._waiting[kind] = []
