"""Each call has a stable idempotency key that its tool can read (DESIGN 4.5)."""

import asyncio

import pytest
from langchain_core.tools import tool
from scripted import agent_graph, call, calls, scripted, tool_node_graph

from agentgit import NotFound, reversible
from agentgit.effects import idempotency_key


@pytest.mark.parametrize("kind", [tool_node_graph, agent_graph], ids=["tool_node", "create_agent"])
@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_tool_can_read_its_idempotency_key(repo, kind, way):
    """Parallel calls of one message have different keys, and each equals the recorded key."""
    asked = {}

    def pay(to: str) -> str:
        """Pay."""
        asked[to] = idempotency_key()
        return "paid"

    async def apay(to: str) -> str:
        """Pay."""
        await asyncio.sleep(0)
        return pay(to)

    made = tool("pay")(pay if way == "sync" else apay)
    agent = repo.wrap(kind(scripted(calls(call("pay", to="Ann"), call("pay", to="Bob")), "ok"), [made]), "s")
    agent.run("go") if way == "sync" else asyncio.run(agent.arun("go"))
    assert asked == {c.args["to"]: c.idempotency_key for c in agent.tool_track()}
    assert len(set(asked.values())) == 2


def test_a_retry_after_a_failure_has_the_same_key(repo):
    """A call that failed and is retried by `invoke(None)` keeps its key."""
    asked = []

    @tool
    def pay(to: str) -> str:
        """Pay."""
        asked.append(idempotency_key())
        if len(asked) == 1:
            raise ConnectionError("no answer")
        return "paid"

    agent = repo.wrap(tool_node_graph(scripted(call("pay", to="Ann"), "ok"), [pay]), "s")
    with pytest.raises(ConnectionError):
        agent.run("go")
    agent.invoke(None)
    assert asked[0] == asked[1]


@pytest.mark.parametrize("way", ["sync", "async"])
def test_a_redone_call_has_a_new_key(repo, way):
    """A redo calls the service with another key than the reversed call."""
    asked = []

    def put(item: str) -> str:
        """Put."""
        asked.append(idempotency_key())
        return "there"

    async def aput(item: str) -> str:
        """Put."""
        return put(item)

    made = tool("put")(put if way == "sync" else aput)
    graph = tool_node_graph(scripted(call("put", item="a"), "ok"), [made])
    agent = repo.wrap(graph, "s", effects={"put": reversible(lambda args, result: None)})
    asyncio.run(agent.arun("go"))
    agent.rollback("main#1").redo()
    assert len(asked) == len(set(asked)) == 2


def test_there_is_no_key_outside_a_call():
    """Bad input: asking for a key outside a tool raises NotFound, which says where to ask."""
    with pytest.raises(NotFound, match="inside a tool"):
        idempotency_key()
