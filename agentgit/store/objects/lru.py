"""A small cache of the most recently used values."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from agentgit.store.sql import process

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class LRUCache(Generic[K, T]):
    """A thread-safe cache of the most recently used values, which must be truthy, up to a total weight."""

    def __init__(self, limit: int, weigh: Callable[[T], int] | None = None) -> None:
        self._limit, self._weigh = limit, weigh
        self.after_fork()
        process.register_for_fork(self)

    def after_fork(self) -> None:
        """Clear the cache in the child process, because a thread of the parent may have been changing it."""
        # Two generations: the values used since the last change of generations, and those used in the one before. A
        # lookup in the young one moves nothing, which matters because a turn looks up thousands of values.
        self._young: dict[K, T] = {}
        self._old: dict[K, T] = {}
        self._total, self._lock = 0, threading.Lock()

    def get(self, key: K) -> T | None:
        value = self._young.get(key)
        return value if value is not None else self.lookup([key])[0]

    def lookup(self, keys: Collection[K]) -> list[T | None]:
        values = list(map(self._young.get, keys))
        old = self._old
        if old and not all(values):
            promoted = {key: old[key] for key, value in zip(keys, values, strict=True) if value is None and key in old}
            self.add(promoted.items())
            values = [value or promoted.get(key) for key, value in zip(keys, values, strict=True)]
        return values

    def add(self, values: Iterable[tuple[K, T]]) -> None:
        """Add values and evict the least recently used. A value heavier than an eighth of the limit is not cached."""
        with self._lock:
            for key, value in values:
                weight, cached = self._weight(value), self._young.get(key)
                if cached == value or weight * 8 > self._limit:
                    continue
                if (self._total + weight) * 2 > self._limit:
                    self._young, self._old, self._total = {}, self._young, 0
                self._young[key] = value
                self._total += weight - (self._weight(cached) if cached else 0)

    def _weight(self, value: T) -> int:
        return self._weigh(value) if self._weigh is not None else 1
