"""The arguments that a tool got, as the journal records them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, NamedTuple

from langchain_core.tools import BaseTool
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentgit.effects.effects import Effect
from agentgit.effects.invocation import identity
from agentgit.values import portable, to_json

Path = tuple[str | int, ...]

CONSTANT_FACTORIES = (list, dict, set, tuple, frozenset)
"""The default factories that always make the same value."""

GIVEN_BY_LANGCHAIN = frozenset({"config", "run_manager", "callbacks", "args", "kwargs"})
"""The parameters of a tool's `_run` that LangChain fills, or that stand for any others."""


class Arguments(NamedTuple):
    """The arguments of a call.

    Two calls are equal whether or not one of them writes a default out, also if the tool has got the argument since.
    `defaults` names the arguments that have their default value, and `generated` the paths to values that a factory
    made because the caller gave none, and which may be others each time.
    """

    values: dict[str, Any]
    defaults: frozenset[str] = frozenset()
    generated: tuple[Path, ...] = ()
    is_named: bool = True

    @property
    def identifying(self) -> dict[str, Any]:
        """The arguments that tell a call from others."""
        given = {name: value for name, value in self.values.items() if name not in self.defaults}
        return dict(self._without_generated(given))

    def repeat_hash(self, tool_name: str, effect: Effect | None) -> str:
        """Return a hash that is the same for equal calls of a turn, and for equal calls of a record."""
        identity_args = effect.identity_args if effect is not None and self.is_named else None
        return identity(tool_name, self._without_generated(self.values), identity_args)

    def equal(self, recorded: Any, effect: Effect | None = None) -> bool:
        """Return whether a recorded call had the same arguments."""
        if not isinstance(recorded, dict):
            return False
        names = (self.values.keys() - self.defaults) | recorded.keys()
        if effect is not None and effect.identity_args is not None:
            names &= {*effect.identity_args}
        sides = (self._without_generated(one) for one in (self.values, recorded))
        first, second = ({name: one[name] for name in names if name in one} for one in sides)
        return bool(first == second)

    def _without_generated(self, values: Any) -> Any:
        return _without(values, (), frozenset(self.generated)) if self.generated else values


def given_arguments(tool_input: Any) -> Arguments:
    """Return the arguments of a call as its caller wrote them."""
    if isinstance(tool_input, Mapping):
        return Arguments(portable(dict(tool_input)))
    return Arguments({"input": portable(tool_input)}, is_named=False)


def received_arguments(tool: BaseTool, tool_input: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
    """Return the arguments that a tool gets: validated, with defaults, without what LangGraph or LangChain injects."""
    # A tool with one argument gets it without its name, whatever the caller calls it.
    received = {next(iter(tool.args), "input"): args[0]} if args else dict(kwargs)
    generated: list[Path] = []
    schema, values = tool.args_schema, tool._filter_injected_args(received)
    if isinstance(schema, dict):
        properties: Mapping[str, Any] = schema.get("properties", {})
        defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
    elif schema is None:
        defaults = _own_defaults(tool)
        values = {**defaults, **values}
    else:
        own_fields: Mapping[str, Any] = schema.model_fields if issubclass(schema, BaseModel) else schema.__fields__
        defaults = _fixed_defaults(own_fields)
        if not args and _generated_fields(own_fields, set()):
            generated += [(name,) for name in _generated_fields(own_fields, _fields_set(schema, tool_input))]
    plain = _plain(values, (), generated, tool_input)
    unchanged = (name for name, value in values.items() if name in defaults and _is_equal(value, defaults[name]))
    return Arguments(plain, frozenset(unchanged), tuple(generated))


def _is_equal(value: Any, default: Any) -> bool:
    try:
        return isinstance(value, bool) is isinstance(default, bool) and bool(value == default)  # True == 1
    except Exception:  # noqa: BLE001  # the values of a user's class may not compare
        return False


def _own_defaults(tool: BaseTool) -> dict[str, Any]:
    """Return the plain defaults of the parameters of a tool's `_run`, from which LangChain derives its schema."""
    parameters = inspect.signature(type(tool)._run).parameters.items()
    defaults = {name: one.default for name, one in parameters if name not in GIVEN_BY_LANGCHAIN}
    return {name: one for name, one in defaults.items() if one is not inspect.Parameter.empty and portable(one) == one}


def _fixed_defaults(fields: Mapping[str, FieldInfo]) -> dict[str, Any]:
    return {
        name: field.default_factory() if field.default_factory in CONSTANT_FACTORIES else field.default
        for name, field in fields.items()
        if not (field.is_required() if isinstance(field, FieldInfo) else field.required)  # of pydantic 1
    }


def _fields_set(schema: Any, tool_input: Any) -> set[str]:
    """Return the names of the fields that a caller gives, by whatever alias."""
    if issubclass(schema, BaseModel):
        return set(schema.model_validate(tool_input).model_fields_set)
    return set(schema.parse_obj(tool_input).__fields_set__)


def _generated_fields(fields: Mapping[str, FieldInfo], given: set[str]) -> list[str]:
    return [
        name
        for name, field in fields.items()
        if name not in given and field.default_factory not in (None, *CONSTANT_FACTORIES)
    ]


def _plain(value: Any, path: Path, generated: list[Path], given: Any) -> Any:
    """Return a validated value as JSON types, and note the paths to the values that a factory has made."""
    if isinstance(value, BaseModel):
        generated += [(*path, name) for name in _generated_fields(type(value).model_fields, value.model_fields_set)]
        value = dict(value)
    elif is_dataclass(value) and not isinstance(value, type):
        if isinstance(given, Mapping):
            generated += [
                (*path, one.name)
                for one in fields(value)
                if one.name not in given and one.default_factory not in (MISSING, *CONSTANT_FACTORIES)
            ]
        value = {one.name: getattr(value, one.name) for one in fields(value)}
    if isinstance(value, dict):
        source = given if isinstance(given, Mapping) else {}
        named = {_key(name): (item, source.get(name)) for name, item in value.items()}
        return {name: _plain(item, (*path, name), generated, one) for name, (item, one) in named.items()}
    if isinstance(value, list | tuple):
        sources = given if isinstance(given, Sequence) and len(given) == len(value) else [None] * len(value)
        return [
            _plain(item, (*path, n), generated, one) for n, (item, one) in enumerate(zip(value, sources, strict=True))
        ]
    if isinstance(value, set | frozenset):  # in an order that is the same in each process
        return sorted((_plain(item, path, generated, None) for item in value), key=to_json)
    if isinstance(value, Decimal) and value.is_finite():
        whole, point, cents = format(value, "f").partition(".")
        return whole + (point + cents).rstrip("0").rstrip(".")  # 5 and 5.00 are one amount
    if isinstance(value, datetime) and value.tzinfo is not None:
        return portable(value.astimezone(UTC))  # one time, in whatever zone a model writes it
    return portable(value)


def _key(name: Any) -> str:
    """Return the key that a validated key of a dict has in JSON."""
    return str(next(iter(portable({name if isinstance(name, str) else _plain(name, (), [], None): None}))))


def _without(value: Any, path: Path, paths: frozenset[Path]) -> Any:
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if (*path, name) not in paths}
        return {name: _without(item, (*path, name), paths) for name, item in kept.items()}
    if isinstance(value, list):
        return [_without(item, (*path, number), paths) for number, item in enumerate(value)]
    return value
