"""Runs the turns of an exploration: one after the other, in threads, on an event loop, or on an executor."""

from __future__ import annotations

import asyncio
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from langchain_core.runnables.config import ContextThreadPoolExecutor

from agentgit.agents.explore.explorer import ExploredTurn, Explorer
from agentgit.agents.explore.job import Job, StoreAddress, run
from agentgit.agents.explore.turns import Outcome, arun_turn, run_turn
from agentgit.async_api import awaiting
from agentgit.errors import AgentGitError, InvalidInput, Unavailable
from agentgit.store.queries.explorations import branch_name
from agentgit.store.threads.graph_rows import is_shown
from agentgit.values import FAILURES, describe_error

T = TypeVar("T")

DEFAULT_CONCURRENCY = 8
"""The default number of turns that run at the same time."""


IN_FLIGHT = 64
"""The default number of turns that an executor has at the same time; more than this need not wait for each other."""

Factory = Callable[[str], Any]
"""A function that returns the compiled graph for a branch, given the name of the branch."""


@dataclass(frozen=True)
class Workers:
    """The processes that run the turns of an exploration."""

    executor: Executor
    factory: Factory

    @classmethod
    def parse(cls, executor: Executor | None, factory: Factory | None) -> Workers | None:
        """Return the workers for the arguments of `explore`; None if there is no executor."""
        if executor is None and factory is None:
            return None
        if not isinstance(executor, Executor):
            raise InvalidInput(
                "executor must be a concurrent.futures.Executor, like ProcessPoolExecutor(4) or the get_executor() of "
                f"a Dask client, not {executor!r}."
            )
        if not callable(factory):
            raise InvalidInput(
                "An executor builds the graph again in each process, with factory=FUNCTION, which takes the name of a "
                f"branch and returns a compiled graph. {factory!r} is not a function."
            )
        require_picklable(factory, "factory")
        return cls(executor, factory)


def run_exploration(explorer: Explorer, max_concurrency: int, workers: Workers | None = None) -> None:
    """Run the turns of an exploration."""
    with _note_on_error(explorer):
        if workers is not None:
            _run_on_workers(explorer, max_concurrency, workers, threading.Event())
            return
        for trials in explorer.walk():
            _run_all(explorer, trials, max_concurrency)


async def arun_exploration(explorer: Explorer, max_concurrency: int, workers: Workers | None = None) -> None:
    """Run the turns of an exploration, as `run_exploration`, on the event loop."""
    with _note_on_error(explorer), awaiting():
        if workers is not None:
            is_cancelled = threading.Event()
            try:
                await asyncio.to_thread(_run_on_workers, explorer, max_concurrency, workers, is_cancelled)
            finally:
                is_cancelled.set()
            return
        walk = explorer.walk()
        while (trials := await asyncio.to_thread(next, walk, None)) is not None:
            await _arun_all(explorer, trials, max_concurrency)


def parse_parallel(parallel: bool | int, workers: Workers | None = None) -> int:
    """Return how many turns may run at the same time."""
    if parallel < 0:
        raise InvalidInput(f"parallel must be 0 or more, not {parallel}.")
    if workers is not None and parallel in (True, False):
        return IN_FLIGHT
    return DEFAULT_CONCURRENCY if parallel is True else max(1, int(parallel))


@contextmanager
def _note_on_error(explorer: Explorer) -> Iterator[None]:
    """Add a note to an error that ends an exploration: where to find the results so far."""
    try:
        yield
    except BaseException as error:
        if explorer.is_begun:
            error.add_note(
                f"The results so far: agent.exploration({explorer.name!r}). "
                f"To continue, call the same explore(...) with name={explorer.name!r}."
            )
        raise


def _run_all(explorer: Explorer, trials: list[ExploredTurn], max_concurrency: int) -> None:
    def run(trial: ExploredTurn) -> None:
        trial.outcome = run_turn(explorer.runner_of(trial), trial.value, trial.config)

    if len(trials) == 1:
        run(trials[0])
        return
    with ContextThreadPoolExecutor(max_concurrency) as pool:
        list(pool.map(run, trials))


async def _arun_all(explorer: Explorer, trials: list[ExploredTurn], max_concurrency: int) -> None:
    semaphore = asyncio.Semaphore(max_concurrency)

    async def run(trial: ExploredTurn) -> None:
        async with semaphore:
            runner = await asyncio.to_thread(explorer.runner_of, trial)
            trial.outcome = await arun_turn(runner, trial.value, trial.config)

    await asyncio.gather(*map(run, trials))


# -- processes of an executor


def _run_on_workers(explorer: Explorer, in_flight: int, workers: Workers, is_cancelled: threading.Event) -> None:
    """Run the turns depth first, up to a number of them at the same time, and record each one as it ends."""
    submit = _submitter(explorer, workers)
    start_id = explorer.begin()
    running: dict[Future[Outcome], ExploredTurn] = {}
    waiting = [explorer.next_turns(start_id, ())]

    def record(trials: list[ExploredTurn]) -> None:
        explorer.record_turns(trials)
        for trial in trials:
            if trial.end_id is not None and not explorer.is_leaf(trial):
                waiting.append(explorer.next_turns(trial.end_id, trial.choices))

    try:
        while waiting or running:
            while waiting and len(running) < in_flight and not is_cancelled.is_set():
                trial = next(waiting[-1], None)
                if trial is None:
                    waiting.pop()
                elif trial.is_pending:
                    running[submit(trial)] = trial
                else:
                    record([trial])
            if is_cancelled.is_set():
                return
            ended = []
            for future in wait(running, timeout=1, return_when=FIRST_COMPLETED).done:
                trial = running.pop(future)
                trial.outcome = _result(future)
                ended.append(trial)
            record(ended)
    finally:
        for future in running:
            future.cancel()
    explorer.finish()


def _submitter(explorer: Explorer, workers: Workers) -> Callable[[ExploredTurn], Future[Outcome]]:
    """Return the function that sends a turn to a worker."""
    context, settings, graph = explorer.branch.context, explorer.settings, explorer.branch.graph
    address = StoreAddress.of(context)
    declared = {name: effect for name, effect in settings.effects.tools.items() if effect is not None}
    require_picklable(context.effects, "effects of agentgit.open")
    for variant in chain.from_iterable(explorer.variants):
        require_picklable(variant.graph_input, "input of a step")
        require_picklable(explorer.config_of(variant), "config")
    submit_to(workers.executor, os.getpid)  # an executor that was shut down is refused before a branch is created

    def submit(trial: ExploredTurn) -> Future[Outcome]:
        job = Job(
            address=address,
            coordinator=os.getpid(),
            session_id=explorer.branch.session_id,
            branch_id=trial.branch_id,
            branch_name=branch_name(str(explorer.name), trial.choices),
            is_new=trial.is_new,
            factory=workers.factory,
            state_channels=frozenset(filter(is_shown, graph.channels)),
            effects=declared,
            defaults=context.effects,
            interval=settings.checkpoint_interval,
            fence=settings.fence_mode,
            value=trial.value,
            config=trial.config,
        )
        return submit_to(workers.executor, run, job)

    return submit


def submit_to(executor: Executor, function: Callable[..., T], *args: Any) -> Future[T]:
    """Send a call to an executor."""
    try:
        return executor.submit(function, *args)
    except Exception as error:
        raise Unavailable(
            f"The executor takes no work, for example because it was shut down. {describe_error(error)}. What has "
            "ended is stored. Continue with a new executor."
        ) from error


def _result(future: Future[Outcome]) -> Outcome:
    try:
        return future.result()
    except AgentGitError:
        raise
    except FAILURES as error:
        raise Unavailable(
            f"The executor lost a turn, for example because its process was killed. {describe_error(error)}. What has "
            "ended is stored. Continue with a new executor."
        ) from error


def require_picklable(value: Any, what: str) -> None:
    """Check that a value can be sent to another process."""
    try:
        pickle.dumps(value)
    except Exception as error:
        raise InvalidInput(
            f"The {what} cannot be sent to another process. {describe_error(error)}. Use functions of a module, and "
            "values that can be pickled; leave callbacks out of a config."
        ) from error
