"""Runs the turns of an exploration: one after the other, or together in threads, on a loop or on an executor."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from itertools import chain
from typing import Any

from langchain_core.runnables.config import ContextThreadPoolExecutor

from agentgit.agents.executors import Workers, require_picklable, result_of
from agentgit.agents.explore.explorer import ExploredTurn, Explorer
from agentgit.agents.explore.turns import Outcome, TurnJob, arun_turn, run_turn
from agentgit.async_api import awaiting
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next, Reason
from agentgit.store.queries.explorations import branch_name
from agentgit.store.threads.graph_rows import is_shown

DEFAULT_CONCURRENCY = 8
"""The default number of turns that run at the same time."""

IN_FLIGHT = 64
"""The default number of turns that an executor has at the same time; more than this need not wait for each other."""

Factory = Callable[[str], Any]
"""A function that returns the compiled graph for a branch, given the name of the branch."""

Submit = Callable[[ExploredTurn], Future[Outcome]]
"""A function that starts a turn."""


def run_exploration(explorer: Explorer, parallel: bool | int, executor: Executor | None, factory: Any) -> None:
    in_flight = _parse_parallel(parallel, executor)
    with _note_on_error(explorer):
        if executor is not None or factory is not None:
            _run_together(explorer, in_flight, _submit_to_workers(explorer, executor, factory), threading.Event())
        elif parallel:
            with ContextThreadPoolExecutor(in_flight) as pool:

                def submit(trial: ExploredTurn) -> Future[Outcome]:
                    return pool.submit(run_turn, explorer.runner_of(trial), trial.value, trial.config)

                _run_together(explorer, in_flight, submit, threading.Event())
        else:
            for trial in explorer.walk():
                trial.outcome = run_turn(explorer.runner_of(trial), trial.value, trial.config)


async def arun_exploration(explorer: Explorer, parallel: bool | int, executor: Executor | None, factory: Any) -> None:
    in_flight, loop = _parse_parallel(parallel, executor), asyncio.get_running_loop()

    def submit_to_loop(trial: ExploredTurn) -> Future[Outcome]:
        turn = arun_turn(explorer.runner_of(trial), trial.value, trial.config)
        return asyncio.run_coroutine_threadsafe(turn, loop)

    with _note_on_error(explorer), awaiting():
        has_workers = executor is not None or factory is not None
        if not (has_workers or parallel):
            walk = explorer.walk()
            while (trial := await asyncio.to_thread(next, walk, None)) is not None:
                runner = await asyncio.to_thread(explorer.runner_of, trial)
                trial.outcome = await arun_turn(runner, trial.value, trial.config)
            return
        submit = _submit_to_workers(explorer, executor, factory) if has_workers else submit_to_loop
        is_cancelled = threading.Event()
        try:
            await asyncio.to_thread(_run_together, explorer, in_flight, submit, is_cancelled)
        finally:
            is_cancelled.set()


def _parse_parallel(parallel: bool | int, executor: Executor | None) -> int:
    """Return how many turns may run at the same time."""
    if parallel < 0:
        raise InvalidInput(f"parallel must be 0 or more, not {parallel}.")
    if executor is not None and parallel in (True, False):
        return IN_FLIGHT
    return DEFAULT_CONCURRENCY if parallel is True else max(1, int(parallel))


@contextmanager
def _note_on_error(explorer: Explorer) -> Iterator[None]:
    """Add a note to an error that ends an exploration: where to find the results so far."""
    try:
        yield
    except BaseException as error:
        if explorer.is_begun:
            steps = (Next("show_exploration", name=explorer.name), Next("continue_exploration", name=explorer.name))
            error.add_note(Reason("What has ended is stored.", *steps))
        raise


def _run_together(explorer: Explorer, in_flight: int, submit: Submit, is_cancelled: threading.Event) -> None:
    """Run the turns depth first, up to a number of them at the same time, and record each one as it ends."""
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
                trial.outcome = result_of(future)
                ended.append(trial)
            record(ended)
    finally:
        for future in running:
            future.cancel()
    explorer.finish()


def _submit_to_workers(explorer: Explorer, executor: Executor | None, factory: Any) -> Submit:
    settings = explorer.settings
    if executor is not None and not callable(factory):
        raise InvalidInput(
            "An executor builds the graph again in each process, with factory=FUNCTION, which takes the name of a "
            f"branch and returns a compiled graph. {factory!r} is not a function."
        )
    for variant in chain.from_iterable(explorer.variants):
        require_picklable(variant.graph_input, "input of a step")
        require_picklable(explorer.config_of(variant), "config")
    workers = Workers(explorer.branch.context, executor, {"factory": factory})
    declared = {name: effect for name, effect in settings.effects.tools.items() if effect is not None}

    def submit(trial: ExploredTurn) -> Future[Outcome]:
        job = TurnJob(
            session_id=explorer.branch.session_id,
            branch_id=trial.branch_id,
            branch_name=branch_name(str(explorer.name), trial.choices),
            is_new=trial.is_new,
            factory=factory,
            state_channels=frozenset(filter(is_shown, explorer.branch.graph.channels)),
            effects=declared,
            interval=settings.checkpoint_interval,
            fence=settings.fence_mode,
            value=trial.value,
            config=trial.config,
        )
        return workers.submit("agentgit.agents.explore.worker:run_job", job)

    return submit
