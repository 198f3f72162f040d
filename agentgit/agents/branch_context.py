"""The context that an agent, a turn and a merge share for one branch, and the settings of its turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self

from langchain_core.messages import BaseMessage
from langgraph.cache.base import BaseCache
from langgraph.pregel import Pregel
from langgraph.types import Interrupt, Send

from agentgit.agents.instrumentation import may_rewrite_input
from agentgit.agents.tools.graph_tools import GraphTools
from agentgit.auth.principal import EDITOR, VIEWER
from agentgit.effects.files import SnapshotRef
from agentgit.effects.registry import Registry
from agentgit.errors import Conflict, InvalidInput
from agentgit.handles.context import Context
from agentgit.langgraph_internals import PULL, TASKS, recast_checkpoint_ns, task_path_str
from agentgit.next_steps import Next
from agentgit.rollback import Planner
from agentgit.rollback.workspace_adapter import WorkspaceAdapter
from agentgit.saver.branch_saver import BranchSaver, SessionSaver, SessionThreads, ThreadReader
from agentgit.sessions import ExternalSession
from agentgit.sessions.session import OPEN, SIMULATED
from agentgit.store.queries.graph_points import BranchHead, read_branch_head
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import INTERRUPT, GraphCheckpoint
from agentgit.store.threads.pending_writes import subgraph_heads

_NODE_PATH = task_path_str((PULL, ""))
"""The beginning of the stored path of a task that a channel triggered; the name of its node follows."""

_SECONDS = {"s": 1, "m": 60, "h": 3600}

AutoCheckpoint = Literal["turn", "tool", "off"] | str | int


@dataclass(frozen=True)
class Interval:
    """The interval at which automatic checkpoints are made."""

    before_turns: bool
    turns: int
    calls: int = 0
    seconds: int = 0

    @classmethod
    def read(cls, value: AutoCheckpoint) -> Self:
        """Parse the value of `wrap(auto_checkpoint=...)`.

        Example:
            >>> Interval.read("tool:10")
            Interval(before_turns=True, turns=1, calls=10, seconds=0)
            >>> Interval.read("5m").seconds
            300
        """
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return cls(before_turns=False, turns=value)
        if value == "off":
            return cls(before_turns=False, turns=0)
        if value == "turn":
            return cls(before_turns=True, turns=1)
        text = value if isinstance(value, str) else ""
        if (period := re.fullmatch(r"([1-9]\d{0,5})([smh])", text)) is not None:
            return cls(before_turns=False, turns=0, seconds=int(period[1]) * _SECONDS[period[2]])
        match = re.fullmatch(r"tool(?::([1-9]\d{0,8}))?", text)
        if match is None:
            raise InvalidInput(
                "auto_checkpoint must be 'turn', 'tool', 'tool:10' (each tenth tool call), a time like '5m' (30s, 2h), "
                f"'off' or a number of turns, not {value!r}."
            )
        return cls(before_turns=True, turns=1, calls=int(match[1] or 1))

    def with_each_end(self) -> Self:
        """Return this interval with a checkpoint at the end of each turn.

        Example:
            >>> Interval.read("off").with_each_end()
            Interval(before_turns=False, turns=1, calls=0, seconds=0)
        """
        return replace(self, turns=1, seconds=0)

    def is_passed(self, before: int, after: int) -> bool:
        """Return whether a checkpoint is due, given the number of calls before and after a batch."""
        return self.calls > 0 and before // self.calls < after // self.calls


Graph = Pregel[Any, Any, Any, Any]


class Simulation(NamedTuple):
    """The stand-in for the world in the turns of a rerun."""

    create_interceptor: Callable[[Any], Any]
    """Creates the `CallInterceptor` of a turn, which answers its calls."""
    wrap_channel: Callable[[Any], Any]
    """Returns a channel of the graph as the rerun uses it."""
    cache: BaseCache[Any]
    """The cache of nodes and tasks, in place of those of the graph."""


@dataclass(frozen=True, kw_only=True)
class TurnSettings:
    """Settings that apply to every turn of an agent."""

    user_id: int
    effects: GraphTools
    checkpoint_interval: Interval
    fence_mode: str
    unowned_calls: str = "report"
    on_unanswered: str = "answer"
    workspace: WorkspaceAdapter | None = None
    simulation: Simulation | None = None

    @property
    def idle_status(self) -> str:
        return OPEN if self.simulation is None else SIMULATED


class ClientThread(NamedTuple):
    """The thread as which the graph and its clients know a branch."""

    id: str
    saver: SessionSaver | None = None


class BranchContext:
    """One branch: the store and the principal, the graph and its settings, and the newest known state of the branch."""

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
        self.store = context.store
        self.may_rewrite_input = may_rewrite_input(graph)
        """True if the graph can redact the user's message, so that no title may show it before."""
        self.planner = Planner(self.store, context.registry, context.user.id)
        if isinstance(branch, int):
            with self.store.database.reading() as transaction:
                branch = read_branch_head(self.store, transaction, branch)
        row = branch.row
        self.branch_id: int = row.id
        self.session_id: int = row.external_session_id
        self.served = context.registry.session(self.session_id)
        """The resources of the session in this process."""
        self.thread_id: str = row.thread_id
        self.client = client
        self.must_be_current = client is not None
        """True if turns run only while the branch is the current one of its session, whose thread clients see."""
        self.begins_again: bool | None = None
        """Whether tasks that wait at the beginning of the branch begin again; None if only where none has begun."""
        client = client or ClientThread(row.thread_id)
        self.client_thread = client.id
        """The thread id in the configs that the graph and its callers see."""
        self.saver = BranchSaver(self.store, row.thread_id, client.id, client.saver)
        self.saver.channels = graph.channels
        self.seen_checkpoint_id: str | None = branch.checkpoint_id
        """The newest graph checkpoint that the agent has seen."""
        self.seen_id = new_id()
        """An id after those of the operations that the agent has seen, its own included."""
        self.needs_world = settings.simulation is None
        """False for a turn in which nothing can act, so that the world need not be as the branch left it."""
        self.end_checkpoint_id: int | None = None
        """The checkpoint at the end of the last turn of this object; None if it made none."""
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

    def authorize(self, transaction: Reading, role: str = EDITOR) -> None:
        """Check that the user still has a role in the session. Nothing is read if the user owns it."""
        self.context.lookup.require_role(transaction, self.session_id, role)

    def authorize_now(self, role: str = VIEWER) -> None:
        """Check the user's role now, for operations whose later transactions do not check it or may not take place."""
        if not self.context.lookup.needs_no_check(self.session_id):
            with self.reading(role):
                pass

    @contextmanager
    def reading(self, role: str = VIEWER) -> Iterator[Reading]:
        """Open a read-only connection after checking that the user has a role in the session."""
        with self.store.database.reading() as transaction:
            self.authorize(transaction, role)
            yield transaction

    def row(self, transaction: Reading) -> StoredRow:
        return self.store.sessions.branch(transaction, self.branch_id)

    def session(self, transaction: Reading) -> ExternalSession:
        return self.context.lookup.session(transaction, self.session_id)

    def checkpoint(self, transaction: Reading, checkpoint_id: int) -> StoredRow:
        return self.context.lookup.checkpoint(transaction, self.row(transaction), checkpoint_id)

    def target(self, transaction: Reading, ref: CheckpointRef) -> tuple[StoredRow, str]:
        """Resolve a reference to the row of a checkpoint, and return it with its display name."""
        return self.context.lookup.target(transaction, self.row(transaction), ref)

    def require_unmoved(self, row: StoredRow, newest_id: str | None, *, is_rewound: bool = False) -> None:
        """Check that nobody has moved the branch since this agent last saw it, or rewound the world on it."""
        if is_rewound or (newest_id != self.seen_checkpoint_id and row.head_id not in self.interrupted_heads):
            raise Conflict(
                f"Branch {row.name} has moved since this agent last saw it. Nothing was done.",
                Next("switch", branch=row.name),
                Next("fork"),
                head=row.head_id,
            )

    def read_anew(self) -> None:
        """Read the branch after a turn whose end is not known here."""
        with self.store.database.reading() as transaction:
            head = read_branch_head(self.store, transaction, self.branch_id)
        self.seen_checkpoint_id, self.interrupted_heads = head.checkpoint_id, (head.row.head_id,)
        self.end_checkpoint_id = self.interrupted_turn = None

    def messages(self, transaction: Reading, checkpoint: GraphCheckpoint | None) -> list[BaseMessage]:
        """Read the conversation of a graph checkpoint, oldest first."""
        if checkpoint is None:
            return []
        hashes = self.store.graphs.message_hashes(transaction, checkpoint)
        leaves = self.store.graphs.blobs.of(checkpoint.session_id).get_many(transaction, hashes)
        messages: list[BaseMessage] = self.saver.codec.decode([leaves[key] for key in hashes])
        return messages

    def questions(self, transaction: Reading, checkpoint: GraphCheckpoint | None) -> list[Interrupt]:
        """Read the questions of a graph checkpoint that wait for an answer."""
        if checkpoint is None:
            return []
        keys = self.store.asked(transaction, checkpoint)
        bodies = self.store.graphs.content(checkpoint.session_id).get(transaction, keys)
        return [question for key in keys for question in self.saver.codec.decode(bodies[key])]

    def step_writes(self, transaction: Reading, checkpoint: GraphCheckpoint | None) -> list[tuple[str, Any]]:
        """Read what the step at a graph checkpoint has written before it ended: the channels and the values."""
        if checkpoint is None:
            return []
        writes = self.store.graphs.writes(transaction, checkpoint.key)
        bodies = self.store.graphs.content(checkpoint.session_id).get(transaction, [one.value for one in writes])
        return [(one.channel, self.saver.codec.decode(bodies[one.value])) for one in writes]

    def require_asking_nodes(self, transaction: Reading, checkpoint: GraphCheckpoint) -> None:
        """Check that the graph has the nodes that wait for an answer; LangGraph would drop it without a word."""
        store, missing = self.store, self._asking_nodes(transaction, checkpoint) - self.graph.nodes.keys()
        subgraphs = dict(self.graph.get_subgraphs(recurse=True))
        for ns, id in subgraph_heads(transaction, checkpoint.key).items():
            subgraph = subgraphs.get(recast_checkpoint_ns(ns))
            step = store.graphs.find(transaction, checkpoint.key._replace(ns=ns, checkpoint_id=id))
            if isinstance(subgraph, Pregel) and step is not None:
                missing |= self._asking_nodes(transaction, step) - subgraph.nodes.keys()
        if missing:
            raise Conflict(
                f"Nothing was run: what waits for the answer is the node {', '.join(sorted(missing))}, which this "
                "graph does not have; LangGraph would drop the answer. Answer with a graph that has it.",
                Next("undo"),
            )

    def _asking_nodes(self, transaction: Reading, step: GraphCheckpoint) -> set[str]:
        writes = [one for one in self.store.graphs.writes(transaction, step.key) if one.channel == INTERRUPT]
        asking = {one.task_path.removeprefix(_NODE_PATH) for one in writes if one.task_path.startswith(_NODE_PATH)}
        if len(asking) < len(writes) and (key := step.values.get(TASKS)) is not None:
            sends = self.saver.codec.decode(self.store.graphs.content(step.session_id).get(transaction, [key])[key])
            asking |= {one.node for one in sends if isinstance(one, Send)}
        return asking

    def reader(self) -> ThreadReader:
        """Return a saver that only reads the branch, for those who ask the graph for its saver."""

        def find(thread: str) -> SessionThreads | None:
            self.authorize_now()
            return SessionThreads(self.thread_id, [self.thread_id]) if thread == self.client_thread else None

        reader = ThreadReader(self.store, find)
        reader.channels = self.graph.channels
        return reader

    def open_questions(self) -> list[Interrupt]:
        """Read the questions that wait for an answer; what an imported checkpoint asks is never answered here."""
        with self.reading() as transaction:
            newest = self.store.graphs.newest(transaction, self.thread_id)
            return self.questions(transaction, newest) if newest is not None and not newest.is_imported else []

    def take_snapshot(self, reason: str) -> SnapshotRef | None:
        """Take a snapshot of the files of the workspace; return None if no workspace is attached."""
        return self.settings.workspace.take_snapshot(reason) if self.settings.workspace is not None else None
