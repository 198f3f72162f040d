"""Threads that the nodes of a rerun start: the calls of tools in them belong to the rerun, too.

A new thread has no context, so LangChain does not know which turn a call in it belongs to. `Thread.start` and
`ThreadPoolExecutor.submit` are wrapped once per process; outside a rerun they behave as before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from agentgit.agents.turn.tool_hook import rerun_config, with_rerun_config, wrap_once

_is_starting_worker: ContextVar[bool] = ContextVar("is_starting_worker", default=False)
"""True while a pool starts a thread, which may run the work of others later."""


def follow_threads() -> None:
    """Wrap the two methods that start work in a thread, unless they are already wrapped."""
    wrap_once(threading.Thread, "start", _wrap_start)
    wrap_once(ThreadPoolExecutor, "submit", _wrap_submit)


def _wrap_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        config = rerun_config()
        if config is not None and not _is_starting_worker.get():
            self.run = with_rerun_config(config, self.run)  # type: ignore[method-assign]
        original(self)

    return start


def _wrap_submit(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        config = rerun_config()
        if config is None:
            return original(self, fn, *args, **kwargs)
        token = _is_starting_worker.set(True)
        try:
            return original(self, with_rerun_config(config, fn), *args, **kwargs)
        finally:
            _is_starting_worker.reset(token)

    return submit
