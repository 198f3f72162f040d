"""Measuring the memory that a process keeps, with small limits on what it may keep.

A measurement counts the bytes that Python allocates while sessions are served, after a garbage collection. The caches
are made small, so that they are full by then. What sessions leave behind, each group leaves behind, so the group
that left least counts: during another one, a table of Python or a cache of LangChain may have grown once.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agentgit.effects import registry
from agentgit.store.objects import lru

SERVED = 12
"""The number of sessions that are served before the measurements, and again during each."""

GROUPS = 3
"""The number of measurements."""


def limit_caches(monkeypatch: pytest.MonkeyPatch, divisor: int) -> None:
    """Divide the limit of every cache that is made from now on."""
    create = lru.LRUCache.__init__

    def create_small(self: Any, limit: int, weigh: Any = None) -> None:
        create(self, max(1, limit // divisor), weigh)

    monkeypatch.setattr(lru.LRUCache, "__init__", create_small)


def limit_sessions(monkeypatch: pytest.MonkeyPatch, sessions: int) -> None:
    """Limit the sessions without an agent or a handle, and the calls, of which anything is kept."""
    monkeypatch.setattr(registry, "RECENT_SESSIONS", sessions)
    monkeypatch.setattr(registry, "REMEMBERED_CALLS", sessions)


@contextmanager
def traced_memory() -> Iterator[None]:
    """Trace the memory that Python allocates."""
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def used_bytes() -> int:
    """Return the bytes that are allocated after a garbage collection."""
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def kept_bytes(serve: Callable[[int], None]) -> float:
    """Return the bytes that are kept for each session, once as many sessions have been served before."""
    serve(0)  # what a first session loads is not traced
    with traced_memory():
        for number in range(1, SERVED):
            serve(number)
        kept = []
        for group in range(1, GROUPS + 1):
            before = used_bytes()
            for number in range(group * SERVED, (group + 1) * SERVED):
                serve(number)
            kept.append((used_bytes() - before) / SERVED)
        return min(kept)
