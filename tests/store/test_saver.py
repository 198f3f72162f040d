"""The saver under real graphs keeps the promises of a LangGraph checkpointer and those of agentgit."""

import asyncio
import operator
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, TypedDict

import backend
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt
from processes import PATHS
from saver_checkpoints import BLOB, Cart, count, on, put, total, values, work_in_next_put
from sqlalchemy import select

from agentgit import SQLModelSaver
from agentgit.errors import Conflict, InvalidInput, SchemaMismatch
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads import graph_store


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def tool_agent(saver):
    def model(state):
        last = state["messages"][-1]
        if isinstance(last, ToolMessage):
            return {"messages": [AIMessage(f"it is {last.content}")]}
        call = {"name": "add", "args": {"a": 1, "b": len(state["messages"])}, "id": f"c{len(state['messages'])}"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    builder = StateGraph(MessagesState).add_node("model", model).add_node("tools", ToolNode([add]))
    builder.add_edge(START, "model").add_conditional_edges("model", tools_condition).add_edge("tools", "model")
    return builder.compile(checkpointer=saver)


def texts(result):
    return [message.content for message in result["messages"]]


# -- the conformance suite


async def test_the_saver_passes_the_conformance_suite(database):
    @checkpointer_test(name="SQLModelSaver")
    async def make():
        yield SQLModelSaver(database)

    report = await validate(make)
    assert {name: result.failures for name, result in report.results.items() if not result.passed} == {}
    assert set(report.results) == {capability.value for capability in Capability}
    ran = {name: (result.tests_passed > 0, result.tests_skipped) for name, result in report.results.items()}
    assert ran == dict.fromkeys(report.results, (True, 0))


# -- graphs


async def test_one_saver_serves_sync_and_async_methods(saver):
    graph = tool_agent(saver)
    await graph.ainvoke({"messages": [("user", "one")]}, on("t"))
    await asyncio.to_thread(graph.invoke, {"messages": [("user", "two")]}, on("t"))
    state = await graph.aget_state(on("t"))
    assert state.values == graph.get_state(on("t")).values
    history = [snapshot.config async for snapshot in graph.aget_state_history(on("t"))]
    assert history == [snapshot.config for snapshot in graph.get_state_history(on("t"))]


def test_an_interrupt_is_answered_through_a_second_saver(saver):
    builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [("ai", interrupt("ok?"))]})
    builder.add_edge(START, "ask")
    builder.compile(checkpointer=saver).invoke({"messages": [("user", "do it")]}, on("t"))
    graph = builder.compile(checkpointer=SQLModelSaver(saver.database))
    assert [i.value for i in graph.get_state(on("t")).interrupts] == ["ok?"]
    assert texts(graph.invoke(Command(resume="yes"), on("t"))) == ["do it", "yes"]


def test_an_earlier_checkpoint_and_an_edited_one_are_continued(saver):
    graph = tool_agent(saver)
    graph.invoke({"messages": [("user", "one")]}, on("t"))
    early = graph.get_state(on("t")).config
    graph.update_state(on("t"), {"messages": [("ai", "edited")]})
    found = graph.invoke({"messages": [("user", "two")]}, on("t"))
    assert texts(found) == ["one", "", "2", "it is 2", "edited", "two", "", "7", "it is 7"]
    late = graph.get_state(on("t"))
    found = graph.invoke({"messages": [("user", "other")]}, early)
    assert texts(found)[4] == texts(graph.get_state(on("t")).values)[4] == "other"
    assert graph.get_state(late.config).values == late.values


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_second_saver_continues_a_thread_in_every_durability_mode(saver, durability):
    for text in ("one", "two"):
        graph = tool_agent(SQLModelSaver(saver.database))
        found = graph.invoke({"messages": [("user", text)]}, on("t"), durability=durability)
    assert texts(found) == ["one", "", "2", "it is 2", "two", "", "6", "it is 6"]
    assert graph.get_state(on("t")).values == found


def test_the_functional_api_remembers_the_previous_turn(saver):
    @entrypoint(checkpointer=saver)
    def talk(text, *, previous=None):
        messages = [*(previous or {"messages": []})["messages"], HumanMessage(text)]
        return entrypoint.final(value=len(messages), save={"messages": messages, "mood": "fine"})

    assert [talk.invoke(text, on("t")) for text in "abc"] == [1, 2, 3]
    with saver.database.reading() as transaction:
        head = saver.store.newest(transaction, "t")
        state, messages = saver.store.read_state(transaction, "t", head.key.checkpoint_id)
        last = saver.store.messages(transaction, head, last=1)
    assert head.message_count == 3
    assert state == {"__previous__": {"mood": "fine"}}
    assert [message["data"]["content"] for message in messages] == ["a", "b", "c"]
    assert [message["data"]["content"] for message in last] == ["c"]


class Shop(TypedDict):
    """A state that holds a dataclass."""

    cart: Cart
    log: Annotated[list[str], operator.add]


def test_a_second_saver_restores_the_types_of_the_graph(saver):
    builder = StateGraph(Shop).add_node("buy", lambda state: {"cart": Cart(["chair"]), "log": ["bought"]})
    builder.add_edge(START, "buy").compile(checkpointer=saver).invoke({"log": []}, on("t"))
    graph = builder.compile(checkpointer=SQLModelSaver(saver.database))
    assert graph.get_state(on("t")).values == {"cart": Cart(["chair"]), "log": ["bought"]}


RESTARTED = """
import sys
from langgraph.graph import START, StateGraph
from agentgit import SQLModelSaver
from saver_checkpoints import Cart, on
from test_saver import Shop
builder = StateGraph(Shop).add_node("buy", lambda state: {"cart": Cart(["chair", "sofa"]), "log": ["again"]})
builder.add_edge(START, "buy")
with SQLModelSaver.from_conn_string(sys.argv[1]) as saver:
    print(saver.get_tuple(on("t")).checkpoint["channel_values"]["cart"])
    if sys.argv[2:]:
        saver = SQLModelSaver(saver.database, types=[Shop])
    graph = builder.compile(checkpointer=saver)
    print(graph.get_state(on("t")).values)
    print(graph.invoke({"log": []}, on("t")))
"""


@pytest.mark.long
@pytest.mark.parametrize(("strict", "types"), [("true", []), ("false", ["types"])])
def test_types_of_the_graph_survive_a_restart(saver, strict, types):
    """The saver learns them from LangGraph when it compiles a graph in strict mode, or from `types`, and not before."""
    builder = StateGraph(Shop).add_node("buy", lambda state: {"cart": Cart(["chair"]), "log": ["bought"]})
    graph = builder.add_edge(START, "buy").compile(checkpointer=saver)
    graph.invoke({"log": []}, on("t"))
    done = subprocess.run(  # noqa: S603  # our own code
        [sys.executable, "-c", RESTARTED, backend.address(saver.database), *types],
        env={**os.environ, "LANGGRAPH_STRICT_MSGPACK": strict, "PYTHONPATH": os.pathsep.join(PATHS)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "{'items': ['chair']}",
        "{'cart': Cart(items=['chair']), 'log': ['bought']}",
        "{'cart': Cart(items=['chair', 'sofa']), 'log': ['bought', 'again']}",
    ], done.stderr
    assert graph.get_state(on("t")).values["cart"] == Cart(["chair", "sofa"])


@pytest.mark.long
async def test_the_delta_history_equals_that_of_langgraph(saver):
    class Log(TypedDict):
        log: Annotated[list, DeltaChannel(total, snapshot_frequency=100)]
        other: Annotated[list, DeltaChannel(total, snapshot_frequency=3)]

    builder = StateGraph(Log).add_node("n", lambda state: {"log": [f"n{len(state['log'])}"], "other": ["x"]})
    graph = builder.add_edge(START, "n").compile(checkpointer=saver)
    for turn in range(30):
        graph.invoke({"log": [f"in{turn}"]}, on("t"))
    names = ["log", "other", "missing"]
    for config in (on("t"), graph.get_state(on("t")).parent_config, on("nothing")):
        expected = BaseCheckpointSaver.get_delta_channel_history(saver, config=config, channels=names)
        assert saver.get_delta_channel_history(config=config, channels=names) == expected
        assert await saver.aget_delta_channel_history(config=config, channels=names) == expected
    assert len(saver.get_delta_channel_history(config=on("t"), channels=["log"])["log"]["writes"]) > 50


# -- safety


def test_a_failed_put_leaves_no_rows(saver):
    for refused in ({"values": {"a": 1, "b": object()}}, {"values": {}, "meta": {"odd": object()}}):
        with pytest.raises(InvalidInput, match="cannot be stored"):
            put(saver, "t", **refused)

    def fail(checkpoint_id, is_stored):
        raise RuntimeError("no")

    work_in_next_put(saver, fail)
    with pytest.raises(RuntimeError, match="no"):
        put(saver, "t", {"a": 1})
    assert [count(saver.database, table) for table in (GRAPH_CHECKPOINT, GRAPH_WRITE, BLOB)] == [0, 0, 0]


def test_an_incomplete_config_is_refused(saver):
    with pytest.raises(InvalidInput, match="thread"):
        saver.get_tuple({"configurable": {}})
    with pytest.raises(InvalidInput, match="checkpoint_id"):
        saver.put_writes(on("t"), [("a", 1)], "task")
    with pytest.raises(InvalidInput, match="keep_latest"):
        saver.prune(["t"], strategy="oldest")


def test_a_copy_over_an_existing_thread_is_refused(saver):
    for thread in ("a", "b"):
        put(saver, thread, {"name": thread})
    with pytest.raises(Conflict, match="already"):
        saver.copy_thread("a", "b")
    assert values(saver, on("b")) == {"name": "b"}


# -- the saver object


async def test_a_saver_works_with_and_without_a_context_manager(tmp_path):
    path = tmp_path / "agentgit.db"
    bare = SQLModelSaver.from_conn_string(f"sqlite:///{path}")
    put(bare, "t", {"a": 1})
    with SQLModelSaver(bare.database) as other:  # does not close a database that was passed to it
        assert values(other, on("t")) == values(bare, on("t")) == {"a": 1}
    assert values(bare, on("t")) == {"a": 1}
    bare.close()
    with SQLModelSaver.from_conn_string(path) as saver:
        assert values(saver, on("t")) == {"a": 1}
    async with SQLModelSaver.from_conn_string(str(path)) as saver:
        assert (await saver.aget_tuple(on("t"))).checkpoint["channel_values"] == {"a": 1}


@pytest.mark.long
def test_a_server_without_tables_names_the_upgrade_command(empty_server):
    with SQLModelSaver.from_conn_string(empty_server) as saver:
        with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
            saver.get_tuple(on("t"))
        saver.setup()
        put(saver, "t", {"a": 1})
        assert values(saver, on("t")) == {"a": 1}


def test_concurrent_threads_can_share_one_saver(saver):
    def work(n):
        config = on(f"t{n % 3}", checkpoint_ns="")
        for step in range(5):
            config = put(saver, f"t{n % 3}", {"messages": [HumanMessage(f"{n} {step}")]})
            saver.put_writes(config, [("a", step)], f"task{n}")
            assert saver.get_tuple(config) is not None

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(12)))
    for n in range(3):
        with saver.database.reading() as transaction:
            rows = select(GRAPH_CHECKPOINT.c.seq).where(GRAPH_CHECKPOINT.c.thread_id == f"t{n}")
            assert sorted(transaction.execute(rows).scalars()) == list(range(1, 21))


def test_an_overtaken_read_returns_the_writes_of_its_checkpoint(saver, monkeypatch):
    first = put(saver, "t", {"a": 1})
    saver.put_writes(first, [("a", "of the first")], "task-1")
    second = put(saver, "t", {"a": 2}, config=first)
    saver.put_writes(second, [("a", "of the second")], "task-2")
    asked = {**first["configurable"]}

    class Overtaken:
        def submit(self, transaction, space):
            return graph_store.ONE.submit(transaction, {**space, "checkpoint_id": asked["checkpoint_id"]})

    monkeypatch.setattr(graph_store, "NEWEST", Overtaken())
    read = saver.get_tuple(on("t"))
    assert read.config["configurable"]["checkpoint_id"] == asked["checkpoint_id"]
    assert [value for _, _, value in read.pending_writes] == ["of the first"]
