"""Import of a thread that waits for an answer, with the finished calls of its unfinished batch."""

import pytest
from foreign_threads import any_origin
from langchain_core.messages import AIMessage, ToolMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted import World, agent_graph, call, calls, tool_node_graph

from agentgit.demo import ScriptedModel

__all__ = ["any_origin"]  # the fixture


def rule(messages):
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("done")
    ask, add = call("add_if_approved", "c-ask", item="table"), call("add", "c-add", item="chair")
    return calls(ask, add, call("note", "c-note", text="x"))


def one_task_each(world, saver=None):
    return agent_graph(ScriptedModel(rule=rule), world.tools(), saver)


def as_subgraph(world, saver=None):
    """Build a graph with that agent as a node, which receives its messages only when the agent has ended."""
    builder = StateGraph(MessagesState).add_node("agent", one_task_each(world)).add_edge(START, "agent")
    return builder.compile(checkpointer=saver)


def one_task(world, saver=None):
    """Build a graph whose ToolNode runs all calls in one task, which LangGraph stores only when all are done."""
    return tool_node_graph(ScriptedModel(rule=rule), world.tools(), saver)


def track(agent):
    return [(one.tool_name, one.tool_call_id, one.status) for one in agent.tool_track()]


@pytest.mark.parametrize("build", [one_task_each, as_subgraph])
def test_finished_calls_of_an_unfinished_batch_are_imported(repo, any_origin, build):
    world = World()
    any_origin.talk(lambda saver: build(world, saver), "t", "go")
    assert (world.items, world.notes) == (["chair"], ["x"])
    assert repo.import_langgraph(any_origin.url).threads[0].tool_calls == 2
    agent = repo.wrap(build(world), "t", effects=world.effects())
    assert track(agent) == [("add", "c-add", "done"), ("note", "c-note", "done")]
    assert [one.effect for one in agent.tool_track()] == ["undeclared", "undeclared"]
    assert "chair" in str(agent.tool_track()[0].result)
    assert [question.value for question in agent.get_state().interrupts] == [{"add": "table"}]
    agent.checkpoint("asked")
    agent.invoke(Command(resume="yes"))
    assert (world.items, world.notes) == (["chair", "table"], ["x"])
    assert sorted(name for name, _, _ in track(agent)) == ["add", "add_if_approved", "note"]
    back = agent.rollback("asked")
    assert track(back) == [("add", "c-add", "done"), ("note", "c-note", "done")]
    assert world.items == ["chair"]
    assert not repo.maintenance.fsck(level=3).findings


@pytest.mark.parametrize("build", [one_task_each, as_subgraph])
def test_importing_again_after_the_answer_adds_only_new_calls(repo, any_origin, build):
    world = World()
    any_origin.talk(lambda saver: build(world, saver), "t", "go")
    repo.import_langgraph(any_origin.url)
    assert repo.import_langgraph(any_origin.url).threads[0].status == "unchanged"
    any_origin.talk(lambda saver: build(world, saver), "t", Command(resume="yes"), "go")
    report = repo.import_langgraph(any_origin.url).threads[0]
    assert (report.status, report.tool_calls) == ("extended", 3)
    agent = repo.wrap(build(world), "t", effects=world.effects())
    first = [(one.tool_name, one.tool_call_id) for one in agent.tool_track()[:3]]
    assert first == [("add_if_approved", "c-ask"), ("add", "c-add"), ("note", "c-note")]
    assert [name for name, _, _ in track(agent)[3:]] == ["add", "note"]
    assert not repo.maintenance.fsck(level=3).findings


def test_a_batch_in_one_task_runs_again_as_in_the_plain_graph(repo, any_origin):
    """LangGraph keeps no result of a batch in one task, so each call is recorded once it runs in the session."""
    world = World()
    any_origin.talk(lambda saver: one_task(world, saver), "t", "go")
    repo.import_langgraph(any_origin.url)
    agent = repo.wrap(one_task(world), "t", effects=world.effects())
    assert track(agent) == []
    agent.invoke(Command(resume="yes"))
    assert [(name, status) for name, _, status in track(agent)] == [
        ("add_if_approved", "done"), ("add", "done"), ("note", "done")
    ]  # fmt: skip
