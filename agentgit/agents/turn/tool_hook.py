"""A hook on every LangChain tool call, which connects the call to the recorder of its turn.

`BaseTool.run` and `arun` are wrapped once per process. Outside a turn they behave as before, unless a rerun runs. In a
turn, the call is made with a copy of the tool. Before the copy runs, the recorder's `on_tool_start` has asked the
interceptor. The copy returns the recorded answer, or runs the tool and passes its return value to the recorder, before
LangChain turns the value into the text of a message. The tool itself is not changed.
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
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langchain_core.tools import BaseTool
from langchain_core.utils.uuid import uuid7

from agentgit.agents.rerun_guard import require_outside_reruns
from agentgit.agents.turn.interrupts import with_own_view
from agentgit.agents.turn.recorder import Recorder
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS

_POSITIONAL = ("verbose", "start_color", "color", "callbacks")
"""The parameters of `run` after its input that may be passed by position."""

_wrap_lock = threading.Lock()
_WRAPPED = "__agentgit_wrapped__"


class _TurnCall(NamedTuple):
    """A tool call made in a turn."""

    recorder: Recorder
    run_id: UUID
    options: dict[str, Any]


def intercept() -> None:
    """Wrap the two methods that call a tool for the rest of the process, unless they are already wrapped."""
    with _wrap_lock:
        for name, wrap in (("run", _wrap_run), ("arun", _wrap_arun)):
            original = getattr(BaseTool, name)
            if not hasattr(original, _WRAPPED):
                wrapped = wrap(original)
                setattr(wrapped, _WRAPPED, True)
                setattr(BaseTool, name, wrapped)


def _wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        call = _register_call(self, args, options)
        if call is None:
            return original(self, tool_input, *args, **options)
        call.recorder.wait_for_saves(call.run_id)
        try:
            return original(_intercepted_copy(self, call.recorder, call.run_id), tool_input, **call.options)
        except BaseException as error:
            call.recorder.record_unreported(call.run_id, error)
            raise

    return run


def _wrap_arun(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        call = _register_call(self, args, options)
        if call is None:
            return await original(self, tool_input, *args, **options)
        if (type(self).run, type(self)._arun) == (BaseTool.run, BaseTool._arun):
            # In a thread of ours, so that the end of the tool is recorded if the call is cancelled.
            return await run_in_executor(None, self.run, tool_input, **call.options)
        await call.recorder.await_saves(call.run_id)
        try:
            return await original(_intercepted_copy(self, call.recorder, call.run_id), tool_input, **call.options)
        except Exception as error:  # a cancelled call is recorded by the end of its turn
            call.recorder.record_unreported(call.run_id, error)
            raise

    return arun


def _register_call(tool: BaseTool, args: tuple[Any, ...], options: dict[str, Any]) -> _TurnCall | None:
    """Register a call with the recorder of the turn that it is made in; return None outside a turn."""
    callbacks = options.get("callbacks") if len(args) < len(_POSITIONAL) else args[-1]
    outer_config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    recorder, manager = _find_recorder(callbacks), callbacks
    if recorder is None:
        manager = outer_config.get("callbacks")
        recorder = _find_recorder(manager)
        if recorder is None:
            require_outside_reruns(tool.name)
            return None
        callbacks = _add_recorder(callbacks, recorder)
    options = {**dict(zip(_POSITIONAL, args, strict=False)), **options, "callbacks": callbacks}
    options["run_id"] = run_id = options.get("run_id") or uuid7()
    configurable = (options.get("config") or {}).get("configurable", {})
    configurable = configurable if CONFIG_KEY_CHECKPOINT_NS in configurable else outer_config.get("configurable", {})
    parent_run_id = getattr(manager, "parent_run_id", None) or getattr(
        outer_config.get("callbacks"), "parent_run_id", None
    )
    recorder.register_call(run_id, tool, parent_run_id, configurable)
    return _TurnCall(recorder, run_id, options)


def _find_recorder(callbacks: Any) -> Recorder | None:
    handlers: Iterable[Any] = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    return next((handler for handler in handlers if isinstance(handler, Recorder)), None)


def _add_recorder(callbacks: Any, recorder: Recorder) -> Any:
    """Add a recorder to callbacks that a call was given in place of the surrounding ones."""
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(recorder, inherit=True)
        return manager
    return [*(callbacks or ()), recorder]


def clone_of(tool: BaseTool, run: Callable[..., Any], arun: Callable[..., Awaitable[Any]]) -> BaseTool:
    """Copy a tool with other functions; the original is not changed."""
    clone = copy.copy(tool)
    # Set on the instance, bypassing pydantic: the class belongs to the user or is shared by all tools.
    object.__setattr__(clone, "_run", functools.wraps(tool._run)(run))
    object.__setattr__(clone, "_arun", functools.wraps(tool._arun)(arun))
    return clone


def reporting_copy(tool: BaseTool, report: Callable[[Any], None]) -> BaseTool:
    """Copy a tool so that the copy reports each return value before it is turned into a message."""

    def run(*args: Any, **kwargs: Any) -> Any:
        value = tool._run(*args, **kwargs)
        report(value)
        return value

    async def arun(*args: Any, **kwargs: Any) -> Any:
        value = await tool._arun(*args, **kwargs)
        report(value)
        return value

    return clone_of(tool, run, arun)


def _intercepted_copy(tool: BaseTool, recorder: Recorder, run_id: UUID) -> BaseTool:
    """Copy a tool for one call; the copy returns an answer from the recorder, or else runs and reports its result."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if (answer := recorder.answer(run_id)) is not None:
            return _as_returned(tool, answer.wait())
        recorder.record_thread(run_id)
        with recorder.call_context(run_id):
            value = tool._run(*args, **with_own_view(kwargs))
        recorder.record_result(run_id, value)
        return value

    async def arun(*args: Any, **kwargs: Any) -> Any:
        if (answer := recorder.answer(run_id)) is not None:
            return _as_returned(tool, await answer.await_result())
        try:
            with recorder.call_context(run_id):
                value = await tool._arun(*args, **with_own_view(kwargs))
        except asyncio.CancelledError as error:
            recorder.record_cancellation(run_id, error)
            raise
        recorder.record_result(run_id, value)
        return value

    return clone_of(tool, run, arun)


def _as_returned(tool: BaseTool, value: Any) -> Any:
    """Return an answer in the form that the tool returns; the record has lists in place of tuples."""
    if tool.response_format != "content_and_artifact":
        return value
    return tuple(value) if isinstance(value, list | tuple) and len(value) == 2 else (value, None)
