"""`agentgit rerun` runs recorded sessions again as a check for CI."""

import json
import xml.etree.ElementTree as ET

import processes
import pytest
from chains import replying

import agentgit
from agentgit.demo import EFFECTS, ScriptedModel, build, open_shop, orders

CHECKS = """
import threading
from pathlib import Path
from langchain_core.tools import tool
from agentgit.demo import build
from agentgit.testing import RecordedModel
from chains import replying
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

def mute():
    return replying(lambda messages: "no")

def recorded(session):
    return replying(RecordedModel(session).invoke)

def greeter():
    def greet(state: MessagesState, runtime: Runtime[dict]):
        return {"messages": [("ai", f"hello {runtime.context['name']}")]}
    return StateGraph(MessagesState, context_schema=dict).add_node(greet).add_edge(START, "greet").compile()

@tool
def ship(item: str):
    'Ship an item.'
    Path("shipped").write_text(item)

def threaded():
    def act(messages):
        thread = threading.Thread(target=ship.invoke, args=[{"item": "chair"}])
        thread.start()
        thread.join()
        return "no"
    return replying(act)

def leave(rerun):
    raise SystemExit(0)

def is_same(rerun):
    return rerun.report.is_same

def broken(rerun):
    raise ValueError("the judge broke")
"""

HOSTILE = "<&\"'>\x1b[31m\x07\u202e]]>"


@pytest.fixture
def run(tmp_path):
    """Record three sessions, one with a hostile name; return a function that runs a command beside some graphs."""
    (tmp_path / "checks.py").write_text(CHECKS)
    shop = open_shop(str(tmp_path / "shop.db"))
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        for name, text in [("chairs", "order two chairs"), ("sofa", "order a sofa"), (HOSTILE, "order a lamp")]:
            repo.wrap(build(shop), name, effects=EFFECTS).run(text)

    def run(*words):
        done = processes.agentgit("rerun", *words, cwd=tmp_path, COLUMNS="120", NO_COLOR="1")
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.mark.long
def test_the_exit_code_says_whether_the_sessions_reach_the_bar(run, tmp_path):
    placed = len(orders(tmp_path / "shop.db"))
    code, out, err = run("chairs", "sofa", "--graph", "agentgit.demo:build", "--name", "same", "--parallel", "2")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "same: 2 sessions, matched 100%"
    checked = ("--graph", "checks:mute", "--judge", "checks:is_same", "--junit", "junit.xml", "--json")
    code, out, _ = run("--matching", "", "nobody", *checked)
    found = json.loads(out)
    assert (code, found["is_passed"], found["judge"]) == (1, False, 0.0)
    assert [one["status"] for one in found["sessions"]] == ["refused", "done", "done", "done"]
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]  # noqa: S314  # our own file
    assert {name: suite.get(name) for name in ("tests", "failures", "errors")} == {
        "tests": "4", "failures": "3", "errors": "1",
    }  # fmt: skip
    cases = {case.get("name"): case[0] for case in suite}
    assert "no session 'nobody'" in cases["nobody"].get("message")
    assert cases["chairs"].tag == "failure"
    assert "not made: create_order(item='chair', quantity=2)" in cases["chairs"].text
    assert any(name.startswith("<&\"'>\\x1b[31m") for name in cases)
    assert not set("\x1b\x07\u202e") & set((tmp_path / "junit.xml").read_text())
    assert len(orders(tmp_path / "shop.db")) == placed
    assert run("chairs", "--graph", "checks:mute", "--fail-under", "0")[0] == 0


@pytest.mark.long
@pytest.mark.parametrize(("judge", "error"), [("broken", "ValueError: the judge broke"), ("leave", "SystemExit: 0")])
def test_a_judge_that_raises_or_ends_the_process_does_not_pass(run, tmp_path, judge, error):
    """The check still writes its results, in which hostile names do not reach the terminal."""
    words = (
        "--graph",
        "agentgit.demo:build",
        "--judge",
        f"checks:{judge}",
        "--fail-under",
        "0.5",
        "--junit",
        "junit.xml",
    )
    code, out, _ = run(HOSTILE, *words)
    assert code == 1
    assert f"The judge raised {error}" in out
    assert not set("\x1b\x07\u202e") & set(out)
    (case,) = ET.parse(tmp_path / "junit.xml").getroot()[0]  # noqa: S314  # our own file
    assert (case[0].tag, case[0].get("message")) == ("error", f"The judge raised {error}")


@pytest.mark.long
def test_wrong_words_have_their_own_codes_and_change_nothing(run, tmp_path):
    for words, said, expected in [
        (["--graph", "checks:mute"], "Name the sessions", 2),
        (["chairs", "--graph", "nothing:here"], "cannot be imported", 3),
        (["chairs", "--graph", "checks:mute", "--price", "m=free"], "'m=free' is not a price", 2),
        (["chairs", "--graph", "checks:mute", "--judge", "checks:nobody"], "has no 'nobody'", 3),
        (["chairs", "--graph", "checks:mute", "--junit", "no/such/folder.xml"], "cannot be written", 13),
        (["--matching", "typo", "--graph", "checks:mute"], "No session has 'typo' in its name. agentgit sessions", 2),
        (["chairs", "--graph", "checks:mute", "--junit", "agentgit.db"], "is a database", 2),
        (["chairs", "--graph", "checks:mute", "--context", "{"], "--context is not valid JSON", 2),
        (["chairs", "--graph", "checks:mute", "--fail-under", "95"], "less than or equal to 1", 2),
        (["chairs", "--graph", "checks:mute", "--tools", "create_order=recorded"], "must be record or live", 2),
    ]:
        code, out, err = run(*words)
        assert said in err
        assert (code, out) == (expected, "")
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        assert [branch.name for branch in repo.session("chairs").branches()] == ["main"]


@pytest.mark.long
def test_the_context_is_given_as_json(run):
    words = ("chairs", "--graph", "checks:greeter", "--fail-under", "0", "--json")
    for context, status in [('{"name": "Anna"}', "done"), ("{}", "failed")]:
        _, out, _ = run(*words, "--context", context)
        assert [one["status"] for one in json.loads(out)["sessions"]] == [status]


@pytest.mark.long
def test_policies_and_limits_and_errors_that_name_the_next_step(run):
    words = ["chairs", "--graph", "agentgit.demo:build", "--effects", "agentgit.demo:EFFECTS"]
    assert run(*words, "--tools", "search_catalogue=live")[0] == 0
    code, out, _ = run(*words, "nobody", "--max-calls", "0")
    assert code == 1
    shown = " ".join(out.split())
    assert "Set max_calls to allow more." in shown
    assert "repo.sessions() lists" in shown
    code, out, _ = run(*words, "--tools", "create_order=live")
    assert code == 1
    assert "runs only tools that are declared" in " ".join(out.split())


@pytest.mark.long
def test_a_function_of_the_session_builds_the_graph(run, tmp_path):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        repo.wrap(replying(ScriptedModel(replies=["hello"]).invoke), "talk").run("hi")
    code, out, err = run("talk", "--graph", "checks:recorded", "--judge", "checks:is_same")
    assert (code, err) == (0, "")
    assert "passed" in out


def test_a_tool_in_a_thread_of_a_node_does_not_run_and_no_session_matches(run, tmp_path):
    """The node does not see that the call was refused, and the table does."""
    code, out, _ = run("chairs", "--graph", "checks:threaded", "--fail-under", "0.1")
    assert (code, "matched 0%" in out, "matched 100%" in out) == (1, True, False)
    assert "chairs  diverged" in out
    assert "OutsideRerun: ship was called outside a turn" in " ".join(out.split())
    assert not (tmp_path / "shipped").exists()
