"""`agentgit mcp`: the checkpoint tools of a session for clients of the Model Context Protocol."""

import json
import os
import re
import shutil
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from file_tools import Desk
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_clients import connected, offered, server
from scripted import call, obedient, scripted, tool_node_graph
from shelves import SHELF, shelf_in

import agentgit
from agentgit import InvalidInput, NotAllowed, NotFound, PlanChanged, RollbackIncomplete

ROOT = Path(__file__).parents[2]

LOUD = """
def take(args, result):
    print("this line is for a person, and no MCP")
    assert input.__module__ == "builtins" and __import__("sys").stdin.read() == ""
"""

LOUD_SHELF = 'print("nor is this one")\n' + SHELF.replace("\ndef take(args, result):\n", LOUD)
"""A module whose import and undo function print, although standard output belongs to the protocol."""


@pytest.fixture
def repo(sqlite_template, tmp_path):
    """Open a repository on SQLite; one database is enough, because the tools add no statements of their own."""
    path = shutil.copy(sqlite_template, tmp_path / "agentgit.db")
    with agentgit.open(path) as repo:
        yield repo


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    agent.run("add table")
    return agent


@asynccontextmanager
async def client(repo, session=None, **how):
    """Yield a function that calls a tool as a client of a server in this process."""
    async with connected(repo, session, **how) as made:

        async def ask(tool: str, **arguments):
            return await made.call_tool(tool, arguments)

        yield ask


def said(result) -> str:
    return result.content[0].text


def parameters(folder: Path, *words: str) -> StdioServerParameters:
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    return StdioServerParameters(
        command=sys.executable, args=["-m", "agentgit", "mcp", *words], cwd=folder, env=environment
    )


@pytest.mark.long
async def test_a_client_saves_a_checkpoint_and_rolls_back_over_stdio(tmp_path):
    """A client in another process saves a checkpoint, plans and rolls back, although the undo prints text."""
    with shelf_in(tmp_path, LOUD_SHELF) as shelf, agentgit.open(tmp_path / "agentgit.db") as repo:
        model = scripted(call("put", item="cup"), "ok", call("put", item="jug"), "ok")
        agent = repo.wrap(tool_node_graph(model, [shelf.put]), "s")
        agent.run("a cup")
        async with (
            stdio_client(parameters(tmp_path, "s", "--trust", "shelf")) as streams,
            ClientSession(*streams) as server,
        ):
            hello = await server.initialize()
            assert (hello.serverInfo.name, hello.serverInfo.version) == ("agentgit", agentgit.__version__)
            await server.call_tool("create_checkpoint", {"name": "one cup"})
            await agent.arun("a jug")
            plan = await server.call_tool("plan_rollback", {"checkpoint": "one cup"})
            assert "reverse  put(item='jug')" in said(plan)
            again = {"checkpoint": "one cup", "plan": plan.structuredContent["identity"]}
            done = await server.call_tool("rollback_to_checkpoint", again)
            assert (done.isError, done.structuredContent["branch"]) == (False, "main-2")
            assert json.loads((tmp_path / "shelf.json").read_text()) == ["cup"]
        assert [branch.name for branch in repo.session().branches()] == ["main", "main-2"]


async def test_annotations_mark_read_only_and_destructive_tools_and_instructions_name_those_on_offer(repo):
    tools = await offered(repo)
    known = {name: tool.annotations for name, tool in tools.items()}
    looks = {name for name, said in known.items() if said.readOnlyHint}
    assert looks == set(await offered(repo, read_only=True))
    destructive = {"delete_checkpoint", "cleanup_auto_checkpoints", "rollback_to_checkpoint", "switch", "resume"}
    assert {name for name, said in known.items() if said.destructiveHint} == destructive
    assert set(known) - looks == destructive | {"create_checkpoint", "fork"}
    assert all(tool.description for tool in tools.values())
    for read_only in (True, False):
        told = server(repo, read_only=read_only, may_force=False).create_initialization_options().instructions
        assert ("rollback_to_checkpoint" in told) is not read_only


async def test_the_tool_table_in_the_docs_matches_the_annotations(repo):
    rows = re.findall(r"^\| (`.*?) \| .* \| (.*?) \|$", (ROOT / "docs/mcp.md").read_text(), flags=re.M)
    told = [(name, acts != "nothing") for names, acts in rows for name in re.findall("`(.*?)`", names)]
    known = {name: tool.annotations.openWorldHint for name, tool in (await offered(repo)).items()}
    assert len(told) == len(known)
    assert dict(told) == known


async def test_a_server_shows_only_the_session_or_user_it_is_bound_to(repo, agent):
    """What the roles of its user allow is proven for every tool in test_every_door.py."""
    repo.session("another", create=True)
    async with client(repo, repo.session("s"), read_only=True) as ask:
        assert "another" not in said(await ask("branches"))
        assert (await ask("branches", session="another")).isError
        assert (await ask("sessions")).isError
        assert (await ask("create_checkpoint", name="x")).isError
    eve = repo.as_user(repo.users.add("eve"))
    async with client(eve) as ask:
        assert said(await ask("sessions")).startswith("no sessions yet")
        hidden = await ask("get_checkpoint_info", checkpoint=str(agent.head.id), session="s")
        assert hidden.structuredContent["error"] == NotFound.__name__
        repo.session("s").sharing.share("eve", "viewer")
        assert not (await ask("plan_rollback", checkpoint="main#1", session="local/s")).isError


async def test_a_rollback_needs_the_identity_of_its_current_plan(repo, agent, world):
    async with client(repo) as ask:
        code = (await ask("plan_rollback", checkpoint="main#2")).structuredContent["identity"]
        await agent.arun("add lamp")
        for wrong in ({"plan": "made-up"}, {"plan": code}, {"plan": code, "tools": "keep"}):
            refused = await ask("rollback_to_checkpoint", checkpoint="main#2", **wrong)
            assert refused.structuredContent["error"] == PlanChanged.__name__
            assert "add(item='lamp')" in said(refused)
            assert f"plan={refused.structuredContent['plan']['identity']}" in said(refused)
        assert world.items == ["chair", "table", "lamp"]
        code = (await ask("plan_rollback", checkpoint="main#2")).structuredContent["identity"]
        first = await ask("rollback_to_checkpoint", checkpoint="main#2", plan=code)
        second = await ask("rollback_to_checkpoint", checkpoint="main#2", plan=code)
        assert first.structuredContent["branch"] == second.structuredContent["branch"] == "main-2"
        for other in ({"checkpoint": "main#1"}, {"plan": code[:32] + "0" * 32}, {"conversation": False}):
            refused = await ask("rollback_to_checkpoint", **{"checkpoint": "main#2", "plan": code} | other)
            assert refused.structuredContent["error"] == PlanChanged.__name__
        assert (world.items, len(repo.session().branches())) == (["chair"], 2)
        plan = await ask("plan_switch", branch="main")
        assert (await ask("switch", branch="main", sync="world")).structuredContent["error"] == "PlanChanged"
        done = await ask("switch", branch="main", sync="world", plan=plan.structuredContent["identity"])
        assert (done.isError, world.items) == (False, ["chair", "table", "lamp"])


async def test_an_irreversible_call_blocks_unless_the_server_allows_force(repo, agent, world):
    await agent.arun("send hello")
    async with client(repo) as ask:
        plan = await ask("plan_rollback", checkpoint="main#1")
        assert "identity" not in plan.structuredContent
        blocked = await ask("rollback_to_checkpoint", checkpoint="main#1", plan="x")
        assert blocked.structuredContent["error"] == PlanChanged.__name__
        assert "it cannot be undone" in said(blocked)
        assert "force=true" in said(blocked)
        assert "identity" not in said(blocked)
        assert "identity" not in blocked.structuredContent["plan"]
        forced = await ask("rollback_to_checkpoint", checkpoint="main#1", plan="x", force=True)
        assert forced.structuredContent["error"] == NotAllowed.__name__
    async with client(repo, may_force=True) as ask:
        code = (await ask("plan_rollback", checkpoint="main#1", force=True)).structuredContent["identity"]
        done = await ask("rollback_to_checkpoint", checkpoint="main#1", plan=code, force=True)
        assert (len(done.structuredContent["kept"]), world.items) == (1, [])


async def test_a_plan_with_a_file_in_conflict_is_forced_or_overwrites_it_by_its_identity(repo, tmp_path):
    desk = Desk(tmp_path / "w")
    writer = repo.wrap(desk.graph(), "files", workspace=desk.root)
    await writer.arun("write a.txt one")
    (desk.root / "a.txt").write_text("mine")
    await writer.arun("write a.txt two")
    (desk.root / "a.txt").write_text("mine again")
    async with client(repo, may_force=True) as ask:
        target = {"session": "files", "checkpoint": "main#2", "force": True}
        outdated = await ask("rollback_to_checkpoint", **target, plan="x")
        assert "Blocked by the files" not in said(outdated)
        plan = await ask("plan_rollback", **target)
        assert plan.structuredContent["identity"] in said(plan)
        done = await ask("rollback_to_checkpoint", **target, plan=plan.structuredContent["identity"])
        assert (done.isError, desk.files) == (False, {"a.txt": "mine again"})
        target |= {"force": False, "files": "overwrite", "branch": "main"}
        plan = await ask("plan_rollback", **target)
        done = await ask("rollback_to_checkpoint", **target, plan=plan.structuredContent["identity"])
    assert (done.isError, desk.files) == (False, {"a.txt": "one"})


async def test_a_failed_rollback_is_finished_by_resume(repo, agent, world):
    world.broken = {"chair"}
    async with client(repo) as ask:
        code = (await ask("plan_rollback", checkpoint="main#1")).structuredContent["identity"]
        stopped = await ask("rollback_to_checkpoint", checkpoint="main#1", plan=code)
        assert stopped.structuredContent["error"] == RollbackIncomplete.__name__
        assert world.items == ["chair"]
        world.broken = set()
        done = await ask("resume", operation=stopped.structuredContent["operation"])
        assert (done.isError, world.items, len(world.undone)) == (False, [], 2)


async def test_bad_arguments_are_tool_errors_and_the_server_keeps_running(repo, agent):
    async with client(repo) as ask:
        for tool, arguments in [
            ("search", {}), ("search", {"text": "x", "limit": 10**9}), ("plan_rollback", {"checkpoint": 7, "x": 1}),
            ("cleanup_auto_checkpoints", {"keep": -1}), ("switch", {"branch": "main", "sync": "no"}),
        ]:  # fmt: skip
            assert (await ask(tool, **arguments)).structuredContent["error"] == InvalidInput.__name__, tool
        hostile = await ask("create_checkpoint", name="\x1b[31m\u202e evil", description="two\nlines")
        assert "\x1b" not in said(hostile)
        assert not (await ask("list_checkpoints", auto=False)).isError
        question = next(message for message in agent.history() if message["role"] == "user")
        assert not (await ask("get_checkpoint_info", checkpoint=f"message:{question['id']}")).isError
        assert (await ask("fork", name="side")).structuredContent["name"] == "side"
        assert "diff" not in said(await ask("diff", a="main#1"))
        assert not (await ask("delete_checkpoint", checkpoint="main#1")).isError


async def test_a_tool_that_changes_a_session_needs_its_name_if_there_are_several(repo, agent, world):
    repo.wrap(tool_node_graph(obedient(), world.tools()), "moved last", effects=world.effects()).run("add lamp")
    before = [str(repo.session(name).tree()) for name in ("s", "moved last")]
    target = {"checkpoint": "main#1"}
    orders = [
        ("plan_rollback", target), ("rollback_to_checkpoint", {**target, "plan": "x"}), ("fork", {}),
        ("plan_switch", {"branch": "main"}), ("switch", {"branch": "main"}), ("create_checkpoint", {"name": "x"}),
        ("delete_checkpoint", target), ("cleanup_auto_checkpoints", {"keep": 0}),
    ]  # fmt: skip
    async with client(repo) as call_tool:
        for name, arguments in orders:
            refused = await call_tool(name, **arguments)
            assert refused.isError, name
            assert "pass session, one of: 'moved last', 's'" in said(refused)
        assert [str(repo.session(name).tree()) for name in ("s", "moved last")] == before
        plan = await call_tool("plan_rollback", session="s", **target)
        assert said(plan).startswith("Rollback of session s, branch main, to main#1: ")
        assert (plan.structuredContent["session_name"], plan.structuredContent["branch"]) == ("s", "main")
        done = await call_tool("rollback_to_checkpoint", session="s", plan=plan.structuredContent["identity"], **target)
        assert said(done).startswith("Rollback done: session s, branch main-2, ")
        assert said(await call_tool("fork", session="s", name="more")).startswith("session s\n")
    assert str(repo.session("moved last").tree()) == before[1]
