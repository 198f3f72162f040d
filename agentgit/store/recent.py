"""A small cache: the values used last, up to a total weight."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The values used last, up to a total weight. Safe to use from many threads.

    Args:
        limit: the greatest total weight.
        weigh: tells the weight of a value.

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
        self._young: dict[bytes, T] = {}
        self._old: dict[bytes, T] = {}
        self._total = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> T | None:
        """Give one value, or None."""
        found = self._young.get(key)
        return found if found is not None else self.find([key]).get(key)

    def find(self, keys: Collection[bytes]) -> dict[bytes, T]:
        """Give those that are held."""
        young, old = self._young, self._old
        found = {key: value for key in keys if (value := young.get(key)) is not None}
        if old and len(found) < len(keys):
            again = {key: value for key in keys if key not in found and (value := old.get(key)) is not None}
            self.add(again.items())
            found.update(again)
        return found

    def add(self, values: Iterable[tuple[bytes, T]]) -> None:
        """Hold these, and let go of those used longest ago. A value heavier than an eighth of the limit is not held."""
        with self._lock:
            for key, value in values:
                weight = self._weigh(value)
                if key in self._young or weight * 8 > self._limit:
                    continue
                if (self._total + weight) * 2 > self._limit:
                    self._young, self._old, self._total = {}, self._young, 0
                self._young[key] = value
                self._total += weight
