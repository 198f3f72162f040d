"""The recorder, which writes every tool call of one turn to the journal.

It is a LangChain callback handler, so it sees tools wherever they are called from: a ToolNode, a subgraph, a task, a
tool that calls tools. The status `intended` is on disk before a tool that acts on the world runs, and the outcome as
soon as it ends; `outcome_buffer` describes when read-only calls are written. Answers from the record and the real
return values of tools pass through `tool_hook`.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.errors import GraphBubbleUp, ParentCommand

from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.calls import AdmittedCall, ExpectedCall, InflightResult, RequestedCall, Scopes, scope_of
from agentgit.agents.turn.fence_errors import as_bubbling
from agentgit.agents.turn.interrupts import Interrupts, is_in_batch
from agentgit.agents.turn.outcome_buffer import Outcomes
from agentgit.agents.turn.recorded_results import as_recorded, handover_record, value_of
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects.declarations import record_fields
from agentgit.effects.effects import READ_ONLY, Effect, declared_by_name, declared_on
from agentgit.effects.invocation import DONE, FAILED, PAUSED, UNKNOWN, idempotency_key_set, identity
from agentgit.effects.results import FunctionRun
from agentgit.errors import AgentGitError
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.tracing import NO_SPAN, TracedSpan, tool_span
from agentgit.values import describe_error, portable


class Recorder(BaseCallbackHandler):
    """Records the tool calls of one turn.

    Args:
        turn: The turn.
        owner: The name under which the turn holds the branch.
        batch: The number of the next batch.
        unfinished: If the turn continues with calls that were never all answered: the name of their AI message, its
            batch, and the ids of the calls.
    """

    raise_error = True  # a call that cannot be recorded must not run
    ignore_chat_model = True  # otherwise LangChain renders the whole conversation for it at every model call

    def __init__(
        self, turn: RunningTurn, owner: str, batch: int, unfinished: tuple[str, int, Sequence[str]] | None = None
    ) -> None:
        self.turn = turn
        self.branch = turn.branch
        self.owner = owner
        self.outcomes = Outcomes(turn)
        self.interceptor = CallInterceptor(turn, self.outcomes)
        self.interrupts = Interrupts(turn.context.store, turn.branch, turn.context.saver.codec)
        self.effects = turn.context.settings.effects
        self.unrecorded = turn.context.settings.unrecorded
        self._numbers = itertools.count(batch)
        self.acted: list[str] = []
        """The idempotency keys of this turn's calls that are not read-only, answered from the record or not."""
        self._bodies: dict[UUID, FunctionRun] = {}
        self.scopes = Scopes(turn.saves.graphs_of)
        self._running: dict[UUID, AdmittedCall] = {}
        self._expected: dict[UUID, ExpectedCall] = {}
        self._beside: set[UUID] = set()
        self._returned: dict[UUID, Any] = {}
        self._unrecorded: dict[UUID, int] = {}
        self._places: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> its batch
        self._spans: dict[UUID, TracedSpan] = {}
        self._shown: dict[UUID, tuple[str, list[Any]]] = {}  # run -> its task, the conversation that it received
        if unfinished is not None:
            name, batch_of_it, calls = unfinished
            self._batches[name] = batch_of_it
            self._places.update((call, (name, index)) for index, call in enumerate(calls))
        self._lock = threading.Lock()

    # -- order of the calls: which ones an AI message requested

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generation in itertools.chain.from_iterable(response.generations):
            self._learn([getattr(generation, "message", None)], is_new=True)

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
        messages = _messages(inputs)
        if self._learn(messages):
            self._shown[run_id] = (_task_of(metadata), messages)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._shown.pop(run_id, None)

    def _learn(self, messages: Sequence[Any], *, is_new: bool = False) -> bool:
        """Record the calls of the newest AI message and number their batch; return whether it has any calls."""
        message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
        if message is None or not message.tool_calls:
            return False
        with self._lock:
            name = name_of(message.id, message.tool_calls)
            if is_new or name not in self._batches:  # some models reuse the ids of calls
                self._batches[name] = next(self._numbers)
            for index, call in enumerate(message.tool_calls):
                self._places[call["id"] or ""] = (name, index)
        return True

    def batch_of(self, name: str) -> int | None:
        """Return the batch of the calls that an AI message of this turn requested; see `name_of`."""
        with self._lock:
            return self._batches.get(name)

    def batch_in(self, run_id: UUID) -> int:
        """Return the batch that the run of an unrecorded tool belongs to."""
        return self._unrecorded[run_id]

    # -- the calls

    def expect(self, run_id: UUID, tool: BaseTool, parent: UUID | None, conf: Mapping[str, Any]) -> None:
        """Register a call that a copy of its tool is about to make.

        Args:
            run_id: The run of the tool.
            tool: The tool.
            parent: The run that makes the call.
            conf: LangGraph's configuration of the task that makes the call.
        """
        is_recorded = tool.name not in self.unrecorded
        effect = self._effect_of(tool.name, tool.metadata, declared_on(tool)) if is_recorded else None
        acts = effect is not None and effect.kind != READ_ONLY
        task = str(conf.get(CONFIG_KEY_CHECKPOINT_NS) or "")
        self._expected[run_id] = ExpectedCall(parent, conf, effect, acts, is_in_batch(task))

    def wait_for_saves(self, run_id: UUID) -> None:
        """Wait until the graph checkpoints before an expected call are saved, if the call acts on the world.

        Raises:
            Unavailable: A checkpoint will not be saved.
        """
        calling = self._expected[run_id]
        if calling.acts:
            with self._refusing(run_id):
                self.turn.saves.wait(self.turn.saves.needed(calling.conf))

    async def await_saves(self, run_id: UUID) -> None:
        """Wait like `wait_for_saves`, without blocking the event loop."""
        calling = self._expected[run_id]
        if calling.acts:
            with self._refusing(run_id):
                await self.turn.saves.await_saved(self.turn.saves.needed(calling.conf))

    @contextmanager
    def _refusing(self, run_id: UUID) -> Iterator[None]:
        try:
            yield
        except AgentGitError as error:
            del self._expected[run_id]
            raise as_bubbling(error) from error.__cause__

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
        calling = self._expected.pop(run_id, None)
        parent, task = (calling.parent, calling.task) if calling else (parent_run_id, _task_of(metadata))
        self.scopes.begin(run_id, parent, None)
        with self._lock:
            batch, index = self._place(tool_call_id, run_id, self._enclosing_call(parent))
        if name in self.unrecorded:
            self._unrecorded[run_id] = batch
            return
        args = portable(inputs if inputs is not None else {"input": input_str})
        effect = calling.effect if calling else self._effect_of(name, metadata, declared_by_name(name))
        frame = self.scopes.frame(parent)
        asking, scope = self._asking(tool_call_id, parent, task), frame.scope if frame else scope_of(task)
        is_beside = calling is not None and calling.is_in_batch
        is_named = tool_call_id is not None and (asking is not None or is_beside)
        form = self.effects.normalize(name, args)
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
            **record_fields(effect, name, form, is_named=inputs is not None),
        )
        counted = effect.identity_args if effect is not None and inputs is not None else None
        asked = RequestedCall(
            intent,
            task,
            place=(asking or task) if is_named else scope,
            run=frame.run_id if frame else None,
            repeat_hash=identity(name, form, counted),
            is_named=is_named,
            is_in_batch=is_beside,
            once=effect is not None and effect.once,
            is_reachable=calling is not None,
        )
        self._spans[run_id] = tool_span(
            name, self.turn.span, gen__ai_tool_call_id=tool_call_id, agentgit_effect=intent.effect
        )
        try:
            call = self._running[run_id] = self.interceptor.authorize(asked)
            if intent.effect != READ_ONLY:
                self.acted.append(call.intent.idempotency_key)
            self.scopes.tool(run_id, parent, call.scope, lambda: self.interrupts.graphs(run_id))
            if is_beside:
                self._beside.add(run_id)
            if call.answer is None and intent.effect != READ_ONLY:
                self._keep_files(run_id, name, args)
            self._bodies[run_id] = FunctionRun(effect, is_seen=asked.is_reachable, has_begun=not asked.is_reachable)
        except AgentGitError as error:
            self._spans.pop(run_id, NO_SPAN).end(error)
            raise as_bubbling(error) from error.__cause__

    def _keep_files(self, run_id: UUID, name: str, args: Mapping[str, Any]) -> None:
        """Back up what a call is about to change; if that fails, the tool does not run."""
        try:
            self.turn.files.back_up(name, args)
        except AgentGitError as error:
            self._failed(run_id, error, f"its tool was not run: {error}")
            raise

    def _effect_of(self, name: str, metadata: Any, decorated: Effect | None) -> Effect | None:
        """Return the effect of a tool.

        If the graph does not list the tool, the functions of its decorator are registered for later.
        """
        if decorated is not None and name not in self.effects.tools:
            self.turn.context.registry.declare(self.branch.external_session_id, name, decorated)
        return self.effects.get(name, metadata, decorated)

    def _asking(self, tool_call_id: str | None, run_id: UUID | None, task: str) -> str | None:
        """Return a name for the request of a call, if the task that makes the call received its AI message.

        The name consists of the AI message and the number of answers that the call id already has, because some models
        reuse ids and some programs reuse whole messages. Messages that only other tasks received do not count: those
        tasks may not run again with this one.
        """
        while run_id is not None:
            of_task, messages = self._shown.get(run_id, ("", []))
            if of_task == task:
                message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
                if message is not None and any(call["id"] == tool_call_id for call in message.tool_calls):
                    answers = sum(isinstance(m, ToolMessage) and m.tool_call_id == tool_call_id for m in messages)
                    return f"{name_of(message.id, message.tool_calls)} {answers}"
            run_id = self.scopes.parent(run_id)
        return None

    def _place(self, tool_call_id: str | None, run_id: UUID, above: Intent | None) -> tuple[int, int]:
        """Return the batch of a call and its position in the batch."""
        if above is not None:
            return above.batch, above.batch_index  # a call made by a tool belongs where that tool's call is
        message, index = self._places.get(tool_call_id or "", (str(run_id), 0))
        if message not in self._batches:
            self._batches[message] = next(self._numbers)
        return self._batches[message], index

    def _enclosing_call(self, run_id: UUID | None) -> Intent | None:
        """Return the tool call that contains a run; None if there is none."""
        while run_id is not None:
            if run_id in self._running:
                return self._running[run_id].intent
            run_id = self.scopes.parent(run_id)
        return None

    def answer(self, run_id: UUID) -> InflightResult | None:
        """Return the result that a call gets instead of running its tool; None if the tool runs."""
        call = self._running.get(run_id)
        if call is None or call.answer is None:
            return None
        self.interrupts.use_numbers(call.used)
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
            self.interrupts.asking(run_id, call.name, call.intent.batch_index if run_id in self._beside else None),
            self._spans.get(run_id, NO_SPAN).current(),
            self._bodies[run_id].running(),
        ):
            yield

    def record_result(self, run_id: UUID, value: Any) -> None:
        """Record what a tool returned, before LangChain turns it into the text of a message."""
        if run_id in self._running:
            self._returned[run_id] = value

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        body = self._bodies.get(run_id)
        raised = body.error if body is not None else None
        if isinstance(raised, Exception) or (isinstance(output, ToolMessage) and output.status == "error"):
            text = str(output.content if isinstance(output, ToolMessage) else output)
            self._failed(run_id, raised if isinstance(raised, Exception) else ToolException(text), text)
            return
        call, value = self._running.get(run_id), self._returned.get(run_id, value_of(output))
        try:
            self._end(run_id, CallOutcome(status=DONE, result=as_recorded(value), ended_at=datetime.now(UTC)))
        finally:  # another run of the call may be waiting for it
            if call is not None and call.attempt is not None:
                call.attempt.end(call.answer.wait() if call.answer else value)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if isinstance(error, ParentCommand):
            self._handed_over(run_id, error)
            return
        if isinstance(error, Exception) and (isinstance(error, AgentGitError) or not isinstance(error, GraphBubbleUp)):
            if (body := self._bodies.get(run_id)) is not None and not body.is_seen:
                body.raised(error, has_begun=True)
            self._failed(run_id, error, describe_error(error))
            return
        call, paused = self._running.get(run_id), isinstance(error, GraphBubbleUp)
        try:
            # Anything but a pause (such as Ctrl-C) aborted the call at an unknown point.
            self._end(
                run_id,
                CallOutcome(status=PAUSED) if paused else CallOutcome(status=UNKNOWN, error=type(error).__name__),
                error,
            )
        finally:
            self._over(call, error)

    def _handed_over(self, run_id: UUID, error: ParentCommand) -> None:
        """Record a call that ended with a command for the calling graph: it is done and is not made again."""
        call = self._running.get(run_id)
        try:
            self._end(run_id, CallOutcome(status=DONE, result=handover_record(error), ended_at=datetime.now(UTC)))
        finally:
            self._over(call, error)

    def _failed(self, run_id: UUID, error: Exception, text: str) -> None:
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
            self._over(call, error)

    def _may_have_acted(self, run_id: UUID, call: AdmittedCall) -> bool:
        """Return whether a call that raised is `unknown`: it may have acted, and that matters or can be verified."""
        body = self._bodies.get(run_id)
        if body is None:  # its tool was never called
            return False
        return body.may_have_acted and (body.needs_outcome or self.interceptor.can_look(call))

    def cancelled(self, run_id: UUID, error: BaseException) -> None:
        """Handle a cancelled call, which LangChain does not report; the end of the turn writes it to the journal."""
        self._spans.pop(run_id, NO_SPAN).end(error)
        self._over(self._running.get(run_id), error)

    def _over(self, call: AdmittedCall | None, error: BaseException) -> None:
        """Pass the error to whatever waits for the call, unless the call has already ended."""
        if call is not None and call.attempt is not None:
            call.attempt.fail(error, call.id)

    def _end(self, run_id: UUID, outcome: CallOutcome, error: BaseException | None = None) -> None:
        answers = self.interrupts.end(run_id, error)
        if answers is not None:
            outcome = replace(outcome, answers=answers)
        self.scopes.end_tool(run_id)
        self._returned.pop(run_id, None)
        self._bodies.pop(run_id, None)
        self._beside.discard(run_id)
        call = self._running.pop(run_id, None)
        if call is not None and call.attempt is not None and answers is not None and not answers["task"]:
            call.attempt.used = answers
        if call is not None:
            self._end_span(run_id, call, outcome)
        batch = call.intent.batch if call is not None else self._unrecorded.pop(run_id, None)
        # An answer from the record was written when it was given.
        if call is not None and (call.answer is None or (outcome.status != DONE and call.id is not None)):
            self.outcomes.add(call, outcome)
        if batch is not None and all(other.intent.batch != batch for other in list(self._running.values())):
            self.turn.on_batch_ended(batch)

    def _end_span(self, run_id: UUID, call: AdmittedCall, outcome: CallOutcome) -> None:
        traced = self._spans.pop(run_id, NO_SPAN)
        traced.set(agentgit_call_status=outcome.status, agentgit_call_answered=call.answer is not None)
        traced.end()

    def end_spans(self) -> None:
        """End the spans of calls whose end was never reported."""
        while self._spans:
            traced = self._spans.popitem()[1]
            traced.fail(UNKNOWN)
            traced.end()


def name_of(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Return the name of an AI message: its id, or the id of its first tool call if it has none."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def _messages(value: Any) -> list[Any]:
    """Return the messages in the input of a node, oldest first."""
    if isinstance(value, Mapping):
        # A ToolNode that is sent a single call receives it together with the state.
        inner = value.get("messages")
        return _messages(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return value if isinstance(value, list) else []


def _task_of(metadata: Mapping[str, Any] | None) -> str:
    """Return the name of the task that something runs in; it stays the same when the task runs again or on a fork."""
    return str((metadata or {}).get("langgraph_checkpoint_ns") or "")
