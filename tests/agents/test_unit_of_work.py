"""A turn collects its steps: who reads in the turn sees them, others see them soon, and a failed write loses none."""

import threading
import time

import backend
import faults
import points
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import agentgit
from agentgit import Conflict, Unavailable

TIME = 30
"""The seconds that a test waits for something that happens at once on an idle machine."""


def graph_of(*nodes):
    """Compile a graph with these nodes, one after the other."""
    builder = StateGraph(MessagesState)
    for number, node in enumerate(nodes):
        builder.add_node(str(number), node)
        builder.add_edge(str(number - 1) if number else START, str(number))
    return builder.compile()


def says(text):
    """Return a node that answers with a text."""
    return lambda state: {"messages": [AIMessage(text)]}


def texts(agent):
    """Return the texts of the messages in the newest state of an agent."""
    return [message.content for message in agent.get_state().values.get("messages", [])]


def until(holds):
    """Wait until a condition holds."""
    deadline = time.monotonic() + TIME
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_steps_of_a_slow_turn_are_stored_while_it_runs(repo):
    """Another repository sees the steps before a slow node although the turn has written nothing else."""
    seen, other = [], agentgit.open(repo.context.store.database.url)

    def slow(state):
        other_agent = other.wrap(graph_of(says("a")), "s")
        until(lambda: backend.from_outside(lambda: texts(other_agent)) == ["hi", "quick"])
        seen.append(True)
        return {"messages": [AIMessage("slow")]}

    with other:
        agent = repo.wrap(graph_of(says("quick"), slow), "s")
        agent.invoke({"messages": [("user", "hi")]})
    assert seen == [True]
    assert texts(agent) == ["hi", "quick", "slow"]


def test_a_reader_in_a_turn_sees_the_steps_of_the_turn(repo):
    """What a node reads through its agent or another handle has every step before the node."""
    seen = []

    def looking(state):
        seen.append((texts(agent), texts(repo.wrap(graph_of(says("a")), "s"))))
        return {"messages": [AIMessage("looked")]}

    agent = repo.wrap(graph_of(says("one"), looking), "s")
    agent.invoke({"messages": [("user", "hi")]}, durability="sync")
    assert seen == [(["hi", "one"], ["hi", "one"])]


def test_steps_whose_write_failed_in_the_background_are_written_later(repo):
    """If the database cannot be written for a while, the turn goes on, and its end stores every step."""
    agent = repo.wrap(graph_of(says("one"), lambda state: fail_and_answer(), says("two")), "s")

    def fail_and_answer():
        failed = threading.Event()

        def refuse(*_, **__):
            if threading.current_thread().name == "agentgit-flush":
                failed.set()
                raise Unavailable("no space left")

        with faults.before(points.EVERY_WRITE, refuse, in_this_thread=False):
            assert failed.wait(TIME)
        return {"messages": [AIMessage("failed")]}

    agent.invoke({"messages": [("user", "hi")]})
    assert texts(agent) == ["hi", "one", "failed", "two"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_turn_that_was_taken_over_stores_none_of_its_steps(repo):
    """If another program has taken the branch, the turn ends with Conflict, and none of its later steps is stored."""
    agent = repo.wrap(graph_of(lambda state: lose(), says("late")), "s")
    other = agentgit.open(repo.context.store.database.url)

    def lose():
        until(lambda: texts(repo.wrap(graph_of(says("a")), "s")) == ["hi"])
        other.session("s").recover(force=True)
        return {"messages": [AIMessage("lost")]}

    with other, pytest.raises(Conflict, match="taken over"):
        agent.invoke({"messages": [("user", "hi")]})
    assert texts(repo.wrap(graph_of(says("a")), "s")) == ["hi"]
    assert repo.maintenance.fsck(3).is_sound
