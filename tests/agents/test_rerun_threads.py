"""Reruns of graphs whose nodes call tools in threads of their own, which LangChain's context does not reach."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from multiprocessing.pool import ThreadPool

import pytest
from chains import replying

from agentgit import RerunDiverged

CHAIR = {"item": "chair"}


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as threads:
        yield threads


def by_thread(add, pool):
    thread = threading.Thread(target=add.invoke, args=(CHAIR,))
    thread.start()
    thread.join()


def by_own_pool(add, pool):
    with ThreadPoolExecutor() as own:
        own.submit(lambda: asyncio.run(add.ainvoke(CHAIR))).result()


def by_shared_pool(add, pool):
    pool.submit(add.invoke, CHAIR).result()


def by_multiprocessing(add, pool):
    with ThreadPool(1) as own:
        own.map(add.invoke, [CHAIR])


def by_thread_of_a_thread(add, pool):
    thread = threading.Thread(target=by_own_pool, args=(add, pool))
    thread.start()
    thread.join()


WAYS = [by_thread, by_own_pool, by_shared_pool, by_multiprocessing, by_thread_of_a_thread]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_tool_in_a_thread_of_a_node_does_not_act(repo, world, pool, way, is_async):
    """The record does not have the call, so it is a miss; policies answer it like any other."""
    add = world.tool("add")
    agent = repo.wrap(replying(lambda _: way(add, pool)), "s", effects=world.effects(), check_effects=False)
    agent.run("go")
    assert world.items == ["chair"]

    def rerun(**options):
        return asyncio.run(agent.arerun(**options)) if is_async else agent.rerun(**options)

    assert [call.answered_by for call in rerun().report.new] == ["told"]
    assert [call.answered_by for call in rerun(tools={"add": {"number": 7}}).report.new] == ["value"]
    with pytest.raises(RerunDiverged, match="no call add"):
        rerun(on_miss="stop")
    assert world.items == ["chair"]


def test_a_call_in_a_thread_with_the_context_is_answered_from_the_record(repo, world, pool):
    """A thread that runs in the context of the node is part of the turn."""
    add = world.tool("add")
    act = replying(lambda _: pool.submit(copy_context().run, add.invoke, CHAIR).result())
    agent = repo.wrap(act, "s", effects=world.effects(), check_effects=False)
    agent.run("go")
    assert agent.rerun().report.is_same
    assert world.items == ["chair"]


def test_a_thread_that_outlives_the_rerun_does_not_act(repo, world):
    add, threads = world.tool("add"), []

    def later():
        time.sleep(0.5)
        add.invoke(CHAIR)

    def leave():
        threads.append(threading.Thread(target=later))
        threads[-1].start()

    agent = repo.wrap(replying(lambda _: leave()), "s", effects=world.effects(), check_effects=False)
    agent.run("go")
    threads[0].join()
    assert world.items == ["chair"]
    again = agent.rerun()
    threads[1].join()
    assert world.items == ["chair"]
    assert again.tool_track() == []


def test_a_pool_that_a_rerun_has_used_acts_for_real_turns(repo, world, pool):
    """Threads belong to the rerun only for its own work, also while it runs."""
    add = world.tool("add")
    agent = repo.wrap(replying(lambda _: by_shared_pool(add, pool)), "s", effects=world.effects(), check_effects=False)
    agent.run("go")
    other = repo.wrap(replying(lambda _: by_shared_pool(add, pool)), "t", effects=world.effects(), check_effects=False)
    with ThreadPoolExecutor() as callers:
        reruns = [callers.submit(copy_context().run, agent.rerun, name=f"rerun {number}") for number in range(4)]
        for _ in range(4):
            other.run("go")
        assert [rerun.result().report.status for rerun in reruns] == ["done"] * 4
    pool.submit(add.invoke, CHAIR).result()
    assert len(world.items) == 6
