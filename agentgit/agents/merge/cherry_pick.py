"""The selection of a cherry-pick: messages by id, the messages of a checkpoint, or a tool call with its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.merge.merge import IncomingChanges, keep_shown_calls, select_calls
from agentgit.agents.merge.side import Side
from agentgit.checkpoints.merge import added_positions, expand_to_batches
from agentgit.effects import ToolInvocation
from agentgit.errors import InvalidInput, NotFound
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow

CherryPickSelection = CheckpointRef | ToolInvocation | Sequence[str]
"""What can be picked: the messages that a checkpoint added, a tool call with its result, or messages by id."""


@dataclass(frozen=True)
class PickedMessages:
    """The messages that a cherry-pick selects."""

    label: str
    side: Side
    positions: Sequence[int]
    call_id: str | None = None

    def add_to(self, changes: IncomingChanges) -> None:
        """Append the selected messages to the changes that the branch receives."""
        key = self.side.conversation_channel
        if (
            key is None
            or key not in changes.ours.graph.channels
            or changes.ours.conversation_channel not in (None, key)
        ):
            raise InvalidInput("This branch has no list of messages to add messages to.")
        if self.call_id is None:
            changes.add_messages(key, self.side, self.positions)
        else:
            self._add_single_call(key, self.call_id, changes)

    def _add_single_call(self, key: str, call_id: str, changes: IncomingChanges) -> None:
        """Append one tool call with its result, without the other calls of its message."""
        call_position, result_position = self.positions
        shown = self.side.messages(self.positions)
        if len(shown[0]["tool_calls"]) == 1:
            changes.add_messages(key, self.side, self.positions)
            return
        call_message = select_calls(shown[0], [call_id])
        if call_message["id"] not in changes.our_messages and shown[1]["id"] not in changes.our_messages:
            changes.plan.messages.extend((call_message, shown[1]))
            changes.append(
                key,
                lambda: [
                    keep_shown_calls(self.side.live_value(key)[call_position], call_message),
                    self.side.live_value(key)[result_position],
                ],
            )


class CherryPick:
    """Resolves the selection of a cherry-pick."""

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    def find(self, selection: CherryPickSelection) -> PickedMessages:
        """Return the messages that a selection means."""
        if isinstance(selection, ToolInvocation):
            return self._find_call(selection)
        if isinstance(selection, Sequence) and not isinstance(selection, str):
            return self._find_messages(list(selection))
        return self._find_checkpoint(selection)

    def _side_at(self, thread: str, checkpoint_id: str | None) -> Side:
        return Side(self.branch.saver, self.branch.graph, thread, checkpoint_id)

    # -- the messages of a checkpoint

    def _find_checkpoint(self, ref: CheckpointRef) -> PickedMessages:
        with self.store.database.reading() as connection:
            row, label = self.branch.target(connection, ref)
            previous = self._previous_checkpoint(connection, row)
        side = self._side_at(row.thread_id, row.graph_checkpoint_id)
        earlier_hashes = (
            self._side_at(previous.thread_id, previous.graph_checkpoint_id).message_hashes
            if previous is not None
            else ()
        )
        positions = added_positions(earlier_hashes, side.message_hashes)
        if positions is None:
            raise InvalidInput(
                f"{label} did more than add messages to the checkpoint before it. Pick messages by their ids."
            )
        return PickedMessages(label, side, positions)

    def _previous_checkpoint(self, connection: Connection, row: StoredRow) -> StoredRow | None:
        """Find the checkpoint before another one on its path; None before the first."""
        path = self.branch.context.lookup.path_checkpoints(
            connection, self.store.sessions.branch(connection, row.internal_session_id)
        )
        index = next(n for n, point in enumerate(path) if point.id == row.id)
        return path[index - 1] if index else None

    # -- messages by id

    def _find_messages(self, ids: list[Any]) -> PickedMessages:
        if not ids or not all(isinstance(one, str) for one in ids):
            raise InvalidInput(f"{ids!r} is not a list of message ids, like those of the history.")
        missing_ids = set(ids)
        for side in self._heads():
            shown = side.messages()
            known_ids = {message["id"] for message in shown}
            missing_ids &= set(ids) - known_ids
            if known_ids.issuperset(ids):
                positions = [n for n, message in enumerate(shown) if message["id"] in ids]
                return PickedMessages(", ".join(ids), side, expand_to_batches(shown, positions))
        if missing_ids:
            raise NotFound(f"No branch of this session has a message {', '.join(sorted(missing_ids))}.")
        raise NotFound(f"No branch of this session has all of {', '.join(ids)}. Pick from one branch at a time.")

    def _heads(self) -> Iterable[Side]:
        """Return the heads of the branches of the session, newest branch first."""
        with self.store.database.reading() as connection:
            rows = self.store.sessions.branches(connection, self.branch.session_id)
            heads = [(row.thread_id, self.store.graphs.head(connection, row.thread_id)) for row in reversed(rows)]
        return (self._side_at(thread, head.checkpoint_id) for thread, head in heads if head is not None)

    # -- one tool call

    def _find_call(self, call: ToolInvocation) -> PickedMessages:
        side = self._calling_branch_head(call)
        shown = side.messages()
        call_positions = [
            n
            for n, message in enumerate(shown)
            if call.tool_call_id and any(one["id"] == call.tool_call_id for one in message["tool_calls"])
        ]
        result_positions = [
            n for n in expand_to_batches(shown, call_positions[-1:]) if shown[n]["tool_call_id"] == call.tool_call_id
        ]
        if not call_positions or not result_positions:
            raise NotFound(f"The conversation of its branch has no result for {call}. Pick messages by their ids.")
        return PickedMessages(str(call), side, [call_positions[-1], result_positions[-1]], call.tool_call_id)

    def _calling_branch_head(self, call: ToolInvocation) -> Side:
        """Return the head of the branch that made a call."""
        with self.store.database.reading() as connection:
            rows = self.store.sessions.branches(connection, self.branch.session_id)
            branch_row = next((row for row in rows if row.id == call.internal_session_id), None)
            head = self.store.graphs.head(connection, branch_row.thread_id) if branch_row is not None else None
        if branch_row is None or head is None:
            raise NotFound(f"No branch of this session made {call}. session.tool_track() lists its calls.")
        return self._side_at(branch_row.thread_id, head.checkpoint_id)
