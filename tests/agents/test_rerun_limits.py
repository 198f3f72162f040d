"""What docs/rerun.md says is not isolated or cannot be told apart in a rerun."""

import processes
import pytest
from chains import replying
from langchain_core.tools import StructuredTool
from scripted import call, obedient, saying, tool_node_graph

from agentgit import InvalidInput


@pytest.fixture
def agent(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("add chair")
    return agent


def test_the_code_of_nodes_runs_as_it_is(repo, world):
    seen = []

    def note(messages):
        seen.append(messages[-1].content)
        return world.tool("add").invoke({"item": "chair"})

    agent = repo.wrap(replying(note), "s", effects={})
    agent.run("hello")
    again = agent.rerun()
    assert again.report.is_same
    assert seen == ["hello", "hello"]
    assert world.items == ["chair"]


@pytest.mark.parametrize("name", ["run", "arun", "invoke", "ainvoke"])
def test_a_tool_that_runs_code_around_its_calls_is_refused(repo, name):
    """An override of the class would run, so nothing does; a tool that only reads may have one."""
    acted = []

    def around(self, *args, **options):
        acted.append(name)
        return getattr(StructuredTool, name)(self, *args, **options)

    own = type("Own", (StructuredTool,), {name: around})
    ring = own.from_function(lambda: "rang", name="ring", description="Ring a bell.")

    def graph():
        return tool_node_graph(saying(call("ring"), "done"), [ring])

    agent = repo.wrap(graph(), "s")
    agent.run("go")
    before = list(acted)
    with pytest.raises(InvalidInput, match=rf"Own, the class of the tool ring, overrides the method {name}"):
        agent.rerun()
    assert acted == before
    assert [branch.name for branch in agent.session.branches()] == ["main"]
    with pytest.raises(InvalidInput, match="record a session in which it is declared read_only"):
        agent.rerun(graph(), effects={"ring": "read_only"})
    reading = repo.wrap(graph(), "t", effects={"ring": "read_only"})
    reading.run("go")
    assert reading.rerun(graph()).report.match_rate == 1


def test_a_tool_without_a_declared_effect_never_runs(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("note one")
    other = tool_node_graph(saying(call("note", text="one"), call("note", text="two"), "done"), world.tools())
    again = agent.rerun(other)
    assert [one.answered_by for one in again.report.calls] == ["record", "told"]
    with pytest.raises(InvalidInput, match="note is undeclared"):
        agent.rerun(other, tools={"note": "live"})
    agent.rerun(tool_node_graph(saying(call("note", text="three"), "done"), world.tools()), tools="live")
    assert world.notes == ["one"]


def test_a_rerun_does_not_declare_a_tool_anew(agent, world):
    """A tool that acts cannot be called a reading one, so that `live` would enter it."""
    for graph in (None, tool_node_graph(obedient(), world.tools())):
        with pytest.raises(InvalidInput, match="effects declares add, which the agent has declared otherwise"):
            agent.rerun(graph, effects={"add": "read_only"}, tools="live")
    assert world.items == ["chair"]
    assert [branch.name for branch in agent.session.branches()] == ["main"]
    same = agent.rerun(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    assert same.report.is_same


@pytest.mark.parametrize(("name", "line"), [("add", "add chair"), ("note", "note one")])
def test_a_tool_that_acted_stays_one_however_it_is_declared_later(repo, world, name, line):
    """The record says that the tool acts, so `live` does not enter it, whoever declares it a reading one."""
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run(line)
    ledger = [*world.items], [*world.notes]
    graph, reading = tool_node_graph(obedient(), world.tools()), {name: "read_only"}
    assert repo.rerun(["s"], graph, effects=reading, tools="live").rows[0].is_same
    again = repo.wrap(graph, "s", effects=reading)
    assert [one.answered_by for one in again.rerun(tools="live").report.calls] == ["record"]
    with pytest.raises(InvalidInput, match=f"The tool {name} is .* declared read_only or state, and were recorded so"):
        again.rerun(tools={name: "live"})
    assert (world.items, world.notes) == ledger


def test_an_answer_is_the_recorded_one_even_if_the_order_has_changed(agent, world):
    """A rerun that looks before it adds gets what was seen after it, and the report says that the order differs."""
    agent.run("look")
    other = saying(call("look"), call("add", item="chair"), "done", "done")
    again = agent.rerun(tool_node_graph(other, world.tools()))
    assert [one.result for one in again.tool_track()] == ["chair", {"item": "chair", "number": 1}]
    assert [one.tool_name for one in again.report.reordered] == ["add"]
    assert not again.report.is_same
    assert agent.branch.name == agent.session.branch().name == "main"


def test_a_session_of_a_template_is_run_again_from_what_it_began_with(repo, agent, world):
    later = repo.wrap(agent.graph, "t", template="s@main", effects=world.effects())
    later.run("add lamp")
    again = later.rerun()
    assert again.report.is_same
    assert again.report.turns == 1
    assert len(again.messages()) == len(later.messages())


UNSAVED = """
import agentgit
from chains import replying

with agentgit.open(":memory:") as repo:
    agent = repo.wrap(replying(lambda messages: "hi"), "s")
    agent.invoke({"messages": [("user", "hello")]}, durability="exit")
    try:
        agent.rerun()
    except agentgit.InvalidInput as error:
        print(error)
"""


def test_a_session_that_saved_no_steps_is_refused(repo, world):
    """In a process with tools that act, `exit` saves them."""
    assert "lacks steps" in processes.run(UNSAVED).stdout
    acting = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    acting.invoke({"messages": [("user", "add chair")]}, durability="exit")
    assert acting.rerun().report.is_same


@pytest.mark.parametrize("later", [False, True])
def test_a_session_whose_steps_gc_has_deleted_is_refused_and_not_run_in_part(repo, agent, later):
    """Bad input: the inputs are in the steps. Without them nothing runs, also if newer turns have theirs."""
    agent.run("add table")
    repo.maintenance.gc(steps=False)
    assert agent.rerun().report.is_same
    head = agent.head
    repo.maintenance.gc()
    if later:
        agent.run("look")
    with pytest.raises(InvalidInput, match=r"lacks steps.*let gc keep the steps"):
        agent.rerun()
    assert [branch.name for branch in agent.session.branches()] == ["main", "rerun"]
    if later:
        assert agent.rerun(start=head).report.turns == 1
