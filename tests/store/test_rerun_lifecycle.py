"""Erasure, retention, gc, sharing, audit and fsck of sessions with reruns."""

import pytest
from scripted import obedient, tool_node_graph
from sqlalchemy import func, select

from agentgit import NotFound
from agentgit.checkpoints.retention import Retention
from agentgit.store.sql.tables import BRANCH


@pytest.fixture
def results(repo, world):
    for name in ("a", "b"):
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), name, effects=world.effects())
        agent.run("add chair")
        agent.run("add table")
    graph = tool_node_graph(obedient(), world.tools())
    return repo.rerun(["a", "b"], graph, name="nightly", judge=lambda rerun: True, effects=world.effects())


def test_an_erased_session_leaves_no_trace_of_its_reruns(repo, results):
    session_id = repo.session("a").id
    repo.session("a").delete(force=True)
    store = repo._context.store
    with store.database.reading() as transaction:
        for table in BRANCH.metadata.sorted_tables:
            if "external_session_id" in table.c:
                query = select(func.count()).select_from(table).where(table.c.external_session_id == session_id)
                assert transaction.execute(query).scalar_one() == 0, table.name
    assert [row.session for row in repo.reruns("nightly").rows] == ["b"]
    repo.session("b").delete(force=True)
    with pytest.raises(NotFound, match="no reruns named 'nightly'"):
        repo.reruns("nightly")
    assert not repo.maintenance.fsck().findings


def test_gc_and_retention_keep_the_table_the_report_and_the_comparison(repo, results):
    session = repo.session("a")
    before = session.compare_rerun("nightly")
    session.retention.apply(Retention(max_checkpoints=1, keep_last=1))
    repo.maintenance.gc()
    assert repo.reruns("nightly") == results
    assert session.compare_rerun("nightly") == before
    assert not repo.maintenance.fsck(3).findings


def test_the_trail_names_a_rerun_and_none_of_its_calls(repo, results):
    (found,) = repo.events.newest(session="a", kinds="rerun.*")
    (operation,) = [one for one in repo.session("a").operations() if one.kind == "rerun"]
    assert (found.kind, found.branch_name, found.detail["operation"]) == ("rerun.done", "nightly", operation.id)
    kinds = {one.kind for one in repo.events.newest(session="a") if one.branch_name == "nightly"}
    assert kinds == {"fork.done", "rerun.done", "turn.done", "checkpoint.created"}
