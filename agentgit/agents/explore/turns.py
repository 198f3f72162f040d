"""One turn of an exploration: how it runs, what is left of it after an interruption, and how it ended."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import RunnableConfig

from agentgit.agents.branch_runner import BranchRunner
from agentgit.store.queries.branch_heads import BranchHead
from agentgit.values import describe_error


@dataclass(frozen=True)
class Outcome:
    """The end of a turn."""

    error: str | None = None
    has_ended: bool = False
    checkpoint_id: int | None = None

    @classmethod
    def of(cls, runner: BranchRunner) -> Outcome:
        """Return the end of the last turn of a branch, which did not fail."""
        return cls(has_ended=not runner.get_state().next, checkpoint_id=runner._branch.end_checkpoint_id)

    @classmethod
    def of_error(cls, error: BaseException) -> Outcome:
        """Return the end of a turn that failed."""
        return cls(describe_error(error))


def run_turn(runner: BranchRunner, value: Any, config: RunnableConfig) -> Outcome:
    """Run a turn. An error of the graph is an outcome, because it is recorded with the branch."""
    try:
        runner.invoke(value, config)
    except Exception as error:  # noqa: BLE001  # whatever a graph raises
        return Outcome.of_error(error)
    return Outcome.of(runner)


async def arun_turn(runner: BranchRunner, value: Any, config: RunnableConfig) -> Outcome:
    """Run a turn, as `run_turn`."""
    try:
        await runner.ainvoke(value, config)
    except Exception as error:  # noqa: BLE001  # as in `run_turn`
        return Outcome.of_error(error)
    return await asyncio.to_thread(Outcome.of, runner)


def unfinished_input(runner: BranchRunner, head: BranchHead, value: Any) -> tuple[bool, Any]:
    """Return whether anything of a turn is left to run, and the input to run it with."""
    with runner._branch.reading() as connection:
        branch_point = runner._branch.store.checkpoints.load_row(connection, head.row.branch_point_id)
    if head.checkpoint_id == branch_point.graph_checkpoint_id:
        return True, value
    state = runner.get_state()
    return bool(state.next and not state.interrupts), None
