"""Wrapping of a user's graph as an agent on a branch; wrong arguments are rejected before anything is created."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.tools import BaseTool
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.branch_context import AutoCheckpoint, Interval, TurnSettings
from agentgit.agents.checkpoint_tools import CHECKPOINT_TOOLS, is_checkpoint_tool
from agentgit.agents.importing.import_langgraph import import_thread
from agentgit.agents.instrumentation import referenced_tools, tools_of
from agentgit.agents.tools import ToolsByName, argument_normalizers, resolve_effects, tool_caller
from agentgit.agents.turn.call_interceptor import FENCE_MODES
from agentgit.agents.turn.tool_hook import intercept
from agentgit.effects import Effect
from agentgit.effects.declarations import ToolEffects, as_effects
from agentgit.effects.effects import declared_on
from agentgit.effects.plan import EXECUTE, RECORD
from agentgit.errors import InvalidInput
from agentgit.handles.context import Context
from agentgit.handles.templates import SessionFactory
from agentgit.rollback.workspace_adapter import attach_workspace
from agentgit.store.queries.lookup import CheckpointRef

if TYPE_CHECKING:
    from pathlib import Path

    from agentgit.workspace.api import Workspace

FenceMode = Literal["replay", "raise", "off"]


def wrap(
    context: Context,
    graph: Any,
    session: str,
    *,
    effects: Mapping[str, Effect | str] | None,
    auto_checkpoint: AutoCheckpoint,
    branch: str | None,
    check_effects: bool,
    fence: FenceMode = "replay",
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
    interval = Interval.read(auto_checkpoint)
    if fence not in FENCE_MODES:
        raise InvalidInput(
            f"fence must be {', '.join(map(repr, FENCE_MODES[:-1]))} or {FENCE_MODES[-1]!r}, not {fence!r}."
        )
    if thread_id is not None and template is not None:
        raise InvalidInput("A session starts from a thread or from a template, not from both; leave one of them out.")
    _require_replay(replay, template, force=force)
    user_effects = as_effects(effects)
    tools = _tools_by_name(graph)
    # If the graph does not list its tools, a tool with one of agentgit's names counts as agentgit's own, unless the
    # user declares its effect.
    own_tool_names = (
        frozenset(name for name in tools if all(map(is_checkpoint_tool, tools[name])))
        if tools
        else CHECKPOINT_TOOLS - set(user_effects)
    )
    user_tools = {name: same for name, same in tools.items() if name not in own_tool_names}
    effects_by_tool = resolve_effects(user_tools, user_effects, context.effects, check=check_effects)
    tool_effects = ToolEffects(effects_by_tool, context.effects, argument_normalizers(user_tools, effects_by_tool))
    adapter = None
    if workspace is not None:
        store = context.store
        adapter = attach_workspace(workspace, holder=str(store.tenant_id), excluded_paths=store.database.files)
    if thread_id is not None:
        import_thread(context, graph, session, thread_id)

    declared_effects = [(name, effect) for name, effect in effects_by_tool.items() if effect is not None]
    declared_effects += [
        (tool.name, own_effect)
        for tool in referenced_tools(graph)
        if tool.name not in effects_by_tool and (own_effect := declared_on(tool)) is not None
    ]
    runners = {name: tool_caller(namesakes) for name, namesakes in user_tools.items()}

    def register_tools(session_id: int) -> None:
        context.registry.declare(session_id, declared_effects, runners)

    factory = SessionFactory(context)
    external_session = factory.ensure(session, template, run=register_tools if replay == EXECUTE else None, force=force)
    register_tools(external_session.id)
    served = context.registry.session(external_session.id)
    context.registry.sessions.keep(external_session.id)
    if adapter is not None:
        served.workspace = adapter
        if template is not None:
            factory.restore_files(template, external_session)
    if template is not None and replay == EXECUTE:
        factory.run_calls(template, external_session, force=force)
    with context.store.database.reading() as connection:
        reloaded_session = context.lookup.session(
            connection, external_session.id
        )  # its current branch may have changed since
        branch_row = context.lookup.branch(connection, reloaded_session, branch)
    settings = TurnSettings(
        user_id=context.user.id,
        effects=tool_effects,
        unrecorded_tools=own_tool_names,
        checkpoint_interval=interval,
        fence_mode=fence,
        workspace=adapter,
    )
    intercept()
    # Not a method of the agent, which would keep its connections and caches.
    served.agent_factories[context] = lambda context, branch_id: RollbackAgent(context, graph, settings, branch_id)
    return RollbackAgent(context, graph, settings, branch_row.id)


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


def _tools_by_name(graph: Pregel[Any, Any, Any, Any]) -> ToolsByName:
    tools: dict[str, list[BaseTool]] = {}
    for tool in tools_of(graph):
        tools.setdefault(tool.name, []).append(tool)
    return tools
