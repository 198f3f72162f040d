"""Waiting for functions of users that may be asynchronous."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from agentgit.async_api import WAITING_LOOP
from agentgit.errors import InvalidInput

Settle = Callable[[Awaitable[Any]], Any]
"""Waits for an asynchronous function."""


def wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for an asynchronous function, on an event loop of its own in a thread of its own.

    The caller may stand on a running loop, as every cell of a notebook does.
    """

    async def settled() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, settled()).result()


def settle_here() -> Settle:
    """Return what waits for asynchronous functions: on the event loop that awaits this code, if one does."""
    loop = WAITING_LOOP.get()
    if loop is None or not loop.is_running() or loop is _running():
        return wait

    def settle(awaitable: Awaitable[Any]) -> Any:
        async def settled() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(settled(), loop).result()

    return settle


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def settled(settle: Settle, answer: Any) -> Any:
    """Wait for what a user's function gave, if it is asynchronous."""
    return settle(answer) if inspect.isawaitable(answer) else answer


def done(settle: Settle, answer: Any) -> Any:
    """Wait for what a user's function gave, and make sure that the function has run.

    Raises:
        InvalidInput: It gave a generator, a map or a filter, none of whose steps has run.
    """
    value = settled(settle, answer)
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, (map, filter)):
        raise InvalidInput(f"it gave a {type(value).__name__}, none of whose steps has run; run them in the function.")
    return value
