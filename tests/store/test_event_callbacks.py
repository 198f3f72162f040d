"""Event callbacks run after the commit, before the verb returns, and change nothing about it."""

import logging
import threading

import backend
import pytest
from scripted import World, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Conflict, InvalidInput
from agentgit.store.audit.trail import record_event


@pytest.fixture
def agent(repo):
    world = World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


def told(events):
    return [(event.kind, event.branch_name, event.detail.get("number")) for event in events]


def test_a_callback_receives_each_checkpoint_after_its_commit(repo, agent):
    got, seen = [], []

    def callback(event):
        got.append(event)
        seen.append(repo.session().get_checkpoint(event.detail["checkpoint"]).id)

    with repo.events.on("checkpoint.created", callback) as subscription:
        agent.run("add chair")
        agent.checkpoint("x")
        agent.undo()
    assert told(got) == [("checkpoint.created", "main", n) for n in (1, 2, 3)] + [("checkpoint.created", "main-2", 1)]
    assert seen == [event.detail["checkpoint"] for event in got]
    assert got == repo.events.newest(kinds="checkpoint.created")
    agent.checkpoint("unheard")
    assert (subscription.failed, len(got)) == (0, 4)


def test_a_callback_that_raises_is_logged_and_counted(repo, agent, caplog):
    def callback(event):
        if event.detail["number"] == 1:
            raise RuntimeError("my own mistake")

    with caplog.at_level(logging.ERROR, "agentgit.events"), repo.events.on("checkpoint.*", callback) as subscription:
        assert agent.run("add chair") == "done"
    assert (subscription.failed, str(subscription.last_error)) == (1, "my own mistake")
    assert "my own mistake" in caplog.text
    assert "failed=1" in repr(subscription)


def test_events_of_a_failed_transaction_are_not_delivered(repo):
    session, got = repo.session("s", create=True), []

    def work(connection, *, fails):
        record_event(connection, repo.context.store.tenant_id, "tag.created", session_id=session.id, name=str(fails))
        if fails:
            raise Conflict("taken back")

    with repo.events.on("*", got.append):
        with pytest.raises(Conflict):
            backend.write(repo, lambda connection: work(connection, fails=True))
        backend.write(repo, lambda connection: work(connection, fails=False))
    assert [event.detail["name"] for event in got] == ["False"]


def test_subscriptions_filter_by_kind_session_and_user(database):
    with agentgit.open(database.url, user="ann") as ann, agentgit.open(database.url, user="bob") as bob:
        backend.database(bob).callbacks = backend.database(ann).callbacks  # as if both shared one handle
        got, his = [], []
        one, two = ann.session("one", create=True), ann.session("two", create=True)
        with ann.events.on(["tag.*", "session.created"], got.append, session=two), bob.events.on("*", his.append):
            for session in (one, two):
                backend.write(
                    ann,
                    lambda c, s=session: record_event(c, ann.context.store.tenant_id, "tag.created", session_id=s.id),
                )
            bob.session("his", create=True)
        assert [event.session_name for event in got] == ["two"]
        assert [event.session_name for event in his] == ["his"]
        for wrong in ("chekpoint.*", [3]):
            with pytest.raises(InvalidInput):
                ann.events.on(wrong, got.append)
        with pytest.raises(InvalidInput):
            ann.events.on("*", "print")


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


def test_a_coroutine_function_is_refused(repo):
    async def callback(event):
        raise AssertionError(event)

    with pytest.raises(InvalidInput, match="afollow"):
        repo.events.on("*", callback)


def test_events_can_be_limited_to_one_session(repo, agent):
    got = []
    other = repo.wrap(tool_node_graph(scripted("x"), []), "other")
    with repo.events.on("checkpoint.*", got.append, session=agent.session):
        other.checkpoint("theirs")
        agent.fork().checkpoint("mine")
    assert [event.detail.get("name") for event in got] == [None, None, "mine"]
    assert [event.session_name for event in repo.events.newest(session=agent.session, kinds="session.*")] == ["s"]


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


def test_a_callback_has_run_when_the_verb_returns(repo, agent, caplog):
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
    assert subscription.failed == 1
    assert "my own mistake" in caplog.text


async def test_an_async_verb_calls_the_callback_before_it_returns(repo, agent):
    got = []
    with repo.events.on("checkpoint.created", lambda event: got.append(repo.session("s").log())):
        await agent.session.acheckpoint("x")
        assert len(got) == 1
        await agent.arun("add chair")
    assert len(got) == 3


def test_many_threads_call_one_callback(repo):
    sessions, handled, early = [repo.session(f"s{n}", create=True) for n in range(3)], set(), []

    def save(session, prefix):
        for n in range(5):
            session.checkpoint(f"{prefix} {n}")
            if f"{prefix} {n}" not in handled:
                early.append(n)

    with repo.events.on("checkpoint.created", lambda event: handled.add(event.detail["name"])):
        threads = [threading.Thread(target=save, args=(sessions[n % 3], str(n))) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (len(handled), early) == (30, [])
