"""The memory tools of langmem: what they write is undone, and they are known only with the store of the graph."""

from langgraph.store.memory import InMemoryStore
from langmem import create_manage_memory_tool, create_search_memory_tool
from scripted import call, scripted, tool_node_graph

MEMORIES = ("memories",)


def said(text="go"):
    return {"messages": [("user", text)]}


def test_a_memory_of_langmem_is_taken_back_with_the_turn_that_wrote_it(repo):
    store = InMemoryStore()
    tools = [create_manage_memory_tool(MEMORIES), create_search_memory_tool(MEMORIES)]
    model = scripted(call("manage_memory", content="likes sofas"), call("search_memory", query="sofas"), "done")
    agent = repo.wrap(tool_node_graph(model, tools).copy({"store": store}), "s")
    agent.checkpoint("before")
    agent.invoke(said())
    assert [one.value["content"] for one in store.search(MEMORIES)] == ["likes sofas"]
    assert agent.effects == {"manage_memory": "state", "search_memory": "read_only"}
    plan = agent.plan_rollback("before")
    assert [step.invocation.tool_name for step in plan.reversals] == ["memory.put"]
    assert agent.rollback("before", plan=plan).report.kept == []
    assert store.search(MEMORIES) == []


def test_with_a_store_of_its_own_the_tool_is_undeclared(repo):
    tools = [create_manage_memory_tool(MEMORIES, store=InMemoryStore())]
    agent = repo.wrap(tool_node_graph(scripted("done"), tools), "s")
    assert agent.effects == {"manage_memory": "undeclared"}
