"""Graphs with a DeltaChannel, and what is seen of them."""

from typing import Annotated, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer

from agentgit import SQLModelSaver


def delta(every=100, reducer=_messages_delta_reducer):
    """A list whose value is stored in full only every so many writes."""
    return Annotated[list, DeltaChannel(reducer, snapshot_frequency=every)]


def total(state, writes):
    """Join what steps wrote, and keep the ten newest."""
    return [*state, *(item for write in writes for item in write)][-10:]


def joined(state, writes):
    """Join dicts."""
    return {name: value for one in (state, *writes) for name, value in one.items()}


def chat(kind, saver=None, answer=None, full=4):
    """Build a graph that answers in a conversation of some kind, and notes in two steps how much was said."""

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
    """What a user says, under an id."""
    return {"messages": [HumanMessage(text, id=id)]}


def seen(checkpoint):
    """What a person sees of a checkpoint."""
    return (
        checkpoint.metadata["message_count"],
        checkpoint.metadata["state_hash"],
        [(message["id"], message["role"], message["content"]) for message in checkpoint.conversation_history],
        checkpoint.session_state,
    )


def all_seen(agent):
    """What a person sees of the checkpoints of an agent."""
    return [seen(checkpoint) for checkpoint in agent.checkpoints()]


@pytest.fixture
def saver(database):
    """A saver on each kind of database."""
    return SQLModelSaver(database)
