"""A turn as its saver knows it, and the work that takes part in the transaction of a put."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from sqlalchemy import Connection

from agentgit.store.threads.append_if_head import BranchHold
from agentgit.store.threads.graph_rows import GraphKey

After = Callable[[], None]
Before = Callable[[Connection], After]
"""Called with the connection before a put, in its transaction; gives what is called after it there."""


class Beside(NamedTuple):
    """The additional work in the transaction of a put.

    Args:
        before: The function that does the work.
        is_alone: True if it writes nothing; then it consists only of the check that the fence holds.
        fence: The fence by which the run holds its branch, if it does.
    """

    before: Before
    is_alone: bool = False
    fence: BranchHold | None = None


class RecordedTurn(Protocol):
    """A turn, as far as a saver knows it. Its own transaction carries to the disk what is put meanwhile."""

    def on_put(self, place: GraphKey) -> AbstractContextManager[Beside]:
        """Surround the put of a graph checkpoint; return what takes part in its transaction."""

    def on_read(self, thread: str, ns: str, found: GraphKey | None) -> None:
        """Take note that the graph looked for a checkpoint, and what was found."""


NOTHING_ELSE = Beside(before=lambda connection: lambda: None, is_alone=True)
"""Nothing is done beside a put."""
