"""The rerun of one session, with its judge."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage

from agentgit.agents.agent import RollbackAgent
from agentgit.agents.branch_context import Graph
from agentgit.agents.rerun.rerun import Rerun, RerunOptions
from agentgit.agents.wrap import PreparedGraph
from agentgit.checkpoints.queries import Hit
from agentgit.errors import AgentGitError, InvalidInput, NotFound
from agentgit.handles.context import Context
from agentgit.handles.session import Session
from agentgit.rollback import awaiter_for_current_loop
from agentgit.rollback.verification import await_result, call_in_operation
from agentgit.sessions import ExternalSession
from agentgit.sessions.rerun import DONE, RerunReport, SessionRerun, Verdict
from agentgit.store.queries.explorations import RerunMarks
from agentgit.values import FAILURES, describe_error, portable

LOG = logging.getLogger("agentgit")

GraphFactory = Callable[[Session], Any]
"""A function that returns the compiled graph for a session, which may hold a `RecordedModel` of it."""

SessionOrBranch = Session | ExternalSession | Hit | str | int
"""A session, its name or id, text like `support-42@retry` for one of its branches, or a search hit on a branch."""


@dataclass(frozen=True)
class JudgedRerun:
    """A rerun, as a judge sees it.

    Args:
        session: The name of the session.
        report: The report of the rerun.
        agent: An agent on the branch of the rerun.
        recorded: An agent on the branch that was run again.
    """

    session: str
    report: RerunReport
    agent: RollbackAgent = field(repr=False)
    recorded: RollbackAgent = field(repr=False)

    @property
    def messages(self) -> list[BaseMessage]:
        """The messages of the rerun."""
        return self.agent.messages()

    @property
    def recorded_messages(self) -> list[BaseMessage]:
        """The messages that were recorded."""
        return self.recorded.messages()

    @property
    def state(self) -> dict[str, Any]:
        """The state of the graph at the end of the rerun."""
        return self.agent.state

    @property
    def recorded_state(self) -> dict[str, Any]:
        """The state of the graph at the end of the recorded branch."""
        return self.recorded.state


Judge = Callable[[JudgedRerun], Verdict | Awaitable[Verdict]]
"""A function that rates a rerun: whether it passes, a score where higher is better, or a word."""


@dataclass(frozen=True, kw_only=True)
class RerunPlan(RerunOptions):
    """The settings that all sessions share."""

    graph: Graph | None
    factory: GraphFactory | None
    name: str = ""
    judge: Judge | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.graph is None) == (self.factory is None):
            raise InvalidInput("Give the graph to run, graph=GRAPH, or a function that builds it, factory=FUNCTION.")
        for name, function in (("factory", self.factory), ("judge", self.judge)):
            if function is not None and not callable(function):
                raise InvalidInput(f"{name} must be a function, not {function!r}.")


def wrap_graph(context: Context, plan: RerunPlan, graph: Any) -> PreparedGraph:
    """Return a graph with the effects of its tools."""
    return PreparedGraph(context, graph, effects=plan.effects, check_effects=False)


def rerun_session(context: Context, plan: RerunPlan, ref: Any, wrapped: PreparedGraph | None = None) -> SessionRerun:
    """Run one session again. Whatever goes wrong is in the row, because the other sessions go on."""
    try:
        one = OneRerun(context, plan, ref, wrapped)
    except FAILURES as error:  # whatever a factory raises, or is wrong with the session
        return refused_row(ref, error)
    try:
        one.rerun.run()
    except FAILURES as error:  # the report has it, unless it could not be written
        return one.finish(error)
    return one.finish()


async def arerun_session(
    context: Context, plan: RerunPlan, ref: Any, wrapped: PreparedGraph | None = None
) -> SessionRerun:
    """Run one session again, as `rerun_session`."""
    try:
        one = await asyncio.to_thread(OneRerun, context, plan, ref, wrapped)
    except FAILURES as error:  # as in `rerun_session`
        return refused_row(ref, error)
    try:
        await one.rerun.arun()
    except FAILURES as error:  # as in `rerun_session`
        return await asyncio.to_thread(one.finish, error)
    return await asyncio.to_thread(one.finish)


class OneRerun:
    """The rerun of one session, with its branch."""

    def __init__(self, context: Context, plan: RerunPlan, ref: Any, wrapped: PreparedGraph | None = None) -> None:
        self._context, self._plan = context, plan
        session, branch_id = find_branch(context, ref)
        self._name = session.reference
        if wrapped is None:
            wrapped = wrap_graph(context, plan, plan.graph if plan.factory is None else plan.factory(session))
        self._recorded = RollbackAgent(context, wrapped.graph, wrapped.settings, branch_id)
        self.rerun = Rerun(self._recorded._branch, wrapped.graph, plan, group=plan.name or None)

    def agent(self) -> RollbackAgent:
        """Return an agent on the branch of the rerun."""
        return RollbackAgent(self._context, self.rerun.graph, self.rerun.settings, self.rerun.branch_id)

    def judged(self, agent: RollbackAgent, report: RerunReport) -> JudgedRerun:
        """Return the rerun, as a judge sees it."""
        return JudgedRerun(self._name, report, agent, self._recorded)

    def finish(self, error: Exception | SystemExit | None = None) -> SessionRerun:
        """Judge the rerun, store the verdict, and return the row."""
        try:
            agent = self.agent()
            report = agent.report
            if not isinstance(report, RerunReport):
                reason = describe_error(error) if error is not None else "The rerun has no report."
                return SessionRerun(session=self._name, branch=agent.branch.name, status="failed", error=reason)
            verdict, problem = self._judge(agent, report)
            row = SessionRerun(
                session=self._name,
                branch=report.branch,
                status=report.status,
                verdict=verdict,
                error=report.reason or problem or self._lacking(report),
                report=report,
            )
            mark = {"verdict": verdict, "error": row.error, "judged": self._plan.judge is not None}
            marks, branch_id = RerunMarks(self._context.store), self.rerun.branch_id
            self._context.store.database.write(lambda c: marks.update(c, branch_id, mark), durable=True)
        except Exception as failure:  # noqa: BLE001  # such as a damaged state; the other sessions go on
            return SessionRerun(session=self._name, error=describe_error(failure))
        return row

    def _judge(self, agent: RollbackAgent, report: RerunReport) -> tuple[Verdict | None, str | None]:
        """Return the verdict, and why there is none."""
        if self._plan.judge is None or report.status != DONE:
            return None, None
        try:
            judged = call_in_operation(self._plan.judge, self.judged(agent, report))
            verdict = await_result(awaiter_for_current_loop(), judged)
        except FAILURES as error:  # whatever a judge raises
            LOG.warning("The judge of the rerun of session %s raised", self._name, exc_info=error)
            return None, f"The judge raised {describe_error(error)}"
        if isinstance(verdict, bool):
            return verdict, None
        if isinstance(verdict, str):
            return str.__str__(verdict), None  # without the class of an enumeration
        try:
            number = float(verdict)
        except Exception:  # noqa: BLE001  # a number that is too large, or whatever an object of the user raises
            number = math.nan
        if not math.isfinite(number):
            return None, f"The judge must return a bool, a number or a string, not {portable(verdict)!r:.200}."
        return number, None

    def _lacking(self, report: RerunReport) -> str | None:
        """Return which recorded tools the graph does not have and did not call."""
        lacking = {call.tool_name for call in report.not_made} - self._recorded.effects.keys()
        return f"The graph has no {', '.join(sorted(lacking))}." if lacking else None


def find_branch(context: Context, ref: Any) -> tuple[Session, int]:
    """Find a session and the branch to run again, which is the current one if the reference names none."""
    if isinstance(ref, bool) or not isinstance(ref, Session | ExternalSession | str | int):
        raise InvalidInput(f"A session is named by its name or id, not {ref!r}.")
    ref = ref.id if isinstance(ref, Session) else ref

    def find(connection: Any, reference: Any, branch: str | None = None) -> tuple[int, int]:
        found = context.lookup.session(connection, reference)
        return found.id, context.lookup.branch(connection, found.id, branch).id

    try:
        session_id, branch_id = context.read(lambda c: find(c, ref))
    except NotFound:
        if not isinstance(ref, str) or "@" not in ref:
            raise
        name, _, branch = ref.rpartition("@")
        session_id, branch_id = context.read(lambda c: find(c, name, branch))
    return Session(context, session_id), branch_id


def refused_row(ref: Any, error: BaseException) -> SessionRerun:
    """Return the row of a session that could not be run again."""
    name = str(getattr(ref, "id", ref))
    if isinstance(ref, Session | ExternalSession):
        with suppress(AgentGitError):  # it was erased, or is damaged
            name = ref.reference
    return SessionRerun(session=name, error=describe_error(error))
