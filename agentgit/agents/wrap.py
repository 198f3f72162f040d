"""Wrapping of a user's graph as an agent on a branch; wrong arguments are rejected before anything is created."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from langgraph.graph import StateGraph
from langgraph.store.base import BaseStore

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.branch_context import AutoCheckpoint, Interval, TurnSettings
from agentgit.agents.importing.import_langgraph import import_thread
from agentgit.agents.memory import as_memory, is_wrappable
from agentgit.agents.session_graph import is_plain
from agentgit.agents.tools.graph_tools import GraphTools
from agentgit.agents.tools.unanswered_calls import ON_UNANSWERED
from agentgit.agents.tools.unowned_calls import REFUSE, REPORT
from agentgit.agents.turn.call_interceptor import FENCE_MODES
from agentgit.agents.turn.tool_hook import intercept
from agentgit.effects import Effect
from agentgit.effects.declarations import Declaration, as_effects
from agentgit.effects.memory import MEMORY_TOOLS, Memory, require_declarable
from agentgit.effects.plan import EXECUTE, RECORD
from agentgit.effects.served_sessions import Declarations
from agentgit.errors import InvalidInput
from agentgit.handles.context import Context
from agentgit.handles.templates import SessionFactory
from agentgit.rollback.request import require_one_of
from agentgit.rollback.workspace_adapter import attach_workspace
from agentgit.saver.data_types import add_types
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from pathlib import Path

    from agentgit.workspace.api import Workspace

FenceMode = Literal["replay", "raise", "off"]
UnownedCalls = Literal["report", "refuse"]
OnUnanswered = Literal["answer", "undo", "raise"]


def wrap(
    wrapped: PreparedGraph,
    session: str,
    *,
    branch: str | None,
    thread_id: str | None,
    template: CheckpointRef | None,
    replay: str,
    force: bool,
) -> RollbackAgent:
    if thread_id is not None and template is not None:
        raise InvalidInput("A session starts from a thread or from a template, not from both; leave one of them out.")
    _require_replay(replay, template, force=force)
    context, graph = wrapped.context, wrapped.graph
    if thread_id is not None:
        import_thread(context, graph, session, thread_id)
    factory = SessionFactory(context)
    run = wrapped.declare if replay == EXECUTE else None
    external_session = factory.ensure(session, template, run=run, force=force)
    wrapped.attach(external_session.id)
    if wrapped.settings.workspace is not None and template is not None:
        factory.restore_files(template, external_session)
    if template is not None and replay == EXECUTE:
        factory.run_calls(template, external_session, force=force)
    with context.store.database.reading() as transaction:
        # Its current branch may have changed since.
        session_id = context.lookup.session(transaction, external_session.id).id
        branch_row = context.lookup.branch(transaction, session_id, branch)
    return RollbackAgent(context, graph, wrapped.settings, branch_row.id)


class PreparedGraph:
    """A graph with the effects of its tools and the settings of its turns, for any number of sessions."""

    def __init__(
        self,
        context: Context,
        graph: Any,
        *,
        effects: Mapping[Any, Effect | str] | None,
        auto_checkpoint: AutoCheckpoint = "turn",
        check_effects: bool,
        fence: FenceMode = "replay",
        workspace: str | Path | Workspace | None = None,
        store: BaseStore | None = None,
        unowned_calls: UnownedCalls = "report",
        on_unanswered: OnUnanswered = "answer",
    ) -> None:
        if isinstance(graph, StateGraph):
            raise InvalidInput("This graph is not compiled. Wrap graph.compile().")
        if not is_plain(graph):
            raise InvalidInput(
                f"{type(graph).__name__} is not a LangGraph graph of your own; wrap what graph.compile() returns."
            )
        interval = Interval.read(auto_checkpoint)
        require_one_of("fence", fence, FENCE_MODES)
        require_one_of("unowned_calls", unowned_calls, (REPORT, REFUSE))
        require_one_of("on_unanswered", on_unanswered, ON_UNANSWERED)
        graph = graph if store is None else graph.copy({"store": _require_store(store)})
        _warn_of_unknown_store(graph.store)
        memory_effects = {name: context.effects[name] for name in MEMORY_TOOLS & context.effects.keys()}
        user_effects = memory_effects | as_effects(effects)
        require_declarable(user_effects)
        adapter = None
        if workspace is not None:
            own_store = context.store
            holder = context.read(own_store.users.database_id)
            adapter = attach_workspace(workspace, holder=holder, excluded_paths=own_store.database.files)
        holds = adapter.holds if adapter is not None else lambda path: False
        tools = GraphTools(graph, user_effects, context.effects, holds, check=check_effects)
        add_types(*tools.hints)
        self.context, self.graph = context, graph
        self.user_id, self.name = context.user.id, str(graph.name)
        self.is_bare = not effects and workspace is None
        """True if the graph was given no effects and no workspace."""
        self.memory: Memory | None = as_memory(graph.store)
        """The store of the graph; None if it has none."""
        self.declarations: Sequence[Declaration] = tools.declarations
        self._declared = Declarations.of(tools.declarations, self.memory)
        self.settings = TurnSettings(
            user_id=context.user.id,
            effects=tools,
            checkpoint_interval=interval,
            fence_mode=fence,
            unowned_calls=unowned_calls,
            on_unanswered=on_unanswered,
            workspace=adapter,
        )
        intercept()

    def declare(self, session_id: int, store: Any = None) -> None:
        """Declare the tools of the graph, with their undo functions, and a store, by default its own, for a session."""
        declared = self._declared if store is None else replace(self._declared, memory=as_memory(store))
        self.context.registry.declare(session_id, declared)

    def attach(self, session_id: int, store: Any = None) -> None:
        """Make the tools, the workspace, the memory and agents of the graph available to a session in this process."""
        registry, graph, settings = self.context.registry, self.graph, self.settings
        served = registry.session(session_id)
        self.declare(session_id, store)
        if settings.workspace is not None:
            served.workspace = settings.workspace
        # Not a method of the agent, which would keep its connections and caches. What it records is its user's.
        served.agent_factories[self.context] = lambda context, branch_id: RollbackAgent(
            context, graph, replace(settings, user_id=context.user.id), branch_id
        )


def _require_store(store: Any) -> BaseStore:
    if not is_wrappable(store):
        raise InvalidInput(f"store must be a BaseStore of LangGraph, not {store!r}.")
    found: BaseStore = store
    return found


def _warn_of_unknown_store(store: Any) -> None:
    if store is not None and not is_wrappable(store):
        warnings.warn(
            f"The store of the graph, {type(store).__name__}, is not a BaseStore of LangGraph, so it is outside: what "
            "the graph writes to it is neither recorded nor undone.",
            stacklevel=2,
        )


def _require_replay(replay: str, template: CheckpointRef | None, *, force: bool) -> None:
    require_one_of("replay", replay, (RECORD, EXECUTE))
    if replay == EXECUTE and template is None:
        raise InvalidInput(
            "replay='execute' makes the calls of a template again: give template='SESSION@CHECKPOINT' too. For "
            "an existing session, call agent.rollback(to, replay='execute')."
        )
    if force and replay != EXECUTE:
        raise InvalidInput("force applies only to replay='execute' here; leave it out.")
