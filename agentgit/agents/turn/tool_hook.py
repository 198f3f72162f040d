"""Every call of a LangChain tool, however it is made, on its way to the recorder of the turn that it is made in.

`BaseTool.run` and `arun` are wrapped once in a process. Where no turn of ours is in force, they do what they did. In a
turn the call is made with a copy of the tool: it asks the interceptor for an answer before it runs, and tells the
recorder what it really returned, before LangChain makes the text of a message of that. The tool stays as it was.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables.config import var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.utils.uuid import uuid7

from agentgit.agents.turn.interrupts import passed_on
from agentgit.agents.turn.recorder import Recorder
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS

_POSITIONAL = ("verbose", "start_color", "color", "callbacks")
"""The parameters of `run` that may be passed by position after its input."""

_wrapping = threading.Lock()
_WRAPPED = "__agentgit_wrapped__"


class _Made(NamedTuple):
    """A call as it is made in a turn.

    Args:
        recorder: The recorder of the turn.
        run_id: The run of the tool.
        options: The arguments of `run` besides its input.
    """

    recorder: Recorder
    run_id: UUID
    options: dict[str, Any]


def intercept() -> None:
    """Wrap the two methods by which every tool is called, unless that is done."""
    with _wrapping:
        if not hasattr(BaseTool.run, _WRAPPED):
            for name, wrapped in (("run", _run(BaseTool.run)), ("arun", _arun(BaseTool.arun))):
                setattr(wrapped, _WRAPPED, True)
                setattr(BaseTool, name, wrapped)


def _run(plain: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(plain)
    def run(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        made = _made(self, args, options)
        if made is None:
            return plain(self, tool_input, *args, **options)
        made.recorder.saved(made.run_id)
        return plain(_gated(self, made.recorder, made.run_id), tool_input, **made.options)

    return run


def _arun(plain: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(plain)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        made = _made(self, args, options)
        if made is None:
            return await plain(self, tool_input, *args, **options)
        await made.recorder.asaved(made.run_id)
        return await plain(_gated(self, made.recorder, made.run_id), tool_input, **made.options)

    return arun


def _made(tool: BaseTool, args: tuple[Any, ...], options: dict[str, Any]) -> _Made | None:
    """Find the turn that a call is made in, and let its recorder expect it; None if there is none."""
    callbacks = options.get("callbacks") if len(args) < len(_POSITIONAL) else args[-1]
    around: Mapping[str, Any] = var_child_runnable_config.get() or {}
    recorder, manager = _recorder(callbacks), callbacks
    if recorder is None:
        manager = around.get("callbacks")
        recorder = _recorder(manager)
        if recorder is None:
            return None
        callbacks = _joined(callbacks, recorder)
    options = {**dict(zip(_POSITIONAL, args, strict=False)), **options, "callbacks": callbacks}
    options["run_id"] = run_id = options.get("run_id") or uuid7()
    conf = (options.get("config") or {}).get("configurable", {})
    conf = conf if CONFIG_KEY_CHECKPOINT_NS in conf else around.get("configurable", {})
    parent = getattr(manager, "parent_run_id", None) or getattr(around.get("callbacks"), "parent_run_id", None)
    recorder.expect(run_id, tool, parent, conf)
    return _Made(recorder, run_id, options)


def _recorder(callbacks: Any) -> Recorder | None:
    handlers: Iterable[Any] = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    return next((one for one in handlers if isinstance(one, Recorder)), None)


def _joined(callbacks: Any, recorder: Recorder) -> Any:
    """Add a recorder to the callbacks that a call was given in place of those around it."""
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(recorder, inherit=True)
        return manager
    return [*(callbacks or ()), recorder]


def clone_of(tool: BaseTool, run: Callable[..., Any], arun: Callable[..., Awaitable[Any]]) -> BaseTool:
    """Copy a tool, with other functions; the tool stays as it is.

    Args:
        tool: The tool.
        run: The function of the copy.
        arun: Its async function.
    """
    clone = copy.copy(tool)
    # On the instance, past pydantic: the class is the user's, or shared by all tools.
    object.__setattr__(clone, "_run", functools.wraps(tool._run)(run))
    object.__setattr__(clone, "_arun", functools.wraps(tool._arun)(arun))
    return clone


def telling(tool: BaseTool, tell: Callable[[Any], None]) -> BaseTool:
    """Copy a tool; the copy tells what it really returned, before a message is made of that.

    Args:
        tool: Stays as it is.
        tell: Gets each value.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        value = tool._run(*args, **kwargs)
        tell(value)
        return value

    async def arun(*args: Any, **kwargs: Any) -> Any:
        value = await tool._arun(*args, **kwargs)
        tell(value)
        return value

    return clone_of(tool, run, arun)


def _gated(tool: BaseTool, recorder: Recorder, run_id: UUID) -> BaseTool:
    """Copy a tool for one call; the copy asks for an answer before it runs, and tells what it returned if it did."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if (answer := recorder.answer(run_id)) is not None:
            return _as_returned(tool, answer.wait())
        with recorder.known(run_id):
            value = tool._run(*args, **passed_on(kwargs))
        recorder.returned(run_id, value)
        return value

    async def arun(*args: Any, **kwargs: Any) -> Any:
        if (answer := recorder.answer(run_id)) is not None:
            return _as_returned(tool, await answer.come())
        try:
            with recorder.known(run_id):
                value = await tool._arun(*args, **passed_on(kwargs))
        except asyncio.CancelledError as error:
            recorder.cancelled(run_id, error)
            raise
        recorder.returned(run_id, value)
        return value

    return clone_of(tool, run, arun)


def _as_returned(tool: BaseTool, value: Any) -> Any:
    """Return an answer in the form in which its tool returns; the record has lists where there were tuples."""
    return tuple(value) if tool.response_format == "content_and_artifact" and isinstance(value, list) else value
