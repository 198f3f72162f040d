"""Forks: a graph continues in a new thread as it would in its own, and neither thread changes the other."""

import operator
from typing import Annotated, TypedDict

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from saver_checkpoints import on
from sqlalchemy import select

from agentgit import Conflict, NotFound


class Log(TypedDict):
    log: Annotated[list, operator.add]


def fork(saver, source, checkpoint_id, target):
    return saver.database.write(lambda connection: saver.store.fork(connection, source, checkpoint_id, target))


def head(saver, thread):
    with saver.database.reading() as connection:
        return saver.store.head(connection, thread)


def rows_of(saver, thread):
    with saver.database.reading() as connection:
        return [
            sorted(map(tuple, connection.execute(select(table).where(table.c.thread_id == thread))), key=repr)
            for table in map(backend.table, ("graph_checkpoint", "graph_write"))
        ]


def questions(graph, config):
    return sorted(str(i.value) for task in graph.get_state(config).tasks for i in task.interrupts)


def asking(saver):
    """Return a graph whose second node asks a question, and the list of its node calls."""
    calls = []

    def before(state):
        calls.append("before")
        return {"log": ["before"]}

    def ask(state):
        calls.append("ask")
        return {"log": [interrupt("A?")]}

    builder = StateGraph(Log).add_node("before", before).add_node("ask", ask)
    builder.add_edge(START, "before").add_edge("before", "ask").add_edge("ask", END)
    return builder.compile(checkpointer=saver), calls


def pause(saver, graph):
    """Run a graph in the thread main until it asks, and return the id of its checkpoint."""
    graph.invoke({"log": []}, on("main"))
    return head(saver, "main").checkpoint_id


def test_a_fork_copies_one_checkpoint_and_no_value(saver):
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [AIMessage("yes", id="a")]})
    graph = builder.add_edge(START, "answer").compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("ok?", id="q")]}, on("main"))
    here = head(saver, "main")
    blobs = backend.table("blob")
    with saver.database.reading() as connection:
        before = connection.execute(select(blobs.c.hash)).all()
    fork(saver, "main", here.checkpoint_id, "copy")
    with saver.database.reading() as connection:
        assert connection.execute(select(blobs.c.hash)).all() == before
    assert head(saver, "copy") == here
    checkpoints, writes = rows_of(saver, "copy")
    assert (len(checkpoints), writes) == (1, [])
    assert saver.get_tuple(on("copy")).parent_config is None
    assert graph.get_state(on("copy")).values == graph.get_state(on("main")).values


def test_a_fork_continues_and_leaves_its_source_unchanged(saver):
    """A fork asks a pending question again under the same id; finished nodes do not run again."""
    graph, calls = asking(saver)
    fork(saver, "main", pause(saver, graph), "copy")
    before = rows_of(saver, "main")
    (mine,), (its,) = graph.get_state(on("main")).interrupts, graph.get_state(on("copy")).interrupts
    assert (mine.id, mine.value) == (its.id, its.value)
    calls.clear()
    assert graph.invoke(Command(resume={its.id: "x"}), on("copy"))["log"] == ["before", "x"]
    assert calls == ["ask"]
    assert rows_of(saver, "main") == before
    copied = rows_of(saver, "copy")
    assert graph.invoke(Command(resume="y"), on("main"))["log"] == ["before", "y"]
    assert rows_of(saver, "copy") == copied


def test_a_question_that_the_source_has_answered_is_open_in_a_fork_from_the_pause(saver):
    """An update that came with the answer was written on the paused checkpoint; the fork lacks it."""
    graph, _ = asking(saver)
    paused = pause(saver, graph)
    graph.invoke(Command(resume="old", update={"log": ["sent along"]}), on("main"))
    fork(saver, "main", paused, "copy")
    assert questions(graph, on("copy")) == ["A?"]
    assert graph.get_state(on("copy")).values["log"] == ["before"]
    assert graph.invoke(Command(resume="new"), on("copy"))["log"] == ["before", "new"]


def test_an_answer_that_led_to_a_failure_can_be_replaced_in_a_fork(saver):
    def ask(state):
        answer = interrupt("A?")
        if answer == "bad":
            raise RuntimeError(answer)
        return {"log": [answer]}

    graph = StateGraph(Log).add_node("ask", ask).add_edge(START, "ask").compile(checkpointer=saver)
    graph.invoke({"log": []}, on("main"))
    with pytest.raises(RuntimeError):
        graph.invoke(Command(resume="bad"), on("main"))
    fork(saver, "main", head(saver, "main").checkpoint_id, "copy")
    graph.invoke(None, on("copy"))
    assert questions(graph, on("copy")) == ["A?"]
    assert graph.invoke(Command(resume="good"), on("copy"))["log"] == ["good"]


def test_a_fork_from_a_breakpoint_excludes_later_changes(saver):
    """A fork from before a node runs the node, although the source was edited at the breakpoint."""
    graph, calls = asking(saver)
    graph.invoke({"log": []}, on("main"), interrupt_before=["before"])
    paused = head(saver, "main").checkpoint_id
    graph.update_state(on("main"), {"log": ["edited"]}, as_node="before")
    fork(saver, "main", paused, "copy")
    graph.invoke(None, on("copy"))
    assert graph.get_state(on("copy")).values["log"] == ["before"]
    assert calls == ["before", "ask"]


def nested(saver):
    """Return a graph with a subgraph with memory that counts turns and asks a question, and the list of its calls."""
    calls = []

    def count(state):
        calls.append("count")
        return {"log": [f"turn {len(state['log'])}"]}

    def ask(state):
        calls.append("ask")
        return {"log": [interrupt("A?")]}

    inner = StateGraph(Log).add_node("count", count).add_node("ask", ask)
    inner = inner.add_edge(START, "count").add_edge("count", "ask").compile(checkpointer=True)

    class Outer(TypedDict):
        log: list

    outer = StateGraph(Outer).add_node("inner", inner).add_edge(START, "inner")
    return outer.compile(checkpointer=saver), calls


def test_a_subgraph_with_memory_continues_where_it_paused(saver):
    graph, calls = nested(saver)
    paused = pause(saver, graph)
    graph.invoke(Command(resume="old"), on("main"))
    fork(saver, "main", paused, "copy")
    calls.clear()
    assert graph.invoke(Command(resume="new"), on("copy"))["log"] == ["turn 0", "new"]
    assert calls == ["ask"]


def test_a_subgraph_with_memory_forks_with_its_memory_at_that_point(saver):
    graph, _ = nested(saver)
    points = []
    for turn in range(3):
        graph.invoke({"log": []}, on("main"))
        graph.invoke(Command(resume=f"answer {turn}"), on("main"))
        points.append(head(saver, "main").checkpoint_id)
    for turn, point in enumerate(points):
        fork(saver, "main", point, f"copy {turn}")
        graph.invoke({"log": []}, on(f"copy {turn}"))
        log = graph.invoke(Command(resume="new"), on(f"copy {turn}"))["log"]
        answers = [entry for entry in log if not entry.startswith("turn")]
        assert answers == [*(f"answer {n}" for n in range(turn + 1)), "new"]
    fork(saver, "copy 0", points[0], "deeper")
    graph.invoke({"log": []}, on("deeper"))
    assert graph.invoke(Command(resume="x"), on("deeper"))["log"] == ["turn 0", "answer 0", "turn 2", "x"]


def test_a_fork_of_an_unknown_checkpoint_or_to_a_used_thread_is_refused(saver):
    graph, _ = asking(saver)
    graph.invoke({"log": []}, on("main"))
    graph.invoke({"log": []}, on("other"))
    before = rows_of(saver, "other")
    with pytest.raises(NotFound, match="no graph checkpoint"):
        fork(saver, "main", "no such id", "copy")
    with pytest.raises(Conflict, match="already"):
        fork(saver, "main", head(saver, "main").checkpoint_id, "other")
    assert rows_of(saver, "other") == before
