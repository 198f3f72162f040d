"""The interface of a turn for its saver, and additional work in the transaction of a put."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from agentgit.store.threads.append_if_head import BranchHold
from agentgit.store.threads.graph_rows import GraphKey

AfterPut = Callable[[], None]
BeforePut = Callable[[Connection], AfterPut]
"""A function that is called before a put, in its transaction, and returns a function to call there after the put."""


class PutHook(NamedTuple):
    """The additional work in the transaction of a put.

    Args:
        before: The function that does the work.
        is_check_only: True if the work writes nothing and only checks that the run holds its branch.
        hold: The columns that show that the run holds its branch; None if it holds none.
    """

    before: BeforePut
    is_check_only: bool = False
    hold: BranchHold | None = None


class RecordedTurn(Protocol):
    """The part of a turn that a saver uses. The turn's own transaction makes the puts during the turn durable."""

    def on_put(self, graph_key: GraphKey) -> AbstractContextManager[PutHook]:
        """Return a context manager around the put of a graph checkpoint; it yields the work for its transaction."""

    def on_read(self, thread: str, ns: str, graph_key: GraphKey | None) -> None:
        """Record that the graph looked for a checkpoint, and which one it found."""


NO_HOOK = PutHook(before=lambda connection: lambda: None, is_check_only=True)
"""No additional work."""
