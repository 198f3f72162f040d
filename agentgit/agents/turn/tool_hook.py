"""A hook on every LangChain tool call, which opens the call in its turn.

`BaseTool.run` and `arun` are wrapped once per process. In a turn, a copy of the tool runs, whose function is entered
when the arguments are valid. It opens the call, and returns the recorded answer or the value that the tool returns.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.callbacks import BaseCallbackManager
from langchain_core.runnables.config import run_in_executor, var_child_runnable_config
from langchain_core.tools import BaseTool, StructuredTool, Tool
from langchain_core.utils.uuid import uuid7

from agentgit.agents.rerun_guard import require_outside_reruns
from agentgit.agents.tools.arguments import given_arguments, received_arguments
from agentgit.agents.tools.tool_caller import callers_again, clone_of
from agentgit.agents.tools.unowned_calls import note_unowned_call
from agentgit.agents.turn.calls import Call, current_calls
from agentgit.agents.turn.checkpoint_tracker import POLL_SECONDS
from agentgit.agents.turn.fence_errors import as_bubble_up, unrecorded_call_error
from agentgit.agents.turn.interrupts import with_own_view
from agentgit.agents.turn.recorder import Recorder, find_recorder
from agentgit.effects.kinds import UNDECLARED
from agentgit.effects.results import NothingDone
from agentgit.langgraph_internals import CONFIG_KEY_CHECKPOINT_NS

_POSITIONAL = ("verbose", "start_color", "color", "callbacks")
"""The parameters of `run` after its input that may be passed by position."""

_wrap_lock = threading.Lock()
_WRAPPED = "__agentgit_wrapped__"


def intercept() -> None:
    """Wrap the two methods that call a tool, unless they are already wrapped."""
    with _wrap_lock:
        if not hasattr(BaseTool.run, _WRAPPED):
            hooks: dict[str, Callable[[Any], Any]] = {"run": _wrap_run, "arun": _wrap_arun}
            for name, wrap in hooks.items():
                wrapped = wrap(getattr(BaseTool, name))
                setattr(wrapped, _WRAPPED, True)
                setattr(BaseTool, name, wrapped)


def _wrap_run(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def run(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        hooked = _hook(self, tool_input, args, options)
        if hooked is None:
            return original(self, tool_input, *args, **options)
        return _run_hooked(original, hooked, tool_input)

    return run


def _run_hooked(original: Callable[..., Any], hooked: _ToolRun, tool_input: Any) -> Any:
    try:
        output = original(hooked.copy(), tool_input, **hooked.options)
    except BaseException as error:
        hooked.end_raised(error)
        raise
    hooked.end(output)
    return output


def _wrap_arun(original: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    @functools.wraps(original)
    async def arun(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        hooked = _hook(self, tool_input, args, options)
        if hooked is None:
            return await original(self, tool_input, *args, **options)
        if _runs_in_thread(self):
            # In a thread of ours, so that the end of the tool is recorded if the call is cancelled.
            return await run_in_executor(None, _run_hooked, inspect.unwrap(BaseTool.run), hooked, tool_input)
        try:
            output = await original(hooked.copy(), tool_input, **hooked.options)
        except asyncio.CancelledError as error:
            hooked.end_raised(error)
            raise
        except BaseException as error:
            await asyncio.to_thread(hooked.end_raised, error)
            raise
        await asyncio.to_thread(hooked.end, output)
        return output

    return arun


def _runs_in_thread(tool: BaseTool) -> bool:
    """Return whether LangChain's own `arun` would run a tool without a coroutine in a thread."""
    kind = type(tool)
    is_sync = kind._arun is BaseTool._arun or (
        kind._arun in (StructuredTool._arun, Tool._arun) and getattr(tool, "coroutine", None) is None
    )
    return kind.run is BaseTool.run and is_sync


def _hook(tool: BaseTool, tool_input: Any, args: tuple[Any, ...], options: dict[str, Any]) -> _ToolRun | None:
    """Find the turn that a call is made in; return None outside a turn."""
    callbacks = options.get("callbacks") if len(args) < len(_POSITIONAL) else args[-1]
    outer_config: Mapping[str, Any] = var_child_runnable_config.get() or {}
    manager, recorder = callbacks, find_recorder(callbacks)
    if recorder is None:
        manager = outer_config.get("callbacks")
        recorder = find_recorder(manager)
    calls = recorder.calls if recorder is not None else current_calls()
    if calls is None:
        require_outside_reruns(tool.name)
        _require_covered(tool)
        note_unowned_call(tool)
        return None
    if recorder is not None and manager is not callbacks:
        callbacks = _add_recorder(callbacks, recorder)
    run_id = options.get("run_id") or uuid7()
    options = {**dict(zip(_POSITIONAL, args, strict=False)), **options, "callbacks": callbacks, "run_id": run_id}
    configurable = (options.get("config") or {}).get("configurable", {})
    configurable = configurable if CONFIG_KEY_CHECKPOINT_NS in configurable else outer_config.get("configurable", {})
    parent_run_id = getattr(manager, "parent_run_id", None) or getattr(
        outer_config.get("callbacks"), "parent_run_id", None
    )
    call = calls.new(tool, run_id, parent_run_id, configurable, options.get("tool_call_id"))
    return _ToolRun(call, tool, tool_input, options)


def _require_covered(tool: BaseTool) -> None:
    """Check that a call outside a turn is not one that the record of a tool that runs again would miss."""
    for run in callers_again():
        kinds = {one.effect.kind if one.effect is not None else UNDECLARED for one in run.declare(tool)}
        if not kinds.issubset(run.kinds):
            run.refused.append(as_bubble_up(unrecorded_call_error(tool.name, run.name)))
            raise run.refused[-1]


def _add_recorder(callbacks: Any, recorder: Recorder) -> Any:
    """Add a recorder to callbacks that a call was given in place of the surrounding ones."""
    if isinstance(callbacks, BaseCallbackManager):
        manager = callbacks.copy()
        manager.add_handler(recorder, inherit=True)
        return manager
    return [*(callbacks or ()), recorder]


class _ToolRun:
    """One run of a tool, whose call is opened when the tool's function is entered."""

    def __init__(self, call: Call, tool: BaseTool, tool_input: Any, options: dict[str, Any]) -> None:
        self._call, self._tool = call, tool
        self.options = options
        """The options of the call, for LangChain."""
        self._arguments = given_arguments(tool_input)
        self._is_refused = False
        self._is_cancelled = False
        self._lock = threading.Lock()

    def copy(self) -> BaseTool:
        """Copy the tool; the copy returns an answer from the record, or else runs the tool and keeps its result."""

        def run(*args: Any, **kwargs: Any) -> Any:
            return self._run(*args, **kwargs)

        async def arun(*args: Any, **kwargs: Any) -> Any:
            return await self._arun(*args, **kwargs)

        def receive(tool_input: Any, tool_call_id: str | None) -> tuple[Any, dict[str, Any]]:
            args, kwargs = type(clone)._to_args_and_kwargs(clone, tool_input, tool_call_id)
            self._arguments = received_arguments(clone, tool_input, args, kwargs)
            return args, kwargs

        clone = clone_of(self._tool, run, arun)
        object.__setattr__(clone, "_to_args_and_kwargs", receive)
        return clone

    def _open(self) -> None:
        self._is_refused = True  # unless it returns
        self._call.open(self._arguments)
        with self._lock:
            self._is_refused = False
        if self._is_cancelled:
            self._call.end_raised(NothingDone("cancelled before its tool ran"))

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        self._is_refused = True
        for _ in self._call.unsaved_steps():
            time.sleep(POLL_SECONDS)
        self._open()
        if (answer := self._call.take_answer()) is not None:
            return _as_returned(self._tool, answer.future.result())
        with self._call.running():
            value = self._tool._run(*args, **with_own_view(kwargs))
        self._call.value, self._call.has_returned = value, True
        return value

    async def _arun(self, *args: Any, **kwargs: Any) -> Any:
        self._is_refused = True
        for _ in self._call.unsaved_steps():
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.to_thread(self._open)
        if (answer := self._call.take_answer()) is not None:
            return _as_returned(self._tool, await asyncio.wrap_future(answer.future))
        with self._call.running():
            value = await self._tool._arun(*args, **with_own_view(kwargs))
        self._call.value, self._call.has_returned = value, True
        return value

    def end(self, output: Any) -> None:
        if not self._call.is_open:
            self._open()
        self._call.end(output)

    def end_raised(self, error: BaseException) -> None:
        with self._lock:
            is_refused = self._is_refused
            self._is_cancelled = is_refused and isinstance(error, asyncio.CancelledError)
        if is_refused:
            self._call.calls.by_run.pop(self._call.run_id, None)
            return
        if not self._call.is_open:
            self._open()
        self._call.end_raised(error)


def _as_returned(tool: BaseTool, value: Any) -> Any:
    """Return an answer in the form that the tool returns; the record has lists in place of tuples."""
    if tool.response_format != "content_and_artifact":
        return value
    return tuple(value) if isinstance(value, list | tuple) and len(value) == 2 else (value, None)
