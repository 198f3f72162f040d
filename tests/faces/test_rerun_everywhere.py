"""Every verb of every face on the branch of a rerun: it shows that nothing happened, or refuses in its words."""

from __future__ import annotations

import re
import shlex
import shutil

import pytest
from chats import COMMANDS
from command_line import every_command, run
from fastapi.testclient import TestClient
from mcp_clients import connected, offered
from notebook_shells import ipython, magic, restart  # noqa: F401  # a fixture
from shelves import GRAPH, SHELF, shelf_in

import agentgit
from agentgit import Simulated
from agentgit.web import OwnerLink, app

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # IPython's

REFUSED, SHOWN, READ, REAL = "refused", "shown", "read", "real"
"""What a verb does with a rerun: refuses to go on from it, shows its calls as simulated, does something that no call
matters for, or runs the simulated calls."""


def by_line(table):
    """Return what each line of a table does; the table has lists of lines by what they do."""
    return {line: does for does, lines in table.items() for line in lines}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    with shelf_in(folder, SHELF + GRAPH) as shelf, agentgit.open(folder / "agentgit.db") as repo:
        agent = repo.wrap(shelf.graph("chair", "table"), "s")
        agent.run("one")
        agent.run("two")
        agent.rerun(shelf.graph("chair", "lamp"), name="again", on_miss=lambda call: "put")
    return folder


@pytest.fixture
def shelf(recorded, tmp_path, monkeypatch):
    """Work in a copy of the recorded folder; at the end nothing of the rerun has happened, unless it was made real."""
    for file in ("agentgit.db", "shelf.json"):
        shutil.copy(recorded / file, tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("AGENTGIT_TRUST", "shelf")
    with shelf_in(tmp_path, SHELF + GRAPH) as module:
        yield module


def require_untouched(shelf):
    assert shelf.items() == ["chair", "table"]
    with agentgit.open("agentgit.db") as repo:
        session = repo.session("s")
        (rerun,) = [branch for branch in session.branches() if branch.name not in ("main", "x")]
        assert rerun.status == "simulated"
        assert {call.status for call in session.tool_track(branch=rerun)} == {"simulated"}
        assert not repo.maintenance.fsck().findings


# -- the command line

SWITCH = "runs these calls now"

CLI = by_line({
    SHOWN: [
        "status s@again", "tree s", "show s again", "tool-track s@again", "branches s", "diff s main again",
        "stats s@again", "rename s@again other", "recover s@again", "export s@again - --trajectories",
    ],
    READ: [
        "log s@again", "diff s main again --since-fork", "search s lamp --all-branches", "events s",
        "status s --operations", "checkpoint create s@again kept", "checkpoint delete s again#2 --yes",
        "annotate s again#2 --name kept", "tag s again#2 v1", "export s x.agentgit", "retention s --max 1 --now --on",
        "gc", "fsck",
    ],
    REFUSED: [
        "plan s@again again#2", "plan s again", "rollback s again#2 --yes", "rollback s again#2 --yes --force",
        "undo s@again --yes", "fork s@again", "fork s again#2", "fork s@again --session new",
        "switch s again", "switch s again --sync note --yes", "switch s again --sync ignore --yes",
        "merge shelf:GRAPH s again", "merge shelf:GRAPH s@again main",
        "merge --only shelf:GRAPH s again", "merge --only shelf:GRAPH s@again main",
        "explore shelf:GRAPH s@again --choice hi", "chat shelf:GRAPH s@again",
    ],
    REAL: ["switch s again --sync world --yes"],
    SWITCH: ["rerun --graph shelf:GRAPH s@again --json"],
    "nothing to redo": ["redo s@again --yes"],
    "has no files": ["rewind-files s@again again#2 --yes"],
    "is a rerun, and nothing of it happened": ["export s@again x.agentgit"],
})  # fmt: skip
"""Commands about a rerun, by what they do, or by words of the refusal."""

NOT_ABOUT_BRANCHES = {
    "demo", "sessions", "resume", "resolve", "import", "mcp", "serve", "share",
    "accept", "users", "keys", "workspace", "delete", "audit", "db",
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("line", CLI)
def test_each_command_on_a_rerun(shelf, line):
    out, err, code = run(*shlex.split(line), stdin="hello\n")
    does = CLI[line]
    if does == REFUSED:
        assert (code, out) == (Simulated.exit_code, "")
        assert SWITCH in err
    elif does in (SHOWN, READ, REAL):
        assert (code, err) == (0, "") or line.startswith("recover")
        assert does != SHOWN or "simulated" in out
    else:
        assert code not in (0, Simulated.exit_code)
        assert does in out + err
    if does == REAL:
        assert shelf.items() == ["chair", "lamp"]
        assert "it was simulated, and runs now" in out
    else:
        require_untouched(shelf)


def test_every_command_has_a_line_above():
    """Whoever adds a command decides what it does with a rerun."""
    assert set(every_command().commands) == {line.split()[0] for line in CLI} | NOT_ABOUT_BRANCHES


# -- the chat

CHAT = by_line({
    SHOWN: ["tree", "tool-track", "diff main again", "branches"],
    READ: ["checkpoint create kept", "checkpoint list", "log", "help", "exit"],
    REFUSED: [
        "checkpoint restore again#2", "undo", "rollback again#2", "plan again#2", "rewind 1", "fork", "switch again",
    ],
    "no named checkpoint": ["checkpoint undo"],
    "nothing to redo": ["redo"],
    "No turn was interrupted": ["continue"],
})  # fmt: skip
"""Slash commands in a chat on the branch of a rerun."""


@pytest.mark.long
@pytest.mark.parametrize("line", CHAT)
def test_each_slash_command_on_a_rerun(shelf, line):
    out, err, _ = run("chat", "shelf:GRAPH", "s@again", "--yes", stdin=f"/{line}\n")
    does = CHAT[line]
    if does == REFUSED:
        assert SWITCH in err
    elif does in (SHOWN, READ):
        assert err == ""
        assert does == READ or "simulated" in out
    else:
        assert does in err
    require_untouched(shelf)


@pytest.mark.long
def test_a_chat_continues_a_branch_or_creates_a_session_whose_name_has_an_at_sign(shelf):
    """`SESSION@BRANCH` is that branch if the session has it, else the name of a new session."""
    assert run("chat", "shelf:GRAPH", "s@main", stdin="/tree\n").out.startswith("s: 2 branches")
    assert run("chat", "shelf:GRAPH", "s@example.com", stdin="/tree\n").out.startswith("s@example.com: 1 branch")


def test_every_slash_command_has_a_line_above():
    assert {name for name in COMMANDS if any(f"{line} ".startswith(f"{name} ") for line in CHAT)} == set(COMMANDS)


# -- MCP

MCP = {
    "sessions": ({}, READ),
    "list_checkpoints": ({"branch": "again"}, READ),
    "get_checkpoint_info": ({"checkpoint": "again"}, SHOWN),
    "tool_track": ({"branch": "again"}, SHOWN),
    "branches": ({}, SHOWN),
    "tree": ({}, SHOWN),
    "diff": ({"a": "main", "b": "again"}, SHOWN),
    "search": ({"text": "lamp", "branch": "again"}, READ),
    "operations": ({}, READ),
    "plan_rollback": ({"checkpoint": "again#2"}, REFUSED),
    "plan_switch": ({"branch": "again"}, "it was simulated, and runs now"),
    "create_checkpoint": ({"name": "kept", "branch": "again"}, READ),
    "fork": ({"branch": "again"}, REFUSED),
    "rollback_to_checkpoint": ({"checkpoint": "again#2", "plan": "x"}, REFUSED),
    "switch": ({"branch": "again"}, REFUSED),
    "resume": ({"operation": 1}, "no operation 1"),
    "delete_checkpoint": ({"checkpoint": "again#2"}, READ),
    "cleanup_auto_checkpoints": ({"branch": "again", "keep": 0}, READ),
}
"""The MCP tools, each with its arguments and with what it does with a rerun."""


@pytest.mark.long
async def test_each_mcp_tool_on_a_rerun(shelf):
    with agentgit.open("agentgit.db") as repo:
        assert set(await offered(repo)) == set(MCP)
        async with connected(repo, may_force=True) as client:
            for tool, (arguments, does) in MCP.items():
                answer = await client.call_tool(tool, arguments)
                text = answer.content[0].text
                assert answer.isError == (does == REFUSED or tool == "resume"), (tool, text)
                if does == REFUSED:
                    assert SWITCH in text
                elif does != READ:
                    assert ("simulated" if does == SHOWN else does) in text, (tool, text)
    require_untouched(shelf)


# -- the notebook

NOTEBOOK = by_line({
    SHOWN: ["tree", "branches", "tool-track", "diff main again"],
    READ: [
        "status", "log", "search lamp", "diff main again --since-fork", "stats", "checkpoint create kept",
        "tag again#2 v1",
    ],
    REFUSED: [
        "plan again#2", "rollback again#2 --yes", "rollback again#2 --force --yes", "undo --yes", "switch again --yes",
        "switch again --sync note --yes",
    ],
    "nothing to redo": ["redo --yes"],
})  # fmt: skip
"""The magics, for an agent on the branch of a rerun."""


@pytest.mark.long
def test_each_magic_on_a_rerun(shelf, ipython):  # noqa: F811  # the fixture
    from IPython.core.error import UsageError

    with agentgit.open("agentgit.db") as repo:
        agent = repo.wrap(shelf.graph(), "s", branch="again")
        restart(ipython, repo=repo, agent=agent)
        for line, does in NOTEBOOK.items():
            if does in (SHOWN, READ):
                assert does == READ or "simulated" in str(magic(ipython, line)), line
                continue
            with pytest.raises(UsageError) as refused:
                magic(ipython, line)
            said = SWITCH if does == REFUSED else does
            assert said in str(refused.value), line
            assert ipython.user_ns["agent"] is agent
    require_untouched(shelf)


# -- the web

S = "/sessions/{session_id}"
C = S + "/checkpoints/{checkpoint_id}"

WEB = {
    f"GET {S}": ({"branch": "again"}, SHOWN),
    f"GET {S}/tree": ({}, SHOWN),
    f"GET {S}/tool-track": ({"branch": "again"}, SHOWN),
    f"GET {S}/search": ({"text": "lamp"}, READ),
    f"GET {S}/diff": ({"a": "main", "b": "again"}, SHOWN),
    f"GET {S}/export": ({"branch": "again"}, "nothing of it happened"),
    f"GET {S}/operations": ({}, READ),
    f"GET {S}/rerun": ({"branch": "again"}, SHOWN),
    f"GET {S}/image": ({"branch": "again"}, "no such image"),
    f"GET {C}": ({}, SHOWN),
    f"GET {C}/files": ({}, READ),
    "GET /operations/{operation_id}": ({}, SHOWN),
    f"GET {S}/rollback": ({"to": "again#2"}, REFUSED),
    f"GET {S}/switch": ({"branch": "again"}, SHOWN),
    f"GET {S}/edit": ({"branch": "again", "message": "MESSAGE"}, REFUSED),
    f"POST {S}/rollback": ({"to": "again#2", "plan": "x", "request_id": "r1"}, REFUSED),
    f"POST {S}/switch": ({"branch": "again", "plan": "x"}, REFUSED),
    f"POST {S}/edit": (
        {"branch": "again", "message": "MESSAGE", "text": "hi", "plan": "x", "request_id": "r2"},
        REFUSED,
    ),
    f"POST {S}/fork": ({"ref": "again#2"}, REFUSED),
    f"POST {S}/checkpoints/rename": ({"ref": "again#2", "name": "kept"}, READ),
    f"POST {S}/tags": ({"ref": "again#2", "name": "v1"}, READ),
    f"POST {S}/tags/delete": ({"name": "v1"}, READ),
    f"POST {S}/branches/rename": ({"branch": "again", "name": "again"}, SHOWN),
    "POST /operations/{operation_id}/resume": ({}, SHOWN),
}
"""The pages and forms about one session, each with its query or fields, and with what it does with a rerun."""

API = {
    f"GET {S}/branches": ({}, SHOWN),
    f"GET {S}/tree": ({}, SHOWN),
    f"GET {S}/log": ({"branch": "again"}, READ),
    f"GET {S}/search": ({"text": "lamp"}, READ),
    f"GET {S}/tool-track": ({"branch": "again"}, SHOWN),
    f"GET {S}/checkpoint": ({"ref": "again#2"}, READ),
    f"GET {S}/diff": ({"a": "main", "b": "again"}, READ),
    f"GET {S}/compare": ({"a": "main", "b": "again"}, READ),
    f"GET {S}/export": ({"branch": "again"}, "nothing of it happened"),
    f"GET {C}": ({}, READ),
    f"GET {C}/messages": ({}, READ),
    f"GET {C}/calls": ({}, SHOWN),
    f"GET {C}/state": ({}, READ),
    f"GET {S}/plan-rollback": ({"to": "again#2"}, REFUSED),
    f"POST {S}/rollback": ({"to": "again#2", "force": True}, REFUSED),
    f"POST {S}/rewind-files": ({"restore_point": "again#2"}, "no files"),
    f"GET {S}/plan-switch": ({"branch": "again"}, SHOWN),
    f"POST {S}/switch": ({"branch": "again"}, REFUSED),
    f"GET {S}/operations": ({}, READ),
    "GET /operations/{operation_id}": ({}, READ),
    "POST /operations/{operation_id}/resume": ({}, READ),
    f"POST {S}/tags": ({"ref": "again#2", "name": "v1"}, READ),
}
"""The routes of the HTTP API about a branch."""


@pytest.mark.long
def test_each_page_and_route_on_a_rerun(shelf):
    with agentgit.open("agentgit.db") as repo:
        agent = repo.wrap(shelf.graph(), "s")
        session = agent.session
        operation = next(one for one in session.operations() if one.kind == "rerun")
        ids = {
            "session_id": session.id,
            "checkpoint_id": session.get_checkpoint("again").id,
            "operation_id": operation.id,
        }
        message = session.branch("again").conversation_history[0]["id"]
        repo.users.add("ada")
        session.sharing.share("ada", "editor")
        bearer = {"authorization": f"Bearer {repo.keys.create('all', 'admin', user='ada').secret}"}
        link = OwnerLink()
        client = TestClient(app(repo, link=link, hosts=["testserver"]), headers={"origin": "http://testserver"})
        client.cookies.set("agentgit-80", link.token)
        [csrf] = set(re.findall(r'name="csrf" value="([^"]+)"', client.get(f"/sessions/{session.id}").text))
        for prefix, table in (("", WEB), ("/api/v1", API)):
            for door, (values, does) in table.items():
                method, path = door.split()
                values = {name: message if value == "MESSAGE" else value for name, value in values.items()}
                body = {"json": values, "headers": bearer} if prefix else {"data": values | {"csrf": csrf}}
                sent = {"params": values} if method == "GET" else body
                answer = client.request(method, prefix + path.format(**ids), **sent)
                text = answer.text
                if does == REFUSED:
                    assert answer.status_code == 409, (door, text)
                    assert "what its tools returned was simulated, and nothing of it happened" in text, door
                    assert prefix or "agent." not in text, door
                elif does in (SHOWN, READ):
                    assert answer.is_success, (door, text)
                    assert does == READ or "simulated" in text, door
                else:
                    assert answer.status_code in (400, 404, 409), (door, text)
                    assert does in text, (door, text)
        page = client.get(f"/sessions/{session.id}?branch=again").text
        assert "/edit?message=" not in page
        assert "Undo from here" not in page
        assert "/edit?message=" in client.get(f"/sessions/{session.id}?branch=main").text
        page = client.get(f"/sessions/{session.id}/switch?branch=again").text
        assert 'type="radio"' not in page
        assert 'name="sync" value="world"' in page
    require_untouched(shelf)
