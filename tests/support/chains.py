"""Graphs of plain nodes, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langgraph.graph import START, MessagesState, StateGraph
from scripted import Graph

HI = {"messages": [("user", "hi")]}


def chain(*nodes: Callable[[MessagesState], Any] | Graph, checkpointer: Any = None) -> Graph:
    """Compile a graph with these nodes."""
    builder = StateGraph(MessagesState)
    for number, node in enumerate(nodes):  # a number alone would be no name of a subgraph
        builder.add_node(f"n{number}", node)
        builder.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return builder.compile(checkpointer=checkpointer)


def says(text: str, act: Callable[[], Any] = lambda: None) -> Callable[[MessagesState], Any]:
    """Return a node that does something and answers with a text."""

    def node(state: MessagesState) -> Any:
        act()
        return {"messages": [AIMessage(text)]}

    return node


def replying(answer: Callable[[list[AnyMessage]], Any], **node: Any) -> Graph:
    """Build a graph whose one node replies with the message, or the text, that a function makes of the conversation."""

    def reply(state: MessagesState) -> dict[str, Any]:
        made = answer(state["messages"])
        return {"messages": [made if isinstance(made, BaseMessage) else ("ai", str(made))]}

    return StateGraph(MessagesState).add_node("reply", reply, **node).add_edge(START, "reply").compile()


def texts(agent: Any) -> list[str]:
    """Return the texts of the messages in the newest state of an agent."""
    return [message.content for message in agent.get_state().values.get("messages", [])]
