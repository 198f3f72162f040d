"""Event callbacks run after the commit, before the verb returns, and change nothing about it."""

from concurrent.futures import ThreadPoolExecutor

import backend
import pytest
from scripted import obeying

import agentgit
from agentgit import Conflict, InvalidInput
from agentgit.store.audit.trail import record_event


@pytest.fixture
def agent(repo):
    return obeying(repo)


def test_a_callback_receives_each_checkpoint_after_its_commit(repo, agent):
    got, seen = [], []

    def callback(event):
        got.append(event)
        seen.append(repo.session().get_checkpoint(event.detail["checkpoint"]).id)

    with repo.events.on("checkpoint.created", callback) as subscription:
        agent.run("add chair")
        agent.checkpoint("x")
        agent.undo()
    numbers = [("main", 1), ("main", 2), ("main", 3), ("main-2", 1)]
    assert [(event.branch_name, event.detail["number"]) for event in got] == numbers
    assert seen == [event.detail["checkpoint"] for event in got]
    assert got == repo.events.newest(kinds="checkpoint.created")
    agent.checkpoint("unheard")
    assert (subscription.failed, len(got)) == (0, 4)


def test_events_of_a_failed_transaction_are_neither_stored_nor_delivered(repo):
    session, got = repo.session("s", create=True), []

    def work(transaction, *, fails):
        record_event(transaction, "tag.created", session_id=session.id, name=str(fails))
        if fails:
            raise Conflict("taken back")

    with repo.events.on("*", got.append):
        with pytest.raises(Conflict):
            backend.write(repo, lambda transaction: work(transaction, fails=True))
        backend.write(repo, lambda transaction: work(transaction, fails=False))
    assert [event.detail["name"] for event in got] == ["False"]
    assert repo.events.newest(kinds="tag.*") == got


def test_subscriptions_filter_by_kind_session_and_user(database):
    with agentgit.open(database.url, user="ann") as ann, agentgit.open(database.url, user="bob") as bob:
        backend.database(bob).callbacks = backend.database(ann).callbacks  # as if both shared one handle
        got, his = [], []
        one, two = ann.session("one", create=True), ann.session("two", create=True)
        with ann.events.on(["tag.*", "session.created"], got.append, session=two), bob.events.on("*", his.append):
            for session in (one, two):
                session.checkpoint("x")
                session.tag("x", "t")
            bob.session("his", create=True)
        assert [event.session_name for event in got] == ["two"]
        backend.wait_for_the_feed(bob)
        for events in (his, bob.events.newest(), bob.events.list()):
            assert [event.session_name for event in events] == ["his"]
        for wrong in ("chekpoint.*", [3]):
            with pytest.raises(InvalidInput):
                ann.events.on(wrong, got.append)
        with pytest.raises(InvalidInput):
            ann.events.on("*", "print")

        async def callback(event):
            raise AssertionError(event)

        with pytest.raises(InvalidInput, match="afollow"):
            ann.events.on("*", callback)


def test_callbacks_of_an_ended_handle_receive_nothing_and_write_nothing(repo):
    ada, got = repo.users.add("ada"), []
    session = repo.session("s", create=True)
    session.sharing.share("ada", "viewer")
    made = repo.keys.create("k", user=ada)
    with repo.authenticate(made.secret) as handle:
        handle.events.on("*", got.append)
        handle.events.on(["checkpoint.*", "access.*"], got.append)
        session.checkpoint("heard")
        repo.keys.revoke(made.key)
        before = len(got)
        session.checkpoint("unheard")
    assert before == 2
    assert len(got) == before
    assert [event.kind for event in repo.events.audit(kinds="access.*")] == []


def test_a_callback_may_use_the_repository(repo, agent):
    got = []

    def callback(event):
        got.append(repo.session().tag(event.detail["checkpoint"], event.detail["name"]).name)
        if len(got) == 2:
            subscription.close()

    subscription = repo.events.on("checkpoint.created", callback)
    for name in "abc":
        agent.checkpoint(name)
    assert got == ["a", "b"]
    assert [event.detail["name"] for event in repo.events.newest(kinds="tag.*")] == got


@pytest.mark.parametrize("kinds", ["turn.done", "call.done", "checkpoint.created", "rollback.*"])
def test_a_callback_may_use_the_session_of_a_running_turn(repo, agent, kinds):
    got = []

    def callback(event):
        session = repo.session("s")
        got.append((session.log(), session.tree(), session.tool_track()))
        session.annotate("main#1", data={"told": len(got)})

    agent.run("look")
    with repo.events.on(kinds, callback) as subscription:
        agent.run("add chair")
        agent.undo()
    assert (subscription.failed, subscription.last_error) == (0, None)
    assert got


async def test_a_callback_has_run_when_the_verb_returns_even_if_it_fails(repo, agent, caplog):
    got = []

    def callback(event):
        got.append(event.kind)
        if event.kind == "tag.created":
            raise RuntimeError("my own mistake")

    with repo.events.on(["checkpoint.created", "tag.*", "turn.done", "rollback.done"], callback) as subscription:
        agent.run("add chair")
        assert sorted(got) == ["checkpoint.created", "checkpoint.created", "turn.done"]
        agent.session.checkpoint("x")
        assert got[3:] == ["checkpoint.created"]
        agent.session.tag("x", "t")
        assert got[4:] == ["tag.created"]
        agent.session.rollback("main#1")
        assert got[-1] == "rollback.done"
        got.clear()
        await agent.session.acheckpoint("y")
        assert got == ["checkpoint.created"]
        await obeying(repo).arun("look")
        assert sorted(got[1:]) == ["checkpoint.created", "checkpoint.created", "turn.done"]
    assert (subscription.failed, str(subscription.last_error)) == (1, "my own mistake")
    assert "my own mistake" in caplog.text
    assert "failed=1" in repr(subscription)


def test_many_threads_call_one_callback(repo):
    sessions, handled = [repo.session(f"s{n}", create=True) for n in range(3)], set()

    def save(number):
        for n in range(5):
            sessions[number % 3].checkpoint(f"{number} {n}")
            assert f"{number} {n}" in handled

    with (
        repo.events.on("checkpoint.created", lambda event: handled.add(event.detail["name"])),
        ThreadPoolExecutor(6) as pool,
    ):
        list(pool.map(save, range(6)))
    assert len(handled) == 30
