"""One at a time, across threads and processes; a lock goes with the process that holds it."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from agentgit.errors import Unavailable

PAUSE = 0.002
"""The pause before the next attempt, in seconds."""

_held = threading.local()
"""The files that this thread has locked. Without this list it would wait for itself."""


@contextmanager
def exclusive(path: str | os.PathLike[str], *, patience: float, what: str) -> Iterator[None]:
    """Keep all others out until the block ends.

    Args:
        path: The path of a file that stands for what is locked. It is made if it is not there, and stays.
        patience: The time to wait for others, in seconds.
        what: The thing that is locked, for the message.

    Raises:
        Unavailable: Another one took longer than that, this thread has it already, or the file cannot be opened.
    """
    end, place = time.monotonic() + patience, os.path.realpath(path)
    mine: set[str] = _held.__dict__.setdefault("places", set())
    if place in mine:
        raise Unavailable(f"This is called from inside a use of {what}, for example from a callback. Do it after that.")
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise Unavailable(f"{what} cannot be locked: {path}: {error.strerror}. Give the permission.") from error
    try:
        while not _taken(lock):
            if time.monotonic() > end:
                raise Unavailable(f"Another process uses {what}; try again later.")
            time.sleep(PAUSE)
        mine.add(place)
        yield
    finally:
        mine.discard(place)
        os.close(lock)


def _taken(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
