"""Transactions inside transactions: a callback that runs in one must not begin another that would wait for it.

Such a callback is the progress of a collection or an import, or a serializer of the user's. What it waits for never
comes: on SQLite the one writer is its own caller, and a collection on PostgreSQL has locked the tables.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from agentgit.errors import Conflict, Unavailable

WAITING_SECONDS = 600
"""The time that a writer waits for another one of this process. Collections of large databases take minutes."""


@dataclass
class Stage:
    """The progress of a transaction.

    Args:
        place: The database.
        writes: True if other writers wait for it.
        committing: True if its commit is on its way; None if it writes nothing that a commit stores.
        is_open: False as soon as it has ended.
    """

    place: str
    writes: bool = False
    committing: bool | None = None
    is_open: bool = True


# Not a thread's own: on an event loop the transactions of many tasks share one thread, and a task or a thread that a
# callback starts and waits for would wait just as long.
_open: ContextVar[tuple[Stage, ...]] = ContextVar("agentgit_transactions", default=())


@contextmanager
def nested(stage: Stage, name: str, *, has_one_connection: bool) -> Iterator[None]:
    """Refuse a transaction that would wait for one that its caller is in.

    Args:
        stage: The stage of the new transaction.
        name: The name of the database.
        has_one_connection: True if not even a reader may come between.

    Raises:
        Conflict: It would wait for ever; nothing was done.
    """
    around = [one for one in _open.get() if one.is_open]
    for one in around:
        if one.place == stage.place and (has_one_connection or (stage.writes and one.writes)):
            raise Conflict(
                f"This was called inside a transaction of {name}, for example in the progress callback of gc or "
                f"import_. It cannot {'write' if stage.writes else 'read'} there, because it would wait for its "
                "own caller. Call it after that call has returned."
            )
    _open.set((*around, stage))
    try:
        yield
    finally:
        stage.is_open = False  # also for who has copied the context
        _open.set(tuple(one for one in _open.get() if one.is_open))


class Turns:
    """A lock whose users take turns, and give up if another one keeps it for too long.

    Args:
        lock: The lock.
    """

    def __init__(self, lock: Any = None) -> None:
        self._lock = lock or threading.Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(timeout=WAITING_SECONDS):
            raise Unavailable(
                f"Another thread of this program has been writing for {WAITING_SECONDS} s. If it runs gc or an import "
                "whose progress callback waits for this call, call this afterwards. Otherwise, try again."
            )

    def __exit__(self, *_: object) -> None:
        self._lock.release()
