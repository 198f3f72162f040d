"""The rows of a file, derived from the tables: which columns travel, their JSON, and the shape that an import requires.

Values of columns have the JSON of their types: ids and numbers as they are, times as ISO 8601, bytes in hexadecimal,
and the columns that hold JSON as that JSON (in a list of one if they may be NULL, to tell NULL from `null`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, CheckConstraint, Column, ForeignKeyConstraint, Integer, LargeBinary, Table

from agentgit.checkpoints import references
from agentgit.effects import invocation
from agentgit.effects.report import GROUPS
from agentgit.errors import Corrupt, InvalidInput
from agentgit.sessions.session import IMPORTED, RERUN
from agentgit.store.objects.blobs import compact, unpack
from agentgit.store.objects.packing import CHUNK_BYTES, HASH_BYTES
from agentgit.store.records.checkpoints import MERGE_KEY
from agentgit.store.records.json_columns import BRANCH_META, CHECKPOINT_ID, REQUEST, report_shape
from agentgit.store.records.json_shapes import (
    MAX_COUNT,
    Chosen,
    Nullable,
    Ref,
    Shape,
    anything,
    decode_bytes,
    digest,
    flag,
    hexadecimal,
    ident,
    is_shaped,
    items,
    key,
    label,
    named,
    nothing,
    number,
    one_of,
    prune,
    text,
    time,
    word,
)
from agentgit.store.sql import tables as t
from agentgit.store.sql.columns import Flag, Payload, SafeText, SealedText, UTCDateTime, least
from agentgit.store.sql.driver_errors import unreadable_row
from agentgit.store.transfer import file_trees
from agentgit.values import UNREADABLE, stored_json

TABLES = (
    t.SESSION, t.BRANCH, t.BLOB, t.GRAPH_CHECKPOINT, t.GRAPH_WRITE, t.CHECKPOINT, t.TAG, t.WORKSPACE_SNAPSHOT,
    t.TOOL_INVOCATION, t.OPERATION, t.WORLD_LOG,
)  # fmt: skip
"""The tables whose rows travel, in the order of a file."""

THREAD = "thread"
"""What the threads of branches are as references: their ids are made from those of the branches."""

LEFT_OUT: Mapping[str, str] = {
    "external_session": "thread_id updated_at is_active meta",
    "internal_session": "status epoch world_seen searched",
    "blob": "codec size",
    "graph_checkpoint": "run_id",
    "workspace_snapshot": "snapshot settings changed_by",
    "tool_invocation": "undo verify precheck tool_path enclosing task",
    "operation": "status",
}
"""The columns that do not travel; an import sets them. No file chooses who owns or runs a row, or a function to run."""
LEFT_OUT_EVERYWHERE = ("external_session_id", "user_id", "owner", "lease_until")

EXPORTED_STATUS = {invocation.INTENDED: invocation.UNKNOWN, invocation.REVERSING: invocation.REVERSE_UNKNOWN}
"""The status to export for a call in progress, by its status. An importer cannot find out how the call ended."""

STATUSES = tuple(sorted(t.CALL_STATUSES - EXPORTED_STATUS.keys()))
"""The statuses that a call may have in a file. None of them means that the call is in progress."""


@cache
def travelling(table: Table) -> list[Column[Any]]:
    """Return the columns of a table that travel."""
    left_out = {*LEFT_OUT_EVERYWHERE, *LEFT_OUT.get(table.name, "").split()}
    return [column for column in table.c if column.name not in left_out]


@cache
def references_of(table: Table) -> list[ForeignKeyConstraint]:
    """Return the keys of a table that refer to rows of a file."""
    keys = sorted(table.foreign_key_constraints, key=lambda one: str(one.column_keys))
    return [one for one in keys if one.referred_table in TABLES and one.column_keys != ["external_session_id"]]


# -- shapes of JSON


def _order(version: Any) -> tuple[bool, float]:
    """Return what orders a version: whether it is text, and the number that it is or begins with."""
    is_text = type(version) is str and len(version) <= 64
    number_of = version.partition(".")[0] if is_text else version
    if (
        not (number_of.isdecimal() if is_text else type(version) in (int, float))
        or not 0 <= float(number_of) <= MAX_COUNT
    ):
        raise ValueError("has versions that cannot be compared")
    return is_text, float(number_of)


def _header_shape(value: Any) -> Shape:
    """Return the shape of the header of a graph checkpoint. LangGraph must be able to order any two versions."""
    versions = {channel: _order(version) for channel, version in value["versions"].items()}
    seen = [(channel, _order(version)) for one in value["seen"].values() for channel, version in one.items()]
    if len({is_text for is_text, _ in [*versions.values(), *(one for _, one in seen)]}) > 1:
        raise ValueError("has versions that cannot be compared")
    if any(channel not in versions or version > versions[channel] for channel, version in seen):
        raise ValueError("has seen a version that it does not have, or that comes later")
    updated = value.get("updated")
    if isinstance(updated, list) and not versions.keys() >= {one for one in updated if isinstance(one, str)}:
        raise ValueError("has updated a channel that has no version")
    return _HEADER


_HEADER = {
    "v": number(), "ts": lambda value: time(value) and value, "versions": named, "seen": {"*": named},
    "counts": {"*": number()}, "updated?": Nullable([text]), "others?": named, "snapshots?": [text], "folded?": [text],
    "digests?": {"*": lambda value: digest(value).hex()}, f"{IMPORTED}?": nothing, "*": anything,
}  # fmt: skip
_GRAPH_METADATA = {
    "step": number(-1), "source?": one_of("input", "loop", "update", "fork"), "parents": Nullable({"*": text}),
    "counters_since_delta_snapshot?": Nullable(named), "run_id?": nothing, "*": anything,
}  # fmt: skip


def _pending(value: Any) -> list[Any]:
    """Check the pending writes of a checkpoint; see `agentgit.store.threads.pending_writes`."""
    keys: list[Any] = []
    for ns, id, writes in items(value):
        keys += [(key(ns), word(id) and None)]
        for task, idx, path, channel, values in items(writes):
            keys += [(ns, word(task), number(-1000)(idx), text(path) and None, text(channel) and None)]
            _hashes(values)
    if len(set(keys)) < len(keys):
        raise ValueError("has a duplicate write or namespace")
    return items(value)


def _hashes(value: Any) -> bytes:
    """Check for one or more hashes."""
    data = hexadecimal(value)
    if not data or len(data) % HASH_BYTES:
        raise ValueError("is not one hash or more, and has no value")
    return data


def _channels(value: Any) -> bytes:
    unpack(hexadecimal(value))
    return hexadecimal(value)


def _state_hash(value: Any) -> bytes:
    return digest(value) if value else b""


def _name_of(kind: str) -> Shape:
    """Build a check for the name of a branch or a tag."""

    def check(value: Any) -> str:
        try:
            return references.require_name(text(value), kind)
        except InvalidInput as error:
            raise ValueError(str(error)) from error

    return check


_ANSWERS = {
    "task": text, "call": text, "direct": flag, "place": number(), "taken": [number()], "question": Nullable(text),
}  # fmt: skip


def _data_shape(value: Any) -> Shape:
    """Return the shape of the data of a checkpoint, which may name the checkpoint that was merged into it."""
    merge = value.get(MERGE_KEY) if isinstance(value, dict) else None
    source_id = merge.get("checkpoint") if isinstance(merge, dict) else None
    is_merge = type(source_id) is int and 0 < source_id < 2**53
    point = CHECKPOINT_ID._replace(is_kept=True)  # it may be a person's own data, too
    return {MERGE_KEY: {"checkpoint": point, "*": anything}, "*": anything} if is_merge else anything


JSON_COLUMNS: Mapping[str, Shape] = {
    "internal_session.meta": BRANCH_META,
    "graph_checkpoint.meta": _GRAPH_METADATA,
    "graph_checkpoint.header": Chosen(_header_shape),
    "checkpoint.data": Chosen(_data_shape),
    "checkpoint.pending": _pending,
    "tool_invocation.args": named,
    "tool_invocation.result": anything,
    "tool_invocation.answers": _ANSWERS,
    "operation.request": REQUEST,
    "operation.report": Chosen(report_shape),
}
"""The columns that hold JSON, each with its shape."""


# -- values in a file


class ListItems(NamedTuple):
    """A list of values: the earlier list that it continues, the number of items that it keeps of it, and the others."""

    base: bytes | None
    keep: int
    items: list[bytes]


class Chunks(NamedTuple):
    hashes: list[bytes]


def _value_data(value: Any) -> bytes | ListItems | Chunks:
    if isinstance(value, dict) and "chunks" in value:
        return Chunks(is_shaped({"chunks": [digest]}, value)["chunks"])
    if isinstance(value, dict) and "items" in value:
        return ListItems(**is_shaped({"base": Nullable(digest), "keep": number(), "items": [digest]}, value))
    data = decode_bytes(value)
    if len(data) > CHUNK_BYTES:
        raise ValueError(f"has more than {CHUNK_BYTES} bytes, and is not in chunks")
    return data


# -- shapes of rows

_COLUMNS: Mapping[str, Shape] = {
    "external_session.session_name": label,
    "internal_session.thread_id": Ref(THREAD, is_text=True),
    "internal_session.name": _name_of("branch"),
    "blob.hash": digest,
    "blob.data": _value_data,
    "graph_checkpoint.thread_id": Ref(THREAD, is_text=True),
    "graph_checkpoint.channels": _channels,
    "graph_checkpoint.state_hash": digest,
    "graph_write.thread_id": Ref(THREAD, is_text=True),
    "graph_write.value": _hashes,
    "checkpoint.name": label,
    "checkpoint.state_hash": _state_hash,
    "tag.name": _name_of("tag"),
    "tool_invocation.status": one_of(*STATUSES),
}
"""The shapes of the columns whose type does not say enough."""

_OTHER_FIELDS: Mapping[str, dict[str, Shape]] = {
    "workspace_snapshot": {"tree": Nullable(number(1)), "why": Nullable(one_of(*file_trees.REASONS))},
}
"""The fields of rows that are no columns."""


@cache
def shape_of(table: Table) -> dict[str, Shape]:
    return {column.name: _column_shape(column) for column in travelling(table)} | _OTHER_FIELDS.get(table.name, {})


def _column_shape(column: Column[Any]) -> Shape:
    name = str(column)
    if name in JSON_COLUMNS:
        return Nullable([JSON_COLUMNS[name]]) if column.nullable else JSON_COLUMNS[name]
    if name == "tool_invocation.made_on":  # where it was made, in another database; never NULL in an import
        return ident
    shape = _COLUMNS.get(name) or _reference_shape(column) or _words_shape(column) or _type_shape(column)
    return Nullable(shape) if column.nullable else shape


def _reference_shape(column: Column[Any]) -> Shape | None:
    """Return what a column refers to; None if it holds no id of a row of a file."""
    if column.name == "id":
        return Ref(column.table.name)
    targets = [key.column.table for key in column.foreign_keys if key.column.name == "id"]
    return Ref(targets[0].name) if targets and targets[0] in TABLES else None


def _words_shape(column: Column[Any]) -> Shape | None:
    """Return the check for the words that a constraint of the table allows; None if there is none."""
    constraints = (one for one in column.table.constraints if isinstance(one, CheckConstraint))
    words = next((one.info["words"] for one in constraints if one.info.get("column") == column.name), None)
    return one_of(*words) if words is not None else None


def _type_shape(column: Column[Any]) -> Shape:
    kind = column.type
    if isinstance(kind, SafeText):
        indexed = {name for index in column.table.indexes for name in index.columns.keys()}  # noqa: SIM118  # of columns, not of a dict
        unique = {name for one in column.table.constraints for name in getattr(one, "columns", {})}
        return key if column.name in indexed | unique and not isinstance(kind, SealedText) else text
    if isinstance(kind, UTCDateTime):
        return time
    if isinstance(kind, Flag):
        return flag
    if isinstance(kind, BigInteger):
        return ident
    if isinstance(kind, Integer):
        return number(least(column))
    return hexadecimal if isinstance(kind, LargeBinary | Payload) else word


# -- rows to records


def encode_row(table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    record: dict[str, Any] = {"record": table.name}
    try:
        record |= {column.name: _encode(column, row[column.name]) for column in travelling(table)}
    except (*UNREADABLE, Corrupt) as error:
        raise unreadable_row(table.name, "/".join(str(row[column.name]) for column in table.primary_key)) from error
    if table is t.TOOL_INVOCATION:
        record["made_on"] = row["made_on"] or row["internal_session_id"]
        record["status"] = EXPORTED_STATUS.get(row["status"], row["status"])
    elif table is t.OPERATION:
        record["request"] = {"accepted": [], **record["request"]}
        record["report"] = ({} if row["kind"] == RERUN else {group: [] for group in GROUPS}) | record["report"]
    return record


def _encode(column: Column[Any], value: Any) -> Any:
    if value is None:
        return None
    if str(column) in JSON_COLUMNS:
        decoded = prune(JSON_COLUMNS[str(column)], stored_json(value))
        return [decoded] if column.nullable else decoded
    if isinstance(value, bytes | memoryview):
        return value.hex()
    return value.isoformat() if isinstance(column.type, UTCDateTime) else value


def decode_row(table: Table, walked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the columns from a record that its shape has checked and renumbered."""
    row = dict(walked)
    for column in travelling(table):
        value = row[column.name]
        if value is not None and str(column) in JSON_COLUMNS:
            row[column.name] = compact(value[0] if column.nullable else value)
    return row
