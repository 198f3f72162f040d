"""Import of sessions: the export is read once to check it, and again to store it in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from sqlalchemy import Table

from agentgit.checkpoints.references import free_name
from agentgit.effects.files import SnapshotRef
from agentgit.errors import Conflict, Corrupt
from agentgit.store.audit.trail import record_event
from agentgit.store.objects.blobs import Blobs, BlobStore, Leaf
from agentgit.store.sql.batch import MAX_PARAMETERS as ROWS_AT_ONCE
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
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.sql.writes import insert_rows
from agentgit.store.store import Store
from agentgit.store.transfer.export_states import VALUES_AT_ONCE
from agentgit.store.transfer.file_trees import FileSink
from agentgit.store.transfer.import_check import Checker
from agentgit.store.transfer.import_rows import ImportedRows, ListItems, new_ids
from agentgit.store.transfer.lines import LineReader, damaged_line, read_lines
from agentgit.store.transfer.records import check_record, require_header

BYTES_AT_ONCE = 4 * 2**20
"""The size of values in memory, in bytes, above which they are stored."""

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


def read_records(stream: LineReader, checker: Checker) -> Iterator[tuple[str, dict[str, Any]]]:
    """Iterate over the records of an export, each checked before it is returned."""
    stream.seek(0)
    number = 0
    for number, raw_record, checker.seal in read_lines(stream):
        if number == 1:
            require_header(raw_record)
        try:
            if checker.is_complete:
                raise ValueError("comes after the end")
            kind, record = check_record(raw_record)
            checker.check_record(kind, record)
        except ValueError as error:
            raise damaged_line(number, str(error)) from error
        yield kind, record
    if number == 0:
        require_header(None)
    if not checker.is_complete:
        raise Corrupt(
            f"The export ends with line {number}, and its end is missing: it is truncated. Nothing was imported. "
            "Export the session again.",
            row=f"line {number}",
        )


def check_export(stream: LineReader, sink: FileSink | None = None) -> Checker:
    """Check a whole export without storing it; return the checker."""
    checker = Checker(sink)
    for _ in read_records(stream, checker):
        pass
    return checker


class Import:
    """Imports an export as a new session."""

    def __init__(
        self,
        store: Store,
        user_id: int,
        stream: LineReader,
        name: str | None,
    ) -> None:
        self.store = store
        self.user_id = user_id
        self.stream = stream
        self.name = name

    def run(self, checker: Checker, files: Mapping[int, SnapshotRef] | None = None) -> int:
        """Import the session, and return its id."""
        return self.store.database.write(lambda c: self._store(c, checker, files), durable=True)

    def _store(self, transaction: Writing, first_checker: Checker, files: Mapping[int, SnapshotRef] | None) -> int:
        ids = new_ids(first_checker.ids)
        rows = ImportedRows(
            user_id=self.user_id,
            session_id=new_id(),
            ids=ids,
            world_log_end=first_checker.last_seq,
            files=files,
            snapshots=first_checker.files.snapshots if files is not None else {},
        )
        self.store.users.require_exists(transaction, self.user_id)
        name = choose_name(transaction, self.store, self.user_id, self.name, first_checker.session["name"])
        row = rows.session(first_checker.session, name)
        insert_rows(transaction, SESSION, row)
        # A separate instance: a shared one would remember lists that are not stored if this transaction is rolled back.
        blobs = BlobStore(self.store.compression)
        values = _ValueImport(blobs.of(rows.session_id), transaction)
        tables = _Tables(transaction, rows)
        checker = Checker()
        for kind, record in read_records(self.stream, checker):
            if kind in TABLES and (kind != "snapshot" or rows.has_files(record)):
                tables.add(kind, record)
            elif kind in ("value", "part", "list"):
                values.add(checker.completed_value)
        if checker.seal != first_checker.seal:
            raise _changed_error()
        values.flush()
        tables.flush()
        record_event(
            transaction,
            "session.imported",
            session_id=rows.session_id,
            user_id=self.user_id,
            name=first_checker.session["name"],
            checkpoints=first_checker.counts["checkpoint"],
            calls=first_checker.counts["call"],
        )
        return rows.session_id


def choose_name(transaction: Reading, store: Store, user_id: int, wanted: str | None, default: str) -> str:
    """Return the name of a new session: the wanted one, which must be free, or the next free one like the default."""
    taken_names = set(store.sessions.names(transaction, user_id))
    if wanted in taken_names:
        raise Conflict(f"Session {wanted!r} already exists. Import it under another name.")
    return wanted if wanted is not None else free_name(default, taken_names)


def _changed_error() -> Corrupt:
    return Corrupt("The export was changed while it was read. Nothing was imported. Import it again.")


class _ValueImport:
    """Stores values in batches."""

    def __init__(self, blobs: Blobs, transaction: Writing) -> None:
        self.blobs = blobs
        self.transaction = transaction
        self._buffer: list[Leaf] = []
        self._size = 0

    def add(self, value: Leaf | ListItems | None) -> None:
        if isinstance(value, Leaf):
            self._buffer.append(value)
            self._size += len(value.data)
        if isinstance(value, ListItems):
            self.flush(value)
        elif len(self._buffer) >= VALUES_AT_ONCE or self._size > BYTES_AT_ONCE:
            self.flush()

    def flush(self, *lists: ListItems) -> None:
        self.blobs.put_many(self.transaction, self._buffer, lists)
        self._buffer, self._size = [], 0


class _Tables:
    """Stores rows in batches, one table at a time."""

    def __init__(self, transaction: Writing, rows: ImportedRows) -> None:
        self.transaction = transaction
        self._row_functions: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
            kind: getattr(rows, kind) for kind in TABLES
        }
        self._buffers: dict[str, list[dict[str, Any]]] = {kind: [] for kind in TABLES}

    def add(self, kind: str, record: Mapping[str, Any]) -> None:
        buffer = self._buffers[kind]
        try:
            buffer.append(self._row_functions[kind](record))
        except KeyError as error:  # an id that was missing when the file was checked
            raise _changed_error() from error
        if len(buffer) >= ROWS_AT_ONCE:
            self.flush()

    def flush(self) -> None:
        """Store the buffered rows, in the order of the tables, because some refer to others."""
        for kind in TABLES:
            if self._buffers[kind]:
                insert_rows(self.transaction, TABLES[kind], *self._buffers[kind])
                self._buffers[kind] = []
