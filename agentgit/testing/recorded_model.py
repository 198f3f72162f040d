"""A chat model that answers with the recorded replies of a branch, as long as it is asked what was recorded."""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import BaseModel, PrivateAttr

from agentgit.agents.agent import RollbackAgent
from agentgit.errors import PromptChanged
from agentgit.handles.context import BranchRef
from agentgit.handles.model_calls import ModelCallRecord, read_model_calls
from agentgit.handles.session import Session
from agentgit.saver.codec import Codec, make_codec
from agentgit.saver.serializer import StrictSerializer
from agentgit.store.objects.blobs import Leaf
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.testing.prompts import (
    STRUCTURED,
    Difference,
    MessageContent,
    Prompt,
    comparable_options,
    describe_messages,
    different_option,
    unified_diff,
)

_WORD = re.compile(r"\S+\s*|\s+")


class RecordedModel(BaseChatModel):
    """A chat model that returns the recorded replies of a branch, and raises at the first request that differs.

    Requests are compared by content: the messages, the tools and the output format, without ids and times. Requests of
    one step of the graph, such as those of parallel nodes, are matched whatever their order. Requests that tools made
    may be missing, because a rerun answers tool calls from the record.

    A branch whose requests were not recorded, such as an imported thread, is compared with the messages of its state
    only: system prompts and tools are not. `has_requests` is then False, and a warning says so.

    Args:
        source: An agent, for its branch, or a session.
        branch: The branch of the session; None is that of the agent, or the current branch of the session.
        start: The checkpoint after which the record begins; None for the root of the session.
        end: The checkpoint at which it ends; None for the newest state of the branch.

    Raises:
        NotFound: There is no such branch or checkpoint.
        PromptChanged: When the model is called: the request differs from the recorded one.

    Warns:
        UserWarning: The requests were not recorded.

    Example:
        >>> import agentgit
        >>> from agentgit.demo import ScriptedModel
        >>> from langgraph.graph import START, MessagesState, StateGraph
        >>> def chat(model, prompt):
        ...     node = lambda state: {"messages": [model.invoke([("system", prompt), *state["messages"]])]}
        ...     return StateGraph(MessagesState).add_node("chat", node).add_edge(START, "chat").compile()
        >>> repo = agentgit.open(":memory:")
        >>> agent = repo.wrap(chat(ScriptedModel(replies=["hello"]), "Be brief."), session="s")
        >>> agent.run("hi")
        'hello'
        >>> again = chat(RecordedModel(agent), "Be brief.").invoke({"messages": [("user", "hi")]})
        >>> again["messages"][-1].content
        'hello'
        >>> chat(RecordedModel(agent), "Be kind.").invoke({"messages": [("user", "hi")]})
        Traceback (most recent call last):
        ...
        agentgit.errors.PromptChanged: Model call 1 of 1 (turn 1, after 'hi') has another system prompt than recorded...
    """

    _branch: str = PrivateAttr()
    _has_requests: bool = PrivateAttr()
    _script: _Script = PrivateAttr()

    def __init__(
        self,
        source: RollbackAgent | Session,
        *,
        branch: BranchRef = None,
        start: CheckpointRef | None = None,
        end: CheckpointRef | None = None,
        **fields: Any,
    ) -> None:
        super().__init__(**fields)
        if isinstance(source, RollbackAgent):
            branch = source.branch if branch is None else branch
            source = source.session
        record = read_model_calls(source, branch, start, end)
        self._branch, self._has_requests = record.branch, record.has_requests
        if not record.has_requests:
            warnings.warn(
                f"The requests of branch {record.branch} were not recorded. RecordedModel compares what it is asked "
                "with the messages of the state only; system prompts and tools are not compared.",
                stacklevel=2,
            )
        self._script = _Script(record)
        if self._script.has_response_format and "profile" in type(self).model_fields:
            self.profile = {"structured_output": True}  # LangChain's agents then ask for it in the same way

    @property
    def _llm_type(self) -> str:
        return "recorded"

    @property
    def has_requests(self) -> bool:
        """True if the requests of the branch were recorded, and not only the messages of its state."""
        return self._has_requests

    @property
    def remaining(self) -> int:
        """The number of recorded calls that the graph has not made yet, without those that tools made."""
        return self._script.remaining

    def check_complete(self) -> None:
        """Check that the graph has made all recorded calls.

        Raises:
            PromptChanged: It made fewer calls.
        """
        self._script.check_complete()

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: Any = None, strict: bool | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Return the model with tools, which are compared with the recorded ones.

        Args:
            tools: The tools, in one of the forms that LangChain's models take.
            tool_choice: Which tool the model must call; compared, too.
            strict: True to make the schemas strict, as with OpenAI's models.
            kwargs: More parameters of the call.

        Warns:
            UserWarning: The recorded model reported no tools, so they are not compared.
        """
        if tools and self._has_requests and not self._script.compares_options:
            warnings.warn(
                f"The recorded model of branch {self._branch} reported no tools, so tools are not compared.",
                stacklevel=2,
            )
        choice = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[_schema_of(tool, strict) for tool in tools], **choice, **kwargs)

    def with_structured_output(
        self, schema: dict[str, Any] | type, *, include_raw: bool = False, **kwargs: Any
    ) -> Runnable[LanguageModelInput, dict[str, Any] | BaseModel]:
        """Return the model with an output format. The recorded reply may have the output as a tool call or as JSON.

        Args:
            schema: The format, in one of the forms that LangChain's models take.
            include_raw: True to return the message, the output and the parsing error.
            kwargs: Ignored: how the recorded model was asked does not matter.
        """
        tool = convert_to_openai_tool(schema)

        def parse(message: AIMessage) -> Any:
            calls = (call["args"] for call in message.tool_calls if call["name"] == tool["function"]["name"])
            value = next(calls, None)
            value = json.loads(message.text) if value is None else value
            return schema.model_validate(value) if isinstance(schema, type) and issubclass(schema, BaseModel) else value

        def parse_with_raw(message: AIMessage) -> dict[str, Any]:
            try:
                return {"raw": message, "parsed": parse(message), "parsing_error": None}
            except ValueError as error:
                return {"raw": message, "parsed": None, "parsing_error": error}

        model = self.bind(tools=[tool], **{STRUCTURED: True})
        return model | RunnableLambda(parse_with_raw if include_raw else parse)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self._script.reply(messages, kwargs))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for chunk in _chunks(self._script.reply(messages, kwargs)):
            yield ChatGenerationChunk(message=chunk)


def _schema_of(tool: Any, strict: bool | None) -> Any:
    if isinstance(tool, dict) and "type" in tool and "function" not in tool:
        return tool  # a tool of the provider
    return convert_to_openai_tool(tool, strict=strict)


def _chunks(message: AIMessage) -> Iterator[AIMessageChunk]:
    """Yield a message in parts, which add up to the message."""
    fields = {name: value for name, value in message.__dict__.items() if name not in ("type", "tool_calls")}
    fields["tool_call_chunks"] = [
        {
            "name": call["name"],
            "args": json.dumps(call["args"]),
            "id": call["id"],
            "index": n,
            "type": "tool_call_chunk",
        }
        for n, call in enumerate(message.tool_calls)
    ]
    content = message.content
    if isinstance(content, str) and content and message.name is None:  # adding chunks drops the name
        for word in _WORD.findall(content):
            yield AIMessageChunk(content=word, id=message.id)
        fields["content"] = ""
    yield AIMessageChunk(**fields, chunk_position="last")


class _Expected(NamedTuple):
    """A recorded call."""

    number: int
    step: int
    messages: Sequence[Leaf]
    options: Leaf | None
    reply: Leaf
    is_optional: bool


class _Script:
    """The recorded calls of a branch, and which of them the graph has made."""

    def __init__(self, record: ModelCallRecord) -> None:
        self._has_requests = record.has_requests
        self._codec = make_codec(StrictSerializer())
        calls = [*_recorded_calls(record)] if record.has_requests else [*_calls_of_state(self._codec, record)]
        self._total = len(calls)
        self._steps = [[*step] for _, step in groupby(calls, key=lambda call: call.step)]
        self._lock = threading.Lock()
        options = {call.options.hash: call.options for call in calls if call.options is not None}
        decoded = {key: self._codec.decode(item) for key, item in options.items()}
        self.has_response_format = any("response_format" in one for one in decoded.values())
        self._options = {key: comparable_options(one) for key, one in decoded.items()}
        self.compares_options = bool(options)
        """True if the tools are compared. Some models do not report the tools that they were given."""
        self._contents: dict[bytes, MessageContent] = {}
        self._new_ids: dict[str | None, str | None] = {}
        """The id that a tool call of the record has now, if it has another one."""
        self._same: tuple[tuple[bytes, ...], tuple[bytes, ...]] = (), ()
        """The hashes of the messages of the last request that was made again: the recorded ones, and those of now."""

    @property
    def remaining(self) -> int:
        """The number of calls that are still to be made."""
        with self._lock:
            return sum(not call.is_optional for step in self._steps for call in step)

    def check_complete(self) -> None:
        """Check that all calls were made."""
        with self._lock:
            missing = next((call for step in self._steps for call in step if not call.is_optional), None)
        if missing is not None:
            text = f"{self._describe(missing)} was not made: the graph makes fewer model calls than recorded."
            raise PromptChanged(text, part="calls", call=missing.number)

    def reply(self, messages: Sequence[BaseMessage], params: dict[str, Any]) -> AIMessage:
        """Return the recorded reply to a request."""
        if not self._has_requests:  # system messages need not be in the state
            messages = [message for message in messages if message.type != "system"]
        hashes = tuple(item.hash for item in self._codec.encode_messages(messages))
        request = _Request(messages, hashes, comparable_options(params))
        with self._lock:
            call = self._take(request)
        message = self._codec.decode(call.reply)
        return message if isinstance(message, AIMessage) else AIMessage(message.content, id=message.id)

    def _take(self, request: _Request) -> _Expected:
        """Return the call that a request equals, among the calls of the current step, and mark it as made."""
        while self._steps:
            step = self._steps[0]
            call = next((one for one in step if self._is_same(one, request)), None)
            if call is not None:
                step.remove(call)
                self._same = tuple(item.hash for item in call.messages), request.hashes
                if not step:
                    del self._steps[0]
                return call
            if not all(one.is_optional for one in step):
                break
            del self._steps[0]
        raise self._error(request)

    def _is_same(self, call: _Expected, request: _Request) -> bool:
        """Return whether a request has the content of a recorded one."""
        if len(call.messages) != len(request.hashes):
            return False
        if self.compares_options and different_option(self._options_of(call), request.options) is not None:
            return False
        recorded = tuple(item.hash for item in call.messages)
        if recorded == request.hashes:
            return True
        old, new = self._same
        start = len(old) if (recorded[: len(old)], request.hashes[: len(new)]) == self._same else 0
        return all(
            self._is_same_message(*pair)
            for pair in zip(call.messages[start:], request.hashes[start:], request.messages[start:], strict=True)
        )

    def _is_same_message(self, recorded: Leaf, key: bytes, message: BaseMessage) -> bool:
        old, new = self._content(recorded.hash, recorded), self._content(key, message)
        if old.digest != new.digest or len(old.call_ids) != len(new.call_ids):
            return False
        self._new_ids.update(zip(old.call_ids, new.call_ids, strict=True))
        return old.answers is None or self._new_ids.get(old.answers, old.answers) == new.answers

    def _content(self, key: bytes, message: Leaf | BaseMessage) -> MessageContent:
        if key not in self._contents:
            decoded = self._codec.decode(message) if isinstance(message, Leaf) else message
            self._contents[key] = MessageContent.of(decoded)
        return self._contents[key]

    def _options_of(self, call: _Expected) -> dict[str, Any]:
        return self._options[call.options.hash] if call.options is not None else comparable_options({})

    def _difference(self, call: _Expected, request: _Request) -> Difference | None:
        messages = self._codec.decode([*call.messages]) if call.messages else []
        now = Prompt.of(request.messages, request.options if self.compares_options else None)
        return Prompt.of(messages, self._options_of(call) if self.compares_options else None).difference(now)

    def _error(self, request: _Request) -> PromptChanged:
        if not self._steps:
            return PromptChanged(
                f"The graph called the model once more than the {self._total} recorded calls "
                f"({_place(request.messages)}). {NEXT}",
                part="calls",
                call=self._total + 1,
                diff=unified_diff("", "\n".join(describe_messages(request.messages[-1:]))),
            )
        expected = min(self._steps[0], key=lambda call: (call.is_optional, -self._shared_count(call, request)))
        later = (call for step in self._steps[1:] for call in step)
        early = next((call for call in later if self._is_same(call, request)), None)
        if early is not None:
            text = f"{self._describe(early)} was made before call {expected.number}, which was not made."
            return PromptChanged(f"{text} {NEXT}", part="call order", call=expected.number)
        difference = self._difference(expected, request) or Difference("message", "", "")
        what = f"{difference.part} {difference.name}".strip()
        other = "" if self._has_requests else " Its requests were not recorded, so only messages were compared."
        return PromptChanged(
            f"{self._describe(expected)} has another {what} than recorded.{other} {NEXT}",
            part=difference.part,
            name=difference.name,
            call=expected.number,
            diff=difference.diff,
        )

    def _shared_count(self, call: _Expected, request: _Request) -> int:
        pairs = zip((item.hash for item in call.messages), request.hashes, strict=False)
        return sum(old == new for old, new in pairs)

    def _describe(self, call: _Expected) -> str:
        place = _place(self._codec.decode([*call.messages]) if call.messages else [])
        return f"Model call {call.number} of {self._total} ({place})"


NEXT = "If the change is intended, rerun with a real model instead of RecordedModel; else restore what the diff shows."


class _Request(NamedTuple):
    """A request to the model."""

    messages: Sequence[BaseMessage]
    hashes: tuple[bytes, ...]
    options: dict[str, Any]


def _place(messages: Sequence[BaseMessage]) -> str:
    """Return the turn that a request belongs to, by the user's messages in it."""
    users = [message for message in messages if message.type == "human"]
    if not users:
        return "without a user's message"
    text = users[-1].text.strip().splitlines()
    title = text[0] if text else ""
    return f"turn {len(users)}, after {title[:60] + '…' if len(title) > 60 else title!r}"


def _recorded_calls(record: ModelCallRecord) -> Iterator[_Expected]:
    for number, call in enumerate(record.calls, start=1):
        yield _Expected(number, call.step, call.messages, call.options, call.reply, call.is_in_tool)


def _calls_of_state(codec: Codec, record: ModelCallRecord) -> Iterator[_Expected]:
    """Yield the calls whose replies are in a state: each AI message, after the messages before it."""
    number = 0
    before: list[Leaf] = []
    for position, (item, message) in enumerate(
        zip(record.conversation, codec.decode([*record.conversation]) if record.conversation else [], strict=True)
    ):
        if message.type == "ai" and position >= record.earlier_count:
            number += 1
            yield _Expected(number, position, [*before], None, item, is_optional=False)
        if message.type != "system":
            before.append(item)
