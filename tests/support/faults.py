"""Faults, delays and visitors inside agentgit, at the places that `points` names.

Everything here is a context manager: when its block ends, agentgit is as before.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any, Protocol

import backend
import points
import pytest


class Place(Protocol):
    """What has a function that is called by its name: a `Point`, or one of a test's own."""

    @property
    def owner(self) -> Any:
        """The module or class that has it."""

    @property
    def name(self) -> str:
        """Its name there."""


@contextmanager
def around(point: Place, do: Callable[..., Any]) -> Iterator[None]:
    """Let a function stand in for what is at a point; it gets the plain one first, then the arguments."""
    plain = getattr(point.owner, point.name)

    def changed(*args: Any, **kwargs: Any) -> Any:
        return do(plain, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.owner, point.name, changed)
        yield


def before(point: Place, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
    """Let something happen each time before a point.

    Args:
        point: The place.
        act: What happens.
        in_this_thread: True to leave alone what other threads do.
    """
    here = threading.get_ident()

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not in_this_thread or threading.get_ident() == here:
            act()
        return plain(*args, **kwargs)

    return around(point, do)


def after(point: Place, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
    """Let something happen each time after a point; the arguments are those of `before`."""
    here = threading.get_ident()

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = plain(*args, **kwargs)
        if not in_this_thread or threading.get_ident() == here:
            act()
        return done

    return around(point, do)


def fails(point: Place, error: BaseException | type[BaseException]) -> AbstractContextManager[None]:
    """Let what is at a point fail, and do nothing."""

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise error

    return around(point, do)


def interrupted(point: Place) -> AbstractContextManager[None]:
    """Let somebody press Ctrl-C when a point is reached."""
    return fails(point, KeyboardInterrupt)


def slow(point: Place, seconds: float) -> AbstractContextManager[None]:
    """Let it take a while until a point goes on."""
    return before(point, lambda: time.sleep(seconds))


# -- death


def die(*_: Any, **__: Any) -> None:
    """Be killed: nothing is cleaned up, nothing more is written."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(*at: Place, time: int = 1) -> AbstractContextManager[None]:
    """Kill this process when one of some points is reached.

    Args:
        at: The points.
        time: At the how manieth time, counted together.
    """
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
    """Count the transactions that write."""
    found: list[None] = []
    with before(points.EVERY_WRITE, lambda: found.append(None)):
        yield found


@contextmanager
def write_fails_once(when: Callable[[], bool], error: Exception) -> Iterator[list[None]]:
    """Let the first transaction that wants to write at that time fail; tells whether there was one."""
    failed: list[None] = []

    def refuse() -> None:
        if when() and not failed:
            failed.append(None)
            raise error

    with before(points.EVERY_WRITE, refuse):
        yield failed


@contextmanager
def no_state_is_read() -> Iterator[None]:
    """Fail whatever reads a state, or a value of one."""
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
    """Collect the messages that are read, by their hashes."""
    found: list[bytes] = []

    def do(plain: Callable[..., Any], graphs: Any, connection: Any, hashes: Any) -> Any:
        found.extend(hashes)
        return plain(graphs, connection, hashes)

    with around(points.READ_MESSAGES, do):
        yield found


def delete_thread(repo: Any, thread: str, connection: Any = None) -> None:
    """Take the rows of a LangGraph thread away, as a collection does.

    Args:
        repo: The repository.
        thread: The thread.
        connection: A transaction that writes; None for one of its own.
    """
    delete = repo.context.store.graphs.delete_thread
    if connection is None:
        backend.write(repo, lambda mine: delete(mine, thread))
    else:
        delete(connection, thread)


# -- files


def full_disk(time: int | None = None) -> AbstractContextManager[None]:
    """Let the disk be full when a file takes its place for the so manieth time; None is each time."""
    return _renames(lambda n: errno.ENOSPC if time in (None, n) else None)


def full_for(names: set[bytes]) -> AbstractContextManager[None]:
    """Let the disk be full when one of some files takes its place."""
    return around(points.RENAME_FILE, lambda plain, *args: errno.ENOSPC if names & set(args) else plain(*args))


def no_exchange(error: int) -> AbstractContextManager[None]:
    """Let the system, or a file system, have no rename that exchanges two files.

    Args:
        error: The number of the error that says so.
    """
    return _renames(lambda n: error)


def _renames(error_of: Callable[[int], int | None]) -> AbstractContextManager[None]:
    """Let renames fail: by their number, from 1; None lets one succeed."""
    made: list[None] = []

    def rename(plain: Callable[..., int], *args: Any) -> int:
        made.append(None)
        error = error_of(len(made))
        return plain(*args) if error is None else error

    return around(points.RENAME_FILE, rename)


def as_a_file_is_replaced(act: Callable[[str], Any]) -> AbstractContextManager[None]:
    """Let somebody act once, after a change of a file has looked and before it changes anything.

    Args:
        act: What they do; it gets the path of the file.
    """
    waiting = [act]

    def hide(plain: Callable[..., Any], entry: Any, *args: Any) -> Any:
        if waiting:
            waiting.pop()(os.fsdecode(entry.path))
        return plain(entry, *args)

    return around(points.HIDE_FILE, hide)


def as_a_file_goes_back(act: Callable[[str], Any]) -> AbstractContextManager[None]:
    """Let somebody act each time before a file that they wrote goes back to its place; it gets the path."""

    def give_back(plain: Callable[..., Any], entry: Any, *args: Any) -> Any:
        act(os.fsdecode(entry.path))
        return plain(entry, *args)

    return around(points.GIVE_FILE_BACK, give_back)


def as_two_files_are_exchanged(act: Callable[[], Any], time: int) -> AbstractContextManager[None]:
    """Let somebody act before two files are exchanged for the so manieth time."""
    made: list[None] = []

    def rename(plain: Callable[..., int], *args: Any) -> int:
        if points.is_exchange(args):
            made.append(None)
            if len(made) == time:
                act()
        return plain(*args)

    return around(points.RENAME_FILE, rename)


def as_a_file_was_written(path: bytes, act: Callable[[], Any]) -> AbstractContextManager[None]:
    """Let somebody act when a restore has written a file."""

    def put(plain: Callable[..., Any], disk: Any, written: bytes, *args: Any) -> Any:
        done = plain(disk, written, *args)
        if written == path:
            act()
        return done

    return around(points.WRITE_FILE, put)


# -- other settings


@contextmanager
def setting(point: Place, value: Any) -> Iterator[None]:
    """Let a limit or a setting be another one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.owner, point.name, value)
        yield


def long_login_pauses() -> AbstractContextManager[None]:
    """Let who guessed wrong too often wait longer than any test takes."""
    return setting(points.FIRST_PAUSE_OF_LOGINS, timedelta(minutes=2))


def long_webhook_pauses() -> AbstractContextManager[None]:
    """Let a webhook that failed wait longer than any test takes."""
    return setting(points.FIRST_PAUSE_OF_WEBHOOKS, timedelta(hours=1))


def quick_feeds() -> AbstractContextManager[None]:
    """Let live feeds look all the time whether there is something new."""
    return setting(points.SECONDS_BETWEEN_LOOKS_OF_FEEDS, 0.01)


def on_another_machine() -> AbstractContextManager[None]:
    """Let this process say that it is on another machine."""
    return setting(points.NAME_OF_MACHINE, lambda: "another machine")


def without_opentelemetry() -> AbstractContextManager[None]:
    """Let agentgit find that OpenTelemetry is not installed."""
    return setting(points.OPENTELEMETRY, None)


def of_an_earlier_release() -> AbstractContextManager[None]:
    """Let threads with a DeltaChannel be stored as an earlier release did: their writes alone."""
    return setting(points.FOLDS_OF_DELTA_CHANNELS, lambda *args: {})
