"""Values belong to one session: no other session refers to them, and they go with it."""

import threading

import backend
import pytest
from saver_checkpoints import on, put, values
from scripted import World, obedient, tool_node_graph
from sqlalchemy import func, select

import agentgit
from agentgit import Keyring, SQLModelSaver
from agentgit.checkpoints import Retention
from agentgit.store.objects.blobs import family_of
from agentgit.store.sql.tables import BLOB, GRAPH_CHECKPOINT, GRAPH_WRITE

OWNED = (BLOB, GRAPH_CHECKPOINT, GRAPH_WRITE)


def chat(repo, session, *turns, **options):
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **options)
    for turn in turns:
        agent.run(turn)
    return agent


def owners(repo, table=BLOB):
    """Count the rows of a table by the session or the family that owns them, without locks."""
    query = select(table.c.external_session_id, func.count()).group_by(table.c.external_session_id)
    with backend.reading(repo) as transaction:
        rows = transaction.execute(
            query.where(~table.c.external_session_id.between(-64, -1)) if table is BLOB else query
        )
        return dict(rows.all())


def hashes(repo, session):
    query = select(BLOB.c.hash).where(BLOB.c.external_session_id == repo.session(session).id)
    with backend.reading(repo) as transaction:
        return set(transaction.execute(query).scalars())


def is_sound(repo):
    """Return whether every value that a row refers to is stored for its session."""
    return repo.maintenance.fsck(3).findings == ()


def test_equal_values_of_two_sessions_are_separate_rows(repo):
    first, second = (chat(repo, name) for name in "ab")
    for agent in (first, second):
        agent.update_state(None, {"messages": [{"role": "user", "content": "the same text", "id": "1"}]})
    shared = hashes(repo, "a") & hashes(repo, "b")
    assert shared
    erased = repo.session("a").delete(force=True)
    assert erased.values == erased.rows["blob"] > 0
    assert shared <= hashes(repo, "b")
    assert set(owners(repo)) == {repo.session("b").id}
    assert [message["content"] for message in second.history()] == ["the same text"]
    assert is_sound(repo)


def test_an_erasure_reports_the_same_numbers_whatever_others_store(repo):
    """The report of an erasure does not tell whether another session has the same values."""
    message = {"messages": [{"role": "user", "content": "a secret guess", "id": "1"}]}
    reports = []
    for has_twin in (False, True):
        if has_twin:
            chat(repo, "twin").update_state(None, message)
        chat(repo, "probe").update_state(None, message)
        reports.append(repo.session("probe").delete(force=True))
    alone, beside = reports
    assert (alone.values, alone.bytes, alone.rows["blob"]) == (beside.values, beside.bytes, beside.rows["blob"])


def test_a_template_takes_its_values_along(repo):
    old = chat(repo, "old", *[f"note {n}" for n in range(20)])  # stored as a chain of lists
    history = old.history()
    new = chat(repo, "new", template="old")
    assert hashes(repo, "new") <= hashes(repo, "old")
    repo.session("old").delete(force=True)
    repo.maintenance.gc()
    assert new.history() == history
    assert new.run("add table") == "done"
    assert is_sound(repo)


def test_all_branches_of_a_session_share_its_values(repo):
    agent = chat(repo, "s", "note hello")
    agent.explore(1, ["add chair", "note hello"])
    before, stored = owners(repo), hashes(repo, "s")
    fork = agent.fork(name="other")
    assert owners(repo) == before
    fork.run("add table")
    agent.merge("other")
    assert stored <= hashes(repo, "s")
    assert any(message["content"] == "add table" for message in agent.history())
    agent.rollback("main#1", force=True)
    repo.maintenance.gc()
    assert {table.name: set(owners(repo, table)) for table in OWNED} == {
        table.name: {repo.session("s").id} for table in OWNED
    }
    assert is_sound(repo)


@pytest.mark.parametrize("keyring", [None, Keyring({"a": bytes(range(32))})])
def test_an_import_stores_the_values_for_the_new_session(repo, tmp_path, keyring):
    chat(repo, "other", "note something else")
    agent = chat(repo, "s", "add chair", "note hello")
    repo.session("s").export(tmp_path / "s.jsonl")
    assert "something else" not in (tmp_path / "s.jsonl").read_text()
    with agentgit.open(tmp_path / "there.db", keyring=keyring) as there:
        for name in ("one", "two"):
            there.import_(tmp_path / "s.jsonl", session=name)
        assert hashes(there, "one") == hashes(there, "two")
        there.session("one").delete(force=True)
        assert there.session("two").branch().conversation_history == agent.history()
        assert is_sound(there)


def test_retention_and_gc_delete_only_values_of_their_session(repo):
    agents = [chat(repo, name, "note first", "note second") for name in "ab"]
    for agent in agents:
        agent.checkpoint("end")
    kept = hashes(repo, "b")
    repo.session("a").retention.set(Retention(max_checkpoints=2, keep_last=1))
    repo.maintenance.gc()
    assert hashes(repo, "b") - kept == set()
    assert [agent.history()[0]["content"] for agent in agents] == ["note first"] * 2
    assert agents[0].run("note third") == "done"
    assert is_sound(repo)


# -- threads that belong to no session


def test_a_thread_and_its_copies_share_values_and_other_threads_do_not(repo):
    with SQLModelSaver.from_conn_string(backend.url(repo)) as saver:
        config = put(saver, "a", {"v": "the value"})
        put(saver, "b", {"v": "the value"})
        saver.copy_thread("a", "c")
        assert set(owners(repo)) == {family_of("a"), family_of("b")}
        saver.delete_thread("a")
        assert saver.gc().values == 0
        assert values(saver, on("c")) == values(saver, on("b")) == {"v": "the value"}
        put(saver, "c", {"v": "another"}, parent=config["configurable"]["checkpoint_id"])
        saver.delete_thread("c")
        assert saver.gc().values > 0
        assert set(owners(repo)) == {family_of("b")}
        assert is_sound(repo)


def test_a_copy_that_leaves_a_session_takes_its_values_along(repo):
    agent = chat(repo, "s", "add chair")
    thread = agent.branch.langgraph_session_id
    with SQLModelSaver.from_conn_string(backend.url(repo), sessions=True) as saver:
        saver.copy_thread(thread, "copy")
        before = values(saver, on("copy"))
        repo.session("s").delete(force=True)
        assert set(owners(repo)) == {family_of("copy")}
        assert values(SQLModelSaver(saver.database, sessions=True), on("copy")) == before
    assert is_sound(repo)


# -- several connections at once


@pytest.fixture
def server(postgres_url):
    with agentgit.open(postgres_url) as repo:
        yield repo


def test_a_session_is_deleted_while_another_one_is_written(server):
    thread = chat(server, "busy", "note hello").branch.langgraph_session_id
    server.session("empty", create=True)
    store, busy = server.context.store, server.session("busy").id
    deleted = []

    def write(transaction):
        store.graphs.blobs.of(busy).protect(transaction)
        store.graphs.copy_thread(transaction, thread, "elsewhere")  # adds rows to all three tables
        impatient = backend.url(server).update_query_dict({"options": "-c statement_timeout=5000"})
        with agentgit.open(impatient) as other:
            deleted.append(other.session("empty").delete(force=True))

    store.database.write(write)
    assert [one.values for one in deleted] == [0]
    assert {family_of("elsewhere"), busy} == set(owners(server))
    assert is_sound(server)


def test_a_collection_waits_for_a_writer_of_the_same_session(server):
    agent = chat(server, "s", "note hello")
    store, session = server.context.store, server.session("s").id
    key = next(iter(hashes(server, "s")))
    has_read, results = threading.Event(), []

    def collect():
        has_read.wait(60)
        results.append(server.maintenance.gc(steps=False, shrink=False))

    collector = threading.Thread(target=collect)
    collector.start()

    def write(transaction):
        store.graphs.blobs.of(session).protect(transaction)
        transaction.execute(select(BLOB.c.hash).where(BLOB.c.external_session_id == session, BLOB.c.hash == key))
        has_read.set()
        collector.join(1)
        assert not results  # it waits
        assert transaction.execute(select(func.count()).where(BLOB.c.hash == key)).scalar() == 1

    store.database.write(write)
    collector.join(60)
    assert results
    assert agent.run("note again") == "done"
    assert is_sound(server)
