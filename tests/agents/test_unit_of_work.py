"""A turn collects its steps: who reads in the turn sees them, others see them soon, and a failed write loses none."""

import asyncio
import os
import subprocess
import sys
import threading
import time

import backend
import faults
import points
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from scripted import World

import agentgit
from agentgit import Conflict, NotFound, Unavailable

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


def test_a_closed_repository_has_the_steps_of_a_stream_that_was_left(repo):
    """When a repository is closed while a stream is half read, the steps of the stream are stored."""
    with agentgit.open(backend.url(repo)) as leaving:
        agent = leaving.wrap(graph_of(says("one"), says("two"), says("three")), "s")
        stream = agent.stream({"messages": [("user", "hi")]}, stream_mode="values")
        for _ in range(3):
            next(stream)  # LangGraph saves a step when the next one is asked for
    assert texts(repo.wrap(graph_of(says("a")), "s"))[:2] == ["hi", "one"]
    with pytest.raises(Unavailable, match="was closed"):
        list(stream)


LEAVING = """
import atexit, sys, threading, time
import agentgit
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

address, threads_end, *names = sys.argv[1:]
together, reached = threading.Barrier(len(names)), threading.Barrier(len(names) + 1)
plain_start = threading.Thread.start

def one(state):
    together.wait(60)
    return {"messages": [AIMessage("one")]}

def wait(state):
    reached.wait(60)
    time.sleep(60)

def start(thread):
    if thread.name == "agentgit-flush":
        raise RuntimeError("can't create new thread at interpreter shutdown")
    plain_start(thread)

def start_no_more():
    threading.Thread.start = start

builder = StateGraph(MessagesState).add_node("one", one).add_node("wait", wait)
graph = builder.add_edge(START, "one").add_edge("one", "wait").compile()
repo = agentgit.open(address)
agents = [repo.wrap(graph, name) for name in names]
if threads_end == "before":
    start_no_more()
elif threads_end == "at the end":
    atexit.register(start_no_more)
for agent in agents:
    threading.Thread(target=agent.invoke, args=[{"messages": [("user", "hi")]}], daemon=True).start()
reached.wait(60)
"""


@pytest.mark.long
@pytest.mark.parametrize("threads_end", ["never", "at the end", "before"])
def test_a_program_that_ends_has_the_steps_of_turns_in_threads(repo, threads_end):
    """When a program ends while daemon threads run turns, the steps of all of them are stored.

    From Python 3.12 on, a program that ends can start no thread, so the steps are written by those that there are.
    """
    names = ["a", "b", "c", "d"]
    command = [sys.executable, "-c", LEAVING, backend.address(repo), threads_end, *names]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # written above
    assert ended.stderr == ""
    assert [texts(repo.wrap(graph_of(says("a")), name)) for name in names] == [["hi", "one"]] * len(names)


def test_a_slow_write_in_the_background_delays_no_other_turn(repo, tmp_path):
    """While the background writes slowly for one turn, it soon writes the steps of another turn, too."""
    slow_write, other_is_stored, waited = threading.Event(), threading.Event(), []
    other = agentgit.open(tmp_path / "other.db")

    def hold(plain, unit):
        if not waited:
            waited.append(unit)
            slow_write.set()
            assert other_is_stored.wait(TIME)
        plain(unit)

    def look(state):
        until(lambda: backend.from_outside(lambda: texts(reader)) == ["hi", "quick"])
        other_is_stored.set()
        return {"messages": [AIMessage("slow")]}

    with other, faults.around(points.FLUSH_IN_BACKGROUND, hold):
        reader = agentgit.open(tmp_path / "other.db").wrap(graph_of(says("a")), "s")
        first = repo.wrap(graph_of(says("quick"), lambda state: {"messages": [str(other_is_stored.wait(TIME))]}), "s")
        turn = threading.Thread(target=first.invoke, args=[{"messages": [("user", "hi")]}])
        turn.start()
        assert slow_write.wait(TIME)
        other.wrap(graph_of(says("quick"), look), "s").invoke({"messages": [("user", "hi")]})
        turn.join(TIME)
    assert texts(first) == ["hi", "quick", "True"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_background_writes_for_one_turn_after_the_other(repo):
    """As long as no write is slow, the steps of many turns are written by one thread at a time."""
    running, most, lock = [], [], threading.Lock()
    stored = threading.Barrier(8)

    def one_at_a_time(flush, unit):
        with lock:
            running.append(unit)
            most.append(len(running))
        flush(unit)
        with lock:
            running.remove(unit)

    def turn(number):
        other = agentgit.open(backend.url(repo))

        def wait(state):
            with other:
                agent = other.wrap(graph_of(says("a")), f"s{number}")
                until(lambda: backend.from_outside(lambda: texts(agent)) == ["hi", "one"])
            stored.wait(TIME)
            return {"messages": [AIMessage("two")]}

        repo.wrap(graph_of(says("one"), wait), f"s{number}").invoke({"messages": [("user", "hi")]})

    with faults.setting(points.SLOW_FLUSH, 10 * TIME), faults.around(points.FLUSH_IN_BACKGROUND, one_at_a_time):
        threads = [threading.Thread(target=turn, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(most) >= 8
    assert max(most) == 1


def test_a_process_that_is_forked_in_a_turn_writes_nothing_of_the_turn(repo):
    """If a process is forked in a turn, the child can read, and each call of the turn is stored once, by the parent."""
    world = World()

    def fork(state):
        world.tool("look").invoke({})
        child = os.fork()
        if not child:
            code = 1
            try:
                with agentgit.open(backend.url(repo)) as own:
                    code = 0 if own.session("s").log() and repo.session("s").tool_track() == [] else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        return {"messages": [AIMessage("forked")]}

    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        agent = repo.wrap(graph_of(fork), "s", effects=world.effects(), check_effects=False)
        agent.invoke({"messages": [("user", "hi")]})
    assert [(call.tool_name, call.status) for call in agent.tool_track()] == [("look", "done")]
    assert texts(agent) == ["hi", "forked"]
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
async def test_a_collection_on_the_loop_of_a_turn_stops_neither(repo):
    """Readers in an async turn and collections on the same event loop do not wait for each other for ever."""
    saver, ended = backend.saver(repo), asyncio.Event()

    async def reading(state):
        for number in range(10):
            await world.tool("look").ainvoke({})
            assert len(agent.tool_track()) == number + 1  # a sync reader
            assert [one async for one in agent.aget_state_history()]
            await asyncio.sleep(0.001)
        return {"messages": [AIMessage("read")]}

    async def collect():
        while not ended.is_set():
            await saver.agc()

    world = World()
    agent = repo.wrap(graph_of(says("one"), reading), "s", effects=world.effects(), check_effects=False)
    collecting = asyncio.create_task(collect())
    await asyncio.wait_for(agent.ainvoke({"messages": [("user", "hi")]}), TIME)
    ended.set()
    await collecting
    assert texts(agent) == ["hi", "one", "read"]


def test_a_fork_of_a_running_turn_runs_although_the_turn_has_acted(repo):
    """A branch that is forked before the calls of a running turn does not diverge because of them."""
    world, forks = World(), []

    def act(state):
        world.tool("add").invoke({"item": "chair"})
        forks.append(repo.session("s").fork("start"))
        return {"messages": [AIMessage("acted")]}

    repo.wrap(graph_of(says("one")), "s").invoke({"messages": [("user", "hi")]})
    repo.session("s").checkpoint("start")
    agent = repo.wrap(graph_of(act), "s", effects=world.effects(), check_effects=False)
    agent.invoke({"messages": [("user", "act")]})
    branch = repo.session("s").branches()[-1].name
    fork = repo.wrap(graph_of(says("two")), "s", effects=world.effects(), check_effects=False).switch(
        branch, sync="note"
    )
    fork.invoke({"messages": [("user", "go on")]})
    assert texts(fork)[-2:] == ["go on", "two"]


def test_rows_that_wait_while_all_threads_write_get_another_thread(repo):
    """Two turns whose rows wait at once are both written in the background, although the first write takes long."""
    stuck, free, seen = threading.Event(), threading.Event(), []

    def hold(plain, unit):
        if not stuck.is_set():
            stuck.set()
            assert free.wait(TIME)
        plain(unit)
        seen.append(unit)

    def wait(state):
        until(lambda: len(seen) >= 1)
        free.set()
        return {"messages": [AIMessage("waited")]}

    agents = [repo.wrap(graph_of(says("quick"), wait), name) for name in "ab"]
    with faults.around(points.FLUSH_IN_BACKGROUND, hold):
        turns = [threading.Thread(target=agent.invoke, args=[{"messages": [("user", "hi")]}]) for agent in agents]
        for turn in turns:
            turn.start()
        for turn in turns:
            turn.join(TIME)
    assert [texts(agent) for agent in agents] == 2 * [["hi", "quick", "waited"]]


def test_a_session_that_is_deleted_during_its_turn_is_not_found(repo):
    """The turn of a session that somebody recovered and deleted raises NotFound, and leaves nothing behind."""

    def delete(state):
        with agentgit.open(backend.url(repo)) as other:
            session = other.session("s")
            session.recover(force=True)
            session.delete()
        return {"messages": [("ai", "too late")]}

    agent = repo.wrap(graph_of(delete), "s")
    with pytest.raises(NotFound):
        agent.run("hello")
    assert repo.sessions() == []
    assert repo.maintenance.fsck().is_sound
