"""The answers of a rerun to the calls of its tools: from the record, from a policy of the caller, or none."""

from __future__ import annotations

import ast
import builtins
import itertools
import json
import threading
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import ToolException
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt

from agentgit.agents.branch_context import TurnSettings
from agentgit.agents.rerun.recording import Recording
from agentgit.agents.tools.recorded_results import UnreadableResult, rebuild_result
from agentgit.agents.turn.calls import Call, InflightResult
from agentgit.agents.turn.scopes import TaskPlace
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import FAILED, SIMULATED, UNKNOWN, identity
from agentgit.effects.kinds import READ_ONLY, UNDECLARED, kind_of
from agentgit.effects.results import returned_error
from agentgit.errors import AgentGitError, InvalidInput, RerunDiverged
from agentgit.langgraph_internals import task_path_str
from agentgit.rollback import awaiter_for_current_loop
from agentgit.rollback.verification import await_result
from agentgit.sessions.rerun import FUNCTION, LIVE, RECORD, TOLD, VALUE, RecordedCall, RerunCall
from agentgit.store.queries.recorded_turns import task_place
from agentgit.values import describe_error, portable

TELL, STOP = "tell", "stop"
"""What a rerun does about a call that the record does not have: tell the model, or stop."""

ASK = "interrupt"
"""The name of the function of LangGraph that asks a person, as a function for misses sees it."""

ALL = "*"
"""The key of the policy for all other tools."""

TOLD_TEXT = (
    "This conversation is run again from a recording, and the recording has no call of {name} with these arguments. It "
    "was not made."
)

NOT_MADE = "It was not made: the record does not have it."
"""The error of a call that the model was told was not made; such a call is not run when the rerun becomes real."""

OnMiss = str | Callable[[ToolInvocation], Any]
"""What to do about a call that the record does not have."""


class RecordedError(ToolException):
    """The error that a recorded call raised, if its type is not one of Python's own."""


class Answers:
    """Answers the calls of a rerun. It is thread-safe."""

    def __init__(
        self, recording: Recording, settings: TurnSettings, tools: Any, on_miss: OnMiss, max_calls: int
    ) -> None:
        if not (isinstance(tools, Mapping) or callable(tools) or _is_word(tools)):
            raise InvalidInput(
                f"tools must be 'record', 'live', a function, or a mapping from tools to these or to values, not "
                f"{tools!r}."
            )
        if not isinstance(max_calls, int) or isinstance(max_calls, bool) or max_calls < 0:
            raise InvalidInput(f"max_calls must be a number from 0, not {max_calls!r}.")
        self._policies = tools if isinstance(tools, Mapping) else {ALL: tools}
        kinds = {one.tool_name: one.effect.kind if one.effect else UNDECLARED for one in settings.effects.declarations}
        known = {ALL, *kinds, *(call.tool_name for call in recording.calls)}
        if unknown := sorted(map(str, set(self._policies) - known)):
            raise InvalidInput(
                f"tools names {', '.join(unknown)}, which neither the graph nor the record has. The tools are: "
                f"{', '.join(sorted(known - {ALL}))}."
            )
        self.acting = {
            call.tool_name: call.effect
            for call in (*recording.calls, *recording.waiting)
            if not call.effect.is_neutral and call.tool_name not in settings.effects.profiled
        }
        """The recorded effects of the tools that act; a new declaration does not make one `live`."""
        for name, policy in self._policies.items():
            if places := settings.effects.namesakes(name):
                raise InvalidInput(
                    f"tools names {name}, and the graph has several tools called {name}: {', '.join(places)}. Rename "
                    "one, or give a function for all tools, which gets the place of a call (call.enclosing)."
                )
            kind = kind_of(self.acting.get(name, kinds.get(name, READ_ONLY)))
            is_refused = not kind.is_neutral and name not in settings.effects.profiled
            if is_refused and _is_word(policy) and policy == LIVE:
                raise InvalidInput(
                    f"The tool {name} is {kind}, and a rerun runs only tools that are declared read_only or "
                    "state, and were recorded so. Leave it out, or give it a value or a function."
                )
        self._recording, self._settings, self._on_miss, self._max_calls = recording, settings, on_miss, max_calls
        self._unused, self._waiting = self._by_identity(recording.calls), self._by_identity(recording.waiting)
        self._asking: dict[str, ToolInvocation] = {}
        self._inner = recording.inner_calls()
        self._messages = {
            message.tool_call_id: message for message in recording.messages() if isinstance(message, ToolMessage)
        }
        self._own_messages: dict[str, list[tuple[Any, ToolMessage]]] = defaultdict(list)
        for message in recording.messages():
            for asked in message.tool_calls if isinstance(message, AIMessage) else ():
                if asked["name"] in settings.effects.own_names and asked["id"] in self._messages:
                    self._own_messages[asked["name"]].append((portable(asked["args"]), self._messages[asked["id"]]))
        self._scopes: dict[TaskPlace, Container[str | None]] = {}
        self._last_step = 0
        self._lock = threading.Lock()
        self._covered: set[int] = set()
        self.calls: list[RerunCall] = []
        """The calls so far, in order."""
        self.turn = 1
        """The number of the turn that runs."""
        self.stopped: AgentGitError | None = None
        """Why the rerun stopped; None if it runs. The graph may catch the error, and go on."""

    def _by_identity(self, calls: Iterable[ToolInvocation]) -> dict[str, list[ToolInvocation]]:
        found: dict[str, list[ToolInvocation]] = defaultdict(list)
        for call in calls:
            declared = self._settings.effects.declaration_of_call(call)
            effect = declared.effect if declared is not None else None
            names = effect.identity_args if effect is not None else None
            found[identity(call.tool_name, call.args, names)].append(call)
        return found

    @property
    def matched_count(self) -> int:
        return sum(call.is_matched for call in self.calls)

    def has_more_of_step(self) -> bool:
        """Return whether the record has more calls of the step of the last call, which raised and was repeated."""
        return any(self._recording.step(call) == self._last_step for call in self._not_made())

    def _not_made(self) -> Iterator[ToolInvocation]:
        return (call for calls in self._unused.values() for call in calls if call.id not in self._covered)

    @property
    def not_made(self) -> list[RecordedCall]:
        """The recorded calls that the rerun has not made. A call that an answered tool made itself is not expected."""
        in_order = sorted(self._not_made(), key=lambda call: call.position)
        return [RecordedCall(id=call.id, tool_name=call.tool_name, args=call.args) for call in in_order]

    # -- the first divergence

    def stop(self, error: AgentGitError) -> None:
        """Refuse all later calls of tools and models. The first error counts."""
        with self._lock:
            self.stopped = self.stopped or error

    def require_running(self) -> None:
        if self.stopped is not None:
            raise self.stopped.with_traceback(None)  # else it grows with each refused call

    # -- one call

    def answer(self, request: Call) -> InflightResult | None:
        """Return the answer to a call; None if its tool runs."""
        name, call = request.intent.tool_name, _as_invocation(request)
        if name in self._settings.effects.own_names:
            return self._own_answer(request)
        policy = self._policies.get(name, self._policies.get(ALL, RECORD))
        is_word = _is_word(policy)
        if is_word and policy == LIVE and request.intent.effect.is_neutral and name not in self.acting:
            recorded = self._take(request)
            self._note(call, LIVE, recorded)
            return None
        if callable(policy):
            self._note(call, FUNCTION, self._take(request))
            return _computed(policy, call)
        if not is_word:
            self._note(call, VALUE, self._take(request))
            return InflightResult.of(policy)
        recorded = self._take(request)
        if recorded is not None:
            self._note(call, RECORD, recorded)
            return self._recorded_answer(recorded, request)
        return self._open_answer(call, request) or self._missed(call)

    def _open_answer(self, call: ToolInvocation, request: Call) -> InflightResult | None:
        """Return the question that the call asks; None if the record has no such call that nobody answered."""
        with self._lock:
            waiting = self._waiting[request.repeat_hash]
            asking = self._asking.get(request.intent.idempotency_key)  # it asks again when another one was answered
            recorded = asking or self._choose(waiting, request)
            if recorded is None:
                return None
            if asking is None:
                waiting.remove(recorded)
            self._asking[request.intent.idempotency_key] = recorded
        if asking is None:
            self._note(call, RECORD, recorded)
        question = self._recording.asked_by(recorded)
        return _raised(GraphInterrupt((Interrupt.from_ns(question, request.task),)))

    def ask(self, question: Any) -> InflightResult | None:
        """Return the answer to a question that the record does not have; None if it stays open."""
        call = ToolInvocation(id=0, internal_session_id=0, position=0, tool_name=ASK, args={"value": question})
        if callable(self._on_miss):
            self._note(call, FUNCTION, None)
            return _computed(self._on_miss, call)
        if self._on_miss == STOP:
            error = RerunDiverged(
                f"The recording has no answer to the question {question!r}. The rerun stopped in turn {self.turn}."
            )
            self.stop(error)
            raise error
        return None

    def _own_answer(self, request: Call) -> InflightResult:
        """Return what one of agentgit's own tools answered, which is not part of the track; it does not act again."""
        with self._lock:
            messages = self._own_messages[request.intent.tool_name]
            found = next((one for one in messages if request.arguments.equal(one[0])), None)
            if found is None:
                return InflightResult.of(TOLD_TEXT.format(name=request.intent.tool_name))
            messages.remove(found)
        return InflightResult.of(_readdressed(found[1], request.intent.tool_call_id))

    def _take(self, request: Call) -> ToolInvocation | None:
        """Take the earliest unused recorded call with the same tool and identity arguments."""
        with self._lock:
            if len(self.calls) >= self._max_calls:
                raise RerunDiverged(
                    f"The rerun made {self._max_calls} calls, which is its limit; the recording has "
                    f"{len(self._recording.calls)}. Set max_calls to allow more."
                )
            of_name = [one for one in self._unused.values() if one and one[0].tool_name == request.intent.tool_name]
            # Its tool may have got arguments with defaults since.
            equal = (one for one in of_name if request.is_equal(one[0], request.effect))
            for unused in itertools.chain([self._unused[request.repeat_hash]], equal):
                if (found := self._choose(unused, request)) is not None:
                    unused.remove(found)
                    return found
            return None

    def _choose(self, unused: Iterable[ToolInvocation], request: Call) -> ToolInvocation | None:
        """Return the first of some equal calls, or the one of its step that was made in the place of the request."""
        # Calls that an answered tool made itself are left out, and those that another tool of the name has made.
        intent, is_of_tool = request.intent, self._settings.effects.is_of_tool
        ordered = (
            call
            for call in unused
            if call.id not in self._covered and is_of_tool(call, intent.tool_path, intent.enclosing) is not False
        )
        if (first := next(ordered, None)) is None:
            return None
        step_of = self._recording.step
        candidates = [first, *itertools.takewhile(lambda call: step_of(call) == step_of(first), ordered)]
        if len(candidates) == 1:
            return first
        places, scopes = self._recording.places, self._recorded_scopes(request.place)
        number = places[first.id].batch, request.intent.batch_index

        def nearness(call: ToolInvocation) -> tuple[bool, bool]:
            place = places[call.id]
            return place.task in scopes, (place.batch, place.number) == number

        return max(candidates, key=nearness)  # the first of the nearest

    def _recorded_scopes(self, place: TaskPlace | None) -> Container[str | None]:
        """Return the scopes that the tasks in a place of the graph had in the recording."""
        if place is None:
            return ()
        if place not in self._scopes:
            task_ids = self._recording.task_ids.get(task_place(task_path_str(place.path)), ())
            self._scopes[place] = {place.scope(task_id) for task_id in task_ids}
        return self._scopes[place]

    def _note(self, call: ToolInvocation, answered_by: str, recorded: ToolInvocation | None) -> None:
        with self._lock:
            step = self._recording.step(recorded) if recorded is not None else self._last_step
            self.calls.append(
                RerunCall(
                    tool_name=call.tool_name,
                    args=call.args,
                    answered_by=answered_by,
                    turn=self.turn,
                    recorded_id=recorded.id if recorded is not None else None,
                    is_reordered=step < self._last_step,
                )
            )
            self._last_step = max(self._last_step, step)
            if recorded is not None and answered_by != LIVE:
                self._covered.update(self._inner.get(recorded.id, ()))

    def _missed(self, call: ToolInvocation) -> InflightResult:
        if callable(self._on_miss):
            self._note(call, FUNCTION, None)
            return _computed(self._on_miss, call)
        self._note(call, TOLD, None)
        if self._on_miss == STOP:
            unused = (one for calls in self._unused.values() for one in calls if one.tool_name == call.tool_name)
            args = call.args.items()
            nearest = max(unused, key=lambda one: sum(arg in one.args.items() for arg in args), default=None)
            near = f" The nearest recorded call is {nearest} (invocation {nearest.id})." if nearest is not None else ""
            raise RerunDiverged(
                f"The recording has no call {call} left.{near} The rerun stopped in turn {self.turn}.",
                call=str(call),
                nearest=nearest.id if nearest is not None else None,
            )
        return InflightResult.of(TOLD_TEXT.format(name=call.tool_name), NOT_MADE)

    # -- values

    def _recorded_answer(self, recorded: ToolInvocation, request: Call) -> InflightResult:
        """Return what a recorded call returned or raised, in the form in which its graph saw it."""
        call_id = request.intent.tool_call_id
        message = self._messages.get(recorded.tool_call_id or "") if call_id is not None else None
        has_failed = recorded.status in (FAILED, UNKNOWN) or (recorded.status == SIMULATED and recorded.error_message)
        if has_failed and returned_error(recorded.result) is None:
            if message is not None and message.status == "error":
                return InflightResult.of(_readdressed(message, call_id))
            return _raised(recorded_error(recorded.error_message or ""))
        try:
            value = rebuild_result(recorded.result, call_id)
        except UnreadableResult as error:
            if message is None:
                return _raised(RecordedError(f"The recorded result of {recorded} cannot be used: {error}."))
            return InflightResult.of(_readdressed(message, call_id))
        if message is None:
            return InflightResult.of(value)
        if _has_content(value, message):
            return InflightResult.of(_with_artifact(value, message))
        return InflightResult.of(_readdressed(message, call_id))


def _is_word(policy: Any) -> bool:
    """Return whether a policy is `record` or `live`, and not a value, which may not be comparable."""
    return isinstance(policy, str) and policy in (RECORD, LIVE)


def _as_invocation(request: Call) -> ToolInvocation:
    intent = request.intent
    return ToolInvocation(
        id=0,
        internal_session_id=intent.branch_id,
        position=0,
        tool_name=intent.tool_name,
        args=intent.args,
        effect=intent.effect,
        tool_call_id=intent.tool_call_id,
        started_at=intent.started_at,
        idempotency_key=intent.idempotency_key,
        tool_path=intent.tool_path,
        enclosing=intent.enclosing,
    )


def _computed(function: Callable[[ToolInvocation], Any], call: ToolInvocation) -> InflightResult:
    try:
        return InflightResult.of(await_result(awaiter_for_current_loop(), function(call)))
    except Exception as error:  # noqa: BLE001  # it stands for the tool, whose errors the graph handles
        return _raised(error)


def _raised(error: BaseException) -> InflightResult:
    future: Future[Any] = Future()
    future.set_exception(error)
    return InflightResult(future)


def recorded_error(text: str) -> Exception:
    """Rebuild the error that a recorded call raised.

    Example:
        >>> recorded_error("ValueError: no chairs left")
        ValueError('no chairs left')
        >>> recorded_error("KeyError: 'chair'")
        KeyError('chair')
    """
    name, colon, message = text.partition(": ")
    kind = getattr(builtins, name, None) if colon else None
    if isinstance(kind, type) and issubclass(kind, Exception):
        for argument in (message, _literal(message)):  # the text of a KeyError is the repr of its key
            try:
                error = kind(argument)
            except TypeError:  # such as UnicodeDecodeError, which takes more
                break
            if describe_error(error) == text:
                return error
    return RecordedError(text)


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):  # the last two if a row nests it too deeply
        return text


def _readdressed(message: ToolMessage, call_id: str | None) -> ToolMessage:
    return message.model_copy(update={"tool_call_id": call_id or message.tool_call_id, "id": None})


def _has_content(value: Any, message: ToolMessage) -> bool:
    """Return whether LangChain makes the content of a message from a value, and not from an object that JSON lost."""
    content = value[0] if isinstance(value, list) and len(value) == 2 and message.artifact is not None else value
    if isinstance(content, str):
        is_repr = content.startswith("<") and content.endswith(">")  # of an object that the record does not have
        return content == message.content or not is_repr  # middleware may have changed a text
    if not isinstance(content, dict | list | int | float | bool | None):
        return True  # commands and messages are rebuilt as they were
    return content == message.content or json.dumps(content, ensure_ascii=False) == message.content


def _with_artifact(value: Any, message: ToolMessage) -> Any:
    """Return content and artifact with the artifact of the message: the journal has it as JSON, the state as it was."""
    is_pair = isinstance(value, list) and len(value) == 2
    return [value[0], message.artifact] if is_pair and portable(message.artifact) == value[1] else value
