"""Each face words the next steps itself, and shows what is the user's as it is."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pytest
from chats import chatting
from command_line import every_command, run
from langchain_core.tools import tool
from mcp_clients import connected, offered
from notebook_shells import magic, restart
from scripted import call, saying, tool_node_graph
from served import THREAD, said
from stubborn_tools import TOOLS, WORDS, WORDS_OF, Face, Next, Reason, Verb, once, spoken
from web_visitors import Visitor

import agentgit
from agentgit import AgentGitError, RollbackBlocked, RollbackIncomplete

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")

ARGUMENTS = {"operation": 7, "call": 5, "checkpoint": 3, "branch": "main", "name": "v1", "package": "agentgit[cli]"}
ARGUMENTS |= {"ids": ("a", "b"), "user": "bob", "role": "editor"}


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


# -- tags, stored data, questions, names and paths, with markup and control characters

NAME = "<i> & 'force=True'"
"""The name of a session, a branch and a tag, which may have no control characters."""

TEXT = f"{NAME} \x1b[1m"
"""The name and description of a checkpoint, stored data, and a question."""

PATH = "<i> & agentgit undo\x1b.txt"

SHOWN = {
    "session": NAME,
    "tag": f"{NAME} v1",
    "branch": "<b>'x=1'",
    "checkpoint": f"{TEXT} c",
    "description": f"{TEXT} d",
    "data": f"{TEXT} e",
    "question": f"{TEXT} q",
    "path": PATH,
}


@pytest.fixture
def asking(tmp_path, monkeypatch):
    """Open a database with a session that has such texts in all places, and whose graph asks one."""
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("AGENTGIT_USER", "ada")
    folder = tmp_path / "files"
    folder.mkdir()

    @tool
    def write(text: str) -> str:
        """Write a file."""
        (folder / text).touch()
        return text

    with agentgit.open(tmp_path / "agentgit.db") as operator:
        operator.users.add("ada", is_admin=True)
    with agentgit.open(tmp_path / "agentgit.db", user="ada") as repo:
        graph = tool_node_graph(
            saying(call("write", text=PATH), "done", call("ask", text=SHOWN["question"])), [write, *TOOLS]
        )
        agent = repo.wrap(graph, SHOWN["session"], effects={"write": "workspace"}, workspace=folder)
        agent.session.rename_branch("main", SHOWN["branch"])
        agent.run("hello")
        data = {"why": SHOWN["data"]}
        agent.checkpoint(SHOWN["checkpoint"], description=SHOWN["description"], data=data)
        agent.session.tag("HEAD", SHOWN["tag"])
        agent.invoke(said("go on"))
        yield repo, agent


def require_shown(shown: str, *fields: str) -> None:
    """Check that fields are shown as they are, except that control characters are escaped."""
    shown = re.sub(r"<[a-z/][^>]*>", "", shown) if "</" in shown else shown  # the fields of a form hold exact values
    assert "\x1b" not in shown
    for field in fields:
        text = SHOWN[field].replace("\x1b", "\\x1b")
        assert text in spaced(shown).replace("\\u001b", "\\x1b"), field


def test_python_shows_names_questions_and_paths_as_they_are(asking):
    _, agent = asking
    require_shown(repr(agent), "session", "branch", "question")
    require_shown(str(agent.tree()), "session", "branch", "tag", "checkpoint", "question")
    require_shown(str(agent.plan_undo(2)), "session", "branch", "path")
    for value in (agent.session.log(), agent.tree(), agent.session.tags()):
        require_shown(value._repr_html_(), "tag")
    require_shown(agent._repr_html_(), "session", "branch", "question")
    require_shown(agent.get_checkpoint(SHOWN["tag"])._repr_html_(), "checkpoint", "description", "data")
    require_shown(agent.plan_undo(2)._repr_html_(), "path")
    with pytest.raises(AgentGitError) as refused:
        agent.run("another message")
    assert refused.value.questions == [SHOWN["question"]]


COMMANDS = {
    "status": ("session", "branch", "question"),
    "log": ("branch", "tag", "checkpoint", "description", "question"),
    "tree": ("session", "branch", "tag", "checkpoint", "question"),
    "branches": ("branch", "question"),
    "tag": ("branch", "tag"),
    "sessions": ("session",),
    "events": ("session", "tag", "checkpoint"),
    "tool-track": ("path",),
    f"show {shlex.quote(SHOWN['tag'])}": ("branch", "checkpoint", "description", "data"),
    f"plan {shlex.quote(SHOWN['branch'])}#1": ("session", "branch", "path"),
}
"""Commands that change nothing, each with what it shows."""


@pytest.mark.parametrize("words", COMMANDS)
def test_commands_show_names_questions_and_paths_as_they_are(asking, tmp_path, words):
    db = ("--db", tmp_path / "agentgit.db")
    require_shown(command(*db, *shlex.split(words)), *COMMANDS[words])
    data = json.dumps(json.loads(run(*db, *shlex.split(words), "--json").out), ensure_ascii=False)
    fields = set(COMMANDS[words]) - {"question"} if words in ("log", "status") else COMMANDS[words]
    for field in fields:
        assert json.dumps(SHOWN[field], ensure_ascii=False)[1:-1] in data, field


def test_a_chat_and_a_notebook_show_names_questions_and_paths_as_they_are(asking, ipython):
    repo, agent = asking
    restart(ipython, repo=repo, agent=agent)
    with chatting(repo, agent, yes=True) as chat:
        for words, fields in COMMANDS.items():
            shown = io.StringIO()
            with redirect_stdout(shown), redirect_stderr(shown):
                chat.handle_line(f"/{words}")
            require_shown(shown.getvalue(), *fields)
            value = magic(ipython, words)
            require_shown(value._repr_html_(), *fields)


def test_pages_and_the_http_api_show_names_questions_and_paths_as_they_are(asking):
    repo, agent = asking
    visitor, at = Visitor(repo), f"/sessions/{agent.session.id}"
    point = agent.get_checkpoint(SHOWN["tag"]).id
    require_shown(visitor.get(at).text, "session", "branch", "tag", "checkpoint", "question", "path")
    require_shown(visitor.get(f"{at}/tree").text, "session", "branch", "tag", "question")
    require_shown(visitor.get(f"{at}/checkpoints/{point}").text, "checkpoint", "description", "data", "tag")
    require_shown(visitor.get(f"{at}/rollback?to={SHOWN['branch']}%231").text, "session", "branch", "path")
    key = {"authorization": f"Bearer {repo.keys.create('api', 'admin').secret}"}
    for path, fields in {
        "": ("session",),
        "/log": ("branch", "tag", "checkpoint", "description"),
        "/tree": ("branch", "tag", "checkpoint", "question"),
        "/branches": ("branch", "question"),
        f"/checkpoints/{point}": ("checkpoint", "description", "data"),
        f"/plan-rollback?to={quote(SHOWN['branch'])}%231": ("path",),
    }.items():
        data = json.dumps(visitor.client.get(f"/api/v1{at}{path}", headers=key).json(), ensure_ascii=False)
        for field in fields:
            assert json.dumps(SHOWN[field], ensure_ascii=False)[1:-1] in data, (path, field, data[:2000])


async def test_mcp_shows_names_questions_and_paths_as_they_are(asking):
    repo, agent = asking
    async with connected(repo, agent.session) as client:
        for tool_name, arguments, fields in (
            ("list_checkpoints", {}, ("branch", "checkpoint", "question")),
            ("tree", {}, ("session", "branch", "tag", "question")),
            ("branches", {}, ("branch", "question")),
            ("get_checkpoint_info", {"checkpoint": SHOWN["tag"]}, ("checkpoint", "description", "data")),
            ("plan_rollback", {"checkpoint": f"{SHOWN['branch']}#1"}, ("session", "branch", "path")),
        ):
            require_shown((await client.call_tool(tool_name, arguments)).content[0].text, *fields)
        listed = (await client.call_tool("list_checkpoints", {})).structuredContent["checkpoints"]
        assert SHOWN["tag"] in listed[1]["tags"]


def test_a_served_graph_shows_questions_as_they_are(asking):
    repo, _ = asking
    app = repo.graph(tool_node_graph(saying(call("ask", text=SHOWN["question"])), TOOLS), effects={})
    app.invoke(said("hello"), THREAD)
    assert [one.value for one in app.get_state(THREAD).interrupts] == [SHOWN["question"]]


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
    for thing in things("mcp").values():
        for name, given in re.findall(r"`(\w+)` with (.*)", thing):
            assert {part.split("=")[0].split()[0] for part in given.split(" and ")} <= set(
                tools[name].inputSchema["properties"]
            ), thing


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
