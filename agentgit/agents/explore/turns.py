"""One turn of an exploration: whether it may run beside others, how it runs, what is left of it, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgit.agents.branch_context import Graph, Interval, TurnSettings
from agentgit.agents.branch_graph import BranchGraph
from agentgit.agents.memory import is_wrappable
from agentgit.effects import Effect
from agentgit.effects.kinds import UNDECLARED, kind_of
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import InvalidInput
from agentgit.store.queries.graph_points import BranchHead
from agentgit.values import describe_error


def acting_tools(settings: TurnSettings) -> list[str]:
    """Return the names of the tools that change the world, and words for the tools that write files."""
    kinds = settings.effects.kinds()
    names = [name for name, kind in kinds.items() if kind != UNDECLARED and not kind_of(kind).is_neutral]
    return [*names, "those that write files"] if settings.workspace is not None else names


def require_parallel(graph: Graph, settings: TurnSettings) -> None:
    """Refuse to run branches at the same time if they would affect each other."""
    declared = settings.effects.tools
    shares_memory = is_wrappable(graph.store) and not all(declared.get(name) for name in MEMORY_TOOLS)
    writers = [*acting_tools(settings), *(["those that write to memory"] if shares_memory else [])]
    if writers:
        raise InvalidInput(
            f"These tools change the world: {', '.join(writers)}. Branches that run in parallel would affect "
            "each other. Leave parallel and executor out, so that they run one after the other, each in its own world."
        )


@dataclass(frozen=True)
class Outcome:
    """The end of a turn."""

    error: str | None = None
    has_ended: bool = False
    checkpoint_id: int | None = None

    @classmethod
    def of(cls, runner: BranchGraph) -> Outcome:
        """Return the end of the last turn of a branch, which did not fail."""
        return cls(has_ended=not runner.get_state().next, checkpoint_id=runner._branch.end_checkpoint_id)


def run_turn(runner: BranchGraph, value: Any, config: RunnableConfig) -> Outcome:
    """Run a turn. An error of the graph is an outcome, because it is recorded with the branch."""
    try:
        runner.invoke(value, config)
    except Exception as error:  # noqa: BLE001  # whatever a graph raises
        return Outcome(describe_error(error))
    return Outcome.of(runner)


async def arun_turn(runner: BranchGraph, value: Any, config: RunnableConfig) -> Outcome:
    try:
        await runner.ainvoke(value, config)
    except Exception as error:  # noqa: BLE001  # as in `run_turn`
        return Outcome(describe_error(error))
    return await asyncio.to_thread(Outcome.of, runner)


def unfinished_input(runner: BranchGraph, head: BranchHead, value: Any) -> tuple[bool, Any]:
    """Return whether anything of a turn is left to run, and the input to run it with."""
    with runner._branch.reading() as transaction:
        branch_point = runner._branch.store.checkpoints.load(transaction, head.row.branch_point_id)
    if head.checkpoint_id == branch_point.graph_checkpoint_id:
        return True, value
    return bool(runner.get_state().next and not runner._branch.open_questions()), None


@dataclass(frozen=True, kw_only=True)
class TurnJob:
    """One turn to run in another process."""

    session_id: int
    branch_id: int
    branch_name: str
    is_new: bool
    factory: Callable[[str], Any] = field(repr=False)
    state_channels: frozenset[str] = field(repr=False)
    effects: Mapping[str, Effect] = field(repr=False)
    interval: Interval = field(repr=False)
    fence: str = field(repr=False)
    value: Any = field(repr=False)
    config: RunnableConfig = field(repr=False)
