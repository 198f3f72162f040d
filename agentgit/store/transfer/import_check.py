"""The check of a file before anything is stored: shapes, keys, references, and what no table and no `fsck` can say.

One pass over the records. In memory are the hashes of the values and the keys of everything else.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import PrimaryKeyConstraint, Table, UniqueConstraint

from agentgit.effects.invocation import FAILED, REDO, REPLAY, SIMULATED
from agentgit.effects.kinds import kind_of
from agentgit.sessions.session import RERUN, idle_status
from agentgit.store.objects.blobs import RECORD, Leaf, unpack
from agentgit.store.objects.packing import CHUNK, split_hashes
from agentgit.store.objects.plain_values import MESSAGES
from agentgit.store.records.json_shapes import (
    Nullable,
    Ref,
    anything,
    is_shaped,
    one_of,
    source,
    text,
    time,
    walk,
)
from agentgit.store.sql import tables as t
from agentgit.store.transfer import file_trees
from agentgit.store.transfer.file_trees import FileChecker, FileSink, UnpackedSizes
from agentgit.store.transfer.forms import TABLES, THREAD, Chunks, ListItems, references_of, shape_of, travelling
from agentgit.store.transfer.lines import LineReader, damaged_line, read_lines
from agentgit.store.transfer.values import is_message, require_readable
from agentgit.values import UNREADABLE

Fields = Mapping[str, Any]
Key = tuple[Any, ...]

SESSION, BRANCH, CHECKPOINT = "session", "branch", "checkpoint"
"""The kinds of objects that can be exported."""

HEADER = {
    "format": text, "version": anything, "kind": one_of(SESSION, BRANCH, CHECKPOINT),
    "reference": Nullable(text), "source": source, "made_at": time,
}  # fmt: skip

TABLES_BY_NAME = {table.name: table for table in TABLES}
ORDER = [table.name for table in TABLES]


def check_export(stream: LineReader, sink: FileSink | None = None) -> Checker:
    """Check a whole export without storing it; return the checker."""
    checker, number = Checker(sink), 0
    stream.seek(0)
    for number, record in read_lines(stream):
        try:
            checker.check(number, record)
        except UNREADABLE as error:
            problem = str(error) if type(error) is ValueError else f"cannot be read ({type(error).__name__})"
            raise damaged_line(number, problem) from error
    return checker


class Chunked(NamedTuple):
    """A value in chunks: its line, and the size of its chunks together."""

    line: int
    size: int


class Checker:
    """Checks the records of one export, and knows at the end what an import needs of them."""

    def __init__(self, sink: FileSink | None = None) -> None:
        self.header: Fields = {}
        self.session: Fields = {}
        self.counts: Counter[str] = Counter()
        self.ids: dict[str, set[Any]] = defaultdict(set)
        self.trees: dict[int, int | None] = {}
        self.files = FileChecker(sink)
        self.last_seq = 0
        self.hash = ""
        self._line = self._rank = 0
        self._sizes = UnpackedSizes("value")
        self._lists: set[bytes] = set()
        self._records: set[bytes] = set()
        self._messages: set[bytes] = set()
        self._conversations: dict[bytes, int] = {}
        self.chunked: dict[bytes, Chunked] = {}
        self._keys: dict[tuple[str, Key], set[Key]] = defaultdict(set)
        self._later: list[tuple[int, str, Key, Key]] = []
        self._branches: dict[int, Fields] = {}
        self._simulated: dict[int, tuple[int, int]] = {}
        self._redone: set[int] = set()

    def check(self, number: int, record: Fields) -> None:
        self._line = number
        if number == 1:
            self.header = is_shaped(HEADER, record)
            if (self.header["kind"] == SESSION) != (self.header["reference"] is None):
                raise ValueError("has no reference, or one of a whole session")
            return
        if "sha256" in record:
            self._check_end(record["sha256"])
            return
        kind, fields = record.get("record"), {name: value for name, value in record.items() if name != "record"}
        if isinstance(kind, str) and kind in file_trees.SHAPES:
            self._require_order(kind, ORDER.index(t.WORKSPACE_SNAPSHOT.name))
            getattr(self.files, f"check_{kind}")(self._shaped(kind, file_trees.SHAPES[kind], fields))
        elif isinstance(kind, str) and kind in TABLES_BY_NAME:
            self._require_order(kind, ORDER.index(kind))
            self._check_row(TABLES_BY_NAME[kind], fields)
        else:
            raise ValueError("is not a known kind of record")
        self.counts[kind] += 1

    def _shaped(self, kind: str, shape: Any, fields: Fields) -> dict[str, Any]:
        try:
            checked: dict[str, Any] = walk(shape, fields, self._refer)
        except ValueError as error:
            raise ValueError(f"is not a valid {kind}: {error}") from error
        return checked

    def _require_order(self, kind: str, rank: int) -> None:
        if rank < self._rank or (not self.session and rank) or (self.session and not rank):
            raise ValueError(f"is a misplaced {kind}")
        self._rank = rank

    def _refer(self, ref: Ref, id: Any) -> Any:
        """Return an id unchanged. That its row is in the file is checked now or at the end."""
        if not (ref.is_optional or ref.is_kept) and id not in self.ids[ref.table]:
            self._later.append((self._line, ref.table, ("id",), (id,)))
        return id

    # -- rows

    def _check_row(self, table: Table, fields: Fields) -> None:
        for name, kind in (("id", table.name), ("thread_id", THREAD if table is t.BRANCH else "")):
            if kind and isinstance(fields.get(name), int | str):
                self.ids[kind].add(fields[name])
        row = self._shaped(table.name, shape_of(table), fields)
        for reference in references_of(table):
            targets = tuple(element.column.name for element in reference.elements)
            pairs = zip(targets, reference.column_keys, strict=True)
            values = tuple(0 if target == "external_session_id" else row[name] for target, name in pairs)
            if None not in values:
                self._require(reference.referred_table.name, targets, values, is_later=bool(reference.deferrable))
        for names in _keys_of(table):
            values, known = tuple(row.get(name, 0) for name in names), self._keys[table.name, names]
            if values in known:
                shown = ", ".join(f"{name} {row[name]!r}" for name in names if name in row)
                raise ValueError(f"is a duplicate of {table.name} {shown}")
            known.add(values)
        check = getattr(self, f"_check_{table.name}", None)
        if check is not None:
            check(row)

    def _require(self, table: str, names: Key, values: Key, *, is_later: bool = False) -> None:
        """Check that there is a row with these values, now or at the end."""
        if values in self._keys[table, names] or (names == ("id",) and values[0] in self.ids[table]):
            return
        if not is_later:
            raise ValueError(f"refers to {table} {values[-1]}, which is missing or comes later")
        self._later.append((self._line, table, names, values))

    def _check_external_session(self, row: Fields) -> None:
        self.session = row

    def _check_internal_session(self, row: Fields) -> None:
        has_parent, has_point = row["parent_id"] is not None, row["branch_point_id"] is not None
        if has_parent != bool(self._branches) or has_parent != has_point:
            raise ValueError("lacks a parent or branch point, or is the first branch and has one")
        self._branches[row["id"]] = row

    def _check_blob(self, row: Fields) -> None:
        key, kind, data = row["hash"], row["type"], row["data"]
        if (kind == t.LIST) != isinstance(data, ListItems) or (kind == CHUNK and isinstance(data, Chunks)):
            raise ValueError(f"is not the data of a {kind}")
        self.counts["value"] += kind not in (t.LIST, CHUNK)
        if isinstance(data, ListItems):
            if not (self._lists | self._records).isdisjoint(data.items):
                raise ValueError("is a list or a record in a list")
            self._sizes.add(key, 0, data.items if data.base is None else [data.base, *data.items])
            self._lists.add(key)
            if (data.base is None or data.base in self._conversations) and self._messages.issuperset(data.items):
                self._conversations[key] = data.keep + len(data.items)
        elif isinstance(data, Chunks):
            self._messages |= {key} if kind in MESSAGES else set()
            self.chunked[key] = Chunked(self._line, self._sizes.add(key, 0, data.hashes))
        elif kind == CHUNK:
            self._sizes.add(key, len(data))
        else:
            require_readable(Leaf(key, kind, data))
            parts_by_name = unpack(data) if kind == RECORD else {}
            parts = parts_by_name.values()
            if not self._records.isdisjoint(parts):
                raise ValueError("is a record in a record")
            self._sizes.add(key, 0 if kind == RECORD else len(data), parts)
            if kind == RECORD:
                self._records.add(key)
                self._conversations[key] = self._conversations.get(parts_by_name.get("messages", b""), -1)
            elif is_message(Leaf(key, kind, data)):
                self._messages.add(key)

    def _check_graph_checkpoint(self, row: Fields) -> None:
        channels = unpack(row["channels"])
        self._sizes.require(channels.values())
        for name, count in row["header"]["counts"].items():
            if self._conversations.get(channels.get(name, b""), -1) != count:
                raise ValueError(f"counts {count} messages in {name!r}, which has a different number")
        if row["root_id"] is not None and "" not in (row["meta"].get("parents") or {}):
            raise ValueError("belongs to a graph checkpoint that it does not name")

    def _check_graph_write(self, row: Fields) -> None:
        self._sizes.require(split_hashes(row["value"]))
        self._require(t.GRAPH_CHECKPOINT.name, _GRAPH_KEY, tuple(row[name] for name in _GRAPH_KEY))

    def _check_checkpoint(self, row: Fields) -> None:
        if (row["kind"] == "named") is row["is_auto"]:
            raise ValueError("is_auto does not fit its kind")
        for ns, id, writes in row["pending"][0] if row["pending"] else ():
            if not ns and id != row["graph_checkpoint_id"]:
                raise ValueError("keeps pending writes of a graph checkpoint that is not its own")
            for write in writes:
                self._sizes.require(split_hashes(bytes.fromhex(write[-1])))

    def _check_tag(self, row: Fields) -> None:
        if row["name"] in {branch["name"] for branch in self._branches.values()}:
            raise ValueError(f"has the name of a branch, {row['name']!r}")

    def _check_workspace_snapshot(self, row: Fields) -> None:
        self.trees[row["id"]] = row["tree"]
        self.files.check_snapshot(row)

    def _check_tool_invocation(self, row: Fields) -> None:
        if row["kind"] in (REPLAY, REDO) and row["replay_of"] is None:
            raise ValueError("does not say which call it replays")
        if row["status"] == SIMULATED:
            if RERUN not in self._branches[row["internal_session_id"]]["meta"]:
                raise ValueError("is simulated, but its branch is not a rerun")
            if not kind_of(row["effect"]).is_neutral and row["error_message"] is None:
                self._simulated[row["id"]] = self._line, row["internal_session_id"]
        elif row["kind"] == REDO and row["status"] != FAILED:
            self._redone.add(row["replay_of"])

    def _check_operation(self, row: Fields) -> None:
        if (row["kind"] == RERUN) != ("calls" in row["report"]):
            raise ValueError(f"has the report of another kind than {row['kind']}")
        if row["ended_at"] is None:
            raise ValueError("has not ended")

    def _check_world_log(self, row: Fields) -> None:
        self.last_seq = max(self.last_seq, row["seq"])

    # -- the end

    def _check_end(self, hash: str) -> None:
        if not self.session or not self._branches:
            raise ValueError("comes after no session, or one without a branch")
        self.files.check_end()
        for line, table, names, values in self._later:
            if values not in self._keys[table, names] and not (names == ("id",) and values[0] in self.ids[table]):
                raise damaged_line(line, f"refers to {table} {values[-1]}, which is missing")
        for id, (line, branch_id) in self._simulated.items():
            if id not in self._redone and idle_status(self._branches[branch_id]["meta"]) != SIMULATED:
                raise damaged_line(line, "was only simulated, and its branch counts it as done")
        self.hash = hash


_GRAPH_KEY = ("thread_id", "ns", "checkpoint_id")


@cache
def _keys_of(table: Table) -> list[tuple[str, ...]]:
    """Return the columns of each key of a table that a file can break."""
    columns = {column.name for column in travelling(table)} | {"external_session_id"}
    keys = [one for one in table.constraints if isinstance(one, PrimaryKeyConstraint | UniqueConstraint)]
    names = [tuple(one.columns.keys()) for one in keys]
    return [one for one in names if columns.issuperset(one)] if table is not t.BLOB else []
