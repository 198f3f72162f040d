"""A chat turn: takes the user's text, and yields the pieces of the answer in the order in which they occur."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langgraph.types import Command, StateSnapshot

from agentgit.agents import inputs
from agentgit.async_api import Closing
from agentgit.errors import InvalidInput

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent


@dataclass(frozen=True)
class AnswerText:
    """A piece of the text of an answer."""

    message: str | None
    text: str


@dataclass(frozen=True)
class ModelToolCall:
    """A tool call of the model."""

    name: str
    args: Mapping[str, Any]


@dataclass(frozen=True)
class AskedQuestion:
    """A question that the graph asks the user; their next message is the answer."""

    question: Any


@dataclass(frozen=True)
class TurnFailed:
    """The end of a turn by an error."""

    error: Exception


Piece = AnswerText | ModelToolCall | AskedQuestion | TurnFailed
Pieces = AsyncGenerator[Piece, None]


async def send_message(agent: RollbackAgent, text: str) -> Pieces:
    """Run a turn with a new message, or with the answer if the graph has asked a question."""
    state, questions = await agent.aget_state(), await asyncio.to_thread(agent._branch.open_questions)
    if questions:
        value: Any = Command(resume={questions[0].id: _parse_answer(text)})
    else:
        value = {inputs.MESSAGES: [HumanMessage(text)]}
    async for piece in _pieces(agent, value, state):
        yield piece


async def continue_turn(agent: RollbackAgent) -> Pieces:
    """Continue a turn that was interrupted."""
    state, questions = await agent.aget_state(), await asyncio.to_thread(agent._branch.open_questions)
    if questions or not state.next:
        raise InvalidInput(
            "The graph is waiting for an answer; enter it." if questions else "No turn was interrupted here."
        )
    async for piece in _pieces(agent, None, state):
        yield piece


def is_interrupted(agent: RollbackAgent) -> bool:
    """Return whether a turn was interrupted here and can continue."""
    return bool(agent.get_state().next) and not agent._branch.open_questions()


def open_questions(agent: RollbackAgent) -> list[AskedQuestion]:
    """List the questions that wait for an answer."""
    return [AskedQuestion(one.value) for one in agent._branch.open_questions()]


async def _pieces(agent: RollbackAgent, value: Any, before: StateSnapshot) -> Pieces:
    # Asynchronous, so that a turn can be cancelled while a node waits, and so that graphs of coroutines run too.
    reader = _PieceReader({message.id for message in _messages(before)})
    try:
        async with Closing(agent.astream(value, stream_mode="messages")) as stream:
            async for message, _ in stream:
                for piece in reader.read(message):
                    yield piece
        for piece in (*reader.flush(), *await asyncio.to_thread(open_questions, agent)):
            yield piece
    except Exception as error:  # noqa: BLE001  # a graph may raise anything, and the chat must continue
        yield TurnFailed(error)


def _messages(state: StateSnapshot) -> list[BaseMessage]:
    messages = state.values.get(inputs.MESSAGES) if isinstance(state.values, Mapping) else state.values
    return [one for one in messages if isinstance(one, BaseMessage)] if isinstance(messages, list) else []


def _parse_answer(text: str) -> Any:
    """Parse an answer that looks like a JSON object or list, because forms send JSON; return other text unchanged."""
    try:
        return json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except ValueError:
        return text


@dataclass
class _PieceReader:
    """Converts the messages that a graph streams to pieces."""

    earlier_ids: set[str | None]
    _open_messages: dict[str | None, AIMessageChunk] = field(default_factory=dict)
    """The messages whose tool calls are not complete yet, by message id."""

    def read(self, message: BaseMessage) -> Iterator[Piece]:
        if not isinstance(message, AIMessage):
            yield from self.flush()  # a tool has answered, so the calls are complete
        elif message.id not in self.earlier_ids:
            if message.text:
                yield AnswerText(message.id, str(message.text))
            if not isinstance(message, AIMessageChunk):
                yield from _calls(message)
            else:
                partial_message = self._open_messages.get(message.id)
                self._open_messages[message.id] = message if partial_message is None else partial_message + message
                if message.chunk_position == "last":
                    yield from _calls(self._open_messages.pop(message.id))

    def flush(self) -> Iterator[Piece]:
        for message in self._open_messages.values():
            yield from _calls(message)
        self._open_messages.clear()


def _calls(message: AIMessage) -> Iterator[Piece]:
    return (ModelToolCall(call["name"], call["args"]) for call in message.tool_calls)
