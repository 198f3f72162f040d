"""The recorder: writes every tool call of one turn into the journal, as it really was.

It is a LangChain callback handler, so it sees tools wherever they are called from: a ToolNode, a subgraph, a task, a
tool that calls tools. `intended` is on disk before a tool runs, the outcome as soon as it ended.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import ToolException
from langgraph.errors import GraphBubbleUp, ParentCommand

from agentgit.agents.answers import as_recorded, handed_over
from agentgit.agents.attempts import Answer
from agentgit.agents.gate import Asked, Call, Gate
from agentgit.agents.outcomes import Outcomes
from agentgit.agents.questions import Questions
from agentgit.agents.refusals import unswallowed
from agentgit.errors import AgentGitError
from agentgit.spans import NOTHING, Traced, tool_span
from agentgit.store.journal import Intent, Outcome
from agentgit.tools.declared import recorded
from agentgit.tools.effects import READ_ONLY, Effect, declared_by_name
from agentgit.tools.identity import call_key
from agentgit.tools.invocation import DONE, FAILED, PAUSED, UNKNOWN
from agentgit.tools.running import running
from agentgit.values import portable, told

if TYPE_CHECKING:
    from agentgit.agents.turn import Turn


CLONE = "agentgit_clone"
"""What our copies of tools have in their metadata: they ask for an answer before they run."""


class Recorder(BaseCallbackHandler):
    """Records the tool calls of one turn.

    Args:
        turn: the turn.
        owner: its name, as it has taken the branch.
        batch: the number of the next batch.
        unfinished: if the turn goes on with calls that were never all answered, their AI message, its batch, their ids.
    """

    raise_error = True  # a call that cannot be recorded must not run
    ignore_chat_model = True  # else LangChain writes the whole conversation as text for it, at every call of a model

    def __init__(
        self, turn: Turn, owner: str, batch: int, unfinished: tuple[str, int, Sequence[str]] | None = None
    ) -> None:
        self.turn = turn
        self.branch = turn.branch
        self.owner = owner
        self.outcomes = Outcomes(turn)
        self.gate = Gate(turn, self.outcomes)
        self.questions = Questions(turn.agent.store, turn.branch, turn.agent.codec)
        self.effects = turn.agent.rules.effects
        self.unrecorded = turn.agent.rules.unrecorded
        self._numbers = itertools.count(batch)
        self._running: dict[UUID, Call] = {}
        self._parents: dict[UUID, UUID | None] = {}
        self._returned: dict[UUID, Any] = {}
        self._unrecorded: dict[UUID, int] = {}
        self._places: dict[str, tuple[str, int]] = {}  # tool call id -> its AI message, its index there
        self._batches: dict[str, int] = {}  # AI message -> its batch
        self._spans: dict[UUID, Traced] = {}
        self._shown: dict[UUID, tuple[str, list[Any]]] = {}  # run -> its task, the conversation that it was given
        if unfinished is not None:
            name, batch_of_it, calls = unfinished
            self._batches[name] = batch_of_it
            self._places.update((call, (name, index)) for index, call in enumerate(calls))
        self._lock = threading.Lock()

    # -- learning the order: which calls an AI message asked for

    def on_llm_end(self, response: Any, **_: Any) -> None:
        for generation in itertools.chain.from_iterable(response.generations):
            self._learn([getattr(generation, "message", None)], is_new=True)

    def on_chain_start(
        self, serialized: Any, inputs: Any, *, run_id: UUID, parent_run_id: UUID | None = None,
        metadata: dict[str, Any] | None = None, **_: Any,
    ) -> None:  # fmt: skip
        self._parents[run_id] = parent_run_id
        messages = _messages(inputs)
        if self._learn(messages):
            self._shown[run_id] = (_task_of(metadata), messages)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self._shown.pop(run_id, None)

    def _learn(self, messages: Sequence[Any], *, is_new: bool = False) -> bool:
        """Note the calls of the newest AI message among these, and number their batch in the order of the messages."""
        message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
        if message is None or not message.tool_calls:
            return False
        with self._lock:
            name = name_of(message.id, message.tool_calls)
            if is_new or name not in self._batches:  # some models give their calls the same ids every time
                self._batches[name] = next(self._numbers)
            for index, call in enumerate(message.tool_calls):
                self._places[call["id"] or ""] = (name, index)
        return True

    def batch_of(self, name: str) -> int | None:
        """Tell the batch of the calls that an AI message of this turn asked for; see `name_of`."""
        with self._lock:
            return self._batches.get(name)

    def batch_in(self, run_id: UUID) -> int:
        """Tell the batch that an unrecorded tool's run belongs to."""
        return self._unrecorded[run_id]

    # -- the calls

    def on_tool_start(
        self, serialized: Any, input_str: str, *, run_id: UUID, parent_run_id: UUID | None = None,
        inputs: dict[str, Any] | None = None, tool_call_id: str | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        self._parents[run_id] = parent_run_id
        name = (serialized or {}).get("name") or kwargs.get("name") or "tool"
        with self._lock:
            batch, index = self._place(tool_call_id, run_id, self._above(parent_run_id))
        if name in self.unrecorded:
            self._unrecorded[run_id] = batch
            return
        metadata = kwargs.get("metadata") or {}
        effect = self._effect_of(name, metadata)
        task = _task_of(metadata)
        place = self._asking(tool_call_id, parent_run_id, task) or task
        args = portable(inputs if inputs is not None else {"input": input_str})
        intent = Intent(
            session_id=self.branch.external_session_id,
            branch_id=self.branch.id,
            batch=batch,
            batch_index=index,
            tool_name=name,
            tool_call_id=tool_call_id,
            args=args,
            idempotency_key=call_key(self.branch.id, place, tool_call_id or str(run_id), name),
            owner=self.owner,
            started_at=datetime.now(UTC),
            **recorded(effect, name, self.effects.in_one_form(name, args), is_named=inputs is not None),
        )
        self._spans[run_id] = tool_span(
            name, self.turn.span, gen__ai_tool_call_id=tool_call_id, agentgit_effect=intent.effect
        )
        once, is_reachable = effect is not None and effect.once, metadata.get(CLONE) is True
        try:
            call = self._running[run_id] = self.gate.admit(Asked(intent, task, place, once, is_reachable))
            if call.answer is None and intent.effect != READ_ONLY:
                self._keep_files(run_id, name, args)
        except AgentGitError as error:
            self._spans.pop(run_id, NOTHING).end(error)
            raise unswallowed(error) from error.__cause__

    def _keep_files(self, run_id: UUID, name: str, args: Mapping[str, Any]) -> None:
        """Keep what a call is about to change; where that fails its tool does not run."""
        try:
            self.turn.files.before(name, args)
        except AgentGitError as error:
            self._failed(run_id, error, f"its tool was not run: {error}")
            raise

    def _effect_of(self, name: str, metadata: Any) -> Effect | None:
        """Tell what a tool does; of one that the graph does not show, its decorator's functions are kept for later."""
        far = declared_by_name(name) if name not in self.effects.tools else None
        if far is not None:
            self.turn.agent.repository.registry.declare(self.branch.external_session_id, name, far)
        return self.effects.get(name, metadata)

    def _asking(self, tool_call_id: str | None, run_id: UUID | None, task: str) -> str | None:
        """Name what asks for a call, if the task that makes the call was given it.

        That is the AI message, and how many answers to that id are there already: some models use ids again, and some
        programs whole messages. What other tasks were given does not count: they may not run again with this one.
        """
        while run_id is not None:
            of_task, messages = self._shown.get(run_id, ("", []))
            if of_task == task:
                message = next((m for m in reversed(messages) if isinstance(m, AIMessage)), None)
                if message is not None and any(call["id"] == tool_call_id for call in message.tool_calls):
                    answers = sum(isinstance(m, ToolMessage) and m.tool_call_id == tool_call_id for m in messages)
                    return f"{name_of(message.id, message.tool_calls)} {answers}"
            run_id = self._parents.get(run_id)
        return None

    def _place(self, tool_call_id: str | None, run_id: UUID, above: Intent | None) -> tuple[int, int]:
        """Tell the batch of a call and its place there."""
        if above is not None:
            return above.batch, above.batch_index  # a tool that was called by a tool belongs where that one is
        message, index = self._places.get(tool_call_id or "", (str(run_id), 0))
        if message not in self._batches:
            self._batches[message] = next(self._numbers)
        return self._batches[message], index

    def _above(self, run_id: UUID | None) -> Intent | None:
        """Find the tool call that a run is inside of, if it is inside of one."""
        while run_id is not None:
            if run_id in self._running:
                return self._running[run_id].intent
            run_id = self._parents.get(run_id)
        return None

    def answer(self, run_id: UUID) -> Answer | None:
        """Tell what a call gets instead of running its tool; None if it runs."""
        call = self._running.get(run_id)
        return call.answer if call is not None else None

    def has(self, run_id: UUID) -> bool:
        """Tell whether a call is running that this recorder records."""
        return run_id in self._running

    @contextmanager
    def known(self, run_id: UUID) -> Iterator[None]:
        """Let a call know its idempotency key and see the answers that are for it, until the block ends."""
        intent = self._running[run_id].intent
        call_id = intent.tool_call_id or str(run_id)
        with (
            running(intent.idempotency_key),
            self.questions.asking(run_id, call_id, intent.batch_index),
            self._spans.get(run_id, NOTHING).current(),
        ):
            yield

    def returned(self, run_id: UUID, value: Any) -> None:
        """Take what a tool really returned, before LangChain makes the text of a message of it."""
        self._returned[run_id] = value

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:
        if isinstance(output, ToolMessage) and output.status == "error":
            self._failed(run_id, ToolException(str(output.content)), str(output.content))
            return
        call, value = self._running.get(run_id), self._returned.get(run_id, _value(output))
        try:
            self._end(run_id, Outcome(status=DONE, result=as_recorded(value), ended_at=datetime.now(UTC)))
        finally:  # somebody may be waiting for it
            if call is not None and call.attempt is not None:
                call.attempt.end(call.answer.wait() if call.answer else value)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        if isinstance(error, ParentCommand):
            self._handed_over(run_id, error)
            return
        if isinstance(error, Exception) and (isinstance(error, AgentGitError) or not isinstance(error, GraphBubbleUp)):
            self._failed(run_id, error, told(error))
            return
        call, paused = self._running.get(run_id), isinstance(error, GraphBubbleUp)
        try:
            # What is no pause broke the call off (Ctrl-C), and nobody knows where.
            self._end(
                run_id, Outcome(status=PAUSED) if paused else Outcome(status=UNKNOWN, error=type(error).__name__), error
            )
        finally:
            self._over(call, error)

    def _handed_over(self, run_id: UUID, error: ParentCommand) -> None:
        """Record that a call ended by a command of a graph that it ran: it has done its work, and never comes again."""
        call = self._running.get(run_id)
        try:
            self._end(run_id, Outcome(status=DONE, result=handed_over(error), ended_at=datetime.now(UTC)))
        finally:
            self._over(call, error)

    def _failed(self, run_id: UUID, error: Exception, text: str) -> None:
        """Record that a call raised; it may have acted before that, and a tool that can look is asked."""
        self._spans.get(run_id, NOTHING).fail(type(error).__name__)
        call = self._running.get(run_id)
        try:
            looks = call is not None and self.gate.can_look(call)
            self._end(run_id, Outcome(status=UNKNOWN if looks else FAILED, error=text, ended_at=datetime.now(UTC)))
            if call is not None and looks:
                self.gate.look(call)
        finally:
            self._over(call, error)

    def cancelled(self, run_id: UUID, error: BaseException) -> None:
        """Take note of a call that was cancelled, of which LangChain tells nobody; its turn's end writes it down."""
        self._spans.pop(run_id, NOTHING).end(error)
        self._over(self._running.get(run_id), error)

    def _over(self, call: Call | None, error: BaseException) -> None:
        """Tell whoever waits for a call that it is over, if that is not known yet."""
        if call is not None and call.attempt is not None:
            call.attempt.fail(error, call.id)

    def _end(self, run_id: UUID, outcome: Outcome, error: BaseException | None = None) -> None:
        answers = self.questions.end(run_id, error)
        if answers is not None:
            outcome = replace(outcome, answers=answers)
        self._parents.pop(run_id, None)
        self._returned.pop(run_id, None)
        call = self._running.pop(run_id, None)
        if call is not None:
            self._end_span(run_id, call, outcome)
        batch = call.intent.batch if call is not None else self._unrecorded.pop(run_id, None)
        # An answer was written down when it was given.
        if call is not None and (call.answer is None or (outcome.status != DONE and call.id is not None)):
            self.outcomes.add(call, outcome)
        if batch is not None and all(other.intent.batch != batch for other in list(self._running.values())):
            self.turn.ended(batch)

    def _end_span(self, run_id: UUID, call: Call, outcome: Outcome) -> None:
        traced = self._spans.pop(run_id, NOTHING)
        traced.set(agentgit_call_status=outcome.status, agentgit_call_answered=call.answer is not None)
        traced.end()

    def end_spans(self) -> None:
        """End the spans of calls of which nobody told that they ended."""
        while self._spans:
            traced = self._spans.popitem()[1]
            traced.fail(UNKNOWN)
            traced.end()


def name_of(message_id: str | None, tool_calls: Sequence[Mapping[str, Any]]) -> str:
    """Name an AI message: by its id, or where it has none by its first tool call."""
    return message_id or (tool_calls[0]["id"] if tool_calls else None) or ""


def _messages(value: Any) -> list[Any]:
    """Find the messages in what a node got, oldest first."""
    if isinstance(value, Mapping):
        # A ToolNode that was sent one call gets it together with the state.
        inner = value.get("messages")
        return _messages(value.get("state") if inner is None else inner)
    if not isinstance(value, list):
        value = getattr(value, "messages", None)
    return value if isinstance(value, list) else []


def _task_of(metadata: Mapping[str, Any] | None) -> str:
    """Name the task that something runs in; a task that runs again has the same name, on a fork too."""
    return str((metadata or {}).get("langgraph_checkpoint_ns") or "")


def _value(output: Any) -> Any:
    """Read back from a message what a tool returned, where only the message is known."""
    if not isinstance(output, ToolMessage):
        return output
    if output.artifact is not None or not isinstance(output.content, str):
        return output.artifact if output.artifact is not None else output.content
    if output.content[:1] not in ("{", "["):
        return output.content  # a text that looks like a number may well be a text
    try:
        return json.loads(output.content)
    except ValueError:
        return output.content
