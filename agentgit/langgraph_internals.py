"""All private names of LangGraph that agentgit uses.

LangGraph has no public API to find out which calls ran in one batch, to ask a question again on another branch, or to
read and write a channel outside of a run. No other module of the package imports a private name of LangGraph. A test
checks that each of these names does what the package relies on, and names the one that has changed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from langgraph.prebuilt import ToolNode
from langgraph.store.base.batch import AsyncBatchedBaseStore

from agentgit.errors import Unavailable
from agentgit.next_steps import Next

__all__ = ["DeltaSnapshot"]  # the other names are assigned, so type checkers export them

CHECKED_VERSION = "1.2.22"
"""The version of LangGraph whose source was last checked for these names."""

try:
    from langgraph._internal import _config, _constants, _runnable, _scratchpad
    from langgraph.checkpoint.serde import _msgpack, jsonplus
    from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot
    from langgraph.graph import message
    from langgraph.pregel import _algo, _checkpoint, _read, _write

    # Keys of config["configurable"] in a running task.
    CONFIG_KEY_CACHE = _constants.CONFIG_KEY_CACHE
    CONFIG_KEYS_OF_HOSTS = frozenset(
        {
            _constants.CONFIG_KEY_STREAM_MESSAGES_V2,
            _constants.CONFIG_KEY_RUNTIME,
            _constants.CONFIG_KEY_NODE_FINISHED,
            _constants.CONFIG_KEY_NODE_ERROR,
        }
    )
    CONFIG_KEY_CHECKPOINT_MAP = _constants.CONFIG_KEY_CHECKPOINT_MAP
    CONFIG_KEY_CHECKPOINT_NS = _constants.CONFIG_KEY_CHECKPOINT_NS
    CONFIG_KEY_DURABILITY = _constants.CONFIG_KEY_DURABILITY
    CONFIG_KEY_RESUMING = _constants.CONFIG_KEY_RESUMING
    CONFIG_KEY_RUNTIME = _constants.CONFIG_KEY_RUNTIME
    """What a host, or the graph that calls this one, gives to the nodes: its store, for example."""

    CONFIG_KEY_SCRATCHPAD = _constants.CONFIG_KEY_SCRATCHPAD
    CONFIG_KEY_SEND = _constants.CONFIG_KEY_SEND
    CONFIG_KEY_STREAM_MESSAGES_V2 = _constants.CONFIG_KEY_STREAM_MESSAGES_V2
    """Set by version 3 of streams, so that models report their messages in its protocol."""

    CONFIG_KEY_TASK_ID = _constants.CONFIG_KEY_TASK_ID
    CONFIG_KEY_THREAD_ID = _constants.CONFIG_KEY_THREAD_ID
    PULL = _constants.PULL
    """The first element of the path of a task that a channel triggered."""

    TASKS = _constants.TASKS
    PUSH = _constants.PUSH
    """The first element of the path of a task that was created with `Send`, not triggered by a channel."""

    PregelScratchpad = _scratchpad.PregelScratchpad
    """The questions (interrupts) of a task, and the answers that it has received."""

    messages_delta_reducer = message._messages_delta_reducer

    # Nodes and their channel writes, outside of a graph builder.
    RunnableCallable = _runnable.RunnableCallable
    ChannelWrite = _write.ChannelWrite
    ChannelWriteTupleEntry = _write.ChannelWriteTupleEntry
    PregelNode = _read.PregelNode
    channels_from_checkpoint = _checkpoint.channels_from_checkpoint
    task_path_str = _algo.task_path_str
    recast_checkpoint_ns = _config.recast_checkpoint_ns

    msgpack_default = jsonplus._msgpack_default
    """What the serializer makes of a value that msgpack does not know."""

    SAFE_MSGPACK_TYPES = _msgpack.SAFE_MSGPACK_TYPES
    """The types that the serializer deserializes without explicit permission."""
except (ImportError, AttributeError) as error:
    raise Unavailable(
        f"LangGraph {version('langgraph')} has moved what agentgit needs ({error}); this release is for "
        f"{CHECKED_VERSION}.",
        Next("update"),
        Next("install", package=f"langgraph=={CHECKED_VERSION}"),
    ) from error


TURN = "__pregel_agentgit_turn"
"""The key under which the config of a run has the owner of its turn, a text, because tools may serialize their config.

It has LangGraph's prefix for what belongs to a run: streams and stored metadata leave such keys out.
"""


def is_internal_key(key: object) -> bool:
    """Return whether a key of config["configurable"] belongs to a running graph."""
    return isinstance(key, str) and key.startswith("__pregel_")


def loop_of_store(store: Any) -> asyncio.AbstractEventLoop | None:
    """Return the event loop on which an `AsyncBatchedBaseStore` works; None for any other store."""
    return store._loop if isinstance(store, AsyncBatchedBaseStore) else None


def set_task_path_column(saver: Any, *, exists: bool) -> None:
    """Set whether a `SqliteSaver` that has not run its `setup` finds the column `task_path` in its table of writes."""
    saver._has_task_path = exists


def tool_node_functions(node: ToolNode) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return the sync and the async function that a `ToolNode` runs for a batch of calls."""
    return node._func, node._afunc


def wrap_each_call(node: ToolNode, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the async function that a `ToolNode` runs for each call of a batch."""
    object.__setattr__(node, "_arun_one", wrap(node._arun_one))
