"""How long `make soak` goes on, and which of the variants of a test it alone runs."""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from typing import Any

STEPS = int(os.environ.get("STEPS", "10000"))
"""The number of steps of random sessions."""

KILLS = int(os.environ.get("KILLS", "400"))
"""The number of processes that are killed at random."""

SEED = int(os.environ.get("SEED") or secrets.randbelow(1_000_000))
"""The first seed of what is random: a new one in each run."""

os.environ["SEED"] = str(SEED)  # for the other processes of the run


def each_value_once(variants: Sequence[dict[str, Any]]) -> list[int]:
    """Choose variants until each value of each parameter was chosen, and return their positions.

    Among variants with as many new values, the one whose values, and then pairs of values, were chosen least.

    Args:
        variants: The values of each variant, by parameter.
    """
    left, chosen, used = [[*variant.items()] for variant in variants], [], Counter[Any]()
    left = [[(name, repr(value)) for name, value in variant] for variant in left]

    def worth(number: int) -> tuple[int, int, int]:
        values, pairs = left[number], combinations(left[number], 2)
        return -sum(not used[one] for one in values), sum(used[one] for one in values), sum(used[two] for two in pairs)

    while not all(used[value] for values in left for value in values):
        chosen.append(min(range(len(left)), key=worth))
        used.update(left[chosen[-1]])
        used.update(combinations(left[chosen[-1]], 2))
    return chosen
