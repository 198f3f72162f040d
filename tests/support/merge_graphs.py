"""Graphs for the tests of merges, and helpers that read their messages."""

import operator
from typing import Annotated

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import MessagesState, StateGraph


class State(MessagesState):
    note: str
    total: Annotated[int, operator.add]
    cart: Annotated[list, operator.add]
    plan: list


def state_graph():
    """Make a graph with a condition, whose node writes the `additional_kwargs` of the last input message."""
    ran = []

    def node(state: State):
        last = state["messages"][-1]
        return {"messages": [AIMessage(f"to {last.content}")], **last.additional_kwargs}

    def condition(state: State):
        ran.append(len(state["messages"]))
        return "__end__"

    graph = StateGraph(State).add_node("node", node).set_entry_point("node").add_conditional_edges("node", condition)
    compiled = graph.compile()
    compiled.ran = ran
    return compiled


def told(agent, text, **values):
    agent.invoke({"messages": [HumanMessage(text, additional_kwargs=values)]})


def said(agent):
    return [message["content"] for message in agent.history()]


def values(agent):
    return {key: agent.state.get(key) for key in ("note", "total", "cart", "plan")}


def unanswered(agent):
    """Return the ids of the calls in a conversation that no later message answers."""
    waiting = set()
    for message in agent.history():
        waiting |= {call["id"] for call in message["tool_calls"]}
        waiting.discard(message.get("tool_call_id"))
    return sorted(waiting)
