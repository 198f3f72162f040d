"""Reruns of many sessions: each in a branch of its own, here, in threads, or in processes of an executor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, as_completed
from contextlib import suppress
from contextvars import copy_context
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agentgit.agents.executors import StoreAddress, Workers, result_of, submit_to
from agentgit.agents.rerun.session import (
    RerunPlan,
    SessionOrBranch,
    arerun_session,
    refused_row,
    rerun_session,
    wrap_graph,
)
from agentgit.async_api import awaiting
from agentgit.checkpoints.queries import Hit
from agentgit.checkpoints.references import free_name, require_name
from agentgit.errors import AgentGitError, Conflict, InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.handles.session import Session
from agentgit.sessions.reports import OnProgress
from agentgit.sessions.rerun import RUNNING, RerunReport, Reruns, SessionRerun
from agentgit.store.queries.explorations import RerunMarks
from agentgit.values import FAILURES


class SessionReruns:
    """The reruns of many sessions."""

    def __init__(
        self,
        context: Context,
        sessions: Iterable[SessionOrBranch] | SessionOrBranch,
        plan: RerunPlan,
        executor: Executor | None,
        progress: OnProgress | None,
    ) -> None:
        is_one = isinstance(sessions, SessionOrBranch)
        if not is_one and not isinstance(sessions, Iterable):
            raise InvalidInput(f"sessions must be a session, or a list of sessions or their names, not {sessions!r}.")
        if progress is not None and not callable(progress):
            raise InvalidInput(f"progress must be a function, not {progress!r}.")
        self._context, self._progress, self._count = context, progress, 0
        self._refs = _branches_of_hits(context, [sessions] if is_one else sessions)  # type: ignore[arg-type]
        if not self._refs:
            raise InvalidInput("There are no sessions to run again. Name some of those that repo.sessions() lists.")
        marks = RerunMarks(context.store)
        if plan.name:
            require_name(plan.name, "branch")
            with suppress(NotFound):
                read_reruns(context, plan.name)
                raise Conflict(f"There are reruns named {plan.name!r} already. Choose another name.")
        else:
            time = datetime.now(UTC).strftime("rerun-%Y%m%d-%H%M%S")
            plan = replace(plan, name=free_name(time, context.read(lambda c: marks.names_like(c, time))))
        self.plan = plan
        self._wrapped = wrap_graph(context, plan, plan.graph) if plan.graph is not None else None
        self._submit = self._submitter(executor) if executor is not None else None

    def _submitter(self, executor: Executor) -> Callable[[Any], Future[SessionRerun]]:
        context, plan = self._context, self.plan
        if isinstance(executor, ThreadPoolExecutor):
            return lambda ref: submit_to(executor, copy_context().run, rerun_session, context, plan, ref, self._wrapped)
        if plan.factory is None and isinstance(executor, Executor):
            raise InvalidInput(
                "An executor builds the graph again in each process. Give factory=FUNCTION instead of graph; it takes "
                "the session and returns a compiled graph."
            )
        sent = ("factory", "judge", "tools", "on_miss", "effects", "config", "context")
        workers = Workers(context, executor, {name: getattr(plan, name) for name in sent})
        return lambda ref: workers.submit(
            "agentgit.agents.rerun.sessions:run_job", plan, ref.id if isinstance(ref, Session) else ref
        )

    def run(self) -> Reruns:
        if self._submit is None:
            rows = [self._ended(rerun_session(self._context, self.plan, ref, self._wrapped)) for ref in self._refs]
        else:
            rows = self._run_on_executor(self._submit)
        return Reruns(name=self.plan.name, rows=rows, is_judged=self.plan.judge is not None)

    async def arun(self) -> Reruns:
        with awaiting():
            if self._submit is not None:
                return await asyncio.to_thread(self.run)
            rows = [
                self._ended(await arerun_session(self._context, self.plan, ref, self._wrapped)) for ref in self._refs
            ]
        return Reruns(name=self.plan.name, rows=rows, is_judged=self.plan.judge is not None)

    def _ended(self, row: SessionRerun) -> SessionRerun:
        self._count += 1
        if self._progress is not None:
            self._progress(self._count, len(self._refs))
        return row

    def _run_on_executor(self, submit_job: Callable[[Any], Future[SessionRerun]]) -> list[SessionRerun]:
        numbers: dict[Future[SessionRerun], int] = {}
        rows: dict[int, SessionRerun] = {}
        try:
            for number, ref in enumerate(self._refs):
                try:
                    numbers[submit_job(ref)] = number
                except AgentGitError as error:  # the executor broke, for example because a process was killed
                    rows[number] = self._ended(refused_row(ref, error))
            for future in as_completed(numbers):
                number = numbers[future]
                rows[number] = self._ended(_row_of(future, self._refs[number]))
        finally:
            for future in numbers:
                future.cancel()
        return [row for _, row in sorted(rows.items())]


def _row_of(future: Future[SessionRerun], ref: Any) -> SessionRerun:
    try:
        row: SessionRerun = result_of(future)
    except FAILURES as error:  # the executor lost the session, for example because a process was killed
        return refused_row(ref, error)
    return row


def run_job(context: Context, _: StoreAddress, plan: RerunPlan, ref: Any) -> SessionRerun:
    return rerun_session(context, plan, ref)


def _branches_of_hits(context: Context, refs: Iterable[Any]) -> list[Any]:
    """Return sessions with each search hit replaced by the name of its branch, once for all hits on that branch."""

    def name_of(connection: Any, hit: Hit) -> str:
        session = context.lookup.session_of(connection, hit.checkpoint_id)
        if session is None:  # it was erased; the row of this name says so
            return hit.reference
        row = context.store.checkpoints.load(connection, hit.checkpoint_id)
        branch = context.lookup.branch(connection, session.id, row.internal_session_id)
        return f"{session.reference}@{branch.name}"

    found: list[Any] = []
    for ref in refs:
        named = context.read(partial(name_of, hit=ref)) if isinstance(ref, Hit) else ref
        if named is ref or named not in found:
            found.append(named)
    return found


def read_reruns(context: Context, name: str) -> Reruns:
    """Read the results of reruns that have run; see `Repository.reruns`."""

    def load(connection: Any) -> Reruns:
        rows, is_judged = [], False
        for branch, mark, report in RerunMarks(context.store).read(connection, name):
            session = context.lookup.find_visible(connection, branch.external_session_id)
            if session is None:
                continue
            is_judged = is_judged or bool(mark.get("judged"))
            rows.append(
                SessionRerun(
                    session=session.reference,
                    branch=branch.name,
                    status=mark["status"] if "judged" in mark else RUNNING,
                    verdict=mark.get("verdict"),
                    error=mark.get("error"),
                    report=RerunReport.from_dict(report) if report else None,
                )
            )
        if not rows:
            raise NotFound(f"There are no reruns named {name!r} here. The table of reruns begins with their name.")
        return Reruns(name=name, rows=rows, is_judged=is_judged)

    return context.read(load)
