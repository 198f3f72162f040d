"""Writes to LangGraph's `BaseStore` are recorded and undone in tools, tasks, threads and event loops."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langgraph.types import Command, interrupt
from memory_graphs import (
    NAMESPACE,
    aact,
    act,
    agent,
    assert_chain,
    begun,
    contents,
    noting,
    reasons,
    said,
    store,
    store_schema,
)
from scripted import call, calls, tool_node_graph

import agentgit
from agentgit import RollbackBlocked, Workspace, reversible
from agentgit.demo import ScriptedModel

__all__ = ["agent", "store"]  # the fixtures


# -- tools, nodes and graphs


@pytest.mark.parametrize(("effects", "kept"), [({}, ["remember"]), ({"remember": "read_only"}, [])])
def test_the_writes_of_an_undeclared_or_read_only_tool_are_undone(repo, store, effects, kept):
    agent = begun(repo, store, effects=effects, check_effects=False)
    agent.invoke(said("tool:+food=pizza"))
    assert [one.tool_name for one in agent.tool_track()] == ["remember", "memory.put"]
    report = agent.rollback("before").report
    assert [item.invocation.tool_name for item in report.reversed] == ["memory.put"]
    assert [item.invocation.tool_name for item in report.kept] == kept
    assert contents(store) == {}


def test_a_switch_makes_the_write_of_a_reversible_tool_once(repo, store):
    orders = []

    @tool
    def order(item: str) -> str:
        """Order something."""
        orders.append(item)
        get_store().put(NAMESPACE, "last", {"is": item})
        return item

    def node(state):
        order.invoke({"item": "chair"})

    undo = reversible(lambda args, result: orders.remove(result))
    agent = begun(repo, store, node, effects={"order": undo}, check_effects=False)
    agent.invoke(said("go"))
    retry = agent.rollback("before")
    assert (orders, contents(store)) == ([], {})
    plan = retry.session.plan_switch("main")
    assert [step.action for step in plan.steps if step.invocation.tool_name == "memory.put"] == ["redo"]


def test_writes_of_parallel_tools_in_a_subgraph_are_undone(repo, store):
    @tool
    def note(key: str) -> str:
        """Note something."""
        get_store().put(NAMESPACE, key, {"is": "noted"})
        return key

    def rule(messages):
        if messages[-1].type == "tool":
            return AIMessage("done")
        return calls(*(call("note", f"c{n}", key=f"k{n}") for n in range(4)))

    agent = begun(repo, store, tool_node_graph(ScriptedModel(rule=rule), [note]))
    agent.invoke(said("go"))
    assert set(contents(store)) == {"k0", "k1", "k2", "k3"}
    assert sum(one.tool_name == "memory.put" for one in agent.tool_track()) == 4
    agent.rollback("before")
    assert contents(store) == {}


def test_the_tasks_of_a_functional_graph_write(repo, store):
    @task
    def note(word):
        get_store().put(NAMESPACE, "food", {"is": word})
        return word

    @entrypoint(store=store)
    def work(word):
        return note(word).result()

    agent = repo.wrap(work, "a")
    agent.invoke("pizza")
    before = agent.checkpoint("before")
    agent.invoke("pasta")
    agent.rollback(before)
    assert contents(store) == {"food": "pizza"}


def test_a_repeated_node_writes_again_with_the_true_value_before(repo, store):
    attempts = []

    def node(state):
        get_store().put(NAMESPACE, "food", {"is": f"attempt {len(attempts)}"})
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError("once")

    store.put(NAMESPACE, "food", {"is": "old"})
    agent = begun(repo, store, node)
    with pytest.raises(ValueError, match="once"):
        agent.invoke(said("go"))
    agent.invoke(None)
    assert [one.args["before"]["is"] for one in agent.tool_track()] == ["old", "attempt 0"]
    agent.rollback("before")
    assert contents(store) == {"food": "old"}


def test_a_node_that_asks_a_person_writes_again_when_it_is_answered(repo, store):
    def node(state):
        get_store().put(NAMESPACE, "asked", {"is": "yes"})
        get_store().put(NAMESPACE, "answer", {"is": interrupt("food?")})

    agent = begun(repo, store, node)
    agent.invoke(said("go"))
    agent.invoke(Command(resume="pizza"))
    assert contents(store) == {"asked": "yes", "answer": "pizza"}
    agent.rollback("before")
    assert contents(store) == {}


def test_a_write_is_recorded_in_the_turn_that_makes_it(repo, store):
    """With an agent inside an unwrapped graph, or a plain graph inside an agent, each turn has its writes."""
    inner = repo.wrap(noting(store), "inner")

    def call_agent(state):
        get_store().put(NAMESPACE, "outside", {"is": "x"})
        inner.invoke(said("+food=pizza"))
        get_store().put(NAMESPACE, "outside", {"is": "y"})

    noting(store, call_agent).invoke(said("go"))
    assert [one.args["key"] for one in inner.tool_track()] == ["food"]

    def call_graph(state):
        get_store().put(NAMESPACE, "city", {"is": "Rome"})
        noting(get_store()).invoke(said("+pet=cat"))
        get_store().put(NAMESPACE, "city", {"is": "Oslo"})

    outer = begun(repo, store, call_graph)
    outer.invoke(said("go"))
    assert [one.args["key"] for one in outer.tool_track()] == ["city", "pet", "city"]
    outer.rollback("before")
    assert contents(store) == {"outside": "y", "food": "pizza"}


def test_a_deletion_from_memory_backs_up_no_file(repo, store, tmp_path):
    """`memory.delete` is no tool that deletes files, so nothing of the workspace is put on its undo stack."""
    (tmp_path / "report.txt").write_text("June")
    agent = repo.wrap(noting(store), "a", workspace=tmp_path)
    agent.invoke(said("+food=pizza -food"))
    assert [call.tool_name for call in agent.tool_track()] == ["memory.put", "memory.delete"]
    assert Workspace(tmp_path).undo_stack.depth == 0


# -- writes that fail


def test_an_error_of_the_store_is_the_stores(repo, store):
    agent = begun(repo, store, lambda state: get_store().put(("langgraph",), "food", {"is": "pizza"}))
    with pytest.raises(ValueError, match="langgraph"):
        agent.invoke(said("go"))
    assert [one.status for one in agent.session.tool_track()] == ["failed"]


@pytest.mark.parametrize("node", [act, aact])
async def test_a_write_that_raised_is_looked_up(repo, node):
    """One that was made before it raised is found done, and undone; one that was not made has failed."""

    class Lost(InMemoryStore):
        def put(self, namespace, key, *args, **options):
            if key == "food":
                super().put(namespace, key, *args, **options)
            raise ConnectionError("lost")

        async def aput(self, *args, **options):
            self.put(*args, **options)

    store = Lost()
    agent = await asyncio.to_thread(begun, repo, store, node)
    for text in ("+food=pizza", "+pet=cat"):
        with pytest.raises(ConnectionError):
            await agent.ainvoke(said(text))
    assert [one.status for one in agent.tool_track()] == ["done", "failed"]
    await agent.arollback("before")
    assert contents(store) == {}


# -- threads and event loops


def test_sessions_that_write_one_item_at_once_record_a_chain(repo, store):
    agents = [repo.wrap(noting(store), f"s{n}") for n in range(4)]
    texts = [" ".join(f"+food={n}-{i}" for i in range(5)) for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda agent, text: agent.invoke(said(text)), agents, texts))
    assert_chain([one.args for agent in agents for one in agent.tool_track()], contents(store)["food"])


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
async def async_store(request, tmp_path):
    """Open a store that works on the event loop of the test."""
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "memory.db")) as opened_store:
            await opened_store.setup()
            yield opened_store
    else:
        with store_schema(request.getfixturevalue("postgres_url")) as url:
            async with AsyncPostgresStore.from_conn_string(url) as opened_store:
                await opened_store.setup()
                yield opened_store


async def acontents(store):
    return {item.key: item.value["is"] for item in await store.asearch(NAMESPACE)}


async def test_async_turns_record_and_async_rollbacks_and_switches_undo(repo, async_store):
    """A blocking rollback on the loop of a store that cannot be read there hangs not, and says so."""
    agent = await asyncio.to_thread(repo.wrap, noting(async_store, aact), "a")
    await agent.ainvoke(said("+food=pizza tool:+pet=cat"))
    before = await agent.acheckpoint("before")
    await agent.ainvoke(said("+food=pasta -pet"))
    assert await acontents(async_store) == {"food": "pasta"}
    if not isinstance(async_store, InMemoryStore):
        with pytest.raises(RollbackBlocked, match="its store cannot be read"):
            agent.rollback(before)
    retry = await agent.arollback(before)
    assert await acontents(async_store) == {"food": "pizza", "pet": "cat"}
    await retry.aswitch("main", sync="world")
    assert await acontents(async_store) == {"food": "pasta"}


async def test_a_sync_write_does_not_wait_for_an_async_write_of_the_same_item_on_its_loop(repo):
    class SlowStore(InMemoryStore):
        async def aput(self, *args, **options):
            writing.set()
            await asyncio.sleep(0.05)
            self.put(*args, **options)

    async def slow(state):
        await get_store().aput(NAMESPACE, "food", {"is": "pizza"})

    async def quick(state):
        await writing.wait()
        get_store().put(NAMESPACE, "food", {"is": "pasta"})

    writing, store = asyncio.Event(), SlowStore()
    graph = StateGraph(MessagesState).add_node("slow", slow).add_node("quick", quick)
    graph = graph.add_edge(START, "slow").add_edge(START, "quick").compile(store=store)
    agent = await repo.awrap(graph, "a")
    await asyncio.wait_for(agent.ainvoke(said("go")), 20)
    assert sorted(call.args["value"]["is"] for call in await agent.atool_track()) == ["pasta", "pizza"]


# -- cancelled turns


async def cancelled(agent, has_begun):
    """Begin a turn, and cancel it as soon as it has begun to write."""
    turn = asyncio.ensure_future(agent.ainvoke(said("+food=pizza")))
    await asyncio.to_thread(has_begun.wait, 20)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn


@pytest.mark.parametrize("node", [act, aact], ids=["in a thread", "on the loop"])
async def test_a_rollback_waits_for_a_cancelled_write_and_undoes_it(repo, node):
    entered, may_write = threading.Event(), threading.Event()

    class Slow(InMemoryStore):
        def put(self, *args, **options):
            entered.set()
            may_write.wait(20)
            super().put(*args, **options)

        async def abatch(self, ops):
            ops = list(ops)
            if any(isinstance(op, PutOp) for op in ops):
                entered.set()
                await asyncio.to_thread(may_write.wait, 20)
            return await super().abatch(ops)

    store = Slow()
    agent = await asyncio.to_thread(begun, repo, store, node)
    await cancelled(agent, entered)
    rollback = asyncio.ensure_future(agent.arollback("before"))
    await asyncio.sleep(0.2)
    assert not rollback.done()
    may_write.set()
    retry = await asyncio.wait_for(rollback, 20)
    assert reasons(retry.report.reversed) == {"food": "the item is deleted again"}
    assert ([one.status for one in agent.tool_track()], contents(store)) == (["reversed"], {})


@pytest.mark.parametrize("is_followed", [False, True])
async def test_a_thread_of_a_cancelled_turn_writes_no_more(repo, store, is_followed):
    """A write that begins after its turn was cancelled is refused, also while another turn of the agent runs."""
    entered, may_write, has_tried, errors = threading.Event(), threading.Event(), threading.Event(), []

    def act(state):
        if state["messages"][-1].content == "follow":
            may_write.set()
            has_tried.wait(20)
            return
        entered.set()
        may_write.wait(20)
        try:
            get_store().put(NAMESPACE, "food", {"is": "pizza"})
        except agentgit.Conflict as error:
            errors.append(error)
        has_tried.set()

    agent = await asyncio.to_thread(begun, repo, store, act)
    await cancelled(agent, entered)
    if is_followed:
        await agent.ainvoke(said("follow"))
    else:
        agent = await agent.arollback("before")
        may_write.set()
        await asyncio.to_thread(has_tried.wait, 20)
    assert (len(errors), contents(store), agent.tool_track()) == (1, {}, [])
