"""Event callbacks run after the commit and in order, and never block the agent."""

import asyncio
import logging
import subprocess
import sys
import threading
import time

import backend
import points
import pytest
from scripted import World, obedient, scripted, tool_node_graph

import agentgit
from agentgit import InvalidInput
from agentgit.store.audit.trail import record_event

TIME = 60


@pytest.fixture
def agent(repo):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


def told(events):
    return [(event.kind, event.branch_name, event.detail.get("number")) for event in events]


def test_a_callback_receives_each_checkpoint_after_its_commit(repo, agent):
    """A callback receives each checkpoint, automatic or named, once other readers can see it."""
    got, seen = [], []

    def callback(event):
        got.append(event)
        seen.append(repo.session().get_checkpoint(event.detail["checkpoint"]).id)

    with repo.events.on("checkpoint.created", callback) as subscription:
        agent.run("add chair")
        agent.checkpoint("x")
        agent.undo()
        assert subscription.wait(TIME)
    assert told(got) == [("checkpoint.created", "main", n) for n in (1, 2, 3)] + [("checkpoint.created", "main-2", 1)]
    assert seen == [event.detail["checkpoint"] for event in got]
    assert got == list(repo.events.list(kinds="checkpoint.created"))
    agent.checkpoint("unheard")
    assert (subscription.handled, subscription.failed, len(got)) == (4, 0, 4)


def test_a_callback_that_raises_is_logged_and_counted(repo, agent, caplog):
    """An exception in a callback is logged and counted, and affects neither the agent nor the next event."""

    def callback(event):
        if event.detail["number"] == 1:
            raise RuntimeError("my own mistake")

    with caplog.at_level(logging.ERROR, "agentgit.events"), repo.events.on("checkpoint.*", callback) as subscription:
        assert agent.run("add chair") == "done"
        assert subscription.wait(TIME)
    assert (subscription.handled, subscription.failed, str(subscription.last_error)) == (1, 1, "my own mistake")
    assert "my own mistake" in caplog.text
    assert "failed=1" in repr(subscription)


def test_a_blocking_callback_delays_nothing_else(repo, agent, monkeypatch):
    """While one callback blocks, turns continue, other callbacks run, and closing stops waiting in time."""
    monkeypatch.setattr(*points.LAST_SECONDS_OF_CALLBACKS.place, 0.05)
    monkeypatch.setattr(*points.EVENTS_THAT_WAIT.place, 2)
    blocks, free, got = threading.Event(), threading.Event(), []

    def block(event):
        blocks.set()
        free.wait(TIME)

    slow = repo.events.on("checkpoint.*", block)
    quick = repo.events.on("checkpoint.*", got.append)
    for name in "abcd":
        agent.checkpoint(name)
        assert quick.wait(TIME)
        assert blocks.wait(TIME)
    assert (slow.missed, slow.wait(0)) == (1, False)
    slow.close(0.01)
    assert (slow.handled, slow.failed) == (0, 0)  # `close` has not waited for the blocked callback
    assert [event.detail["name"] for event in got] == list("abcd")
    assert slow.missed == 3
    free.set()


def test_callbacks_receive_events_in_trail_order(repo):
    """A callback receives each session's events in the order of its trail, whichever thread commits."""
    sessions, got = [repo.session(f"s{n}", create=True) for n in range(2)], []

    def write(session):
        for n in range(15):
            backend.write(
                repo,
                lambda c, n=n: record_event(
                    c, repo.context.store.tenant_id, "tag.created", session_id=session.id, name=str(n)
                ),
            )

    with repo.events.on("tag.created", got.append) as subscription:
        threads = [threading.Thread(target=write, args=(sessions[n % 2],)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert subscription.wait(TIME)
    for session in sessions:
        assert [event.number for event in got if event.session_id == session.id] == list(range(2, 32))


def test_events_of_a_failed_transaction_are_not_delivered(repo):
    """A transaction that fails after writing events delivers none of them and delays no later event."""
    session, got = repo.session("s", create=True), []
    with repo.events.on("*", got.append) as subscription:
        line = backend.database(repo).bus
        line.finish_transaction(line.enqueue(list(repo.events.list())), committed=False)
        backend.write(
            repo, lambda c: record_event(c, repo.context.store.tenant_id, "tag.created", session_id=session.id)
        )
        assert subscription.wait(TIME)
    assert [event.kind for event in got] == ["tag.created"]
    assert not line._queues


def test_subscriptions_filter_by_kind_session_and_user(database):
    """A subscription filters by kind and session, and never receives another user's events."""
    with agentgit.open(database.url, user="ann") as ann, agentgit.open(database.url, user="bob") as bob:
        backend.database(bob).bus = backend.database(ann).bus  # as if both shared one handle
        got, his = [], []
        one, two = ann.session("one", create=True), ann.session("two", create=True)
        with (
            ann.events.on(["tag.*", "session.created"], got.append, session=two) as first,
            bob.events.on("*", his.append) as second,
        ):
            for session in (one, two):
                backend.write(
                    ann,
                    lambda c, s=session: record_event(c, ann.context.store.tenant_id, "tag.created", session_id=s.id),
                )
            bob.session("his", create=True)
            assert first.wait(TIME)
            assert second.wait(TIME)
        assert [event.session_name for event in got] == ["two"]
        assert [event.session_name for event in his] == ["his"]
        for wrong in ("chekpoint.*", [3]):
            with pytest.raises(InvalidInput):
                ann.events.on(wrong, got.append)
        with pytest.raises(InvalidInput):
            ann.events.on("*", "print")


async def test_async_callbacks_run_on_the_agents_loop(repo, agent):
    """For an async verb, a coroutine callback runs on the loop of that verb, in order."""
    got, here = [], asyncio.get_running_loop()

    async def callback(event):
        await asyncio.sleep(0)
        got.append((event.kind, asyncio.get_running_loop() is here))

    subscription = repo.events.on("*", callback, session="s")
    await agent.ainvoke({"messages": [("user", "add chair")]})
    await agent.acheckpoint("x")
    assert await asyncio.to_thread(subscription.wait, TIME)
    assert got == [(event.kind, True) for event in repo.events.list(session="s")][1:]
    subscription.close()


async def test_closing_a_repository_on_the_loop_does_not_deadlock(repo, agent, monkeypatch):
    """A repository closed inside a coroutine still delivers committed events to async callbacks."""
    got = []

    async def callback(event):
        got.append(event.kind)

    repo.events.on("turn.done", callback)
    monkeypatch.setattr(*points.LAST_SECONDS_OF_CALLBACKS.place, TIME)
    await agent.arun("hello")
    began = time.monotonic()
    repo.close()
    assert time.monotonic() - began < TIME / 2
    assert got in (["turn.done"], [])  # it has run, or continues on this loop
    while not got:
        await asyncio.sleep(0.01)
    assert got == ["turn.done"]


def test_async_callbacks_of_sync_verbs_share_one_loop(repo, agent):
    """Without a running loop, all calls of a coroutine callback run on the same separate loop."""
    got = []

    async def callback(event):
        await asyncio.sleep(0)
        got.append(asyncio.get_running_loop())

    with repo.events.on("checkpoint.*", callback) as subscription:
        agent.run("add chair")
        assert subscription.wait(TIME)
    assert len(got) == 2
    assert got[0] is got[1]


def test_an_event_of_a_closed_loop_is_delivered_or_counted(repo, agent):
    """An event that a closing loop did not deliver is delivered elsewhere, or counted as failed."""
    got = []

    async def callback(event):
        got.append(event.kind)

    with repo.events.on("turn.done", callback) as subscription:
        asyncio.run(agent.arun("hello"))
        assert subscription.wait(TIME)
    assert got == ["turn.done"] or subscription.failed == 1  # or the loop cancelled it, which is counted


def test_events_can_be_limited_to_one_session(repo, agent):
    """`events.on` and `events.list` can be limited to one session, on whatever branch."""
    got = []
    other = repo.wrap(tool_node_graph(scripted("x"), []), "other")
    with repo.events.on("checkpoint.*", got.append, session=agent.session) as subscription:
        other.checkpoint("theirs")
        agent.fork().checkpoint("mine")
        assert subscription.wait(TIME)
    assert [event.detail.get("name") for event in got] == [None, None, "mine"]
    assert [event.session_name for event in repo.events.list(session=agent.session, kinds="session.*")] == ["s"]


AT_EXIT = """
import agentgit, time
repo = agentgit.open("a.db")
def callback(event):
    time.sleep(0.2)
    print(event.kind)
repo.events.on("session.*", callback)
repo.session("s", create=True)
"""


@pytest.mark.long
def test_pending_events_are_delivered_at_program_exit(tmp_path):
    """Events that are pending when the program ends are still delivered."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S603  # our own program
    assert (done.stdout, done.stderr) == ("session.created\n", "")


def test_a_callback_may_use_the_repository(repo, agent):
    """A callback can read and write through the repository that calls it, and close its subscription."""
    got = []

    def callback(event):
        got.append(repo.session().tag(event.detail["checkpoint"], f"t{event.number}").name)
        if len(got) == 2:
            subscription.close()

    subscription = repo.events.on("checkpoint.created", callback)
    for name in "abc":
        agent.checkpoint(name)
        assert subscription.wait(TIME)
    assert got == ["t2", "t4"]
    assert [event.detail["name"] for event in repo.events.list(kinds="tag.*")] == got


def test_a_log_handler_may_write_to_the_repository(repo, agent, monkeypatch):
    """A handler of the log of missed events can write to the repository without a deadlock."""
    monkeypatch.setattr(*points.EVENTS_THAT_WAIT.place, 1)
    free, said = threading.Event(), []

    class Handler(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
            repo.session("s").tag("HEAD", f"log-{len(said)}")

    log, handler = logging.getLogger("agentgit.events"), Handler()
    log.addHandler(handler)
    try:
        slow = repo.events.on("checkpoint.*", lambda event: free.wait(TIME))
        for name in "abcd":
            agent.checkpoint(name)
    finally:
        log.removeHandler(handler)
        free.set()
    assert slow.wait(TIME)
    assert len(said) == 1


def test_wait_inside_a_callback_returns_at_once(repo, agent):
    """`wait` called in the callback itself returns False at once."""
    waited = []
    with repo.events.on("checkpoint.*", lambda event: waited.append(told.wait(None))) as told:
        agent.checkpoint("x")
        assert told.wait(TIME)
    assert waited == [False]


def test_a_callback_can_run_before_the_verb_returns(repo, agent, caplog):
    """With wait=True, whatever causes an event returns only when the callback has handled it, even if it fails."""
    got = []

    def slow(event):
        time.sleep(0.02)
        got.append(event.kind)
        if event.kind == "tag.created":
            raise RuntimeError("my own mistake")

    with repo.events.on(["checkpoint.created", "tag.*", "turn.done", "rollback.done"], slow, wait=True) as subscription:
        agent.run("add chair")
        assert sorted(got) == ["checkpoint.created", "checkpoint.created", "turn.done"]
        agent.session.checkpoint("x")
        assert got[3:] == ["checkpoint.created"]
        agent.session.tag("x", "t")
        assert got[4:] == ["tag.created"]
        agent.session.rollback("main#1")
        assert got[-1] == "rollback.done"
    assert subscription.failed == 1
    assert "my own mistake" in caplog.text


def test_what_a_waiting_callback_does_waits_for_no_callback(repo, agent):
    """Two callbacks that hold verbs back, and whose own verbs concern each other, do not wait for each other."""
    session = agent.session
    agent.run("add chair")

    def add_tag(event):
        session.tag("HEAD", f"tag {event.detail['number']}")

    def add_checkpoint(event):
        if len(session.checkpoints()) < 6:
            session.checkpoint("again")

    with (
        repo.events.on("checkpoint.created", add_tag, wait=True) as first,
        repo.events.on("tag.created", add_checkpoint, wait=True) as second,
    ):
        session.checkpoint("x")
        assert first.handled >= 1
        while len(session.checkpoints()) < 6 or len(session.tags()) < 4:
            assert first.wait(TIME)
            assert second.wait(TIME)
    assert (first.failed, second.failed) == (0, 0)


async def test_an_async_callback_runs_before_the_awaited_verb_returns(repo, agent):
    """With wait=True, a coroutine function has ended on the agent's loop when an awaited verb returns."""
    loops = []

    async def callback(event):
        await asyncio.sleep(0.02)
        loops.append(asyncio.get_running_loop())

    with repo.events.on("checkpoint.created", callback, wait=True):
        await agent.session.acheckpoint("x")
        assert loops == [asyncio.get_running_loop()]
        await agent.arun("add chair")
        assert len(loops) == 3
        agent.session.checkpoint("blocks the loop")  # so the callback runs on a loop of its own
        assert len(loops) == 4


def test_many_threads_wait_for_one_callback(repo):
    """Each of many threads returns from its verb after its own event was handled."""
    sessions, handled, early = [repo.session(f"s{n}", create=True) for n in range(3)], set(), []

    def callback(event):
        handled.add(event.detail["name"])

    def save(session, prefix):
        for n in range(5):
            session.checkpoint(f"{prefix} {n}")
            if f"{prefix} {n}" not in handled:
                early.append(n)

    with repo.events.on("checkpoint.created", callback, wait=True):
        threads = [threading.Thread(target=save, args=(sessions[n % 3], str(n))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIME)
    assert (len(handled), early) == (30, [])
