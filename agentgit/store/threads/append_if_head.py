"""Writes of graph checkpoints: appended in one statement where the head is known, and guarded against late writers.

Guards against a late or second writer, which must not bring back a deleted thread or move on beside another writer. A
run that continues the newest checkpoint expects that nobody else moved its thread meanwhile. See
`docs/decisions/0010-two-runs-on-one-thread.md` for what counts as such a run.

A graph checkpoint that goes on from one which this program knows: it is stored in one way to a server. Nothing is read
first. The statement that stores it asks itself whether its parent still is the newest one of its namespace, and
whether the run still has its branch; if not it stores nothing, and the checkpoint is put as any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, NoReturn

from sqlalchemy import Connection, bindparam, exists, select
from sqlalchemy.dialects import postgresql

from agentgit.errors import Conflict
from agentgit.sessions.session import RUNNING
from agentgit.store.objects.lru import Recent
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import PendingResult
from agentgit.store.sql.tables import BRANCH, GRAPH_CHECKPOINT
from agentgit.store.threads.graph_rows import SPACE, Found, GraphKey, upsert, where

REMEMBERED_PLACES = 100_000


class SeenCheckpoints:
    """The graph checkpoints that this program knows to have been stored, as far as it remembers them."""

    def __init__(self) -> None:
        self._places: Recent[bytes, bool] = Recent(REMEMBERED_PLACES, lambda _: 1)

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
        "gone). Nothing was stored. Run again to start a new thread."
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
            f"Two runs use thread {place.thread!r}: this one continues {parent_id or 'an empty thread'}, but "
            f"the thread has since moved to {at or 'nothing: it was deleted'}. Nothing was stored. Run the turn again "
            "from its current state, or give each run its own thread."
        )


def _key(place: GraphKey) -> bytes:
    return "\0".join(place).encode(errors="surrogatepass")


REMEMBERED = 1_000
"""Of so many namespaces the newest graph checkpoint is remembered."""


class BranchHold(NamedTuple):
    """By what a run holds its branch."""

    branch: int
    epoch: int
    owner: str


class Newest:
    """The newest graph checkpoints, as this program last saw them; each may have been overtaken since."""

    def __init__(self) -> None:
        self._known: Recent[tuple[str, str], Found] = Recent(REMEMBERED, lambda _: 1)

    def add(self, found: Found) -> None:
        """Remember one, also of a transaction that may fail yet."""
        self._known.add([((found.place.thread, found.place.ns), found)])

    def parent(self, thread: str, ns: str, checkpoint_id: str | None) -> Found | None:
        """Return the graph checkpoint last seen as the newest of a namespace, if it has this id."""
        found = self._known.get((thread, ns))
        return found if found is not None and found.place.checkpoint_id == checkpoint_id else None


def put_after(
    connection: Connection, values: Mapping[str, Any], parent: Found, fence: BranchHold | None
) -> PendingResult:
    """Store a graph checkpoint if its parent is the newest one still, and the fence holds.

    Args:
        connection: A connection in a transaction on a server.
        values: The values of the row, by column.
        parent: The graph checkpoint that it was made from.
        fence: The fence by which its run holds its branch; None if there is none.

    Returns:
        Its count, when the transaction has ended, is 1 if it was stored, and else 0.
    """
    held = fence._asdict() if fence is not None else {}
    return _STORE[fence is not None].ask(connection, {**values, "parent_hash": parent.state_hash, **held})


_other = GRAPH_CHECKPOINT.alias("other")
_newest = (
    select(_other.c.checkpoint_id, _other.c.state_hash)
    .where(*where(_other, *SPACE))
    .order_by(_other.c.seq.desc())
    .limit(1)
    .subquery("newest")
)
_is_parent = exists().where(
    _newest.c.checkpoint_id == bindparam("parent_id"), _newest.c.state_hash == bindparam("parent_hash")
)
_is_held = exists().where(
    BRANCH.c.tenant_id == bindparam("tenant_id"),
    BRANCH.c.id == bindparam("branch"),
    BRANCH.c.status == RUNNING,
    BRANCH.c.epoch == bindparam("epoch"),
    BRANCH.c.owner == bindparam("owner"),
)
_STORE = {
    is_fenced: row_codes.SignedWrite(
        {"postgresql": upsert(postgresql, ["seq"], _is_parent, *([_is_held] if is_fenced else []))}, GRAPH_CHECKPOINT
    )
    for is_fenced in (False, True)
}
