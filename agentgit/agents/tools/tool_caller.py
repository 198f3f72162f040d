"""Tools: what can be declared about them, and repeated calls."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple
from uuid import uuid4
from weakref import WeakSet

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException
from langgraph.errors import ParentCommand

from agentgit.agents.isolation import detached
from agentgit.agents.tools.arguments import Arguments, received_arguments
from agentgit.agents.tools.recorded_results import as_recorded, handover_record
from agentgit.effects.declarations import Declare, ToolRunner
from agentgit.effects.effects import Effect, import_function, require_function
from agentgit.effects.kinds import UNDECLARED
from agentgit.effects.results import NothingDone
from agentgit.errors import AgentGitError, InvalidInput, NotFound
from agentgit.langgraph_internals import is_internal_key
from agentgit.rollback.verification import IN_OPERATION
from agentgit.values import describe_error


class NotDone(NothingDone, ToolException):
    """Raise this in a tool to report an error and to state that the call changed nothing in the world.

    With any other error it is not known whether the call acted before it raised, so a compensable or irreversible call
    becomes `unknown`. A call that raises `NotDone` is `failed`: it does not block a rollback, and can be made again.

    `NotDone` is a LangChain `ToolException`, so the model sees it like any tool error: through `handle_tool_error=True`
    on the tool, or through the error handling of its `ToolNode`.

    It applies only to the tool that raises it. If a tool calls another tool and lets its `NotDone` propagate, this
    states nothing about the outer call. Catch it in the outer tool and raise a new `NotDone` there.

    Args:
        *args: The message, as for any exception.

    Example:
        >>> from langchain_core.tools import tool
        >>> @tool
        ... def pay(euros: int) -> str:
        ...     "Pay."
        ...     if euros > 100:
        ...         raise NotDone("the card was declined")
        ...     return "paid"
        >>> pay.invoke({"euros": 500})
        Traceback (most recent call last):
        agentgit.agents.tools.tool_caller.NotDone: the card was declined
    """


def require_fit(name: str, effect: Effect, tools: Sequence[BaseTool]) -> None:
    """Check that an effect can work for a tool; without one, that its functions can be imported."""
    for role, function in effect.functions():
        if isinstance(function, str):
            _require_importable(name, role, function)
    for tool in tools if effect.identity_args else ():
        argument_names = _argument_names(tool)
        if argument_names is not None and (unknown := sorted(set(effect.identity_args or ()) - argument_names)):
            raise InvalidInput(
                f"identity_args of {name}: the tool has no argument {', '.join(unknown)}; it has "
                f"{', '.join(sorted(argument_names)) or 'none'}."
            )


def _require_importable(name: str, role: str, path: str) -> None:
    try:
        require_function(role, import_function(path))
    except (NotFound, InvalidInput) as error:
        raise type(error)(f"The effect of {name}: {error} Correct its {role}, or give the function itself.") from error


def _argument_names(tool: BaseTool) -> set[str] | None:
    """Return the names under which a tool gets the arguments that a model passes; None if it accepts any."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return None if schema.get("additionalProperties") else set(schema.get("properties", ()))
    if hasattr(schema, "model_fields"):
        return None if schema.__dict__.get("model_config", {}).get("extra") == "allow" else set(schema.model_fields)
    whole: Any = tool.get_input_schema()  # of pydantic 1; LangChain leaves its config out above
    return None if whole.__config__.extra == "allow" else set(schema.__fields__)


# -- calling a tool again


class RunAgain(NamedTuple):
    """A run of a tool again by an operation, outside a turn."""

    name: str
    declare: Declare
    kinds: Collection[str]
    """The effects that calls in it may have."""
    other_threads: WeakSet[threading.Thread]
    """The threads that were there before, without its own."""
    refused: list[AgentGitError]
    """What refused calls raised. The tool may have caught it, and is not done."""


_run_again: ContextVar[RunAgain | None] = ContextVar("agentgit_run_again", default=None)
_runs_again: list[RunAgain] = []


@contextmanager
def _running_again(tool: BaseTool, declare: Declare) -> Iterator[None]:
    """Mark the block as the function of a tool that an operation runs again, outside a turn."""
    threads = WeakSet(one for one in threading.enumerate() if one is not threading.current_thread())
    run = RunAgain(tool.name, declare, IN_OPERATION.get(), threads, [])
    token = _run_again.set(run)
    _runs_again.append(run)
    try:
        yield
    finally:
        _runs_again.remove(run)
        _run_again.reset(token)
    for error in run.refused:
        raise error


def callers_again() -> list[RunAgain]:
    """List the runs that a call outside a turn may belong to: by its context, or if that has none by its thread."""
    run = _run_again.get()
    if run is not None or IN_OPERATION.get():
        return [] if run is None else [run]
    beside = [one for one in _runs_again if threading.current_thread() not in one.other_threads]
    return [one._replace(kinds={*one.kinds, UNDECLARED}) for one in beside]  # what nobody declared may be other code's


def tool_caller(tool: BaseTool, declare: Declare) -> ToolRunner | str:
    """Return a function that calls a tool with recorded arguments, or the reason why it cannot be called again."""
    if injected_names := _injected_arguments(tool):
        return (
            f"the tool {tool.name} gets {', '.join(injected_names)} from its graph, which is not recorded, so it can "
            "be called only there"
        )
    return functools.partial(_acall if _is_async(tool) else _call, tool, declare)


def _injected_arguments(tool: BaseTool) -> list[str]:
    """List the arguments that only a graph can inject into a tool; a tool call id can be generated."""
    input_fields: Any = getattr(tool.get_input_schema(), "model_fields", {})
    call_fields: Any = getattr(tool.tool_call_schema, "model_fields", input_fields)
    return sorted(name for name in set(input_fields) - set(call_fields) if not _is_call_id(input_fields[name].metadata))


def _is_call_id(metadata: Sequence[Any]) -> bool:
    return any(isinstance(item, InjectedToolCallId) or item is InjectedToolCallId for item in metadata)


def _is_async(tool: BaseTool) -> bool:
    """Return whether to await a tool: it has no synchronous function, or its class overrides `_arun`."""
    if hasattr(tool, "coroutine"):
        return getattr(tool, "func", None) is None
    return type(tool)._arun is not BaseTool._arun


def _call(tool: BaseTool, declare: Declare, args: Mapping[str, Any], thread_id: str) -> Any:
    runs: list[Any] = []
    try:
        with detached(), _forbid_questions(), _not_done_unless_run(runs):
            clone = _raising_copy(tool, declare, args, runs)
            clone.invoke(_as_tool_call(tool, args), _thread_config(thread_id))
    except ParentCommand as error:
        return handover_record(error)
    return as_recorded(runs[-1])


async def _acall(tool: BaseTool, declare: Declare, args: Mapping[str, Any], thread_id: str) -> Any:
    runs: list[Any] = []
    try:
        with detached(), _forbid_questions(), _not_done_unless_run(runs):
            clone = _raising_copy(tool, declare, args, runs)
            await clone.ainvoke(_as_tool_call(tool, args), _thread_config(thread_id))
    except ParentCommand as error:
        return handover_record(error)
    return as_recorded(runs[-1])


@contextmanager
def _forbid_questions() -> Iterator[None]:
    """Raise a clear error if a tool asks the user, because outside a turn LangGraph raises only a KeyError."""
    try:
        yield
    except KeyError as error:
        if not error.args or not is_internal_key(error.args[0]):
            raise
        raise InvalidInput(
            "the tool asks a person (interrupt), and outside a turn there is nobody to answer"
        ) from error


@contextmanager
def _not_done_unless_run(runs: Sequence[Any]) -> Iterator[None]:
    """Raise `NotDone` for an error before the tool's function was called, as when its arguments are not valid."""
    try:
        yield
    except Exception as error:
        if runs:
            raise
        raise NotDone(f"its tool was not called: {describe_error(error)}") from error


def _thread_config(thread_id: str) -> RunnableConfig:
    """Return a config with the thread id, which a tool may read; other config of a turn is not recorded."""
    return {"configurable": {"thread_id": thread_id}}


def _raising_copy(tool: BaseTool, declare: Declare, recorded: Mapping[str, Any], runs: list[Any]) -> BaseTool:
    """Return a copy of a tool that raises errors, takes only recorded arguments, and adds its values to `runs`."""

    def run(*args: Any, **kwargs: Any) -> Any:
        runs.append(None)
        with _running_again(tool, declare):
            runs[-1] = tool._run(*args, **kwargs)
        return runs[-1]

    async def arun(*args: Any, **kwargs: Any) -> Any:
        runs.append(None)
        with _running_again(tool, declare):
            runs[-1] = await tool._arun(*args, **kwargs)
        return runs[-1]

    def receive(tool_input: Any, tool_call_id: str | None) -> tuple[Any, dict[str, Any]]:
        args, kwargs = type(clone)._to_args_and_kwargs(clone, tool_input, tool_call_id)
        if difference := _difference(received_arguments(clone, tool_input, args, kwargs), recorded):
            raise InvalidInput(difference)
        return args, kwargs

    clone = clone_of(tool, run, arun)
    object.__setattr__(clone, "_to_args_and_kwargs", receive)
    clone.handle_tool_error = clone.handle_validation_error = False
    return clone


def clone_of(tool: BaseTool, run: Callable[..., Any], arun: Callable[..., Awaitable[Any]]) -> BaseTool:
    """Copy a tool with other functions; the original is not changed."""
    clone = copy.copy(tool)
    # Set on the instance, bypassing pydantic: the class belongs to the user or is shared by all tools.
    object.__setattr__(clone, "_run", functools.wraps(tool._run)(run))
    object.__setattr__(clone, "_arun", functools.wraps(tool._arun)(arun))
    return clone


def argument_obstacle(tool: BaseTool, recorded: Mapping[str, Any]) -> str | None:
    """Return why a tool would not get recorded arguments once more; None if it would. Validators run, the tool not."""
    given = copy.deepcopy(_as_tool_call(tool, recorded)["args"])
    try:
        got = received_arguments(tool, given, *tool._to_args_and_kwargs(given, "again"))
    except Exception as error:  # noqa: BLE001  # whatever a validator raises
        return f"its recorded arguments are not valid a second time: {describe_error(error)}"
    return _difference(got, recorded)


def _difference(got: Arguments, recorded: Mapping[str, Any]) -> str | None:
    return None if got.equal(recorded) else f"it would get {got.values}, and not the recorded {dict(recorded)}"


def _as_tool_call(tool: BaseTool, args: Mapping[str, Any]) -> Any:
    """Return the call as a model writes it, with a new id, because a tool may use the id to ignore repeated calls."""
    fields: Mapping[str, Any] = getattr(tool.args_schema, "model_fields", {})
    aliases = {name: one.validation_alias for name, one in fields.items() if isinstance(one.validation_alias, str)}
    given = {aliases.get(name, name): value for name, value in args.items()}
    return {"name": tool.name, "args": given, "id": f"again-{uuid4().hex}", "type": "tool_call"}
