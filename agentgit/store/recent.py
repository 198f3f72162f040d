"""A small cache: the values used last, up to a total weight."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """The values used last, up to a total weight. Safe to use from many threads.

    Args:
        limit: the greatest total weight.
        weigh: tells the weight of a value.

    Example:
        >>> recent = Recent(16, len)
        >>> recent.add([(b"a", "1"), (b"b", "way too heavy")])
        >>> recent.get(b"a"), recent.get(b"b")
        ('1', None)
    """

    def __init__(self, limit: int, weigh: Callable[[T], int]) -> None:
        self._limit, self._weigh = limit, weigh
        self._held: OrderedDict[bytes, T] = OrderedDict()
        self._total = 0
        self._lock = threading.Lock()

    def get(self, key: bytes) -> T | None:
        """Give one value, or None."""
        with self._lock:
            found = self._held.get(key)
            if found is not None:
                self._held.move_to_end(key)
            return found

    def find(self, keys: Iterable[bytes]) -> dict[bytes, T]:
        """Give those that are held, in one turn."""
        with self._lock:
            held = self._held
            found = {key: value for key in keys if (value := held.get(key)) is not None}
            for key in found:
                held.move_to_end(key)
            return found

    def add(self, values: Iterable[tuple[bytes, T]]) -> None:
        """Hold these, and let go of those used longest ago. A value heavier than an eighth of the limit is not held."""
        with self._lock:
            for key, value in values:
                weight = self._weigh(value)
                if key in self._held or weight * 8 > self._limit:
                    continue
                self._held[key] = value
                self._total += weight
            while self._total > self._limit:
                self._total -= self._weigh(self._held.popitem(last=False)[1])
