"""Async twins of methods, and the event loop that they were called on."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import AsyncGeneratorType
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Owner = TypeVar("Owner")

LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("agentgit_loop", default=None)
"""The event loop of the async method or turn that this code runs for; also set in the threads that it uses."""

WAITING_LOOP: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("agentgit_waiting_loop", default=None)
"""The event loop that awaits this code, which runs in a thread; users' coroutine functions can run on the loop."""

MAX_POLLS = 2000
"""How often, every 5 ms, a generator that the loop is closing is polled."""


@contextmanager
def on_loop() -> Iterator[None]:
    """Run coroutine functions that the block calls, such as callbacks, on the running event loop."""
    token = LOOP.set(asyncio.get_running_loop())
    try:
        yield
    finally:
        LOOP.reset(token)


@contextmanager
def awaiting() -> Iterator[None]:
    """Let threads that the block awaits call coroutine functions on the running event loop."""
    token = WAITING_LOOP.set(asyncio.get_running_loop())
    try:
        with on_loop():
            yield
    finally:
        WAITING_LOOP.reset(token)


class Closing:
    """Closes an asynchronous generator inside another one, as `contextlib.aclosing`, also when their loop ends.

    Then Python 3.11 may throw twice into the outer one, and the loop may already be closing the inner one.
    """

    def __init__(self, generator: Any) -> None:
        self._generator: AsyncGeneratorType[Any, None] = generator

    async def __aenter__(self) -> AsyncGenerator[Any, None]:
        return self._generator

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.create_task(self._close())
        except (GeneratorExit, asyncio.CancelledError):  # perhaps before the task has begun
            await self._close()
            raise

    async def _close(self) -> None:
        polls = 0
        while self._is_open and self._generator.ag_running and polls < MAX_POLLS:
            polls += 1
            await asyncio.sleep(0.005)
        if self._is_open:
            await self._generator.aclose()

    @property
    def _is_open(self) -> bool:
        return self._generator.ag_frame is not None  # Python 3.11 may leave `ag_running` true for ever


def async_twin(
    method: Callable[Concatenate[Owner, P], T], prepare: Callable[[Owner], Coroutine[Any, Any, None]] | None = None
) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
    """Create the async twin of a method, which runs the method in a thread and does not block the event loop.

    Coroutine functions that the method calls, such as undo functions, run on that loop.

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
        if prepare is not None:
            await prepare(self)
        with awaiting():
            return await asyncio.to_thread(method, self, *args, **kwargs)

    _name_twin(twin, method.__name__)
    return twin


def twin_of(
    method: Callable[Concatenate[Owner, P], T],
) -> Callable[[Callable[..., Coroutine[Any, Any, T]]], Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]]:
    """Return a decorator that gives a coroutine function the signature of the method whose async twin it is."""

    def sign(twin: Callable[..., Coroutine[Any, Any, T]]) -> Callable[Concatenate[Owner, P], Coroutine[Any, Any, T]]:
        functools.update_wrapper(twin, method)
        _name_twin(twin, method.__name__)
        return twin

    return sign


def async_iterator_twin(
    method: Callable[Concatenate[Owner, P], Iterator[T]],
) -> Callable[Concatenate[Owner, P], AsyncIterator[T]]:
    """Create the async twin of a method that returns an iterator; each item is computed in a thread."""

    @functools.wraps(method)
    async def twin(self: Owner, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        with awaiting():
            iterator = await asyncio.to_thread(method, self, *args, **kwargs)
        while True:
            with awaiting():  # not around the `yield`, which may end in another context
                item = await asyncio.to_thread(next, iterator, _END)
            if item is _END:
                return
            yield item

    _name_twin(twin, method.__name__)
    return twin


_END: Any = object()
"""What `next` returns at the end of an iterator; the event loop cannot pass a StopIteration on."""


def _name_twin(twin: Callable[..., Any], name: str) -> None:
    twin.__name__, twin.__qualname__ = f"a{name}", twin.__qualname__.removesuffix(name) + f"a{name}"
    twin.__doc__ = f"See `{name}`."
