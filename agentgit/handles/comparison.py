"""Comparison of two checkpoints or two branches."""

from __future__ import annotations

from dataclasses import replace

from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff, diff
from agentgit.errors import InvalidInput
from agentgit.handles.context import SessionAccess
from agentgit.next_steps import Next
from agentgit.sessions import ExternalSession
from agentgit.store.queries.comparison import CheckpointComparer, CheckpointComparison
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.transaction import Reading


class Comparator(SessionAccess):
    def diff(self, a: CheckpointRef, b: CheckpointRef, other: SessionAccess) -> Diff:

        def load(transaction: Reading) -> tuple[Checkpoint, Checkpoint, CheckpointComparison]:
            (row_a, session_a), (row_b, session_b) = (
                self._find_checkpoint(transaction, self, a),
                self._find_checkpoint(transaction, other, b),
            )
            checkpoints = self._to_checkpoints((row_a, session_a), (row_b, session_b))
            return (
                checkpoints[0],
                checkpoints[1],
                CheckpointComparer(self.context.store).compare(transaction, row_a, row_b),
            )

        return self._diff(*self.context.read(load))

    def compare(self, a: CheckpointRef, b: CheckpointRef) -> Comparison:
        comparer = CheckpointComparer(self.context.store)

        def load(
            transaction: Reading,
        ) -> tuple[Checkpoint, list[tuple[Checkpoint, Checkpoint, CheckpointComparison]]]:
            row_a, row_b = (self._find_checkpoint(transaction, self, ref)[0] for ref in (a, b))
            fork = comparer.common_ancestor(transaction, row_a, row_b)
            if fork is None:
                raise InvalidInput("These are in two sessions without a common history.", Next("diff"))
            pairs = ((fork, row_a), (fork, row_b), (row_a, row_b))
            to_checkpoint = self.context.read_models.checkpoint
            return to_checkpoint(fork), [
                (to_checkpoint(x), to_checkpoint(y), comparer.compare(transaction, x, y)) for x, y in pairs
            ]

        fork, (left, right, between) = self.context.read(load)
        metadata = fork.metadata
        return Comparison(
            fork=metadata["reference"],
            messages=metadata["message_count"],
            calls=metadata["tool_track_position"],
            left=self._diff(*left),
            right=self._diff(*right),
            between=self._diff(*between),
        )

    def _diff(self, a: Checkpoint, b: Checkpoint, comparison: CheckpointComparison) -> Diff:
        """Compare the parts that two checkpoints do not share, and their files."""
        distinct_parts = (
            Checkpoint(
                id=checkpoint.id,
                metadata={**checkpoint.metadata, "pending": part.pending},
                session_state=part.state,
                conversation_history=part.messages,
                tool_invocations=part.calls,
            )
            for checkpoint, part in ((a, comparison.a), (b, comparison.b))
        )
        difference = diff(*distinct_parts)
        return replace(
            difference,
            common_messages=difference.common_messages + comparison.shared_messages,
            common_calls=difference.common_calls + comparison.shared_calls,
            **self.context.engine().files.diff(a, b),
        )

    def _to_checkpoints(self, *rows: tuple[StoredRow, ExternalSession]) -> list[Checkpoint]:
        """Convert rows to checkpoints. If these are from different sessions, their references include the session."""
        checkpoints = [self.context.read_models.checkpoint(row) for row, _ in rows]
        if len({session.id for _, session in rows}) > 1:
            for checkpoint, (_, session) in zip(checkpoints, rows, strict=True):
                checkpoint.metadata["reference"] = f"{session.reference}@{checkpoint.metadata['reference']}"
        return checkpoints

    def _find_checkpoint(
        self, transaction: Reading, access: SessionAccess, ref: CheckpointRef
    ) -> tuple[StoredRow, ExternalSession]:
        """Find a checkpoint and its session. The id of a checkpoint determines its session."""
        session = self.context.lookup.session_of(transaction, ref)
        access = SessionAccess(self.context, session.id) if session is not None else access
        return access.find_checkpoint(transaction, ref), access.load_session(transaction)
