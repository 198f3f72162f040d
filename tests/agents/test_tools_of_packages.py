"""The tools that packages for LangGraph bring along have known effects, and nothing else is taken for them."""

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import FilesystemFileSearchMiddleware, ShellToolMiddleware, TodoListMiddleware
from langchain_core.tools import tool
from langgraph.store.memory import InMemoryStore
from langgraph_bigtool import create_agent as create_bigtool_agent
from langgraph_supervisor import create_supervisor
from langgraph_supervisor.handoff import create_forward_message_tool, create_handoff_tool
from langgraph_swarm import create_handoff_tool as create_swarm_handoff_tool
from langgraph_swarm import create_swarm
from scripted import World, call, say, saying, scripted, tool_node_graph

import agentgit
from agentgit import RollbackBlocked

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved:DeprecationWarning")

TODOS = [{"content": "order chairs", "status": "pending"}]


def taken_back(agent, **state):
    """Run a turn and roll it back; return the agent of the new branch, whose plan and report list no call."""
    before = agent.checkpoint("before")
    agent.invoke(say())
    for name, value in state.items():
        assert agent.state[name] == value
    assert agent.plan_rollback(before).steps == []
    back = agent.rollback(before)
    assert not any(items for group, items in back.report.groups().items() if group != "replayed")
    assert all(not back.state.get(name) for name in state)
    return back


# -- the packages


def todos_graph():
    return create_agent(scripted(call("write_todos", todos=TODOS), "done"), [], middleware=[TodoListMiddleware()])


def test_todos_of_langchain_are_state(repo):
    agent = repo.wrap(todos_graph(), "s")
    assert agent.effects == {"write_todos": "state"}
    taken_back(agent, todos=TODOS)


def test_file_search_of_langchain_is_read_only_and_its_shell_is_undeclared(repo, tmp_path):
    """The searches of FilesystemFileSearchMiddleware only read; a shell may do anything."""
    search = FilesystemFileSearchMiddleware(root_path=str(tmp_path), use_ripgrep=False)
    model = scripted(call("glob_search", pattern="*"), call("grep_search", pattern="chair"), "done")
    agent = repo.wrap(create_agent(model, [], middleware=[search]), "searching")
    assert agent.effects == {"glob_search": "read_only", "grep_search": "read_only"}
    taken_back(agent)
    shell = create_agent(scripted("hello"), [], middleware=[ShellToolMiddleware(workspace_root=str(tmp_path))])
    assert repo.wrap(shell, "shell").effects == {"shell": "undeclared"}


def test_handoffs_of_a_supervisor_are_state(repo):
    world = World()
    worker = create_agent(saying(call("add", item="chair"), "added"), [world.tool("add")], name="worker")
    supervisor = create_supervisor(
        [worker],
        model=saying(call("transfer_to_worker"), call("forward_message", from_agent="worker"), "done"),
        tools=[create_handoff_tool(agent_name="worker"), create_forward_message_tool()],
    )
    effects = {"add": world.effects()["add"]}
    agent = repo.wrap(supervisor.compile(), "s", effects=effects)
    assert agent.effects == {"add": "reversible", "forward_message": "state", "transfer_to_worker": "state"}
    before = agent.checkpoint("before")
    agent.invoke(say())
    assert [one.tool_name for one in agent.tool_track()] == ["transfer_to_worker", "add", "forward_message"]
    report = agent.rollback(before).report
    assert [item.invocation.tool_name for item in report.reversed] == ["add"]
    assert (report.kept, world.items) == ([], [])


def test_handoffs_of_a_swarm_are_state(repo):
    to_bob = create_swarm_handoff_tool(agent_name="Bob")
    alice = create_agent(saying(call("transfer_to_bob")), [to_bob], name="Alice")
    bob = create_agent(saying("hello"), [], name="Bob")
    agent = repo.wrap(create_swarm([alice, bob], default_active_agent="Alice").compile(), "s")
    assert agent.effects == {"transfer_to_bob": "state"}
    taken_back(agent, active_agent="Bob")


def test_retrieval_of_bigtool_is_read_only_and_a_search_of_the_user_undeclared(repo, world):
    store = InMemoryStore()
    store.put(("tools",), "add", {"description": "adds"})

    def retrieve_tools(query: str) -> list[str]:
        """Find tools, and do something else."""
        return ["add"]

    def agent(session, **options):
        model = scripted(
            call("retrieve_tools", query="add"), "done"
        )  # this LangGraph lacks what bigtool needs to call it
        graph = create_bigtool_agent(model, {"add": world.tool("add")}, **options).compile(store=store)
        return repo.wrap(graph, session, effects={"add": world.effects()["add"]})

    known, own = agent("known"), agent("own", retrieve_tools_function=retrieve_tools)
    taken_back(known, selected_tool_ids=["add"])
    own.invoke(say())
    for one, kind in ((known, "read_only"), (own, "undeclared")):
        assert [(made.tool_name, made.effect) for made in one.at("main").tool_track()] == [("retrieve_tools", kind)]


# -- what only looks like a known tool


def test_a_transfer_of_money_is_no_handoff(repo, world):
    """A tool that is called like one is undeclared, and its call is listed."""

    @tool
    def transfer_to_bob(euros: int) -> str:
        """Transfer money to Bob."""
        world.sent.append(str(euros))
        return "transferred"

    agent = repo.wrap(tool_node_graph(scripted(call("transfer_to_bob", euros=5), "done"), [transfer_to_bob]), "s")
    assert agent.effects == {"transfer_to_bob": "undeclared"}
    before = agent.checkpoint("before")
    agent.invoke(say())
    (kept,) = agent.rollback(before).report.kept
    assert (kept.invocation.tool_name, world.sent) == ("transfer_to_bob", ["5"])


def test_a_namesake_in_a_subgraph_is_not_taken_for_the_known_tool(repo):
    world = World()

    @tool
    def write_todos(todos: list[Any]) -> str:
        """Send the list to a friend."""
        world.sent.append("todos")
        return "sent"

    hidden = tool_node_graph(scripted(call("write_todos", todos=TODOS), "done"), [write_todos])

    @tool
    def ask_friend(question: str) -> str:
        """Ask a friend, who has tools."""
        return str(hidden.invoke(say(question))["messages"][-1].content)

    model = scripted(call("write_todos", todos=TODOS), call("ask_friend", question="what?"), "done")
    graph = create_agent(model, [ask_friend], middleware=[TodoListMiddleware()])
    agent = repo.wrap(graph, "s", effects={"ask_friend": "read_only"})
    before = agent.checkpoint("before")
    agent.invoke(say())
    assert [(one.tool_name, one.effect) for one in agent.tool_track()] == [
        ("write_todos", "state"),
        ("ask_friend", "read_only"),
        ("write_todos", "undeclared"),
    ]
    (kept,) = agent.rollback(before).report.kept
    assert (kept.invocation.tool_name, world.sent) == ("write_todos", ["todos"])


# -- precedence


def test_a_declaration_of_the_user_precedes_the_profile(repo):
    """`wrap(effects=...)` and the named effects of `open` win over a profile; `*` does not."""
    agent = repo.wrap(todos_graph(), "s", effects={"write_todos": "irreversible"})
    assert agent.effects == {"write_todos": "irreversible"}
    before = agent.checkpoint("before")
    agent.invoke(say())
    with pytest.raises(RollbackBlocked):
        agent.rollback(before)
    for name, kind in (("write_todos", "irreversible"), ("*", "state")):
        with agentgit.open(":memory:", effects={name: "irreversible"}) as other:
            wrapped = other.wrap(todos_graph(), "s")
            wrapped.invoke(say())
            assert [wrapped.effects["write_todos"], *(one.effect for one in wrapped.tool_track())] == [kind, kind]
