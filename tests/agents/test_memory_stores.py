"""Nodes find the store of the user unchanged, and what they wrote is undone wherever that store is known again."""

import gc
import sys
import types

import pytest
from langgraph.config import get_store
from langgraph.runtime import Runtime
from langgraph.store.base import GetOp, ListNamespacesOp, PutOp, SearchOp
from langgraph.store.memory import InMemoryStore
from memory_graphs import NAMESPACE, agent, begun, contents, embed, noting, reasons, said, sqlite_store, store
from process_memory import limit_sessions

import agentgit
from agentgit import InvalidInput, Keyring, RollbackBlocked

__all__ = ["agent", "store"]  # the fixtures

THREAD = {"configurable": {"thread_id": "t"}}

OLD_ADAPTER = pytest.mark.filterwarnings("ignore:The default datetime adapter:DeprecationWarning")
"""LangGraph's SqliteStore uses it for the times of its items."""


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
    results, plain = [], InMemoryStore()

    def node(state):
        results.extend(get_store().batch(iter(ops)))

    for one in (plain, store):
        for key, value in (("food", "old"), ("pet", "cat")):
            one.put(NAMESPACE, key, {"is": value})
    agent = begun(repo, store, node)
    agent.invoke(said("go"))
    assert [_shown(one) for one in results] == [_shown(one) for one in plain.batch(ops)]
    assert contents(store) == contents(plain) == {"food": "pasta"}
    agent.rollback("before")
    assert contents(store) == {"food": "old", "pet": "cat"}


def _shown(result):
    items = result if isinstance(result, list) else [result]
    return [(one.key, one.value) if hasattr(one, "value") else one for one in items]


def test_search_and_the_index_pass_through(repo):
    seen = {}

    def node(state):
        store = get_store()
        store.put(NAMESPACE, "a", {"is": "aeiou"}, index=["is"])
        store.put(NAMESPACE, "b", {"is": "xyz"}, index=False)
        seen["scores"] = are_scored(store)
        seen["class"] = isinstance(store, InMemoryStore), store.index_config is given.index_config
        seen["spaces"] = store.list_namespaces()

    def are_scored(store):
        return {item.key: item.score is not None for item in store.search(NAMESPACE, query="aeiou")}

    given = InMemoryStore(index={"dims": 3, "embed": embed, "fields": ["is"]})
    agent = begun(repo, given, node)
    agent.invoke(said("go"))
    assert seen == {"scores": {"a": True, "b": False}, "class": (True, True), "spaces": [NAMESPACE]}
    assert [one.args["index"] for one in agent.tool_track()] == [["is"], False]
    retry = agent.rollback("before")
    assert contents(given) == {}
    retry.redo()
    assert are_scored(given) == {"a": True, "b": False}


@OLD_ADAPTER
def test_the_time_to_live_passes_through(repo, tmp_path):
    """`ttl` reaches the store, and reading the value before does not make an item live longer."""

    def node(state):
        store = get_store()
        store.put(NAMESPACE, "food", {"is": "pasta"}, ttl=5)
        assert (store.supports_ttl, store.ttl_config) == (True, given.ttl_config)

    with sqlite_store(tmp_path / "memory.db", ttl={"default_ttl": 60, "refresh_on_read": True}) as given:
        agent = repo.wrap(noting(given, node), "a")
        agent.invoke(said("go"))
        assert given.conn.execute("SELECT ttl_minutes FROM store").fetchall() == [(5,)]
        assert agent.tool_track()[0].args["ttl"] == 5
        given.conn.execute("UPDATE store SET expires_at = '2099-01-01 00:00:00'")
        agent.plan_rollback("main#1")
        assert given.conn.execute("SELECT expires_at FROM store").fetchall() == [("2099-01-01 00:00:00",)]


@OLD_ADAPTER
def test_an_expired_item_is_a_conflict_and_not_brought_back(repo, tmp_path):
    def node(state):
        get_store().put(NAMESPACE, "food", {"is": "pizza"}, ttl=0.0001)

    with sqlite_store(tmp_path / "memory.db", ttl={"refresh_on_read": False}) as given:
        given.put(NAMESPACE, "food", {"is": "old"}, ttl=None)
        agent = begun(repo, given, node)
        agent.invoke(said("go"))
        while given.get(NAMESPACE, "food") is not None:
            given.sweep_ttl()
        report = agent.rollback("before").report
        assert "has expired" in reasons(report.kept)["food"]
        assert given.get(NAMESPACE, "food") is None


def test_an_undo_writes_the_value_before_and_not_what_the_users_store_makes_of_a_put(repo):
    class CountingStore(InMemoryStore):
        def put(self, namespace, key, value, *args, **options):
            super().put(namespace, key, {**value, "puts": value.get("puts", 0) + 1}, *args, **options)

    store = CountingStore()
    agent = begun(repo, store)
    InMemoryStore.put(store, NAMESPACE, "food", {"is": "pizza", "puts": 0})
    agent.invoke(said("-food"))
    agent.rollback("before")
    assert store.get(NAMESPACE, "food").value == {"is": "pizza", "puts": 0}


def test_a_store_given_to_wrap_replaces_the_graphs(repo, store):
    other = InMemoryStore()
    graph = noting(other)
    agent = repo.wrap(graph, "a", store=store)
    agent.invoke(said("+food=pizza"))
    assert (contents(store), contents(other)) == ({"food": "pizza"}, {})
    assert graph.store is other
    agent.rollback("main#1")
    assert contents(store) == {}
    with pytest.raises(InvalidInput, match="BaseStore"):
        repo.wrap(graph, "b", store={})


def test_a_store_that_is_no_basestore_works_and_is_outside(repo):
    class Notes:
        def put(self, *args):
            self.args = args

    notes = Notes()
    with pytest.warns(UserWarning, match="Notes, is not a BaseStore"):
        agent = repo.wrap(noting(notes, lambda state: get_store().put("x")), "a")
    agent.invoke(said("go"))
    assert notes.args == ("x",)


# -- the store of a served graph


def test_a_served_thread_takes_its_memory_to_an_older_checkpoint_and_back_without_asking(repo, store):
    app = repo.graph(noting(), confirm="interrupt").copy({"store": store})  # the host gives the store
    app.invoke(said("+food=pizza"), THREAD)
    older = app.get_state(THREAD).config
    app.invoke(said("+food=pasta +pet=cat"), THREAD)
    newer = app.get_state(THREAD).config
    assert "__interrupt__" not in app.invoke(said("+city=Rome"), older)
    assert contents(store) == {"food": "pizza", "city": "Rome"}
    assert "__interrupt__" not in app.invoke(said("+city=Oslo"), newer)
    assert contents(store) == {"food": "pasta", "pet": "cat", "city": "Oslo"}


def test_the_store_in_the_runtime_of_a_host_is_recorded_and_undone(repo, store):
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
    limit_sessions(monkeypatch, 100)
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


# -- another process


def test_without_the_store_a_plan_says_so_and_a_trusted_module_brings_it(tmp_path, store, monkeypatch):
    path = tmp_path / "agentgit.db"
    with agentgit.open(path) as repo:
        begun(repo, store).invoke(said("+food=pizza"))
    with agentgit.open(path) as repo:
        session = repo.session("ours")
        with pytest.raises(RollbackBlocked, match="the store that it wrote to is not attached here"):
            session.rollback("before")
        report = session.rollback("before", force=True)
        assert "the store that it wrote to is not attached here" in reasons(report.kept)["food"]
        session.switch("main")
    assert contents(store) == {"food": "pizza"}
    module = types.ModuleType("shop_memory")
    module.graph = noting(store)
    monkeypatch.setitem(sys.modules, "shop_memory", module)
    with agentgit.open(path, trust=["shop_memory"]) as repo:
        repo.session("ours").rollback("before")
    assert contents(store) == {}


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
        with pytest.raises(RollbackBlocked, match="the store that it wrote to is not attached here"):
            restarted.session("t").undo()
        assert (contents(store), contents(other)) == ({"food": "pasta"}, {"food": "pasta"})
        apps[0].invoke(said("hello"), THREAD)
        restarted.session("t").undo(2)
        assert (contents(store), contents(other)) == ({"food": "pizza"}, {"food": "pasta"})


def test_an_imported_write_is_never_undone(store, agent, tmp_path):
    agent.invoke(said("+food=pizza"))
    agent.session.export(tmp_path / "a.jsonl")
    with agentgit.open(tmp_path / "other.db") as other:
        other.import_(tmp_path / "a.jsonl")
        copy = other.wrap(noting(store), "ours")
        assert [one.tool_name for one in copy.tool_track()] == ["memory.put"]
        report = copy.rollback("before").report
        assert "another world" in reasons(report.kept)["food"]
    assert contents(store) == {"food": "pizza"}
    agent.rollback("before")
    assert contents(store) == {}


def test_values_in_the_journal_are_encrypted_and_erased_with_the_session(tmp_path, store):
    path = tmp_path / "encrypted.db"
    with agentgit.open(path, keyring=Keyring({"a": bytes(32)})) as repo:
        ours = begun(repo, store)
        ours.invoke(said("+food=marzipan +pet=cat"))
        repo.wrap(noting(store), "theirs").invoke(said("+pet=dog"))
        assert "session 'theirs'" in reasons(ours.rollback("before").report.kept)["pet"]
        assert repo.maintenance.fsck(3).is_sound
        assert b"marzipan" not in path.read_bytes()
        ours.session.delete()
        assert repo.maintenance.fsck(3).is_sound
    assert contents(store) == {"pet": "dog"}
