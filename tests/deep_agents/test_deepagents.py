"""Sessions of deepagents: plans and reports have no line that is noise or false, whatever keeps the files.

`make test-deepagents` runs these tests: deepagents does not fit the pinned versions of the other packages.
"""

import sys
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, FilesystemBackend, LocalShellBackend, StateBackend, StoreBackend
from deepagents.backends.protocol import ExecuteResponse, SandboxBackendProtocol
from langchain.agents.middleware import TodoListMiddleware
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph.state import CompiledStateGraph
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt
from scripted import World, call, calls, saying, scripted, tool_node_graph

from agentgit import RollbackBlocked
from agentgit.effects.known_tools import KNOWN_TOOLS

TODOS = [{"content": "write", "status": "pending"}]
READING = {"ls": "read_only", "read_file": "read_only", "glob": "read_only", "grep": "read_only"}

WORK = (
    call("write_todos", todos=TODOS),
    calls(call("write_file", file_path="/a.txt", content="one"), call("write_file", file_path="b.txt", content="b")),
    call("edit_file", file_path="/a.txt", old_string="one", new_string="two"),
    call("delete", file_path="/b.txt"),
    call("ls", path="/"),
    call("read_file", file_path="/a.txt"),
    call("grep", pattern="two"),
    call("glob", pattern="*.txt"),
    call("execute", command="echo loud > loud.txt"),
    call("task", description="write sub.txt", subagent_type="general-purpose"),
    call("write_file", file_path="/sub.txt", content="sub"),  # the subagent's
    "the subagent is done",
    "done",
)


def say(text: str = "go") -> dict[str, Any]:
    return {"messages": [("user", text)]}


def deep(backend, *replies, **options):
    """Make a deep agent that gives these replies; its subagent takes the next ones."""
    return create_deep_agent(saying(*replies), middleware=[TodoListMiddleware()], backend=backend, **options)


def worked(repo, backend, **options):
    """Wrap a deep agent, make the checkpoint `before`, and let it work."""
    agent = repo.wrap(deep(backend, *WORK), "s", **options)
    agent.checkpoint("before")
    agent.invoke(say())
    assert [one.tool_name for one in agent.tool_track()].count("write_file") == 3
    assert agent.state["todos"] == TODOS
    return agent


def names(items) -> list[str]:
    return [item.invocation.tool_name for item in items]


@pytest.fixture
def work(tmp_path) -> Path:
    """A directory of its own, because the database is in `tmp_path`."""
    path = tmp_path / "work"
    path.mkdir()
    return path


def files_in(path: Path) -> dict[str, str]:
    return {str(one.relative_to(path)): one.read_text("utf-8") for one in path.rglob("*") if one.is_file()}


# -- each backend


@pytest.mark.parametrize("backend", [None, StateBackend()])
def test_files_in_the_state_go_without_a_line(repo, backend):
    """With StateBackend, files, todos and the subagent's file are gone after a rollback, and nothing is listed."""
    agent = worked(repo, backend)
    assert set(agent.state["files"]) == {"/a.txt", "/sub.txt"}
    writing = dict.fromkeys(("write_todos", "write_file", "edit_file", "delete", "task"), "state")
    assert agent.effects == READING | writing | {"execute": "read_only"}
    assert "undeclared" not in repr(agent)
    plan = agent.plan_rollback("before")
    assert (plan.steps, plan.files, plan.changes_world) == ([], None, False)
    back = agent.rollback("before")
    assert not any(items for group, items in back.report.groups().items() if group != "replayed")
    assert "write_file" not in str(back.report)
    assert (back.state.get("files") or {}, back.state.get("todos") or []) == ({}, [])
    forth = back.switch("main", sync="world")
    assert set(forth.state["files"]) == {"/a.txt", "/sub.txt"}
    assert not any(items for group, items in forth.report.groups().items() if group != "replayed")


async def test_files_of_async_turns_go_without_a_line(repo):
    agent = await repo.awrap(deep(StateBackend(), *WORK), "s")
    before = await agent.acheckpoint("before")
    await agent.ainvoke(say())
    assert set(agent.state["files"]) == {"/a.txt", "/sub.txt"}
    back = await agent.arollback(before)
    assert (back.report.kept, back.state.get("files") or {}) == ([], {})


def test_files_on_disk_go_with_the_workspace(repo, work):
    """With FilesystemBackend in the workspace, the files come back, and only the files are listed."""
    (work / "old.txt").write_text("old", "utf-8")
    agent = worked(repo, FilesystemBackend(root_dir=work), workspace=work)
    assert files_in(work) == {"old.txt": "old", "a.txt": "two", "sub.txt": "sub"}
    assert {agent.effects[name] for name in ("write_file", "edit_file", "delete")} == {"workspace"}
    plan = agent.plan_rollback("before")
    assert (plan.steps, sorted(change.path for change in plan.files.changes)) == ([], ["a.txt", "sub.txt"])
    back = agent.rollback("before")
    assert (files_in(work), back.report.kept) == ({"old.txt": "old"}, [])
    forth = back.switch("main", sync="world")
    assert (files_in(work), forth.report.kept) == ({"old.txt": "old", "a.txt": "two", "sub.txt": "sub"}, [])


def test_files_that_a_rollback_leaves_are_said_to_stay(repo, work):
    """With files=False, the calls that wrote the files are listed as kept, with that reason."""
    agent = worked(repo, FilesystemBackend(root_dir=work), workspace=work)
    report = agent.rollback("before", files=False).report
    assert set(names(report.kept)) == {"write_file", "edit_file", "delete"}
    assert {item.reason for item in report.kept} == {"the files of the workspace are left as they are, as requested"}
    assert "a.txt" in files_in(work)


@pytest.mark.parametrize("is_in_workspace", [True, False], ids=["elsewhere", "no workspace"])
def test_files_that_no_snapshot_has_are_undeclared(repo, tmp_path, is_in_workspace):
    root, workspace = tmp_path / "root", tmp_path / "workspace"
    root.mkdir()
    options = {"workspace": workspace} if is_in_workspace else {}
    agent = worked(repo, FilesystemBackend(root_dir=root), **options)
    assert agent.effects["write_file"] == "undeclared"
    assert set(names(agent.rollback("before").report.kept)) == {"write_file", "edit_file", "delete"}
    assert "a.txt" in files_in(root)


def test_a_backend_without_a_virtual_root_counts_by_path(repo, tmp_path):
    """With virtual_mode=False a path may be anywhere: each call counts by its own path, links included."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    paths = [str(inside / "a.txt"), str(outside / "b.txt"), str(inside / "link" / "c.txt")]
    batch = calls(*(call("write_file", file_path=path, content="x") for path in paths))
    graph = deep(FilesystemBackend(root_dir=inside, virtual_mode=False), batch, "done")
    agent = repo.wrap(graph, "s", workspace=inside)
    agent.checkpoint("before")
    agent.invoke(say())
    effects = {one.args["file_path"]: one.effect for one in agent.tool_track()}
    assert effects == dict(zip(paths, ["workspace", "undeclared", "undeclared"], strict=True))
    assert {item.invocation.args["file_path"] for item in agent.rollback("before").report.kept} == set(paths[1:])


def test_the_routes_of_a_composite_backend_decide_for_each_path(repo, tmp_path):
    """With CompositeBackend, the backend of the longest route counts, however the model writes the path."""
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    disk.mkdir()
    elsewhere.mkdir()
    routes = {
        "/disk/": FilesystemBackend(root_dir=disk),
        "/disk/deep/": FilesystemBackend(root_dir=elsewhere),
        "/other": FilesystemBackend(root_dir=elsewhere),
    }
    expected = {
        "/a.txt": "state",
        "/disk/b.txt": "workspace",
        "disk/c.txt": "workspace",
        "/./disk//deep/d.txt": "undeclared",
        "/other/e.txt": "undeclared",
        "/otherwise.txt": "state",
    }
    batch = calls(*(call("write_file", file_path=path, content="x") for path in expected))
    agent = repo.wrap(deep(CompositeBackend(default=StateBackend(), routes=routes), batch, "done"), "s", workspace=disk)
    assert agent.effects["write_file"] == "undeclared"
    agent.checkpoint("before")
    agent.invoke(say())
    assert {one.args["file_path"]: one.effect for one in agent.tool_track()} == expected
    assert (set(files_in(disk)), set(files_in(elsewhere))) == ({"b.txt", "c.txt"}, {"d.txt", "e.txt"})
    assert set(agent.state["files"]) == {"/a.txt", "/otherwise.txt"}
    back = agent.rollback("before")
    kept = {item.invocation.args["file_path"] for item in back.report.kept}
    assert kept == {path for path, kind in expected.items() if kind == "undeclared"}
    assert (files_in(disk), set(files_in(elsewhere))) == ({}, {"d.txt", "e.txt"})


def test_a_composite_backend_of_state_and_workspace_is_not_undeclared(repo, work):
    backend = CompositeBackend(default=StateBackend(), routes={"/disk/": FilesystemBackend(root_dir=work)})
    agent = repo.wrap(deep(backend, "hello"), "s", workspace=work)
    assert agent.effects["write_file"] == "workspace"
    assert "undeclared" not in repr(agent)


@pytest.mark.parametrize("is_own", [False, True], ids=["store of the graph", "store of the backend"])
def test_files_in_a_store_count_by_the_store(repo, is_own):
    """With StoreBackend, the writes to the store of the graph are undone; those to another one are kept."""
    store = InMemoryStore()
    backend = StoreBackend(namespace=lambda runtime: ("files",), **({"store": store} if is_own else {}))
    agent = repo.wrap(deep(backend, *WORK, store=store), "s")
    agent.checkpoint("before")
    agent.invoke(say())
    kind = "undeclared" if is_own else "state"
    assert {one.effect for one in agent.tool_track() if one.tool_name in ("write_file", "edit_file")} == {kind}
    assert store.search(("files",))
    assert ("write_file" in names(agent.rollback("before").report.kept)) is is_own
    assert bool(store.search(("files",))) is is_own


# -- what acts on the world


def test_commands_of_a_shell_stay_undeclared(repo, work):
    """`execute` of LocalShellBackend may do anything, so it is listed as kept; the files come back."""
    agent = worked(repo, LocalShellBackend(root_dir=work, inherit_env=True), workspace=work)
    assert agent.effects["execute"] == "undeclared"
    assert "loud.txt" in files_in(work)
    back = agent.rollback("before")
    assert (names(back.report.kept), files_in(work)) == (["execute"], {})


def test_commands_can_be_declared_irreversible(repo, work):
    backend = LocalShellBackend(root_dir=work, inherit_env=True)
    agent = worked(repo, backend, workspace=work, effects={"execute": "irreversible"})
    with pytest.raises(RollbackBlocked, match="execute"):
        agent.rollback("before")


class Sandbox(StateBackend, SandboxBackendProtocol):
    """A backend that is not known: it keeps files in the state, and runs commands elsewhere."""

    @property
    def id(self) -> str:
        return "sandbox"

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Do nothing."""
        return ExecuteResponse(output="", exit_code=0, truncated=False)


def test_an_unknown_backend_is_undeclared(repo):
    """Of a backend that is not known, a subclass too, neither the files nor the commands are called harmless."""
    agent = repo.wrap(deep(Sandbox(), "hello"), "s")
    kinds = {agent.effects[name] for name in ("write_file", "edit_file", "delete", "execute")}
    assert kinds == {"undeclared"}


def test_a_tool_of_the_user_is_not_taken_for_one_of_deepagents(repo):
    """The user's own `write_file`, in a subagent beside deepagents' one, is undeclared, and its call is listed."""
    world = World()

    @tool
    def write_file(file_path: str, content: str) -> str:
        """Send the content to a friend."""
        world.sent.append(content)
        return "sent"

    friend = tool_node_graph(scripted(call("write_file", file_path="/a.txt", content="yours"), "sent"), [write_file])
    graph = deep(
        StateBackend(),
        call("write_file", file_path="/a.txt", content="mine"),
        call("task", description="send it", subagent_type="friend"),
        "done",
        subagents=[{"name": "friend", "description": "sends", "runnable": friend}],
    )
    agent = repo.wrap(graph, "s")
    agent.checkpoint("before")
    agent.invoke(say())
    assert [(one.tool_name, one.effect) for one in agent.tool_track()] == [
        ("write_file", "state"),
        ("task", "state"),
        ("write_file", "undeclared"),
    ]
    (kept,) = agent.rollback("before").report.kept
    assert (kept.invocation.args["content"], world.sent) == ("yours", ["yours"])


def test_effects_of_a_subagent_are_reversed(repo):
    world = World()
    work = (
        call("task", description="add", subagent_type="general-purpose"),
        call("add", item="chair"),
        "added",
        "done",
    )
    graph = deep(StateBackend(), *work, tools=[world.tool("add")])
    agent = repo.wrap(graph, "s", effects={"add": world.effects()["add"]})
    agent.checkpoint("before")
    agent.invoke(say())
    assert world.items == ["chair"]
    report = agent.rollback("before").report
    assert (names(report.reversed), report.kept, world.items) == (["add"], [], [])


def test_a_subagent_that_is_no_local_graph_is_undeclared(repo):
    """What a subagent that is not a graph of this process does is not recorded, so its `task` is undeclared."""
    world = World()

    def act(state):
        world.sent.append("mail")
        return {"messages": [("assistant", "sent")]}

    remote = {"name": "remote", "description": "sends", "runnable": RunnableLambda(act)}
    graph = deep(StateBackend(), call("task", description="send", subagent_type="remote"), "done", subagents=[remote])
    agent = repo.wrap(graph, "s")
    assert agent.effects["task"] == "undeclared"
    agent.checkpoint("before")
    agent.invoke(say())
    assert (names(agent.rollback("before").report.kept), world.sent) == (["task"], ["mail"])


# -- questions and the table


def test_files_in_the_state_survive_a_question_in_the_same_batch(repo):
    world = World()
    batch = calls(call("write_file", file_path="/a.txt", content="one"), call("ask", question="may I?"))

    @tool
    def ask(question: str) -> str:
        """Ask a person."""
        world.notes.append(interrupt(question))
        return "asked"

    agent = repo.wrap(deep(StateBackend(), batch, "done", tools=[ask]), "s", effects={"ask": "read_only"})
    agent.checkpoint("before")
    agent.invoke(say())
    agent.invoke(Command(resume="yes"))
    assert (set(agent.state["files"]), world.notes) == ({"/a.txt"}, ["yes"])
    assert agent.rollback("before").report.kept == []


def test_every_profile_names_code_of_deepagents_and_langmem():
    def qualified_names(code):
        for constant in code.co_consts:
            if hasattr(constant, "co_qualname"):
                yield constant.co_qualname
                yield from qualified_names(constant)

    known_tools = [known for known in KNOWN_TOOLS if known.package in ("deepagents", "langmem")]
    for known in known_tools:
        __import__(known.module)
        path = str(sys.modules[known.module].__file__)
        code = compile(Path(path).read_text("utf-8"), path, "exec")
        assert set(known.functions) <= set(qualified_names(code))


def test_a_subagent_of_another_class_is_undeclared(repo):
    """A subclass of LangGraph's graphs may run elsewhere, so a `task` for it is not called harmless."""

    class Elsewhere(CompiledStateGraph):
        """A graph that may run on another machine."""

    friend = tool_node_graph(scripted("done"), [])
    friend.__class__ = Elsewhere
    subagents = [{"name": "friend", "description": "helps", "runnable": friend}]
    graph = deep(StateBackend(), call("task", description="x", subagent_type="friend"), "done", subagents=subagents)
    agent = repo.wrap(graph, "s")
    agent.invoke(say())
    assert [(one.tool_name, one.effect) for one in agent.tool_track()] == [("task", "undeclared")]
