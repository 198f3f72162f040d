"""Owners of values: the session of a thread, or its family if it belongs to no session.

Each graph checkpoint and each write names the owner of its values. A thread that is written or copied for another owner
takes its values along, so no row refers to values of another session.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import not_, select, union

from agentgit.store.objects.blobs import FAMILY_LOCKS, BlobStore, family_of
from agentgit.store.objects.lru import LRUCache
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import BLOB, BRANCH, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.graph_rows import parameter_conditions, referenced_hashes

SESSION_THREAD_PREFIX = "agentgit-"
"""The prefix of the ids of threads that belong to sessions."""

MAX_KNOWN_THREADS = 10_000


def thread_of_branch(branch_id: int) -> str:
    return f"{SESSION_THREAD_PREFIX}{branch_id}"


class ThreadOwners:
    """The owners of threads, as this process last saw them.

    A thread that belongs to no session can be deleted and copied anew elsewhere, and then has another owner. That does
    no harm, because each row names the owner of its own values.
    """

    def __init__(self) -> None:
        self._known: LRUCache[str, int] = LRUCache(MAX_KNOWN_THREADS)

    def add(self, thread: str, owner: int) -> None:
        self._known.add([(thread, owner)])

    def find(self, transaction: Reading, thread: str) -> int:
        """Return the owner of a thread, which may be empty."""
        owner = self._known.get(thread)
        if owner is None:
            key = {"thread_id": thread}
            row = OWNER_OF_ROWS.first(transaction, key)
            if row is None and thread.startswith(SESSION_THREAD_PREFIX):
                row = _SESSION_OF_BRANCH.first(transaction, key)
            owner = row.external_session_id if row is not None else family_of(thread)
            self.add(thread, owner)
        return owner


def copy_values(transaction: Writing, blobs: BlobStore, rows: Iterable[Mapping[str, Any]], owner: int) -> None:
    hashes_by_owner: dict[int, set[bytes]] = defaultdict(set)
    for row in rows:
        hashes_by_owner[row["external_session_id"]].update(referenced_hashes(row))
    hashes_by_owner.pop(owner, None)
    for source in sorted(hashes_by_owner):
        blobs.of(source).protect(transaction)
        blobs.of(owner).copy_from(transaction, blobs.of(source), hashes_by_owner[source])


def copy_values_of_thread(
    transaction: Writing, blobs: BlobStore, thread: str, owner: int, *, with_rows: bool = False
) -> None:
    """Copy the values of a thread to another owner, before its rows are copied or, with the rows, belong to it."""
    for table in (GRAPH_CHECKPOINT, GRAPH_WRITE):
        conditions = (table.c.thread_id == thread, table.c.external_session_id != owner)
        rows = transaction.execute(select(table).where(*conditions)).all()
        copy_values(transaction, blobs, (row._asdict() for row in rows), owner)
        if rows and with_rows:
            update_rows(transaction, table, *conditions, external_session_id=owner)


def list_owners(transaction: Reading) -> list[int]:
    """List the sessions and families that have values, graph checkpoints or writes."""
    queries = (
        select(table.c.external_session_id).where(not_(table.c.external_session_id.between(-FAMILY_LOCKS, -1)))
        for table in (BLOB, GRAPH_CHECKPOINT, GRAPH_WRITE)
    )
    return sorted(transaction.execute(union(*queries)).scalars())


_SESSION_OF_BRANCH = CompiledStatement(
    select(BRANCH.c.external_session_id).where(*parameter_conditions(BRANCH, "thread_id"))
)
OWNER_OF_ROWS = CompiledStatement(
    select(GRAPH_CHECKPOINT.c.external_session_id).where(*parameter_conditions(GRAPH_CHECKPOINT, "thread_id")).limit(1)
)
