"""Comparison of two checkpoints by hashes and columns. Content that both share is not loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from agentgit.sessions.messages import from_stored
from agentgit.store.objects.blobs import shared_prefix
from agentgit.store.objects.plain_values import show
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, LIST
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import (
    ERROR,
    INTERRUPT,
    RESUME,
    GraphCheckpoint,
    GraphKey,
    is_shown,
)
from agentgit.store.threads.pending_writes import TaskWrites


@dataclass(kw_only=True)
class UnsharedPart:
    """The part of a checkpoint that another checkpoint does not share."""

    state: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class CheckpointComparison:
    a: UnsharedPart
    b: UnsharedPart
    shared_messages: int
    shared_calls: int


class CheckpointComparer:
    def __init__(self, store: Store) -> None:
        self.store = store

    def compare(self, transaction: Reading, a: StoredRow, b: StoredRow) -> CheckpointComparison:
        graphs, unshared_parts = self.store.graphs, (UnsharedPart(), UnsharedPart())
        keys = [GraphKey(row.thread_id, "", row.graph_checkpoint_id or "") for row in (a, b)]
        first, second = [graphs.find(transaction, key) if key.checkpoint_id else None for key in keys]
        shared_messages = self._fill_messages(transaction, first, second, unshared_parts)
        if shared_messages is None:
            shared_messages = 0
            for row, unshared in zip((a, b), unshared_parts, strict=True):
                content = self.store.read_state(transaction, row.thread_id, row.graph_checkpoint_id)
                unshared.state, unshared.messages = content["session_state"], content["conversation_history"]
        shared_calls = self._fill_calls(transaction, a, b, unshared_parts)
        for row, unshared in zip((a, b), unshared_parts, strict=True):
            unshared.pending = self._pending_tasks(transaction, row) if a.pending != b.pending else []
        return CheckpointComparison(
            a=unshared_parts[0], b=unshared_parts[1], shared_messages=shared_messages, shared_calls=shared_calls
        )

    # -- state and messages

    def _fill_messages(
        self,
        transaction: Reading,
        first: GraphCheckpoint | None,
        second: GraphCheckpoint | None,
        unshared_parts: tuple[UnsharedPart, UnsharedPart],
    ) -> int | None:
        """Fill in state and messages. Return the number of common messages; None if hashes cannot compare them."""
        if first is None or second is None:
            return None
        conversations = [at.conversation_channel for at in (first, second)]
        name = conversations[0]
        are_lists = name is None or all(
            self.store.graphs.blobs.of(at.session_id).get_many(transaction, [key])[key].type == LIST
            for at in (first, second)
            if (key := at.values.get(name))
        )
        if name != conversations[1] or not are_lists:  # or the conversation is a part of a larger value
            return None
        known = [{**at.values, **at.digests} for at in (first, second)]
        changed_names = [name for name in {**known[0], **known[1]} if known[0].get(name) != known[1].get(name)]
        shown_names = [name for name in changed_names if is_shown(name) and name != conversations[0]]
        hashes = [self.store.graphs.message_hashes(transaction, at) for at in (first, second)]
        common = shared_prefix(*hashes)
        for graph_checkpoint, message_hashes, unshared in zip((first, second), hashes, unshared_parts, strict=True):
            unshared.state, _ = self.store.graphs.values_at(transaction, graph_checkpoint, shown_names)
            messages = self.store.graphs.messages_of(transaction, graph_checkpoint.session_id, message_hashes[common:])
            unshared.messages = [from_stored(message) for message in messages]
        return common

    # -- pending tasks

    def _pending_tasks(self, transaction: Reading, row: StoredRow) -> list[dict[str, Any]]:
        """Read the results so far of the tasks of an unfinished step at a checkpoint."""
        tasks = pending_writes.tasks(row.pending, f"checkpoint {row.id}")
        content = self.store.graphs.content(row.external_session_id)
        bodies = content.get(transaction, pending_writes.hashes(row.pending, f"checkpoint {row.id}"))

        def show_values(task: TaskWrites, channel: str) -> list[Any]:
            values = [show(bodies[key]) for key in task.values(channel)]
            return [one for value in values for one in (value if isinstance(value, list) else [value])]

        return [
            {
                "task": task.id,
                "ns": task.ns,
                "status": task.status,
                "digest": task.digest(),
                "questions": [
                    one.get("value") if isinstance(one, dict) else one for one in show_values(task, INTERRUPT)
                ],
                "answers": show_values(task, RESUME),
                "errors": show_values(task, ERROR),
                "results": [[name, show(bodies[key])] for name, key in task.results],
            }
            for task in tasks
        ]

    # -- tool calls

    def _fill_calls(
        self, transaction: Reading, a: StoredRow, b: StoredRow, unshared_parts: tuple[UnsharedPart, UnsharedPart]
    ) -> int:
        """Fill in the tool invocations. Return the number of common ones."""
        branches = [self.store.sessions.branch(transaction, row.internal_session_id) for row in (a, b)]
        tracks = [
            self.store.track_parts(transaction, branch, row.position)
            for branch, row in zip(branches, (a, b), strict=True)
        ]
        common = shared(*tracks)
        for row, parts, unshared in zip((a, b), tracks, unshared_parts, strict=True):
            runs = self.store.journal.newest_runs(transaction, row.external_session_id)
            track = self.store.journal.live_track(transaction, runs, parts, skip=common)
            unshared.calls = [call.to_dict() for call in track]
        return common

    # -- common ancestor

    def common_ancestor(self, transaction: Reading, a: StoredRow, b: StoredRow) -> StoredRow | None:
        """Find the newest common ancestor of two checkpoints; None if their paths have nothing in common."""
        pairs = zip(self.last_numbers(transaction, a).items(), self.last_numbers(transaction, b).items(), strict=False)
        shared_ends = [(left[0], min(left[1], right[1])) for left, right in pairs if left[0] == right[0]]
        if not shared_ends:
            return None
        branch_id, number = shared_ends[-1]
        rows = self.store.checkpoints.find(
            transaction, CHECKPOINT.c.internal_session_id == branch_id, CHECKPOINT.c.number == number
        )
        return rows[0] if rows else None

    def last_numbers(self, transaction: Reading, row: StoredRow) -> dict[int, int]:
        """Return the branches (ids) on the path to a checkpoint, root first, each with its last number on the path."""
        lineage = self.store.sessions.lineage(
            transaction, self.store.sessions.branch(transaction, row.internal_session_id)
        )
        # The first checkpoint of a branch stands for its branch point, which is the next one on the parent.
        return {
            segment.branch.id: row.number if segment.last_number is None else segment.last_number + 1
            for segment in lineage
        }

    def find_with_data(self, transaction: Reading, row: StoredRow) -> Sequence[StoredRow]:
        """Read the checkpoints on the path to a checkpoint that have `data`, oldest first."""
        ends = self.last_numbers(transaction, row)
        return self.store.checkpoints.up_to(transaction, ends, CHECKPOINT.c.data.is_not(None))


def shared(a: Sequence[TrackPart], b: Sequence[TrackPart]) -> int:
    """Return the number of leading calls that two tracks have in common."""
    common = 0
    for left, right in zip(a, b, strict=False):
        if left.branch_id != right.branch_id:
            break
        common += min(left.count or 0, right.count or 0)
        if left.count != right.count:
            break
    return common
