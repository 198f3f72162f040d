"""Leases: on a server, a run whose lease has ended is taken over, and does no harm if it is still alive."""

import threading
from contextlib import nullcontext
from datetime import UTC, datetime

import backend
import faults
import points
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from saver_checkpoints import count
from scripted import World, obeying
from sqlalchemy import select, update

import agentgit
from agentgit import Conflict, InvalidInput, RollbackIncomplete
from agentgit.errors import Unavailable
from agentgit.store.sql import process
from agentgit.store.sql.tables import BRANCH, GRAPH_CHECKPOINT, OPERATION

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)

on_postgresql = pytest.mark.parametrize("database", ["postgresql"], indirect=True)


class Meanwhile(World):
    """A world that calls the functions in `then` during the next `add` or its undo."""

    def __init__(self):
        super().__init__()
        self.then = []

    def _put(self, name, item):
        while self.then:
            self.then.pop()()
        return super()._put(name, item)

    def remove(self, args, result):
        while self.then:
            self.then.pop()()
        super().remove(args, result)


@pytest.fixture(autouse=True)
def nothing_is_renewed(monkeypatch):
    """Make the pause between renewals longer than any test, so that an ended lease stays ended."""
    monkeypatch.setattr(*points.SECONDS_PER_LEASE.place, 0.01)


@pytest.fixture
def world():
    return Meanwhile()


def let_end(repo, table=BRANCH):
    """End all leases, as if their time had passed, and return their number."""
    ending = update(table).where(table.c.lease_until.is_not(None)).values(lease_until=LONG_AGO)
    return backend.write(repo, lambda c: c.execute(ending).rowcount)


def ends(repo, table=BRANCH):
    """Return the ends of the leases of all rows that have an owner."""
    with backend.reading(repo) as transaction:
        return list(transaction.execute(select(table.c.lease_until).where(table.c.owner.is_not(None))).scalars())


@on_postgresql
def test_a_run_on_another_machine_is_taken_over_when_its_lease_ends(repo, world):
    agent = obeying(repo, world)
    agent.run("add chair")
    with faults.on_another_machine(), backend.at_work(repo) as owner:
        backend.take(repo, agent.branch, owner)
    with pytest.raises(Conflict, match="Another agent is running") as refused:
        agent.run("add table")
    assert refused.value.head == agent.head.id
    assert let_end(repo) == 1
    agent.run("add table")
    assert world.items == ["chair", "table"]
    assert ends(repo) == []
    assert len(repo.events.newest(session="s", kinds="turn.abandoned")) == 1


@on_postgresql
def test_a_recovered_turn_saves_no_step_in_its_unchanged_thread(repo):
    def says(state):
        if len(state["messages"]) > 2:
            assert let_end(repo) == 1
            with agentgit.open(backend.url(repo)) as other:
                other.session("s").recover(force=True)
            before.append(count(backend.database(repo), GRAPH_CHECKPOINT))
        return {"messages": [("ai", "said")]}

    before = []
    graph = StateGraph(MessagesState).add_node("says", says).add_edge(START, "says").compile()
    agent = repo.wrap(graph, "s")
    agent.run("one")
    with pytest.raises(Conflict, match="taken over"):
        agent.invoke({"messages": [("user", "two")]}, durability="sync")
    assert before == [count(backend.database(repo), GRAPH_CHECKPOINT)]


@on_postgresql
def test_a_rollback_with_an_expired_lease_publishes_nothing(repo, world):
    agent = obeying(repo, world)
    agent.run("add chair")
    agent.checkpoint("before")
    agent.run("add table")

    def take_over():
        assert let_end(repo, OPERATION) == 1
        with agentgit.open(backend.url(repo)) as other, pytest.raises(RollbackIncomplete):
            other.resume(other.session("s").operations()[0])

    world.then.append(take_over)
    with pytest.raises(Conflict, match="taken over"):
        agent.rollback("before")
    (operation,) = repo.session("s").operations()
    assert (operation.status, repo.session("s").branch().name) == ("partial", "main")
    (call,) = [call for call in agent.tool_track() if call.status == "reverse_unknown"]
    repo.resolve(call, "happened")
    assert repo.resume(operation).status == "done"
    assert (world.items, repo.session("s").branch().name) == (["chair"], "main-2")
    assert ends(repo, OPERATION) == []


@on_postgresql
def test_only_leases_held_by_this_process_are_renewed(repo, world):
    agent = obeying(repo, world)
    seen = []

    def look():
        let_end(repo)
        backend.database(repo).leases.renew()
        seen.extend(ends(repo))
        taking = update(BRANCH).where(BRANCH.c.owner.is_not(None)).values(owner="h|1|1|x", lease_until=LONG_AGO)
        backend.write(repo, lambda c: c.execute(taking))
        backend.database(repo).leases.renew()
        seen.extend(ends(repo))

    world.then.append(look)
    with pytest.raises(Conflict, match="taken over"):
        agent.run("add chair")
    assert seen[0] > datetime.now(UTC)
    assert seen[1] == LONG_AGO


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_has_no_leases(repo, world):
    """Its file is on one machine, where the death of a process can be detected."""
    agent = obeying(repo, world)
    seen = []
    world.then.append(lambda: seen.extend(ends(repo)))
    agent.run("add chair")
    assert (seen, backend.database(repo).leases) == ([None], None)


def test_a_lease_is_renewed_until_its_work_ends_despite_failures(monkeypatch):
    monkeypatch.setattr(*points.SECONDS_PER_LEASE.place, 3000)
    renewed, failures = threading.Semaphore(0), [Unavailable("away"), RuntimeError("nobody expected this")]

    def write(work):
        renewed.release()
        if failures:
            raise failures.pop()

    kept = process.Leases(write, seconds=3)
    kept.start_renewing("a", process.LeasedRow(BRANCH, 2))
    thread = kept._thread
    assert all(renewed.acquire(timeout=60) for _ in range(3))
    kept.stop_renewing("a")
    thread.join(60)
    assert not thread.is_alive()
    kept.start_renewing("b", process.LeasedRow(BRANCH, 2))
    assert renewed.acquire(timeout=60)
    again = kept._thread
    kept.close()
    again.join(60)
    assert not again.is_alive()


@pytest.mark.parametrize("seconds", [0, 2.9, -1, float("nan")])
def test_a_lease_too_short_to_be_renewed_is_refused(seconds):
    """A lease shorter than an ordinary pause is refused, because live runs would be taken over."""
    with pytest.raises(InvalidInput, match="lease_seconds"):
        process.Leases(lambda work: None, seconds)


@on_postgresql
@pytest.mark.parametrize("said", ["add chair", "hello"])
def test_a_write_that_has_waited_for_a_takeover_is_refused(repo, world, said):
    """The end of the turn waits until the other run has the branch, and must not take it for its own."""
    agent, is_recovering, threads, answers = obeying(repo, world), threading.Event(), [], []

    def wait_for_the_write():
        is_recovering.set()
        backend.wait_until_blocked(repo)

    def take_over():
        let_end(repo)
        with faults.after(points.RECOVER_DEAD_TURN, wait_for_the_write):
            answers.append(obeying(repo, world).run("add table"))

    def meanwhile():
        if not threads:
            threads.append(threading.Thread(target=take_over))
            threads[0].start()
            assert is_recovering.wait(10)

    at_the_end = faults.before(points.END_TURN, meanwhile) if said == "hello" else nullcontext()
    with at_the_end, faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        world.then.append(meanwhile)
        with pytest.raises(Conflict, match="taken over"):
            agent.run(said)
        threads[0].join()
    assert answers == ["done"]
    bought = {call.args["item"]: call.status for call in agent.tool_track()}
    assert bought == {"table": "done"} | ({"chair": "done"} if said == "add chair" else {})
