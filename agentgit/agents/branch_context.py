"""The context that an agent, a turn and a merge share for one branch, and the settings of its turns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

from langgraph.pregel import Pregel
from sqlalchemy import Connection

from agentgit.agents.instrumentation import may_rewrite_input
from agentgit.auth.principal import EDITOR, VIEWER
from agentgit.effects.declarations import ToolEffects
from agentgit.effects.files import SnapshotRef, WorkspaceAdapter
from agentgit.effects.registry import Registry
from agentgit.errors import InvalidInput
from agentgit.handles.context import Context
from agentgit.rollback import Planner
from agentgit.saver.branch_saver import BranchSaver, SessionSaver
from agentgit.sessions import ExternalSession
from agentgit.store.queries.branch_heads import BranchHead, read_branch_head
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow

AutoCheckpoint = Literal["turn", "tool", "off"] | str | int


@dataclass(frozen=True)
class Interval:
    """The interval at which automatic checkpoints are made.

    Args:
        before_turns: True for a checkpoint before each user message.
        turns: The number of turns between checkpoints; 0 for none.
        calls: The number of tool calls between checkpoints, each made at the end of its batch; 0 for none.
    """

    before_turns: bool
    turns: int
    calls: int = 0

    @classmethod
    def read(cls, value: AutoCheckpoint) -> Self:
        """Parse the value of `wrap(auto_checkpoint=...)`.

        Raises:
            InvalidInput: The value is not valid.

        Example:
            >>> Interval.read("tool:10")
            Interval(before_turns=True, turns=1, calls=10)
        """
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return cls(before_turns=False, turns=value)
        if value == "off":
            return cls(before_turns=False, turns=0)
        if value == "turn":
            return cls(before_turns=True, turns=1)
        match = re.fullmatch(r"tool(?::([1-9]\d{0,8}))?", value) if isinstance(value, str) else None
        if match is None:
            raise InvalidInput(
                "auto_checkpoint must be 'turn', 'tool', 'tool:10' (each tenth tool call), 'off' or a number of turns, "
                f"not {value!r}."
            )
        return cls(before_turns=True, turns=1, calls=int(match[1] or 1))

    def is_passed(self, before: int, after: int) -> bool:
        """Return whether a checkpoint is due, given the number of calls before and after a batch."""
        return self.calls > 0 and before // self.calls < after // self.calls


Graph = Pregel[Any, Any, Any, Any]


@dataclass(frozen=True, kw_only=True)
class TurnSettings:
    """Settings that apply to every turn of an agent.

    Args:
        user_id: The user who runs the turn.
        effects: The effects of the tools on the outside world.
        unrecorded_tools: Names of tools that are not part of the track.
        checkpoint_interval: The times at which automatic checkpoints are made.
        fence_mode: What to do with a call whose effect already exists: `replay`, `raise` or `off`.
        workspace: The workspace whose files belong to the session; None if there is none.
    """

    user_id: int
    effects: ToolEffects
    unrecorded_tools: frozenset[str]
    checkpoint_interval: Interval
    fence_mode: str
    workspace: WorkspaceAdapter | None = None


class ClientThread(NamedTuple):
    """The thread as which the graph and its clients know a branch.

    Args:
        id: The thread id in the configs that they see.
        saver: A saver whose cache of messages the branch shares; None for a cache of its own.
    """

    id: str
    saver: SessionSaver | None = None


class BranchContext:
    """One branch: the store and the principal, the graph and its settings, and the newest known state of the branch.

    Args:
        context: The store and the principal.
        graph: The user's graph; it is not modified.
        settings: The settings that apply to every turn.
        branch: The id of the branch, or the branch with its head as they were just read.
        client: The thread as which the graph and its clients know the branch; None for its own.
    """

    def __init__(
        self,
        context: Context,
        graph: Graph,
        settings: TurnSettings,
        branch: int | BranchHead,
        client: ClientThread | None = None,
    ) -> None:
        self.context = context
        self.graph = graph
        self.settings = settings
        self.store = context.store.detached_copy()
        self.may_rewrite_input = may_rewrite_input(graph)
        """True if the graph can redact the user's message, so that no title may show it before."""
        self.planner = Planner(self.store, context.registry)
        if isinstance(branch, int):
            with self.store.database.reading() as connection:
                branch = read_branch_head(self.store, connection, branch)
        row = branch.row
        self.branch_id: int = row.id
        self.session_id: int = row.external_session_id
        self.served = context.registry.session(self.session_id)
        """The resources of the session in this process."""
        self.thread_id: str = row.thread_id
        client = client or ClientThread(row.thread_id)
        self.client_thread = client.id
        """The thread id in the configs that the graph and its callers see."""
        self.saver = BranchSaver(self.store, row.thread_id, client.id, client.saver)
        self.saver.channels = graph.channels
        self.seen_checkpoint_id: str | None = branch.checkpoint_id
        """The newest graph checkpoint that the agent has seen."""
        self.needs_world = True
        """False for a turn in which nothing can act, so that the world need not be as the branch left it."""
        self.interrupted_turn: Any = None
        """A `Turn` that waits for an answer, with the checkpoints and the rollback that its tools requested."""
        self.interrupted_heads: tuple[int | None, ...] = ()
        """The head of the branch after a turn that was interrupted; empty after a completed turn.

        LangGraph may still save a step of the interrupted turn in another thread. As long as the head is the same, such
        a step does not mean that another agent has moved the branch."""

    @property
    def registry(self) -> Registry:
        """The registered functions that undo, repeat or verify recorded calls."""
        return self.context.registry

    def authorize(self, connection: Connection, role: str = EDITOR) -> None:
        """Check that the user still has a role in the session. Nothing is read if the user owns it.

        Raises:
            NotFound, NotAllowed: The user does not have the role; nothing was done.
        """
        self.context.lookup.require_role(connection, self.session_id, role)

    def authorize_now(self, role: str = VIEWER) -> None:
        """Check the user's role now, for operations whose later transactions do not check it or may not take place."""
        if not self.context.lookup.needs_no_check(self.session_id):
            with self.reading(role):
                pass

    @contextmanager
    def reading(self, role: str = VIEWER) -> Iterator[Connection]:
        """Open a read-only connection after checking that the user has a role in the session."""
        with self.store.database.reading() as connection:
            self.authorize(connection, role)
            yield connection

    def owner_id(self, connection: Connection) -> int:
        """Return the id of the owner of the session."""
        return self.context.lookup.owner_id(connection, self.session_id)

    def row(self, connection: Connection) -> StoredRow:
        """Read the row of the branch."""
        return self.store.sessions.branch(connection, self.branch_id)

    def session(self, connection: Connection) -> ExternalSession:
        """Read the session."""
        return self.context.lookup.session(connection, self.session_id)

    def checkpoint(self, connection: Connection, checkpoint_id: int) -> StoredRow:
        """Read the row of a checkpoint of the session."""
        return self.context.lookup.checkpoint(connection, self.session(connection), self.row(connection), checkpoint_id)

    def target(self, connection: Connection, ref: CheckpointRef) -> tuple[StoredRow, str]:
        """Resolve a reference to the row of a checkpoint, and return it with its display name."""
        return self.context.lookup.target(connection, self.session(connection), self.row(connection), ref)

    def take_snapshot(self, reason: str) -> SnapshotRef | None:
        """Take a snapshot of the files of the workspace; return None if no workspace is attached."""
        return self.settings.workspace.take_snapshot(reason) if self.settings.workspace is not None else None
