"""The calls of tools in one turn: each is one object, from the hook that opens it to its end.

A call is known by what runs and where: the tool object, the call whose tool made it, the task, and the arguments that
the tool got. The status `intended` is on disk before a tool that acts runs, and the outcome as soon as it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphBubbleUp, ParentCommand

from agentgit.agents.instrumentation import is_in_batch
from agentgit.agents.isolation import CURRENT
from agentgit.agents.tools.arguments import Arguments
from agentgit.agents.tools.recorded_results import as_recorded, handover_record, has_command, value_of
from agentgit.agents.turn.fence_errors import aborted_call_error, as_bubble_up, late_call_error
from agentgit.agents.turn.interrupts import Interrupts
from agentgit.agents.turn.requests import Batch, Requests
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.agents.turn.scopes import LocatedCall, ReportedRun, Scopes, TaskPlace, enclosing_name, scope_name
from agentgit.effects import ToolInvocation
from agentgit.effects.declarations import Declaration, record_fields
from agentgit.effects.effects import Effect
from agentgit.effects.invocation import DONE, FAILED, PAUSED, REPLAY, SIMULATED, UNKNOWN, idempotency_key_set
from agentgit.effects.kinds import READ_ONLY, WORKSPACE, kind_of
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.effects.results import NothingDone, returned_error
from agentgit.errors import AgentGitError
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.unit_of_work import RecordedCall
from agentgit.tracing import NO_SPAN, TracedSpan, tool_span
from agentgit.values import describe_error


def current_calls() -> Calls | None:
    """Return the calls of the turn that this context belongs to; None outside a turn."""
    current: tuple[Calls, Call | None] | None = CURRENT.get()
    return current[0] if current is not None else None


def current_call() -> Call | None:
    """Return the call whose tool runs in this context; None outside of a tool."""
    current: tuple[Calls, Call | None] | None = CURRENT.get()
    return current[1] if current is not None else None


@dataclass(frozen=True)
class InflightResult:
    """A result returned instead of running a tool; it may depend on another run of the same call that has not ended."""

    future: Future[Any]
    error: str | None = None

    @classmethod
    def of(cls, value: Any, error: str | None = None) -> InflightResult:
        """Create a result whose value is already known."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future, error)


@dataclass(eq=False, kw_only=True)
class Call(LocatedCall):
    """One call of a tool. Its arguments, and what follows from them, are known once it is open."""

    calls: Calls
    declaration: Declaration
    parent: Call | None
    tool_call_id: str | None
    arguments: Arguments = field(init=False)
    effect: Effect | None = field(init=False)
    caller_run_id: UUID | None = field(init=False)
    """The run of the task or the tool that makes the call."""
    is_requested: bool = field(init=False)
    """True if an AI message that its task received requests the call."""
    place: TaskPlace | None = field(init=False)
    is_recorded: bool = field(init=False)
    is_open: bool = False
    answer: InflightResult | None = None
    """The result that the call gets instead of running its tool."""
    is_simulated: bool = False
    has_begun: bool = False
    """True once the tool's function was entered."""
    error: BaseException | None = None
    """What the tool's function raised."""
    value: Any = None
    """What the tool's function returned."""
    has_returned: bool = False
    has_ended: bool = False
    span: TracedSpan = NO_SPAN
    result: InflightResult = field(default_factory=lambda: InflightResult(Future()))
    """The result that equal calls get."""
    is_aborted: bool = False
    """True if Ctrl-C ended the call at an unknown point."""
    _is_error: bool = False
    """True if the result is an error message that the tool returned."""

    def __post_init__(self) -> None:
        self.result.future.set_running_or_notify_cancel()  # a cancelled waiter must not cancel it

    def open(self, arguments: Arguments) -> None:
        """Open the call: record its intent if its tool will run, or take the answer from the record."""
        try:
            self.calls.open(self, arguments)
        except AgentGitError as error:
            raise as_bubble_up(error) from error.__cause__

    def unsaved_steps(self) -> Iterator[None]:
        """Iterate until the graph checkpoints before the call are saved, if the call acts on the world."""
        effect = self.declaration.effect if self.declaration.is_recorded else None
        if effect is not None and kind_of(effect.kind).is_exclusive:
            yield from self.calls.turn.checkpoint_tracker.unsaved(self.configurable)

    # -- what the interceptor asks

    @property
    def is_named(self) -> bool:
        """True if the AI message stays when the task runs again; in a subgraph, a model may be asked anew."""
        return self.is_requested and "|" not in self.task

    @property
    def call_id(self) -> str | None:
        """The id of the call, if it is the same every time."""
        return self.intent.tool_call_id if self.is_named else None

    @property
    def repeat_hash(self) -> str:
        """A hash that is equal for calls that may be the same one."""
        return self.arguments.repeat_hash(self.declaration.tool_name, self.effect)

    def is_equal(self, recorded: ToolInvocation | Intent, effect: Effect | None = None) -> bool:
        """Return whether another call had the same arguments."""
        is_equal = bool(recorded.identity) and recorded.identity == self.intent.identity
        return is_equal if self.arguments.hidden else self.arguments.equal(recorded.args, effect)

    @property
    def retry_key(self) -> tuple[str, str, int]:
        """The key that stays the same if LangGraph runs the call again in this turn."""
        return self.intent.idempotency_key, self.task, self.intent.batch if self.is_named else 0

    @property
    def is_once(self) -> bool:
        """True if the call may take effect only once in its session."""
        return self.effect is not None and self.effect.once

    @property
    def is_harmless(self) -> bool:
        """True if the call may run again when the record has no answer."""
        return not self.intent.effect.is_lasting and not self.is_once

    @property
    def outer_intents(self) -> list[Intent]:
        """The intents of the recorded calls whose tools run and contain this call, the outermost first."""
        if (parent := self.parent) is None:
            return []
        return parent.outer_intents + ([parent.intent] if parent.is_recorded and parent.answer is None else [])

    # -- as an attempt that an equal call of the same turn repeats

    @property
    def has_failed(self) -> bool:
        """True if the call raised, returned an error or was aborted: the next equal call is another attempt at it."""
        error = self.result.future.exception() if self.result.future.done() else None
        return self._is_error or (error is not None and not isinstance(error, ParentCommand))  # which hands over

    @property
    def has_only_written(self) -> bool:
        """True if the call ended without a command: what it wrote to the graph's state itself is lost with its task."""
        result = self.result.future
        return result.done() and not self.has_failed and result.exception() is None and not has_command(result.result())

    def settle(self, value: Any, *, is_error: bool = False) -> None:
        """Set the result that equal calls get."""
        if not self.result.future.done():
            self._is_error = is_error
            self.result.future.set_result(value)

    def fail(self, error: BaseException) -> None:
        """Set what equal calls raise."""
        if self.result.future.done():
            return
        self.is_aborted = not isinstance(error, Exception)
        self.result.future.set_exception(as_bubble_up(aborted_call_error(self.intent)) if self.is_aborted else error)

    # -- the run of the tool

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run the tool's function in the block, with the call's key, answers and span."""
        calls = self.calls
        if self.is_recorded:  # it may go on when the turn has ended
            calls.turn.context.registry.running_calls[self.intent.id] = calls.branch.id
        token = CURRENT.set((calls, self))
        try:
            with (
                idempotency_key_set(self.intent.idempotency_key if self.is_recorded else None),
                calls.interrupts.call_view(self),
                self.span.current(),
                self.observed(),
            ):
                yield
        finally:
            CURRENT.reset(token)

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Record that the block acts for the call, and the exception that it raises."""
        self.has_begun = True
        try:
            yield
        except BaseException as error:
            self.error = error
            if isinstance(error, NothingDone) and error.raised_by is None:
                error.raised_by = self
            raise

    def take_answer(self) -> InflightResult | None:
        """Return the result that the call gets instead of running its tool, and use up the numbers that it had used."""
        if self.answer is not None:
            self.calls.interrupts.use_numbers(self)
        return self.answer

    @property
    def may_have_acted(self) -> bool:
        """True if the tool was entered and its error does not prove that it did nothing."""
        if not self.has_begun or (isinstance(self.error, NothingDone) and self.error.raised_by is self):
            return False
        return self.effect is None or not isinstance(self.error, self.effect.failed_on)

    # -- the end

    def end(self, output: Any) -> None:
        """Record that the call has ended with an output, which may be what LangChain made of an error."""
        error = self.error if self.answer is None else self.answer.future.exception()
        if isinstance(error, Exception) or not (self.has_begun or self.answer):  # its arguments were not valid
            text = str(output.content if isinstance(output, ToolMessage) else output)
            self._end_failed(text, error if isinstance(error, Exception) else ToolException(text))
            return
        value = self.answer.future.result() if self.answer else self.value if self.has_returned else value_of(output)
        result = as_recorded(value)
        problem = returned_error(result)
        try:
            if problem is not None:
                self._end_failed(problem, result=result)
            else:
                self._end(DONE, result=result)
        finally:  # another run of the call may be waiting for it
            self.settle(value, is_error=problem is not None)

    def end_raised(self, error: BaseException) -> None:
        try:
            if isinstance(error, ParentCommand):  # it is done, and hands over to the graph that called this one
                self._end(DONE, result=handover_record(error))
            elif isinstance(error, Exception) and (
                isinstance(error, AgentGitError) or not isinstance(error, GraphBubbleUp)
            ):
                self._end_failed(describe_error(error), error)
            elif isinstance(error, GraphBubbleUp):
                self.calls.end(self, CallOutcome(status=PAUSED), error)
            elif isinstance(error, KeyboardInterrupt):  # aborted at an unknown point
                self.calls.end(self, CallOutcome(status=UNKNOWN, error=type(error).__name__), error)
            else:  # cancelled, or its thread ends with the process: the end of the turn writes it to the journal
                self.span.end(error)
                self.calls.turn.context.registry.running_calls.pop(self.intent.id, None)
        finally:
            self.fail(error)

    def _end_failed(self, text: str, error: Exception | None = None, result: Any = None) -> None:
        """Record that the call raised, or returned an error; if it may have acted, its `verify` function is asked."""
        self.span.fail(type(error or ToolException()).__name__)
        interceptor = self.calls.interceptor
        try:
            is_open = (
                self.is_recorded and self.may_have_acted and (not self.is_harmless or interceptor.has_verify(self))
            )
            self._end(UNKNOWN if is_open else FAILED, result=result, error=text)
            if is_open:
                interceptor.verify_call(self)
        finally:
            if error is not None:
                self.fail(error)

    def _end(self, status: str, **outcome: Any) -> None:
        self.calls.end(self, CallOutcome(status=status, ended_at=datetime.now(UTC), **outcome))


class Interceptor(Protocol):
    """The decisions about each call before its tool runs; see `agentgit.agents.turn.call_interceptor`."""

    is_simulated: bool
    """True if the turn is part of a rerun: no call reaches its tool unless the interceptor admits it."""

    def authorize(self, call: Call) -> None:
        """Admit a call, or answer it from the record."""

    def has_verify(self, call: Call) -> bool:
        """Return whether the tool of a call declares a `verify` function."""

    def verify_call(self, call: Call) -> None:
        """Verify a call that raised."""


class Calls:
    """The calls of one turn."""

    def __init__(
        self, turn: RunningTurn, owner: str, interceptor: Interceptor, next_batch: int, unfinished: Batch | None
    ) -> None:
        self.turn, self.owner, self.interceptor = turn, owner, interceptor
        settings, self.branch = turn.context.settings, turn.branch
        self.effects, self.workspace = settings.effects, settings.workspace
        self.scopes = Scopes(
            turn.checkpoint_tracker.graph_numbers, lambda *graph: self.interrupts.begin_parallel_graph(*graph)
        )
        self.requests = Requests(next_batch, unfinished, self.scopes)
        codec = turn.context.saver.codec
        self.interrupts = Interrupts(turn.context.store, turn.branch, codec, turn.unit_of_work, self.scopes)
        self.by_run: dict[UUID, Call] = {}
        """The calls that are being made, by the runs that LangChain makes of them."""
        self.has_calls = False
        """True if the turn has made a recorded call."""
        self.acted_count = 0
        """The number of calls of this turn that act, answered from the record or not."""

    # -- opening

    def new(
        self,
        tool: BaseTool | Declaration,
        run_id: UUID,
        parent_run_id: UUID | None,
        configurable: Mapping[str, Any],
        tool_call_id: str | None = None,
    ) -> Call:
        """Return the call of a tool that is about to run, or of a write to memory that is about to be made."""
        parent = (current_call() if current_calls() is self else None) or self.enclosing_call(parent_run_id)
        task = str(configurable.get(CONFIG_KEY_CHECKPOINT_NS) or "")
        outer_name, outer_task = (parent.intent.tool_name, parent.task) if parent is not None else (None, "")
        if isinstance(tool, BaseTool):
            try:
                tool = self.effects.declaration_of(tool, enclosing_name(outer_name, outer_task, task))
            except AgentGitError as error:
                raise as_bubble_up(error) from error.__cause__
        call = self.by_run[run_id] = Call(
            calls=self,
            declaration=tool,
            parent=parent,
            run_id=run_id,
            parent_run_id=parent_run_id,
            configurable=configurable,
            tool_call_id=tool_call_id,
            is_in_batch=is_in_batch(task),
        )
        return call

    def enclosing_call(self, run_id: UUID | None) -> Call | None:
        found = (self.by_run.get(run.id) for run in self.scopes.ancestors(run_id))
        return next((call for call in found if call is not None and call.is_open), None)

    def open(self, call: Call, arguments: Arguments) -> None:
        declaration = call.declaration
        if self.turn.has_ended:
            raise late_call_error(declaration.tool_name, arguments.values)
        self.scopes.begin(call.run_id, call.parent_run_id)
        caller = self.scopes.scoped(call.parent_run_id) or self.scopes.scoped(
            call.parent.run_id if call.parent else None
        )
        self._describe(call, arguments, caller)
        if call.is_recorded:
            self.has_calls = True
            call.span = tool_span(
                declaration.tool_name,
                self.turn.span,
                gen__ai_tool_call_id=call.tool_call_id,
                agentgit_effect=call.intent.effect,
            )
            try:
                self.interceptor.authorize(call)
            except AgentGitError as error:
                call.span.end(error)
                raise
            self.acted_count += not call.intent.effect.is_neutral
        call.is_open = True
        self.by_run[call.run_id] = call  # a cancelled caller has forgotten it
        self.scopes.begin_tool(call.run_id, caller, call)
        runs_tool = call.is_recorded and call.answer is None and not call.is_simulated
        if runs_tool and declaration.tool is not None:
            self.turn.context.registry.remember(call.intent.id, declaration)
        if runs_tool and not call.intent.effect.is_neutral and declaration.tool_name not in MEMORY_TOOLS:
            try:  # if what the call is about to change cannot be backed up, its tool does not run
                self.turn.files.back_up(declaration.tool_name, call.intent.effect, arguments.values)
            except AgentGitError as error:
                call._end_failed(f"its tool was not run: {error}", error)
                raise

    def _describe(self, call: Call, arguments: Arguments, caller: ReportedRun | None) -> None:
        """Set what follows from the arguments of a call and from the run that makes it."""
        declaration, parent, args = call.declaration, call.parent, arguments.values
        if parent is not None:  # it belongs where the call of the tool that makes it is
            batch, index = parent.intent.batch, parent.intent.batch_index
        else:
            batch, index = self.requests.position(call.tool_call_id, call.run_id)
        effect = declaration.effect_of(args, self._holds)
        is_file_effect = effect is not None and effect.kind == WORKSPACE and declaration.profile is None
        if is_file_effect and self.workspace is not None and not self.workspace.covers(args):
            effect = None
        acts = effect is None or not kind_of(effect.kind).is_neutral
        if acts and (call.tool_call_id or parent) is not None and declaration.tool_name not in MEMORY_TOOLS:
            self.turn.files.begin_batch(self.branch, batch)
        scope = caller.scope if caller is not None else scope_name(call.task)
        request_name = self.requests.name(call.tool_call_id, call.parent_run_id, call.task)
        call.arguments, call.effect = arguments, effect
        call.is_requested = call.tool_call_id is not None and (request_name is not None or call.is_in_batch)
        call.requester = (request_name or call.task) if call.is_named else scope
        call.caller_run_id, call.place = (caller.id, caller.place) if caller is not None else (None, None)
        call.is_recorded = declaration.is_recorded or self.interceptor.is_simulated
        call.intent = Intent(
            session_id=self.branch.external_session_id,
            branch_id=self.branch.id,
            batch=batch,
            batch_index=index,
            tool_name=declaration.tool_name,
            tool_call_id=call.tool_call_id,
            args=args,
            idempotency_key="",
            owner=self.owner,
            started_at=datetime.now(UTC),
            task=None if call.is_named else scope,
            parent_id=parent.intent.id if parent is not None and parent.is_recorded else None,
            tool_path=declaration.tool_path,
            enclosing=declaration.enclosing,
            **record_fields(effect, declaration.tool_name, arguments.identifying, **arguments.options),
        )

    def _holds(self, path: str) -> bool:
        return self.workspace is not None and self.workspace.holds(path)

    # -- the end

    @property
    def is_call_running(self) -> bool:
        """True if a call has no outcome yet."""
        return any(call.is_open and call.is_recorded for call in [*self.by_run.values()])

    def end(self, call: Call, outcome: CallOutcome, error: BaseException | None = None) -> None:
        """Record the outcome of a call, and forget the call."""
        if call.has_ended:
            return
        call.has_ended = True
        answers = self.interrupts.end(call, error)
        if answers is not None:
            outcome = replace(outcome, answers=answers)
            call.used_numbers = answers if answers["direct"] else None
        self.by_run.pop(call.run_id, None)
        call.span.set(agentgit_call_status=outcome.status, agentgit_call_answered=call.answer is not None)
        call.span.end()
        if call.is_recorded:
            try:
                self._record(call, outcome)
            finally:  # Ctrl-C can break off the write
                self.turn.context.registry.running_calls.pop(call.intent.id, None)

    def _record(self, call: Call, outcome: CallOutcome) -> None:
        if call.is_simulated:
            if not call.declaration.is_recorded:
                return
            if outcome.status != PAUSED:  # else it asked as it was recorded, and was not answered
                not_made = call.answer.error if call.answer is not None else None
                outcome = replace(outcome, status=SIMULATED, error=outcome.error or not_made)
            self._write(call, outcome)
        elif call.answer is None:
            self._write(call, outcome)
        elif outcome.status != DONE and call.intent.kind == REPLAY:  # the answer was written when it was given
            self._write(call, outcome, is_replay=True)

    def _write(self, call: Call, outcome: CallOutcome, *, is_replay: bool = False) -> None:
        """Write an outcome now, unless the call was read-only."""
        unit_of_work = self.turn.unit_of_work
        unit_of_work.add_call(RecordedCall(call.intent, outcome, call.outer_intents, is_replay))
        is_read = is_replay or call.is_simulated or call.intent.effect == READ_ONLY
        is_deferrable = is_read and outcome.status in (DONE, FAILED, SIMULATED) and outcome.answers is None
        # A checkpoint that is requested after this check does not matter: the request flushes the unit of work itself.
        if is_deferrable and not self.turn.counts_calls:
            return
        with suppress(AgentGitError):  # the tool has run, so its caller must not get an error; whoever writes next does
            unit_of_work.flush()

    def end_spans(self) -> None:
        for call in [*self.by_run.values()]:
            call.span.fail(UNKNOWN)
            call.span.end()
