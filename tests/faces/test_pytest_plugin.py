"""The pytest plugin: an exported session is a test."""

import asyncio
import os
import subprocess
import sys

import processes
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime

import agentgit
from agentgit import InvalidInput, NotFound, RerunDiverged
from agentgit.demo import EFFECTS, ScriptedModel, build, open_shop, orders
from agentgit.testing import RecordedSession, sessions

TESTS = """
import agentgit.testing
from agentgit.demo import EFFECTS, build
from checks import mute, talk

@agentgit.testing.sessions("sessions/*.agentgit")
def test_same(recorded):
    assert recorded.rerun(build(), effects=EFFECTS).report.is_same

@agentgit.testing.sessions("sessions/chair*.agentgit")
def test_other(recorded):
    assert recorded.rerun(mute()).report.match_rate == 1

@agentgit.testing.sessions("talk.agentgit")
async def test_model(recorded):
    rerun = await recorded.arerun(talk(recorded.model()))
    assert rerun.report.is_same
    assert [one.content for one in rerun.messages] == [one.content for one in rerun.recorded_messages]
"""

CHECKS = """
from langgraph.graph import START, MessagesState, StateGraph

def graph(node):
    return StateGraph(MessagesState).add_node("say", node).add_edge(START, "say").compile()

def mute():
    return graph(lambda state: {"messages": [("ai", "no")]})

def talk(model):
    return graph(lambda state: {"messages": [model.invoke(state["messages"])]})
"""


def talk(model):
    graph = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [model.invoke(state["messages"])]})
    return graph.add_edge(START, "say").compile()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "sessions").mkdir()
    (tmp_path / "checks.py").write_text(CHECKS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nasyncio_mode = auto\naddopts = --strict-markers\n")
    shop = open_shop(str(tmp_path / "shop.db"))
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        for name, text in [("chairs", "order two chairs"), ("sofa", "order a sofa")]:
            agent = repo.wrap(build(shop), name, effects=EFFECTS)
            agent.run(text)
            agent.session.export(tmp_path / "sessions" / f"{name}.agentgit", branch="main", redact=True)
        agent = repo.wrap(talk(ScriptedModel(replies=["hello"])), "talk")
        agent.run("hi")
        agent.session.export(tmp_path / "talk.agentgit", branch="main")
    return tmp_path


def run_pytest(folder, *words):
    done = subprocess.run(  # noqa: S603  # our own program
        [sys.executable, "-m", "pytest", "-p", "agentgit.testing.pytest_plugin", "-p", "pytest_asyncio.plugin",
         "-p", "no:cacheprovider", "-v", *words],
        cwd=folder, capture_output=True, text=True, check=False, timeout=300,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "COLUMNS": "200", "PYTEST_ADDOPTS": ""},
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.long
def test_each_file_is_a_test_and_a_failure_shows_the_report(folder):
    """The report names the calls that are missing; the tools of the shop are not called."""
    (folder / "test_yesterday.py").write_text(TESTS)
    placed = len(orders(folder / "shop.db"))
    code, out = run_pytest(folder)
    assert code == 1
    assert "test_same[sessions/chairs.agentgit] PASSED" in out
    assert "test_same[sessions/sofa.agentgit] PASSED" in out
    assert "test_model[talk.agentgit] PASSED" in out
    assert "test_other[sessions/chairs.agentgit] FAILED" in out
    shown = out[out.index("agentgit rerun of chairs.agentgit") :]
    assert "not made: create_order(item='chair', quantity=2)" in shown
    assert out.count("agentgit rerun of") == 1
    assert len(orders(folder / "shop.db")) == placed


@pytest.mark.long
def test_a_test_without_files_or_argument_fails_and_says_so(folder):
    """Bad input: a pattern without files is no silent success; a damaged file fails its own test only."""
    tests = {
        "nothing": "@sessions('nowhere/*')\ndef test_it(recorded): pass",
        "argument": "@sessions('sessions/*')\ndef test_it(): pass",
        "pattern": "@sessions('')\ndef test_it(recorded): pass",
        "folder": "@sessions('sess*')\ndef test_it(recorded): pass",
        "use": "def test_it(recorded): pass",
        "bad": "@sessions('sessions/*')\ndef test_it(recorded): recorded.session",
    }
    for name, text in tests.items():
        (folder / f"test_{name}.py").write_text(f"from agentgit.testing import sessions\n{text}\n")
    (folder / "sessions" / "bad.agentgit").write_text("{}")
    code, out = run_pytest(folder, "--continue-on-collection-errors")
    assert code == 1
    said = [
        "no file matches nowhere/*",
        "agentgit export --as-test SESSION FILE",
        "no file matches sess*",
        "[''] are not patterns of files",
        "needs an argument named recorded",
        "Name the files of the sessions",
        "test_it[sessions/bad.agentgit] FAILED",
        "test_it[sessions/sofa.agentgit] PASSED",
    ]
    assert [text for text in said if text not in out] == []


@pytest.mark.long
def test_the_plugin_imports_nothing_before_a_test_uses_it(tmp_path):
    """A project that has agentgit and no such tests does not wait for it."""
    (tmp_path / "test_modules.py").write_text(
        "import sys\ndef test_it():\n    assert not {'langgraph', 'sqlalchemy', 'langchain_core'} & set(sys.modules)\n"
    )
    assert run_pytest(tmp_path)[0] == 0


def test_a_recorded_session_without_pytest(folder):
    recorded = RecordedSession(folder / "sessions" / "chairs.agentgit")
    assert recorded.session.name == "chairs"
    assert recorded.rerun(build(folder / "other.db"), effects=EFFECTS).report.is_same
    with pytest.raises(RerunDiverged):
        recorded.rerun(build(folder / "other.db"), effects=EFFECTS, max_calls=0)
    assert [report.status for report in recorded.reports] == ["done", "diverged"]
    recorded.close()
    with pytest.raises(NotFound):
        _ = RecordedSession("nowhere").session
    for wrong in ((), (5,)):
        with pytest.raises(InvalidInput, match="Name the files"):
            sessions(*wrong)


def test_a_recorded_session_runs_again_with_a_context(folder):
    """The context of a run is not recorded, so a test gives it."""

    def greet(state, runtime):
        return {"messages": [("ai", f"hello {runtime.context['name']}")]}

    greet.__annotations__ = {"state": MessagesState, "runtime": Runtime[dict]}
    graph = StateGraph(MessagesState, context_schema=dict).add_node("greet", greet).add_edge(START, "greet").compile()
    with agentgit.open(folder / "agentgit.db") as repo:
        agent = repo.wrap(graph, "greeted")
        agent.invoke({"messages": [("user", "hi")]}, context={"name": "Anna"})
        agent.session.export(folder / "greeted.agentgit", branch="main")
    recorded = RecordedSession(folder / "greeted.agentgit")
    assert recorded.rerun(graph, context={"name": "Anna"}).report.is_same
    assert asyncio.run(recorded.arerun(graph, context={"name": "Ben"})).messages[-1].content == "hello Ben"
    recorded.close()


@pytest.mark.long
def test_the_command_exports_one_branch_without_secrets(folder):
    (folder / "hide.py").write_text("def hide(text):\n    return text.replace('sofa', 'bench')\n")
    words = ("export", "--as-test", "--redact-with", "hide:hide", "sofa", "sofa.agentgit")
    done = processes.agentgit(*words, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert "bench" in (folder / "sofa.agentgit").read_text()
    assert "a sofa" not in (folder / "sofa.agentgit").read_text()
    assert RecordedSession(folder / "sofa.agentgit").session.tool_track()[0].args["item"] == "bench"
    for words in (("--redact", "--files", "sofa", "x"), ("--redact-with", "hide:nobody", "sofa", "x")):
        assert processes.agentgit("export", *words, cwd=folder).returncode in (2, 3)
    assert not (folder / "x").exists()
