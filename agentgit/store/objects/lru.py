"""A small cache: the values used last, up to a total weight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable
from typing import Generic, TypeVar

from agentgit.store.sql import process

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Recent(Generic[K, T]):
    """The values used last, up to a total weight; all of them are true. Safe to use from many threads.

    Args:
        limit: The greatest total weight.
        weigh: The function that returns the weight of a value.

    Example:
        >>> recent = Recent(16, len)
        >>> recent.add([(b"a", "1"), (b"b", "too heavy")])
        >>> recent.get(b"a"), recent.get(b"b")
        ('1', None)
    """

    def __init__(self, limit: int, weigh: Callable[[T], int]) -> None:
        self._limit, self._weigh = limit, weigh
        # What was used since the last change of generations, and what was used in the one before. Looking something
        # up then moves nothing, which a cache that is asked for thousands of values a turn would feel.
        self._young: dict[K, T] = {}
        self._old: dict[K, T] = {}
        self._total = 0
        self._lock = threading.Lock()
        process.remember_at_fork(self)

    def before_fork(self) -> None:
        """Nothing here is to be closed."""

    def after_fork(self) -> None:
        """Begin anew, in a child: a thread of its parent may have been in the middle of something."""
        self._young, self._old, self._total, self._lock = {}, {}, 0, threading.Lock()

    def get(self, key: K) -> T | None:
        """Return one value, or None."""
        found = self._young.get(key)
        return found if found is not None else self.lookup([key])[0]

    def find(self, keys: Collection[K]) -> dict[K, T]:
        """Return those that are held."""
        return {key: value for key, value in zip(keys, self.lookup(keys), strict=True) if value is not None}

    def lookup(self, keys: Collection[K]) -> list[T | None]:
        """Return the value of each key, or None."""
        found = list(map(self._young.get, keys))
        old = self._old
        if old and not all(found):
            again = {key: old[key] for key, value in zip(keys, found, strict=True) if value is None and key in old}
            self.add(again.items())
            found = [value or again.get(key) for key, value in zip(keys, found, strict=True)]
        return found

    def add(self, values: Iterable[tuple[K, T]]) -> None:
        """Hold these, and let go of those used longest ago. A value heavier than an eighth of the limit is not held."""
        with self._lock:
            for key, value in values:
                weight, held = self._weigh(value), self._young.get(key)
                if held == value or weight * 8 > self._limit:
                    continue
                if (self._total + weight) * 2 > self._limit:
                    self._young, self._old, self._total = {}, self._young, 0
                self._young[key] = value
                self._total += weight - (self._weigh(held) if held else 0)
