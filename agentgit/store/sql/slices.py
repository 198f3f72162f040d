"""Many things a few at a time: what one statement takes as parameters is limited."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

AT_ONCE = 500
"""The greatest number of parameters in one statement. SQLite allows 999 in old builds."""


def slices(many: Sequence[T], most: int = AT_ONCE) -> Iterator[Sequence[T]]:
    """Return a sequence in pieces, in order.

    Args:
        many: The sequence.
        most: The greatest number of items in a piece.

    Example:
        >>> list(slices([1, 2, 3, 4, 5], 2))
        [[1, 2], [3, 4], [5]]
    """
    for start in range(0, len(many), most):
        yield many[start : start + most]
