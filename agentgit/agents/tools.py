"""The tools of a graph: their declared effects, the normal form of their arguments, and repeated calls."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any
from uuid import uuid4

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, ToolException
from langgraph.errors import ParentCommand
from langgraph.pregel import Pregel
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentgit.agents.checkpoint_tools import CHECKPOINT_TOOLS, is_checkpoint_tool
from agentgit.agents.instrumentation import referenced_tools, tools_of
from agentgit.agents.isolation import detached
from agentgit.agents.turn.recorded_results import as_recorded, handover_record
from agentgit.agents.turn.tool_hook import reporting_copy
from agentgit.effects.declarations import ALL, ToolEffects, default_effect, hints_in, stricter
from agentgit.effects.effects import Effect, declared_on, import_function, require_function
from agentgit.effects.known_tools import Holds, profile_of
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.effects.results import NothingDone
from agentgit.effects.served_sessions import ToolRunner
from agentgit.errors import InvalidInput, NotFound
from agentgit.langgraph_internals import is_internal_key
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
        agentgit.agents.tools.NotDone: the card was declined
    """


Args = Mapping[str, Any]
ArgumentNormalizer = Callable[[Args], Args]

PLAIN = (bool, int, float, str)
EMPTY = (list, dict, set)
"""The default factories that always return the same value; another factory may generate an id."""


def argument_normalizers(
    tools: Mapping[str, Sequence[BaseTool]], effects: Mapping[str, Effect | None]
) -> dict[str, ArgumentNormalizer]:
    """Return, for each tool whose calls are compared, a function that normalizes its arguments."""
    single_tools = {name: same[0] for name, same in tools.items() if all(other is same[0] for other in same)}
    return {
        name: argument_normalizer(tool)
        for name, tool in single_tools.items()
        if (effect := effects.get(name)) and effect.has_identity
    }


def argument_normalizer(tool: BaseTool) -> ArgumentNormalizer:
    """Return a function that normalizes the arguments of a tool: it drops default values and converts numbers.

    Arguments that do not fit the tool's schema stay as they are.

    Example:
        >>> from langchain_core.tools import tool
        >>> @tool
        ... def pay(to: str, euros: int, memo: str = "") -> str:
        ...     '''Pay somebody.'''
        >>> argument_normalizer(pay)({"to": "Ann", "euros": "5", "memo": ""})
        {'to': 'Ann', 'euros': 5}
    """
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        defaults = {name: one["default"] for name, one in schema.get("properties", {}).items() if "default" in one}
        return lambda args: {name: v for name, v in args.items() if name not in defaults or defaults[name] != v}
    if not issubclass(schema, BaseModel):
        return lambda args: args

    def normalize(args: Args) -> Args:
        try:
            normalized: Args = _without_defaults(schema.model_validate(dict(args)), args)
        except Exception:  # noqa: BLE001  # an error of a user's validator: the tool itself will raise it
            return args
        return normalized

    return normalize


def _without_defaults(parsed: Any, original: Any) -> Any:
    """Remove the arguments that equal defaults of the schema, at any depth, and convert plain values."""
    if isinstance(parsed, BaseModel) and isinstance(original, Mapping):
        values = {key: getattr(parsed, name) for name, field in _fields(parsed) for key in _field_names(name, field)}
        default_keys = {
            key
            for name, field in _fields(parsed)
            if _is_default(field, parsed, name)
            for key in _field_names(name, field)
        }
        return {
            key: _without_defaults(values.get(key, value), value)
            for key, value in original.items()
            if key not in default_keys
        }
    if isinstance(parsed, list) and isinstance(original, list) and len(parsed) == len(original):
        return [_without_defaults(*pair) for pair in zip(parsed, original, strict=True)]
    if isinstance(parsed, Decimal):
        return str(parsed.normalize())
    return parsed if type(parsed) in PLAIN else original


def _fields(parsed: BaseModel) -> list[tuple[str, FieldInfo]]:
    return list(type(parsed).model_fields.items())


def _field_names(name: str, field: FieldInfo) -> set[str]:
    return {name, field.alias or name}


def _is_default(field: FieldInfo, parsed: BaseModel, name: str) -> bool:
    if field.is_required():
        return False
    default_value: Any = field.default_factory() if field.default_factory in EMPTY else field.default
    value = getattr(parsed, name)
    return isinstance(value, bool) is isinstance(default_value, bool) and bool(value == default_value)  # True == 1


ToolsByName = Mapping[str, Sequence[BaseTool]]
"""The tools of a graph by name. Its subgraphs may have different tools of the same name."""


def resolve_effects(
    tools: ToolsByName,
    user_effects: Mapping[str, Effect],
    defaults: Mapping[str, Effect],
    profile_effects: Mapping[str, Effect | None],
    *,
    check: bool,
) -> dict[str, Effect | None]:
    """Return the effect of each tool: the user's declaration, else the tool's own, else its profile's or the default.

    MCP annotations of a tool can make its effect stricter.
    """
    _require_known(tools, user_effects, check=check)
    effects: dict[str, Effect | None] = {}
    for name in {**tools, **user_effects}:
        namesakes = tools.get(name, ())
        effect = user_effects.get(name) or _own_effect(name, namesakes)
        effect = effect or default_effect(defaults, name, profile_effects.get(name))
        for tool in namesakes:
            effect = stricter(effect, hints_in(tool.metadata))
        if effect is not None:
            require_fit(name, effect, namesakes)
        effects[name] = effect
    return effects


def profile_effects(tools: ToolsByName, holds: Holds) -> dict[str, Effect | None]:
    """Return the effects of the tools that are known; None if the effects of the calls of a tool differ."""
    found: dict[str, Effect | None] = {}
    for name, namesakes in tools.items():
        profiles = [profile_of(tool) for tool in namesakes]
        effects = [profile.effect(None, holds) for profile in profiles if profile is not None]
        if len(effects) == len(profiles):
            found[name] = effects[0] if all(effect == effects[0] for effect in effects) else None
    return found


def _require_known(tools: ToolsByName, user_effects: Mapping[str, Effect], *, check: bool) -> None:
    if ALL in user_effects:
        raise InvalidInput(
            f"effects={{{ALL!r}: ...}} belongs to agentgit.open(..., effects=); here, give one for each tool by name."
        )
    unknown = sorted(set(user_effects) - set(tools) - MEMORY_TOOLS)
    if check and tools and unknown:
        raise InvalidInput(
            f"The graph has no tool {', '.join(unknown)}; it has {', '.join(sorted(tools))}. "
            "If a node calls it where the graph does not show it, pass check_effects=False."
        )


def _own_effect(name: str, tools: Sequence[BaseTool]) -> Effect | None:
    """Return the effect that the tools of one name declare themselves."""
    effects = [declared_on(tool) for tool in tools]
    if any(effect != effects[0] for effect in effects):
        raise InvalidInput(
            f"The graph has several tools called {name} that declare different effects, and only the name is recorded. "
            f"Rename one, or declare one effect for all of them: effects={{{name!r}: ...}}."
        )
    return effects[0] if effects else None


def require_fit(name: str, effect: Effect, tools: Sequence[BaseTool]) -> None:
    """Check that an effect can work for a tool."""
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
    """Return the names of the arguments that a model passes to a tool; None if it accepts any."""
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        return None if schema.get("additionalProperties") else set(schema.get("properties", ()))
    if schema.__dict__.get("model_config", {}).get("extra") == "allow" or not hasattr(schema, "model_fields"):
        return None
    input_fields: Any = getattr(tool.get_input_schema(), "model_fields", {})  # only the input schema has the aliases
    return {
        name
        for field in schema.model_fields
        for name in (field, getattr(input_fields.get(field), "alias", None))
        if name
    }


# -- calling a tool again


def tool_caller(tools: Sequence[BaseTool]) -> ToolRunner | str:
    """Return a function that calls a tool with recorded arguments and returns the result in its recorded form.

    If the tool cannot be called again, return the reason as text.
    """
    tool = tools[0]
    if any(other is not tool for other in tools):
        return f"the graph has several tools called {tool.name}, and the record does not say which one it was"
    if injected_names := _injected_arguments(tool):
        return (
            f"the tool {tool.name} gets {', '.join(injected_names)} from its graph, which is not recorded, so it can "
            "be called only there"
        )
    return functools.partial(_acall if _is_async(tool) else _call, tool)


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


def _call(tool: BaseTool, args: Mapping[str, Any], thread_id: str) -> Any:
    returned: list[Any] = []
    started: list[bool] = []
    try:
        with detached(), _forbid_questions(), _not_done_unless_started(started):
            _raising_copy(tool, returned, started).invoke(_as_tool_call(tool, args), _thread_config(thread_id))
    except ParentCommand as error:
        return handover_record(error)
    return as_recorded(returned[-1])


async def _acall(tool: BaseTool, args: Mapping[str, Any], thread_id: str) -> Any:
    returned: list[Any] = []
    started: list[bool] = []
    try:
        with detached(), _forbid_questions(), _not_done_unless_started(started):
            await _raising_copy(tool, returned, started).ainvoke(_as_tool_call(tool, args), _thread_config(thread_id))
    except ParentCommand as error:
        return handover_record(error)
    return as_recorded(returned[-1])


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
def _not_done_unless_started(started: Sequence[bool]) -> Iterator[None]:
    """Raise `NotDone` for an error before the tool's function was called, as when its arguments are not valid."""
    try:
        yield
    except Exception as error:
        if started:
            raise
        raise NotDone(f"its tool was not called: {describe_error(error)}") from error


def _thread_config(thread_id: str) -> RunnableConfig:
    """Return a config with the thread id, which a tool may read; other config of a turn is not recorded."""
    return {"configurable": {"thread_id": thread_id}}


def _raising_copy(tool: BaseTool, returned: list[Any], started: list[bool]) -> BaseTool:
    """Return a copy of a tool that raises errors instead of converting them to messages for a model."""
    clone = reporting_copy(tool, returned.append)
    for name in ("_run", "_arun"):
        object.__setattr__(clone, name, _record_start(getattr(clone, name), started))
    clone.handle_tool_error = clone.handle_validation_error = False
    return clone


def _record_start(run: Callable[..., Any], started: list[bool]) -> Callable[..., Any]:
    @functools.wraps(run)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        started.append(True)
        return run(*args, **kwargs)

    return wrapper


def _as_tool_call(tool: BaseTool, args: Mapping[str, Any]) -> Any:
    """Return the call as a model writes it, with a new id, because a tool may use the id to ignore repeated calls."""
    return {"name": tool.name, "args": dict(args), "id": f"again-{uuid4().hex}", "type": "tool_call"}


class GraphTools:
    """The tools of a graph."""

    def __init__(
        self,
        graph: Pregel[Any, Any, Any, Any],
        user_effects: Mapping[str, Effect],
        defaults: Mapping[str, Effect],
        holds: Holds = lambda path: False,
        *,
        check: bool = False,
    ) -> None:
        tools = _tools_by_name(graph)
        # If the graph does not list its tools, a tool with one of agentgit's names counts as agentgit's own, unless the
        # user declares its effect.
        self.own_names = (
            frozenset(name for name in tools if all(map(is_checkpoint_tool, tools[name])))
            if tools
            else CHECKPOINT_TOOLS - set(user_effects)
        )
        """The names of agentgit's own tools, which are not recorded."""
        user_tools = {name: same for name, same in tools.items() if name not in self.own_names}
        known_effects = profile_effects(user_tools, holds)
        effects_by_tool = resolve_effects(user_tools, user_effects, defaults, known_effects, check=check)
        self.effects = ToolEffects(
            effects_by_tool,
            defaults,
            argument_normalizers(user_tools, effects_by_tool),
            profiled=known_effects.keys() - user_effects.keys(),
        )
        """The effects of all tools, by name."""
        self.declared = [(name, effect) for name, effect in effects_by_tool.items() if effect is not None]
        """The declared effects, with those of the tools that the functions of nodes refer to."""
        self.declared += [
            (tool.name, own_effect)
            for tool in referenced_tools(graph)
            if tool.name not in effects_by_tool and (own_effect := declared_on(tool)) is not None
        ]
        self.runners = {name: tool_caller(namesakes) for name, namesakes in user_tools.items()}
        """The functions that call the tools again, or the reasons why they cannot be called."""


def _tools_by_name(graph: Pregel[Any, Any, Any, Any]) -> ToolsByName:
    tools: dict[str, list[BaseTool]] = {}
    for tool in tools_of(graph):
        tools.setdefault(tool.name, []).append(tool)
    return tools
