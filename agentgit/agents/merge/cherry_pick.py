"""The selection of a cherry-pick: messages by id, the messages of a checkpoint, or a tool call with its result."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from agentgit.agents.branch_context import BranchContext
from agentgit.agents.merge.merge import IncomingChanges, alone, with_calls
from agentgit.agents.merge.side import Side
from agentgit.checkpoints.merge import added, batch_of
from agentgit.effects import ToolInvocation
from agentgit.errors import InvalidInput, NotFound
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow

CherryPickSelection = CheckpointRef | ToolInvocation | Sequence[str]
"""What can be picked: the messages that a checkpoint added, a tool call with its result, or messages by id."""


@dataclass(frozen=True)
class PickedMessages:
    """The messages that a cherry-pick selects.

    Args:
        label: The text that names the selection for a person.
        side: The side that the messages are on.
        places: The positions of the messages there.
        call_id: The id of the only tool call to pick from its message; None for all calls.
    """

    label: str
    side: Side
    places: Sequence[int]
    call_id: str | None = None

    def add_to(self, coming: IncomingChanges) -> None:
        """Append the selected messages to the changes that the branch receives.

        Raises:
            InvalidInput: The branch or the source has no list of messages.
        """
        key = self.side.conversation
        if key is None or key not in coming.ours.graph.channels or coming.ours.conversation not in (None, key):
            raise InvalidInput("This branch has no list of messages to add messages to.")
        if self.call_id is None:
            coming.add_messages(key, self.side, self.places)
        else:
            self._come_alone(key, self.call_id, coming)

    def _come_alone(self, key: str, call_id: str, coming: IncomingChanges) -> None:
        """Append one tool call with its result, without the other calls of its message."""
        asking, answer = self.places
        shown = self.side.messages(self.places)
        if len(shown[0]["tool_calls"]) == 1:
            coming.add_messages(key, self.side, self.places)
            return
        asked = alone(shown[0], [call_id])
        if asked["id"] not in coming.here and shown[1]["id"] not in coming.here:
            coming.plan.messages.extend((asked, shown[1]))
            coming.append(key, lambda: [with_calls(self.side.live(key)[asking], asked), self.side.live(key)[answer]])


class CherryPick:
    """Resolves the selection of a cherry-pick.

    Args:
        branch: A branch of the session to search.
    """

    def __init__(self, branch: BranchContext) -> None:
        self.branch = branch
        self.store = branch.store

    def find(self, what: CherryPickSelection) -> PickedMessages:
        """Return the messages that a selection means.

        Raises:
            NotFound: There is no such message or checkpoint, or the tool call has no result in its conversation.
            InvalidInput: `what` cannot be picked, or the checkpoint did more than add messages.
        """
        if isinstance(what, ToolInvocation):
            return self._call(what)
        if isinstance(what, Sequence) and not isinstance(what, str):
            return self._messages(list(what))
        return self._place(what)

    def _side(self, thread: str, checkpoint_id: str | None) -> Side:
        return Side(self.branch.saver, self.branch.graph, thread, checkpoint_id)

    # -- the messages of a checkpoint

    def _place(self, place: CheckpointRef) -> PickedMessages:
        with self.store.database.reading() as connection:
            row, label = self.branch.target(connection, place)
            before = self._before(connection, row)
        side = self._side(row.thread_id, row.graph_checkpoint_id)
        earlier = self._side(before.thread_id, before.graph_checkpoint_id).message_hashes if before is not None else ()
        places = added(earlier, side.message_hashes)
        if places is None:
            raise InvalidInput(
                f"{label} did more than add messages to the checkpoint before it. Choose messages by their ids: "
                "cherry_pick([...])."
            )
        return PickedMessages(label, side, places)

    def _before(self, connection: Connection, row: StoredRow) -> StoredRow | None:
        """Find the checkpoint before another one on its path; None before the first."""
        path = self.branch.context.lookup.path(
            connection, self.store.sessions.branch(connection, row.internal_session_id)
        )
        place = next(n for n, point in enumerate(path) if point.id == row.id)
        return path[place - 1] if place else None

    # -- messages by id

    def _messages(self, ids: list[Any]) -> PickedMessages:
        if not ids or not all(isinstance(one, str) for one in ids):
            raise InvalidInput(f"{ids!r} is not a list of message ids; history() shows them.")
        missing = set(ids)
        for side in self._heads():
            shown = side.messages()
            known = {message["id"] for message in shown}
            missing &= set(ids) - known
            if known.issuperset(ids):
                chosen = [n for n, message in enumerate(shown) if message["id"] in ids]
                return PickedMessages(", ".join(ids), side, batch_of(shown, chosen))
        if missing:
            raise NotFound(f"No branch of this session has a message {', '.join(sorted(missing))}. See history().")
        raise NotFound(f"No branch of this session has all of {', '.join(ids)}. Pick from one branch at a time.")

    def _heads(self) -> Iterable[Side]:
        """Return the heads of the branches of the session, newest branch first."""
        with self.store.database.reading() as connection:
            rows = self.store.sessions.branches(connection, self.branch.session_id)
            heads = [(row.thread_id, self.store.graphs.head(connection, row.thread_id)) for row in reversed(rows)]
        return (self._side(thread, head.checkpoint_id) for thread, head in heads if head is not None)

    # -- one tool call

    def _call(self, call: ToolInvocation) -> PickedMessages:
        side = self._of_call(call)
        shown = side.messages()
        asked = [
            n
            for n, message in enumerate(shown)
            if call.tool_call_id and any(one["id"] == call.tool_call_id for one in message["tool_calls"])
        ]
        answered = [n for n in batch_of(shown, asked[-1:]) if shown[n]["tool_call_id"] == call.tool_call_id]
        if not asked or not answered:
            raise NotFound(f"The conversation of its branch has no result for {call}. Pick messages by their ids.")
        return PickedMessages(str(call), side, [asked[-1], answered[-1]], call.tool_call_id)

    def _of_call(self, call: ToolInvocation) -> Side:
        """Return the head of the branch that made a call.

        Raises:
            NotFound: The call belongs to another session.
        """
        with self.store.database.reading() as connection:
            rows = self.store.sessions.branches(connection, self.branch.session_id)
            of = next((row for row in rows if row.id == call.internal_session_id), None)
            head = self.store.graphs.head(connection, of.thread_id) if of is not None else None
        if of is None or head is None:
            raise NotFound(f"No branch of this session made {call}. See tool_track().")
        return self._side(of.thread_id, head.checkpoint_id)
