"""One turn of an exploration in a process of an executor.

A turn that the process of an earlier job has begun continues where it stopped; one that has ended is left alone.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.executors import StoreAddress
from agentgit.agents.explore.turns import Outcome, TurnJob, require_parallel, run_turn, unfinished_input
from agentgit.agents.wrap import PreparedGraph
from agentgit.errors import Conflict, InvalidInput, Unavailable
from agentgit.handles.context import Context
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.sessions.session import RUNNING
from agentgit.store.queries.graph_points import BranchHead, read_branch_head
from agentgit.store.store import Store
from agentgit.values import FAILURES, describe_error

POLL_SECONDS = 0.2
"""The pause between two looks at a branch that another process holds."""

PATIENCE = 30.0
"""How long, in seconds after a lease, a job waits for a branch that another process holds."""


def run_job(context: Context, address: StoreAddress, job: TurnJob) -> Outcome:
    """Run one turn, or what is left of it; errors are plain text, because those of a graph may not be picklable."""
    try:
        agent, value, is_pending = _prepare(context, address.lease_seconds, job)
    except FAILURES as error:  # told to the coordinator, whatever a factory raises
        raise Unavailable(
            f"Branch {job.branch_name} could not begin in a process of the executor. {describe_error(error)}"
        ) from None
    return run_turn(agent, value, job.config) if is_pending else Outcome.of(agent)


def _prepare(context: Context, lease_seconds: float, job: TurnJob) -> tuple[RollbackAgent, Any, bool]:
    """Return the agent on the branch, the input, and whether there is anything left to run."""
    graph = job.factory(job.branch_name)
    wrapped = PreparedGraph(
        context,
        graph,
        effects=job.effects,
        check_effects=False,
        fence=job.fence,  # type: ignore[arg-type]  # the agent that explores has checked it
    )
    settings = replace(wrapped.settings, checkpoint_interval=job.interval)
    require_parallel(graph, settings)
    if missing := sorted(job.state_channels - graph.channels.keys()):
        raise InvalidInput(
            f"The state of the factory's graph has no {', '.join(missing)}, so the branch would lose it. The factory "
            "must return a graph with the state of the graph that explores."
        )
    wrapped.attach(job.session_id)
    head = _read_open_branch(context.store, lease_seconds, job)
    agent = RollbackAgent(context, graph, settings, head)
    if job.is_new and head.row.epoch == 0:  # no run has begun the turn
        return agent, job.value, True
    is_pending, value = unfinished_input(agent, head, job.value)
    return agent, value, is_pending


def _read_open_branch(store: Store, lease_seconds: float, job: TurnJob) -> BranchHead:
    """Read the branch. If a process has begun this turn, first wait until it ends it, or counts as dead."""
    deadline = time.monotonic() + lease_seconds + PATIENCE
    while True:
        with store.database.reading() as transaction:
            head = read_branch_head(store, transaction, job.branch_id)
            if head.row.status != RUNNING:
                return head
            is_abandoned = store.sessions.is_abandoned(transaction, head.row)
        if is_abandoned:
            recover_all_abandoned(store, job.session_id)
        elif time.monotonic() > deadline:
            raise Conflict("Another process still runs it. Wait until its turn has ended.")
        else:
            time.sleep(POLL_SECONDS)
