"""The report of a rerun is read later, beside the recorded conversation."""

import pytest
from chains import replying
from langchain_core.messages import AIMessage
from scripted import call, calls, obedient, scripted, tool_node_graph

from agentgit import Conflict, NotFound, RollbackBlocked


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair; add table")
    return agent


def test_a_rerun_stands_beside_the_recording(repo, world, agent):
    """The calls and the first message that differ are told in text, in a notebook and as frames, also later."""
    model = scripted(calls(call("add", item="chair"), call("add", item="sofa")), "ordered")
    report = agent.rerun(tool_node_graph(model, world.tools())).report
    assert sorted(world.items) == ["chair", "table"]
    assert [one.args["item"] for one in report.matched + report.new + report.not_made] == ["chair", "sofa", "table"]
    assert "new: add(item='sofa')" in str(report)
    assert "not made: add" in report._repr_html_()
    assert sorted(report.to_frame()["outcome"]) == ["matched", "new", "not made"]  # the two calls run at once
    agent.run("hello")
    beside = repo.session("s").compare_rerun("rerun")
    assert beside.report == report
    assert (beside.diverges_at, beside.recorded_count) == (2, 5)
    text = str(beside)
    assert "They diverge at message 2" in text
    assert "  user: add chair; add table" in text
    assert any(line.startswith("- ") and "table" in line for line in text.splitlines())
    assert any(line.startswith("+ ") and "sofa" in line for line in text.splitlines())
    assert "They diverge at message 2" in beside._repr_html_()
    assert "sofa" in beside._repr_mimebundle_()["text/plain"]
    frame = beside.to_frame()
    assert frame["is_same"].tolist()[:2] == [True, False]
    items = [[one["args"]["item"] for one in frame[side][1]] for side in ("recorded_calls", "rerun_calls")]
    assert items == [["chair", "table"], ["chair", "sofa"]]


def test_fewer_model_calls_are_not_the_same(repo):
    agent = repo.wrap(replying(scripted("hi").invoke), "s")
    agent.run("hello")
    assert agent.rerun().report.is_same
    report = agent.rerun(replying(lambda messages: AIMessage("hi", id="fixed"))).report
    assert (report.is_same, report.is_same_state) == (False, True)
    assert (report.recorded_model_calls, report.model_calls) == (1, 0)
    assert "model calls: 1 recorded, 0 now" in str(report)


def test_a_long_conversation_is_read_from_where_it_diverges(agent):
    for _ in range(100):
        agent.run("hello")
    beside = agent.session.compare_rerun(agent.rerun().branch.name)
    assert (beside.diverges_at, "are the same" in str(beside)) == (None, True)
    assert (len(beside.recorded), beside.recorded_count) == (200, len(agent.messages()))
    with pytest.raises(NotFound, match="no report of a rerun"):
        agent.session.compare_rerun()


def test_reports_follow_renamed_branches(repo, world, agent):
    results = repo.rerun("s", tool_node_graph(obedient(), world.tools()), name="nightly", effects=world.effects())
    repo.session("s").rename_branch("nightly", "kept")
    repo.session("s").rename_branch("main", "trunk")
    (row,) = repo.reruns("nightly").rows
    assert (row.branch, row.source, row.match_rate) == ("kept", "trunk", results.matched)
    report = agent.session.compare_rerun("kept").report
    assert (report.branch, report.source) == ("kept", "trunk")
    assert repo.report(next(one for one in agent.session.operations() if one.kind == "rerun")) == report
    assert repo.wrap(agent.graph, "s", branch="kept").report == report
    with pytest.raises(Conflict, match="reruns named 'nightly' already"):
        repo.rerun("s", agent.graph, name="nightly")


def test_a_blocked_rollback_from_a_rerun_names_no_checkpoint_of_it(agent):
    agent.run("send hello")
    agent.rerun(name="again")
    with pytest.raises(RollbackBlocked) as blocked:
        agent.session.rollback("main#1", branch="again")
    assert blocked.value.nearest is None
