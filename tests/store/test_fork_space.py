"""Forks, copies, deletions, prunings and collections in any order leave the remaining threads unchanged."""

from itertools import count
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph, add_messages
from langgraph.types import Command, interrupt
from saver_checkpoints import BLOB, on
from saver_checkpoints import count as count_rows

from agentgit import SQLModelSaver
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE

VERBS = ("say", "ask", "answer", "fork", "copy", "prune", "delete", "collect")

acts = st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 9), st.integers(0, 9)), min_size=4, max_size=16)


def joined(state: list[str], writes: list[list[str]]) -> list[str]:
    """Append all writes to the state, as the reducer of a DeltaChannel."""
    return [*state, *(item for write in writes for item in write)]


class Talk(TypedDict):
    messages: Annotated[list[Any], add_messages]
    log: Annotated[list[str], DeltaChannel(joined, snapshot_frequency=4)]
    last: str


class Told(TypedDict):
    messages: Annotated[list[Any], add_messages]


def talking(saver):
    """Return a graph that logs each message, asks back twice in a subgraph with memory, and answers."""

    def hear(state):
        text = state["messages"][-1].content
        return {"log": [text[:20]], "last": text}

    def reply(state):
        text = state["messages"][-1].content
        if not text.startswith("ask"):
            return {"messages": [("ai", f"heard {len(text)}")]}
        return {"messages": [("ai", f"{interrupt(text)}, {interrupt('sure?')}")]}

    inner = StateGraph(Told).add_node("reply", reply).add_edge(START, "reply").compile(checkpointer=True)
    builder = StateGraph(Talk).add_node("hear", hear).add_node("reply", inner)
    return builder.add_edge(START, "hear").add_edge("hear", "reply").compile(checkpointer=saver)


def history(graph, thread):
    """Return the ids, values, next nodes and pending interrupts of a thread's states, newest first."""
    return [
        (state.config["configurable"]["checkpoint_id"], state.values, state.next, sorted(map(str, state.interrupts)))
        for state in graph.get_state_history(on(thread))
    ]


class Threads:
    """The threads of one example, each with its history after its last change."""

    def __init__(self, saver, name):
        self.saver, self.graph, self.name = saver, talking(saver), name
        self.expected = {}
        self.numbers = count()

    def new(self):
        return f"{self.name}.{next(self.numbers)}"

    def learn(self, thread):
        self.expected[thread] = history(self.graph, thread)

    def act(self, verb, which, where):
        if verb == "collect":
            self.saver.gc()
            return
        if not self.expected or (verb == "say" and which == 9):
            self.expected[thread := self.new()] = []
            verb = "say"
        else:
            thread = list(self.expected)[which % len(self.expected)]
        getattr(self, verb)(thread, where)

    def turn(self, thread, given):
        self.graph.invoke(given, on(thread))
        self.learn(thread)

    def say(self, thread, where):
        text = f"say {where} on {thread} " * (200 if where == 9 else 1)
        self.turn(thread, {"messages": [("user", text)]})

    def ask(self, thread, where):
        self.turn(thread, {"messages": [("user", f"ask {where}")]})

    def answer(self, thread, where):
        waiting = bool(self.expected[thread][0][3])
        self.turn(thread, Command(resume=f"answer {where}") if waiting else {"messages": [("user", "none")]})

    def fork(self, thread, where):
        past, new = self.expected[thread], self.new()
        point = past[where % len(past)]
        self.saver.database.write(lambda transaction: self.saver.store.fork(transaction, thread, point[0], new))
        self.learn(new)
        assert self.expected[new][0][:2] == point[:2]

    def copy(self, thread, where):
        new = self.new()
        self.saver.copy_thread(thread, new)
        self.learn(new)
        assert self.expected[new] == self.expected[thread]

    def prune(self, thread, where):
        newest = self.expected[thread][0]
        self.saver.prune([thread])
        self.learn(thread)
        assert self.expected[thread][0] == newest

    def delete(self, thread, where):
        self.saver.delete_thread(thread)
        del self.expected[thread]
        assert history(self.graph, thread) == []


examples = count()


def goes_on(graph, thread, past):
    """Answer the pending questions of a thread, and assert that another turn continues it."""
    while graph.get_state(on(thread)).interrupts:
        graph.invoke(Command(resume="yes"), on(thread))
    before = graph.get_state(on(thread)).values
    assert before["messages"][: len(past[0][1]["messages"])] == past[0][1]["messages"]
    found = graph.invoke({"messages": [("user", "more")]}, on(thread))
    assert (found["messages"][:-2], found["log"]) == (before["messages"], [*past[0][1]["log"], "more"])


def check(database, acts):
    """Do all acts, and assert that each remaining thread is unchanged, also for a new saver, and can continue."""
    threads = Threads(SQLModelSaver(database), f"example {next(examples)}")
    for act in acts:
        threads.act(*act)
    threads.saver.gc()
    fresh = SQLModelSaver(database)
    for saver in (threads.saver, fresh):
        graph = talking(saver)
        assert {thread: history(graph, thread) for thread in threads.expected} == threads.expected
    for thread, past in threads.expected.items():
        goes_on(talking(fresh), thread, past)
    for thread in threads.expected:
        fresh.delete_thread(thread)
    fresh.gc()
    assert [count_rows(database, table) for table in (GRAPH_CHECKPOINT, GRAPH_WRITE, BLOB)] == [0, 0, 0]


def options(examples):
    """Return the settings of a property; its examples share a database, which is empty after each."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


# Earlier answers that a pending question needs must outlive the rows of those answers.
@pytest.mark.long
@example(
    [
        *(("say", 0, 0), ("ask", 0, 0), ("answer", 0, 1), ("answer", 0, 2)),
        *(("collect", 0, 0), ("fork", 0, 1), ("delete", 0, 0)),
    ]
)
@options(6)
@given(acts)
def test_remaining_threads_are_unchanged(database, acts):
    """After any forks, copies, prunes, deletions and collections, each remaining thread is unchanged."""
    check(database, acts)


@pytest.mark.soak
@options(25)
@given(acts)
def test_remaining_threads_are_unchanged_over_more_examples(database, acts):
    check(database, acts)
