"""Ids that the application makes: time-ordered integers below 2^53, exact in JSON and JavaScript."""

import os
import random
import threading
import time

EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z; 41 bits of milliseconds reach to the year 2094."""

COUNTER_BITS = 12

ID_LIMIT = 2**53

_lock = threading.Lock()
_last_id = 0


def _replace_lock() -> None:
    """Replace the lock in a child process, because a thread of the parent may hold it and cannot release it there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # other systems have no fork
    os.register_at_fork(after_in_child=_replace_lock)


def new_id() -> int:
    """Return an id that is greater than every id this process made before.

    It has 41 bits of milliseconds and 12 bits that start at random in each millisecond, so two processes rarely make
    the same id. If they do, the database refuses the second row and the transaction runs again with new ids.
    """
    global _last_id
    with _lock:
        timestamp_bits = (time.time_ns() // 1_000_000 - EPOCH_MS) << COUNTER_BITS
        candidate = timestamp_bits | random.getrandbits(COUNTER_BITS - 1)  # not a secret, and needs no system call
        _last_id = max(candidate, _last_id + 1)  # also when the clock goes back
        return _last_id


def is_id(value: object) -> bool:
    """Return whether a value is in the range of ids. A database would refuse others with its own error message."""
    return isinstance(value, int) and 0 <= value < ID_LIMIT
