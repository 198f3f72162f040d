"""Comparison of two checkpoints or two branches."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import Connection

from agentgit.checkpoints import Checkpoint
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Diff, diff
from agentgit.errors import InvalidInput
from agentgit.handles.context import SessionAccess
from agentgit.sessions import ExternalSession
from agentgit.store.queries.comparison import CheckpointComparer, CheckpointComparison
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow


class Comparator(SessionAccess):
    """Compares checkpoints and branches of a session with each other or with those of another session."""

    def diff(self, a: CheckpointRef, b: CheckpointRef, other: SessionAccess) -> Diff:
        """Compare two checkpoints.

        Args:
            a: The checkpoint to start from.
            b: The checkpoint to compare it with.
            other: The session in which the name of `b` is looked up.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.diff`.
        """

        def look(connection: Connection) -> tuple[Checkpoint, Checkpoint, CheckpointComparison]:
            (one, here), (two, there) = self._find(connection, self, a), self._find(connection, other, b)
            points = self._named((one, here), (two, there))
            return points[0], points[1], CheckpointComparer(self.context.store).compare(connection, one, two)

        return self._diff(*self.context.read(look))

    def compare(self, a: CheckpointRef, b: CheckpointRef) -> Comparison:
        """Compare two branches.

        Raises:
            NotFound, Ambiguous, InvalidInput: As for `Session.compare`.
        """
        comparing = CheckpointComparer(self.context.store)

        def look(
            connection: Connection,
        ) -> tuple[Checkpoint, list[tuple[Checkpoint, Checkpoint, CheckpointComparison]]]:
            one, two = (self._find(connection, self, place)[0] for place in (a, b))
            fork = comparing.common_ancestor(connection, one, two)
            if fork is None:
                raise InvalidInput(
                    "These are in two sessions without a common history. Use session.diff(a, b, other=...)."
                )
            pairs = ((fork, one), (fork, two), (one, two))
            shown = self.context.views.checkpoint
            return shown(fork), [(shown(x), shown(y), comparing.compare(connection, x, y)) for x, y in pairs]

        fork, (left, right, between) = self.context.read(look)
        facts = fork.metadata
        return Comparison(
            fork=facts["reference"],
            messages=facts["message_count"],
            calls=facts["tool_track_position"],
            left=self._diff(*left),
            right=self._diff(*right),
            between=self._diff(*between),
        )

    def _diff(self, one: Checkpoint, two: Checkpoint, folded: CheckpointComparison) -> Diff:
        """Compare the parts that two checkpoints do not share, and their files."""
        rests = (
            Checkpoint(
                id=point.id,
                metadata={**point.metadata, "pending": rest.pending},
                session_state=rest.state,
                conversation_history=rest.messages,
                tool_invocations=rest.calls,
            )
            for point, rest in ((one, folded.a), (two, folded.b))
        )
        found = diff(*rests)
        return replace(
            found,
            common_messages=found.common_messages + folded.messages,
            common_calls=found.common_calls + folded.calls,
            **self.context.engine().files.diff(one, two),
        )

    def _named(self, *found: tuple[StoredRow, ExternalSession]) -> list[Checkpoint]:
        """Convert rows to checkpoints. If these are from different sessions, their references include the session."""
        points = [self.context.views.checkpoint(row) for row, _ in found]
        if len({session.id for _, session in found}) > 1:
            for point, (_, session) in zip(points, found, strict=True):
                point.metadata["reference"] = f"{session.reference}@{point.metadata['reference']}"
        return points

    def _find(
        self, connection: Connection, access: SessionAccess, ref: CheckpointRef
    ) -> tuple[StoredRow, ExternalSession]:
        """Find a checkpoint and its session. The id of a checkpoint determines its session."""
        owner = self.context.lookup.owner_of(connection, ref)
        access = SessionAccess(self.context, owner.id) if owner is not None else access
        return access.checkpoint(connection, ref), access.find(connection)
