"""Turns, interrupts, forks and rollbacks survive a restart with every way to run a graph and every durability mode."""

import asyncio

import pytest
from langchain_core.messages import BaseMessage
from langgraph.types import Command
from scripted import World, call, calls, scripted, tool_node_graph

import agentgit
from agentgit import reversible

STORY = (
    calls(call("add", item="chair"), call("charge", amount=5)), "a chair",
    calls(call("add", item="lamp"), call("add_if_approved", item="table")), "done",
    call("look"), "looked",
)  # fmt: skip
WAYS = {
    "invoke": lambda graph, *given, **how: graph.invoke(*given, **how),
    "stream": lambda graph, *given, **how: list(graph.stream(*given, stream_mode="updates", **how)),
    "ainvoke": lambda graph, *given, **how: asyncio.run(graph.ainvoke(*given, **how)),
}


def say(text):
    return {"messages": [("user", text)]}


def texts(values) -> list[str]:
    """Return the texts of a conversation, with the name of the tool for each tool message."""
    messages: list[BaseMessage] = values["messages"]
    return [message.name or str(message.content) for message in messages]


BEGUN = ["order a chair", "", "add", "charge", "a chair", "and a table", ""]
YES = [*BEGUN, "add", "add_if_approved", "done"]


@pytest.mark.parametrize(("way", "durability"), [("invoke", "sync"), ("stream", "async"), ("ainvoke", "exit")])
def test_forks_and_rollbacks_work_after_a_restart(database, way, durability):
    run, world = WAYS[way], World()

    def take_back(args, result):
        if isinstance(result, dict):  # else it was not approved
            world.remove(args, result)

    def reopened(repo):
        effects = world.effects(add_if_approved=reversible(take_back))
        return repo.wrap(tool_node_graph(scripted(*STORY), world.tools()), "s", effects=effects)

    with agentgit.open(database.url) as repo:
        run(reopened(repo), say("order a chair"), None, durability=durability)
        chair = reopened(repo).checkpoint("chair").id
        run(reopened(repo), say("and a table"), None, durability=durability)
        asked = reopened(repo).checkpoint("asked").id
    with agentgit.open(database.url) as repo:
        agent = reopened(repo)
        other = agent.fork(asked, name="other")
        run(agent, Command(resume="yes"), None, durability=durability)
        assert texts(agent.get_state().values) == YES
        before = len(world.happened("add"))
        other = other.switch("other", sync="ignore")  # the other branch has added a table
        run(other, Command(resume="no"), None, durability=durability)
        assert texts(other.get_state().values) == YES
        assert other.get_state().values["messages"][-2].content == "not approved"
        assert len(world.happened("add")) == before  # the ToolNode is one task, and its done call is not repeated
    with agentgit.open(database.url) as repo:
        back = reopened(repo).rollback(chair)
        assert back.report.status == "done"
        assert texts(back.get_state().values) == BEGUN[:5]
        assert (world.items, world.charges) == (["chair"], [5])
        run(back, say("and a table"), None, durability=durability)
        assert texts(back.get_state().values) == BEGUN
        run(back, Command(resume="yes"), None, durability=durability)
        assert texts(back.get_state().values) == YES
