"""Concurrent and late writers of a thread raise Conflict, and stored data is neither lost nor revived."""

import threading
import time

import backend
import pytest
from chains import chain, says
from langgraph.types import Command, interrupt
from saver_checkpoints import count, on, put, values, work_in_next_put

from agentgit import Conflict, SQLModelSaver


class Gate:
    """A gate that holds a node until it is opened, and signals when the node has arrived."""

    def __init__(self):
        self.arrived, self.opened = threading.Event(), threading.Event()

    def wait(self):
        self.arrived.set()
        assert self.opened.wait(60)


def gated(saver, gate):
    """Compile a graph of two nodes, the first of which waits at the gate."""

    def first(state):
        if gate is not None:
            gate.wait()
        return {"messages": [("ai", "one")]}

    return chain(first, lambda _: {"messages": []}, checkpointer=saver)


SLOW = {"messages": [("user", "slow")]}


def run_beside(graph, gate, meanwhile, given=SLOW, config=None, **how):
    """Run a turn, call `meanwhile` while its node waits at the gate, and return what the turn raised."""
    raised = []

    def turn():
        try:
            graph.invoke(given, config or on("t"), **how)
        except Exception as error:  # noqa: BLE001  # the test checks the error
            raised.append(error)

    thread = threading.Thread(target=turn)
    thread.start()
    assert gate.arrived.wait(60)
    if given is SLOW and how.get("durability") != "exit":  # else nothing is stored before the end
        while graph.get_state(on("t")).next != (next(iter(graph.builder.nodes)),):
            time.sleep(0.01)
    meanwhile()
    gate.opened.set()
    thread.join(60)
    return raised


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("begun", [False, True])
def test_a_second_run_on_a_thread_is_detected(saver, durability, begun):
    if begun:
        gated(saver, None).invoke({"messages": [("user", "before")]}, on("t"))
    gate, other = Gate(), gated(SQLModelSaver(saver.database), None)
    raised = run_beside(
        gated(saver, gate),
        gate,
        lambda: other.invoke({"messages": [("user", "quick")]}, on("t")),
        durability=durability,
    )
    assert [type(error) for error in raised] == [Conflict]
    assert "Two runs use thread 't'" in str(raised[0])
    assert [m.content for m in other.get_state(on("t")).values["messages"]][-2:] == ["quick", "one"]


def test_a_state_update_during_a_run_is_detected(saver):
    gated(saver, None).invoke({"messages": [("user", "before")]}, on("t"))
    gate, other = Gate(), gated(saver, None)
    raised = run_beside(gated(saver, gate), gate, lambda: other.update_state(on("t"), {"messages": [("ai", "edited")]}))
    assert [type(error) for error in raised] == [Conflict]
    assert other.get_state(on("t")).values["messages"][-1].content == "edited"


def test_a_run_from_an_explicit_checkpoint_is_no_conflict(saver):
    graph = gated(saver, None)
    graph.invoke({"messages": [("user", "one")]}, on("t"))
    early = graph.get_state(on("t")).config
    graph.invoke({"messages": [("user", "two")]}, on("t"))
    graph.invoke({"messages": [("user", "other")]}, early)
    graph.invoke({"messages": [("user", "exit")]}, early, durability="exit")
    graph.update_state(early, {"messages": [("ai", "edited")]})
    graph.update_state(on("t"), None, as_node="__copy__")
    assert graph.get_state(on("t")).values["messages"][-1].content == "edited"


def asking(saver, gate=None):
    """Compile a graph with a subgraph that asks a question in its second node; the last node waits at the gate."""

    def ask(state):
        return {"messages": [("ai", interrupt("ok?"))]}

    def last(state):
        if gate is not None:
            gate.wait()
        return {"messages": []}

    inner = chain(says("noted"), ask, checkpointer=True)
    return chain(inner, says("middle"), last, checkpointer=saver)


def ask_and_answer(graph):
    """Run a turn with an answer, and return the config of the subgraph's checkpoint at the question."""
    graph.invoke({"messages": [("user", "hi")]}, on("t"))
    asked = graph.get_state(on("t"), subgraphs=True).tasks[0].state.config
    graph.invoke(Command(resume="first"), on("t"))
    return asked


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_replay_from_a_checkpoint_of_a_subgraph_is_no_conflict(saver, durability):
    graph = asking(saver)
    asked = ask_and_answer(graph)
    graph.invoke({"messages": [("user", "more")]}, on("t"))
    found = graph.invoke(None, asked, durability=durability)
    assert [question.value for question in found["__interrupt__"]] == ["ok?"]
    graph.invoke(Command(resume="second"), asked, durability=durability)
    texts = [message.content for message in graph.get_state(on("t")).values["messages"]]
    assert texts == ["hi", "noted", "second", "middle"]


async def test_a_subgraph_is_edited_and_run_from_an_earlier_checkpoint(saver):
    graph = asking(saver)
    asked = ask_and_answer(graph)
    edited = await graph.aupdate_state(asked, {"messages": [("ai", "edited")]})
    found = await graph.ainvoke(None, edited)
    assert [question.value for question in found["__interrupt__"]] == ["ok?"]
    assert graph.get_state(on("t"), subgraphs=True).tasks[0].state.values["messages"][-1].content == "edited"


def test_a_replay_from_a_subgraph_that_another_run_overtakes_is_detected(saver):
    """A replay from a subgraph's checkpoint is as exposed to a race as any run, once it has saved a step."""
    asked = ask_and_answer(asking(saver))
    gate, other = Gate(), asking(SQLModelSaver(saver.database))
    raised = run_beside(
        asking(saver, gate),
        gate,
        lambda: other.update_state(on("t"), {"messages": [("ai", "quick")]}, as_node="n2"),
        Command(resume="second"),
        asked,
        durability="sync",
    )
    assert [type(error) for error in raised] == [Conflict]
    assert other.get_state(on("t")).values["messages"][-1].content == "quick"


def test_a_repeated_put_of_a_checkpoint_is_no_conflict(saver):
    called = {"metadata": {"thread_id": "t"}}
    first = put(saver, "t", {"a": 1}, config={**on("t", checkpoint_ns=""), **called})
    id = first["configurable"]["checkpoint_id"]
    where = {**on("t", checkpoint_ns="", checkpoint_id=id), **called}
    second = put(saver, "t", {"a": 2}, config=where)
    put(saver, "t", {"a": 3}, config={**second, **called})
    put(saver, "t", {"a": 2}, id=second["configurable"]["checkpoint_id"], config=where)
    assert saver.get_tuple(on("t")).checkpoint["channel_values"] == {"a": 3}
    with pytest.raises(Conflict):
        put(saver, "t", {"a": 4}, config=where)


def test_a_cached_checkpoint_replaced_by_another_program_is_read_again(saver):
    called = {"metadata": {"thread_id": "t"}}
    first = put(saver, "t", {"a": 1, "b": 1}, config={**on("t", checkpoint_ns=""), **called})
    id = first["configurable"]["checkpoint_id"]
    put(SQLModelSaver(saver.database), "t", {"a": 2, "b": 1}, id=id, config={**on("t", checkpoint_ns=""), **called})
    second = put(saver, "t", {"a": 1, "b": 3}, config={**first, **called}, changed=["b"])
    assert values(saver, second) == {"a": 2, "b": 3}


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_deleted_thread_stays_deleted(saver, durability):
    gated(saver, None).invoke({"messages": [("user", "before")]}, on("t"))
    gate = Gate()
    raised = run_beside(gated(saver, gate), gate, lambda: saver.delete_thread("t"), durability=durability)
    assert {type(error) for error in raised} == {Conflict}
    assert saver.get_tuple(on("t")) is None
    assert count(saver.database, backend.table("graph_checkpoint")) == 0
    if durability == "sync":  # else writes without a checkpoint may be stored, which `gc` removes
        assert count(saver.database, backend.table("graph_write")) == 0


def test_a_subgraph_cannot_revive_a_deleted_thread(saver):
    inner = chain(lambda _: {"messages": [("ai", "x")]})

    def outer(state):
        gate.wait()
        return inner.invoke(state)

    gate = Gate()
    raised = run_beside(chain(outer, checkpointer=saver), gate, lambda: saver.delete_thread("t"))
    assert {type(error) for error in raised} == {Conflict}
    assert count(saver.database, backend.table("graph_checkpoint")) == 0


def test_a_write_stored_before_its_checkpoint_is_kept(saver):
    saver.put_writes(on("t", checkpoint_ns="", checkpoint_id="later"), [("a", 1)], "task")
    put(saver, "t", {"a": 0}, id="later")
    assert saver.get_tuple(on("t")).pending_writes == [("task", "a", 1)]
    assert count(saver.database, backend.table("blob")) == 2


def test_a_write_during_the_transaction_of_its_checkpoint_is_kept(saver):
    late = []

    def inside(id, is_there):
        assert is_there
        where = on("t", checkpoint_ns="", checkpoint_id=id)
        writer = threading.Thread(target=lambda: late.append(saver.put_writes(where, [("a", 1)], "task")))
        writer.start()
        writer.join(0.5)  # it is there; it may wait for this transaction
        waiting.append(writer)

    waiting = []
    work_in_next_put(saver, inside)
    put(saver, "t", {"a": 0})
    waiting[0].join(60)
    assert late == [None]
    assert saver.get_tuple(on("t")).pending_writes == [("task", "a", 1)]
