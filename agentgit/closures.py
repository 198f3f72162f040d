"""The values that functions hold, such as variables of the function that made them. They tell namesakes apart."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Hashable, Iterable
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any
from weakref import WeakKeyDictionary


def is_defined_by_name(function: Any) -> bool:
    """Return whether a function can be defined again under its name, as in a notebook, and holds no values."""
    return type(function) is FunctionType and "<" not in function.__qualname__ and function.__closure__ is None


def likeness(holder: Any) -> Hashable:
    """Return a key that is equal for functions that do the same in this process, although one was made again."""
    return _held_by(holder, lambda other: other if isinstance(other, CodeType | MethodType) else id(other), set())


def plain_values_hash(holder: Any) -> str | None:
    """Return a hash of the plain values that a made function, a partial or a tuple holds; None if there are none.

    It is the same in each process. Lists, dicts and other objects do not count: they often change.
    """
    if isinstance(holder, FunctionType) and "<" not in holder.__qualname__:
        return None
    if not isinstance(holder, FunctionType):
        held = _held_by(holder, lambda other: None, set())
    elif (held := _held_at_first.get(holder, holder)) is holder:
        held = _held_at_first[holder] = _held_by(holder, lambda other: None, set())
    return None if held is None else hashlib.sha256(repr(held).encode(errors="surrogatepass")).hexdigest()[:12]


_held_at_first: WeakKeyDictionary[FunctionType, Hashable] = WeakKeyDictionary()
"""What functions held when they were first named. A function may change it, as one that counts its calls."""


def _held_by(value: Any, identify: Callable[[Any], Hashable], seen: set[int]) -> Hashable:
    """Return what a function, a partial or a tuple holds; `identify` returns what is not plain, or None to skip it."""
    if value is None or type(value) in (str, int, float, bool):
        return type(value).__name__, value
    if is_defined_by_name(value):
        return f"{value.__module__}:{value.__qualname__}"
    if type(value) is tuple:
        held: Iterable[Any] = value
    elif id(value) in seen or not isinstance(value, FunctionType | functools.partial):
        return None if id(value) in seen else identify(value)
    elif isinstance(value, FunctionType):
        defaults = *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()
        held = *([value.__qualname__] if seen else []), value.__code__, *variables_of(value).values(), *defaults
    else:
        held = *([] if is_defined_by_name(value.func) else [value.func]), *value.args, *value.keywords.values()
    seen.add(id(value))
    return tuple(one for item in held if (one := _held_by(item, identify, seen)) is not None) or None


def variables_of(function: FunctionType) -> dict[str, Any]:
    """Return the variables of other functions that a function uses and that are assigned."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    return {name: cell.cell_contents for name, cell in cells if cell != CellType()}
