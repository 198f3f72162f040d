"""Garbage collection: delete graph checkpoints that are no longer needed, and values that nothing refers to.

Steps are the graph checkpoints that LangGraph saves at every super-step. A collection deletes those that no checkpoint
of agentgit needs. Of each branch it keeps:

- the steps that its checkpoints name,
- all steps since the newest of these that does not wait for an answer, because the next turn may go back that far,
- the subgraphs' graph checkpoints that belong to kept steps, and the last steps of subgraphs with memory,
- the ancestors whose writes contain parts of the values of kept steps.

A branch keeps all its steps if it is not open (for example, running), if no checkpoint names a step of it, or if it was
imported, because the next import compares the steps.

A collection also deletes the values that nothing refers to, and rewrites lists that continue a deleted list. No other
transaction writes meanwhile: on SQLite the collection holds the write lock. On PostgreSQL it locks the tables against
writers, and each writer takes its first lock (`FOR KEY SHARE` on a checkpoint, or an insert) before it reads what is
stored.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, select, text, update

from agentgit.sessions.reports import ProgressParts
from agentgit.sessions.session import OPEN
from agentgit.store.objects.blobs import FULL, RECORD, Blobs, continued, damaged, unpack
from agentgit.store.objects.content import verify_lists
from agentgit.store.objects.packing import CHUNKED, split_hashes
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import PlainBytes
from agentgit.store.sql.tables import BLOB, BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE, LIST
from agentgit.store.threads import pending_writes, staging
from agentgit.store.threads.graph_rows import DROP_WRITES, INTERRUPT, KEY, ONE, GraphKey, parse_graph_checkpoint, where
from agentgit.store.threads.lifecycle import DELTA_COUNTERS, delete_thread, delta_chain
from agentgit.store.threads.staging import IMPORTED
from agentgit.values import as_object


class GraphStep(NamedTuple):
    """A graph checkpoint without its values. With `has_delta_values`, parts of its values may be in its ancestors."""

    ns: str
    checkpoint_id: str
    seq: int
    parent_id: str | None = None
    root_id: str | None = None
    has_delta_values: bool = False


class UnusedSteps(NamedTuple):
    """The graph checkpoints to delete, and the new parents of the kept steps whose parent is deleted."""

    gone: list[GraphKey]
    parents: dict[GraphKey, str | None]


def find_unused_steps(
    connection: Connection,
    tenant_id: int,
    without: Collection[int] = (),
    branches: Collection[int] | None = None,
    parts: ProgressParts | None = None,
) -> Iterator[UnusedSteps]:
    """Find the steps that nothing needs, one branch at a time.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        without: Ids of checkpoints of agentgit to treat as deleted.
        branches: The branches to search; None for all.
        parts: The reporter of the progress.
    """
    found = connection.execute(_BRANCHES, {"tenant": tenant_id}).all()
    wanted = [branch for branch in found if branches is None or branch.id in branches]
    for branch in (parts or ProgressParts()).iterate("branches", ([one] for one in wanted)):
        rows = _NAMED.all(connection, {"tenant": tenant_id, "branch": branch.id})
        named = {row.graph_checkpoint_id for row in rows if row.id not in without}
        if named and IMPORTED not in as_object(branch.meta):
            yield _of_thread(connection, tenant_id, branch.thread_id, named)


def drop(connection: Connection, tenant_id: int, spare: UnusedSteps) -> None:
    """Delete steps with their writes, and give the kept steps that followed them an earlier parent."""
    if spare.gone:
        keys = [place.columns(tenant_id) for place in spare.gone]
        DROP_WRITES.run(connection, *keys)
        _DROP.run(connection, *keys)
    for place, parent in spare.parents.items():
        _FOLLOW.run(connection, place.columns(tenant_id), parent_id=parent)


def _of_thread(connection: Connection, tenant_id: int, thread: str, named: Collection[str]) -> UnusedSteps:
    spreads = DELTA_COUNTERS.encode()
    pages = _STEPS.pages(connection, {"tenant": tenant_id, "thread": thread})
    rows = (row for page in pages for row in page)
    steps = [GraphStep(r.ns, r.checkpoint_id, r.seq, r.parent_id, r.root_id, spreads in r.meta) for r in rows]
    asking = {row.checkpoint_id for row in _ASKING.all(connection, {"tenant": tenant_id, "thread": thread})}
    kept = needed(steps, named, asking)
    for step in steps:
        if step.has_delta_values and (step.ns, step.checkpoint_id) in kept:
            at = GraphKey(thread, step.ns, step.checkpoint_id).columns(tenant_id)
            chain = delta_chain(connection, tenant_id, parse_graph_checkpoint(ONE.all(connection, at)[0]))
            kept.update((each.place.ns, each.place.checkpoint_id) for each in chain)
    gone = [GraphKey(thread, s.ns, s.checkpoint_id) for s in steps if (s.ns, s.checkpoint_id) not in kept]
    return UnusedSteps(gone, {GraphKey(thread, ns, id): parent for (ns, id), parent in _new_parents(steps, kept)})


def needed(steps: Sequence[GraphStep], named: Collection[str], asking: Collection[str] = ()) -> set[tuple[str, str]]:
    """Return the namespace and id of each step to keep. The ancestors with parts of their values are not included.

    Args:
        steps: All steps of the thread.
        named: The ids of the steps that checkpoints of agentgit name.
        asking: The ids of the steps that wait, or once waited, for an answer.

    Example:
        >>> steps = [GraphStep("", str(n), n, str(n - 1) if n else None) for n in range(9)]
        >>> sorted(id for _, id in needed(steps, {"1", "3", "6"}))
        ['1', '3', '6', '7', '8']
    """
    roots = sorted((step for step in steps if step.ns == ""), key=lambda step: step.seq)
    since = max((s.seq for s in roots if s.checkpoint_id in named and s.checkpoint_id not in asking), default=0)
    kept = {step.checkpoint_id for step in roots if step.checkpoint_id in named or step.seq >= since}
    kept |= _remembered(steps, roots, kept)
    gone = {step.checkpoint_id for step in roots} - kept
    return {(s.ns, s.checkpoint_id) for s in steps if (s.root_id if s.ns else s.checkpoint_id) not in gone}


def _remembered(steps: Sequence[GraphStep], roots: Sequence[GraphStep], kept: Collection[str]) -> set[str]:
    """Find the steps that hold the last memory of subgraphs, before and after each kept step."""
    knew: dict[str | None, set[str]] = defaultdict(set)
    for step in steps:
        if step.ns and ":" not in step.ns:
            knew[step.root_id].add(step.ns)
    if not knew:
        return set()
    before: dict[str | None, dict[str, str]] = {}
    after: dict[str | None, dict[str, str]] = {}
    for step in roots:
        id = step.checkpoint_id
        before[id] = after.get(step.parent_id, {})
        after[id] = {**before[id], **dict.fromkeys(knew[id], id)} if id in knew else before[id]
    return {root for id in kept for root in (*before[id].values(), *after[id].values())}


def _new_parents(
    steps: Iterable[GraphStep], kept: AbstractSet[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], str | None]]:
    """Yield each kept step whose parent is deleted, with its nearest kept ancestor, or None."""
    parents: Mapping[tuple[str, str], str | None] = {(s.ns, s.checkpoint_id): s.parent_id for s in steps}
    going = parents.keys() - kept
    heirs: dict[tuple[str, str], str | None] = {}
    for (ns, id), parent in parents.items():
        if (ns, id) in going or parent is None or (ns, parent) not in going:
            continue
        way: set[tuple[str, str]] = set()
        at: str | None = parent
        while at is not None and (ns, at) in going and (ns, at) not in heirs and (ns, at) not in way:
            way.add((ns, at))
            at = parents[ns, at]
        # Damaged rows may form a cycle, which has no kept ancestor.
        heir = None if at is None or (ns, at) in way else heirs.get((ns, at), at)
        heirs.update(dict.fromkeys(way, heir))
        yield (ns, id), heir


_NAMED = CompiledStatement(
    select(CHECKPOINT.c.id, CHECKPOINT.c.graph_checkpoint_id).where(
        CHECKPOINT.c.tenant_id == bindparam("tenant"),
        CHECKPOINT.c.internal_session_id == bindparam("branch"),
        CHECKPOINT.c.graph_checkpoint_id.is_not(None),
    )
)
_BRANCHES = select(BRANCH.c.id, BRANCH.c.thread_id, BRANCH.c.meta).where(
    BRANCH.c.tenant_id == bindparam("tenant"), BRANCH.c.status == OPEN
)
_STEPS = CompiledStatement(
    select(
        GRAPH_CHECKPOINT.c.ns,
        GRAPH_CHECKPOINT.c.checkpoint_id,
        GRAPH_CHECKPOINT.c.seq,
        GRAPH_CHECKPOINT.c.parent_id,
        GRAPH_CHECKPOINT.c.root_id,
        GRAPH_CHECKPOINT.c.meta,
    ).where(GRAPH_CHECKPOINT.c.tenant_id == bindparam("tenant"), GRAPH_CHECKPOINT.c.thread_id == bindparam("thread"))
)
_ASKING = CompiledStatement(
    select(GRAPH_WRITE.c.checkpoint_id).where(
        GRAPH_WRITE.c.tenant_id == bindparam("tenant"),
        GRAPH_WRITE.c.thread_id == bindparam("thread"),
        GRAPH_WRITE.c.ns == "",
        GRAPH_WRITE.c.channel == INTERRUPT,
    )
)
_DROP = CompiledStatement(delete(GRAPH_CHECKPOINT).where(*where(GRAPH_CHECKPOINT, *KEY)))
_FOLLOW = row_codes.SignedUpdate(GRAPH_CHECKPOINT, "parent_id")

UUID6_EPOCH = 0x01B21DD213814000
"""The Unix epoch in the clock of version 6 UUIDs: 100 ns intervals since 15 October 1582."""

ORPHAN_GRACE_SECONDS = 3600
"""The seconds for which a write without its checkpoint is kept: LangGraph may store it before its checkpoint."""


class Collected(NamedTuple):
    """The space that a collection freed, or would free.

    Args:
        values: The number of deleted rows of the table `blob`.
        bytes: The stored size of these rows.
        writes: The number of deleted writes whose graph checkpoint was never saved or is deleted.
        lists: The number of lists that were rewritten because the list that they continued is deleted.
        steps: The number of deleted graph checkpoints between the checkpoints of branches.
    """

    values: int
    bytes: int
    writes: int
    lists: int
    steps: int = 0


def collect(
    connection: Connection,
    blobs: Blobs,
    *,
    dry_run: bool = False,
    imports: bool = False,
    find_steps: Callable[[Connection], Iterable[UnusedSteps]] | None = None,
    parts: ProgressParts | None = None,
) -> Collected:
    """Delete the values of a tenant that nothing refers to, and the steps that nothing needs.

    Args:
        connection: A connection in a transaction that writes; for a dry run, any open connection.
        blobs: The values of the tenant.
        dry_run: True to only count.
        imports: True to also delete the threads of imports that did not finish.
        find_steps: The function that finds the steps to delete. It runs while nobody writes. None keeps all steps.
        parts: The reporter of the progress; see `count_parts`.
    """
    tenant_id = blobs.tenant_id
    if not dry_run and connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE graph_checkpoint, graph_write, blob IN EXCLUSIVE MODE"))
    left = set(staging.list_staged_threads(connection, tenant_id)) if imports else set()
    for thread in left if not dry_run else ():
        delete_thread(connection, tenant_id, thread)
    steps_gone, left_out = 0, set[GraphKey]()
    for spare in find_steps(connection) if find_steps is not None else ():
        steps_gone += len(spare.gone)
        left_out.update(spare.gone if dry_run else ())
        if not dry_run:
            drop(connection, tenant_id, spare)
    lost = [key for key in _orphans(connection, tenant_id) if _is_old(key.checkpoint_id)]
    left_out.update(lost)
    if not dry_run:
        _delete_writes(connection, tenant_id, lost)
    parts = parts or ProgressParts()
    live, lists = find_live_values(connection, blobs, lambda place: place.thread in left or place in left_out, parts)
    moved = [key for key, base in lists.items() if base is not None and base not in lists]
    for key in moved if not dry_run else ():
        _write_in_full(connection, blobs, key)
    gone = [row for row in parts.iterate("values", _stored(connection, tenant_id)) if row[0] not in live]
    if not dry_run:
        _delete_values(connection, tenant_id, [key for key, _ in gone])
    return Collected(len(gone), sum(size for _, size in gone), len(lost), len(moved), steps_gone)


def count_parts(connection: Connection, tenant_id: int) -> dict[str, int]:
    """Count the rows that a collection reads, by the parts in which it reports progress."""
    lists = and_(BLOB.c.tenant_id == tenant_id, BLOB.c.type == LIST)
    counted = {
        "branches": BRANCH.c.tenant_id == tenant_id,
        "graph_checkpoint": GRAPH_CHECKPOINT.c.tenant_id == tenant_id,
        "graph_write": GRAPH_WRITE.c.tenant_id == tenant_id,
        "lists": lists,
        "values": BLOB.c.tenant_id == tenant_id,
    }
    return {
        name: int(connection.execute(select(func.count()).where(mine)).scalar_one()) for name, mine in counted.items()
    }


def find_live_values(
    connection: Connection, blobs: Blobs, is_ignored: Callable[[GraphKey], bool], parts: ProgressParts | None = None
) -> tuple[set[bytes], dict[bytes, bytes | None]]:
    """Find the values that graph checkpoints, writes and checkpoints refer to.

    Return their hashes, and the hash of each list among them with the hash of the list that it continues, or None.

    Args:
        connection: Any open connection.
        blobs: The values of the tenant.
        is_ignored: The test for graph checkpoints to ignore together with their writes.
        parts: The reporter of the progress.

    Raises:
        Corrupt: A list or a record is damaged, so the values that it needs are unknown.
    """
    parts = parts or ProgressParts()
    live = set(_referenced(connection, blobs.tenant_id, is_ignored, parts))
    live.update(_parts(connection, blobs, live))
    lists = _lists(connection, blobs, live)
    for walked in parts.iterate("lists", ([one] for one in verify_lists(connection, blobs, lists))):
        if walked.wrong:
            raise damaged(walked.key, "is a damaged list")
        live.update(split_hashes(walked.items))
    live.update(_chunks(connection, blobs, live))
    return live, {key: continued(data) for key, data in lists.items()}


def _orphans(connection: Connection, tenant_id: int) -> list[GraphKey]:
    owner = exists().where(*(GRAPH_CHECKPOINT.c[name] == GRAPH_WRITE.c[name] for name in KEY))
    query = select(*_place(GRAPH_WRITE)).where(GRAPH_WRITE.c.tenant_id == tenant_id, ~owner).distinct()
    return [GraphKey(*row) for row in connection.execute(query)]


def _place(table: Any) -> list[Any]:
    return [table.c[name] for name in KEY[1:]]


def _is_old(checkpoint_id: str) -> bool:
    """Return whether an id is older than `ORPHAN_GRACE_SECONDS`; True for an id without a time, unlike LangGraph's."""
    try:
        made = UUID(checkpoint_id)
    except ValueError:
        return True
    if made.version != 6:
        return True
    clock = (made.time_low << 28) | (made.time_mid << 12) | (made.time_hi_version & 0x0FFF)
    return (clock - UUID6_EPOCH) / 1e7 < time.time() - ORPHAN_GRACE_SECONDS


def _delete_writes(connection: Connection, tenant_id: int, keys: Iterable[GraphKey]) -> None:
    for key in keys:
        same = (column == value for column, value in zip(_place(GRAPH_WRITE), key, strict=True))
        connection.execute(delete(GRAPH_WRITE).where(GRAPH_WRITE.c.tenant_id == tenant_id, *same))


def _referenced(
    connection: Connection, tenant_id: int, leaves_out: Callable[[GraphKey], bool], parts: ProgressParts
) -> Iterator[bytes]:
    # First those that checkpoints keep: a turn can replace a pending write only after the checkpoint is stored.
    for page in _NOTED.pages(connection, {"tenant": tenant_id}):
        for id, thread, checkpoint_id, pending in page:
            if not leaves_out(GraphKey(thread, "", checkpoint_id)):
                yield from pending_writes.hashes(pending, f"checkpoint {id}")
    for table, read in ((GRAPH_CHECKPOINT, _of_checkpoint), (GRAPH_WRITE, split_hashes)):
        held = table.c.channels if table is GRAPH_CHECKPOINT else table.c.value
        query = CompiledStatement(select(*_place(table), held).where(table.c.tenant_id == tenant_id))
        for *place, data in parts.iterate(table.name, query.pages(connection)):
            if not leaves_out(GraphKey(*place)):
                yield from read(data)


_NOTED = CompiledStatement(
    select(CHECKPOINT.c.id, BRANCH.c.thread_id, CHECKPOINT.c.graph_checkpoint_id, CHECKPOINT.c.pending)
    .join_from(
        CHECKPOINT,
        BRANCH,
        and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id),
    )
    .where(CHECKPOINT.c.tenant_id == bindparam("tenant"), CHECKPOINT.c.pending != pending_writes.NO_WRITES)
)
"""The query for the checkpoints that keep pending writes."""


def _of_checkpoint(channels: bytes) -> Iterable[bytes]:
    return unpack(channels).values()


def _parts(connection: Connection, blobs: Blobs, live: Container[bytes]) -> Iterator[bytes]:
    """Yield the hashes of the values that the live records consist of."""
    of_tenant = and_(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.type == RECORD)
    records = [key for (key,) in connection.execute(select(BLOB.c.hash).where(of_tenant)) if key in live]
    for part in slices(records):
        for value in blobs.get_many(connection, part).values():
            yield from unpack(value.data).values()


def _lists(connection: Connection, blobs: Blobs, live: Container[bytes]) -> dict[bytes, bytes]:
    """Read the live lists as stored, by hash."""
    query = select(BLOB.c.hash, BLOB.c.data).where(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.type == LIST)
    return {key: data for key, data in connection.execute(query) if key in live}


def _chunks(connection: Connection, blobs: Blobs, live: Container[bytes]) -> list[bytes]:
    """List the chunks of the live values that are stored in chunks."""
    query = select(BLOB.c.hash, BLOB.c.data).where(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.codec == CHUNKED)
    return [chunk for key, data in connection.execute(query) if key in live for chunk in split_hashes(data)]


def _write_in_full(connection: Connection, blobs: Blobs, key: bytes) -> None:
    data = FULL + b"".join(blobs.item_hashes(connection, key))
    same = and_(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.hash == key)
    connection.execute(update(BLOB).where(same).values(data=PlainBytes(data)))


def _stored(connection: Connection, tenant_id: int) -> Iterable[Sequence[tuple[bytes, int]]]:
    query = select(BLOB.c.hash, func.length(BLOB.c.data).label("size")).where(BLOB.c.tenant_id == tenant_id)
    return CompiledStatement(query).pages(connection, raw=True)


def _delete_values(connection: Connection, tenant_id: int, keys: list[bytes]) -> None:
    statement = delete(BLOB).where(BLOB.c.tenant_id == tenant_id, BLOB.c.hash == bindparam("gone"))
    for part in slices(keys):
        connection.execute(statement, [{"gone": key} for key in part])
