"""Concurrent transactions that update the same pointer or metadata lose no update."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import backend
import faults
import points
import pytest
from scripted import obeying
from sqlalchemy import create_engine, text

from agentgit import WorldDiverged

TIME = 60

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


def until_somebody_waits(url):
    engine = create_engine(url)
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    until = time.monotonic() + TIME
    with engine.connect() as connection:
        while not connection.execute(query).scalar():
            connection.rollback()
            assert time.monotonic() < until, "nobody waits"
    engine.dispose()


@on_postgresql
def test_an_effect_during_the_world_check_is_not_missed(repo, world, monkeypatch):
    agent = obeying(repo, world)
    agent.run("look")
    other = agent.fork(name="other")
    arrived, go, written = threading.Event(), threading.Event(), threading.Event()
    put = world._put

    def slow(name, item):
        if item == "sofa":
            arrived.set()
            assert go.wait(TIME)
        return put(name, item)

    def look_and_wait(plain, files, transaction, branch, *more):
        plan = plain(files, transaction, branch, *more)
        if branch.name == "main" and not go.is_set():
            go.set()
            assert written.wait(TIME)
        return plan

    def flush_and_tell(plain, unit):
        plain(unit)
        if unit._branch.name == "other" and world.items == ["sofa"]:
            written.set()

    monkeypatch.setattr(world, "_put", slow)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: other.run("add sofa"))
        assert arrived.wait(TIME)
        with (
            faults.around(points.CHECK_WORLD, look_and_wait),
            faults.around(points.FLUSH, flush_and_tell),
            pytest.raises(WorldDiverged, match="sofa"),
        ):
            agent.run("add table")
        running.result(TIME)
    assert world.items == ["sofa"]


def rolled_back(repo, agent, meanwhile):
    """Roll back; while that is published, call a function that must wait, and return the agent and its result."""
    with ThreadPoolExecutor(1) as pool:
        others = []

        def come():
            others.append(pool.submit(meanwhile))
            until_somebody_waits(backend.url(repo))

        with faults.before(points.OPEN_NEW_BRANCH, come):
            retry = agent.rollback("before")
        return retry, others[0].result(TIME)


@pytest.fixture
def agent(repo):
    agent = obeying(repo)
    agent.run("add chair")
    agent.checkpoint("before")
    agent.run("add table")
    return agent


@on_postgresql
def test_a_switch_during_the_publication_of_a_rollback_is_kept(repo, agent):
    third = agent.fork(name="third").branch.id
    rolled_back(repo, agent, lambda: repo.session("s").switch("third"))
    assert repo.session("s").branch().id == third


@on_postgresql
def test_a_forced_recover_waits_for_the_publication_of_a_rollback(repo, agent):
    recover = partial(repo.session("s").recover, branch="main-2", force=True)
    retry, recovered = rolled_back(repo, agent, recover)
    assert recovered.status == "open"
    assert [operation.status for operation in repo.session("s").operations()] == ["done"]
    assert retry.run("look") == "done"
