"""Nested transactions: a callback inside a transaction must not begin another one that would wait for it.

Examples are the progress callback of a garbage collection or an import, and a user's serializer. The wait would never
end: on SQLite the only writer is the caller itself, and a garbage collection on PostgreSQL has locked the tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agentgit.errors import Conflict, Unavailable

LOCK_TIMEOUT_SECONDS = 600
"""How long a writer waits for another one of this process. A garbage collection of a large database takes minutes."""


@dataclass
class TransactionState:
    """The progress of a transaction."""

    database_key: str
    writes: bool = False
    committing: bool | None = None
    is_open: bool = True


# Not thread-local: the tasks of an event loop share one thread, and a task or a thread that a callback starts and waits
# for would wait for ever too.
_transactions: ContextVar[tuple[TransactionState, ...]] = ContextVar("agentgit_transactions", default=())


def is_in_transaction() -> bool:
    """Return whether the caller is inside a transaction."""
    return any(one.is_open for one in _transactions.get())


@contextmanager
def enter_transaction(state: TransactionState, name: str, *, has_one_connection: bool) -> Iterator[None]:
    """Enter a transaction, and refuse one that would wait for a transaction of its caller."""
    outer_states = [one for one in _transactions.get() if one.is_open]
    for outer in outer_states:
        if outer.database_key == state.database_key and (has_one_connection or (state.writes and outer.writes)):
            raise Conflict(
                f"This was called inside a transaction of {name}, for example in the progress callback of gc or "
                f"import_. It cannot {'write' if state.writes else 'read'} there, because it would wait for its "
                "own caller. Call it after that call has returned."
            )
    _transactions.set((*outer_states, state))
    try:
        yield
    finally:
        state.is_open = False  # also in copies of the context
        _transactions.set(tuple(one for one in _transactions.get() if one.is_open))


class TimedLock:
    """A lock that raises an error if another user holds it for too long."""

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=LOCK_TIMEOUT_SECONDS):
            raise Unavailable(
                f"Another thread of this program has been writing for {LOCK_TIMEOUT_SECONDS} s. If it runs gc or an "
                "import whose progress callback waits for this call, call this afterwards. Otherwise, try again."
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
