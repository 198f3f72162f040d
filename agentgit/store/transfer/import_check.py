"""Consistency checks of an export before anything is stored: references, hashes, counts and positions.

The checks take one pass over the records. In memory are the hashes of the values and the ids of everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from agentgit.effects.invocation import FAILED, PAUSED, REDO, REPLAY, SIMULATED
from agentgit.effects.kinds import MEMORY, kind_of
from agentgit.effects.memory import names_item
from agentgit.sessions.session import RERUN, idle_status
from agentgit.store.objects.blobs import RECORD, Leaf, unpack
from agentgit.store.records.journal import LAST_LOGGED_STATUSES
from agentgit.store.threads.graph_rows import conversation_channel, hash_state
from agentgit.store.transfer import json_checks, rerun_records
from agentgit.store.transfer.file_trees import MAX_UNPACK_RATIO, UNPACKED_BYTES_ALLOWED, FileChecker, FileSink
from agentgit.store.transfer.import_rows import ListItems, ValueReader, is_message, require_readable
from agentgit.store.transfer.records import COUNTED_KINDS, HEADER
from agentgit.values import from_json

Record = Mapping[str, Any]

_RANK = {
    HEADER: 0,
    "session": 1,
    "branch": 2,
    "value": 3,
    "list": 3,
    "state": 3,
    "write": 3,
    "checkpoint": 4,
    "tag": 4,
    "file": 5,
    "folder": 5,
    "snapshot": 5,
    "call": 6,
    "operation": 7,
    "log": 8,
    "end": 9,
}
"""The order of the records. Records of one rank may be mixed. A part follows the record that it belongs to."""


@dataclass
class _Branch:
    """The facts about a branch in the records read so far."""

    record: Record
    states: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    state_keys: set[tuple[str, str]] = field(default_factory=set)
    last_seqs: dict[str, int] = field(default_factory=dict)
    points: dict[int, Record] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    arrivals: set[int] = field(default_factory=set)
    simulated: set[int] = field(default_factory=set)
    call_count: int = 0


class Checker:
    """Checks the records of one export for consistency.

    Afterwards, `ids` has the ids of each kind, `counts` the number of records of each kind, `files` the checker of the
    files, `last_seq` the last position in the world log, and `seal` the hash of the whole export. `completed_value` is
    the value or list that the latest record completed.
    """

    completed_value: Leaf | ListItems | None

    def __init__(self, sink: FileSink | None = None) -> None:
        self.ids: dict[str, set[int]] = {
            kind: set() for kind in ("branch", "checkpoint", "call", "operation", "snapshot")
        }
        self.files = FileChecker(sink)
        self.seal = b""
        self.counts: Counter[str] = Counter()
        self.header: Record = {}
        self.session: Record = {}
        self._values = ValueReader()
        self._rank = 0
        self._unpacked_sizes: dict[bytes, int] = {}
        self._content_bytes = 0
        self._lists: set[bytes] = set()
        self._messages: set[bytes] = set()
        self._message_counts: dict[bytes, int] = {}
        self._records: set[bytes] = set()
        self._branches: dict[int, _Branch] = {}
        self._write_keys: set[tuple[Any, ...]] = set()
        self._references: list[tuple[int, int]] = []
        self._redone: set[int] = set()
        self._statuses: dict[int, str] = {}
        self._last_actions: dict[int, str] = {}
        self._request_ids: set[str] = set()
        self._tag_names: set[str] = set()
        self.last_seq = 0
        self._handlers: dict[str, Callable[[Record], None]] = {
            HEADER: self._add_header,
            "session": self._add_session,
            "branch": self._add_branch,
            "value": self._add_value,
            "part": self._add_part,
            "list": self._add_list,
            "state": self._add_state,
            "write": self._add_write,
            "checkpoint": self._add_checkpoint,
            "tag": self._add_tag,
            "file": self.files.check_file,
            "folder": self.files.check_folder,
            "snapshot": self._add_snapshot,
            "call": self._add_call,
            "operation": self._add_operation,
            "log": self._add_log,
            "end": self._check_end,
        }

    def check_record(self, kind: str, record: Record) -> None:
        """Check the next record."""
        if (kind == "part") != (self._values.is_open or self.files.is_open):
            raise ValueError("is a part that belongs to nothing, or comes where a part is missing")
        rank, is_single = _RANK.get(kind, self._rank), kind in (HEADER, "session", "end")
        if rank < self._rank or (is_single and self.counts[kind]) or (rank > 1 and not self.session):
            raise ValueError(f"is a misplaced {kind}")
        self._rank = rank
        self._handlers[kind](record)
        self.counts[kind] += 1

    @property
    def is_complete(self) -> bool:
        """True after the end record."""
        return bool(self.counts["end"])

    def _add_header(self, record: Record) -> None:
        self.header = record

    def _add_session(self, record: Record) -> None:
        self.session = record

    def _register_id(self, kind: str, id: int) -> None:
        if id in self.ids[kind]:
            raise ValueError(f"is a duplicate of {kind} {id}")
        self.ids[kind].add(id)

    def _require_ids(self, kind: str, *ids: int | None) -> None:
        for id in ids:
            if id is not None and id not in self.ids[kind]:
                raise ValueError(f"refers to {kind} {id}, which is missing")

    def _add_branch(self, record: Record) -> None:
        json_checks.check_metadata(record["meta"])
        if any(branch.record["name"] == record["name"] for branch in self._branches.values()):
            raise ValueError(f"is a duplicate of branch {record['name']!r}")
        if (record["parent"] is None) != (not self._branches) or (record["parent"] is None) != (
            record["point"] is None
        ):
            raise ValueError("lacks a parent or branch point, or is the first branch and has one")
        self._require_ids("branch", record["parent"])
        self._register_id("branch", record["id"])
        self._branches[record["id"]] = _Branch(record)

    def _branch_of(self, record: Record) -> _Branch:
        self._require_ids("branch", record["branch"])
        return self._branches[record["branch"]]

    # -- values

    def _add_value(self, record: Record) -> None:
        self._add_completed_value(self._values.read_value(record))

    def _add_part(self, record: Record) -> None:
        if self.files.is_open:
            self.completed_value = None
            self.files.check_part(record)
        else:
            self._add_completed_value(self._values.read_part(record))

    def _add_completed_value(self, value: Leaf | None) -> None:
        self.completed_value = value
        if value is None:
            return
        require_readable(value)
        if value.type == RECORD:
            parts_by_name = unpack(value.data)
            parts = parts_by_name.values()
            self._require_values(*parts)
            if (message_count := self._message_counts.get(parts_by_name.get("messages", b""))) is not None:
                self._message_counts[value.hash] = message_count
            if not self._records.isdisjoint(parts):
                raise ValueError("is a record in a record")
            self._records.add(value.hash)
            self._register_value(value.hash, self._sum_unpacked_sizes(parts))
        else:
            self._content_bytes += len(value.data)
            if is_message(value):
                self._messages.add(value.hash)
            self._register_value(value.hash, len(value.data))

    def _add_list(self, record: Record) -> None:
        list_items = self.completed_value = self._values.read_list(record)
        self._require_values(*record["items"])
        if any(item in self._lists or item in self._records for item in record["items"]):
            raise ValueError("is a list or a record in a list")
        self._register_value(list_items.key, self._sum_unpacked_sizes(list_items.items))
        self._lists.add(list_items.key)
        if self._messages.issuperset(list_items.items):
            self._message_counts[list_items.key] = len(list_items.items)

    def _register_value(self, key: bytes, unpacked_size: int) -> None:
        if key in self._unpacked_sizes:
            raise ValueError(f"is a duplicate of value {key.hex()}")
        self._unpacked_sizes[key] = unpacked_size

    def _sum_unpacked_sizes(self, keys: Iterable[bytes]) -> int:
        """Return the total unpacked size of values, in bytes."""
        total = sum(map(self._unpacked_sizes.__getitem__, keys))
        if total > max(UNPACKED_BYTES_ALLOWED, MAX_UNPACK_RATIO * self._content_bytes):
            raise ValueError(f"unpacks to more than {MAX_UNPACK_RATIO} times the values of the export")
        return total

    def _require_values(self, *keys: bytes) -> None:
        for key in keys:
            if key not in self._unpacked_sizes:
                raise ValueError(f"refers to value {key.hex()}, which did not come before it")

    # -- graph checkpoints

    def _add_state(self, record: Record) -> None:
        branch, channels = self._branch_of(record), record["channels"]
        self._require_values(*channels.values())
        self._sum_unpacked_sizes(channels.values())
        header = record["header"]
        if not set(header.get("folded", [])) <= channels.keys():
            raise ValueError("has folded values that are missing")
        if record["root"] is not None and "" not in (record["meta"].get("parents") or {}):
            raise ValueError("belongs to a graph checkpoint that it does not name")
        digests = {name: bytes.fromhex(digest) for name, digest in header.get("digests", {}).items()}
        if hash_state({**channels, **digests}) != record["state_hash"]:
            raise ValueError("does not match the hash of its state")
        self._require_messages(record)
        key = record["ns"], record["id"]
        if key in branch.state_keys or record["seq"] <= branch.last_seqs.get(record["ns"], 0):
            raise ValueError("is a duplicate, or out of order")
        branch.state_keys.add(key)
        branch.last_seqs[record["ns"]] = record["seq"]
        if not record["ns"]:
            branch.states[record["id"]] = record["state_hash"], record["messages"]

    def _require_messages(self, record: Record) -> None:
        """Check the message counts against the lists of messages."""
        counts = record["header"]["counts"]
        for name, count in counts.items():
            if self._message_counts.get(record["channels"].get(name, b"")) != count:
                raise ValueError(f"counts {count} messages in {name!r}, which has a different number")
        if record["messages"] != counts.get(conversation_channel(counts) or "", 0):
            raise ValueError(f"counts {record['messages']} messages, but has a different number")

    def _add_write(self, record: Record) -> None:
        branch = self._branch_of(record)
        self._require_values(*record["value"])
        if (record["ns"], record["state"]) not in branch.state_keys or not record["value"]:
            raise ValueError("belongs to no graph checkpoint, or has no value")
        key = tuple(record[name] for name in ("branch", "ns", "state", "task", "idx"))
        if key in self._write_keys:
            raise ValueError("is a duplicate")
        self._write_keys.add(key)

    # -- checkpoints, calls, operations, the world log

    def _require_pending(self, branch: _Branch, record: Record) -> None:
        """Check the pending writes of a checkpoint against the graph checkpoints of its branch."""
        entries = record["pending"] or ()
        writes = [(at["ns"], write["task"], write["idx"]) for at in entries for write in at["writes"]]
        if len(set(writes)) < len(writes) or len({at["ns"] for at in entries}) < len(entries):
            raise ValueError("has a duplicate write or namespace")
        for at in entries:
            if (at["ns"], at["state"]) not in branch.state_keys or (not at["ns"] and at["state"] != record["state"]):
                raise ValueError("keeps pending writes of a graph checkpoint that is not its own")
            for write in at["writes"]:
                self._require_values(*write["value"])
                if not write["value"]:
                    raise ValueError("has a write without a value")

    def _add_checkpoint(self, record: Record) -> None:
        branch = self._branch_of(record)
        self._require_pending(branch, record)
        self._register_id("checkpoint", record["id"])
        if record["number"] in branch.numbers:
            raise ValueError(f"is a duplicate of checkpoint {record['number']} of its branch")
        state = (b"", 0) if record["state"] is None else branch.states.get(record["state"])
        if state != (record["state_hash"] or b"", record["messages"]):
            raise ValueError("has no graph checkpoint, or one with another state")
        branch.numbers.add(record["number"])
        branch.points[record["id"]] = {name: record[name] for name in ("number", "position", "state")}

    def _add_tag(self, record: Record) -> None:
        self._require_ids("checkpoint", record["checkpoint"])
        branch_names = {branch.record["name"] for branch in self._branches.values()}
        if record["name"] in self._tag_names | branch_names:
            raise ValueError(f"is a duplicate of tag {record['name']!r}, or has the name of a branch")
        self._tag_names.add(record["name"])

    def _add_snapshot(self, record: Record) -> None:
        self._require_ids("branch", record["branch"])
        self._require_ids("checkpoint", *record["checkpoints"])
        self._register_id("snapshot", record["id"])
        self.files.check_snapshot(record)

    def _add_call(self, record: Record) -> None:
        branch = self._branch_of(record)
        self._register_id("call", record["id"])
        if record["arrival"] in branch.arrivals:
            raise ValueError(f"is a duplicate of call {record['arrival']} of its branch")
        if len(record["result"]) > 1 or (record["kind"] in (REPLAY, REDO) and record["replay_of"] is None):
            raise ValueError("has two results, or does not say which call it replays")
        if record["effect"] == MEMORY and not names_item(from_json(record["args"])):
            raise ValueError("is a write to memory without the item or the value before it")
        if record["status"] == SIMULATED:
            if RERUN not in branch.record["meta"]:
                raise ValueError("is simulated, but its branch is not a rerun")
            if not kind_of(record["effect"]).is_neutral and record["error"] is None:
                branch.simulated.add(record["id"])
        elif record["kind"] == REDO and record["status"] != FAILED:
            self._redone.add(record["replay_of"])
        branch.arrivals.add(record["arrival"])
        self._statuses[record["id"]] = record["status"]
        branch.call_count += record["status"] != PAUSED and record["kind"] != REDO
        self._references += [
            (record["id"], record[name]) for name in ("replay_of", "parent") if record[name] is not None
        ]

    def _add_operation(self, record: Record) -> None:
        self._register_id("operation", record["id"])
        self._require_ids("branch", record["source"], record["branch"])
        self._require_ids("call", *record["accepted"], *(step["invocation"] for step in record["steps"]))
        if (record["kind"] == RERUN) != ("calls" in record["report"]):
            raise ValueError(f"has the report of another kind than {record['kind']}")
        if record["kind"] == RERUN:
            self._require_ids("call", *rerun_records.call_ids(record["report"]))
        else:
            for items in record["report"].values():
                self._require_ids("call", *(item["invocation"] for item in items))
        if record["request_id"] in self._request_ids:
            raise ValueError(f"is a duplicate of operation {record['request_id']!r}")
        self._request_ids.add(record["request_id"])

    def _add_log(self, record: Record) -> None:
        self._require_ids("call", record["call"])
        self._require_ids("operation", record["operation"])
        if record["seq"] <= self.last_seq:
            raise ValueError("is out of order")
        self.last_seq = record["seq"]
        self._last_actions[record["call"]] = record["action"]

    # -- the end

    def _check_end(self, record: Record) -> None:
        counts = {kind: self.counts[kind] for kind in COUNTED_KINDS}
        if record["counts"] != counts:
            raise ValueError(f"counts {record['counts']}, but there are {counts}")
        self._require_ids("branch", self.session["current"])
        for id, other_id in self._references:
            self._require_ids("call", other_id)
            if id == other_id:
                raise ValueError(f"comes after a call {id} that replays or contains itself")
        for id, action in self._last_actions.items():
            status = self._statuses[id]
            if action not in LAST_LOGGED_STATUSES.get(status, ()):
                raise ValueError(f"comes after a call {id} that is {status} but was last logged as {action}")
        for branch in self._branches.values():
            self._check_branch(branch)

    def _check_branch(self, branch: _Branch) -> None:
        """Check a branch against its branch point, and its checkpoints against its calls."""
        record, positions = branch.record, [point["position"] for point in branch.points.values()]
        name, start_position, starts_before_point = record["name"], 0, False
        is_real = idle_status(record["meta"]) != SIMULATED
        if is_real and not branch.simulated <= self._redone:
            raise ValueError(f"comes after a branch {name!r} that counts calls as done which were only simulated")
        if record["point"] is not None:
            point = self._branches[record["parent"]].points.get(record["point"])
            if point is None:
                raise ValueError(f"comes after a branch {name!r} that starts from no checkpoint of its parent")
            start_position = point["position"]
            first = min(branch.points.values(), key=lambda one: one["number"], default=None)
            starts_before_point = first is None or first["state"] != point["state"]
        # 0: its calls ran again, so it recorded its whole track itself. Fewer than its branch point has: it starts from
        # a graph checkpoint before that point, and inherits the calls up to there.
        inherits_fewer = starts_before_point and 0 < record["inherited"] < start_position
        if record["inherited"] not in (0, start_position) and not inherits_fewer:
            raise ValueError(f"comes after a branch {name!r} that does not begin at its branch point")
        start_position = record["inherited"]
        if (record["head"] is None) != (not positions) or (positions and record["head"] not in branch.points):
            raise ValueError(f"comes after a branch {name!r} whose head is not one of its checkpoints")
        if positions and not start_position <= min(positions) <= max(positions) <= start_position + branch.call_count:
            raise ValueError(f"comes after a branch {name!r} with a checkpoint beyond the end of its tool track")
        json_checks.remap_metadata(
            json_checks.check_metadata(record["meta"]),
            {kind: dict.fromkeys(ids, 0) for kind, ids in self.ids.items()},
        )
