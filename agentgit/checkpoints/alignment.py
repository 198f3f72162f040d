"""Alignment of two lists: the items that they share in the same order. Pure, no IO."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

Items = list[dict[str, Any]]


def align(left: Items, right: Items, identity: Callable[[dict[str, Any]], Hashable]) -> tuple[int, Items, Items]:
    """Return the number of items that two lists share in the same order, and the items that only one of them has.

    Args:
        left: The first list.
        right: The second list.
        identity: A function that returns the value that identifies an item.
    """
    a, b = _numbered(map(identity, left)), _numbered(map(identity, right))
    places = {item: place for place, item in enumerate(b)}
    both = [(n, places[item]) for n, item in enumerate(a) if item in places]
    kept = [both[n] for n in _rising([place for _, place in both])]
    mine, theirs = ({pair[side] for pair in kept} for side in (0, 1))
    removed = [item for n, item in enumerate(left) if n not in mine]
    return len(kept), removed, [item for n, item in enumerate(right) if n not in theirs]


def _numbered(items: Iterable[Hashable]) -> list[tuple[Hashable, int]]:
    """Number equal items by occurrence, which makes each item unique and keeps the alignment fast."""
    seen: dict[Hashable, int] = {}
    numbered = []
    for item in items:
        seen[item] = seen.get(item, 0) + 1
        numbered.append((item, seen[item]))
    return numbered


def _rising(numbers: Sequence[int]) -> list[int]:
    """Return the positions of a longest increasing subsequence, by patience sorting.

    Example:
        >>> _rising([3, 1, 2, 9, 0, 4])
        [1, 2, 5]
    """
    lasts: list[int] = []  # for each length, the smallest number that such a run ends with
    ends: list[int] = []  # the position of that number
    before: list[int] = []  # for each position, the previous one in its run
    for place, number in enumerate(numbers):
        length = bisect_left(lasts, number)
        lasts[length : length + 1] = [number]
        ends[length : length + 1] = [place]
        before.append(ends[length - 1] if length else -1)
    run, place = [], ends[-1] if ends else -1
    while place >= 0:
        run.append(place)
        place = before[place]
    return run[::-1]
