"""Forks: a graph continues in a new thread as it would in its own, and neither thread changes the other."""

import operator
import time
from functools import partial
from itertools import product
from typing import Annotated, TypedDict

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, interrupt
from saver_checkpoints import on
from sqlalchemy import select

from agentgit import NotFound
from agentgit.store.threads import pending_writes
from agentgit.store.threads.graph_rows import GraphKey


class Log(TypedDict):
    log: Annotated[list, operator.add]


def point(saver, thread):
    """Return the newest checkpoint of a thread and what waits there, as a checkpoint of agentgit records them."""
    id = head(saver, thread).key.checkpoint_id
    with saver.database.reading() as transaction:
        return id, pending_writes.read(transaction, GraphKey(thread, "", id))


def fork(saver, source, at, target):
    return saver.database.write(lambda transaction: saver.store.fork(transaction, source, at[0], target, at[1]))


def head(saver, thread):
    with saver.database.reading() as transaction:
        return saver.store.newest(transaction, thread)


def rows_of(saver, thread):
    with saver.database.reading() as transaction:
        return [
            sorted(map(tuple, transaction.execute(select(table).where(table.c.thread_id == thread))), key=repr)
            for table in map(backend.table, ("graph_checkpoint", "graph_write"))
        ]


def questions(graph, config):
    return sorted(str(i.value) for task in graph.get_state(config).tasks for i in task.interrupts)


def asking(saver, second=None):
    """Return a graph whose second node asks one or two questions, and the list of its node calls."""
    calls = []

    def before(state):
        calls.append("before")
        return {"log": ["before"]}

    def ask(state):
        calls.append("ask")
        return {"log": [interrupt("A?"), *([interrupt(second)] if second else [])]}

    builder = StateGraph(Log).add_node("before", before).add_node("ask", ask)
    builder.add_edge(START, "before").add_edge("before", "ask").add_edge("ask", END)
    return builder.compile(checkpointer=saver), calls


def parallel(saver, fails=()):
    """Return a graph with two parallel nodes, one of which asks or fails, and the list of its node calls."""
    calls = []

    def work(state):
        calls.append("work")
        return {"log": ["worked"]}

    def ask(state):
        calls.append("ask")
        if fails:
            until_saved(saver, "main", "log")
            raise fails[0]
        return {"log": [interrupt("A?")]}

    builder = StateGraph(Log).add_node("work", work).add_node("ask", ask)
    return builder.add_edge(START, "work").add_edge(START, "ask").compile(checkpointer=saver), calls


def until_saved(saver, thread, task):
    """Wait until a parallel task's write is saved, since LangGraph drops it if another task fails first."""
    for _ in range(1000):
        found = saver.get_tuple(on(thread))  # LangGraph may not have saved the step itself yet
        # The input wrote an empty value to the same channel, in the step before.
        if found and any(channel == task and value for _, channel, value in found.pending_writes):
            return
        time.sleep(0.01)
    raise AssertionError(f"{task} was never saved")


def nested(saver, memory=None):
    """Return a graph with a subgraph that counts turns and asks a question, and the list of its node calls."""
    calls = []

    def count(state):
        calls.append("count")
        return {"log": [f"turn {len(state['log'])}"]}

    def ask(state):
        calls.append("ask")
        return {"log": [interrupt("A?")]}

    inner = StateGraph(Log).add_node("count", count).add_node("ask", ask)
    inner = inner.add_edge(START, "count").add_edge("count", "ask").compile(checkpointer=memory)

    class Outer(TypedDict):
        log: list

    outer = StateGraph(Outer).add_node("inner", inner).add_edge(START, "inner")
    return outer.compile(checkpointer=saver), calls


def functional(saver):
    """Return an entrypoint that asks after a task, and the list of its calls."""
    calls = []

    @task
    def work():
        calls.append("work")
        return "worked"

    @entrypoint(checkpointer=saver)
    def flow(given):
        done = work().result()
        calls.append("ask")
        return {"log": [done, interrupt("A?")]}

    return flow, calls


def pause(saver, graph, thread="main"):
    """Run a graph until it asks, and return that point."""
    graph.invoke({"log": []}, on(thread))
    return point(saver, thread)


def test_a_fork_copies_one_checkpoint_and_no_value(saver):
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [AIMessage("yes", id="a")]})
    graph = builder.add_edge(START, "answer").compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("ok?", id="q")]}, on("main"))
    here, at = head(saver, "main"), point(saver, "main")
    blobs = backend.table("blob")
    with saver.database.reading() as transaction:
        before = transaction.execute(select(blobs.c.hash)).all()
    fork(saver, "main", at, "copy")
    with saver.database.reading() as transaction:
        assert transaction.execute(select(blobs.c.hash)).all() == before
    assert head(saver, "copy").key.checkpoint_id == here.key.checkpoint_id
    assert head(saver, "copy").state_hash == here.state_hash
    checkpoints, writes = rows_of(saver, "copy")
    assert (len(checkpoints), writes) == (1, [])
    assert saver.get_tuple(on("copy")).parent_config is None
    assert graph.get_state(on("copy")).values == graph.get_state(on("main")).values


KINDS = {
    "a node": (asking, "before"),
    "parallel nodes": (parallel, "worked"),
    "a subgraph": (nested, "turn 0"),
    "a subgraph with memory": (partial(nested, memory=True), "turn 0"),
    "an entrypoint": (functional, "worked"),
}
"""The graphs that ask after a finished task, and what the task logs."""


def test_a_fork_from_a_pause_asks_again_and_repeats_no_finished_task(saver):
    for (kind, (build, earlier)), finished in product(KINDS.items(), (False, True)):
        graph, calls = build(saver)
        thread, copy = f"{kind}, {finished}", f"copy of {kind}, {finished}"
        paused = pause(saver, graph, thread)
        if finished:
            graph.invoke(Command(resume="old"), on(thread))
        fork(saver, thread, paused, copy)
        assert questions(graph, on(copy)) == ["A?"], thread
        calls.clear()
        assert sorted(graph.invoke(Command(resume="new"), on(copy))["log"]) == sorted([earlier, "new"]), thread
        assert calls == ["ask"], thread


def test_a_fork_and_its_source_leave_each_other_unchanged(saver):
    """A question has the same id in both."""
    graph, _ = asking(saver)
    fork(saver, "main", pause(saver, graph), "copy")
    before = rows_of(saver, "main")
    (mine,), (its,) = graph.get_state(on("main")).interrupts, graph.get_state(on("copy")).interrupts
    assert mine.id == its.id
    assert graph.invoke(Command(resume={its.id: "x"}), on("copy"))["log"] == ["before", "x"]
    assert rows_of(saver, "main") == before
    copied = rows_of(saver, "copy")
    assert graph.invoke(Command(resume="y"), on("main"))["log"] == ["before", "y"]
    assert rows_of(saver, "copy") == copied


@pytest.mark.parametrize("finished", [False, True])
def test_answers_before_a_second_question_are_kept_in_a_fork(saver, finished):
    graph, _ = asking(saver, second="B?")
    pause(saver, graph)
    graph.invoke(Command(resume="a"), on("main"))
    paused = point(saver, "main")
    if finished:
        assert graph.invoke(Command(resume="b"), on("main"))["log"] == ["before", "a", "b"]
    fork(saver, "main", paused, "copy")
    assert questions(graph, on("copy")) == ["B?"]
    assert graph.invoke(Command(resume="c"), on("copy"))["log"] == ["before", "a", "c"]
    fork(saver, "main", paused, "again")
    fork(saver, "again", paused, "twice")
    assert graph.invoke(Command(resume="d"), on("twice"))["log"] == ["before", "a", "d"]


def test_a_fork_reruns_a_failed_task_but_not_a_finished_one(saver):
    """A fork lacks what the task wrote when the source retried it."""
    fails = [RuntimeError("no")]
    graph, calls = parallel(saver, fails)
    with pytest.raises(RuntimeError):
        graph.invoke({"log": []}, on("main"))
    failed = point(saver, "main")
    fork(saver, "main", failed, "at once")
    fails.clear()
    graph.invoke(None, on("main"))
    graph.invoke(Command(resume="old"), on("main"))
    fork(saver, "main", failed, "later")
    for thread in ("at once", "later"):
        calls.clear()
        assert graph.get_state(on(thread)).values["log"] == ["worked"]
        graph.invoke(None, on(thread))
        assert (calls, questions(graph, on(thread))) == (["ask"], ["A?"])


def test_a_question_that_the_source_has_answered_is_open_in_a_fork_from_the_pause(saver):
    """An update that came with the answer was written on the paused checkpoint; the fork lacks it."""
    graph, _ = asking(saver)
    paused = pause(saver, graph)
    graph.invoke(Command(resume="old", update={"log": ["sent along"]}), on("main"))
    fork(saver, "main", paused, "copy")
    assert questions(graph, on("copy")) == ["A?"]
    assert graph.get_state(on("copy")).values["log"] == ["before"]
    assert graph.invoke(Command(resume="new"), on("copy"))["log"] == ["before", "new"]


def test_a_fork_from_a_breakpoint_excludes_later_changes(saver):
    """A fork from before a node runs the node, although the source was edited at the breakpoint."""
    graph, calls = asking(saver)
    graph.invoke({"log": []}, on("main"), interrupt_before=["before"])
    paused = point(saver, "main")
    graph.update_state(on("main"), {"log": ["edited"]}, as_node="before")
    fork(saver, "main", paused, "copy")
    graph.invoke(None, on("copy"))
    assert graph.get_state(on("copy")).values["log"] == ["before"]
    assert calls == ["before", "ask"]


def test_a_subgraph_with_memory_forks_with_its_memory_at_that_point(saver):
    graph, _ = nested(saver, memory=True)
    points = []
    for turn in range(3):
        graph.invoke({"log": []}, on("main"))
        graph.invoke(Command(resume=f"answer {turn}"), on("main"))
        points.append(point(saver, "main"))
    for turn, at in enumerate(points):
        fork(saver, "main", at, f"copy {turn}")
        graph.invoke({"log": []}, on(f"copy {turn}"))
        log = graph.invoke(Command(resume="new"), on(f"copy {turn}"))["log"]
        answers = [entry for entry in log if not entry.startswith("turn")]
        assert answers == [*(f"answer {n}" for n in range(turn + 1)), "new"]
    fork(saver, "copy 0", points[0], "deeper")
    graph.invoke({"log": []}, on("deeper"))
    assert graph.invoke(Command(resume="x"), on("deeper"))["log"] == ["turn 0", "answer 0", "turn 2", "x"]


def test_a_fork_of_an_unknown_checkpoint_is_refused(saver):
    graph, _ = asking(saver)
    graph.invoke({"log": []}, on("main"))
    with pytest.raises(NotFound, match="no graph checkpoint"):
        fork(saver, "main", ("no such id", None), "copy")
