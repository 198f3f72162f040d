"""A turn: one run of the graph on a branch.

It takes the branch, so that nobody else runs it; makes the automatic checkpoints; records the tools; and gives the
branch back. Beginning and end are one transaction each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from agentgit.agents import inputs
from agentgit.agents.inputs import Given
from agentgit.agents.recorder import Recorder, name_of
from agentgit.errors import Conflict, InvalidInput
from agentgit.sessions.history import text_of
from agentgit.store import owners
from agentgit.store.checkpoints import Label, Snapshot
from agentgit.store.graph_rows import Place
from agentgit.store.ids import new_id
from agentgit.store.sessions import CHECKPOINT, Found
from agentgit.store.store import Moment, snapshot_of
from agentgit.tools import Effect

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent

TURN, TOOL, OFF = "turn", "tool", "off"

NAME_LIMIT = 200
"""Characters of a checkpoint's name."""


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What holds for every turn of an agent.

    Args:
        user_id: who runs it.
        effects: what the tools do to the world, by name.
        unrecorded: names of tools that are no part of the track.
        auto: when to make automatic checkpoints: `turn`, `tool`, `off`, or after every so many turns.
    """

    user_id: int
    effects: Mapping[str, Effect]
    unrecorded: frozenset[str]
    auto: str | int


def named(user_id: int, name: str | None, description: str | None = None, data: Any = None) -> Label:
    """Make the label of a checkpoint that somebody asked for.

    Raises:
        InvalidInput: the name is empty, or longer than 200 characters.
    """
    if name is not None and (not isinstance(name, str) or not name.strip() or len(name) > NAME_LIMIT):
        raise InvalidInput(f"A checkpoint's name has 1 to {NAME_LIMIT} characters; {name!r} cannot be one.")
    if description is not None and not isinstance(description, str):
        raise InvalidInput(f"A description is a text, not {description!r}.")
    return Label(kind="named", user_id=user_id, name=name, description=description, data=data, id=new_id())


@dataclass
class Turn:
    """One run.

    Args:
        agent: who runs.
        given: the input.
    """

    agent: RollbackAgent
    given: Given
    wanted: list[tuple[int, Label]] = field(default_factory=list)
    """Checkpoints that a tool asked for, each with the batch of its call; they are made where that batch is whole."""
    afterwards: Callable[[], Any] | None = None
    """What a tool asked to be done when the turn has ended."""

    _batches: dict[int, Label] = field(default_factory=dict)
    """The automatic checkpoint of each finished batch."""

    branch_id: int = field(init=False)
    branch: Found = field(init=False)
    head_id: int | None = field(init=False)
    settled: bool = field(init=False)
    recorder: Recorder = field(init=False)

    # -- beginning and end

    def begin(self) -> None:
        """Take the branch.

        Raises:
            Conflict: somebody else runs it, or has moved it since the agent last saw it.
        """
        self.branch_id = self.agent.branch_id  # the agent may be led elsewhere, a turn stays where it began
        self._held = ExitStack()
        owner = self._held.enter_context(owners.owner())
        try:
            # Not durable by itself: the first intent of the turn is, and carries to disk what was written before it.
            self.agent.store.database.write(lambda connection: self._begin(connection, owner))
        except BaseException:
            self._held.close()
            raise

    def _begin(self, connection: Connection, owner: str) -> None:
        sessions = self.agent.store.sessions
        self.branch = self.agent.store.recover(connection, sessions.branch(connection, self.branch_id))
        sessions.acquire(connection, self.branch_id, owner)
        store = self.agent.store
        if store.operations.unfinished(connection, self.branch.external_session_id, alive=True):
            raise Conflict("A rollback is being done in this session. Wait until it ends; then run this turn again.")
        calls, batch = store.journal.tally(connection, self.branch_id)
        moment = store.moment(connection, self.branch, calls)
        if moment.latest != self.agent.seen and self.branch.head_id not in self.agent.late:
            raise Conflict(
                f"Branch {self.branch.name} has moved since this agent last saw it. Nothing was run. Continue from its "
                f"new head with agent.switch({self.branch.name!r}), or go your own way with agent.fork().",
                head=self.branch.head_id,
            )
        self.recorder = Recorder(
            store,
            self.branch,
            owner,
            self.agent.rules.effects,
            self.agent.rules.unrecorded,
            batch,
            self._unfinished(connection, moment),
        )
        self.recorder.turn = self
        if self.given.is_new and self.agent.rules.auto in (TURN, TOOL):
            label = self._label("before", self.given.title, self.given.message_id)
            self._add(connection, moment.snapshot, label)

    def _unfinished(self, connection: Connection, moment: Moment) -> tuple[str, int, list[str]] | None:
        """Find the batch that this turn goes on with, so that calls which run again stay in it."""
        if self.given.is_new or not moment.waiting:
            return None
        asked = moment.waiting[0]["tool_calls"]
        ids = [call["id"] for call in asked]
        batch = self.agent.store.journal.last_batch(connection, self.branch_id, ids)
        return None if batch is None else (name_of(moment.waiting[0]["id"], asked), batch, ids)

    def end(self, *, completed: bool) -> str | None:
        """Give the branch back; tell the newest graph checkpoint.

        Args:
            completed: False if the run raised or was broken off.
        """
        with self._held:
            return self.agent.store.database.write(lambda connection: self._end(connection, completed), durable=True)

    def _end(self, connection: Connection, completed: bool) -> str | None:
        sessions, owner = self.agent.store.sessions, self.recorder.owner
        self.recorder.settle(connection)
        self.agent.store.journal.abandon(connection, self.branch_id, owner)
        moment = self.agent.store.moment(connection, self.branch)
        if moment.settled:
            self._make_wanted(connection, moment.snapshot, until=None)
            if completed and self._is_due(connection):
                title = inputs.first_line(text_of(moment.last[0])) if moment.last else None
                self._add(connection, moment.snapshot, self._label("after", title))
        self.settled = moment.settled
        self.head_id = sessions.branch(connection, self.branch_id).head_id
        sessions.touch(connection, self.branch.external_session_id)
        sessions.release(connection, self.branch_id, owner)
        return moment.latest

    def _is_due(self, connection: Connection) -> bool:
        if isinstance(self.agent.rules.auto, int):
            return self.agent.store.sessions.count_turn(connection, self.branch_id) % self.agent.rules.auto == 0
        return self.agent.rules.auto in (TURN, TOOL)

    def _label(self, kind: str, description: str | None, restore_point: str | None = None) -> Label:
        return Label(kind=kind, user_id=self.agent.rules.user_id, description=description, restore_point=restore_point)

    # -- on the way

    def on_put(self, thread_id: str, ns: str, checkpoint_id: str, connection: Connection) -> None:
        """Make the checkpoints that are due after a finished batch of tool calls, in the saver's own transaction."""
        if ns or thread_id != self.branch.thread_id or not (self.wanted or self.agent.rules.auto == TOOL):
            return
        store = self.agent.store
        at = store.graphs.find(connection, Place(thread_id, ns, checkpoint_id))
        asking = store.answered(connection, at) if at is not None else None
        batch = self.recorder.batch_of(name_of(asking["id"], asking["tool_calls"])) if asking else None
        if at is None or batch is None:
            return
        calls = store.journal.count(connection, self.branch_id, before_batch=batch + 1)
        snapshot = snapshot_of(at, self.branch.inherited + calls)
        self._make_wanted(connection, snapshot, until=batch)
        if self.agent.rules.auto == TOOL:
            label = self._batches.setdefault(batch, replace(self._label("tools", None), id=new_id()))
            self._make(connection, snapshot, label)

    def want(self, batch: int, label: Label) -> None:
        """Note a checkpoint that a tool asked for; a batch that runs again after an answer asks only once."""
        if all((batch, label.name) != (known, one.name) for known, one in self.wanted):
            self.wanted.append((batch, label))

    def _make_wanted(self, connection: Connection, snapshot: Snapshot, until: int | None) -> None:
        """Make what tools asked for in the batches until this one; None is all."""
        for batch, label in self.wanted:
            if until is None or batch <= until:
                self._make(connection, snapshot, label)

    def _make(self, connection: Connection, snapshot: Snapshot, label: Label) -> None:
        """Make a checkpoint that has its id already, unless it was made: a transaction may run twice."""
        if not self.agent.store.checkpoints.find(connection, CHECKPOINT.c.id == label.id):
            self._add(connection, snapshot, label)

    def _add(self, connection: Connection, snapshot: Snapshot, label: Label) -> None:
        self.agent.store.checkpoints.add(connection, self.branch_id, snapshot, label)
