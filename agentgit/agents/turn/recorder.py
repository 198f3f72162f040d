"""The recorder, which writes every tool call of one turn to the journal.

It is a LangChain callback handler, so it sees tools wherever they are called from: a ToolNode, a subgraph, a task, a
tool that calls tools. The status `intended` is on disk before a tool that acts on the world runs, and the outcome as
soon as it ends; `agentgit.store.unit_of_work` describes when read-only calls are written. Answers from the record and
the real return values of tools pass through `tool_hook`.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphBubbleUp, ParentCommand

from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.calls import (
    AdmittedCall,
    ExpectedCall,
    InflightResult,
    RequestedCall,
    Scopes,
    enclosing_name,
    scope_name,
)
from agentgit.agents.turn.fence_errors import as_bubble_up
from agentgit.agents.turn.interrupts import Interrupts, is_in_batch
from agentgit.agents.turn.model_calls import ModelCalls
from agentgit.agents.turn.recorded_results import as_recorded, handover_record, value_of
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects.declarations import Declaration, record_fields
from agentgit.effects.effects import NEUTRAL, UNSHARED, WORKSPACE, Effect
from agentgit.effects.invocation import DONE, FAILED, PAUSED, SIMULATED, UNKNOWN, idempotency_key_set, identity
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.effects.results import FunctionRun
from agentgit.errors import AgentGitError
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.unit_of_work import RecordedCall
from agentgit.tracing import NO_SPAN, TracedSpan, tool_span
from agentgit.values import describe_error, portable


def _is_worth_a_warning(record: logging.LogRecord) -> bool:
    """Return False for an error with which the recorder refuses a call, because the caller of the graph receives it."""
    is_ours = isinstance(record.args, tuple) and record.args[:1] == (Recorder.__name__,)
    return not (is_ours and isinstance(sys.exc_info()[1], AgentGitError))


# LangChain warns of every error in a callback, also if it raises it.
logging.getLogger("langchain_core.callbacks.manager").addFilter(_is_worth_a_warning)


class Recorder(BaseCallbackHandler):
    """Records the tool calls of one turn."""

    raise_error = True  # a call that cannot be recorded must not run

    def __init__(
        self, turn: RunningTurn, owner: str, batch: int, unfinished_batch: tuple[str, int, Sequence[str]] | None = None
    ) -> None:
        self.turn = turn
        self.branch = turn.branch
        self.owner = owner
        simulation = turn.context.settings.simulation
        self.interceptor: CallInterceptor = (simulation.create_interceptor if simulation else CallInterceptor)(turn)
        self.model_calls = ModelCalls(lambda: turn.context.saver.codec)
        self.interrupts = Interrupts(turn.context.store, turn.branch, turn.context.saver.codec)
        self.effects = turn.context.settings.effects
        self.workspace = turn.context.settings.workspace
        self.unrecorded_tools = turn.context.settings.unrecorded_tools
        self._batch_numbers = itertools.count(batch)
        self.has_calls = False
        """True if the turn has made a recorded call."""
        self.acted_count = 0
        """The number of calls of this turn that act, answered from the record or not."""
        self._function_runs: dict[UUID, FunctionRun] = {}
        self.scopes = Scopes(turn.checkpoint_tracker.graph_numbers)
        self._running: dict[UUID, AdmittedCall] = {}
        self._tasks: dict[UUID, str] = {}
        self._expected_calls: dict[UUID, ExpectedCall] = {}
        self._batch_runs: set[UUID] = set()
        self._return_values: dict[UUID, Any] = {}
        self._unrecorded_batches: dict[UUID, int] = {}
        self._message_positions: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._message_batches: dict[str, int] = {}  # AI message -> its batch
        self._spans: dict[UUID, TracedSpan] = {}
        self._conversations: dict[
            UUID, tuple[str, list[Any]]
        ] = {}  # run -> its task, the conversation that it received
        if unfinished_batch is not None:
            message, number, calls = unfinished_batch
            self._message_batches[message] = number
            self._message_positions.update((call, (message, index)) for index, call in enumerate(calls))
        self._lock = threading.Lock()

    # -- order of the calls: which ones an AI message requested

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        invocation_params: Any = None,
        **_: Any,
    ) -> None:
        self.interceptor.authorize_model()
        with self._lock:
            is_in_tool = self._enclosing_call(parent_run_id) is not None
        self.model_calls.begin(run_id, messages[0], invocation_params, is_in_tool=is_in_tool)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self.model_calls.discard(run_id)
        self.interceptor.on_model_error(error)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        self.model_calls.end(run_id, response)
        for generation in itertools.chain.from_iterable(response.generations):
            self._record_batch([getattr(generation, "message", None)], is_new=True)

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        self.scopes.begin(run_id, parent_run_id, metadata)
        messages = _input_messages(inputs)
        if self._record_batch(messages):
            self._conversations[run_id] = (_task_name(metadata), messages)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._conversations.pop(run_id, None)

    def _record_batch(self, messages: Sequence[Any], *, is_new: bool = False) -> bool:
        """Record the calls of the newest AI message and number their batch; return whether it has any calls."""
        message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
        if message is None or not message.tool_calls:
            return False
        with self._lock:
            name = message_name(message.id, message.tool_calls)
            if is_new or name not in self._message_batches:  # some models reuse the ids of calls
                self._message_batches[name] = next(self._batch_numbers)
            for index, call in enumerate(message.tool_calls):
                self._message_positions[call["id"] or ""] = (name, index)
        return True

    def batch_of(self, name: str) -> int | None:
        """Return the batch of the calls that an AI message of this turn requested; see `message_name`."""
        with self._lock:
            return self._message_batches.get(name)

    @property
    def is_call_running(self) -> bool:
        """True if a call has no outcome yet."""
        return bool(self._running)

    def batch_of_run(self, run_id: UUID) -> int:
        """Return the batch that the run of an unrecorded tool belongs to."""
        return self._unrecorded_batches[run_id]

    # -- the calls

    def register_call(
        self, run_id: UUID, tool: BaseTool, parent_run_id: UUID | None, configurable: Mapping[str, Any]
    ) -> None:
        """Register a call that a copy of its tool is about to make."""
        task = str(configurable.get(CONFIG_KEY_CHECKPOINT_NS) or "")
        with self._lock:
            caller = self._enclosing_run(parent_run_id)
            outer = (self._running[caller].intent.tool_name, self._tasks[caller]) if caller is not None else (None, "")
        try:
            declaration = self.effects.declaration_of(tool, enclosing_name(outer[0], outer[1], task))
        except AgentGitError as error:
            raise as_bubble_up(error) from error.__cause__
        effect = declaration.effect if declaration.is_recorded else None
        has_effect = effect is not None and effect.kind not in UNSHARED
        self._expected_calls[run_id] = ExpectedCall(
            parent_run_id, configurable, declaration, has_effect, is_in_batch(task)
        )

    def register_write(
        self, run_id: UUID, effect: Effect, parent_run_id: UUID | None, configurable: Mapping[str, Any]
    ) -> None:
        """Register a write to memory that is about to be made."""
        # A repeated write is recorded with the value before it, so it need not wait for the steps before it.
        declaration = Declaration("", effect)
        self._expected_calls[run_id] = ExpectedCall(
            parent_run_id, configurable, declaration, has_effect=False, is_in_batch=False
        )

    def recording_function(self, run_id: UUID) -> AbstractContextManager[None]:
        """Record that a call acts in the block, and the exception that it raises."""
        return self._function_runs[run_id].recording()

    def wait_for_saves(self, run_id: UUID) -> None:
        """Wait until the graph checkpoints before an expected call are saved, if the call acts on the world."""
        expected_call = self._expected_calls[run_id]
        if expected_call.has_effect:
            with self._discarding_on_error(run_id):
                self.turn.checkpoint_tracker.wait(
                    self.turn.checkpoint_tracker.required_keys(expected_call.configurable)
                )

    async def await_saves(self, run_id: UUID) -> None:
        """Wait like `wait_for_saves`, without blocking the event loop."""
        expected_call = self._expected_calls[run_id]
        if expected_call.has_effect:
            with self._discarding_on_error(run_id):
                await self.turn.checkpoint_tracker.await_saved(
                    self.turn.checkpoint_tracker.required_keys(expected_call.configurable)
                )

    @contextmanager
    def _discarding_on_error(self, run_id: UUID) -> Iterator[None]:
        try:
            yield
        except AgentGitError as error:
            del self._expected_calls[run_id]
            raise as_bubble_up(error) from error.__cause__

    def on_tool_start(
        self,
        serialized: Any,
        input_str: str,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None,
        tool_call_id: str | None = None,
        **kwargs: Any,
    ) -> None:
        name = (serialized or {}).get("name") or kwargs.get("name") or "tool"
        metadata = kwargs.get("metadata") or {}
        expected_call = self._expected_calls.pop(run_id, None)
        parent, task = (
            (expected_call.parent_run_id, expected_call.task)
            if expected_call
            else (parent_run_id, _task_name(metadata))
        )
        self.scopes.begin(run_id, parent, None)
        with self._lock:
            batch, index = self._batch_position(tool_call_id, run_id, self._enclosing_call(parent))
        is_own = not expected_call.declaration.is_recorded if expected_call else name in self.unrecorded_tools
        if is_own and not self.interceptor.is_simulated:
            self._unrecorded_batches[run_id] = batch
            return
        self.has_calls = True
        args = portable(inputs if inputs is not None else {"input": input_str})
        try:
            declaration = expected_call.declaration if expected_call else self.effects.declaration_named(name)
        except AgentGitError as error:
            raise as_bubble_up(error) from error.__cause__
        effect = declaration.effect_of(args, self._holds)
        is_file_effect = effect is not None and effect.kind == WORKSPACE and not declaration.is_profiled
        if is_file_effect and not self._covers(args):
            effect = None
        frame = self.scopes.frame(parent)
        request_name, scope = self._request_name(tool_call_id, parent, task), frame.scope if frame else scope_name(task)
        is_batched = expected_call is not None and expected_call.is_in_batch
        is_named = tool_call_id is not None and (request_name is not None or is_batched)
        normalized_args = declaration.normalize(args) if effect is not None and effect.has_identity else args
        intent = Intent(
            session_id=self.branch.external_session_id,
            branch_id=self.branch.id,
            batch=batch,
            batch_index=index,
            tool_name=name,
            tool_call_id=tool_call_id,
            args=args,
            idempotency_key="",
            owner=self.owner,
            started_at=datetime.now(UTC),
            task=None if is_named else scope,
            tool_path=declaration.tool_path,
            enclosing=declaration.enclosing,
            **record_fields(effect, name, normalized_args, is_named=inputs is not None),
        )
        identity_args = effect.identity_args if effect is not None and inputs is not None else None
        request = RequestedCall(
            intent,
            task,
            requester=(request_name or task) if is_named else scope,
            caller_run_id=frame.run_id if frame else None,
            repeat_hash=identity(name, normalized_args, identity_args),
            is_named=is_named,
            is_in_batch=is_batched,
            is_once=effect is not None and effect.once,
            is_reachable=expected_call is not None,
            place=frame.place if frame else None,
        )
        self._spans[run_id] = tool_span(
            name, self.turn.span, gen__ai_tool_call_id=tool_call_id, agentgit_effect=intent.effect
        )
        try:
            call = self._running[run_id] = self.interceptor.authorize(request)
            self._tasks[run_id] = task
            if call.id is not None and call.runs_tool:
                self.turn.context.registry.remember(call.id, declaration)
            if intent.effect not in NEUTRAL:
                self.acted_count += 1
            self.scopes.begin_tool(run_id, parent, call.scope, lambda: self.interrupts.graph_numbers(run_id))
            if is_batched:
                self._batch_runs.add(run_id)
            if call.runs_tool and intent.effect not in NEUTRAL and name not in MEMORY_TOOLS:
                self._back_up_files(run_id, declaration, args)
            self._function_runs[run_id] = FunctionRun(
                effect, is_seen=request.is_reachable, has_begun=not request.is_reachable
            )
        except AgentGitError as error:
            self._spans.pop(run_id, NO_SPAN).end(error)
            raise as_bubble_up(error) from error.__cause__

    def _back_up_files(self, run_id: UUID, declaration: Declaration, args: Mapping[str, Any]) -> None:
        """Back up what a call is about to change; if that fails, the tool does not run."""
        try:
            self.turn.files.back_up(declaration.tool_name, declaration.tool, args)
        except AgentGitError as error:
            self._record_failure(run_id, error, f"its tool was not run: {error}")
            raise

    def _covers(self, args: Mapping[str, Any]) -> bool:
        """Return whether the workspace has the files that a call names. Without one, no file is ever restored."""
        return self.workspace is None or self.workspace.covers(args)

    def _holds(self, path: str) -> bool:
        return self.workspace is not None and self.workspace.holds(path)

    def _request_name(self, tool_call_id: str | None, run_id: UUID | None, task: str) -> str | None:
        """Return a name for the request of a call, if the task that makes the call received its AI message.

        The name consists of the AI message and the number of answers that the call id already has, because some models
        reuse ids and some programs reuse whole messages. Messages that only other tasks received do not count: those
        tasks may not run again with this one.
        """
        while run_id is not None:
            receiving_task, messages = self._conversations.get(run_id, ("", []))
            if receiving_task == task:
                message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
                if message is not None and any(call["id"] == tool_call_id for call in message.tool_calls):
                    answer_count = sum(isinstance(m, ToolMessage) and m.tool_call_id == tool_call_id for m in messages)
                    return f"{message_name(message.id, message.tool_calls)} {answer_count}"
            run_id = self.scopes.parent_of(run_id)
        return None

    def _batch_position(self, tool_call_id: str | None, run_id: UUID, enclosing_call: Intent | None) -> tuple[int, int]:
        """Return the batch of a call and its position in the batch."""
        if enclosing_call is not None:
            return (
                enclosing_call.batch,
                enclosing_call.batch_index,
            )  # a call made by a tool belongs where that tool's call is
        message, index = self._message_positions.get(tool_call_id or "", (str(run_id), 0))
        if message not in self._message_batches:
            self._message_batches[message] = next(self._batch_numbers)
        return self._message_batches[message], index

    def _enclosing_call(self, run_id: UUID | None) -> Intent | None:
        """Return the tool call that contains a run; None if there is none."""
        caller = self._enclosing_run(run_id)
        return self._running[caller].intent if caller is not None else None

    def _enclosing_run(self, run_id: UUID | None) -> UUID | None:
        while run_id is not None and run_id not in self._running:
            run_id = self.scopes.parent_of(run_id)
        return run_id

    def answer(self, run_id: UUID) -> InflightResult | None:
        """Return the result that a call gets instead of running its tool; None if the tool runs."""
        call = self._running.get(run_id)
        if call is None or call.answer is None:
            return None
        self.interrupts.use_numbers(call.used_numbers)
        return call.answer

    @contextmanager
    def call_context(self, run_id: UUID) -> Iterator[None]:
        """Set the idempotency key, answers and span of a call for the code in the block."""
        if run_id not in self._running:  # a tool of agentgit itself
            yield
            return
        call = self._running[run_id]
        with (
            idempotency_key_set(call.intent.idempotency_key),
            self.interrupts.call_view(
                run_id, call.name, call.intent.batch_index if run_id in self._batch_runs else None
            ),
            self._spans.get(run_id, NO_SPAN).current(),
            self._function_runs[run_id].recording(),
        ):
            yield

    def record_thread(self, run_id: UUID) -> None:
        """Note that a call runs in a thread, which goes on if the turn is cancelled, until its outcome is recorded."""
        call = self._running.get(run_id)
        if call is not None and call.id is not None:
            self.turn.context.registry.running_calls[call.id] = self.branch.id

    def record_result(self, run_id: UUID, value: Any) -> None:
        """Record what a tool returned, before LangChain turns it into the text of a message."""
        if run_id in self._running:
            self._return_values[run_id] = value

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        function_run = self._function_runs.get(run_id)
        error = function_run.error if function_run is not None else None
        if isinstance(error, Exception) or (isinstance(output, ToolMessage) and output.status == "error"):
            text = str(output.content if isinstance(output, ToolMessage) else output)
            self._record_failure(run_id, error if isinstance(error, Exception) else ToolException(text), text)
            return
        call, value = self._running.get(run_id), self._return_values.get(run_id, value_of(output))
        try:
            self._end(run_id, CallOutcome(status=DONE, result=as_recorded(value), ended_at=datetime.now(UTC)))
        finally:  # another run of the call may be waiting for it
            if call is not None and call.attempt is not None:
                call.attempt.end(call.answer.wait() if call.answer else value)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if isinstance(error, ParentCommand):
            self._record_handover(run_id, error)
            return
        if isinstance(error, Exception) and (isinstance(error, AgentGitError) or not isinstance(error, GraphBubbleUp)):
            if (function_run := self._function_runs.get(run_id)) is not None and not function_run.is_seen:
                function_run.record_error(error, has_begun=True)
            self._record_failure(run_id, error, describe_error(error))
            return
        call, is_paused = self._running.get(run_id), isinstance(error, GraphBubbleUp)
        try:
            # Anything but a pause (such as Ctrl-C) aborted the call at an unknown point.
            self._end(
                run_id,
                CallOutcome(status=PAUSED) if is_paused else CallOutcome(status=UNKNOWN, error=type(error).__name__),
                error,
            )
        finally:
            self._fail_attempt(call, error)

    def _record_handover(self, run_id: UUID, error: ParentCommand) -> None:
        """Record a call that ended with a command for the calling graph: it is done and is not made again."""
        call = self._running.get(run_id)
        try:
            self._end(run_id, CallOutcome(status=DONE, result=handover_record(error), ended_at=datetime.now(UTC)))
        finally:
            self._fail_attempt(call, error)

    def _record_failure(self, run_id: UUID, error: Exception, text: str) -> None:
        """Record a call that raised; if it may have acted, the tool's `verify` function is asked."""
        self._spans.get(run_id, NO_SPAN).fail(type(error).__name__)
        call = self._running.get(run_id)
        try:
            is_open = call is not None and self._may_have_acted(run_id, call)
            self._end(
                run_id, CallOutcome(status=UNKNOWN if is_open else FAILED, error=text, ended_at=datetime.now(UTC))
            )
            if call is not None and is_open:
                self.interceptor.verify_call(call)
        finally:
            self._fail_attempt(call, error)

    def _may_have_acted(self, run_id: UUID, call: AdmittedCall) -> bool:
        """Return whether a call that raised is `unknown`: it may have acted, and that matters or can be verified."""
        function_run = self._function_runs.get(run_id)
        if function_run is None:  # its tool was never called
            return False
        return function_run.may_have_acted and (function_run.needs_outcome or self.interceptor.has_verify(call))

    def record_unreported(self, run_id: UUID, error: BaseException) -> None:
        """Record a call that ended with an error of which LangChain tells nobody, as when a result has no text."""
        call = self._running.get(run_id)
        if call is not None and isinstance(error, Exception):
            self.on_tool_error(error, run_id=run_id)
        elif call is not None and call.id is not None:  # its thread ends with the process, or dies
            self.turn.context.registry.running_calls.pop(call.id, None)

    def record_cancellation(self, run_id: UUID, error: BaseException) -> None:
        """Handle a cancelled call, which LangChain does not report; the end of the turn writes it to the journal."""
        self._spans.pop(run_id, NO_SPAN).end(error)
        self._fail_attempt(self._running.get(run_id), error)

    def _fail_attempt(self, call: AdmittedCall | None, error: BaseException) -> None:
        """Pass the error to whatever waits for the call, unless the call has already ended."""
        if call is not None and call.attempt is not None:
            call.attempt.fail(error, call.id)

    def _end(self, run_id: UUID, outcome: CallOutcome, error: BaseException | None = None) -> None:
        answers = self.interrupts.end(run_id, error)
        if answers is not None:
            outcome = replace(outcome, answers=answers)
        self.scopes.end_tool(run_id)
        self._return_values.pop(run_id, None)
        self._function_runs.pop(run_id, None)
        self._batch_runs.discard(run_id)
        call = self._running.pop(run_id, None)
        self._tasks.pop(run_id, None)
        if call is not None and call.attempt is not None and answers is not None and not answers["task"]:
            call.attempt.used_numbers = answers
        if call is not None:
            self._end_span(run_id, call, outcome)
        batch = call.intent.batch if call is not None else self._unrecorded_batches.pop(run_id, None)
        # An answer from the record was written when it was given.
        if call is not None and call.is_simulated:
            if call.intent.tool_name not in self.unrecorded_tools:
                if outcome.status != PAUSED:  # it asked as it was recorded, and was not answered
                    not_made = call.answer.error if call.answer is not None else None
                    outcome = replace(outcome, status=SIMULATED, error=outcome.error or not_made)
                self._record_outcome(call, outcome)
        elif call is not None and (call.answer is None or (outcome.status != DONE and call.id is not None)):
            self._record_outcome(call, outcome)
        if call is not None and call.id is not None:
            self.turn.context.registry.running_calls.pop(call.id, None)
        if call is not None and call.intent.tool_name in MEMORY_TOOLS:  # it changes no file
            return
        if batch is not None and all(other.intent.batch != batch for other in list(self._running.values())):
            self.turn.on_batch_ended(batch)

    def _record_outcome(self, call: AdmittedCall, outcome: CallOutcome) -> None:
        """Write an outcome now, unless the call was read-only."""
        unit_of_work = self.turn.unit_of_work
        unit_of_work.add_call(RecordedCall(call.id, call.intent, outcome, is_replay=call.answer is not None))
        is_deferrable = call.id is None and outcome.status in (DONE, FAILED, SIMULATED) and outcome.answers is None
        # A checkpoint that is requested after this check does not matter: the request flushes the unit of work itself.
        if is_deferrable and not self.turn.counts_calls:
            return
        with suppress(AgentGitError):  # the tool has run, so its caller must not get an error; whoever writes next does
            unit_of_work.flush()

    def _end_span(self, run_id: UUID, call: AdmittedCall, outcome: CallOutcome) -> None:
        span = self._spans.pop(run_id, NO_SPAN)
        span.set(agentgit_call_status=outcome.status, agentgit_call_answered=call.answer is not None)
        span.end()

    def end_spans(self) -> None:
        """End the spans of calls whose end was never reported."""
        while self._spans:
            span = self._spans.popitem()[1]
            span.fail(UNKNOWN)
            span.end()


def message_name(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an AI message: its id, or the id of its first tool call if it has none."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def _input_messages(value: Any) -> list[Any]:
    """Return the messages in the input of a node, oldest first."""
    if isinstance(value, Mapping):
        # A ToolNode that is sent a single call receives it together with the state.
        inner = value.get("messages")
        return _input_messages(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return value if isinstance(value, list) else []


def _task_name(metadata: Mapping[str, Any] | None) -> str:
    """Return the name of the task that something runs in; it stays the same when the task runs again or on a fork."""
    return str((metadata or {}).get("langgraph_checkpoint_ns") or "")
