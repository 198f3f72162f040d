"""A served graph can run at each checkpoint of its history; state and world agree after each run."""

from contextlib import suppress

import pytest
from langgraph.types import Command
from scripted import GRAPHS, call, calls, nested_graph, obedient, tool_node_graph
from served import THREAD, contents, run, said, told_world

from agentgit import RollbackBlocked, RollbackIncomplete
from agentgit.demo import ScriptedModel


def state_of(app):
    return told_world(app.get_state(THREAD).values)


@pytest.mark.parametrize("kind", GRAPHS)
def test_the_state_agrees_with_the_world_after_a_run_at_each_point(repo, world, kind):
    """At each checkpoint of three turns, there and back, with a message and without, nothing is left or lacking."""
    app = repo.graph(
        GRAPHS[kind](obedient(), world.tools()), effects=world.effects(), confirm="never", check_effects=False
    )
    run(app, "add a; charge 1", "add b; look", "add c")
    points = [one.config for one in app.get_state_history(THREAD)]
    for point in points + points[::-1]:
        for value in (said("add d; look"), None):
            with suppress(RollbackBlocked if kind == "functional" else ()):  # its tools cannot be found to run again
                app.invoke(value, point)
            assert state_of(app) == (sorted(world.items), sorted(world.charges)), (point, value)
    assert repo.maintenance.fsck(3).is_sound


def asking_model():
    """Make a model that adds y at once, then x if a person approves."""

    def rule(messages):
        results = sum(message.type == "tool" for message in messages)
        wanted = [calls(call("add", item="y")), calls(call("add_if_approved", item="x"))]
        return wanted[results] if results < 2 else calls(text="done")

    return ScriptedModel(rule=rule)


def test_a_paused_point_keeps_no_output_of_what_is_reversed(repo, world):
    app = repo.graph(nested_graph(asking_model(), world.tools()), effects=world.effects())
    app.invoke(said("go"), THREAD)
    paused = app.get_state(THREAD).config
    app.invoke(Command(resume="yes"), THREAD)
    app.invoke(None, paused)
    app.invoke(Command(resume="yes"), THREAD)
    assert sorted(world.items) == ["x", "y"]
    assert state_of(app) == (["x", "y"], [])


def test_the_state_of_a_waiting_subgraph_can_be_edited(repo, world):
    """`update_state` with the config that `get_state(subgraphs=True)` gave changes the subgraph, not the root."""
    app = repo.graph(nested_graph(asking_model(), world.tools()), effects=world.effects())
    app.invoke(said("go"), THREAD)
    inner = app.get_state(THREAD, subgraphs=True).tasks[0].state.config
    app.update_state(inner, {"messages": [("user", "edited")]})
    state = app.get_state(THREAD, subgraphs=True)
    assert "edited" in contents(state.tasks[0].state.values)
    assert "edited" not in contents(state.values)


def test_an_update_whose_rollback_is_blocked_leaves_no_trap(repo, world):
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    first, second = run(app, "add a", "send letter")
    app.update_state(first, {"messages": [("user", "add b")]}, as_node="__start__")
    with pytest.raises(RollbackBlocked, match="send"):
        app.invoke(None, THREAD)
    assert app.get_state(THREAD).config == second
    run(app, "add c")
    assert world.items == ["a", "c"]


def test_a_stopped_rollback_continues_with_the_same_run(repo, world):
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    first, _ = run(app, "hello", "add a; add b")
    world.broken.add("a")
    with pytest.raises(RollbackIncomplete):
        app.invoke(said("look"), first)
    world.broken.clear()
    app.invoke(said("look"), first)
    assert world.items == []
    assert [args["item"] for _, args, _ in world.undone] == ["b", "a"]


async def test_a_stream_that_is_left_does_not_block_the_next_run(repo, world):
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    async for _ in app.astream(said("hello"), THREAD):
        break
    await app.ainvoke(said("hello"), THREAD)


@pytest.mark.parametrize("thread_id", [5, "a/b", "ä\u2028", "x" * 3000])
def test_any_thread_id_names_a_thread(repo, world, thread_id):
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    config = {"configurable": {"thread_id": thread_id}}
    app.invoke(said("hello"), config)
    app.invoke(said("hello"), config)
    assert len(app.get_state(config).values["messages"]) == 4
    assert len(repo.sessions()) == 1
