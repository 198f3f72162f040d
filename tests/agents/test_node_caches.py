"""Caches of nodes and tasks answer for work that did not act, on every branch, and for no other work."""

import asyncio
import operator
from typing import Annotated, TypedDict

import pytest
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import CachePolicy, Command, interrupt
from scripted import call, calls

from agentgit import reversible


class State(TypedDict, total=False):
    """The state of the test graphs: the wanted item, and a log of results."""

    wanted: str
    asked: str
    log: Annotated[list, operator.add]


class Shop:
    """A shop with its current orders and a record of the nodes that ran."""

    def __init__(self):
        self.orders, self.made, self.ran = [], 0, []

        @tool
        def order(item: str) -> str:
            """Order something."""
            self.made += 1
            self.orders.append(f"{item}-{self.made}")
            return self.orders[-1]

        self.order = order

    def cancel(self, args, result):
        """Undo `order`."""
        self.orders.remove(result)

    @property
    def effects(self):
        """The declared effects of the tools."""
        return {"order": reversible(self.cancel)}

    def buy(self, state):
        """Order the wanted item."""
        self.ran.append("buy")
        return {"log": [self.order.invoke({"item": state["wanted"]})]}

    def think(self, state):
        """Return a result without changing the world."""
        self.ran.append("think")
        return {"log": [f"thought of {state['wanted']}"]}


def by_wanted(state):
    return state["wanted"]


def two_nodes(shop, cache):
    """Compile a graph with a cached node without effects, followed by a cached node that orders."""
    builder = StateGraph(State)
    builder.add_node("think", shop.think, cache_policy=CachePolicy(key_func=by_wanted))
    builder.add_node("buy", shop.buy, cache_policy=CachePolicy(key_func=by_wanted))
    builder.add_edge(START, "think").add_edge("think", "buy").add_edge("buy", END)
    return builder.compile(cache=cache)


def subgraph(shop, cache):
    """Compile a graph with the two nodes in a subgraph that has its own cache."""
    inner = two_nodes(shop, cache)
    return StateGraph(State).add_node("inner", inner).add_edge(START, "inner").add_edge("inner", END).compile()


def called(shop, cache):
    """Compile a graph whose node calls the graph of the two nodes."""
    inner = two_nodes(shop, cache)

    def node(state):
        return {"log": inner.invoke({"wanted": state["wanted"], "log": []})["log"]}

    return StateGraph(State).add_node("outer", node).add_edge(START, "outer").add_edge("outer", END).compile()


def functional(shop, cache):
    """Build an entrypoint with two cached tasks that do the work of the two nodes."""

    @task(cache_policy=CachePolicy())
    def think(wanted):
        return shop.think({"wanted": wanted})["log"]

    @task(cache_policy=CachePolicy())
    def buy(wanted):
        return shop.buy({"wanted": wanted})["log"]

    @entrypoint(cache=cache)
    def flow(given):
        return {"log": think(given["wanted"]).result() + buy(given["wanted"]).result()}

    return flow


KINDS = {"nodes": two_nodes, "subgraph": subgraph, "called": called, "tasks": functional}


@pytest.fixture
def shop():
    return Shop()


def want(agent, is_async=False):
    """Run one turn, and return the last item of the log."""
    given = {"wanted": "chair", "log": []}
    return (asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given))["log"][-1]


def tracked(agent):
    return [call.result for call in agent.tool_track()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_async", [False, True])
def test_only_work_that_does_not_act_is_cached(repo, shop, kind, is_async):
    """The cache answers before and after a rollback, and in another session."""
    graph = KINDS[kind](shop, InMemoryCache())
    agent = repo.wrap(graph, "s", effects=shop.effects, check_effects=False)
    assert [want(agent, is_async) for _ in range(2)] == ["chair-1", "chair-2"]
    assert shop.ran == ["think", "buy", "buy"]
    back = agent.rollback("main#1")
    assert shop.orders == []
    assert want(back, is_async) == "chair-3"
    assert (shop.orders, tracked(back)) == (["chair-3"], ["chair-3"])
    other = repo.wrap(graph, "other", effects=shop.effects, check_effects=False)
    assert want(other, is_async) == "chair-4"
    assert (shop.ran.count("think"), tracked(other)) == (1, ["chair-4"])


def cached_tools(world):
    """Compile a graph whose ToolNode is cached by the names and arguments of its calls, without their ids."""
    asked = lambda state: repr([(c["name"], c["args"]) for c in state["messages"][-1].tool_calls])  # noqa: E731
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(world.tools()), cache_policy=CachePolicy(key_func=asked))
    return builder.add_edge(START, "tools").add_edge("tools", END).compile(cache=InMemoryCache())


def asked_for(*names):
    """Return an input in which a model asks for tool calls."""
    return {"messages": [calls(*(call(name, f"c-{n}", item="chair") for n, name in enumerate(names)))]}


def test_a_call_of_an_earlier_turn_counts_for_the_cache(repo, world):
    """A cached node that acted before a question runs again once its effects are reversed."""
    agent = repo.wrap(cached_tools(world), "s", effects=world.effects())
    agent.invoke(asked_for("add", "add_if_approved"))
    agent.invoke(Command(resume="yes"))
    assert world.items == ["chair", "chair"]
    back = agent.rollback("main#1")
    assert world.items == []
    back.invoke(asked_for("add", "add_if_approved"))
    assert (world.items, back.get_state().next) == (["chair"], ("tools",))


def ask_in_a_subgraph(shop, cache):
    """Compile a graph whose cached node runs a subgraph that buys something and then asks a person."""
    inner = StateGraph(State).add_node("buy", shop.buy).add_node("ask", lambda _: {"log": [interrupt("fine?")]})
    graph = inner.add_edge(START, "buy").add_edge("buy", "ask").compile()

    def act(state):
        return {"log": graph.invoke({"wanted": state["wanted"], "log": []})["log"]}

    outer = StateGraph(State).add_node("act", act, cache_policy=CachePolicy(key_func=by_wanted))
    return outer.add_edge(START, "act").compile(cache=cache)


def ask_in_a_task(shop, cache):
    """Build an entrypoint whose cached task buys something in an inner task and then asks a person."""
    buy = task(shop.buy)

    @task(cache_policy=CachePolicy(key_func=lambda given: given["wanted"]))
    def act(given):
        return {"log": [*buy(given).result()["log"], interrupt("fine?")]}

    @entrypoint(cache=cache)
    def flow(given):
        return act(given).result()

    return flow


@pytest.mark.parametrize("shape", [ask_in_a_subgraph, ask_in_a_task])
def test_work_not_rerun_by_langgraph_counts_for_the_cache(repo, shop, shape):
    cache = InMemoryCache()
    agent = repo.wrap(shape(shop, cache), "s", effects=shop.effects, check_effects=False)
    want_and_answer(agent, "yes")
    want_and_answer(agent, "no")
    assert (shop.ran, tracked(agent)) == (["buy", "buy"], ["chair-1", "chair-2"])
    back = agent.rollback("main#1")
    want_and_answer(back, "maybe")
    assert (shop.orders, tracked(back)) == (["chair-3"], ["chair-3"])


def want_and_answer(agent, answer):
    """Run a turn that asks a person, and a second turn with the answer."""
    agent.invoke({"wanted": "chair", "log": []})
    agent.invoke(Command(resume=answer))


def test_a_cache_file_serves_several_agents(repo, shop, tmp_path):
    path = str(tmp_path / "cache.db")
    for number in (1, 2):
        graph = two_nodes(shop, SqliteCache(path=path))
        agent = repo.wrap(graph, "s", effects=shop.effects, check_effects=False)
        assert want(agent) == f"chair-{number}"
    assert shop.ran == ["think", "buy", "buy"]


def test_a_plain_graph_and_a_session_do_not_share_cache_entries(repo, shop):
    """Entries of a plain graph do not answer in a session, whose track lacks their calls."""
    graph = two_nodes(shop, InMemoryCache())
    assert graph.invoke({"wanted": "chair", "log": []})["log"][-1] == "chair-1"
    agent = repo.wrap(graph, "s", effects=shop.effects, check_effects=False)
    assert want(agent) == "chair-2"
    assert graph.invoke({"wanted": "chair", "log": []})["log"][-1] == "chair-1"
    assert shop.ran == ["think", "buy", "think", "buy"]
    graph.clear_cache()
    assert want(agent) == "chair-3"
    assert shop.ran[4:] == ["think", "buy"]


def test_the_cache_of_a_graph_run_by_a_tool_follows_the_same_rules(repo, shop):
    inner = two_nodes(shop, InMemoryCache())

    @tool
    def shopping(item: str) -> str:
        """Buy something."""
        return inner.invoke({"wanted": item, "log": []})["log"][-1]

    graph = StateGraph(MessagesState).add_node("tools", ToolNode([shopping])).add_edge(START, "tools").compile()
    effects = {**shop.effects, "shopping": "idempotent"}
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    wanted = {"messages": [calls(call("shopping", "c1", item="chair"))]}
    assert agent.invoke(wanted)["messages"][-1].content == "chair-1"
    back = agent.rollback("main#1")
    assert shop.orders == []
    assert back.invoke(wanted)["messages"][-1].content == "chair-2"
