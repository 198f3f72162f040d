"""Reading of a rerun beside the recorded conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from agentgit.errors import NotFound
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.sessions.messages import from_stored
from agentgit.sessions.rerun import RerunComparison, RerunReport, is_same_message
from agentgit.store.queries.explorations import RerunMarks
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey

SHOWN = 200
"""The maximum number of messages of each side that are read."""

CONTEXT = 6
"""The number of equal messages that are shown before the first one that differs."""

_STEP = 100


class RerunReader(SessionAccess):
    def compare(self, branch: BranchRef) -> RerunComparison:
        return self.context.read(lambda c: self._compare(c, self.find_branch(c, branch)), repeatable_read=True)

    def _compare(self, transaction: Reading, row: StoredRow) -> RerunComparison:
        store = self.context.store
        report = RerunMarks(store).reports(transaction, [row.id]).get(row.id)
        if report is None:
            raise NotFound(f"Branch {row.name} has no report of a rerun. Choose a branch that a rerun made.")
        source = self.find_branch(transaction, report["source"])
        recorded = _Conversation(self, transaction, source, report.get("end"))
        rerun = _Conversation(self, transaction, row, None)
        index = _divergence(recorded, rerun)
        is_same = index == len(recorded.hashes) == len(rerun.hashes)
        start = max(0, index - (SHOWN if is_same else CONTEXT))
        return RerunComparison(
            report=RerunReport.from_dict(report),
            recorded=recorded.read(start, start + SHOWN),
            rerun=rerun.read(start, start + SHOWN),
            first=start + 1,
            diverges_at=None if is_same else index + 1,
            recorded_count=len(recorded.hashes),
            rerun_count=len(rerun.hashes),
        )


class _Conversation:
    """The messages at a state of a branch, of which only the hashes are held."""

    def __init__(self, access: SessionAccess, transaction: Reading, row: StoredRow, checkpoint_id: str | None) -> None:
        self._store, self._connection = access.context.store, transaction
        state = next(self._find(row, checkpoint_id), None) if checkpoint_id is not None else None
        state = state or self._store.graphs.newest(transaction, row.thread_id)
        self._session_id = row.external_session_id
        self.hashes: Sequence[bytes] = (
            self._store.graphs.message_hashes(transaction, state) if state is not None else ()
        )

    def _find(self, row: StoredRow, checkpoint_id: str) -> Iterator[GraphCheckpoint]:
        for segment in reversed(self._store.sessions.lineage(self._connection, row)):
            key = GraphKey(segment.branch.thread_id, "", checkpoint_id)
            state = self._store.graphs.find(self._connection, key)
            if state is not None:
                yield state

    def read(self, start: int, end: int) -> list[dict[str, Any]]:
        """Return the messages from one place to another, as they are shown."""
        stored = self._store.graphs.messages_of(self._connection, self._session_id, self.hashes[start:end])
        return [from_stored(message) for message in stored]


def _divergence(a: _Conversation, b: _Conversation) -> int:
    """Return the number of messages that are the same from the beginning."""
    shared = min(len(a.hashes), len(b.hashes))
    for start in range(0, shared, _STEP):
        end = min(start + _STEP, shared)
        if a.hashes[start:end] == b.hashes[start:end]:
            continue
        for index, (one, other) in enumerate(zip(a.read(start, end), b.read(start, end), strict=True), start):
            if not is_same_message(one, other):
                return index
    return shared
