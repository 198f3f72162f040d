"""The time at which an outcome is recorded: at once if the call acted, in the next transaction if it only read."""

import backend
import faults
import points
import pytest
from langchain_core.messages import AIMessage
from scripted import call, calls, node_graph, say, scripted, tool_node_graph

import agentgit
from agentgit import Unavailable

LOOK, ADD = call("look"), call("add", item="x")


def looking(world, times, meanwhile):
    look = world.tool("look")

    def work(state):
        for _ in range(times):
            look.invoke({})
            meanwhile()
        return {"messages": [AIMessage("done")]}

    return node_graph(work)


def agent_of(repo, world, *replies):
    return repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())


def test_read_only_calls_need_no_extra_transaction(repo, world):
    story = [calls(LOOK), "one", calls(*[LOOK] * 5), "five"]
    agent = agent_of(repo, world, *story)
    # On a slow machine the background would add writes.
    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None), faults.writes_counted() as written:
        agent.run("look")
        once = len(written)
        agent.run("look five times")
    assert len(written) - once == once > 0
    assert [step.tool_name for step in agent.tool_track()] == ["look"] * 6


def test_read_only_calls_are_visible_once_their_step_is_saved(repo, world):
    agent = agent_of(repo, world, calls(LOOK), calls(LOOK), "done")
    seen = []
    with agentgit.open(backend.url(repo)) as other:
        for chunk in agent.stream(say(), stream_mode="updates", durability="sync"):
            if "tools" in chunk:
                seen.append(len(other.session("s").tool_track()))
    assert seen == [1, 2]


def test_the_track_keeps_call_order_however_calls_are_written(repo, world):
    agent = agent_of(repo, world, calls(LOOK, ADD, LOOK, LOOK, ADD), calls(ADD, LOOK), "done")
    agent.run("go")
    assert [step.tool_name for step in agent.tool_track()] == ["look", "add", "look", "look", "add", "add", "look"]
    assert [step.position for step in agent.tool_track()] == list(range(7))


@pytest.mark.long
def test_only_a_few_calls_wait_to_be_written(repo, world):
    """Within one long step, the number of calls that wait is limited even if nothing writes in the background."""
    most, seen = 64, []

    def recorded():
        return len(other.session("s").tool_track())

    with agentgit.open(backend.url(repo)) as other, faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        graph = looking(world, 3 * most, lambda: seen.append(backend.from_outside(recorded)))
        agent = repo.wrap(graph, "s", effects=world.effects(), check_effects=False)
        agent.run("go")
    assert max(number - there for number, there in enumerate(seen, start=1)) == most - 1
    assert len(agent.tool_track()) == 3 * most


def test_an_outcome_is_recorded_later_if_the_database_is_down(repo, world):
    agent = agent_of(repo, world, calls(ADD, LOOK), "done")
    # The first write after the tool has run is the write of its outcome.
    with faults.write_fails_once(lambda: bool(world.items), Unavailable("out of reach")) as refused:
        agent.run("go")
    assert refused
    assert [(step.tool_name, step.status) for step in agent.tool_track()] == [("add", "done"), ("look", "done")]


@pytest.mark.parametrize("auto", ["tool", "turn"])
def test_a_mid_turn_checkpoint_counts_read_only_calls(repo, world, auto):
    own = agent_of(repo, world, "hi").checkpoint_tools()
    asked = call("create_checkpoint", name="here")
    story = scripted(calls(LOOK, LOOK), calls(LOOK, asked, LOOK), calls(LOOK), "done")
    graph = tool_node_graph(story, [*world.tools(), *own])
    agent = repo.wrap(graph, "s", effects=world.effects(), auto_checkpoint=auto)
    agent.run("go")
    here = repo.session("s").get_checkpoint("here")
    assert here.get_tool_track_position() == 4
    for point in agent.checkpoints():
        results = [m for m in point.conversation_history if m["role"] == "tool" and m["content"] == "nothing"]
        assert len(results) == point.get_tool_track_position() == len(point.tool_invocations)
