"""What a terminal gets and a pipe does not: the pager and relative times; and the options that limit lists."""

import json
import os
import re
import sys

import pexpect
import pytest
from command_line import run
from scripted import scripted, tool_node_graph

import agentgit
from agentgit import NotFound


@pytest.fixture
def big(tmp_path, monkeypatch):
    """Create a session with 60 branches beside the current one, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("AGENTGIT_PAGER", "AGENTGIT_DATE", "PAGER", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    with agentgit.open("agentgit.db") as repo:
        agent = repo.wrap(tool_node_graph(scripted("hm", "hm"), []), "s")
        agent.run("one")
        for number in range(60):
            agent.session.fork(name=f"variant-{number}")
        agent.run("two")


def at_terminal(*words: str, rows: int = 24, **environment: str) -> str:
    """Run a command at a terminal of some rows, and return what it shows, without colours."""
    child = pexpect.spawn(
        sys.executable, ["-m", "agentgit", *words],
        env={**os.environ, "NO_COLOR": "1", "LINES": str(rows), **environment},
        dimensions=(rows, 100), encoding="utf-8", timeout=120,
    )  # fmt: skip
    shown = child.read()
    child.close()
    assert child.exitstatus == 0, shown
    return shown.replace("\r\n", "\n")


@pytest.mark.long
def test_a_terminal_gets_a_pager_for_a_long_result_and_relative_times(big):
    marked = "sed s/^/paged:/"
    assert at_terminal("tree", AGENTGIT_PAGER=marked, PAGER="false").startswith("paged:s: 61 branches")
    assert at_terminal("log", PAGER=marked).startswith("main#4 ")
    assert at_terminal("tree", PAGER=marked).startswith("paged:s: 61 branches")
    assert at_terminal("tree", PAGER=marked, AGENTGIT_PAGER="").startswith("s: 61 branches")
    assert at_terminal("--no-pager", "tree", PAGER=marked).startswith("s: 61 branches")
    assert at_terminal("tree", "--json", PAGER=marked).startswith("{")
    assert at_terminal("tree", rows=400, PAGER=marked).startswith("s: 61 branches")
    # A pager that does not exist, cannot be parsed, or ends before it has read all causes no error.
    for pager in ("no-such-pager --x", "'", "true", "head -2"):
        assert "Traceback" not in at_terminal("tree", AGENTGIT_PAGER=pager)
    assert at_terminal("tree", AGENTGIT_PAGER="no-such-pager").startswith("s: 61 branches")
    assert re.search(r"main#4  (just now|\d+ min ago)  ", at_terminal("log"))
    assert re.search(r"main#4  \d{4}-\d\d-\d\d ", at_terminal("--date", "exact", "log"))


def test_a_pipe_gets_no_pager_and_exact_times(big, monkeypatch):
    monkeypatch.setenv("AGENTGIT_PAGER", "false")
    monkeypatch.setattr("shutil.get_terminal_size", lambda fallback=None: os.terminal_size((100, 5)))
    assert run("tree").out.startswith("s: 61 branches")
    assert re.search(r"^main#4  \d{4}-\d\d-\d\d \d\d:\d\d  ", run("log").out)
    assert re.search(r"^main#4  (just now|\d+ min ago)  ", run("--date", "relative", "log").out)
    monkeypatch.setenv("AGENTGIT_DATE", "relative")
    assert re.search(r"^main#4  \d{4}-", run("--date", "exact", "log").out)
    assert json.loads(run("log", "--json").out)[0]["created_at"].startswith("20")


def test_a_tree_of_many_branches_is_folded_around_head(big):
    lines = run("tree").out.splitlines()
    assert lines[0] == "s: 61 branches, 64 checkpoints"
    assert len(lines) < 60
    assert any("HEAD -> main" in line for line in lines)
    assert any("variant-59" in line for line in lines)
    assert not any("variant-3 " in line for line in lines)
    assert "more branch" in "\n".join(lines)
    few = run("tree", "-n", "3").out
    assert len(few.splitlines()) < len(lines)
    assert "HEAD -> main" in few
    every = run("tree", "-n", "0").out
    assert all(f"variant-{number}" in every for number in range(60))
    assert len(json.loads(run("tree", "--json").out)["branches"]) == 61


def test_one_branch_is_shown_by_its_name(big):
    shown = json.loads(run("tree", "--branch", "variant-7", "--json").out)["branches"]
    assert [one["name"] for one in shown] == ["main", "variant-7"]
    assert run("log", "@variant-7").out == run("log", "s@variant-7").out != run("log").out
    assert run("tool-track", "@variant-7").code == 0
    assert run("tree", "--branch", "nothing").code == NotFound.exit_code
    for command in ("log", "tool-track"):
        assert run(command, "@nothing").code == NotFound.exit_code


def test_lists_have_a_limit(big):
    with agentgit.open("agentgit.db") as repo:
        repo.session("t", create=True)
    assert [one["session_name"] for one in json.loads(run("sessions", "-n", "1", "--json").out)] == ["t"]
    names = [one["name"] for one in json.loads(run("branches", "s", "-n", "2", "--json").out)]
    assert names == ["variant-58", "variant-59"]
    assert len(json.loads(run("status", "s", "--operations", "-n", "5", "--json").out)) == 5
