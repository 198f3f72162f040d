"""Caches of nodes and tasks answer only while the effects of the cached work are in place."""

import operator
from typing import Annotated, TypedDict

import backend
import processes
import pytest
from langchain_core.tools import tool
from langgraph.cache.memory import InMemoryCache
from langgraph.cache.sqlite import SqliteCache
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import CachePolicy, Command, interrupt
from scripted import World, call, calls

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
    """Return the wanted item as the cache key."""
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


@pytest.fixture(params=KINDS)
def kind(request):
    """Return the builder of each kind of graph with cached work."""
    return KINDS[request.param]


@pytest.fixture
def shop():
    """Return a shop without orders."""
    return Shop()


def want(agent, what="chair"):
    """Run one turn, and return the last item of the log."""
    return agent.invoke({"wanted": what, "log": []})["log"][-1]


def tracked(agent):
    """Return the results of the calls on the track."""
    return [call.result for call in agent.tool_track()]


def test_a_cached_order_is_made_again_after_a_rollback(repo, shop, kind):
    """After a rollback, cached work with a reversed order runs again, and work without effects stays cached."""
    agent = repo.wrap(kind(shop, InMemoryCache()), "s", effects=shop.effects, check_effects=False)
    assert want(agent) == "chair-1"
    assert (shop.ran, shop.orders) == (["think", "buy"], ["chair-1"])
    back = agent.rollback("main#1")
    assert shop.orders == []
    assert want(back) == "chair-2"
    assert (shop.ran, shop.orders) == (["think", "buy", "buy"], ["chair-2"])
    assert tracked(back) == ["chair-2"]


def test_a_cached_node_answers_while_its_effect_is_in_place(repo, shop, kind):
    """While its order is in place, a cached node answers from the cache, on its branch and on later branches."""
    agent = repo.wrap(kind(shop, InMemoryCache()), "s", effects=shop.effects, check_effects=False)
    assert want(agent) == want(agent) == "chair-1"
    assert tracked(agent) == ["chair-1"]
    after = agent.rollback("main#2")
    assert want(after) == "chair-1"
    assert tracked(after) == ["chair-1"]
    assert shop.ran == ["think", "buy"]


def test_a_branch_from_before_an_order_does_not_use_its_cache(repo, shop, kind):
    """A fork from before the order, and another session, make the order themselves."""
    agent = repo.wrap(kind(shop, InMemoryCache()), "s", effects=shop.effects, check_effects=False)
    cache = agent.graph
    want(agent)
    other = repo.wrap(cache, "other", effects=shop.effects, check_effects=False)
    assert want(other) == "chair-2"
    assert (shop.ran.count("think"), tracked(other)) == (1, ["chair-2"])
    assert want(agent.fork("main#1").switch("main-2", sync="ignore")) == "chair-3"


def test_an_order_reversed_in_place_is_not_answered_from_the_cache(repo, shop, kind):
    """After a rollback of the tools only, the cache does not answer."""
    agent = repo.wrap(kind(shop, InMemoryCache()), "s", effects=shop.effects, check_effects=False)
    want(agent)
    agent.rollback("main#1", conversation=False)
    assert shop.orders == []
    assert (want(agent), shop.orders) == ("chair-2", ["chair-2"])


def cached_tools(world):
    """Compile a graph whose ToolNode is cached by the names and arguments of its calls, without their ids."""
    asked = lambda state: repr([(c["name"], c["args"]) for c in state["messages"][-1].tool_calls])  # noqa: E731
    builder = StateGraph(MessagesState)
    builder.add_node("tools", ToolNode(world.tools()), cache_policy=CachePolicy(key_func=asked))
    return builder.add_edge(START, "tools").add_edge("tools", END).compile(cache=InMemoryCache())


def asked_for(*names):
    """Return an input in which a model asks for tool calls."""
    return {"messages": [calls(*(call(name, f"c-{n}", item="chair") for n, name in enumerate(names)))]}


def test_the_cache_answers_again_after_an_order_is_redone(repo):
    """The cache answers on the branch whose order was made again, and not on the branch that was left."""
    world = World()
    agent = repo.wrap(cached_tools(world), "s", effects=world.effects())
    agent.invoke(asked_for("add"))
    back = agent.rollback("main#1")
    back.invoke(asked_for("add"))
    assert world.happened("add") == [{"item": "chair"}] * 2
    again = back.switch("main", sync="world")
    assert (world.items, len(world.happened("add"))) == (["chair"], 3)
    again.invoke(asked_for("add"))
    assert (world.items, len(world.happened("add"))) == (["chair"], 3)
    left = again.switch(back.branch.name, sync="ignore")
    left.invoke(asked_for("add"))
    assert len(world.happened("add")) == 4


def test_a_call_of_an_earlier_turn_counts_for_the_cache(repo):
    """A cached node that acted before a question does not answer once its effects are reversed."""
    world = World()
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
    """Work that bought in one turn and ended in the next answers only while the purchase is in place."""
    cache = InMemoryCache()
    agent = repo.wrap(shape(shop, cache), "s", effects=shop.effects, check_effects=False)
    want_and_answer(agent, "yes")
    assert (want(agent), shop.ran) == ("yes", ["buy"])
    back = agent.rollback("main#1")
    want_and_answer(back, "no")
    assert (want(back), shop.orders, tracked(back)) == ("no", ["chair-2"], ["chair-2"])
    other = repo.wrap(shape(shop, cache), "t", effects=shop.effects, check_effects=False)
    want_and_answer(other, "maybe")
    assert tracked(other) == ["chair-3"]


def want_and_answer(agent, answer):
    """Run a turn that asks a person, and a second turn with the answer."""
    agent.invoke({"wanted": "chair", "log": []})
    agent.invoke(Command(resume=answer))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
async def test_async_runs_use_the_cache_like_sync_runs(repo, shop, kind):
    """Ainvoke uses the cache under the same rules as invoke."""
    agent = repo.wrap(kind(shop, InMemoryCache()), "s", effects=shop.effects, check_effects=False)
    for _ in range(2):
        assert (await agent.ainvoke({"wanted": "chair", "log": []}))["log"][-1] == "chair-1"
    back = await agent.arollback("main#1")
    assert (await back.ainvoke({"wanted": "chair", "log": []}))["log"][-1] == "chair-2"
    assert (shop.orders, shop.ran.count("think")) == (["chair-2"], 1)


ANOTHER_PROCESS = """
import sys
import agentgit
from langgraph.cache.sqlite import SqliteCache
from test_node_caches import Shop, two_nodes, want
shop = Shop()
shop.made = 1
graph = two_nodes(shop, SqliteCache(path=sys.argv[3]))
with agentgit.open(sys.argv[1]) as repo:
    agent = repo.wrap(graph, "s", branch=sys.argv[2], effects=shop.effects, check_effects=False)
    print(want(agent), *shop.ran)
"""


@pytest.mark.long
def test_a_sqlite_cache_file_serves_several_processes(repo, shop, tmp_path):
    """A SQLite cache file answers another process on the branch of its order, and not after a rollback."""
    path = str(tmp_path / "cache.db")
    agent = repo.wrap(two_nodes(shop, SqliteCache(path=path)), "s", effects=shop.effects, check_effects=False)
    want(agent)

    def another(branch: str) -> str:
        done = processes.run(ANOTHER_PROCESS, backend.address(repo), branch, path)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert another("main") == "chair-1"
    back = agent.rollback("main#1")
    assert shop.orders == []
    assert another(back.branch.name) == "chair-2 buy"


def test_a_sqlite_cache_file_serves_several_agents(repo, shop, tmp_path):
    """The branch that asks decides about entries in a SQLite file, whichever agent wrote them."""
    path = str(tmp_path / "cache.db")
    make = lambda: two_nodes(shop, SqliteCache(path=path))  # noqa: E731  # a new graph and a new cache for each agent
    agent = repo.wrap(make(), "s", effects=shop.effects, check_effects=False)
    want(agent)
    same = repo.wrap(make(), "s", effects=shop.effects, check_effects=False)
    assert want(same) == "chair-1"
    back = same.rollback("main#1")
    assert want(repo.wrap(make(), "s", branch=back.branch.name, effects=shop.effects, check_effects=False)) == "chair-2"
    assert shop.ran == ["think", "buy", "buy"]


def test_a_plain_graph_and_a_session_do_not_share_cache_entries(repo, shop):
    """Entries of a plain graph do not answer in a session, whose track lacks their calls."""
    graph = two_nodes(shop, InMemoryCache())
    assert graph.invoke({"wanted": "chair", "log": []})["log"][-1] == "chair-1"
    agent = repo.wrap(graph, "s", effects=shop.effects, check_effects=False)
    assert want(agent) == "chair-2"
    assert graph.invoke({"wanted": "chair", "log": []})["log"][-1] == "chair-1"
    graph.clear_cache()
    assert want(agent) == "chair-3"
    assert tracked(agent) == ["chair-2", "chair-3"]


@pytest.mark.long
def test_the_cache_of_a_graph_run_by_a_tool_follows_the_same_rules(repo, shop):
    """A cached graph run by a tool makes its order again after a rollback."""
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
