"""Everything that agentgit takes from LangGraph's private modules, in one place.

LangGraph has no public way to tell which calls ran in one batch, to ask a question again on another branch, or to read
and write a channel outside of a run. Nothing else in the package imports a private name of LangGraph; a test checks
each of these names against what the package relies on, and names the one that moved.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from langgraph.prebuilt import ToolNode

from agentgit.errors import Unavailable

__all__ = [
    "CONFIG_KEY_CACHE",
    "CONFIG_KEY_CHECKPOINT_MAP",
    "CONFIG_KEY_CHECKPOINT_NS",
    "CONFIG_KEY_DURABILITY",
    "CONFIG_KEY_SCRATCHPAD",
    "CONFIG_KEY_SEND",
    "CONFIG_KEY_TASK_ID",
    "CONFIG_KEY_THREAD_ID",
    "PUSH",
    "SAFE_MSGPACK_TYPES",
    "ChannelWrite",
    "ChannelWriteTupleEntry",
    "DeltaSnapshot",
    "PregelNode",
    "PregelScratchpad",
    "channels_from_checkpoint",
    "get_function_nonlocals",
    "messages_delta_reducer",
    "recast_checkpoint_ns",
    "tool_node_functions",
    "wrap_each_call",
]

READ = "1.2.22"
"""The version of LangGraph that was read last."""

try:
    from langgraph._internal import _config, _constants, _scratchpad
    from langgraph.checkpoint.serde import _msgpack
    from langgraph.checkpoint.serde.types import _DeltaSnapshot as DeltaSnapshot
    from langgraph.graph.message import _messages_delta_reducer as messages_delta_reducer
    from langgraph.pregel import _checkpoint, _read, _utils, _write

    # What a running task finds under config["configurable"].
    CONFIG_KEY_CACHE = _constants.CONFIG_KEY_CACHE
    CONFIG_KEY_CHECKPOINT_MAP = _constants.CONFIG_KEY_CHECKPOINT_MAP
    CONFIG_KEY_CHECKPOINT_NS = _constants.CONFIG_KEY_CHECKPOINT_NS
    CONFIG_KEY_DURABILITY = _constants.CONFIG_KEY_DURABILITY
    CONFIG_KEY_SCRATCHPAD = _constants.CONFIG_KEY_SCRATCHPAD
    CONFIG_KEY_SEND = _constants.CONFIG_KEY_SEND
    CONFIG_KEY_TASK_ID = _constants.CONFIG_KEY_TASK_ID
    CONFIG_KEY_THREAD_ID = _constants.CONFIG_KEY_THREAD_ID
    PUSH = _constants.PUSH
    """The first part of the path of a task that was sent, and not triggered by a channel."""

    PregelScratchpad = _scratchpad.PregelScratchpad
    """The questions of a task, and the answers that it has."""

    # Nodes and what they write, outside of a builder.
    ChannelWrite = _write.ChannelWrite
    ChannelWriteTupleEntry = _write.ChannelWriteTupleEntry
    PregelNode = _read.PregelNode
    channels_from_checkpoint = _checkpoint.channels_from_checkpoint
    get_function_nonlocals = _utils.get_function_nonlocals
    recast_checkpoint_ns = _config.recast_checkpoint_ns

    SAFE_MSGPACK_TYPES = _msgpack.SAFE_MSGPACK_TYPES
    """The types that the serializer rebuilds without being told."""
except (ImportError, AttributeError) as error:
    raise Unavailable(
        f"LangGraph {version('langgraph')} has moved what agentgit needs ({error}); this release is for {READ}. "
        f'Run: pip install --upgrade agentgit, or pip install "langgraph=={READ}"'
    ) from error


def tool_node_functions(node: ToolNode) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Return what a ToolNode runs for a batch of calls, and its async twin."""
    return node._func, node._afunc


def wrap_each_call(node: ToolNode, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace what an async ToolNode runs for each call of a batch.

    Args:
        node: The node to change.
        wrap: Given the function that runs one call, returns the one to run in its place.
    """
    object.__setattr__(node, "_arun_one", wrap(node._arun_one))
