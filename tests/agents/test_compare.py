"""Comparisons of stored checkpoints, branches and sessions, which do not load their shared history."""

import asyncio
import json

import backend
import command_line
import faults
import pytest
from file_tools import Desk
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import MessagesState, StateGraph
from scripted import call, functional_graph, obedient, scripted, tool_node_graph

import agentgit
from agentgit import Checkpoint, InvalidInput, NotFound, diff
from agentgit.checkpoints.comparison import Comparison
from agentgit.checkpoints.diff import Change, Tokens


class State(MessagesState):
    note: str
    cart: list


def noting(say="ok", **values):
    def node(state: State):
        return {"messages": [AIMessage(say)], **values}

    return StateGraph(State).add_node("node", node).set_entry_point("node").compile()


@pytest.fixture
def agents(repo, world):
    """Create an agent and its fork, which share one call and have each made another one since."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.checkpoint("one chair")
    retry = agent.fork("one chair", name="retry")
    agent.run("note table")
    retry.run("note sofa")
    return agent, retry


def require_same_diffs(repo, *branches):
    """Check that Session.diff finds by hashes and columns exactly what agentgit.diff finds in the loaded values."""
    points = [point for branch in branches for point in repo.session("s").checkpoints(branch=branch)]
    for a in points:
        for b in points:
            assert repo.session().diff(a.id, b.id) == diff(a, b), (a, b)


@pytest.mark.long
def test_session_diff_equals_the_diff_of_loaded_checkpoints(repo, agents):
    agent, retry = agents
    require_same_diffs(repo, "main", "retry")
    found = repo.session().diff(agent.head, retry.head)
    assert (found.common_messages, found.common_calls) == (4, 1)
    assert [c["args"] for c in found.removed_calls + found.added_calls] == [{"text": "table"}, {"text": "sofa"}]


def test_state_is_compared_by_channel(repo):
    agent = repo.wrap(noting(note="a", cart=["chair", "table", "sofa"]), "s")
    agent.run("one")
    other = repo.wrap(noting(note="a", cart=["table", "sofa"]), "s")
    other.run("two")
    assert repo.session().diff("main#2", "main#4").state == [Change("/cart/0", "chair", None, "removed")]


def test_functional_graphs_and_empty_checkpoints_are_compared(repo, world):
    agent = repo.wrap(functional_graph(scripted(call("add", item="chair"), "ok", "fine"), world.tools()), "s")
    agent.run("one")
    agent.run("two")
    require_same_diffs(repo, "main")


def test_checkpoints_of_two_sessions_are_compared(repo, agents):
    other = repo.wrap(noting(note="x"), "other")
    other.run("hello")
    found = repo.session("s").diff("retry", "HEAD", other="other")
    assert (found.from_reference, found.to_reference) == ("s@retry#3", "other@main#2")
    assert (found.common_messages, found.common_calls, len(found.removed_calls)) == (0, 0, 2)
    assert repo.session().diff(agents[1].head, other.head) == found
    assert repo.session().diff(agents[1].head.id, other.head.id) == found
    with pytest.raises(NotFound):
        repo.session("s").diff("retry", "nowhere", other="other")


def test_branches_are_aligned_at_their_fork(repo, agents):
    agent, retry = agents
    found = repo.session("s").compare("main", "retry")
    assert isinstance(found, Comparison)
    assert (found.fork, found.messages, found.calls) == ("main#3", 4, 1)
    assert found.left == repo.session().diff("main#3", "main")
    assert found.right == repo.session().diff("main#3", "retry")
    assert found.between == repo.session().diff("main", "retry")
    assert agent.session.compare(agent.head, "retry") == found
    assert asyncio.run(agent.session.acompare(agent.head, "retry")) == found
    assert retry.session.compare(retry.head, "main").left == found.right
    text = str(found).splitlines()
    assert text[0] == "main#5 and retry#3 diverge at main#3 (4 messages and 1 tool call in common)"
    assert text[1:3] == ["main#5", "  messages (4 in common)"]
    assert "+ user: note sofa" in text
    json.dumps(found.to_dict())


def test_the_fork_of_nested_branches_is_found(repo, agents):
    agent, retry = agents
    deep = retry.fork(name="deep")
    deep.run("note lamp")
    early = agent.fork("main#1", name="early")
    assert repo.session().compare("deep", "retry").fork == repo.session().compare("retry", "deep").fork == "retry#3"
    assert repo.session().compare("deep", "main").fork == "main#3"
    assert repo.session().compare("main#2", "deep").fork == "main#2"
    assert repo.session().compare("early", "deep").fork == "main#1"
    assert repo.session().compare("main", "main#4").fork == "main#4"
    assert early.session.compare(early.head, "early").between.is_empty


def test_comparing_across_sessions_is_refused(repo, agents):
    repo.wrap(noting(), "other").run("hi")
    with pytest.raises(InvalidInput, match="without a common history"):
        repo.session().compare(agents[0].head, repo.session("other").get_checkpoint("HEAD"))


def test_tokens_are_summed_from_usage_metadata(repo):
    spent = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    graph = (
        StateGraph(MessagesState)
        .add_node("node", lambda state: {"messages": [AIMessage("ok", usage_metadata=spent)]})
        .set_entry_point("node")
        .compile()
    )
    agent = repo.wrap(graph, "s")
    agent.run("one")
    agent.run("two")
    found = repo.session().diff("main#2", "main#4")
    assert (found.removed_tokens, found.added_tokens) == (Tokens(), Tokens(input=10, output=5, total=15))
    assert str(found).endswith("tokens\n+ 15 (10 in, 5 out)")
    assert found == agentgit.diff(repo.session().get_checkpoint("main#2"), repo.session().get_checkpoint("main#4"))
    strange = [{"usage_metadata": what} for what in (None, "many", {"input_tokens": "9"}, {"total_tokens": -1}, [])]
    assert Tokens.of(strange) == Tokens()


def test_multiline_texts_are_compared_by_line():
    a, b = "one\ntwo\nthree", "one\n2\x1b\nthree\nfour"
    found = diff(Checkpoint(session_state={"plan": a}), Checkpoint(session_state={"plan": b}))
    assert str(found) == "state\n~ /plan\n-   two\n+   2\\x1b\n+   four"
    for other in (a.replace("\n", "\r\n"), "x\n" * 100_000):
        text = str(diff(Checkpoint(session_state={"plan": a}), Checkpoint(session_state={"plan": other})))
        assert text.startswith("state\n- /plan  'one")
        assert len(text) < 1000


def test_an_item_inserted_into_a_list_is_one_change():
    for a, b, path in (([1, 2], [0, 1, 2], "/l/0"), ([1, 2], [1, 0, 2], "/l/1"), ([[1], True], [[1], 1, True], "/l/1")):
        added = diff(Checkpoint(session_state={"l": a}), Checkpoint(session_state={"l": b})).state
        assert [(c.path, c.kind) for c in added] == [(path, "added")]


@pytest.mark.long
def test_the_shared_history_is_not_loaded(repo):
    agent = repo.wrap(noting(), "s", auto_checkpoint="off")
    for messages in (20, 400):
        agent.update_state(None, {"messages": [HumanMessage(f"m{n}") for n in range(messages)]}, "node")
        fork = agent.checkpoint()
        ends = []
        for _ in range(2):
            branch = agent.fork(fork)
            branch.run("end")
            ends.append(branch.checkpoint())
        with faults.messages_read() as read:
            found = repo.session().diff(*ends)
        assert len(read) == 4
        assert (len(found.removed_messages), len(found.added_messages)) == (2, 2)


def test_the_shared_calls_are_not_loaded(repo, agents):
    agent, _ = agents
    shared = agent.tool_track()[0]
    assert shared.args == {"item": "chair"}
    backend.change(repo, "tool_invocation", shared.id, args=b"unreadable")
    with pytest.raises(agentgit.Corrupt):
        agent.tool_track()
    found = repo.session().diff("main", "retry")
    assert [call["args"] for call in found.removed_calls] == [{"text": "table"}]
    assert [call["args"] for call in found.added_calls] == [{"text": "sofa"}]


def test_html_of_a_large_diff_is_truncated():
    found = diff(Checkpoint(), Checkpoint(session_state={f"key{n}": n for n in range(5_000)}))
    page = found._repr_html_()
    assert "/key998 " in page
    assert "/key1000 " not in page
    assert "… and 4,001 more lines" in page
    assert "/key4999 " in str(found)


@pytest.mark.long
def test_file_changes_appear_in_diffs_comparisons_patches_and_html(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    desk = Desk(tmp_path / "work")
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt <b>日本</b>; write b.txt keep")
    agent.fork(name="retry").run("write a.txt two; delete b.txt; write c.txt new")
    found = repo.session().diff("main", "retry")
    assert (found.added_files, found.modified_files, found.deleted_files) == (["c.txt"], ["a.txt"], ["b.txt"])
    assert "+two" in found.diff_content
    both = repo.session().compare("main", "retry")
    assert (both.left.is_empty, both.right.added_files) == (True, ["c.txt"])
    assert "+ c.txt" in str(both)
    assert "file differences" in both._repr_html_()

    def run(*words):
        return command_line.run(*words, "main", "retry", "--db", backend.address(repo))

    assert "+two" not in run("diff").out
    patch = run("diff", "-p").out
    assert "\n-<b>日本</b>\n" in patch
    assert "\n+two\n" in patch
    for option in ((), ("--since-fork",)):
        out, err, code = run("diff", *option, "--html")
        assert (err, code) == ("", 0)
        assert out.startswith("<!doctype html>\n<title>main#2 ")
        assert out.isascii()
        assert "&lt;b&gt;&#26085;&#26412;&lt;/b&gt;" in out
        assert run("diff", *option, "--html", "--json").code == 2
