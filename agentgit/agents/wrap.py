"""Wrapping: from a user's graph to an agent on a branch, with every wrong argument refused before anything is made."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from langchain_core.tools import BaseTool
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.capture import tools_of
from agentgit.agents.checkpoint_tools import CHECKPOINT_TOOLS, is_ours
from agentgit.agents.defaults import bare_forms
from agentgit.agents.gate import FENCES
from agentgit.agents.import_langgraph import import_thread
from agentgit.agents.intervals import AutoCheckpoint, Interval
from agentgit.agents.tools import ByName, declared_of, forward
from agentgit.agents.turn import Rules
from agentgit.errors import InvalidInput
from agentgit.rollback.keeper import attached
from agentgit.store.lookup import Place
from agentgit.tools import Effect
from agentgit.tools.declared import Declared, as_effects
from agentgit.tools.registry import Registry

if TYPE_CHECKING:
    from pathlib import Path

    from agentgit.repository import Repository
    from agentgit.workspace.workspace import Workspace

Fence = Literal["replay", "raise", "off"]


def wrap(
    repository: Repository,
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
    template: Place | None = None,
) -> RollbackAgent:
    """Wrap a compiled graph; see `Repository.wrap`."""
    if isinstance(graph, StateGraph):
        raise InvalidInput("This graph is not compiled. Wrap graph.compile().")
    if not isinstance(graph, Pregel):
        raise InvalidInput(f"{type(graph).__name__} is no LangGraph graph; wrap what graph.compile() gives.")
    auto = Interval.read(auto_checkpoint)
    if fence not in FENCES:
        raise InvalidInput(f"fence={fence!r} means nothing; give {', '.join(map(repr, FENCES))}.")
    if thread_id is not None and template is not None:
        raise InvalidInput("A session begins as a thread or as a template, not as both; leave one of them out.")
    given = as_effects(effects)
    tools = _by_name(graph)
    # Where the tools cannot be seen, a name of ours is taken for ours, unless the user says what that tool does.
    ours = (
        frozenset(name for name in tools if all(map(is_ours, tools[name]))) if tools else CHECKPOINT_TOOLS - set(given)
    )
    theirs = {name: same for name, same in tools.items() if name not in ours}
    known = declared_of(theirs, given, repository.effects, check=check_effects)
    declared = Declared(known, repository.effects, bare_forms(theirs, known))
    keeper = None
    if workspace is not None:
        store = repository.store
        keeper = attached(workspace, holder=str(store.tenant_id), without=store.database.files)
    if thread_id is not None:
        import_thread(repository, graph, session, thread_id)
    found = repository.ensure_session(session, template)
    register(repository.registry, found.id, theirs, declared)
    if keeper is not None:
        repository.registry.attach(found.id, keeper)
        if template is not None:
            repository._bring_template_files(template, found)
    with repository.store.database.reading() as connection:
        row = repository.lookup.branch(connection, found, branch)
    rules = Rules(
        user_id=repository.user.id, effects=declared, unrecorded=ours, auto=auto, fence=fence,
        keeper=keeper,
    )  # fmt: skip
    agent = RollbackAgent(repository, graph, rules, row.id)
    repository.wrapped[found.id] = agent._on
    return agent


def _by_name(graph: Pregel[Any, Any, Any, Any]) -> ByName:
    tools: dict[str, list[BaseTool]] = {}
    for tool in tools_of(graph):
        tools.setdefault(tool.name, []).append(tool)
    return tools


def register(registry: Registry, session_id: int, tools: ByName, declared: Declared) -> None:
    """Remember what this process can do for calls of these tools."""
    for name, effect in declared.tools.items():
        if effect is not None:
            registry.declare(session_id, name, effect)
    for name, same in tools.items():
        registry.provide(session_id, name, forward(same))
