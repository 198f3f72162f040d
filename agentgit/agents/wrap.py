"""Wrapping of a user's graph as an agent on a branch; wrong arguments are rejected before anything is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.tools import BaseTool
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.branch_context import AutoCheckpoint, Interval, TurnSettings
from agentgit.agents.checkpoint_tools import CHECKPOINT_TOOLS, is_ours
from agentgit.agents.importing.import_langgraph import import_thread
from agentgit.agents.instrumentation import referenced_tools, tools_of
from agentgit.agents.tools import ByName, argument_normalizers, declared_of, tool_caller
from agentgit.agents.turn.call_interceptor import FENCES
from agentgit.agents.turn.tool_hook import intercept
from agentgit.effects import Effect
from agentgit.effects.declarations import ToolEffects, as_effects
from agentgit.effects.effects import declared_on
from agentgit.effects.plan import EXECUTE, RECORD
from agentgit.effects.registry import Registry
from agentgit.errors import InvalidInput
from agentgit.handles.context import Context
from agentgit.handles.templates import SessionFactory
from agentgit.rollback.workspace_adapter import attached
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from pathlib import Path

    from agentgit.workspace.api import Workspace

Fence = Literal["replay", "raise", "off"]


def wrap(
    context: Context,
    graph: Any,
    session: str,
    *,
    effects: Mapping[str, Effect | str] | None,
    auto_checkpoint: AutoCheckpoint,
    branch: str | None,
    check_effects: bool,
    fence: Fence = "replay",
    workspace: str | Path | Workspace | None = None,
    thread_id: str | None = None,
    template: CheckpointRef | None = None,
    replay: str = RECORD,
    force: bool = False,
) -> RollbackAgent:
    """Wrap a compiled graph; see `Repository.wrap`."""
    if isinstance(graph, StateGraph):
        raise InvalidInput("This graph is not compiled. Wrap graph.compile().")
    if not isinstance(graph, Pregel):
        raise InvalidInput(f"{type(graph).__name__} is not a LangGraph graph; wrap what graph.compile() returns.")
    auto = Interval.read(auto_checkpoint)
    if fence not in FENCES:
        raise InvalidInput(f"fence must be {', '.join(map(repr, FENCES[:-1]))} or {FENCES[-1]!r}, not {fence!r}.")
    if thread_id is not None and template is not None:
        raise InvalidInput("A session starts from a thread or from a template, not from both; leave one of them out.")
    _require_replay(replay, template, force=force)
    given = as_effects(effects)
    tools = _by_name(graph)
    # If the graph does not list its tools, a tool with one of agentgit's names counts as agentgit's own, unless the
    # user declares its effect.
    ours = (
        frozenset(name for name in tools if all(map(is_ours, tools[name]))) if tools else CHECKPOINT_TOOLS - set(given)
    )
    theirs = {name: same for name, same in tools.items() if name not in ours}
    known = declared_of(theirs, given, context.effects, check=check_effects)
    declared = ToolEffects(known, context.effects, argument_normalizers(theirs, known))
    keeper = None
    if workspace is not None:
        store = context.store
        keeper = attached(workspace, holder=str(store.tenant_id), without=store.database.files)
    if thread_id is not None:
        import_thread(context, graph, session, thread_id)

    def provide(session_id: int) -> None:
        register(context.registry, session_id, theirs, declared)
        for tool in referenced_tools(graph):
            if tool.name not in declared.tools and (own := declared_on(tool)) is not None:
                context.registry.declare(session_id, tool.name, own)

    sessions = SessionFactory(context)
    found = sessions.ensure(session, template, run=provide if replay == EXECUTE else None, force=force)
    provide(found.id)
    if keeper is not None:
        context.registry.attach(found.id, keeper)
        if template is not None:
            sessions.bring_files(template, found)
    if template is not None and replay == EXECUTE:
        sessions.run_calls(template, found, force=force)
    with context.store.database.reading() as connection:
        now = context.lookup.session(connection, found.id)  # its current branch may have changed since
        row = context.lookup.branch(connection, now, branch)
    settings = TurnSettings(
        user_id=context.user.id,
        effects=declared,
        unrecorded=ours,
        auto=auto,
        fence=fence,
        workspace=keeper,
    )
    intercept()
    agent = RollbackAgent(context, graph, settings, row.id)
    context.wrapped[found.id] = agent.at
    return agent


def _require_replay(replay: str, template: CheckpointRef | None, *, force: bool) -> None:
    if replay not in (RECORD, EXECUTE):
        raise InvalidInput(f"replay must be 'record' or 'execute', not {replay!r}.")
    if replay == EXECUTE and template is None:
        raise InvalidInput(
            "replay='execute' makes the calls of a template again: give template='SESSION@CHECKPOINT' too. For "
            "an existing session, call agent.rollback(to, replay='execute')."
        )
    if force and replay != EXECUTE:
        raise InvalidInput("force applies only to replay='execute' here; leave it out.")


def _by_name(graph: Pregel[Any, Any, Any, Any]) -> ByName:
    tools: dict[str, list[BaseTool]] = {}
    for tool in tools_of(graph):
        tools.setdefault(tool.name, []).append(tool)
    return tools


def register(registry: Registry, session_id: int, tools: ByName, declared: ToolEffects) -> None:
    """Register the effects and functions that this process has for these tools."""
    for name, effect in declared.tools.items():
        if effect is not None:
            registry.declare(session_id, name, effect)
    for name, same in tools.items():
        registry.register_runner(session_id, name, tool_caller(same))
