"""`agentgit merge` and `agentgit cherry-pick`, with the graph of a module."""

import json
import sys

import backend
import command_line
import pytest
from merge_graphs import said, state_graph, told
from scripted import World, obedient, tool_node_graph

import agentgit
from agentgit import MergeConflict

CLERK = """
from scripted import World, obedient, tool_node_graph
from merge_graphs import state_graph

WORLD = World()
GRAPH = state_graph()

def make():
    return tool_node_graph(obedient(), WORLD.tools())
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
    """Create two diverged branches that have both changed the note."""
    agent = repo.wrap(state_graph(), "s")
    told(agent, "start", note="a", total=1)
    retry = agent.fork(name="retry")
    told(agent, "ours", note="mine", total=10)
    told(retry, "theirs", note="yours", total=20)
    return agent, retry


def test_a_branch_is_merged_on_the_command_line(repo, pair, run):
    """The plan is shown, and conflicts are named and refused until they are resolved, key by key or all at once."""
    before = repo.session("s").get_checkpoint("HEAD").id
    out, err, code = run("merge", "clerk:GRAPH", "retry")
    assert (code, repo.session("s").get_checkpoint("HEAD").id) == (MergeConflict.exit_code, before)
    assert "conflict  note" in out
    assert "Choose which to keep: --resolve ours, --resolve theirs, or --resolve KEY=ours." in err
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


@pytest.fixture
def shop(repo):
    """Create two branches, one of which has called two tools in one message."""
    agent = repo.wrap(tool_node_graph(obedient(), World().tools()), "s")
    agent.run("add chair")
    retry = agent.fork(name="retry")
    retry.run("add sofa; look")
    return agent, retry


def test_messages_and_calls_are_picked_on_the_command_line(repo, shop, run):
    """A reference, messages by id or one tool call with its result can be picked; picking again adds nothing."""
    agent, retry = shop
    look = next(one for one in retry.tool_track() if one.tool_name == "look")
    user = retry.history()[4]["id"]
    out, err, code = run("cherry-pick", "clerk:make", "--call", str(look.id), "--dry-run")
    assert (err, code) == ("", 0)
    assert "2 messages to add." in out
    assert run("cherry-pick", "clerk:make", "s@main", "--call", str(look.id), "--name", "looked")[2] == 0
    picked = repo.session("s").get_checkpoint("looked").conversation_history[4:]
    assert [one["name"] for one in picked[0]["tool_calls"]] == ["look"]
    assert run("cherry-pick", "clerk:make", "s", "--message", user)[2] == 0
    assert repo.session("s").get_checkpoint("HEAD").conversation_history[-1]["id"] == user
    head = repo.session("s").get_checkpoint("HEAD").id
    assert "Nothing to add" in run("cherry-pick", "clerk:make", "s", "--message", user)[0]
    assert repo.session("s").get_checkpoint("HEAD").id == head
    out, _, code = run("cherry-pick", "clerk:make", "retry", "--json")
    assert (code, len(json.loads(out)["plan"]["messages"])) == (0, 3)
    assert len(said(agent.switch("main"))) == 4 + 2 + 1 + 3


def test_a_call_that_ran_again_is_picked_by_the_id_of_any_run(repo, run):
    """`--call` takes the id of the first run of a redone call, as an earlier list showed it, and of the newest."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("look")
    agent.fork(name="other")
    agent.run("add chair")
    (_, first) = agent.tool_track()
    agent = agent.undo().redo()
    (_, newest) = agent.tool_track()
    assert first.id != newest.id
    for one in (first, newest):
        out, err, code = run("cherry-pick", "clerk:make", "s@other", "--call", str(one.id), "--dry-run")
        assert (err, code) == ("", 0)
        assert "2 messages to add." in out


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("merge", "clerk:GRAPH", "nowhere"), 3, "nowhere"),
        (("merge", "clerk:NOTHING", "retry"), 3, "NOTHING"),
        (("merge", "nomodule:x", "retry"), 3, "nomodule"),
        (("merge", "clerk:GRAPH", "retry", "--resolve", "mine"), 2, "mine"),
        (("merge", "clerk:GRAPH", "nosession", "retry"), 3, "nosession"),
        (("cherry-pick", "clerk:GRAPH"), 2, "Name what to pick"),
        (("cherry-pick", "clerk:GRAPH", "s", "retry", "--call", "1"), 2, "one thing"),
        (("cherry-pick", "clerk:GRAPH", "s", "--call", "1", "--message", "x"), 2, "one thing"),
        (("cherry-pick", "clerk:GRAPH", "s", "--call", "1"), 3, "no tool call 1"),
        (("cherry-pick", "clerk:GRAPH", "s", "--message", "\x1b[31m"), 3, "\\x1b[31m"),
    ],
)
def test_an_invalid_merge_or_pick_fails_with_one_line(repo, pair, run, words, code, why):
    """Bad input: each failure is one line with its exit code, and creates neither a checkpoint nor a session."""
    before = repo.session("s").get_checkpoint("HEAD").id
    out, err, found = run(*words)
    assert (out, found) == ("", code)
    assert why in err
    assert len(err.splitlines()) == 1
    assert (repo.session("s").get_checkpoint("HEAD").id, len(repo.sessions())) == (before, 1)
    with agentgit.open(backend.url(repo)) as later:
        assert len(later.session("s").log(which="all")) == len(repo.session("s").log(which="all"))
