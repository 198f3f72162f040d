"""The statements of a turn, by table and kind. A turn that needs one more is slower for every user."""

import re
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import groupby

import backend
import faults
import points
import processes
import pytest
import sent_statements
from explored_graphs import chat
from scripted import World, obedient, obeying, tool_node_graph
from served import THREAD, said
from sqlalchemy import event
from sqlalchemy.pool import Pool

import agentgit

TARGET = {
    "INSERT": r"INSERT(?: OR \w+)? INTO (\w+)",
    "UPDATE": r"UPDATE (\w+)",
    "DELETE": r"DELETE FROM (\w+)",
    "SELECT": r"(?s)\bFROM (\w+)",
    "WITH": r"(?s)\bFROM (\w+)",
}


def kind_and_table(sql):
    """Return the kind and the table of a statement; None for one that reads and writes no table."""
    kind = sql.lstrip().partition(" ")[0]
    found = re.search(TARGET[kind], sql.replace('"', "")) if kind in TARGET else None
    return f"{kind} {found[1]}" if found else None


@contextmanager
def counting(repo):
    """Yield a counter that has the statements of the block when it ends."""
    counted = Counter()
    if not repo.context.store.database.is_sqlite:
        with sent_statements.recording() as statements:
            yield counted
        counted.update(filter(None, map(kind_and_table, statements)))
        return
    with traced_on_sqlite(repo) as statements:
        yield counted
    # SQLite reports each row of a statement that inserts several.
    counted.update(kind for kind, _ in groupby(filter(None, map(kind_and_table, statements))))


@contextmanager
def traced_on_sqlite(repo):
    """Yield a list that gets the statements of the block, with their values."""
    traced = []

    def trace(dbapi_connection, _record):
        dbapi_connection.set_trace_callback(traced.append)

    repo.context.store.database.before_fork()  # closes the idle connections, so that each one is traced
    event.listen(Pool, "connect", trace)
    try:
        yield traced
    finally:
        event.remove(Pool, "connect", trace)
        repo.context.store.database.before_fork()


def runs_turns(repo, way):
    """Return a function that runs a turn of a wrapped or a served graph with a text."""
    if way == "wrapped":
        return obeying(repo).run
    world = World()
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    return lambda text: app.invoke(said(text), THREAD)


def count_statements(repo, run, text):
    """Return the statements of a turn in a session that is in use."""
    for _ in range(3):
        run(text)
    # The background writes only in a slow turn, and then once more.
    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None), counting(repo) as statements:
        run(text)
    return statements


@pytest.mark.parametrize(
    ("way", "text", "most"),
    [("wrapped", "hello", 11), ("wrapped", "add chair", 19), ("served", "hello", 12), ("served", "add chair", 20)],
)
def test_a_turn_sends_no_more_statements_than_it_needs(repo, way, text, most):
    statements = count_statements(repo, runs_turns(repo, way), text)
    transactions = 1 if text == "hello" else 3  # the end; before it the intent and the outcome
    more = 0 if repo.context.store.database.is_sqlite else 1  # on a server the beginning locks the session
    # On a busy machine LangGraph's thread saves the step before a call so late that it is written with the outcome,
    # which then checks that the turn still has its branch.
    late = statements["INSERT graph_checkpoint"] - min(transactions, 2)
    assert statements.total() <= most + more + 5 * late, statements
    assert statements["INSERT blob"] <= transactions, statements
    assert statements["INSERT graph_checkpoint"] <= transactions, statements


def test_a_served_turn_reads_its_session_branch_and_head_at_once(repo):
    found, transactions = {}, {}
    for way in ("wrapped", "served"):
        began = []
        run = runs_turns(repo, way)
        found[way] = count_statements(repo, run, "hello")
        with (
            faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None),
            faults.before(points.EVERY_READ, lambda began=began: began.append("read")),
            faults.before(points.EVERY_WRITE, lambda began=began: began.append("write")),
        ):
            run("hello")
        transactions[way] = Counter(began)
    # The read of the session and its branch, which first names the table of the head in a subquery.
    assert found["served"] - found["wrapped"] == Counter({"SELECT graph_checkpoint": 1})
    assert transactions["served"] - transactions["wrapped"] == Counter({"read": 1})


@pytest.mark.parametrize("name", [None, "aside"])
@pytest.mark.parametrize("way", ["agent", "session"])
def test_a_fork_reads_each_row_once(repo, way, name):
    agent = obeying(repo)
    agent.run("hello")
    checkpoint = agent.checkpoint("before")
    agent.run("hello again")
    agent.fork(checkpoint)
    forking = agent if way == "agent" else repo.session("s")
    with counting(repo) as statements:
        forking.fork(checkpoint, name=name)
    assert statements.total() <= 12, statements
    locks = 0 if repo.context.store.database.is_sqlite else 1
    assert statements["SELECT external_session"] == locks  # its names come with the branch
    assert statements["SELECT world_log"] == 1  # the branch, whose query first names the table of the world in it
    assert statements["SELECT internal_session"] == 1  # whether the name is free
    assert statements["SELECT checkpoint"] == 1
    assert statements["SELECT graph_checkpoint"] == 1
    assert not any(kind.startswith("UPDATE") for kind in statements)


@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_a_turn_finds_running_branches_without_reading_the_others(repo):
    """An index has only the running branches, so a turn reads few rows however many there are."""
    run = runs_turns(repo, "wrapped")
    run("add chair")
    with traced_on_sqlite(repo) as statements:
        run("add table")
    looking = [sql for sql in statements if sql.startswith("SELECT") and "status = 'running'" in sql]
    assert looking
    with backend.reading(repo) as transaction:
        for sql in looking:
            plan = str(transaction.connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}").all())
            assert "ix_internal_session_running" in plan


@pytest.mark.parametrize("reader", ["history", "messages"])
def test_a_long_conversation_is_read_at_once(repo, reader):
    """`history` and `messages` read a conversation in one transaction, with a statement for every 500 messages."""
    agent = obeying(repo)
    said = [("ai" if number % 2 else "user", f"message {number}") for number in range(1_200)]
    agent.invoke({"messages": [*said, ("user", "hello")]})
    began = []
    with agentgit.open(backend.url(repo)) as fresh:
        agent = obeying(fresh)
        with faults.before(points.EVERY_READ, lambda: began.append(True)), counting(fresh) as statements:
            assert len(getattr(agent, reader)()) == 1_202
    assert len(began) == 1
    assert statements["SELECT blob"] <= 4, statements  # three for the messages, one for the lists


def test_calls_that_ran_again_are_read_at_once(repo):
    agent, read = obeying(repo), {}
    agent.run("add chair; add table; add lamp; add sofa")
    agent.run("add bed")
    for checkpoint in ("main#3", "main#1"):
        agent.rollback(checkpoint)
        agent = agent.switch("main", sync="world")
        with counting(repo) as statements:
            track = agent.tool_track()
        read[sum(one.kind == "redo" for one in track)] = statements
    assert list(read) == [1, 5]
    assert read[1] == read[5]
    assert read[1]["SELECT tool_invocation"] <= 3  # the track, the newest runs, and the calls that wait


@pytest.mark.long
def test_the_process_that_explores_leaves_the_work_to_the_others(repo, tmp_path):
    agent = repo.wrap(chat("", 0, "main"), "s", auto_checkpoint="off")

    def count(choices):
        with ProcessPoolExecutor(1, mp_context=processes.forking()) as executor, counting(repo) as counted:
            agent.explore(["a"], choices, executor=executor, factory=partial(chat, str(tmp_path / "ledger"), 0))
        return counted.total()

    assert (count(12) - count(2)) / 10 <= 26
