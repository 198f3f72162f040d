"""The memory of a process: what is kept of sessions that are no longer served, and the eviction from caches."""

import gc
import weakref

import pytest
from file_tools import Desk
from langchain_core.messages import HumanMessage
from process_memory import kept_bytes, limit_caches, limit_sessions
from scripted import World, obedient, tool_node_graph

import agentgit
from agentgit import InvalidInput, SQLModelSaver
from agentgit.errors import BranchMoved

MAX_BYTES = 5_000
"""The bytes that may be kept for each session. An agent that is kept takes five times as many."""


# -- sessions that are no longer served


def long(wrapping):
    return pytest.param(wrapping, marks=pytest.mark.long)


@pytest.mark.parametrize("wrapping", ["the same graph", *map(long, ("an own graph", "a rollback", "another user"))])
def test_sessions_that_are_no_longer_served_take_no_memory(tmp_path, monkeypatch, wrapping):
    """A repository keeps no agent, graph, connection or world of a session whose agents and handles are gone."""
    limit_caches(monkeypatch, 4096)
    limit_sessions(monkeypatch, 4)
    repo = agentgit.open(tmp_path / "agentgit.db")
    world, agents = World(), weakref.WeakSet()
    graph, effects = tool_node_graph(obedient(), world.tools()), world.effects()

    def serve(number: int) -> None:
        if wrapping == "an own graph":
            own_world = World()
            own_graph = tool_node_graph(obedient(), own_world.tools())
            agent = repo.wrap(own_graph, f"s{number}", effects=own_world.effects(), check_effects=False)
            agents.add(agent)
            agent.run("add a")
            return
        served_by = repo.as_user(repo.users.add(f"user{number}")) if wrapping == "another user" else repo
        agent = served_by.wrap(graph, f"s{number}", effects=effects, check_effects=False)
        agents.add(agent)
        agent.run("add a")
        if wrapping == "a rollback":
            agent.rollback("main#1").run("hello")
        world.__init__()

    with repo:
        assert kept_bytes(serve) < MAX_BYTES
        assert not list(agents)


@pytest.mark.long
def test_threads_that_are_no_longer_served_take_no_memory(tmp_path, monkeypatch):
    limit_caches(monkeypatch, 4096)
    with SQLModelSaver.from_conn_string(tmp_path / "saver.db") as saver:
        graph = tool_node_graph(obedient(), World().tools(), checkpointer=saver)

        def serve(number: int) -> None:
            graph.invoke({"messages": [("user", "add a")]}, {"configurable": {"thread_id": f"t{number}"}})

        assert kept_bytes(serve) < MAX_BYTES


# -- what stays possible


def test_calls_of_a_session_without_an_agent_can_be_undone(repo, monkeypatch):
    """What a process holds for a session outlasts its agents."""
    limit_sessions(monkeypatch, 5)
    world = World()
    graph = tool_node_graph(obedient(), world.tools())
    for number in range(5):
        repo.wrap(graph, f"s{number}", effects=world.effects()).run(f"add item{number}")
    gc.collect()
    repo.session("s0").rollback("main#1")
    assert world.items == ["item1", "item2", "item3", "item4"]


def test_calls_of_a_forgotten_session_are_undone_once_it_is_wrapped_again(repo, monkeypatch):
    """Beyond the bound, the plan says that nothing is declared and what to do; a wrapped graph declares it again."""
    limit_sessions(monkeypatch, 2)
    world = World()
    for number in range(5):
        graph = tool_node_graph(obedient(), world.tools())
        repo.wrap(graph, f"s{number}", effects=world.effects()).run(f"add item{number}")
    gc.collect()
    assert "is not declared here" in repo.session("s0").plan_rollback("main#1").steps[0].why
    agent = repo.wrap(graph, "s0", effects=world.effects())
    assert "is not declared here" not in repo.session("s0").plan_rollback("main#1").steps[0].why
    agent.rollback("main#1")
    assert "item0" not in world.items


def test_a_session_with_an_agent_or_a_handle_is_never_forgotten(repo, monkeypatch):
    limit_sessions(monkeypatch, 1)
    world = World()
    graph = tool_node_graph(obedient(), world.tools())
    agent = repo.wrap(graph, "with-agent", effects=world.effects())
    agent.run("add a")
    handle = repo.session("with-handle", create=True)
    repo.wrap(graph, "with-handle", effects=world.effects()).run("add b")
    repo.wrap(graph, "without", effects=world.effects()).run("add c")
    for number in range(3):
        repo.wrap(tool_node_graph(obedient(), World().tools()), f"s{number}")
    gc.collect()
    for session in (handle, repo.session("with-agent")):
        session.fork("main#1", name="other")
        assert session.agent().merge("main", dry_run=True) is not None
        session.rollback("main#1")
    assert world.items == ["c"]
    with pytest.raises(InvalidInput, match="Wrap it first"):
        repo.session("without").agent()
    assert agent.session.agent().branch_id != agent.branch_id  # it is still known that the session moved


def test_undo_functions_of_another_object_are_not_shared(repo):
    first, second = World(), World()
    for name, world in (("first", first), ("second", second)):
        repo.wrap(tool_node_graph(obedient(), world.tools()), name, effects=world.effects()).run("add chair")
    gc.collect()
    repo.session("first").rollback("main#1")
    assert (first.items, second.items) == ([], ["chair"])


def test_an_agent_is_warned_of_a_move_however_many_sessions_have_moved(repo, monkeypatch):
    limit_sessions(monkeypatch, 1)
    graph = tool_node_graph(obedient(), World().tools())
    agent = repo.wrap(graph, "s")
    agent.run("hello")
    repo.session("s").rollback("main#1")
    for number in range(3):
        repo.wrap(graph, f"s{number}").run("hello")
        repo.session(f"s{number}").rollback("main#1")
    with pytest.warns(BranchMoved):
        agent.run("hello again")


def test_files_of_a_session_without_an_agent_are_restored(repo, tmp_path, monkeypatch):
    """A rollback opens the workspace of a session again from its settings, once the process has let it go."""
    limit_sessions(monkeypatch, 1)
    desks = [Desk(tmp_path / name) for name in ("one", "two", "three")]
    for desk in desks:
        agent = repo.wrap(desk.graph(), desk.root.name, check_effects=False, workspace=desk.root)
        agent.run("write a.txt first")
        agent.checkpoint("first")
        agent.run("write a.txt second")
        del agent
    gc.collect()
    repo.session("one").rollback("first")
    assert [desk.files["a.txt"] for desk in desks] == ["first", "second", "second"]


# -- the caches


def conversations(path) -> list[object]:
    """Serve three sessions of a new database in turn, roll them back, and return what they show."""
    repo, world = agentgit.open(path), World()
    graph = tool_node_graph(obedient(), world.tools())
    agents = {name: repo.wrap(graph, name, effects=world.effects(), check_effects=False) for name in "abc"}
    for text in ("add chair", "hello", "charge 5; look"):
        for agent in agents.values():
            agent.invoke({"messages": [HumanMessage(text, id=f"{agent.session.name} {text}")]})
    shown: list[object] = []
    for name, agent in agents.items():
        retry = agent.rollback("main#2")
        retry.run("add table")
        handle = repo.session(name)
        shown += [
            [(one["role"], one["content"]) for view in (agent, retry) for one in view.history()],
            [(one.tool_name, one.status, one.result) for view in (agent, retry) for one in view.tool_track()],
            [one.metadata["reference"] for one in handle.checkpoints()],
            str(handle.diff("main", "HEAD")),
        ]
    shown += [world.items, world.charges, list(repo.maintenance.fsck(3).findings)]
    repo.close()
    return shown


@pytest.mark.parametrize("divisor", [2**30, 2048])
def test_eviction_from_the_caches_does_not_change_answers(tmp_path, monkeypatch, divisor):
    """Sessions show the same when every cache holds nothing, or always evicts, as when nothing is evicted."""
    expected = conversations(tmp_path / "unlimited.db")
    limit_caches(monkeypatch, divisor)
    assert conversations(tmp_path / "limited.db") == expected
