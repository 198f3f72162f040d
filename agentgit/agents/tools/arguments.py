"""The arguments that a tool got, as the journal records them."""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import uuid4

from langchain_core.tools import BaseTool
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentgit.effects.effects import Effect
from agentgit.effects.invocation import call_text, identity
from agentgit.errors import Fenced
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
    made because the caller gave none, and which may be others each time. `hidden` has what the record does not show of
    an argument, and tells it from others: a hash of a secret, or what the caller wrote for an object without a JSON
    form. An object that the caller passed itself is told from all others, and is in `opaque`.
    """

    values: dict[str, Any]
    defaults: frozenset[str] = frozenset()
    generated: tuple[Path, ...] = ()
    is_named: bool = True
    hidden: Mapping[str, Sequence[str]] = {}
    opaque: frozenset[str] = frozenset()

    @property
    def identifying(self) -> dict[str, Any]:
        """The arguments that tell a call from others."""
        given = {name: value for name, value in self.values.items() if name not in self.defaults}
        return self._exact(given)

    @property
    def options(self) -> dict[str, bool]:
        return {"is_named": self.is_named, "has_hidden": bool(self.hidden)}

    def repeat_hash(self, tool_name: str, effect: Effect | None) -> str:
        """Return a hash that is the same for equal calls of a turn, and for equal calls of a record."""
        identity_args = effect.identity_args if effect is not None and self.is_named else None
        return identity(tool_name, self._exact(self.values), identity_args)

    def unidentifiable(self, effect: Effect | None) -> list[str]:
        """List the identifying arguments of which it is not known whether they are those of another call."""
        names = effect.identity_args if effect is not None and self.is_named else None
        return sorted(self.opaque if names is None else self.opaque.intersection(names))

    def equal(self, recorded: Any, effect: Effect | None = None) -> bool:
        """Return whether a recorded call had the same arguments, as far as the record shows them all."""
        if not isinstance(recorded, dict) or self.hidden:
            return False
        names = (self.values.keys() - self.defaults) | recorded.keys()
        if effect is not None and effect.identity_args is not None:
            names &= {*effect.identity_args}
        sides = (self._without_generated(one) for one in (self.values, recorded))
        first, second = ({name: one[name] for name in names if name in one} for one in sides)
        return bool(first == second)

    def require_identifiable(self, tool_name: str, effect: Effect | None) -> None:
        """Check that it can be known whether the same call was made before."""
        if names := self.unidentifiable(effect):
            raise Fenced(
                f"{call_text(tool_name, self.values)} was not made: its argument {', '.join(names)} is an object that "
                "has no JSON form, so it is not known whether the same call was made before. List the arguments that "
                "count in identity_args."
            )

    def _exact(self, values: dict[str, Any]) -> dict[str, Any]:
        plain = self._without_generated(values)
        return {name: [value, *self.hidden[name]] if name in self.hidden else value for name, value in plain.items()}

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
        values = {**defaults, **values}
    elif schema is None:
        defaults = _own_defaults(tool)
        values = {**defaults, **values}
    else:
        own_fields: Mapping[str, Any] = schema.model_fields if issubclass(schema, BaseModel) else schema.__fields__
        defaults = _fixed_defaults(own_fields)
        if not args and _generated_fields(own_fields, set()):
            generated += [(name,) for name in _generated_fields(own_fields, _fields_set(schema, tool_input))]
    found = _Findings(generated, [])
    plain = _plain(values, (), found, tool_input)
    hidden, opaque = defaultdict[str, list[str]](list), set[str]()
    for name, value, given in found.lossy:
        text = _text_of(value, given)
        hidden[name].append(text or uuid4().hex)
        opaque.update([] if text else [name])
    unchanged = (name for name, value in values.items() if name in defaults and _is_equal(value, defaults[name]))
    return Arguments(plain, frozenset(unchanged), tuple(generated), hidden=hidden, opaque=frozenset(opaque))


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


class _Findings(NamedTuple):
    """The findings in the arguments of a call besides their JSON form."""

    generated: list[Path]
    lossy: list[tuple[str, Any, Any]]
    """Values that the JSON form may not tell apart: the name of the argument, the value, and what the caller wrote."""


def _text_of(value: Any, given: Any) -> str | None:
    """Return what tells a value without a JSON form from others; None if nothing does."""
    if hasattr(value, "get_secret_value"):
        return sha256(f"agentgit secret {value.get_secret_value()!r}".encode(errors="surrogatepass")).hexdigest()
    lossy: list[Any] = []
    text = to_json(portable(given, lossy)).decode()
    return None if given is None or lossy else text


def _plain(value: Any, path: Path, found: _Findings, given: Any) -> Any:
    """Return a validated value as JSON types, and note what it does not show."""
    generated = found.generated
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
        return {name: _plain(item, (*path, name), found, one) for name, (item, one) in named.items()}
    if isinstance(value, list | tuple):
        sources = given if isinstance(given, Sequence) and len(given) == len(value) else [None] * len(value)
        return [_plain(item, (*path, n), found, one) for n, (item, one) in enumerate(zip(value, sources, strict=True))]
    if isinstance(value, set | frozenset):  # in an order that is the same in each process
        return sorted((_plain(item, path, found, None) for item in value), key=to_json)
    if isinstance(value, Decimal) and value.is_finite():
        whole, point, cents = format(value, "f").partition(".")
        return whole + (point + cents).rstrip("0").rstrip(".")  # 5 and 5.00 are one amount
    if isinstance(value, datetime) and value.tzinfo is not None:
        return portable(value.astimezone(UTC))  # one time, in whatever zone a model writes it
    lossy: list[Any] = []
    plain = portable(value, lossy)
    if path and path not in generated:
        found.lossy.extend((str(path[0]), one, given) for one in lossy)
    return plain


def _key(name: Any) -> str:
    """Return the key that a validated key of a dict has in JSON."""
    return str(
        next(iter(portable({name if isinstance(name, str) else _plain(name, (), _Findings([], []), None): None})))
    )


def _without(value: Any, path: Path, paths: frozenset[Path]) -> Any:
    if isinstance(value, dict):
        kept = {name: item for name, item in value.items() if (*path, name) not in paths}
        return {name: _without(item, (*path, name), paths) for name, item in kept.items()}
    if isinstance(value, list):
        return [_without(item, (*path, number), paths) for number, item in enumerate(value)]
    return value
