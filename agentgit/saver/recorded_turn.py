"""The interface of a turn for its saver, and additional work in the transaction of a put."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from agentgit.store.threads.append_if_head import BranchHold
from agentgit.store.threads.graph_rows import GraphKey

After = Callable[[], None]
Before = Callable[[Connection], After]
"""A function that is called before a put, in its transaction, and returns a function to call there after the put."""


class PutHook(NamedTuple):
    """The additional work in the transaction of a put.

    Args:
        before: The function that does the work.
        is_alone: True if the work writes nothing and only checks that the fence holds.
        fence: The fence that shows that the run holds its branch; None if it holds none.
    """

    before: Before
    is_alone: bool = False
    fence: BranchHold | None = None


class RecordedTurn(Protocol):
    """The part of a turn that a saver uses. The turn's own transaction makes the puts during the turn durable."""

    def on_put(self, place: GraphKey) -> AbstractContextManager[PutHook]:
        """Return a context manager around the put of a graph checkpoint; it yields the work for its transaction."""

    def on_read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        """Record that the graph looked for a checkpoint, and which one it found."""


NOTHING_ELSE = PutHook(before=lambda connection: lambda: None, is_alone=True)
"""No additional work."""
