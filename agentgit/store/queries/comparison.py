"""Comparison of two checkpoints by hashes and columns. Content that both share is not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, and_, or_

from agentgit.sessions.messages import from_stored
from agentgit.store.objects.plain_values import show, show_state
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, LIST
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import ERROR, INTERRUPT, RESUME, GraphKey, conversation, is_shown
from agentgit.store.threads.graph_rows import GraphCheckpoint as At
from agentgit.store.threads.pending_writes import TaskWrites


@dataclass(kw_only=True)
class UnsharedPart:
    """The part of a checkpoint that another checkpoint does not share.

    Args:
        state: The values that differ.
        messages: The messages after the common ones, in display form.
        calls: The tool invocations after the common ones, as dicts.
        pending: The results so far of the tasks of an unfinished step, as dicts. Empty if they are the same in both.
    """

    state: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CheckpointComparison:
    """The result of a comparison of two checkpoints.

    Args:
        a: The part that only the first has.
        b: The part that only the second has.
        messages: The number of leading messages that both share.
        calls: The number of leading tool invocations that both share.
    """

    a: UnsharedPart
    b: UnsharedPart
    messages: int
    calls: int


class CheckpointComparer:
    """Compares the checkpoints of one tenant.

    Args:
        store: The store of the tenant.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def compare(self, connection: Connection, a: StoredRow, b: StoredRow) -> CheckpointComparison:
        """Compare two checkpoints: read the parts that they do not share.

        Args:
            connection: Any open connection.
            a: The row of the first checkpoint.
            b: The row of the second checkpoint.
        """
        one, other, rests = self._at(connection, a), self._at(connection, b), (UnsharedPart(), UnsharedPart())
        messages = self._fold_messages(connection, one, other, rests)
        if messages is None:
            messages = 0
            for row, rest in zip((a, b), rests, strict=True):
                content = self.store.state(connection, row.thread_id, row.graph_checkpoint_id)
                rest.state, rest.messages = content["session_state"], content["conversation_history"]
        calls = self._fold_calls(connection, a, b, rests)
        for row, rest in zip((a, b), rests, strict=True):
            rest.pending = self._pending(connection, row) if a.pending != b.pending else []
        return CheckpointComparison(a=rests[0], b=rests[1], messages=messages, calls=calls)

    def _at(self, connection: Connection, row: StoredRow) -> At | None:
        if row.graph_checkpoint_id is None:
            return None
        return self.store.graphs.find(connection, GraphKey(row.thread_id, "", row.graph_checkpoint_id))

    # -- state and messages

    def _fold_messages(
        self, connection: Connection, one: At | None, other: At | None, rests: tuple[UnsharedPart, UnsharedPart]
    ) -> int | None:
        """Fill in state and messages. Return the number of common messages; None if hashes cannot compare them."""
        if one is None or other is None:
            return None
        names = [conversation(at.header["counts"]) for at in (one, other)]
        if names[0] != names[1] or not self._are_lists(connection, one, other, names[0]):
            return None
        differ = [name for name in {**one.values, **other.values} if one.values.get(name) != other.values.get(name)]
        shown = [name for name in differ if is_shown(name) and name != names[0]]
        hashes = [self.store.graphs.message_hashes(connection, at) for at in (one, other)]
        common = _beginning(*hashes)
        for at, keys, rest in zip((one, other), hashes, rests, strict=True):
            held = {name: at.values[name] for name in shown if name in at.values}
            bodies = self.store.graphs.content.get(connection, held.values())
            rest.state = show_state({name: bodies[key] for name, key in held.items()}, None)[0]
            rest.messages = [from_stored(m) for m in self.store.graphs.messages_of(connection, keys[common:])]
        return common

    def _are_lists(self, connection: Connection, one: At, other: At, name: str | None) -> bool:
        """Return whether the conversation of both is a list of messages and not part of a larger value."""
        keys = {at.values[name] for at in (one, other)} if name is not None else set()
        return all(leaf.type == LIST for leaf in self.store.graphs.content.blobs.get_many(connection, keys).values())

    # -- pending tasks

    def _pending(self, connection: Connection, row: StoredRow) -> list[dict[str, Any]]:
        """Read the results so far of the tasks of an unfinished step at a checkpoint."""
        found = pending_writes.tasks(row.pending, f"checkpoint {row.id}")
        bodies = self.store.graphs.content.get(connection, pending_writes.hashes(row.pending, f"checkpoint {row.id}"))

        def listed(task: TaskWrites, channel: str) -> list[Any]:
            return [one for key in task.values(channel) for one in _as_list(show(bodies[key]))]

        return [
            {
                "task": task.id,
                "ns": task.ns,
                "status": task.status,
                "digest": task.digest(),
                "questions": [_asked(one) for one in listed(task, INTERRUPT)],
                "answers": listed(task, RESUME),
                "errors": listed(task, ERROR),
                "results": [[name, show(bodies[key])] for name, key in task.results],
            }
            for task in found
        ]

    # -- tool calls

    def _fold_calls(
        self, connection: Connection, a: StoredRow, b: StoredRow, rests: tuple[UnsharedPart, UnsharedPart]
    ) -> int:
        """Fill in the tool invocations. Return the number of common ones."""
        tracks = [self._parts(connection, row) for row in (a, b)]
        common = shared(*tracks)
        for parts, rest in zip(tracks, rests, strict=True):
            rest.calls = [call.to_dict() for call in self.store.journal.track(connection, parts, skip=common)]
        return common

    def _parts(self, connection: Connection, row: StoredRow) -> list[TrackPart]:
        branch = self.store.sessions.branch(connection, row.internal_session_id)
        return self.store.parts(connection, branch, row.position)

    # -- common ancestor

    def common_ancestor(self, connection: Connection, a: StoredRow, b: StoredRow) -> StoredRow | None:
        """Find the newest common ancestor of two checkpoints; None if their paths have nothing in common.

        Args:
            connection: Any open connection.
            a: The row of the first checkpoint.
            b: The row of the second checkpoint.
        """
        pairs = zip(self.ends(connection, a).items(), self.ends(connection, b).items(), strict=False)
        same = [(left[0], min(left[1], right[1])) for left, right in pairs if left[0] == right[0]]
        if not same:
            return None
        branch_id, number = same[-1]
        rows = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id == branch_id, CHECKPOINT.c.number == number
        )
        return rows[0] if rows else None

    def ends(self, connection: Connection, row: StoredRow) -> dict[int, int]:
        """Return the branches (ids) on the path to a checkpoint, root first, each with its last number on the path."""
        lineage = self.store.sessions.lineage(
            connection, self.store.sessions.branch(connection, row.internal_session_id)
        )
        # The first checkpoint of a branch stands for its branch point, which is the next one on the parent.
        return {s.branch.id: row.number if s.checkpoints is None else s.checkpoints + 1 for s in lineage}

    def find_with_data(self, connection: Connection, row: StoredRow) -> Sequence[StoredRow]:
        """Read the checkpoints on the path to a checkpoint that have `data`, oldest first."""
        on_way = [
            and_(CHECKPOINT.c.internal_session_id == branch_id, CHECKPOINT.c.number <= number)
            for branch_id, number in self.ends(connection, row).items()
        ]
        return self.store.checkpoints.find(connection, or_(*on_way), CHECKPOINT.c.data.is_not(None))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _asked(interrupt: Any) -> Any:
    """Return the question of a stored interrupt."""
    return interrupt.get("value") if isinstance(interrupt, dict) else interrupt


def _beginning(a: Sequence[bytes], b: Sequence[bytes]) -> int:
    """Return the number of leading items that two lists have in common."""
    shorter = min(len(a), len(b))
    return next((n for n in range(shorter) if a[n] != b[n]), shorter)


def shared(a: Sequence[TrackPart], b: Sequence[TrackPart]) -> int:
    """Return the number of leading calls that two tracks have in common.

    Args:
        a: The parts of the first track, root first. It ends at a checkpoint, so each part has a count.
        b: The parts of the second track, likewise.

    Example:
        >>> main, retry = TrackPart(branch_id=1, before=0, count=5), TrackPart(branch_id=2, before=3, count=1)
        >>> shared([main], [TrackPart(branch_id=1, before=0, count=3), retry])
        3
    """
    common = 0
    for left, right in zip(a, b, strict=False):
        if left.branch_id != right.branch_id:
            break
        common += min(left.count or 0, right.count or 0)
        if left.count != right.count:
            break
    return common
