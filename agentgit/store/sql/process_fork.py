"""Handling of open databases when their process forks: the child uses no connection of its parent.

SQLite advises against carrying a connection over a fork, and two processes on one socket of a server would read each
other's answers.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """An object that has connections."""

    def before_fork(self) -> None:
        """Close what a child must not have."""

    def after_fork(self) -> None:
        """Be as new, in the child; nothing of the parent may be closed here."""


_open: weakref.WeakSet[Forked] = weakref.WeakSet()


def remember(one: Forked) -> None:
    """Notify an object of each fork, as long as it is in use."""
    _open.add(one)


def _before() -> None:
    for one in list(_open):
        one.before_fork()


def _after() -> None:
    for one in list(_open):
        one.after_fork()


if hasattr(os, "register_at_fork"):  # elsewhere no process forks
    os.register_at_fork(before=_before, after_in_child=_after)
