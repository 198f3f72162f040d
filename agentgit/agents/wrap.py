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
from agentgit.agents.import_langgraph import import_thread
from agentgit.agents.turn import OFF, TOOL, TURN, Rules
from agentgit.errors import InvalidInput
from agentgit.tools import Effect
from agentgit.tools.effects import as_effect, declared_on

if TYPE_CHECKING:
    from agentgit.repository import Repository

AutoCheckpoint = Literal["turn", "tool", "off"] | int


def wrap(
    repository: Repository,
    graph: Any,
    session: str,
    *,
    effects: Mapping[str, Effect | str],
    auto_checkpoint: AutoCheckpoint,
    branch: str | None,
    check_effects: bool,
    thread_id: str | None = None,
) -> RollbackAgent:
    """Wrap a compiled graph; see `Repository.wrap`."""
    if isinstance(graph, StateGraph):
        raise InvalidInput("This graph is not compiled. Wrap graph.compile().")
    if not isinstance(graph, Pregel):
        raise InvalidInput(f"{type(graph).__name__} is no LangGraph graph; wrap what graph.compile() gives.")
    _expect_interval(auto_checkpoint)
    if not isinstance(effects, Mapping):
        raise InvalidInput(f"effects={effects!r} is no mapping; write effects={{'tool name': effect}}.")
    tools = {tool.name: tool for tool in tools_of(graph)}
    declared = _declared(tools, effects, check=check_effects)
    if thread_id is not None:
        import_thread(repository, graph, session, thread_id)
    found = repository.ensure_session(session)
    for name, effect in declared.items():
        if effect.undo is not None:
            repository.declare(found.id, name, effect.undo)
    with repository.store.database.reading() as connection:
        row = repository.lookup.branch(connection, found, branch)
    # Where the tools cannot be seen, a name of ours is taken for ours, unless the user says what that tool does.
    ours = (
        frozenset(name for name, tool in tools.items() if is_ours(tool)) if tools else CHECKPOINT_TOOLS - set(effects)
    )
    rules = Rules(user_id=repository.user.id, effects=declared, unrecorded=ours, auto=auto_checkpoint)
    return RollbackAgent(repository, graph, rules, row.id)


def _expect_interval(auto: AutoCheckpoint) -> None:
    is_number = isinstance(auto, int) and not isinstance(auto, bool) and auto > 0
    if not is_number and auto not in (TURN, TOOL, OFF):
        raise InvalidInput(f"auto_checkpoint={auto!r} means nothing; give 'turn', 'tool', 'off' or a number of turns.")


def _declared(tools: Mapping[str, BaseTool], effects: Mapping[str, Effect | str], *, check: bool) -> dict[str, Effect]:
    """Join what the tools declare of themselves with what the user declares of them, which wins."""
    unknown = sorted(set(effects) - set(tools))
    if check and tools and unknown:
        raise InvalidInput(
            f"The graph has no tool {', '.join(unknown)}; it has {', '.join(sorted(tools))}. "
            "If a node calls it out of sight of the graph, say so: check_effects=False."
        )
    own = {name: effect for name, tool in tools.items() if (effect := declared_on(tool)) is not None}
    return own | {name: as_effect(effect) for name, effect in effects.items()}
