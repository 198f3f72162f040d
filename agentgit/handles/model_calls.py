"""Reading of the model calls that a branch has recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.handles.session_reader import SessionReader
from agentgit.store.objects.blobs import Leaf
from agentgit.store.objects.content import Content
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads import model_calls, pending_writes
from agentgit.store.threads.graph_rows import MODEL_CALLS, GraphCheckpoint, GraphKey
from agentgit.store.threads.model_calls import RecordedModelCall


class ModelCallRecord(NamedTuple):
    branch: str
    calls: Sequence[RecordedModelCall]
    has_requests: bool
    conversation: Sequence[Leaf]
    earlier_count: int


def read_model_calls(
    session: SessionReader,
    branch: BranchRef = None,
    start: CheckpointRef | None = None,
    end: CheckpointRef | None = None,
) -> ModelCallRecord:
    """Return the model calls of a branch, with those that it inherits."""
    access = SessionAccess(session.context, session.id)

    def load(transaction: Reading) -> ModelCallRecord:
        row = access.find_branch(transaction, branch)
        reader = _Reader(access, transaction, row)
        last, last_calls = reader.at(end) if end is not None else reader.newest()
        first, first_calls = reader.at(start) if start is not None else (None, [])
        return ModelCallRecord(
            row.name,
            last_calls[len(first_calls) :],
            bool(last_calls),
            reader.conversation(last),
            len(reader.conversation(first)),
        )

    return session.context.read(load, repeatable_read=True)


class _Reader:
    def __init__(self, access: SessionAccess, transaction: Reading, branch: StoredRow) -> None:
        self._graphs = access.context.store.graphs
        self._access, self._connection, self._branch = access, transaction, branch

    def newest(self) -> tuple[GraphCheckpoint | None, Sequence[RecordedModelCall]]:
        """Return the newest graph checkpoint of the branch with its calls, those of an unfinished step included."""
        found = self._graphs.find_with_writes(self._connection, self._branch.thread_id, "", None)
        checkpoint = found[0] if found is not None else None
        return checkpoint, self._calls(checkpoint, checkpoint.model_calls if checkpoint is not None else None)

    def at(self, ref: CheckpointRef) -> tuple[GraphCheckpoint | None, Sequence[RecordedModelCall]]:
        """Return the graph checkpoint of a checkpoint with the calls up to there."""
        row = self._access.find_checkpoint(self._connection, ref, self._branch.name)
        if row.graph_checkpoint_id is None:
            return None, []
        checkpoint = self._graphs.find(self._connection, GraphKey(row.thread_id, "", row.graph_checkpoint_id))
        pending = pending_writes.unpack(row.pending, f"checkpoint {row.id}") or ()
        unfinished = (write["value"] for each in pending for write in each.writes if write["channel"] == MODEL_CALLS)
        return checkpoint, self._calls(checkpoint, next(unfinished, checkpoint and checkpoint.model_calls))

    def conversation(self, checkpoint: GraphCheckpoint | None) -> Sequence[Leaf]:
        """Return the messages at a graph checkpoint, oldest first."""
        if checkpoint is None:
            return []
        hashes = self._graphs.message_hashes(self._connection, checkpoint)
        return self._content(checkpoint).blobs.leaves(self._connection, hashes)

    def _calls(self, checkpoint: GraphCheckpoint | None, hashes: bytes | None) -> Sequence[RecordedModelCall]:
        if checkpoint is None or hashes is None:
            return []
        return model_calls.read(self._connection, self._content(checkpoint), hashes)

    def _content(self, checkpoint: GraphCheckpoint) -> Content:
        return self._graphs.content(checkpoint.session_id)
