"""The inputs that a user passes to a graph, and the messages in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from uuid import uuid4

from langchain_core.messages import BaseMessage, HumanMessage, RemoveMessage, convert_to_messages
from langgraph.channels import BinaryOperatorAggregate, DeltaChannel
from langgraph.graph.message import REMOVE_ALL_MESSAGES, add_messages
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt

from agentgit.agents.tools.unanswered_calls import insert_answers
from agentgit.errors import AnswerRequired, InvalidInput
from agentgit.langgraph_internals import messages_delta_reducer
from agentgit.next_steps import Next
from agentgit.rollback.request import require_one_of
from agentgit.store.threads.graph_rows import INTERRUPT

MESSAGES = "messages"
NOTE_NAME = "agentgit"
"""The `name` of the messages that agentgit itself sends to the model."""

OnQuestion = Literal["raise", "drop"]

MAX_TITLE = 80
"""The maximum length, in characters, of the title that an automatic checkpoint takes from a message."""


UPDATE = object()
"""The input of a turn that only updates the state: the graph does not run."""


@dataclass(frozen=True)
class TurnInput:
    """The input of a turn."""

    value: Any
    is_new: bool
    title: str | None = None
    message_id: str | None = None
    goes_on: bool = False
    """True if the graph goes on with what waits."""
    keeps_question: bool = False
    """True if the turn begins only if no question waits."""
    channel: str = MESSAGES
    """The channel of the conversation."""

    @property
    def is_answer(self) -> bool:
        return isinstance(self.value, Command) and self.value.resume is not None

    @property
    def is_answer_alone(self) -> bool:
        """True if the turn does nothing unless something waits for the answer."""
        return self.is_answer and self.value.update is None and not self.value.goto


class UserMessage(dict[str, Any]):
    """The input of a turn that begins only if no question of the graph waits for an answer."""


def user_message(text: str, on_question: OnQuestion) -> dict[str, Any]:
    """Return the input of a turn that sends a message, with the choice of `run(on_question=...)`."""
    require_one_of("on_question", on_question, ("raise", "drop"))
    value = {MESSAGES: [HumanMessage(text)]}
    return UserMessage(value) if on_question == "raise" else value


def require_no_question(questions: Sequence[Interrupt], *, has_run: bool) -> None:
    """Check that no question waits for an answer, before a message is sent or after its turn."""
    if questions:
        values = [question.value for question in questions]
        raise AnswerRequired(
            f"{'The turn' if has_run else 'Nothing was run: the graph'} waits for an answer to "
            f"{', '.join(map(str, values))}.",
            answer_step(questions),
            Next("drop_question"),
            questions=values,
            interrupts=list(questions),
        )


def answer_step(questions: Sequence[Interrupt]) -> Next:
    """Return the next step where questions wait; LangGraph takes answers to several only by their ids."""
    ids = tuple(dict.fromkeys(one.id for one in questions))
    return Next("answer_each", ids=ids) if len(ids) > 1 else Next("answer")


def parse(graph: Pregel[Any, Any, Any, Any], value: Any) -> TurnInput:
    """Parse an input, and add an id to the user's message if LangGraph would add one."""
    if value is UPDATE:
        return TurnInput(None, is_new=False)
    if isinstance(value, Command) and value.resume is value.update is None and not value.goto:
        raise InvalidInput(
            "Nothing was run: this Command says nothing, and LangGraph takes no None as an answer. Answer with another "
            'value, such as False or "".'
        )
    if value is None or isinstance(value, Command):
        return TurnInput(value, is_new=False, goes_on=True)
    raw_messages: Any = value.get(MESSAGES) if isinstance(value, Mapping) else value
    items = raw_messages if isinstance(raw_messages, list) else [raw_messages]
    try:
        messages = convert_to_messages(items)
    except (ValueError, NotImplementedError, TypeError):
        return TurnInput(value, is_new=True)  # the input of a graph need not be messages
    last_message = messages[-1] if messages else None
    if not isinstance(last_message, HumanMessage):
        return TurnInput(value, is_new=True)
    keeps_question = isinstance(value, UserMessage)
    if isinstance(value, Mapping) and _adds_message_id(graph, items[-1]):
        last_message = last_message.model_copy(update={"id": last_message.id or str(uuid4())})
        value = {**value, MESSAGES: [*items[:-1], last_message]}
    title, id = first_line(str(last_message.text)), last_message.id
    return TurnInput(value, is_new=True, title=title, message_id=id, keeps_question=keeps_question)


def is_last_message(turn_input: TurnInput, state: Any) -> bool:
    """Return whether the user's message of an input is the last one of a state; True if the input has none."""
    messages = state.get(turn_input.channel) if isinstance(state, Mapping) else None
    said = [first_line(str(one.text)) for one in messages or () if isinstance(one, HumanMessage)]
    return turn_input.title is None or turn_input.title in said[-1:]


def with_note(turn_input: TurnInput, note: str) -> TurnInput | None:
    """Insert a note about the world before the user's messages; return None if the input has no messages."""
    # Not every provider accepts a system message inside a conversation.
    return _with_before(turn_input, [HumanMessage(note, name=NOTE_NAME)]) if turn_input.is_new else None


def answered_calls(turn_input: TurnInput) -> set[str | None]:
    messages = turn_input.value.get(turn_input.channel) if isinstance(turn_input.value, Mapping) else None
    items = messages if isinstance(messages, list) else [messages]
    return {
        one.get("tool_call_id") if isinstance(one, Mapping) else getattr(one, "tool_call_id", None) for one in items
    }


def with_answers(
    turn_input: TurnInput, answers: Sequence[BaseMessage], conversation: Sequence[BaseMessage]
) -> TurnInput:
    """Insert answers to open calls before the user's messages; an input that has no messages stays as it is."""
    # A provider takes results only directly after the calls, so a conversation that has more is replaced.
    if not (answers or conversation):
        return turn_input
    before: list[BaseMessage] = [*answers]
    if conversation:
        before = [RemoveMessage(REMOVE_ALL_MESSAGES), *insert_answers(conversation, answers)]
    return _with_before(turn_input, before) or turn_input


def _with_before(turn_input: TurnInput, before: Sequence[BaseMessage]) -> TurnInput | None:
    """Insert messages before the user's; return None if the input has no messages."""
    channel = turn_input.channel
    messages = turn_input.value.get(channel) if isinstance(turn_input.value, Mapping) else None
    if messages is None:
        return None
    user_messages = messages if isinstance(messages, list) else [messages]
    return replace(turn_input, value={**turn_input.value, channel: [*before, *user_messages]})


def _adds_message_id(graph: Pregel[Any, Any, Any, Any], item: Any) -> bool:
    channel = graph.channels.get(MESSAGES)
    if isinstance(channel, DeltaChannel):
        return channel.reducer is messages_delta_reducer or isinstance(item, BaseMessage | dict)
    return can_replace_messages(channel)


def can_replace_messages(channel: Any) -> bool:
    """Return whether an input can replace the conversation in a channel of a graph: its reducer is LangGraph's."""
    return isinstance(channel, BinaryOperatorAggregate) and getattr(channel, "operator", None) is add_messages


def first_line(text: str) -> str | None:
    """Return the first line of a text, cut to `MAX_TITLE` characters; None if the text is empty."""
    lines = text.strip().splitlines()
    line = lines[0] if lines else ""
    return (line if len(line) <= MAX_TITLE else line[: MAX_TITLE - 1] + "…") or None


def answer_of(output: Any, open_questions: Callable[[], Sequence[Interrupt]]) -> str:
    """Return the text of the last message in a graph's output."""
    if isinstance(output, Mapping) and (asked := output.get(INTERRUPT)):
        require_no_question(open_questions() or asked, has_run=True)  # LangGraph lists them as their tasks ended
    messages = output.get(MESSAGES) if isinstance(output, Mapping) else None
    if not messages:
        raise InvalidInput("The output of this graph has no messages; call invoke() with the graph's own input.")
    return str(messages[-1].text)
