"""Each call has a stable idempotency key that its tool can read."""

import asyncio

import pytest
from langchain_core.tools import tool
from scripted import agent_graph, call, calls, scripted, tool_node_graph

from agentgit import NotFound
from agentgit.effects import idempotency_key


@pytest.mark.parametrize("graph", [tool_node_graph, agent_graph])
@pytest.mark.parametrize("is_async", [False, True])
def test_a_tool_can_read_its_idempotency_key(repo, graph, is_async):
    """Parallel calls of one message have different keys."""
    asked = {}

    def pay(to: str) -> str:
        """Pay."""
        asked[to] = idempotency_key()
        return "paid"

    async def apay(to: str) -> str:
        """Pay."""
        await asyncio.sleep(0)
        return pay(to)

    made = tool("pay")(apay if is_async else pay)
    agent = repo.wrap(graph(scripted(calls(call("pay", to="Ann"), call("pay", to="Bob")), "ok"), [made]), "s")
    asyncio.run(agent.arun("go")) if is_async else agent.run("go")
    assert asked == {c.args["to"]: c.idempotency_key for c in agent.tool_track()}
    assert len(set(asked.values())) == 2


def test_there_is_no_key_outside_a_call():
    with pytest.raises(NotFound, match="inside a tool"):
        idempotency_key()
