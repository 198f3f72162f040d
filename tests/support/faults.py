"""Faults, delays and visitors inside agentgit, at the places that `points` names.

Everything here is a context manager: when its block ends, agentgit is as before.
"""

from __future__ import annotations

import importlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import timedelta
from typing import Any

import backend
import points
import pytest
from points import Point


@contextmanager
def around(point: Point, do: Callable[..., Any]) -> Iterator[None]:
    """Let a function stand in for what is at a point; it gets the plain one first, then the arguments."""
    plain = getattr(point.owner, point.name)

    def changed(*args: Any, **kwargs: Any) -> Any:
        return do(plain, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(point.owner, point.name, changed)
        yield


def before(point: Point, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
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


def after(point: Point, act: Callable[[], Any], *, in_this_thread: bool = False) -> AbstractContextManager[None]:
    """Let something happen each time after a point; the arguments are those of `before`."""
    here = threading.get_ident()

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        done = plain(*args, **kwargs)
        if not in_this_thread or threading.get_ident() == here:
            act()
        return done

    return around(point, do)


def fails(point: Point, error: BaseException | type[BaseException]) -> AbstractContextManager[None]:
    """Let what is at a point fail, and do nothing."""

    def do(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        raise error

    return around(point, do)


def interrupted(point: Point) -> AbstractContextManager[None]:
    """Let somebody press Ctrl-C when a point is reached."""
    return fails(point, KeyboardInterrupt)


def slow(point: Point, seconds: float) -> AbstractContextManager[None]:
    """Let it take a while until a point goes on."""
    return before(point, lambda: time.sleep(seconds))


# -- death


def die(*_: Any, **__: Any) -> None:
    """Be killed: nothing is cleaned up, nothing more is written."""
    os.kill(os.getpid(), signal.SIGKILL)


def killed(*at: Point, time: int = 1) -> AbstractContextManager[None]:
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


# -- other settings


def _set(module: str, name: str, value: Any) -> AbstractContextManager[None]:
    @contextmanager
    def changed() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(importlib.import_module(f"agentgit.{module}"), name, value)
            yield

    return changed()


def long_login_pauses() -> AbstractContextManager[None]:
    """Let who guessed wrong too often wait longer than any test takes."""
    return _set("store.records.login_attempts", "FIRST_PAUSE", timedelta(minutes=2))


def long_webhook_pauses() -> AbstractContextManager[None]:
    """Let a webhook that failed wait longer than any test takes."""
    return _set("store.audit.outbox", "FIRST_PAUSE", timedelta(hours=1))


def quick_feeds() -> AbstractContextManager[None]:
    """Let live feeds look all the time whether there is something new."""
    return _set("web.event_stream", "POLL_SECONDS", 0.01)


def on_another_machine() -> AbstractContextManager[None]:
    """Let this process say that it is on another machine."""
    return _set("store.sql.process", "_here", lambda: "another machine")


def without_opentelemetry() -> AbstractContextManager[None]:
    """Let agentgit find that OpenTelemetry is not installed."""
    return _set("tracing", "_api", None)


def of_an_earlier_release() -> AbstractContextManager[None]:
    """Let threads with a DeltaChannel be stored as an earlier release did: their writes alone."""
    return _set("saver.config", "folds", lambda *args: {})
