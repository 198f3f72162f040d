"""Where files stand in the way, each face names what can be done instead, and that can be done there."""

from __future__ import annotations

import asyncio
import html
import io
import re
import shlex
import shutil
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import backend
import pytest
from chats import chatting
from command_line import run
from file_tools import desk, home
from langchain_core.messages import HumanMessage
from mcp_clients import connected
from notebook_shells import ipython, magic, restart
from stubborn_tools import WORDS_OF, Face, Next
from web_visitors import Visitor

import agentgit
from agentgit import AgentGitError, Unavailable, Workspace, WorkspaceChanged

__all__ = ["desk", "home", "ipython"]  # fixtures

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

POINT = "main-2#1"

VERBS: dict[str, tuple[Callable[..., Any], str]] = {
    "rollback": (lambda agent, **more: agent.rollback(POINT, **more), f"rollback {POINT} --yes"),
    "undo": (lambda agent, **more: agent.undo(**more), "undo --yes"),
    "redo": (lambda agent, **more: agent.redo(**more), "redo --yes"),
    "switch": (lambda agent, **more: agent.switch("main", "world", **more), "switch main --sync world --yes"),
    "rewind_files": (lambda agent, **more: agent.rewind_files(POINT, **more), f"rewind-files {POINT} --yes"),
    "edit": (lambda agent, **more: agent.edit("asked", "hello", **more), ""),
    "aundo": (lambda agent, **more: asyncio.run(agent.aundo(**more)), ""),
    "session": (lambda agent, **more: agent.session.undo(**more), ""),
    "the world": (lambda agent, **more: agent.rollback(POINT, conversation=False, **more), ""),
    "the files": (lambda agent, **more: agent.rollback(POINT, conversation=False, tools="keep", **more), ""),
}
"""What restores files: as a call in Python, and as a command."""

CAUSES = {"a conflict": WorkspaceChanged, "no snapshots": Unavailable}

CHOICES = {
    "add_no_files",
    "add_overwrite",
    "force_files",
    "no_files",
    "overwrite_files",
    "rewind_files",
    "rewind_other",
    "switch_ignore",
}


@pytest.fixture
def agent(repo, desk):
    """Create an agent on a branch that a rollback created, with a turn on each."""
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt one")
    start = agent.checkpoint("start")
    agent.run("write a.txt two")
    agent = agent.rollback(start)
    agent.invoke({"messages": [HumanMessage("write a.txt three", id="asked")]})
    return agent


def prevent(desk: Any, cause: str) -> None:
    if cause == "a conflict":
        (desk.root / "a.txt").write_text("mine")
    else:
        shutil.rmtree(Path(Workspace(desk.root).storage_dir) / "git" / "objects" / "pack")


def ways(error: AgentGitError, face: Face) -> list[tuple[Next, str]]:
    """Return the choices that an error names, and by what a face makes each."""
    found = [step for step in error.next if step.verb in CHOICES]
    assert found
    return [(step, step.worded(face).removesuffix(f" {WORDS_OF[step.verb]['does']}")) for step in found]


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("verb", VERBS)
def test_what_a_call_names_can_be_called(agent, desk, verb, cause, number):
    call, _ = VERBS[verb]
    prevent(desk, cause)
    with pytest.raises(CAUSES[cause]) as refused:
        call(agent)
    found = ways(refused.value, "python")
    if number == len(found):
        return
    step, thing = found[number]
    names = {"agent": agent, "session": agent.session, "REF": POINT}
    follow = eval if "(" in thing else lambda options, _: call(agent, **eval(f"dict({options})"))  # noqa: S307
    if step.verb == "rewind_other":  # no other point has its files either
        with pytest.raises(Unavailable):
            follow(thing, names)
    else:
        follow(thing, names)


def test_a_redo_of_restored_files_names_what_it_has(agent, desk):
    agent.rewind_files("start")
    prevent(desk, "a conflict")
    with pytest.raises(WorkspaceChanged) as refused:
        agent.redo()
    assert refused.value.next == (Next("force_files"),)
    agent.redo(force=True)
    assert desk.files == {"a.txt": "mine"}


def commands(face: Face, repo: agentgit.Repository, agent: Any, shell: Any) -> Callable[[str], str]:
    """Return a function that runs a command on a face, and returns the error that it shows."""
    if face == "cli":
        return lambda words: _in_terminal(backend.address(repo), words)
    if face == "notebook":
        restart(shell, agent=agent)
        return lambda words: _error_of(lambda: magic(shell, words))
    return lambda words: _in_chat(repo, agent, words)


def _in_terminal(database: str, words: str) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AGENTGIT_DATABASE_URL", database)
        return run(*shlex.split(words)).err


def _error_of(act: Callable[[], object]) -> str:
    try:
        act()
    except Exception as error:  # noqa: BLE001  # any is shown
        return f"error: {error}"
    return ""


def _in_chat(repo: agentgit.Repository, agent: Any, words: str) -> str:
    shown = io.StringIO()
    with chatting(repo, agent) as chat, redirect_stdout(io.StringIO()), redirect_stderr(shown):
        chat.handle_line(f"/{words}")
    return shown.getvalue()


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("verb", [verb for verb, (_, command) in VERBS.items() if command])
@pytest.mark.parametrize("face", ["cli", "chat", "notebook"])
def test_what_a_command_names_can_be_run(repo, agent, desk, ipython, face, verb, cause, number):
    call, command = VERBS[verb]
    prevent(desk, cause)
    with pytest.raises(CAUSES[cause]) as refused:
        call(agent)
    tell, found = commands(face, repo, agent, ipython), ways(refused.value, face)
    said = tell(command)
    for step, _ in found:
        assert f"{step.worded(face)}." in said
    if number == len(found):
        return
    step, thing = found[number]
    words = f"{command} {thing}" if thing.startswith("--") else thing.lstrip("/%").removeprefix("agentgit ")
    error = tell(words.replace("REF", POINT) + ("" if "--yes" in words or " switch " in f" {words}" else " --yes"))
    if step.verb == "rewind_other":
        assert "cannot be restored" in error
    else:
        assert "error" not in error


@pytest.mark.parametrize("command", ["undo s@main-2", "rollback s@main-2 main-2#1", "rewind-files @main-2 main-2#1"])
@pytest.mark.parametrize("face", ["cli", "notebook"])
def test_the_next_command_is_for_the_branch_that_was_named(repo, agent, desk, ipython, face, command):
    agent.fork("start", name="side").switch("side", "ignore")
    prevent(desk, "a conflict")
    tell = commands(face, repo, agent.at("side"), ipython)
    said = tell(f"{command} --yes")
    found = re.search(r"agentgit ((?:rollback|rewind-files) .*? --overwrite-files)", said)
    assert found is not None, said
    assert f" {command.split()[1]} " in found[1]
    assert "error" not in tell(f"{found[1]} --yes")
    assert agent.session.operations()[0].internal_session_id != agent.session.branch("side").id
    assert desk.files != {"a.txt": "mine"}
    # The next command names no branch.
    assert re.search("agentgit log(?: s)? lists them", tell("show s nowhere" if face == "cli" else "show nowhere"))


@pytest.mark.parametrize("face", ["cli", "notebook"])
def test_the_next_command_is_for_the_database_that_was_named(repo, agent, ipython, tmp_path, monkeypatch, face):
    monkeypatch.delenv("AGENTGIT_USER", raising=False)
    tell, named = commands(face, repo, agent, ipython), f"--db '{tmp_path}/the notes.db'"
    with agentgit.open(tmp_path / "the notes.db") as there:
        there.session("s", create=True)
        there.as_user(there.users.add("ada")).session("s", create=True)
    for words in (f"{named} show s nowhere", f"show s nowhere {named}"):
        assert f"agentgit {named} log s lists them" in tell(words)
    assert re.search("agentgit log(?: s)? lists them", tell("show nowhere"))
    if face == "cli":
        assert f"agentgit {named} --user ada log s lists them" in tell(f"{named} --user ada show s nowhere")
        monkeypatch.setenv("AGENTGIT_USER", "ada")
        assert f"agentgit {named} log s lists them" in tell(f"{named} show s nowhere")


LISTING = {"cli": "agentgit log s@main", "chat": "/log @main", "notebook": "%agentgit log @main"}


@pytest.mark.parametrize("face", LISTING)
def test_the_next_command_lists_the_branch_whose_checkpoint_is_missing(repo, agent, ipython, face):
    tell = commands(face, repo, agent, ipython)
    for missing in ("main#77", "main~77"):
        said = tell(f"show s {missing}" if face == "cli" else f"show {missing}")
        assert f"{LISTING[face]} lists them" in said
    assert not tell(LISTING[face].lstrip("/%").removeprefix("agentgit "))


def test_the_next_chat_is_on_the_branch_that_was_named(repo, agent, desk):
    plain = repo.wrap(desk.graph(), "plain", effects=desk.world.effects(), check_effects=False)
    plain.run("hello")
    plain.fork(name="side")
    said = commands("cli", repo, agent, None)("rewind-files plain@side side#1 --yes")
    assert "agentgit chat MODULE:GRAPH plain@side --workspace DIR keeps its files" in said


def run_on_the_server(repo: agentgit.Repository, said: str) -> None:
    """Run the command that a page or a tool names, and which restores the files in conflict."""
    found = re.search("agentgit ((?:rollback|rewind-files) .*? --overwrite-files) on the server", said)
    assert found is not None, said
    assert "error" not in commands("cli", repo, None, None)(f"{found[1]} --yes")


async def test_a_tool_whose_plan_is_blocked_now_names_a_way_that_it_has(repo, agent, desk):
    agent.fork("start", name="side").switch("side", "ignore")
    repo.session("other", create=True)
    target = {"session": "s", "branch": "main-2", "checkpoint": POINT}
    async with connected(repo) as client:
        plan = await client.call_tool("plan_rollback", target)
        prevent(desk, "a conflict")
        confirmed = {**target, "plan": plan.structuredContent["identity"]}
        refused = await client.call_tool("rollback_to_checkpoint", confirmed)
        assert refused.structuredContent["error"] == "PlanChanged"
        assert "identity" not in refused.structuredContent["plan"]
        said = refused.content[0].text
        assert "is not what would be done now. In " in said
        assert f"`rollback_to_checkpoint` to {POINT} with files=overwrite" in said
        elsewhere = await client.call_tool("plan_rollback", {"session": "other", "checkpoint": "nowhere"})
        assert "main-2" not in elsewhere.content[0].text
        target["files"] = "overwrite"
        plan = await client.call_tool("plan_rollback", target)
        await client.call_tool("rollback_to_checkpoint", {**target, "plan": plan.structuredContent["identity"]})
    assert desk.files == {"a.txt": "one"}


def test_a_page_names_the_session_and_the_branch(repo, agent, desk):
    agent.fork("start", name="side").switch("side", "ignore")
    repo.session("other", create=True)
    prevent(desk, "a conflict")
    agent.session.sharing.share(repo.users.add("ada").name, "editor")
    visitor, at = Visitor(repo.as_user("ada")), f"/sessions/{agent.session.id}/rollback"
    page = visitor.get(f"{at}?to=main-2%231&scope=files&branch=main-2")
    said = html.unescape(visitor.post(page, at, expect=409).text)
    assert f"agentgit rewind-files {agent.session.id}@main-2 " in said
    run_on_the_server(repo, said)
    assert desk.files != {"a.txt": "mine"}


def test_a_word_that_could_be_a_session_is_none_in_the_next_command(repo, agent):
    repo.session("other", create=True)
    agent.run("write b.txt one")
    agent.checkpoint("other")
    said = commands("cli", repo, agent, None)("diff other nowhere")
    assert "agentgit log lists them" in said


def test_the_next_command_names_a_session_that_looks_like_an_option_by_its_id(repo, desk):
    """A host may give such a thread id, and a session has its name."""
    agent = repo.wrap(desk.graph(), "-s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt one")
    agent.run("write a.txt two")
    prevent(desk, "a conflict")
    tell = commands("cli", repo, agent, None)
    found = re.search(r"agentgit (rollback \d+ .*? --overwrite-files)", tell("undo --yes -- -s"))
    assert found is not None
    assert "error" not in tell(f"{found[1]} --yes")
    assert desk.files == {"a.txt": "one"}
