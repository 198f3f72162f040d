"""Guards against a late or second writer, which must not bring back a deleted thread or move on beside another writer.

A run that continues the newest checkpoint expects that nobody else moved its thread meanwhile. See
`docs/decisions/0010-two-runs-on-one-thread.md` for what counts as such a run.
"""

from __future__ import annotations

from typing import NoReturn

from agentgit.errors import Conflict
from agentgit.store.objects.lru import Recent
from agentgit.store.threads.graph_rows import Found, GraphKey

REMEMBERED = 100_000


class SeenCheckpoints:
    """The graph checkpoints that this program knows to have been stored, as far as it remembers them."""

    def __init__(self) -> None:
        self._places: Recent[bytes, bool] = Recent(REMEMBERED, lambda _: 1)

    def add(self, place: GraphKey) -> None:
        """Remember that a graph checkpoint is stored: after the transaction that stored it, never inside of it."""
        self._places.add([(_key(place), True)])

    def __contains__(self, place: GraphKey) -> bool:
        return self._places.get(_key(place)) is not None


def refuse_gone(place: GraphKey) -> NoReturn:
    """Refuse to build on a graph checkpoint that was stored and is there no more.

    Raises:
        Conflict: Always.
    """
    raise Conflict(
        f"Thread {place.thread!r} was deleted while a run was writing to it (checkpoint {place.checkpoint_id!r} is "
        "gone). Nothing was stored. Start the run again to begin the thread anew."
    )


def refuse_second_run(place: GraphKey, parent_id: str | None, newest: Found | None) -> None:
    """Refuse a checkpoint that would leave the newest one of its thread behind without anybody asking for it.

    Args:
        place: The key that it would be stored under.
        parent_id: The id of the graph checkpoint that it was made from.
        newest: The newest graph checkpoint of its namespace.

    Raises:
        Conflict: The parent is not the newest.
    """
    at = newest.place.checkpoint_id if newest else None
    if at != parent_id:
        raise Conflict(
            f"Two runs are on thread {place.thread!r}: this one continues {parent_id or 'an empty thread'}, but "
            f"meanwhile the thread moved to {at or 'nothing: it was deleted'}. Nothing was stored. Run the turn again "
            "on what the thread holds now, or give each run its own thread."
        )


def _key(place: GraphKey) -> bytes:
    return "\0".join(place).encode(errors="surrogatepass")
