"""Each face words the next steps itself, and shows what is the user's as it is."""

from __future__ import annotations

import html
import io
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args

import pytest
from chats import chatting
from command_line import every_command, run
from mcp_clients import connected, offered
from notebook_shells import magic, restart
from scripted import call, saying, tool_node_graph
from served import THREAD, said
from stubborn_tools import TOOLS, WORDS, WORDS_OF, Face, Next, Reason, Verb, once, spoken
from web_visitors import Visitor

import agentgit
from agentgit import AgentGitError, RollbackBlocked, RollbackIncomplete

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

ARGUMENTS = {"operation": 7, "call": 5, "branch": "main", "name": "v1", "package": "agentgit[cli]"}


# -- what is the user's


@pytest.fixture
def stubborn(tmp_path, monkeypatch):
    """Open a database with two sessions: one whose undo functions have failed, and one whose prechecks refuse."""
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setenv("AGENTGIT_TRUST", "stubborn_tools")
    monkeypatch.setenv("AGENTGIT_USER", "ada")
    with agentgit.open(tmp_path / "agentgit.db") as operator:
        operator.users.add("ada", is_admin=True)
    with agentgit.open(tmp_path / "agentgit.db", user="ada") as repo:
        failed = spoken(repo, "keep")
        with pytest.raises(RollbackIncomplete) as stopped:
            failed.rollback("main#1", name=WORDS[2], on_error="continue")
        refusing = spoken(repo, "guard", session="refusing")
        yield repo, failed, refusing, stopped.value


def spaced(text: str) -> str:
    """Undo the escapes of a page and of JSON, and the wrapping of lines."""
    return " ".join(html.unescape(text).replace('\\"', '"').replace("\u2026", "").split())


def require_words(shown: str) -> None:
    for word in WORDS:
        assert word in spaced(shown)


def refusal(act) -> str:
    with pytest.raises(AgentGitError) as refused:
        act()
    return str(refused.value)


def test_python_shows_what_is_the_users_as_it_is(stubborn):
    _, failed, refusing, stopped = stubborn
    require_words(str(stopped))
    require_words("".join(item.reason for item in stopped.report.failed))
    require_words("".join(step.why for step in refusing.plan_rollback("main#1").steps))
    require_words(refusal(lambda: refusing.rollback("main#1")))
    require_words("".join(str(one.result) for one in failed.tool_track()))
    require_words(str([(one.checkpoint_name, one.metadata) for one in refusing.session.log()]))
    require_words(str(refusing.messages()) + repr(refusing.history()))


def command(*words: object) -> str:
    ran = run(*words)
    return ran.out + ran.err


def test_the_command_line_shows_what_is_the_users_as_it_is(stubborn, tmp_path):
    _, _, _, stopped = stubborn
    db = ("--db", tmp_path / "agentgit.db")
    require_words(command(*db, "plan", "refusing", "main#1"))
    require_words(command(*db, "rollback", "refusing", "main#1", "--yes"))
    require_words(command(*db, "rollback", "refusing", "main#1", "--yes", "--json"))
    require_words(command(*db, "resume", stopped.operation))
    require_words(command(*db, "log", "refusing"))
    require_words(command(*db, "tool-track", WORDS[0], "--json"))
    require_words(command(*db, "show", "refusing", "HEAD"))


def test_a_chat_shows_what_is_the_users_as_it_is(stubborn):
    repo, _, refusing, stopped = stubborn
    with chatting(repo, refusing, yes=True) as chat:
        for line in ("/plan main#1", "/rollback main#1", f"/resume {stopped.operation}", "/log"):
            shown = io.StringIO()
            with redirect_stdout(shown), redirect_stderr(shown):
                chat.handle_line(line)
            require_words(shown.getvalue())


def test_pages_and_the_http_api_show_what_is_the_users_as_it_is(stubborn):
    repo, _, refusing, stopped = stubborn
    visitor, at = Visitor(repo), f"/sessions/{refusing.session.id}"
    for page in (f"{at}/rollback?to=main%231", f"/operations/{stopped.operation}", f"{at}/tool-track", at):
        require_words(visitor.get(page).text)
    blocked = visitor.get(f"{at}/rollback?to=main%231")
    require_words(visitor.post(blocked, f"{at}/rollback", expect=409).text)
    secret = repo.keys.create("api", "admin").secret
    key = {"authorization": f"Bearer {secret}"}
    for path in (
        f"{at}/plan-rollback?to=main%231",
        f"/operations/{stopped.operation}",
        f"{at}/tool-track",
        f"{at}/log",
    ):
        require_words(visitor.client.get(f"/api/v1{path}", headers=key).text)
    refused = visitor.client.post(f"/api/v1{at}/rollback", headers=key, json={"to": "main#1"})
    require_words(refused.json()["detail"])
    assert {"verb": "force"} in refused.json()["next"]


async def test_mcp_shows_what_is_the_users_as_it_is(stubborn):
    repo, _, refusing, stopped = stubborn
    async with connected(repo, refusing.session) as client:
        plan = refusing.plan_rollback("main#1").identity
        planned = await client.call_tool("plan_rollback", {"checkpoint": "main#1"})
        require_words(planned.content[0].text)
        refused = await client.call_tool("rollback_to_checkpoint", {"checkpoint": "main#1", "plan": plan})
        require_words(refused.content[0].text)
        require_words(str(refused.structuredContent["message"]))
    async with connected(repo, repo.session(WORDS[0])) as client:
        require_words((await client.call_tool("resume", {"operation": stopped.operation})).content[0].text)


def test_a_served_graph_shows_what_is_the_users_as_it_is(stubborn):
    repo, *_ = stubborn
    replies = [one for text in WORDS for one in (call("guard", text=text), text)]
    app = repo.graph(tool_node_graph(saying(*replies), TOOLS), effects={})
    app.invoke(said("hello"), THREAD)
    first = app.get_state(THREAD).config
    for text in WORDS[1:]:
        app.invoke(said(text), THREAD)
    with pytest.raises(RollbackBlocked) as refused:
        app.invoke(said("again"), first)
    for word in WORDS[1:]:
        assert word in spaced(str(refused.value))
        assert word in spaced(str(refused.value.plan))


def test_a_notebook_shows_what_is_the_users_as_it_is(stubborn, ipython):
    repo, _, refusing, stopped = stubborn
    restart(ipython, repo=repo, agent=refusing)
    plan = magic(ipython, "plan refusing main#1")
    require_words(repr(plan))
    require_words(plan._repr_html_())
    require_words(stopped._repr_html_())
    require_words(refusal_of_magic(ipython, "rollback refusing main#1 --yes"))
    require_words(refusal_of_magic(ipython, f"resume {stopped.operation}"))


def refusal_of_magic(shell, line: str) -> str:
    from IPython.core.error import UsageError

    with pytest.raises(UsageError) as refused:
        magic(shell, line)
    return str(refused.value)


# -- next steps


def test_each_step_has_words_on_each_face_and_keeps_its_arguments():
    for verb in get_args(Verb):
        for face in get_args(Face):
            for text in WORDS:
                worded = Next(verb, **ARGUMENTS | {"branch": text, "name": text}).worded(face)
                assert worded.endswith(WORDS_OF[verb]["does"])
                if "{branch}" in WORDS_OF[verb].get(face, "") or "{name}" in WORDS_OF[verb].get(face, ""):
                    assert text in worded
        step = Next(verb, **ARGUMENTS)
        assert Next.from_dict(step.to_dict()) == step


def things(face: Face) -> dict[str, str]:
    """Return what each step names on a face, by its verb."""
    return {
        verb: Next(verb, **ARGUMENTS).worded(face).removesuffix(f" {WORDS_OF[verb]['does']}") for verb in get_args(Verb)
    }


PREFIXES = {"cli": "agentgit ", "chat": "/", "notebook": "%agentgit ", "page": "agentgit ", "mcp": "agentgit "}


@pytest.mark.parametrize("face", PREFIXES)
def test_the_commands_and_options_that_a_step_names_exist(face):
    root = every_command()
    for named in things(face).values():
        command = root
        words = shlex.split(named.replace(",", "")) if named.startswith(PREFIXES[face]) else []
        for word in [word.removeprefix("/").removeprefix("%agentgit") for word in words]:
            command = getattr(command, "commands", {}).get(word, command)
        assert not words or command is not root or words == ["/continue"], named
        for option in re.findall(r"(?<!\S)--[a-z-]+", named.replace("pip install --upgrade", "")):
            assert option in options(command), named


def options(command: Any) -> set[str]:
    """Return the options of a command, and of those below it."""
    below = getattr(command, "commands", {}).values()
    return {name for parameter in command.params for name in parameter.opts}.union(*map(options, below))


def test_the_controls_that_a_step_names_are_on_a_page():
    templates = Path(sys.modules["agentgit.web"].__file__).parent / "templates"
    pages = " ".join(file.read_text() for file in templates.glob("*.html"))
    for named in things("page").values():
        for control in re.findall(r"“([^”]+)”", named):
            assert control.removeprefix("… ") in pages


async def test_the_tools_that_a_step_names_exist(repo):
    tools = await offered(repo)
    named = {name for thing in things("mcp").values() for name in re.findall(r"`(\w+)`", thing)}
    assert {"resume", "switch", "fork"} <= named <= set(tools)


def test_the_calls_that_a_step_names_exist_in_python(repo):
    agent = spoken(repo, "keep")
    names: dict[str, Any] = {"agent": agent, "graph": repo.graph(agent.graph), "repo": repo, "session": agent.session}
    names |= {"agentgit": agentgit, "Workspace": agentgit.Workspace}
    found = 0
    for thing in [*things("python").values(), *things("graph").values()]:
        for name, path in re.findall(r"(?<![\w.])(agent|graph|repo|session|agentgit|Workspace)\.([\w.]+)\(", thing):
            value = names[name]
            for part in path.split("."):
                value = getattr(value, part)
            found += 1
    assert found > 40


def test_a_reason_survives_json_and_a_step_that_several_share_stands_once():
    step = Next("resolve", call=5)
    reason = Reason("it is unknown", step)
    assert Reason.from_dict(reason.to_dict("why"), "why").next == (step,)
    assert reason.worded("chat").startswith("it is unknown; /resolve 5 ")
    assert reason == reason.worded("python")
    assert list(once([reason, Reason("so is this", step)]))[1] == "so is this"
