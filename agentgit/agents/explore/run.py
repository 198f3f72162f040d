"""Running an exploration: its turns one after the other, or several at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from langchain_core.runnables.config import ContextThreadPoolExecutor

from agentgit.agents.explore.explorer import ExploredTurn, Explorer
from agentgit.async_api import awaiting
from agentgit.errors import InvalidInput

AT_ONCE = 8
"""The default number of turns that run at the same time."""


def run_exploration(explorer: Explorer, at_once: int) -> None:
    """Run the turns of an exploration.

    Args:
        explorer: The exploration.
        at_once: The largest number of turns that run at the same time.
    """
    with _naming(explorer):
        for trials in explorer.walk():
            _run_all(trials, at_once)


async def arun_exploration(explorer: Explorer, at_once: int) -> None:
    """Run the turns of an exploration, as `run_exploration`, on the event loop."""
    with _naming(explorer), awaiting():
        walk = explorer.walk()
        while (trials := await asyncio.to_thread(next, walk, None)) is not None:
            await _arun_all(trials, at_once)


def turns_at_once(parallel: bool | int) -> int:
    """Return how many turns may run at the same time.

    Raises:
        InvalidInput: The number is negative.
    """
    if parallel < 0:
        raise InvalidInput(f"parallel={parallel} turns cannot run at the same time.")
    return AT_ONCE if parallel is True else max(1, int(parallel))


@contextmanager
def _naming(explorer: Explorer) -> Iterator[None]:
    """Add a note to an error that breaks off an exploration: where to find the part that was explored."""
    try:
        yield
    except BaseException as error:
        if explorer.is_begun:
            error.add_note(
                f"What was explored until now: agent.exploration({explorer.name!r}). "
                f"The same explore(...) with name={explorer.name!r} goes on."
            )
        raise


def _run_all(trials: list[ExploredTurn], at_once: int) -> None:
    if len(trials) == 1:
        _run(trials[0])
        return
    with ContextThreadPoolExecutor(at_once) as pool:
        list(pool.map(_run, trials))


def _run(trial: ExploredTurn) -> None:
    try:
        trial.agent.invoke(trial.value, trial.config)
    except Exception as error:  # noqa: BLE001  # whatever a graph raises is written down with its branch
        trial.error = error


async def _arun_all(trials: list[ExploredTurn], at_once: int) -> None:
    room = asyncio.Semaphore(at_once)

    async def run(trial: ExploredTurn) -> None:
        async with room:
            try:
                await trial.agent.ainvoke(trial.value, trial.config)
            except Exception as error:  # noqa: BLE001  # as in `_run`
                trial.error = error

    await asyncio.gather(*map(run, trials))
