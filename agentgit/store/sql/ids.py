"""Identities made by the application: time-ordered integers below 2^53, exact in JSON and JavaScript."""

import os
import random
import secrets
import threading
import time

EPOCH_MS = 1_735_689_600_000
"""2025-01-01T00:00:00Z; 41 bits of milliseconds reach to the year 2094."""

COUNTER_BITS = 12

ID_LIMIT = 2**53

_lock = threading.Lock()
_last = 0


def _after_fork() -> None:
    """Forget, in a child, a lock that a thread of its parent may have held: nobody gives it back there."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # elsewhere no process forks
    os.register_at_fork(after_in_child=_after_fork)


def new_id() -> int:
    """Make an id that is greater than every id this process made before.

    41 bits of milliseconds and 12 bits that start at random in each millisecond, so that two processes rarely meet; if
    they do, the database refuses the second row and the transaction runs again with new ids.

    Example:
        >>> first, second = new_id(), new_id()
        >>> first < second < 2**53
        True
    """
    global _last
    with _lock:
        now = (time.time_ns() // 1_000_000 - EPOCH_MS) << COUNTER_BITS
        fresh = now | random.getrandbits(COUNTER_BITS - 1)  # no secret, and no call of the system
        _last = max(fresh, _last + 1)  # also when the clock goes back
        return _last


def is_id(value: object) -> bool:
    """Return whether something can be the id of anything; a database refuses others in words of its own."""
    return isinstance(value, int) and 0 <= value < ID_LIMIT


def new_tenant_id() -> int:
    """Make a tenant's id: random, so that tenants spread evenly over shards."""
    return secrets.randbits(52) | 1
