"""Concurrent transactions that update the same pointer or metadata lose no update."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import backend
import faults
import points
import pytest
from scripted import obedient, tool_node_graph
from sqlalchemy import create_engine, text

from agentgit import WorldDiverged, reversible
from agentgit.agents.turn.files import TurnFiles
from agentgit.store.records.checkpoints import named_label
from agentgit.store.sql.batch import flush_batch
from agentgit.store.unit_of_work import UnitOfWork
from agentgit.values import as_object

TIME = 60


def wrapped(repo, world, branch=None):
    undo = reversible(world.remove)
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(add=undo), branch=branch)


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


@pytest.fixture
def meet(repo):
    """Return a function that runs two functions in concurrent transactions, and returns the result of the second.

    The second transaction waits for the first one, which has not committed yet.
    """

    def meet(first, second):
        with ThreadPoolExecutor(1) as pool:
            others = []

            def both(connection):
                first(connection)
                flush_batch(connection)  # would otherwise be sent with the commit
                others.append(pool.submit(backend.database(repo).write, second))
                if not backend.is_sqlite(repo):  # SQLite has only one writer at a time
                    until_somebody_waits(backend.url(repo))

            backend.write(repo, both)
            return others[-1].result(TIME)

    return meet


def test_concurrent_updates_of_branch_metadata_are_all_kept(repo, meet):
    repo.session("s", create=True)
    branch, sessions = repo.session("s").branch().id, repo.context.store.sessions
    meet(lambda c: sessions.merge_metadata(c, branch, {"a": 1}), lambda c: sessions.merge_metadata(c, branch, {"b": 2}))
    meet(lambda c: sessions.count_turn(c, branch), lambda c: sessions.count_turn(c, branch))
    with backend.reading(repo) as connection:
        assert as_object(sessions.branch(connection, branch).meta) == {"a": 1, "b": 2, "turns": 2}


def test_the_head_is_the_last_of_two_concurrent_checkpoints(repo, world, meet):
    agent = wrapped(repo, world)
    agent.run("add chair")
    store, branch = repo.context.store, agent.branch.id
    point = agent.head

    def made(name):
        def make(connection):
            moment = store.head_state(connection, store.sessions.branch(connection, branch))
            return store.checkpoints.add(connection, branch, moment.checkpoint_state, named_label(point.user_id, name))

        return make

    last = meet(made("one"), made("two"))
    points = repo.session("s").checkpoints()
    assert [p.checkpoint_name for p in points][-2:] == ["one", "two"]
    assert repo.wrap(agent.graph, "s", check_effects=False).head.id == last
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_an_effect_during_the_world_check_is_not_missed(repo, world, monkeypatch):
    agent = wrapped(repo, world)
    agent.run("look")
    other = agent.fork(name="other")
    arrived, go, written = threading.Event(), threading.Event(), threading.Event()
    put = world._put

    def slow(name, item):
        if item == "sofa":
            arrived.set()
            assert go.wait(TIME)
        return put(name, item)

    looked = TurnFiles.divergence

    def look_and_wait(self, connection, branch, planner, last):
        plan = looked(self, connection, branch, planner, last)
        if branch.name == "main" and not go.is_set():
            go.set()
            assert written.wait(TIME)
        return plan

    monkeypatch.setattr(world, "_put", slow)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(lambda: other.run("add sofa"))
        assert arrived.wait(TIME)
        monkeypatch.setattr(TurnFiles, "divergence", look_and_wait)
        flush = UnitOfWork.flush

        def flush_and_tell(self):
            flush(self)
            if self._branch.name == "other" and world.items == ["sofa"]:
                written.set()

        monkeypatch.setattr(UnitOfWork, "flush", flush_and_tell)
        with pytest.raises(WorldDiverged, match="sofa"):
            agent.run("add table")
        running.result(TIME)
    assert world.items == ["sofa"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_switch_during_the_publication_of_a_rollback_is_kept(repo, world):
    agent = wrapped(repo, world)
    agent.run("add chair")
    agent.checkpoint("before")
    third = agent.fork(name="third").branch.id
    agent.run("add table")
    with ThreadPoolExecutor(1) as pool:
        others = []

        def come():
            others.append(pool.submit(repo.session("s").switch, "third"))
            until_somebody_waits(backend.url(repo))

        with faults.before(points.OPEN_NEW_BRANCH, come):
            agent.rollback("before")
        others[0].result(TIME)
    assert repo.session("s").branch().id == third


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_forced_recover_waits_for_the_publication_of_a_rollback(repo, world):
    agent = wrapped(repo, world)
    agent.run("add chair")
    agent.checkpoint("before")
    agent.run("add table")
    with ThreadPoolExecutor(1) as pool:
        others = []

        def come():
            others.append(pool.submit(repo.session("s").recover, branch="main-2", force=True))
            until_somebody_waits(backend.url(repo))

        with faults.before(points.OPEN_NEW_BRANCH, come):
            retry = agent.rollback("before")
        assert others[0].result(TIME).status == "open"
    assert [operation.status for operation in repo.session("s").operations()] == ["done"]
    assert retry.run("look") == "done"
