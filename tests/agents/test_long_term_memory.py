"""What a session writes to LangGraph's `BaseStore` is recorded, shown and undone while the value is its own."""

import asyncio
import gc
import sys
import threading
import types
from datetime import UTC, datetime

import faults
import points
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command, interrupt
from memory_graphs import NAMESPACE, STORES, aact, contents, embed, noting, opened, said, sqlite_store, store_schema
from process_memory import limit_sessions
from scripted import call, calls, tool_node_graph

import agentgit
from agentgit import InvalidInput, Keyring, RollbackBlocked, Workspace, reversible
from agentgit.demo import ScriptedModel

THREAD = {"configurable": {"thread_id": "t"}}

OLD_ADAPTER = pytest.mark.filterwarnings("ignore:The default datetime adapter:DeprecationWarning")
"""LangGraph's SqliteStore uses it for the times of its items."""


@pytest.fixture
def store():
    """Create a store."""
    return InMemoryStore()


@pytest.fixture(params=STORES)
def any_store(request, tmp_path):
    """Open a store of each kind."""
    with opened(request.param, tmp_path, lambda: request.getfixturevalue("postgres_url")) as store:
        yield store


def reasons(items):
    """Return the reason of each item by the key in memory."""
    return {item.invocation.args["key"]: item.reason for item in items}


# -- rollback


def test_a_rollback_undoes_what_the_session_wrote_since(repo, any_store):
    """Each put and delete after the point is undone, newest first, in each of LangGraph's stores."""
    agent = repo.wrap(noting(any_store), "a")
    agent.invoke(said("+food=pizza +pet=cat"))
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pasta -pet +food=soup +city=Rome"))
    assert contents(any_store) == {"food": "soup", "city": "Rome"}
    plan = agent.plan_rollback(before)
    assert [step.action for step in plan.steps] == ["reverse"] * 4
    assert contents(any_store) == {"food": "soup", "city": "Rome"}
    retry = agent.rollback(before)
    assert contents(any_store) == {"food": "pizza", "pet": "cat"}
    assert (retry.report.status, len(retry.report.reversed)) == ("done", 4)
    assert repo.maintenance.fsck(3).is_sound


def test_the_journal_has_the_value_before(repo, store):
    """A write is a call of the track, with the item, the value and the value before it."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza +food=pasta -food"))
    base = {"key": "food", "namespace": ["users", "ann"]}
    pizza, pasta = {"is": "pizza"}, {"is": "pasta"}
    assert [(one.tool_name, one.args, one.effect, one.status) for one in agent.tool_track()] == [
        ("memory.put", {**base, "value": pizza, "before": None}, "memory", "done"),
        ("memory.put", {**base, "value": pasta, "before": pizza}, "memory", "done"),
        ("memory.delete", {**base, "before": pasta}, "memory", "done"),
    ]


def test_what_another_session_wrote_since_stays_and_is_named(repo, store):
    """The item of the other session is a named conflict in plan and report, and the rest is undone."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza +pet=cat"))
    theirs.invoke(said("+food=pasta"))
    plan = ours.plan_rollback(before)
    assert {step.invocation.args["key"]: step.action for step in plan.steps} == {"food": "keep", "pet": "reverse"}
    report = ours.rollback(before).report
    assert report.status == "done"
    assert reasons(report.kept) == {"food": "the item was changed since by session 'theirs', so it stays as it is"}
    assert contents(store) == {"food": "pasta"}


def test_a_conflict_names_a_few_of_many_sessions(repo, store):
    """Of many sessions that wrote the item since, three are named, however often they wrote it."""
    ours = repo.wrap(noting(store), "ours")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pasta"))
    for number in range(5):
        repo.wrap(noting(store), f"s{number}").invoke(said(" ".join(f"+food=soup{turn}" for turn in range(12))))
    reason = reasons(ours.rollback(before).report.kept)["food"]
    assert "by session 's4' and session 's3' and session 's2' and others" in reason


def test_an_equal_value_of_another_session_stays(repo, store):
    """A value that another session wrote since is not this session's, also if it is the same."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza"))
    theirs.invoke(said("+food=pizza"))
    assert "by session 'theirs'" in reasons(ours.rollback(before).report.kept)["food"]
    assert contents(store) == {"food": "pizza"}


def test_sessions_with_stores_of_their_own_do_not_conflict(repo, store):
    """The same item of another store is another item, whose writes neither keep this one nor are undone."""
    other = InMemoryStore()
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(other), "theirs")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza"))
    theirs.invoke(said("+food=pizza"))
    retry = ours.rollback(before)
    assert (len(retry.report.kept), contents(store), contents(other)) == (0, {}, {"food": "pizza"})
    retry.switch("main", sync="world")
    theirs.invoke(said("+food=pasta"))
    ours.at("main").rollback(before)
    assert (contents(store), contents(other)) == ({}, {"food": "pasta"})


def test_a_change_from_outside_stays(repo, store):
    """A value that was written without a session stays, and so does a deletion."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza +pet=cat"))
    store.put(NAMESPACE, "food", {"is": "fish"})
    store.delete(NAMESPACE, "pet")
    report = agent.rollback(before).report
    assert reasons(report.kept) == {"food": "the item was changed since, so it stays as it is"}
    assert reasons(report.reversed) == {"pet": "the item is deleted again"}  # it is as before
    assert contents(store) == {"food": "fish"}


def test_after_the_other_session_rolled_back_ours_can(repo, store):
    """The other session's rollback brings our value back, which is then undone."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    first, second = ours.checkpoint("before"), theirs.checkpoint("before")
    ours.invoke(said("+food=pizza"))
    theirs.invoke(said("+food=pasta"))
    theirs.rollback(second)
    assert contents(store) == {"food": "pizza"}
    ours.rollback(first)
    assert contents(store) == {}


@pytest.mark.parametrize("is_late", [False, True])
def test_a_conflict_that_is_over_keeps_nothing(repo, store, is_late):
    """A write that stayed because of another session is undone when that session has rolled back its own."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    ours.invoke(said("+food=fish"))
    first, second = ours.checkpoint("before"), theirs.checkpoint("before")
    ours.invoke(said("+food=pizza"))
    if is_late:  # between the plan and the undo
        with faults.before(points.WORK_ON_WORLD, lambda: theirs.invoke(said("+food=pasta"))):
            retry = ours.rollback(first)
    else:
        theirs.invoke(said("+food=pasta"))
        retry = ours.rollback(first)
    assert "session 'theirs'" in reasons(retry.report.kept)["food"]
    assert [step.action for step in retry.plan_rollback(first).steps] == ["keep"]
    theirs.rollback(second)
    assert contents(store) == {"food": "pizza"}
    assert [step.action for step in retry.plan_rollback(first).steps] == ["reverse"]
    assert ours.switch("main").plan_rollback(first).reversals
    again = retry.switch("main-2", sync="world")
    assert contents(store) == {"food": "fish"}
    again.switch("main", sync="world")
    assert contents(store) == {"food": "pizza"}


def test_what_a_rollback_was_told_to_keep_stays_accepted(repo, store):
    """Memory that `tools="keep"` left is kept by the next rollback too."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    again = agent.rollback(before, tools="keep").rollback(before)
    assert reasons(again.report.kept) == {"food": "an earlier rollback kept it"}
    assert contents(store) == {"food": "pizza"}


def test_a_session_of_another_user_is_not_named(repo, store):
    """Whose session it is stays private; that somebody wrote is said."""
    ours = repo.wrap(noting(store), "ours")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza"))
    repo.as_user(repo.users.add("bob")).wrap(noting(store), "secret plans").invoke(said("+food=pizza"))
    reason = reasons(ours.rollback(before).report.kept)["food"]
    assert reason == "the item was written since by a session of another user, so it stays as it is"
    assert contents(store) == {"food": "pizza"}


def test_keep_leaves_memory_alone(repo, store):
    """Tools='keep' keeps memory as it keeps the rest of the world."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    agent.rollback(before, tools="keep")
    assert contents(store) == {"food": "pizza"}


def test_values_that_json_does_not_have(repo, store):
    """A value before that the record cannot hold exactly is not written back, and that is said."""
    store.put(NAMESPACE, "food", {"is": {1, 2}})
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    report = agent.rollback(before).report
    assert "types that JSON does not have" in reasons(report.kept)["food"]
    assert store.get(NAMESPACE, "food").value == {"is": "pizza"}


def test_a_value_that_is_changed_in_place_has_its_true_value_before(repo, store):
    """A node that changes the value that it has read, and puts it again, does not spoil the value before."""
    shared = ["a"]

    def node(state):
        item = get_store().get(NAMESPACE, "count")
        item.value["is"] += 1
        get_store().put(NAMESPACE, "count", item.value)
        shared.append("b")
        get_store().put(NAMESPACE, "list", {"is": shared})
        return {"messages": [("ai", "done")]}

    store.put(NAMESPACE, "count", {"is": 1})
    agent = repo.wrap(noting(store, node), "a")
    agent.invoke(said("go"))
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    assert contents(store) == {"count": 3, "list": ["a", "b", "b"]}
    agent.rollback(before)
    assert contents(store) == {"count": 2, "list": ["a", "b"]}


def test_a_value_that_the_store_holds_in_another_form(repo, tmp_path):
    """A date becomes text in a database; the write is undone, but not made again from text."""

    def node(state):
        get_store().put(NAMESPACE, "day", {"is": datetime(2026, 1, 2, tzinfo=UTC)})
        return {"messages": [("ai", "done")]}

    with sqlite_store(tmp_path / "memory.db") as given:
        agent = repo.wrap(noting(given, node), "a")
        before = agent.checkpoint("before")
        agent.invoke(said("go"))
        retry = agent.rollback(before)
        assert contents(given) == {}
        assert "types that JSON does not have" in reasons(retry.redo().report.gone)["day"]


# -- switch, fork, diff


def test_a_switch_undoes_and_writes_again(repo, any_store):
    """Memory follows the branches there and back."""
    agent = repo.wrap(noting(any_store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza +pet=cat"))
    retry = agent.rollback(before)
    retry.invoke(said("+food=pasta"))
    back = retry.switch("main", sync="world")
    assert contents(any_store) == {"food": "pizza", "pet": "cat"}
    assert len(back.report.redone) == 2
    there = back.switch("main-2", sync="world")
    assert contents(any_store) == {"food": "pasta"}
    assert there.report.status == "done"


def test_a_point_of_another_branch(repo, store):
    """What was undone since a point of another branch is listed as gone; replay="redo" writes it again."""
    agent = repo.wrap(noting(store), "a")
    start = agent.checkpoint("start")
    agent.invoke(said("+food=pizza"))
    point = agent.checkpoint("point")
    retry = agent.rollback(start)
    retry.invoke(said("+pet=cat"))
    gone = retry.rollback(point)
    assert list(reasons(gone.report.gone)) == ["food"]
    assert contents(store) == {}
    gone.rollback(point, replay="redo")
    assert contents(store) == {"food": "pizza"}


def test_a_write_is_not_made_again_over_another_sessions(repo, store):
    """What another session wrote since the write was undone stays when the branch is entered again."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza +pet=cat"))
    retry = ours.rollback(before)
    theirs.invoke(said("+food=pasta"))
    report = retry.redo().report
    assert report.status == "done"
    assert "session 'theirs'" in reasons(report.gone)["food"]
    assert contents(store) == {"food": "pasta", "pet": "cat"}


def test_a_fork_leaves_memory_and_no_branch_is_stopped(repo, store):
    """Memory is shared, so a fork does not rewind it, and writes of a branch never stop another one."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    fork = agent.fork(before)
    assert contents(store) == {"food": "pizza"}
    fork.invoke(said("+pet=cat"))
    agent.invoke(said("+city=Rome"))
    fork.invoke(said("+pet=dog"))
    assert contents(store) == {"food": "pizza", "pet": "dog", "city": "Rome"}


def test_a_diff_of_two_branches_shows_memory(repo, store):
    """A diff lists the writes of each branch."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    retry = agent.rollback(before)
    retry.invoke(said("+food=pasta"))
    text = str(retry.diff("main", "main-2"))
    assert "- memory.put(key='food', value={'is': 'pizza'}, namespace=['users', 'ann']" in text
    assert "+ memory.put(key='food', value={'is': 'pasta'}, namespace=['users', 'ann']" in text


def test_variants_of_an_exploration_do_not_read_each_others_memory(repo, store):
    """Each variant begins with memory as it was, and the winner's is written when its branch is entered."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza"))
    exploration = agent.explore(1, ["+food=pasta", "+pet=cat"])
    assert contents(store) == {"food": "pizza"}
    befores = [
        write.args["before"]
        for branch in agent.session.branches()
        if branch.name.startswith("explore")
        for write in agent.session.tool_track(branch=branch.name)[1:]
    ]
    assert befores == [{"is": "pizza"}, None]
    agent.promote(exploration.leaves[1])
    assert contents(store) == {"food": "pizza", "pet": "cat"}


def test_an_exploration_beside_a_branch_that_wrote_since(repo, store):
    """Variants begin with the memory of their own starting point, and the other branch's write can return."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza"))
    before = agent.checkpoint("before")
    fork = agent.fork(before)
    agent.invoke(said("+food=soup"))
    fork.explore(1, ["+pet=cat", "+food=pasta"])
    assert contents(store) == {"food": "pizza"}
    (write,) = agent.session.tool_track(branch="explore/2")[1:]
    assert write.args["before"] == {"is": "pizza"}
    agent.switch("main", sync="world")
    assert contents(store) == {"food": "soup"}


def test_parallel_variants_may_not_share_memory(repo, store):
    """Variants that write to memory at the same time are refused, unless their writes are not undone anyway."""
    with pytest.raises(InvalidInput, match="write to memory"):
        repo.wrap(noting(store), "a").explore(1, ["+pet=cat", "+food=pasta"], parallel=True)
    assert contents(store) == {}
    unmanaged = repo.wrap(noting(store), "b", effects=dict.fromkeys(("memory.put", "memory.delete"), "read_only"))
    unmanaged.explore(1, ["+pet=cat", "+food=pasta"], parallel=True)
    assert contents(store) == {"pet": "cat", "food": "pasta"}


def test_true_is_not_one(repo, store):
    """A value that equals the value before in Python, but not in JSON, is undone."""
    store.put(NAMESPACE, "on", {"is": True})

    def act(state):
        get_store().put(NAMESPACE, "on", {"is": 1})
        return {}

    agent = repo.wrap(StateGraph(MessagesState).add_node("act", act).add_edge(START, "act").compile(store=store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    assert contents(store)["on"] is not True
    agent.rollback(before)
    assert contents(store)["on"] is True


def test_the_deletion_of_an_item_that_never_existed(repo, store):
    """A plan says that there is nothing to change, not that the item is deleted again."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("-food"))
    (step,) = agent.plan_rollback(before).steps
    assert step.why == "there is nothing to change: it left the item as it was"
    agent.rollback(before)
    assert contents(store) == {}


def test_a_store_whose_put_does_more_than_write(repo):
    """An undo writes the value before, and not what the class of the user's store makes of a `put`."""

    class CountingStore(InMemoryStore):
        def put(self, namespace, key, value, *args, **options):
            super().put(namespace, key, {**value, "puts": value.get("puts", 0) + 1}, *args, **options)

    store = CountingStore()
    agent = repo.wrap(noting(store), "a")
    InMemoryStore.put(store, NAMESPACE, "food", {"is": "pizza"})
    before = agent.checkpoint("before")
    InMemoryStore.put(store, NAMESPACE, "food", {"is": "pizza", "puts": 0})
    agent.invoke(said("-food"))
    agent.rollback(before)
    assert store.get(NAMESPACE, "food").value == {"is": "pizza", "puts": 0}


def test_replay_execute_leaves_writes_that_are_declared_idempotent(repo, store):
    """Writes that are left are answered from the record: they are neither made again nor a blocker."""
    agent = repo.wrap(noting(store), "a", effects=dict.fromkeys(("memory.put", "memory.delete"), "idempotent"))
    agent.invoke(said("+food=pizza"))
    point = agent.checkpoint("point")
    agent.invoke(said("+food=pasta"))
    report = agent.rollback(point, replay="execute").report
    assert (report.status, [one.invocation.args["value"] for one in report.answered]) == ("done", [{"is": "pizza"}])
    assert contents(store) == {"food": "pasta"}


def test_a_default_for_all_tools_does_not_hold_for_memory(store):
    """`*` stands for the user's tools; the path is written again with replay="execute"."""
    with agentgit.open(":memory:", effects={"*": "irreversible"}) as repo:
        agent = repo.wrap(noting(store), "a")
        agent.invoke(said("+food=pizza"))
        point = agent.checkpoint("point")
        agent.invoke(said("+food=pasta"))
        agent.rollback(point, replay="execute")
    assert contents(store) == {"food": "pizza"}


def test_memory_can_be_left_out_for_a_whole_repository(store):
    """`agentgit.open(effects=...)` declares the two tools for all graphs, with the same checks as `wrap`."""
    with pytest.raises(InvalidInput, match="leave memory as it is"):
        agentgit.open(":memory:", effects={"memory.put": "irreversible"})
    with agentgit.open(":memory:", effects={"memory.put": "idempotent"}) as repo:
        agent = repo.wrap(noting(store), "a")
        before = agent.checkpoint("before")
        agent.invoke(said("+food=pizza"))
        assert [step.action for step in agent.plan_rollback(before).steps] == ["keep"]
        own = repo.wrap(noting(store), "b", effects={"memory.put": "read_only"})
        assert own.effects["memory.put"] == "read_only"


@pytest.mark.parametrize("effect", ["read_only", "idempotent"])
def test_replay_execute_answers_a_tool_that_writes_to_memory(repo, store, effect):
    """Its writes are made again by themselves, and it cannot run outside of a turn, where it has no store."""
    agent = repo.wrap(noting(store), "a", effects={"remember": effect}, check_effects=False)
    agent.invoke(said("tool:+food=pizza"))
    point = agent.checkpoint("point")
    plan = agent.plan_rollback(point, replay="execute")
    assert {(step.action, step.invocation.tool_name) for step in plan.steps} == {
        ("reverse", "memory.put"),
        ("answer", "remember"),
        ("redo", "memory.put"),
    }
    agent.rollback(point, replay="execute")
    assert contents(store) == {"food": "pizza"}


async def test_a_sync_write_beside_an_async_write_of_the_same_item(repo):
    """On one event loop, a sync write does not wait for the task that it keeps from going on."""

    class SlowStore(InMemoryStore):
        async def aput(self, *args, **options):
            writing.set()
            await asyncio.sleep(0.05)
            self.put(*args, **options)

    async def slow(state):
        await get_store().aput(NAMESPACE, "food", {"is": "pizza"})

    async def quick(state):
        await writing.wait()
        get_store().put(NAMESPACE, "food", {"is": "pasta"})

    writing, store = asyncio.Event(), SlowStore()
    graph = StateGraph(MessagesState).add_node("slow", slow).add_node("quick", quick)
    graph = graph.add_edge(START, "slow").add_edge(START, "quick").compile(store=store)
    agent = await repo.awrap(graph, "a")
    await asyncio.wait_for(agent.ainvoke(said("go")), 20)
    assert sorted(call.args["value"]["is"] for call in await agent.atool_track()) == ["pasta", "pizza"]


# -- the store is as LangGraph's


def test_batches_keep_order_and_results(repo, store):
    """A batch of reads and writes gives what the plain store gives, and its last write to an item is undone."""
    ops = [
        PutOp(NAMESPACE, "food", {"is": "pizza"}),
        GetOp(NAMESPACE, "food"),
        PutOp(NAMESPACE, "food", {"is": "pasta"}),
        SearchOp(NAMESPACE),
        PutOp(NAMESPACE, "pet", None),
        ListNamespacesOp(),
    ]
    results = []
    before_items = [("food", "old"), ("pet", "cat")]

    def node(state):
        results.append(get_store().batch(iter(ops)))
        return {"messages": [("ai", "done")]}

    plain = InMemoryStore()
    for one in (plain, store):
        for key, value in before_items:
            one.put(NAMESPACE, key, {"is": value})
    agent = repo.wrap(noting(store, node), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    expected = plain.batch(ops)
    assert [_shown(one) for one in results[0]] == [_shown(one) for one in expected]
    assert contents(store) == contents(plain) == {"food": "pasta"}
    agent.rollback(before)
    assert contents(store) == dict(before_items)


def _shown(result):
    items = result if isinstance(result, list) else [result]
    return [(one.key, one.value) if hasattr(one, "value") else one for one in items]


def test_search_and_the_index_pass_through(repo):
    """Semantic search, `index` and the class of the store are the user's."""
    seen = {}

    def node(state):
        store = get_store()
        store.put(NAMESPACE, "a", {"is": "aeiou"}, index=["is"])
        store.put(NAMESPACE, "b", {"is": "xyz"}, index=False)
        seen["scores"] = {item.key: item.score is not None for item in store.search(NAMESPACE, query="aeiou")}
        seen["class"] = isinstance(store, InMemoryStore), store.index_config is given.index_config
        seen["spaces"] = store.list_namespaces()
        return {"messages": [("ai", "done")]}

    given = InMemoryStore(index={"dims": 3, "embed": embed, "fields": ["is"]})
    agent = repo.wrap(noting(given, node), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    assert seen == {"scores": {"a": True, "b": False}, "class": (True, True), "spaces": [NAMESPACE]}
    assert [one.args["index"] for one in agent.tool_track()] == [["is"], False]
    retry = agent.rollback(before)
    assert contents(given) == {}
    retry.redo()
    scores = {item.key: item.score is not None for item in given.search(NAMESPACE, query="aeiou")}
    assert scores == {"a": True, "b": False}


@OLD_ADAPTER
def test_the_time_to_live_passes_through(repo, tmp_path):
    """`ttl` reaches the store, and reading the value before does not make an item live longer."""

    def node(state):
        store = get_store()
        store.put(NAMESPACE, "food", {"is": "pasta"}, ttl=5)
        assert (store.supports_ttl, store.ttl_config) == (True, given.ttl_config)
        return {"messages": [("ai", "done")]}

    with sqlite_store(tmp_path / "memory.db", ttl={"default_ttl": 60, "refresh_on_read": True}) as given:
        agent = repo.wrap(noting(given, node), "a")
        agent.invoke(said("go"))
        assert given.conn.execute("SELECT ttl_minutes FROM store").fetchall() == [(5,)]
        assert agent.tool_track()[0].args["ttl"] == 5
        set_back = "UPDATE store SET expires_at = '2099-01-01 00:00:00'"
        given.conn.execute(set_back)
        agent.plan_rollback("main#1")
        assert given.conn.execute("SELECT expires_at FROM store").fetchall() == [("2099-01-01 00:00:00",)]


@OLD_ADAPTER
def test_an_expired_item_is_not_brought_back(repo, tmp_path):
    """An item that has expired since is a conflict, because it is not what this session wrote."""

    def node(state):
        get_store().put(NAMESPACE, "food", {"is": "pizza"}, ttl=0.0001)
        return {"messages": [("ai", "done")]}

    with sqlite_store(tmp_path / "memory.db", ttl={"refresh_on_read": False}) as given:
        given.put(NAMESPACE, "food", {"is": "old"}, ttl=None)
        agent = repo.wrap(noting(given, node), "a")
        before = agent.checkpoint("before")
        agent.invoke(said("go"))
        while given.get(NAMESPACE, "food") is not None:
            given.sweep_ttl()
        report = agent.rollback(before).report
        assert "has expired" in reasons(report.kept)["food"]
        assert given.get(NAMESPACE, "food") is None


def test_an_error_of_the_store_is_the_stores(repo, store):
    """A write that the store refuses raises its error, and the journal says that it did not happen."""

    def node(state):
        get_store().put(("langgraph",), "food", {"is": "pizza"})

    agent = repo.wrap(noting(store, node), "a")
    with pytest.raises(ValueError, match="langgraph"):
        agent.invoke(said("go"))
    assert [one.status for one in agent.session.tool_track()] == ["failed"]


# -- where writes are made


def test_writes_in_a_tool_are_undone_though_the_tool_is_undeclared(repo, store):
    """A tool that writes to memory needs no declaration for that."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("tool:+food=pizza"))
    report = agent.rollback(before).report
    assert [item.invocation.tool_name for item in report.reversed] == ["memory.put"]
    assert [item.invocation.tool_name for item in report.kept] == ["remember"]
    assert contents(store) == {}


def test_a_tool_that_only_writes_to_memory_can_be_declared_read_only(repo, store):
    """Then plans list its writes only, and they are undone."""
    agent = repo.wrap(noting(store), "a", effects={"remember": "read_only"}, check_effects=False)
    before = agent.checkpoint("before")
    agent.invoke(said("tool:+food=pizza"))
    assert [one.tool_name for one in agent.tool_track()] == ["remember", "memory.put"]
    report = agent.rollback(before).report
    assert ([item.invocation.tool_name for item in report.reversed], report.kept) == (["memory.put"], [])
    assert contents(store) == {}


def test_a_reversible_tool_that_writes_can_be_made_again(repo, store):
    """A switch makes the call of the tool again, and its write to memory once."""
    orders = []

    @tool
    def order(item: str) -> str:
        """Order something."""
        orders.append(item)
        if store_now := _store_or_none():
            store_now.put(NAMESPACE, "last", {"is": item})
        return item

    def node(state):
        order.invoke({"item": "chair"})
        return {"messages": [("ai", "done")]}

    undo = reversible(lambda args, result: orders.remove(result))
    graph = StateGraph(MessagesState).add_node("n", node).add_edge(START, "n").compile(store=store)
    agent = repo.wrap(graph, "a", effects={"order": undo}, check_effects=False)
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    retry = agent.rollback(before)
    assert (orders, contents(store)) == ([], {})
    plan = retry.session.plan_switch("main")
    assert [step.action for step in plan.steps if step.invocation.tool_name == "memory.put"] == ["redo"]


def _store_or_none():
    try:
        return get_store()
    except (KeyError, RuntimeError):
        return None


def test_parallel_tools_and_subgraphs(repo, store):
    """Writes of parallel calls and of a graph inside a node are recorded and undone."""

    @tool
    def note(key: str) -> str:
        """Note something."""
        get_store().put(NAMESPACE, key, {"is": "noted"})
        return key

    def rule(messages):
        if messages[-1].type == "tool":
            return AIMessage("done")
        return calls(*(call("note", f"c{n}", key=f"k{n}") for n in range(4)))

    inner = tool_node_graph(ScriptedModel(rule=rule), [note])
    graph = StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile(store=store)
    agent = repo.wrap(graph, "a")
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    assert set(contents(store)) == {"k0", "k1", "k2", "k3"}
    assert sum(one.tool_name == "memory.put" for one in agent.tool_track()) == 4
    agent.rollback(before)
    assert contents(store) == {}


def test_a_repeated_node_writes_again_with_the_true_value_before(repo, store):
    """A node that runs again after an error writes again, and both writes are undone."""
    attempts = []

    def node(state):
        get_store().put(NAMESPACE, "food", {"is": f"attempt {len(attempts)}"})
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")
        return {"messages": [("ai", "done")]}

    store.put(NAMESPACE, "food", {"is": "old"})
    agent = repo.wrap(noting(store, node), "a")
    before = agent.checkpoint("before")
    with pytest.raises(ValueError, match="once"):
        agent.invoke(said("go"))
    agent.invoke(None)
    assert [one.args["before"]["is"] for one in agent.tool_track()] == ["old", "attempt 0"]
    agent.rollback(before)
    assert contents(store) == {"food": "old"}


def test_a_node_that_asks_a_person_writes_again_when_it_is_answered(repo, store):
    """The node runs again from its beginning, and a rollback undoes what both runs wrote."""

    def node(state):
        get_store().put(NAMESPACE, "asked", {"is": "yes"})
        get_store().put(NAMESPACE, "answer", {"is": interrupt("food?")})
        return {"messages": [("ai", "done")]}

    agent = repo.wrap(noting(store, node), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("go"))
    agent.invoke(Command(resume="pizza"))
    assert contents(store) == {"asked": "yes", "answer": "pizza"}
    agent.rollback(before)
    assert contents(store) == {}


def test_replay_execute_writes_the_path_again(repo, store):
    """With replay='execute', what was written is undone, and the writes before the point are made again."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza"))
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pasta +pet=cat"))
    retry = agent.rollback(before, replay="execute")
    assert contents(store) == {"food": "pizza"}
    assert [item.invocation.args["value"]["is"] for item in retry.report.redone] == ["pizza"]
    retry.invoke(said("+food=soup"))
    retry.undo()
    assert contents(store) == {"food": "pizza"}


def test_a_template_writes_to_the_memory_of_the_new_session(repo, store):
    """A session that makes the calls of a template again writes them for itself, and can undo them."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza"))
    agent.checkpoint("end")
    other = InMemoryStore()
    fresh = repo.wrap(noting(other), "b", template="a@end", replay="execute")
    assert contents(other) == {"food": "pizza"}
    fresh.rollback("main#1")
    assert contents(store) == {"food": "pizza"}


def test_a_template_does_not_overwrite_what_is_in_the_new_sessions_memory(repo, store, tmp_path):
    """Calls of a template or an import that are made again leave an item that has another value here."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=pizza +food=pasta +pet=cat"))
    agent.checkpoint("end")
    agent.session.export(tmp_path / "a.jsonl")
    with agentgit.open(tmp_path / "other.db") as fresh:
        fresh.import_(tmp_path / "a.jsonl")
        for target, wrap in ((repo, {"session": "b", "template": "a@end", "replay": "execute"}), (fresh, None)):
            other = InMemoryStore()
            other.put(NAMESPACE, "food", {"is": "soup"})
            if wrap is not None:
                target.wrap(noting(other), **wrap)
            else:
                target.wrap(noting(other), "a").rollback("end", replay="execute")
            assert contents(other) == {"food": "soup", "pet": "cat"}


def test_a_change_during_the_rollback_stays(repo, store):
    """A value that another session writes after the plan and before the undo is kept and named, too."""
    ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
    before = ours.checkpoint("before")
    ours.invoke(said("+food=pizza +pet=cat"))
    with faults.before(points.WORK_ON_WORLD, lambda: theirs.invoke(said("+food=pasta"))):
        report = ours.rollback(before).report
    assert report.status == "done"
    assert "session 'theirs'" in reasons(report.kept)["food"]
    assert contents(store) == {"food": "pasta"}
    assert repo.maintenance.fsck(3).is_sound


# -- async


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def async_store(request, tmp_path):
    """Open a store that works on the event loop of the test."""
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "memory.db")) as opened_store:
            await opened_store.setup()
            yield opened_store
    else:
        with store_schema(request.getfixturevalue("postgres_url")) as url:
            async with AsyncPostgresStore.from_conn_string(url) as opened_store:
                await opened_store.setup()
                yield opened_store


async def acontents(store):
    """Return Ann's items."""
    return {item.key: item.value["is"] for item in await store.asearch(NAMESPACE)}


async def test_async_stores(repo, async_store):
    """Async turns record, and async rollbacks and switches undo, on the loop of the store."""
    agent = await asyncio.to_thread(repo.wrap, noting(async_store, aact), "a")
    await agent.ainvoke(said("+food=pizza tool:+pet=cat"))
    before = await agent.acheckpoint("before")
    await agent.ainvoke(said("+food=pasta -pet"))
    assert await acontents(async_store) == {"food": "pasta"}
    retry = await agent.arollback(before)
    assert await acontents(async_store) == {"food": "pizza", "pet": "cat"}
    await retry.aswitch("main", sync="world")
    assert await acontents(async_store) == {"food": "pasta"}


async def test_a_sync_rollback_on_the_loop_of_an_async_store_says_what_to_do(repo, tmp_path):
    """An async store cannot be read by a blocking call on its own loop; nothing hangs, and nothing is lost."""
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "memory.db")) as store:
        await store.setup()
        agent = repo.wrap(noting(store, aact), "a")
        before = agent.checkpoint("before")
        await agent.ainvoke(said("+food=pizza"))
        with pytest.raises(RollbackBlocked, match="its store cannot be read"):
            agent.rollback(before)
        await agent.arollback(before)
        assert await acontents(store) == {}


async def test_a_cancelled_write_is_settled(repo):
    """A write that was cancelled half way goes on; a rollback waits for it, looks it up and undoes it."""
    entered, may_write = asyncio.Event(), asyncio.Event()

    class Slow(InMemoryStore):
        async def abatch(self, ops):
            ops = list(ops)
            if any(isinstance(op, PutOp) for op in ops):
                entered.set()
                await may_write.wait()
            return await super().abatch(ops)

    store = Slow()
    agent = await asyncio.to_thread(repo.wrap, noting(store, aact), "a")
    before = await agent.acheckpoint("before")
    turn = asyncio.ensure_future(agent.ainvoke(said("+food=pizza")))
    await asyncio.wait_for(entered.wait(), 20)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    rollback = asyncio.ensure_future(agent.arollback(before))
    await asyncio.sleep(0.2)
    assert not rollback.done()
    may_write.set()
    retry = await asyncio.wait_for(rollback, 20)
    assert (len(retry.report.reversed), contents(store)) == (1, {})


async def test_a_write_in_a_thread_of_a_cancelled_turn_is_undone(repo):
    """A sync node goes on in its thread; a rollback waits for the end of the write that it makes."""
    entered, may_write, written = threading.Event(), threading.Event(), threading.Event()

    class Slow(InMemoryStore):
        def put(self, *args, **options):
            entered.set()
            may_write.wait(20)
            super().put(*args, **options)
            written.set()

    store = Slow()
    agent = await asyncio.to_thread(repo.wrap, noting(store), "a")
    before = await agent.acheckpoint("before")
    turn = asyncio.ensure_future(agent.ainvoke(said("+food=pizza")))
    await asyncio.to_thread(entered.wait, 20)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    rollback = asyncio.ensure_future(agent.arollback(before))
    await asyncio.sleep(0.2)
    assert not rollback.done()
    may_write.set()
    retry = await asyncio.wait_for(rollback, 20)
    assert (written.is_set(), contents(store)) == (True, {})
    assert [one.status for one in agent.tool_track()] == ["reversed"]
    assert reasons(retry.report.reversed) == {"food": "the item is deleted again"}


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_thread_of_a_cancelled_turn_writes_no_more(repo, store, is_followed):
    """A write that begins after its turn was cancelled is refused, also while another turn of the agent runs."""
    entered, may_write, has_tried, errors = threading.Event(), threading.Event(), threading.Event(), []

    def act(state):
        if state["messages"][-1].content == "follow":
            may_write.set()
            has_tried.wait(20)
            return {}
        entered.set()
        may_write.wait(20)
        try:
            get_store().put(NAMESPACE, "food", {"is": "pizza"})
        except agentgit.Conflict as error:
            errors.append(error)
        has_tried.set()
        return {}

    agent = await asyncio.to_thread(repo.wrap, noting(store, act), "a")
    before = await agent.acheckpoint("before")
    turn = asyncio.ensure_future(agent.ainvoke(said("go")))
    await asyncio.to_thread(entered.wait, 20)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    if is_followed:
        await agent.ainvoke(said("follow"))
    else:
        agent = await agent.arollback(before)
        may_write.set()
        await asyncio.to_thread(has_tried.wait, 20)
    assert (len(errors), contents(store), agent.tool_track()) == (1, {}, [])


def test_a_write_is_recorded_in_the_turn_that_makes_it(repo, store):
    """With an agent inside an unwrapped graph, or a plain graph inside an agent, each turn has its writes."""
    inner = repo.wrap(noting(store), "inner")

    def call_agent(state):
        get_store().put(NAMESPACE, "outside", {"is": "x"})
        inner.invoke(said("+food=pizza"))
        get_store().put(NAMESPACE, "outside", {"is": "y"})

    noting(store, call_agent).invoke(said("go"))
    assert [one.args["key"] for one in inner.tool_track()] == ["food"]

    def call_graph(state):
        get_store().put(NAMESPACE, "city", {"is": "Rome"})
        noting(get_store()).invoke(said("+pet=cat"))
        get_store().put(NAMESPACE, "city", {"is": "Oslo"})

    outer = repo.wrap(noting(store, call_graph), "outer")
    before = outer.checkpoint("before")
    outer.invoke(said("go"))
    assert [one.args["key"] for one in outer.tool_track()] == ["city", "pet", "city"]
    outer.rollback(before)
    assert contents(store) == {"outside": "y", "food": "pizza"}


@pytest.mark.parametrize("node", [None, aact])
async def test_a_write_that_raised_is_looked_up(repo, node):
    """A write that raised after it was made is found done, and undone; one that was not made has failed."""

    class Lost(InMemoryStore):
        def put(self, namespace, key, *args, **options):
            if key == "food":
                super().put(namespace, key, *args, **options)
            raise ConnectionError("lost")

        async def aput(self, *args, **options):
            self.put(*args, **options)

    store = Lost()
    agent = await asyncio.to_thread(repo.wrap, noting(store, node) if node else noting(store), "a")
    before = await agent.acheckpoint("before")
    for text in ("+food=pizza", "+pet=cat"):
        with pytest.raises(ConnectionError):
            await agent.ainvoke(said(text))
    assert [one.status for one in agent.tool_track()] == ["done", "failed"]
    await agent.arollback(before)
    assert contents(store) == {}


# -- served graphs


def test_a_served_thread_undoes_memory_without_asking(repo, store):
    """Behind repo.graph, a run at an older checkpoint undoes memory, with the store that the host gives."""
    app = repo.graph(noting(), confirm="interrupt").copy({"store": store})
    app.invoke(said("+food=pizza"), THREAD)
    older = app.get_state(THREAD).config
    app.invoke(said("+food=pasta +pet=cat"), THREAD)
    result = app.invoke(said("+city=Rome"), older)
    assert "__interrupt__" not in result
    assert contents(store) == {"food": "pizza", "city": "Rome"}


def test_a_served_thread_returns_to_a_branch_with_its_memory(repo, store):
    """A run at the end of another branch writes again what was undone."""
    app = repo.graph(noting(store))
    app.invoke(said("+food=pizza"), THREAD)
    older = app.get_state(THREAD).config
    app.invoke(said("+food=pasta"), THREAD)
    newer = app.get_state(THREAD).config
    app.invoke(said("+pet=cat"), older)
    assert contents(store) == {"food": "pizza", "pet": "cat"}
    assert "__interrupt__" not in app.invoke(said("+city=Rome"), newer)
    assert contents(store) == {"food": "pasta", "city": "Rome"}


def test_the_store_in_the_runtime_of_a_host(repo, store):
    """The store that a server passes with the run, as langgraph-api does, is recorded and undone."""
    from langgraph.runtime import Runtime

    app = repo.graph(noting())
    host = {"configurable": {"thread_id": "t", "__pregel_runtime": Runtime(store=store)}}
    app.invoke(said("+food=pizza"), host)
    older = app.get_state(THREAD).config["configurable"]
    app.invoke(said("+food=pasta"), host)
    app.invoke(said("+pet=cat"), {"configurable": {**host["configurable"], **older}})
    assert contents(store) == {"food": "pizza", "pet": "cat"}


@pytest.mark.parametrize("kind", ["graph", "host", "wrap"])
def test_a_process_keeps_the_store_of_many_sessions(repo, store, monkeypatch, kind):
    """After many other sessions, without an agent of the first, its memory is still undone in this process."""
    limit_sessions(monkeypatch, 1, declared=100)
    app = repo.graph(noting(store if kind == "graph" else None))
    app = app.copy({"store": store}) if kind == "host" else app
    for name in ("t", "u", "v"):
        if kind == "wrap":
            repo.wrap(noting(store), name).invoke(said(f"+{name}=x"))
        else:
            app.invoke(said(f"+{name}=x"), {"configurable": {"thread_id": name}})
    gc.collect()
    repo.session("t").undo()
    assert contents(store) == {"u": "x", "v": "x"}


def test_after_a_restart_different_stores_of_one_name_are_not_guessed(database, store):
    """If graphs of one name have different stores, no store is written until it is known which of them ran."""
    other = InMemoryStore()
    with agentgit.open(database.url) as repo:
        app = repo.graph(noting(store))
        for text in ("+food=pizza", "+food=pasta"):
            app.invoke(said(text), THREAD)
            other.put(NAMESPACE, "food", {"is": text.removeprefix("+food=")})
    with agentgit.open(database.url) as restarted:
        apps = [restarted.graph(noting(one)) for one in (store, other)]
        with pytest.raises(RollbackBlocked, match="wrap the graph with its store again"):
            restarted.session("t").undo()
        assert (contents(store), contents(other)) == ({"food": "pasta"}, {"food": "pasta"})
        apps[0].invoke(said("hello"), THREAD)
        restarted.session("t").undo(2)
        assert (contents(store), contents(other)) == ({"food": "pizza"}, {"food": "pasta"})


# -- what cannot be undone, and what shall not be


def test_without_the_store_a_plan_says_so(tmp_path, store):
    """A process without the store is blocked and told why; forced, it leaves memory alone and says so."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = repo.wrap(noting(store), "a")
        agent.checkpoint("before")
        agent.invoke(said("+food=pizza"))
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        session = repo.session("a")
        with pytest.raises(RollbackBlocked, match="wrap the graph with its store again"):
            session.rollback("before")
        report = session.rollback("before", force=True)
        assert "wrap the graph with its store again" in reasons(report.kept)["food"]
    assert contents(store) == {"food": "pizza"}


def test_a_trusted_module_brings_its_store(tmp_path, store, monkeypatch):
    """A process that wraps no graph undoes memory with the store of a module that the operator names."""
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = repo.wrap(noting(store), "a")
        agent.checkpoint("before")
        agent.invoke(said("+food=pizza"))
    module = types.ModuleType("shop_memory")
    module.graph = noting(store)
    monkeypatch.setitem(sys.modules, "shop_memory", module)
    with agentgit.open(tmp_path / "agentgit.db", trust=["shop_memory"]) as repo:
        repo.session("a").rollback("before")
    assert contents(store) == {}


def test_an_encrypted_database(tmp_path, store):
    """Values in the journal are encrypted like the arguments of tools, and are undone as in any other database."""
    path = tmp_path / "encrypted.db"
    with agentgit.open(path, keyring=Keyring({"a": bytes(32)})) as repo:
        ours, theirs = repo.wrap(noting(store), "ours"), repo.wrap(noting(store), "theirs")
        before = ours.checkpoint("before")
        ours.invoke(said("+food=marzipan +pet=cat"))
        theirs.invoke(said("+pet=dog"))
        assert "session 'theirs'" in reasons(ours.rollback(before).report.kept)["pet"]
        assert repo.maintenance.fsck(3).is_sound
    assert contents(store) == {"pet": "dog"}
    assert b"marzipan" not in path.read_bytes()


def test_a_functional_graph(repo, store):
    """The store of an entrypoint is recorded in its tasks."""

    @task
    def note(word):
        get_store().put(NAMESPACE, "food", {"is": word})
        return word

    @entrypoint(store=store)
    def work(word):
        return note(word).result()

    agent = repo.wrap(work, "a")
    agent.invoke("pizza")
    before = agent.checkpoint("before")
    agent.invoke("pasta")
    agent.rollback(before)
    assert contents(store) == {"food": "pizza"}


def test_memory_can_be_left_out(repo, store):
    """A user who declares the writes idempotent sees them, and a rollback leaves them."""
    declared = {"memory.put": "idempotent", "memory.delete": "read_only"}
    agent = repo.wrap(noting(store), "a", effects=declared)
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza +pet=cat -pet"))
    assert [one.effect for one in agent.tool_track()] == ["idempotent", "idempotent", "read_only"]
    report = agent.rollback(before).report
    assert set(reasons(report.kept)) == {"food", "pet"}
    assert contents(store) == {"food": "pizza"}
    with pytest.raises(InvalidInput, match=r"memory\.put"):
        repo.wrap(noting(store), "b", effects={"memory.put": "irreversible"})


def test_a_store_given_to_wrap_replaces_the_graphs(repo, store):
    """`store=` is the memory of the graph, and what is no store is refused."""
    other = InMemoryStore()
    graph = noting(other)
    agent = repo.wrap(graph, "a", store=store)
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    assert (contents(store), contents(other)) == ({"food": "pizza"}, {})
    assert graph.store is other
    agent.rollback(before)
    assert contents(store) == {}
    with pytest.raises(InvalidInput, match="BaseStore"):
        repo.wrap(graph, "b", store={})


def test_a_store_that_cannot_be_wrapped_is_outside(repo):
    """A store that is no `BaseStore` works, and a warning says that it is outside."""

    class Notes:
        def put(self, *args):
            self.args = args

    notes = Notes()
    with pytest.warns(UserWarning, match="Notes, is not a BaseStore"):
        agent = repo.wrap(noting(notes, lambda state: get_store().put("x") and None), "a")
    agent.invoke(said("go"))
    assert notes.args == ("x",)


def test_a_deletion_from_memory_backs_up_no_file(repo, store, tmp_path):
    """`memory.delete` is no tool that deletes files, so nothing of the workspace is put on its undo stack."""
    (tmp_path / "report.txt").write_text("June")
    agent = repo.wrap(noting(store), "a", workspace=tmp_path)
    agent.invoke(said("+food=pizza -food"))
    assert [call.tool_name for call in agent.tool_track()] == ["memory.put", "memory.delete"]
    assert Workspace(tmp_path).undo_stack.depth == 0


def test_values_are_erased_with_the_session(repo, store):
    """No value of a deleted session is left in the journal, and memory stays as it is."""
    agent = repo.wrap(noting(store), "a")
    agent.invoke(said("+food=secretpizza +food=pasta"))
    session = agent.session
    session.delete()
    assert contents(store) == {"food": "pasta"}
    assert repo.maintenance.fsck(3).is_sound


def test_an_imported_write_is_never_undone(repo, store, tmp_path):
    """An export carries the writes; in the imported session they are history of another world."""
    agent = repo.wrap(noting(store), "a")
    before = agent.checkpoint("before")
    agent.invoke(said("+food=pizza"))
    agent.session.export(tmp_path / "a.jsonl")
    with agentgit.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "a.jsonl")
        copy = other.wrap(noting(store), "a")
        assert [one.tool_name for one in copy.tool_track()] == ["memory.put"]
        report = copy.rollback("before").report
        assert "another world" in reasons(report.kept)["food"]
    assert contents(store) == {"food": "pizza"}
    agent.rollback(before)
    assert contents(store) == {}


# -- many sessions at once


def test_sessions_that_write_one_item_at_once_record_a_chain(repo, store):
    """Values are read and written under a lock, so each write has the value of the one before it."""
    agents = [repo.wrap(noting(store), f"s{n}") for n in range(4)]
    threads = [
        threading.Thread(target=lambda a=a, n=n: a.invoke(said(" ".join(f"+food={n}-{i}" for i in range(5)))))
        for n, a in enumerate(agents)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writes = [one.args for agent in agents for one in agent.tool_track()]
    values = [None, *(one["value"]["is"] for one in writes)]
    befores = [one["before"]["is"] if one["before"] else None for one in writes]
    assert sorted(map(str, befores)) == sorted(str(v) for v in values if v != contents(store)["food"])


STEPS = st.lists(
    st.tuples(st.sampled_from(["one", "two"]), st.sampled_from(["+a=1", "+a=2", "-a", "+b=1", "-b", "mark", "back"])),
    max_size=14,
)


@pytest.mark.long
@settings(max_examples=40)
@given(STEPS)
def test_random_writes_of_two_sessions(steps):
    """A rollback undoes exactly the writes above which no other session's write stands, as in a model."""
    store, model = InMemoryStore(), Model()
    with agentgit.open(":memory:") as repo:
        agents = {name: repo.wrap(noting(store), name) for name in ("one", "two")}
        marks = {name: agent.checkpoint("start") for name, agent in agents.items()}
        for name, step in steps:
            if step == "mark":
                marks[name] = agents[name].checkpoint(f"mark {model.mark(name)}")
            elif step == "back":
                agents[name] = agents[name].rollback(marks[name])
                kept = {item.invocation.args["key"] for item in agents[name].report.kept}
                assert kept >= model.back(name)
                marks[name] = agents[name].checkpoint(f"mark {model.mark(name)}")
            else:
                agents[name].invoke(said(step))
                model.write(name, step)
            assert contents(store) == model.items


class Model:
    """What memory should be: the items, and the writes that stand, oldest first."""

    def __init__(self):
        self.items = {}
        self.writes = []
        self.marks = {"one": 0, "two": 0}
        self.time = 0

    def write(self, name, step):
        """Put or delete an item."""
        key, _, value = step[1:].partition("=")
        new, old = (value if step[0] == "+" else None), self.items.get(key)
        self.time += 1
        self.writes.append((self.time, name, key, old, new))
        self._set(key, new)

    def mark(self, name):
        """Remember the point to which a session rolls back."""
        self.marks[name] = self.time
        self.time += 1
        return self.time

    def back(self, name):
        """Roll a session back, and return the keys whose writes stay."""
        kept = set()
        for one in [w for w in reversed(self.writes) if w[1] == name and w[0] > self.marks[name]]:
            time, _, key, old, new = one
            current = self.items.get(key)
            is_newer = any(w[1] != name and w[2] == key and w[0] > time for w in self.writes)
            if current == old or (current == new and not is_newer):
                self._set(key, old)
                self.writes.remove(one)
            else:
                kept.add(key)
        return kept

    def _set(self, key, value):
        if value is None:
            self.items.pop(key, None)
        else:
            self.items[key] = value


MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(["+a=1", "+a=2", "-a", "+b=1", "-b"])),
        st.tuples(st.just("back"), st.integers(0, 20)),
        st.tuples(st.just("switch"), st.integers(0, 20)),
        st.tuples(st.just("fork"), st.integers(0, 20)),
    ),
    max_size=12,
)


@pytest.mark.long
@settings(max_examples=30)
@given(MOVES)
def test_random_moves_between_branches(moves):
    """After a rollback memory is as at its point, and after a switch as at the end of the branch."""
    store = InMemoryStore()
    with agentgit.open(":memory:") as repo:
        agent = repo.wrap(noting(store), "a")
        paths = {"main": [(agent.checkpoint("p0"), {})]}  # the points on the path of each branch
        count = 0
        for kind, choice in moves:
            path = paths[agent.branch.name]
            if kind == "write":
                agent.invoke(said(choice))
                count += 1
                path.append((agent.checkpoint(f"p{count}"), contents(store)))
                continue
            if kind == "back":
                path = path[: choice % len(path) + 1]
                agent = agent.rollback(path[-1][0])
            elif kind == "fork":
                other = list(paths.values())[choice % len(paths)]
                path = other[: choice % len(other) + 1]
                fork = agent.fork(path[-1][0])
                agent = fork.switch(fork.branch.name, sync="world")
            else:
                agent = agent.switch(list(paths)[choice % len(paths)], sync="world")
                path = paths[agent.branch.name]
            paths[agent.branch.name] = list(path)
            assert contents(store) == path[-1][1]
        assert repo.maintenance.fsck(3).is_sound
