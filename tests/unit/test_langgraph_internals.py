"""The private names of LangGraph that agentgit uses exist and behave as agentgit expects.

If LangGraph moves a name, the failing test shows it with the installed version and the last checked version.
"""

import asyncio
import inspect
import re
import subprocess
import sys
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path

import ormsgpack
import pytest
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.channels import LastValue
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.store.base.batch import AsyncBatchedBaseStore
from langgraph.store.memory import InMemoryStore

import agentgit
from agentgit import langgraph_internals as internals

MOVED = f"LangGraph {version('langgraph')} has moved {{}}; agentgit was made with {internals.CHECKED_VERSION}"

KEYS = {
    "CONFIG_KEY_CACHE": "__pregel_cache", "CONFIG_KEY_CHECKPOINT_MAP": "checkpoint_map",
    "CONFIG_KEY_CHECKPOINT_NS": "checkpoint_ns", "CONFIG_KEY_DURABILITY": "__pregel_durability",
    "CONFIG_KEY_RESUMING": "__pregel_resuming", "CONFIG_KEY_RUNTIME": "__pregel_runtime",
    "CONFIG_KEY_SCRATCHPAD": "__pregel_scratchpad", "CONFIG_KEY_SEND": "__pregel_send",
    "CONFIG_KEY_TASK_ID": "__pregel_task_id", "CONFIG_KEY_THREAD_ID": "thread_id", "PUSH": "__pregel_push",
}  # fmt: skip


def test_the_config_keys_of_langgraph_have_their_known_names():
    """Stored threads and running tasks are read by these names, which are recognized as no keys of a user."""
    assert {name: getattr(internals, name) for name in KEYS} == KEYS, MOVED.format("a key")
    keys = {name: getattr(internals, f"CONFIG_KEY_{name}") for name in ("SCRATCHPAD", "SEND", "TASK_ID", "THREAD_ID")}
    assert [name for name, key in keys.items() if internals.is_internal_key(key)] == ["SCRATCHPAD", "SEND", "TASK_ID"]
    assert not internals.is_internal_key(7)


def test_a_running_task_has_the_expected_config_entries():
    found = {}

    def node(state, config):
        found.update(config["configurable"])
        return {"n": 1}

    graph = StateGraph(dict).add_node("node", node).add_edge(START, "node").compile(InMemorySaver())
    graph.invoke({"n": 0}, {"configurable": {"thread_id": "t"}}, durability="exit")
    wanted = ("SCRATCHPAD", "SEND", "TASK_ID", "THREAD_ID", "CHECKPOINT_NS", "CHECKPOINT_MAP", "DURABILITY")
    for name in wanted:
        key = getattr(internals, f"CONFIG_KEY_{name}")
        assert key in found, MOVED.format(f"config['configurable']['{key}']")
    pad = found[internals.CONFIG_KEY_SCRATCHPAD]
    assert isinstance(pad, internals.PregelScratchpad), MOVED.format("PregelScratchpad")
    for name in ("resume", "get_null_resume", "interrupt_counter"):
        assert hasattr(pad, name), MOVED.format(f"PregelScratchpad.{name}")


def test_helpers_of_langgraph_do_what_agentgit_expects():
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"]["n"] = 7
    channels, _ = internals.channels_from_checkpoint({"n": LastValue(int, "n")}, checkpoint)
    assert channels["n"].get() == 7, MOVED.format("channels_from_checkpoint")
    first = internals.RunnableCallable(lambda value, config: value + config["configurable"]["more"], trace=False)
    assert first.invoke(1, {"configurable": {"more": 2}}) == 3, MOVED.format("RunnableCallable")
    assert internals.recast_checkpoint_ns("a:1|b:2") == "a|b", MOVED.format("recast_checkpoint_ns")
    path = ("__pregel_push", ("__pregel_pull", "flow"), 2, True)  # LangGraph stores it as a text
    assert internals.task_path_str(path) == "~__pregel_push, ~__pregel_pull, flow, 0000000002, 0000000001"
    assert internals.DeltaSnapshot([1]).value == [1], MOVED.format("_DeltaSnapshot")
    one, two = HumanMessage("a", id="1"), HumanMessage("b", id="2")
    assert internals.messages_delta_reducer([one], [[two]]) == [one, two], MOVED.format("_messages_delta_reducer")
    assert ("datetime", "datetime") in internals.SAFE_MSGPACK_TYPES, MOVED.format("SAFE_MSGPACK_TYPES")
    packed = ormsgpack.packb(internals.msgpack_default(Decimal("1.5")))
    found = ormsgpack.unpackb(packed, ext_hook=lambda code, data: ormsgpack.unpackb(data))
    assert found == ["decimal", "Decimal", "1.5"], MOVED.format("_msgpack_default")


def test_a_separate_pregel_node_writes_a_mapping_to_the_channels():
    write = internals.ChannelWrite([internals.ChannelWriteTupleEntry(mapper=lambda v: list(v.items()))])
    node = internals.PregelNode(channels=[], triggers=[], writers=[write])

    class State(dict):
        n: int

    plain = StateGraph(State).add_node("node", lambda _: {}).add_edge(START, "node").compile(InMemorySaver())
    graph = plain.copy({"nodes": {**plain.nodes, "writer": node}})
    config = {"configurable": {"thread_id": "t"}}
    graph.update_state(config, {"n": 3}, "writer")
    assert graph.get_state(config).values == {"n": 3}, MOVED.format("PregelNode or ChannelWrite")


async def test_a_tool_node_runs_its_calls_through_the_wrapped_functions():
    """A ToolNode runs a batch through `_func` or `_afunc`, and each async call through `_arun_one`."""

    @tool
    def double(n: int) -> int:
        """Double."""
        return 2 * n

    node, seen = ToolNode([double]), []
    run, arun = internals.tool_node_functions(node)
    for function in (run, arun):
        names = list(inspect.signature(function).parameters)
        assert names[:2] == ["input", "config"], MOVED.format(f"ToolNode.{function.__name__}")

    def noted(run_one):
        async def one(*args, **kwargs):
            seen.append(1)
            return await run_one(*args, **kwargs)

        return one

    internals.wrap_each_call(node, noted)
    calls = [{"name": "double", "args": {"n": n}, "id": str(n), "type": "tool_call"} for n in (1, 2)]
    graph = StateGraph(list).add_node("tools", node).add_edge(START, "tools").compile()
    await graph.ainvoke(calls)
    assert seen == [1, 1], MOVED.format("ToolNode._arun_one")


def test_a_sqlite_saver_has_the_attribute_that_selects_its_columns():
    """`SqliteSaver` reads the column `task_path` unless the attribute that `set_task_path_column` sets is False."""
    saver = SqliteSaver.__new__(SqliteSaver)  # without a connection
    assert saver._has_task_path is True, MOVED.format("SqliteSaver._has_task_path")
    internals.set_task_path_column(saver, exists=False)
    assert "self._has_task_path" in inspect.getsource(SqliteSaver.get_tuple), MOVED.format("SqliteSaver._has_task_path")
    assert saver._has_task_path is False


async def test_an_async_store_has_the_loop_on_which_it_works():
    """A rollback finds out whether the event loop of a store still runs; a store without a loop has none."""

    class Store(AsyncBatchedBaseStore):
        async def abatch(self, ops):
            return [None for _ in ops]

    loop = internals.loop_of_store(Store())
    assert loop is asyncio.get_running_loop(), MOVED.format("AsyncBatchedBaseStore._loop")
    assert internals.loop_of_store(InMemoryStore()) is None


def test_no_other_module_uses_a_private_name_of_langgraph():
    private = re.compile(
        r"^\s*(?:from|import) langgraph[\w.]*(?:\._\w+| import .*\b_[a-z])|__pregel|_has_task_path|_arun_one|_afunc",
        re.M,
    )
    package = Path(agentgit.__file__).parent
    found = {path.name for path in package.rglob("*.py") if private.search(path.read_text())}
    assert found == {"langgraph_internals.py"}


@pytest.mark.long
def test_a_missing_langgraph_internal_raises_unavailable():
    code = (
        "import langgraph.prebuilt; from langgraph._internal import _config; del _config.recast_checkpoint_ns; "
        "import agentgit.langgraph_internals"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    said = done.stderr.splitlines()[-1]
    assert "Unavailable" in said
    assert version("langgraph") in said
    assert "recast_checkpoint_ns" in said
    assert "pip install" in said
