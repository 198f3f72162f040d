"""Faults, delays and concurrent actions inside agentgit, at the places that `points` names.

Most functions return a context manager that restores agentgit at the end of its block.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import backend
import points
import pytest


class Place(Protocol):
    """A function of a module or class that tests can replace: a `Point`, or a place that a test defines."""

    @property
    def owner(self) -> Any:
        """The module or class that has the function."""

    @property
    def name(self) -> str:
        """The name of the function in its owner."""


@contextmanager
def setting(point: Place, value: Any) -> Iterator[None]:
    """Replace what is at a point, such as a limit or a setting."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.owner, point.name, value)
        yield


@contextmanager
def around(point: Place, do: Callable[..., Any]) -> Iterator[None]:
    """Replace the function at a point; the replacement receives the original function, then the arguments."""
    plain = getattr(point.owner, point.name)

    def changed(*args: Any, **kwargs: Any) -> Any:
        return do(plain, *args, **kwargs)

    with setting(point, changed):
        yield


def before(point: Place, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
    """Call a function each time before a point runs, or only if this thread comes to it."""
    here = threading.get_ident()

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not in_this_thread or threading.get_ident() == here:
            act()
        return plain(*args, **kwargs)

    return around(point, do)


def after(point: Place, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
    """Call a function each time after a point has run; the arguments are those of `before`."""
    here = threading.get_ident()

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = plain(*args, **kwargs)
        if not in_this_thread or threading.get_ident() == here:
            act()
        return done

    return around(point, do)


def fails(point: Place, error: BaseException | type[BaseException]) -> AbstractContextManager[None]:
    """Make a point raise an error instead of running."""

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise error

    return around(point, do)


def interrupted(point: Place) -> AbstractContextManager[None]:
    """Raise KeyboardInterrupt at a point, as Ctrl-C does."""
    return fails(point, KeyboardInterrupt)


def slow(point: Place, seconds: float) -> AbstractContextManager[None]:
    """Delay a point."""
    return before(point, lambda: time.sleep(seconds))


# -- killed processes


def die(*_: Any, **__: Any) -> None:
    """Kill this process without cleanup."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(*at: Place, time: int = 1) -> AbstractContextManager[None]:
    """Kill this process when it reaches one of the points, at the given visit of all of them, from 1."""
    reached: list[None] = []

    def count() -> None:
        reached.append(None)
        if len(reached) == time:
            die()

    stack = ExitStack()
    for point in at:
        stack.enter_context(before(point, count))
    return stack


# -- the database


@contextmanager
def writes_counted() -> Iterator[list[None]]:
    """Collect one item for each write transaction."""
    found: list[None] = []
    with before(points.EVERY_WRITE, lambda: found.append(None)):
        yield found


@contextmanager
def write_fails_once(when: Callable[[], bool], error: Exception) -> Iterator[list[None]]:
    """Make the first write transaction for which `when` is true fail; the list is empty until it fails."""
    failed: list[None] = []

    def refuse() -> None:
        if when() and not failed:
            failed.append(None)
            raise error

    with before(points.EVERY_WRITE, refuse):
        yield failed


@contextmanager
def no_state_is_read() -> Iterator[None]:
    """Make each read of a state or of a value fail."""
    never = AssertionError("a state was read")
    with (
        fails(points.READ_STATE, never),
        fails(points.FIND_STATE, never),
        fails(points.READ_VALUE, never),
        fails(points.READ_VALUES, never),
    ):
        yield


@contextmanager
def messages_read() -> Iterator[list[bytes]]:
    """Collect the hashes of the messages that are read."""
    found: list[bytes] = []

    def do(plain: Callable[..., Any], graphs: Any, transaction: Any, session_id: int, hashes: Any) -> Any:
        found.extend(hashes)
        return plain(graphs, transaction, session_id, hashes)

    with around(points.READ_MESSAGES, do):
        yield found


def delete_thread(repo: Any, thread: str, transaction: Any = None) -> None:
    """Delete the rows of a LangGraph thread as garbage collection does, perhaps in a transaction of the caller."""
    delete = getattr(*points.DELETE_THREAD.place)
    if transaction is None:
        backend.write(repo, lambda mine: delete(mine, thread))
    else:
        delete(transaction, thread)


# -- files


def full_disk() -> AbstractContextManager[None]:
    """Make each new file of a workspace fail as on a full disk."""
    return fails(points.CREATE_FILE, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def fill_disk(folder: str) -> None:
    """Fill the file system of a folder to its last byte."""
    with suppress(OSError), Path(folder, "filler").open("wb", buffering=0) as file:
        for size in (2**16, 1):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))


def empty_disk(folder: str) -> None:
    """Undo `fill_disk`."""
    Path(folder, "filler").unlink(missing_ok=True)


@contextmanager
def full_for(names: set[bytes]) -> Iterator[None]:
    """Make changes of these files fail as on a full disk: when a new one takes its name, or one is removed."""

    def refuse(plain: Callable[..., Any], entry: Any, *args: Any) -> Any:
        if entry.name in names and not _is_back(*args):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(entry, *args)

    with around(points.NAME_FILE, refuse), around(points.HIDE_FILE, refuse):
        yield


def _is_back(name: Any) -> bool:
    """Return whether the file that takes a name was there before."""
    return isinstance(name, bytes) and name.endswith(b"-old")


def no_links(error: int) -> AbstractContextManager[None]:
    """Make each link fail with this error, as on a file system without hard links."""
    return fails(points.LINK_FILE, OSError(error, os.strerror(error)))


@contextmanager
def as_a_file_is_replaced(act: Callable[[str], Any]) -> Iterator[None]:
    """Call a function once with the path of a file that was checked and is not changed yet."""
    waiting = [act]

    def change(plain: Callable[..., Any], entry: Any, *args: Any) -> Any:
        if waiting:
            waiting.pop()(os.fsdecode(entry.path))
        return plain(entry, *args)

    with around(points.HIDE_FILE, change), around(points.NAME_FILE, change):
        yield


def as_a_file_goes_back(act: Callable[[str], Any]) -> AbstractContextManager[None]:
    """Call a function each time before a file of another writer is put back; it receives the path."""

    def give_back(plain: Callable[..., Any], entry: Any, name: bytes) -> Any:
        if _is_back(name):
            act(os.fsdecode(entry.path))
        return plain(entry, name)

    return around(points.NAME_FILE, give_back)


# -- other settings


def quick_feeds() -> AbstractContextManager[None]:
    """Make live feeds poll every 10 milliseconds."""
    return setting(points.SECONDS_BETWEEN_LOOKS_OF_FEEDS, 0.01)


def on_another_machine() -> AbstractContextManager[None]:
    """Change the machine name of this process."""
    return setting(points.NAME_OF_MACHINE, lambda: "another machine")


def without_delta_values() -> AbstractContextManager[None]:
    """Store threads with a DeltaChannel with their writes only."""
    return setting(points.FOLDS_OF_DELTA_CHANNELS, lambda *args: {})
