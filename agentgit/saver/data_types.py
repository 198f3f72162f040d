"""The data types that stored values may name: types of graphs, types that the operator names, and types stored here.

A stored value selects one of these types by its name. It never makes a type known, and a type that is not known is not
built. Being known is a property of the process, not of one graph: a type only holds the fields that were stored.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from enum import Enum
from importlib import import_module
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any, NewType, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from langchain_core.runnables import Runnable
from pydantic import BaseModel
from typing_extensions import TypeAliasType

from agentgit.langgraph_internals import SAFE_MSGPACK_TYPES

TypeName = tuple[str, str]
"""The module of a type, and its qualified name there."""

_known: set[TypeName] = {(name[0], name[1]) for name in SAFE_MSGPACK_TYPES}

for _module in {module for module, _ in _known if module.partition(".")[0] in ("langchain_core", "langgraph")}:
    import_module(_module)  # now, and not because a stored value names it


def add_types(*hints: Any) -> None:
    """Make the data types in type hints known, with those in the hints of their fields; a function counts as its hints.

    Example:
        >>> from agentgit.auth.principal import User
        >>> add_types(dict[str, list[User] | None])
        >>> find_type("agentgit.auth.principal", "User")
        <class 'agentgit.auth.principal.User'>
    """
    for kind in data_types_in(*hints):
        add_type(kind)


def add_type(kind: type) -> None:
    """Make one data type known, if its module has it under its name."""
    name = (kind.__module__, kind.__qualname__)
    if name not in _known and is_data_type(kind) and _lookup(*name) is kind:
        _known.add(name)


def add_names(names: Iterable[tuple[str, ...] | type]) -> None:
    """Make types known by their names, as LangGraph lists them."""
    for name in names:
        if isinstance(name, type):
            add_type(name)
        else:
            _known.add((name[0], name[1]))


def find_type(module: str, name: str) -> type | None:
    """Return the known data type of a name as its module has it now; None if there is none."""
    kind = _lookup(module, name) if (module, name) in _known else None
    return kind if isinstance(kind, type) and is_data_type(kind) else None


def is_data_type(kind: type) -> bool:
    """Return whether instances of a type only hold data: it is a dataclass, enum, named tuple or pydantic model.

    A Runnable of LangChain and an exception are behaviour, even if they are models or dataclasses.

    Example:
        >>> from langchain_core.messages import HumanMessage
        >>> from langchain_core.prompts import PromptTemplate
        >>> is_data_type(HumanMessage), is_data_type(PromptTemplate), is_data_type(dict)
        (True, False, False)
    """
    if issubclass(kind, (Runnable, BaseException)):
        return False
    return is_dataclass(kind) or issubclass(kind, (BaseModel, Enum)) or is_named_tuple(kind)


def is_named_tuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _lookup(module: str, name: str) -> Any:
    """Return what a module has under a qualified name, without an import and without running code of the module."""
    found: Any = sys.modules.get(module)
    path, bracket, _ = name.partition("[")
    for part in path.split("."):
        found = vars(found).get(part) if isinstance(found, (ModuleType, type)) else None
    if not bracket or not isinstance(found, type):
        return found
    # Pydantic makes a subclass for each parametrization of a generic model.
    kinds: list[type] = type.__subclasses__(found)
    return next((kind for kind in kinds if kind.__qualname__ == name), None)


def data_types_in(*hints: Any, nested: bool = True) -> Iterator[type]:
    """Yield the data types in type hints, and those in the hints of their fields unless `nested` is false."""
    pending: list[Any] = [*hints]
    visited: dict[int, Any] = {}
    while pending:
        hint = pending.pop()
        if id(hint) in visited:
            continue
        visited[id(hint)] = hint
        pending += (get_origin(hint), *get_args(hint))
        if isinstance(hint, list):  # the parameters of a Callable
            pending += hint
        elif isinstance(hint, NewType):
            pending.append(hint.__supertype__)
        elif isinstance(hint, TypeVar):
            pending += (hint.__bound__, *hint.__constraints__)
        elif isinstance(hint, TypeAliasType):
            with suppress(NameError, AttributeError, TypeError):  # it is evaluated now
                pending.append(hint.__value__)
        elif isinstance(hint, type) and is_data_type(hint):
            yield hint
            pending += _hints_of(hint) if nested else ()
        elif isinstance(hint, FunctionType) or is_typeddict(hint):
            pending += _hints_of(hint)


def _hints_of(owner: Any) -> Iterator[Any]:
    """Yield the hints of a class or function; one that cannot be resolved does not hide the others."""
    if isinstance(owner, type) and issubclass(owner, BaseModel):
        yield from (field.annotation for field in owner.model_fields.values())
    for holder in owner.__mro__ if isinstance(owner, type) else [owner]:
        namespace = getattr(holder, "__globals__", None) or vars(sys.modules.get(holder.__module__, object))
        for annotation in inspect.get_annotations(holder).values():
            yield _resolve(annotation, namespace, {holder.__name__: holder})


def _resolve(annotation: Any, namespace: Mapping[str, Any], names: Mapping[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"hint": annotation})
    try:
        return get_type_hints(holder, dict(namespace), dict(names), include_extras=True)["hint"]
    except Exception:  # noqa: BLE001  # evaluating a user's annotation may raise anything; its type stays unknown
        return None
