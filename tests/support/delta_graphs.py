"""Graphs with a DeltaChannel, and the visible parts of their checkpoints."""

from typing import Annotated, TypedDict

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer


def delta(every=100, reducer=_messages_delta_reducer):
    """Return a list type whose channel stores the full value only once per `every` writes."""
    return Annotated[list, DeltaChannel(reducer, snapshot_frequency=every)]


def total(state, writes):
    """Append the writes of the steps, and keep the ten newest items."""
    return [*state, *(item for write in writes for item in write)][-10:]


def joined(state, writes):
    """Join dicts."""
    return {name: value for one in (state, *writes) for name, value in one.items()}


def chat(kind, saver=None, answer=None, full=4):
    """Build a graph that answers in a conversation of the given channel kind, and logs in two further steps."""

    class State(TypedDict):
        messages: kind
        log: delta(full, total)

    def say(state):
        count = len(state["messages"])
        return answer(state) if answer else {"messages": [AIMessage(f"re {count}", id=f"a{count}")], "log": [count]}

    graph = StateGraph(State).add_node("say", say)
    for name, number in (("one", -1), ("two", -2)):
        graph.add_node(name, lambda state, number=number: {"log": [number]}).add_edge("say", name)
    return graph.add_edge(START, "say").compile(checkpointer=saver)


def said(text, id):
    """Build the input of a user message with an id."""
    return {"messages": [HumanMessage(text, id=id)]}


def seen(checkpoint):
    """Return the parts of a checkpoint that a user sees."""
    return (
        checkpoint.metadata["message_count"],
        checkpoint.metadata["state_hash"],
        [(message["id"], message["role"], message["content"]) for message in checkpoint.conversation_history],
        checkpoint.session_state,
    )


def all_seen(agent):
    """Return the parts of all checkpoints of an agent that a user sees."""
    return [seen(checkpoint) for checkpoint in agent.checkpoints()]
