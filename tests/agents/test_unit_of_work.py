"""A turn collects its steps: who reads in the turn sees them, others see them soon, and a failed write loses none."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import backend
import faults
import points
import pytest
from chains import HI, chain, says, texts
from scripted import World

import agentgit
from agentgit import NotFound, Unavailable

TIME = 30
"""The seconds that a test waits for something that happens at once on an idle machine."""


def until(holds):
    deadline = time.monotonic() + TIME
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_steps_of_a_slow_turn_are_stored_while_it_runs(repo):
    with agentgit.open(repo.context.store.database.url) as other:
        reader = other.wrap(chain(says("a")), "s")

        def wait():
            until(lambda: backend.from_outside(lambda: texts(reader)) == ["hi", "quick"])

        agent = repo.wrap(chain(says("quick"), says("slow", wait)), "s")
        agent.invoke(HI)
    assert texts(agent) == ["hi", "quick", "slow"]


def test_a_reader_in_a_turn_sees_the_steps_of_the_turn(repo):
    seen = []
    look = says("looked", lambda: seen.extend([texts(agent), texts(repo.wrap(chain(says("a")), "s"))]))
    agent = repo.wrap(chain(says("one"), look), "s")
    agent.invoke(HI, durability="sync")
    assert seen == [["hi", "one"], ["hi", "one"]]


def test_steps_whose_write_failed_in_the_background_are_written_later(repo):
    """If the database cannot be written for a while, the turn goes on, and its end stores every step."""
    failed = threading.Event()

    def refuse(*_, **__):
        if threading.current_thread().name == "agentgit-flush":
            failed.set()
            raise Unavailable("no space left")

    def wait():
        assert failed.wait(TIME)

    agent = repo.wrap(chain(says("one"), says("failed", wait), says("two")), "s")
    with faults.before(points.EVERY_WRITE, refuse, in_this_thread=False):
        agent.invoke(HI)
    assert texts(agent) == ["hi", "one", "failed", "two"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_closed_repository_has_the_steps_of_a_stream_that_was_left(repo):
    with agentgit.open(backend.url(repo)) as leaving:
        agent = leaving.wrap(chain(says("one"), says("two"), says("three")), "s")
        stream = agent.stream(HI, stream_mode="values")
        for _ in range(3):
            next(stream)  # LangGraph saves a step when the next one is asked for
    assert texts(repo.wrap(chain(says("a")), "s"))[:2] == ["hi", "one"]
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
    assert [texts(repo.wrap(chain(says("a")), name)) for name in names] == [["hi", "one"]] * len(names)


def test_a_slow_write_in_the_background_delays_no_other_turn(repo, tmp_path):
    slow_write, other_is_stored = threading.Event(), threading.Event()

    def hold(plain, unit):
        if not slow_write.is_set():
            slow_write.set()
            assert other_is_stored.wait(TIME)
        plain(unit)

    def look():
        until(lambda: backend.from_outside(lambda: texts(reader)) == ["hi", "quick"])
        other_is_stored.set()

    with agentgit.open(tmp_path / "other.db") as other, faults.around(points.FLUSH_IN_BACKGROUND, hold):
        reader = agentgit.open(tmp_path / "other.db").wrap(chain(says("a")), "s")
        first = repo.wrap(chain(says("quick"), says("slow", lambda: other_is_stored.wait(TIME))), "s")
        turn = threading.Thread(target=first.invoke, args=[HI])
        turn.start()
        assert slow_write.wait(TIME)
        other.wrap(chain(says("quick"), says("slow", look)), "s").invoke(HI)
        turn.join(TIME)
    assert texts(first) == ["hi", "quick", "slow"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_the_background_writes_for_one_turn_after_the_other(repo):
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
        def wait():
            with agentgit.open(backend.url(repo)) as other:
                agent = other.wrap(chain(says("a")), f"s{number}")
                until(lambda: backend.from_outside(lambda: texts(agent)) == ["hi", "one"])
            stored.wait(TIME)

        repo.wrap(chain(says("one"), says("two", wait)), f"s{number}").invoke(HI)

    with (
        faults.setting(points.SLOW_FLUSH, 10 * TIME),
        faults.around(points.FLUSH_IN_BACKGROUND, one_at_a_time),
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(turn, range(8)))
    assert len(most) >= 8
    assert max(most) == 1


def test_a_process_that_is_forked_in_a_turn_writes_nothing_of_the_turn(repo):
    """If a process is forked in a turn, the child can read, and each call of the turn is stored once, by the parent."""
    world = World()

    def fork():
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

    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        agent = repo.wrap(chain(says("forked", fork)), "s", effects=world.effects(), check_effects=False)
        agent.invoke(HI)
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
        return {"messages": [("ai", "read")]}

    async def collect():
        while not ended.is_set():
            await saver.agc()

    world = World()
    agent = repo.wrap(chain(says("one"), reading), "s", effects=world.effects(), check_effects=False)
    collecting = asyncio.create_task(collect())
    await asyncio.wait_for(agent.ainvoke(HI), TIME)
    ended.set()
    await collecting
    assert texts(agent) == ["hi", "one", "read"]


def test_a_fork_of_a_running_turn_runs_although_the_turn_has_acted(repo):
    """A branch that is forked before the calls of a running turn does not diverge because of them."""
    world, branches = World(), []

    def act():
        world.tool("add").invoke({"item": "chair"})
        branches.append(repo.session("s").fork("start").branch)

    repo.wrap(chain(says("one")), "s").invoke(HI)
    repo.session("s").checkpoint("start")
    how = {"effects": world.effects(), "check_effects": False}
    repo.wrap(chain(says("acted", act)), "s", **how).invoke({"messages": [("user", "act")]})
    fork = repo.wrap(chain(says("two")), "s", **how).switch(branches[0], sync="note")
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

    def wait():
        until(lambda: len(seen) >= 1)
        free.set()

    agents = [repo.wrap(chain(says("quick"), says("waited", wait)), name) for name in "ab"]
    with faults.around(points.FLUSH_IN_BACKGROUND, hold), ThreadPoolExecutor() as pool:
        list(pool.map(lambda agent: agent.invoke(HI), agents))
    assert [texts(agent) for agent in agents] == 2 * [["hi", "quick", "waited"]]


def test_a_session_that_is_deleted_during_its_turn_is_not_found(repo):
    def delete():
        with agentgit.open(backend.url(repo)) as other:
            session = other.session("s")
            session.recover(force=True)
            session.delete()

    agent = repo.wrap(chain(says("too late", delete)), "s")
    with pytest.raises(NotFound):
        agent.run("hello")
    assert repo.sessions() == []
    assert repo.maintenance.fsck().is_sound
