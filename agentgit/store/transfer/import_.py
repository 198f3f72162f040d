"""Import of sessions: a file is checked, its rows are stored with new ids, and `fsck` judges them before the commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import itemgetter
from typing import Any

from sqlalchemy import Table

from agentgit.checkpoints.references import free_name
from agentgit.effects.files import STORED, SnapshotRef
from agentgit.errors import Conflict, Corrupt, InvalidInput
from agentgit.sessions.session import DONE, IMPORTED, idle_status
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance.fsck.check import check_session
from agentgit.store.maintenance.fsck.reading import row_name
from agentgit.store.objects.blobs import BlobStore, Leaf, NewValues, compact, pack_list
from agentgit.store.objects.packing import CHUNK, CHUNKED, RAW, Chunk
from agentgit.store.records.json_shapes import Ref, walk
from agentgit.store.sql import tables as t
from agentgit.store.sql.batch import MAX_PARAMETERS as ROWS_AT_ONCE
from agentgit.store.sql.encryption import PlainBytes
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.rows import insert_rows
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.owners import thread_of_branch
from agentgit.store.transfer.forms import THREAD, Chunks, ListItems, decode_row, shape_of
from agentgit.store.transfer.import_check import TABLES_BY_NAME, Checker
from agentgit.store.transfer.lines import LineReader, damaged_line, read_lines
from agentgit.store.transfer.values import require_readable
from agentgit.values import UNREADABLE, as_object, to_json

VALUES_AT_ONCE = 64
"""The number of values in memory at a time; none is larger than a chunk."""


def import_session(
    transaction: Writing,
    store: Store,
    user_id: int,
    stream: LineReader,
    name: str | None,
    checker: Checker,
    files: Mapping[int, SnapshotRef],
) -> int:
    """Store a checked session, and return its id. `files` are the stored snapshots, by the number of their tree."""
    store.users.require_exists(transaction, user_id)
    name = choose_name(transaction, store, user_id, name, checker.session["session_name"])
    rows = _NewRows(user_id, name, checker, files)
    # A separate store: a shared one would remember values that are not stored if this transaction is rolled back.
    blobs = BlobStore(store.compression).of(rows.session_id)
    for table, group in groupby(rows.read(stream), itemgetter(1)):
        while batch := [row for _, _, row in islice(group, VALUES_AT_ONCE if table is t.BLOB else ROWS_AT_ONCE)]:
            if table is t.BLOB:
                blobs.insert(transaction, NewValues({row["hash"]: rows.value(row) for row in batch}))
            else:
                insert_rows(transaction, table, *batch)
    for key, (number, _) in checker.chunked.items():  # the values that came in chunks are whole only now
        try:
            require_readable(blobs.get_many(transaction, [key])[key])
        except (ValueError, Corrupt) as error:
            raise damaged_line(number, str(getattr(error, "problem", error))) from error
    for finding in check_session(transaction, store, rows.session_id):
        raise damaged_line(rows.find_line(stream, finding.row), f"is damaged: {finding.what}")
    record_event(
        transaction,
        "session.imported",
        session_id=rows.session_id,
        user_id=user_id,
        name=checker.session["session_name"],
        checkpoints=checker.counts[t.CHECKPOINT.name],
        calls=checker.counts[t.TOOL_INVOCATION.name],
    )
    return rows.session_id


def require_sound(transaction: Reading, store: Store, session_id: int) -> None:
    """Check a session that was built from other data, in the transaction that has written it."""
    for finding in check_session(transaction, store, session_id):
        raise InvalidInput(f"These checkpoints make no session: {finding.row}: {finding.what}. Nothing was imported.")


def choose_name(transaction: Reading, store: Store, user_id: int, wanted: str | None, default: str) -> str:
    """Return the name of a new session: the wanted one, which must be free, or the next free one like the default."""
    taken_names = set(store.sessions.names(transaction, user_id))
    if wanted in taken_names:
        raise Conflict(f"Session {wanted!r} already exists. Import it under another name.")
    return wanted if wanted is not None else free_name(default, taken_names)


class _NewRows:
    """Makes the rows of one imported session from the records of its file."""

    def __init__(self, user_id: int, name: str, checker: Checker, files: Mapping[int, SnapshotRef]) -> None:
        self.user_id, self.name, self.checker, self.files = user_id, name, checker, files
        self.snapshots = {id for id, tree in checker.trees.items() if tree in files}
        known = {**checker.ids, t.WORKSPACE_SNAPSHOT.name: self.snapshots}
        # The new ids sort like the old ones.
        self.ids = {kind: {id: new_id() for id in sorted(ids)} for kind, ids in known.items() if kind != THREAD}
        (self.session_id,) = self.ids[t.SESSION.name].values()
        self.threads: dict[str, str] = {}

    def read(self, stream: LineReader) -> Iterator[tuple[int, Table, dict[str, Any]]]:
        """Read the file again, and yield the line, the table and the row of each record."""
        stream.seek(0)
        record: dict[str, Any] = {}
        for number, record in read_lines(stream):
            try:
                table = TABLES_BY_NAME.get(record.get("record", ""))
                is_taken = table is not t.WORKSPACE_SNAPSHOT or record["id"] in self.snapshots
                row = self._row(table, record) if table is not None and is_taken else None
            except UNREADABLE as error:  # it was right when the file was checked
                raise _changed_error() from error
            if table is not None and row is not None:
                yield number, table, row
        if record != {"sha256": self.checker.hash}:
            raise _changed_error()

    def _row(self, table: Table, record: dict[str, Any]) -> dict[str, Any]:
        fields = {name: value for name, value in record.items() if name != "record"}
        if table is t.BRANCH:
            self.threads[fields["thread_id"]] = thread_of_branch(self.ids[table.name][fields["id"]])
        row = decode_row(table, walk(shape_of(table), fields, self._refer))
        complete = getattr(self, f"_{table.name}", None)
        others = complete(row) if complete is not None else {}
        return row | self._owner(table) | others

    def _refer(self, ref: Ref, id: Any) -> Any:
        if ref.table == THREAD:
            return self.threads[id]
        ids = self.ids[ref.table]
        if ref.is_optional or ref.is_kept or ref.table == t.WORKSPACE_SNAPSHOT.name:
            return ids.get(id, id if ref.is_kept else None)
        return ids[id]

    def _owner(self, table: Table) -> dict[str, Any]:
        """Return what the rows of all tables have."""
        owners = {"external_session_id": self.session_id, "user_id": self.user_id}
        return {name: id for name, id in owners.items() if name in table.c}

    # The columns that do not travel. What is not named here is NULL, or the default of its column.

    def _external_session(self, _: Mapping[str, Any]) -> dict[str, Any]:
        meta = to_json({IMPORTED: True})
        return {"session_name": self.name, "updated_at": datetime.now(UTC), "is_active": True, "meta": meta}

    def _internal_session(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": idle_status(as_object(row["meta"])), "world_seen": self.checker.last_seq}

    def _graph_checkpoint(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"header": compact({**as_object(row["header"]), IMPORTED: True})}

    def _workspace_snapshot(self, row: dict[str, Any]) -> dict[str, Any]:
        stored, _ = self.files[row.pop("tree")], row.pop("why")
        return {"snapshot": stored.snapshot, "settings": to_json(stored.settings), "changed_by": STORED}

    def _operation(self, _: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": DONE}

    def find_line(self, stream: LineReader, name: str) -> int:
        """Return the number of the line whose row has this name in a finding; that of the last one if none has."""
        number = 0
        for number, table, row in self.read(stream):
            if name == row_name(table, [row[column.name] for column in table.primary_key]):
                return number
        return number + 1

    def value(self, row: Mapping[str, Any]) -> Leaf | Chunk | dict[str, Any]:
        """Return a value as the table of values stores it. The check compares it with its hash."""
        key, kind, data = row["hash"], row["type"], row["data"]
        if isinstance(data, bytes):
            return Chunk(key, memoryview(data)) if kind == CHUNK else Leaf(key, kind, data)
        stored = {"external_session_id": self.session_id, "hash": key, "type": kind}
        if isinstance(data, Chunks):
            size = self.checker.chunked[key].size
            return {**stored, "codec": CHUNKED, "size": size, "data": b"".join(data.hashes)}
        assert isinstance(data, ListItems)  # noqa: S101  # there is no other
        packed = PlainBytes(pack_list(*data))
        return {**stored, "codec": RAW, "size": data.keep + len(data.items), "data": packed}


def _changed_error() -> Corrupt:
    return Corrupt("The export was changed while it was read. Nothing was imported. Import it again.")
