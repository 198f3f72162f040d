"""Alignment of two lists: the items that they share in the same order. Pure, no IO."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

Items = list[dict[str, Any]]


def align(left: Items, right: Items, identity: Callable[[dict[str, Any]], Hashable]) -> tuple[int, Items, Items]:
    """Return the number of items that two lists share in the same order, and the items that only one of them has."""
    left_keys, right_keys = _number_items(map(identity, left)), _number_items(map(identity, right))
    positions = {item: position for position, item in enumerate(right_keys)}
    common = [(n, positions[item]) for n, item in enumerate(left_keys) if item in positions]
    aligned = [common[n] for n in _longest_increasing([position for _, position in common])]
    left_positions, right_positions = ({pair[side] for pair in aligned} for side in (0, 1))
    removed = [item for n, item in enumerate(left) if n not in left_positions]
    return len(aligned), removed, [item for n, item in enumerate(right) if n not in right_positions]


def _number_items(items: Iterable[Hashable]) -> list[tuple[Hashable, int]]:
    """Number equal items by occurrence, which makes each item unique and keeps the alignment fast."""
    counts: dict[Hashable, int] = {}
    numbered = []
    for item in items:
        counts[item] = counts.get(item, 0) + 1
        numbered.append((item, counts[item]))
    return numbered


def _longest_increasing(numbers: Sequence[int]) -> list[int]:
    """Return the positions of a longest increasing subsequence, by patience sorting.

    Example:
        >>> _longest_increasing([3, 1, 2, 9, 0, 4])
        [1, 2, 5]
    """
    tails: list[int] = []  # for each length, the smallest number that such a run ends with
    tail_positions: list[int] = []  # the position of that number
    predecessors: list[int] = []  # for each position, the previous one in its run
    for position, number in enumerate(numbers):
        length = bisect_left(tails, number)
        tails[length : length + 1] = [number]
        tail_positions[length : length + 1] = [position]
        predecessors.append(tail_positions[length - 1] if length else -1)
    subsequence, position = [], tail_positions[-1] if tail_positions else -1
    while position >= 0:
        subsequence.append(position)
        position = predecessors[position]
    return subsequence[::-1]
