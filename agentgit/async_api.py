"""Async twins of methods."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")


def async_twin(method: Callable[Concatenate[Owner, P], T]) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """Make the async twin of a method: the same work in a thread, while the event loop goes on.

    Args:
        method: Of the same class.

    Returns:
        A coroutine function with the signature of the method.

    Example:
        >>> class Counter:
        ...     def count(self, upto: int) -> int:
        ...         return sum(range(upto))
        ...
        ...     acount = async_twin(count)
        >>> asyncio.run(Counter().acount(4))
        6
    """

    @functools.wraps(method)
    async def twin(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self, *args, **kwargs)

    name = method.__name__
    twin.__name__, twin.__qualname__ = f"a{name}", twin.__qualname__.removesuffix(name) + f"a{name}"
    twin.__doc__ = f"See `{name}`."
    return twin
