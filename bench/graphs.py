"""The measured graph: a chat model and one tool, both without work of their own."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.pregel import Pregel

import agentgit
from agentgit.demo import ScriptedModel

Graph = Pregel[Any, Any, Any, Any]

ORDER = "order"
"""The beginning of a user message that makes the model call the tool."""

CHAT, TOOL = "chat", "tool"
MESSAGES = {CHAT: 2, TOOL: 4}
"""The number of messages in each kind of turn: `TOOL` also has a tool call and its result."""

WORDS = """
about after again against all also always and another any around ask away back because been before begin between both
bring business but call came can carry change child city close come company could country course day develop different
do down during each early end even every eye face fact family feel few find first follow form found from general get
give good govern great group grow hand have head help here high hold home house how however idea if increase interest
just keep know large last late lead leave life like line little long look make many may mean might more most move much
must name need never new next night number of off old one only open or other our out over own part people perhaps
person place plan play point possible present problem program public put question right run say school see seem set
should show since small so social some stand start state still such system take tell than that the their them then
there these they thing think this those though through time to too try turn under up use very want way week well what
when where which while who will with without woman word work world would write year you young your
""".split()  # noqa: SIM905  # as a list it would be two hundred lines
"""The words of texts that compress like English; a repeated word would compress too well."""


_seconds = [0.0]
"""The time that a step of the model takes."""


@contextmanager
def slow(seconds: float) -> Iterator[None]:
    """Let each step of the model wait, as for a real one, until the end of the block."""
    _seconds.append(seconds)
    yield
    _seconds.pop()


def text(seed: int, length: int) -> str:
    """Return a random text."""
    words = random.Random(seed).choices(WORDS, k=length // 3)  # noqa: S311  # not a secret
    return " ".join(words)[:length]


def build(length: int, checkpointer: Any = None) -> Graph:
    """Build and compile the graph: the model, its tool, and the model again."""
    calls = count()

    def answer(messages: Any) -> AIMessage:
        last: BaseMessage = messages[-1]
        if isinstance(last, HumanMessage) and last.text.startswith(ORDER):
            call = ToolCall(name="order", args={"item": "chair", "quantity": 2}, id=f"call-{next(calls)}")
            return AIMessage("", tool_calls=[call])
        return AIMessage(text(len(messages), length))

    @tool
    def order(item: str, quantity: int) -> dict[str, Any]:
        """Order something."""
        return {"order": f"{item}-{quantity}", "price": 40 * quantity}

    model = ScriptedModel(rule=answer)

    def ask(state: MessagesState) -> dict[str, Any]:
        time.sleep(_seconds[-1])
        return {"messages": [model.invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", ask)
    graph.add_node("tools", ToolNode([order]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


def cancel(args: dict[str, Any], result: Any) -> None:
    """Undo an order, which was never really made."""


EFFECTS = {"order": agentgit.reversible(cancel)}


def said(kind: str, number: int, length: int) -> str:
    """Return the user message of a turn."""
    return (f"{ORDER} " if kind == TOOL else "") + text(-number, length)


def check(messages: list[Any], expected: int) -> None:
    """Check that a conversation has the expected length and ends with a reply of the model."""
    if len(messages) != expected or isinstance(messages[-1], (ToolMessage, HumanMessage)):
        raise RuntimeError(f"a conversation has {len(messages)} messages and should have {expected}")
