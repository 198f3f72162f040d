"""`agentgit merge`, also of one checkpoint, with the graph of a module."""

import json
import sys

import backend
import command_line
import pytest
from merge_graphs import state_graph, told
from scripted import call, scripted, tool_node_graph

import agentgit
from agentgit import MergeConflict

CLERK = """
from merge_graphs import state_graph

GRAPH = state_graph()
"""


@pytest.fixture
def run(repo, tmp_path, monkeypatch):
    """Return a function that runs a command on the database, in a folder with a module of graphs."""
    (tmp_path / "clerk.py").write_text(CLERK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "clerk", raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    where = backend.address(repo)

    return lambda *words: command_line.run(*words, "--db", where)


@pytest.fixture
def pair(repo):
    agent = repo.wrap(state_graph(), "s")
    told(agent, "start", note="a", total=1)
    retry = agent.fork(name="retry")
    told(agent, "ours", note="mine", total=10)
    told(retry, "theirs", note="yours", total=20)
    return agent, retry


def test_a_branch_is_merged_on_the_command_line(repo, pair, run):
    before = repo.session("s").get_checkpoint("HEAD").id
    out, err, code = run("merge", "clerk:GRAPH", "retry")
    assert (code, repo.session("s").get_checkpoint("HEAD").id) == (MergeConflict.exit_code, before)
    assert "conflict  note" in out
    assert "Choose which to keep: ours or theirs, for all or for each key." in err
    out, err, code = run("merge", "clerk:GRAPH", "s@main", "retry", "--resolve", "note=theirs", "--dry-run")
    assert (err, code, repo.session("s").get_checkpoint("HEAD").id) == ("", 0, before)
    assert "conflict  total" in out
    chosen = ("--resolve", "note=theirs", "--resolve", "ours")
    out, err, code = run("merge", "clerk:GRAPH", "s@main", "retry", *chosen, "--name", "both")
    assert (err, code) == ("", 0)
    assert "1 value and 2 messages to add." in out
    assert out.splitlines()[-1].startswith("main#5 ")
    found = repo.session("s").get_checkpoint("both")
    assert (found.session_state["note"], found.session_state["total"]) == ("yours", 11)
    out, _, code = run("merge", "clerk:GRAPH", "retry", "--json")
    assert (code, json.loads(out)["plan"]["messages"]) == (0, [])
    assert repo.session("s").get_checkpoint("HEAD").id == found.id


def test_a_merge_can_target_a_branch_that_is_not_current(repo, pair, run):
    """SESSION@BRANCH names the target, the current branch stays, and JSON has the plan and the checkpoint."""
    out, err, code = run("merge", "clerk:GRAPH", "s@retry", "main", "--resolve", "theirs", "--json")
    assert (err, code) == ("", 0)
    data = json.loads(out)
    assert data["plan"]["source"] == "main#4"
    assert repo.session("s").get_checkpoint(data["checkpoint"]["id"]).metadata["branch"] == "retry"
    assert repo.session("s").branch().name == "main"
    assert repo.session("s").get_checkpoint("retry").session_state["note"] == "mine"


def test_a_merge_into_a_branch_with_a_question_names_the_chat_that_answers(repo, world, run):
    replies = call("add_if_approved", item="a"), "fine"
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "asked", effects=world.effects())
    agent.fork(name="side").invoke({"messages": ["add a"]})
    repo.session("other", create=True)
    said = run("merge", "clerk:GRAPH", "asked@side", "main").err
    assert " chat MODULE:GRAPH asked@side, with your next line, answers" in said


def test_a_checkpoint_is_picked_on_the_command_line(repo, pair, run):
    out, _, code = run("merge", "--only", "clerk:GRAPH", "retry")
    assert code == MergeConflict.exit_code
    assert "conflict  note" in out
    out, err, code = run("merge", "--only", "clerk:GRAPH", "s@main", "retry", "--resolve", "ours", "--name", "picked")
    assert (err, code) == ("", 0)
    assert "0 values and 2 messages to add." in out
    picked = repo.session("s").get_checkpoint("picked")
    assert [message["content"] for message in picked.conversation_history[-2:]] == ["theirs", "to theirs"]
    out, _, code = run("merge", "--only", "clerk:GRAPH", "retry", "--resolve", "ours", "--json")
    assert (code, json.loads(out)["plan"]["messages"]) == (0, [])
    assert repo.session("s").get_checkpoint("HEAD").id == picked.id


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("merge", "clerk:GRAPH", "nowhere"), 3, "nowhere"),
        (("merge", "clerk:NOTHING", "retry"), 3, "NOTHING"),
        (("merge", "nomodule:x", "retry"), 3, "nomodule"),
        (("merge", "clerk:GRAPH", "retry", "--resolve", "mine"), 2, "mine"),
        (("merge", "clerk:GRAPH", "nosession", "retry"), 3, "nosession"),
        (("merge", "--only", "clerk:GRAPH", "s", "\x1b[31m"), 3, "\\x1b[31m"),
    ],
)
def test_an_invalid_merge_or_pick_fails_with_one_line(repo, pair, run, words, code, why):
    before = repo.session("s").get_checkpoint("HEAD").id
    out, err, found = run(*words)
    assert (out, found) == ("", code)
    assert why in err
    assert len(err.splitlines()) == 1
    assert (repo.session("s").get_checkpoint("HEAD").id, len(repo.sessions())) == (before, 1)
    with agentgit.open(backend.url(repo)) as later:
        assert len(later.session("s").log(which="all")) == len(repo.session("s").log(which="all"))
