"""The checkpoint tools, with which a model manages its own history."""

import pytest
from langgraph.types import Command
from scripted import GRAPHS, call, calls, say, scripted, tool_node_graph


def managed(repo, world, *replies, kind="tool_node", **options):
    """Wrap a graph that has the world's tools and the checkpoint tools of another agent of the same session."""
    bound = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    graph = GRAPHS[kind](scripted(*replies), [*world.tools(), *bound.checkpoint_tools()])
    return repo.wrap(graph, "s", effects=world.effects(), **options)


def results(agent) -> list[str]:
    return [m["content"] for m in agent.history() if m["role"] == "tool"]


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_model_saves_a_checkpoint_and_rolls_back_to_it(kind, repo, world):
    """The checkpoint follows the whole batch; the rollback runs after the turn and moves the session."""
    story = [
        calls(call("add", item="chair"), call("create_checkpoint", name="one chair")),
        "saved",
        call("add", item="table"),
        call("rollback_to_checkpoint", checkpoint="one chair"),
        "going back",
    ]
    agent = managed(repo, world, *story, kind=kind)
    agent.invoke(say("order a chair and remember"))
    (point,) = [p for p in agent.checkpoints() if p.checkpoint_name == "one chair"]
    assert [m["role"] for m in point.conversation_history][:4] == ["user", "assistant", "tool", "tool"]
    assert point.get_tool_track_position() == 1
    assert [c.tool_name for c in agent.tool_track()] == ["add"]
    agent.invoke(say("a table; no, back"))
    assert world.items == ["chair"]
    assert agent.branch.name == "main"
    agent = agent.at()
    assert agent.branch.name == "main-2"
    assert [item.invocation.args for item in agent.report.reversed] == [{"item": "table"}]
    assert agent.history() == point.conversation_history


def test_a_model_lists_and_inspects_checkpoints(repo, world):
    agent = managed(
        repo,
        world,
        calls(call("add", item="x")),
        "ok",
        call("list_checkpoints"),
        call("get_checkpoint_info", checkpoint="main#2"),
        call("get_checkpoint_info", checkpoint="nowhere"),
        "ok",
    )
    agent.run("one")
    agent.run("look")
    listed, info, missing = results(agent)[1:]
    assert listed.splitlines()[0].startswith("main#1: Unnamed (Auto)")
    assert "Tool calls up to there: add" in info
    assert "no checkpoint 'nowhere'" in missing


def test_a_model_deletes_checkpoints_and_cleans_up(repo, world):
    agent = managed(
        repo,
        world,
        call("create_checkpoint", name="gone soon"),
        "ok",
        call("delete_checkpoint", checkpoint="gone soon"),
        "ok",
        call("delete_checkpoint", checkpoint="HEAD"),
        call("cleanup_auto_checkpoints", keep=1),
        "ok",
    )
    agent.run("one")
    assert "gone soon" in [p.checkpoint_name for p in agent.checkpoints()]
    agent.run("two")
    assert "gone soon" not in [p.checkpoint_name for p in agent.checkpoints()]
    agent.run("three")
    refused, cleaned = results(agent)[-2:]
    assert "cannot be deleted: it is the head" in refused
    assert cleaned == "Deleted 4 automatic checkpoints."


@pytest.mark.long
@pytest.mark.parametrize("kind", ["tool_node", "create_agent"])
def test_a_request_beside_a_question_is_carried_out_after_the_answer(kind, repo, world):
    agent = managed(
        repo,
        world,
        "hi",
        calls(call("add_if_approved", item="x"), call("create_checkpoint", name="mine")),
        "ok",
        calls(call("add_if_approved", item="y"), call("rollback_to_checkpoint", checkpoint="main#2")),
        "back",
        kind=kind,
    )
    agent.run("hello")
    agent.invoke(say("one"))
    assert "mine" not in [p.checkpoint_name for p in agent.checkpoints()]
    agent.invoke(Command(resume="yes"))
    (mine,) = [p for p in agent.checkpoints() if p.checkpoint_name == "mine"]
    assert mine.get_tool_track_position() == 1
    agent.invoke(say("two"))
    assert agent.branch.name == "main"
    answer = agent.invoke(Command(resume="yes"))
    assert answer["messages"][-1].content == "back"
    assert agent.rollback_error is None
    assert (agent.at().branch.name, world.items) == ("main-2", [])


def test_a_blocked_rollback_is_reported_to_the_model(repo, world):
    """Nothing happens at the end of the turn."""
    back = call("rollback_to_checkpoint", checkpoint="main#2")
    agent = managed(repo, world, "hi", call("send", text="x"), back, "well")
    agent.run("hello")
    agent.run("send and go back")
    assert "cannot be undone" in results(agent)[-1]
    assert agent.branch.name == "main"


def test_checkpoint_tools_act_at_once_outside_a_turn_and_follow_their_rollback(repo, world):
    agent = repo.wrap(
        tool_node_graph(scripted(call("add", item="x"), "ok"), world.tools()), "s", effects=world.effects()
    )
    tools = {tool.name: tool for tool in agent.checkpoint_tools()}
    assert set(tools) == {
        "create_checkpoint", "list_checkpoints", "get_checkpoint_info", "rollback_to_checkpoint", "delete_checkpoint",
        "cleanup_auto_checkpoints",
    }  # fmt: skip
    assert all(tool.description for tool in tools.values())
    tools["create_checkpoint"].invoke({"name": "empty"})
    agent.run("go")
    assert "Done" in tools["rollback_to_checkpoint"].invoke({"checkpoint": "empty"})
    assert world.items == []
    assert agent.at().branch.name == "main-2"
    assert "main-2#1" in tools["list_checkpoints"].invoke({})
    tools["create_checkpoint"].invoke({"name": "after"})
    assert agent.session.get_checkpoint("after").metadata["branch"] == "main-2"


def test_a_rollback_moves_the_session_even_from_another_branch(repo, world):
    agent = managed(
        repo, world, "hi", call("add", item="x"), call("rollback_to_checkpoint", checkpoint="side#1"), "back"
    )
    agent.run("hello")
    side = agent.fork(name="side")
    side.invoke(say("x; no, back"))
    assert side.rollback_error is None
    assert (agent.session.branch().name, world.items) == ("side-2", [])
