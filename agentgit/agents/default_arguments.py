"""Removal of default arguments: a model that spells out a default makes the same call, not another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from langchain_core.tools import BaseTool
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentgit.effects import Effect

Args = Mapping[str, Any]
Form = Callable[[Args], Args]

PLAIN = (bool, int, float, str)
EMPTY = (list, dict, set)
"""The default factories that give the same each time; another one may make up an id."""


def bare_forms(tools: Mapping[str, Sequence[BaseTool]], effects: Mapping[str, Effect | None]) -> dict[str, Form]:
    """Return, for each tool whose calls are compared, a function that normalizes its arguments.

    Args:
        tools: By name. A name that several tools share is left out, because it is not known which one is called.
        effects: The effects of the tools on the outside world.
    """
    alone = {name: same[0] for name, same in tools.items() if all(other is same[0] for other in same)}
    return {
        name: bare_of(tool) for name, tool in alone.items() if (effect := effects.get(name)) and effect.has_identity
    }


def bare_of(tool: BaseTool) -> Form:
    """Return a function that normalizes the arguments of a tool: it drops default values and converts numbers.

    Arguments that do not fit the tool's schema stay as they are.

    Example:
        >>> from langchain_core.tools import tool
        >>> @tool
        ... def pay(to: str, euros: int, memo: str = "") -> str:
        ...     '''Pay somebody.'''
        >>> bare_of(pay)({"to": "Ann", "euros": "5", "memo": ""})
        {'to': 'Ann', 'euros': 5}
    """
    schema: Any = tool.tool_call_schema
    if isinstance(schema, dict):
        defaults = {name: one["default"] for name, one in schema.get("properties", {}).items() if "default" in one}
        return lambda args: {name: v for name, v in args.items() if name not in defaults or defaults[name] != v}
    if not issubclass(schema, BaseModel):
        return lambda args: args

    def bare(args: Args) -> Args:
        try:
            found: Args = _bare(schema.model_validate(dict(args)), args)
        except Exception:  # noqa: BLE001  # whatever somebody's validator raises, the tool itself will raise
            return args
        return found

    return bare


def _bare(read: Any, said: Any) -> Any:
    """Take from what was said what the schema has read as a default, however deep."""
    if isinstance(read, BaseModel) and isinstance(said, Mapping):
        values = {key: getattr(read, name) for name, field in _fields(read) for key in _names(name, field)}
        usual = {key for name, field in _fields(read) if _is_usual(field, read, name) for key in _names(name, field)}
        return {key: _bare(values.get(key, value), value) for key, value in said.items() if key not in usual}
    if isinstance(read, list) and isinstance(said, list) and len(read) == len(said):
        return [_bare(*pair) for pair in zip(read, said, strict=True)]
    if isinstance(read, Decimal):
        return str(read.normalize())
    return read if type(read) in PLAIN else said


def _fields(read: BaseModel) -> list[tuple[str, FieldInfo]]:
    return list(type(read).model_fields.items())


def _names(name: str, field: FieldInfo) -> set[str]:
    return {name, field.alias or name}


def _is_usual(field: FieldInfo, read: BaseModel, name: str) -> bool:
    if field.is_required():
        return False
    default: Any = field.default_factory() if field.default_factory in EMPTY else field.default
    value = getattr(read, name)
    return isinstance(value, bool) is isinstance(default, bool) and bool(value == default)  # True == 1
