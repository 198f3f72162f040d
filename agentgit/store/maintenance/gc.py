"""Garbage collection: delete graph checkpoints that are no longer needed, and values that nothing refers to.

Steps are the graph checkpoints that LangGraph saves at every super-step. A collection deletes those that no checkpoint
of agentgit needs. Of each branch it keeps:

- the steps that its checkpoints name,
- all steps since the newest of these that does not wait for an answer, because the next turn may go back that far,
- the subgraphs' graph checkpoints that belong to kept steps, and the last steps of subgraphs with memory,
- the ancestors whose writes contain parts of the values of kept steps.

A branch keeps all its steps if it is not open (for example, running), if no checkpoint names a step of it, or if it was
imported, because the next import compares the steps.

A collection also deletes the values that nothing refers to, and rewrites lists that continue a deleted list. It goes
session by session, each in a transaction of its own, because no session refers to values of another. Nobody else writes
to that session meanwhile: on SQLite the collection holds the write lock; on PostgreSQL it locks the session
(`Blobs.lock`), which each writer shares (`Blobs.protect`) before it reads what is stored.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from operator import add
from typing import Any, NamedTuple
from uuid import UUID

from sqlalchemy import bindparam, delete, exists, func, select, update

from agentgit.sessions.session import OPEN
from agentgit.store.objects.blobs import RECORD, Blobs, base_hash, pack_list, unpack
from agentgit.store.objects.content import verify_lists
from agentgit.store.objects.packing import CHUNKED, split_hashes
from agentgit.store.records.json_columns import read_meta
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import PlainBytes
from agentgit.store.sql.rows import CompiledUpdate
from agentgit.store.sql.tables import BLOB, BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE, LIST
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads import pending_writes, staging
from agentgit.store.threads.graph_rows import (
    DELETE_WRITES,
    INTERRUPT,
    KEY_COLUMNS,
    ONE,
    GraphKey,
    parameter_conditions,
    parse_graph_checkpoint,
    referenced_hashes,
)
from agentgit.store.threads.lifecycle import DELTA_COUNTERS, delete_thread, delta_ancestors
from agentgit.store.threads.staging import IMPORTED_FROM_KEY


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

    graph_keys: list[GraphKey]
    new_parents: dict[GraphKey, str | None]


def find_unused_steps(
    transaction: Reading, session_id: int, ignored_checkpoints: Collection[int]
) -> Iterator[UnusedSteps]:
    """Find the steps of a session that nothing needs, one branch at a time."""
    for branch in transaction.execute(_OPEN_BRANCHES, {"session": session_id}).all():
        rows = _CHECKPOINT_STEPS.all(transaction, {"branch": branch.id})
        referenced_ids = {row.graph_checkpoint_id for row in rows if row.id not in ignored_checkpoints}
        if referenced_ids and IMPORTED_FROM_KEY not in read_meta(branch):
            yield _find_unused_in_thread(transaction, branch.thread_id, referenced_ids)


def delete_unused_steps(transaction: Writing, unused: UnusedSteps) -> None:
    """Delete steps with their writes, and give the kept steps that followed them an earlier parent."""
    if unused.graph_keys:
        keys = [graph_key.columns() for graph_key in unused.graph_keys]
        DELETE_WRITES.run(transaction, *keys)
        _DELETE_STEP.run(transaction, *keys)
    for graph_key, parent in unused.new_parents.items():
        _SET_PARENT.run(transaction, graph_key.columns(), parent_id=parent)


def _find_unused_in_thread(transaction: Reading, thread: str, referenced_ids: Collection[str]) -> UnusedSteps:
    delta_marker = DELTA_COUNTERS.encode()
    pages = _STEPS.pages(transaction, {"thread": thread})
    rows = (row for page in pages for row in page)
    steps = [GraphStep(r.ns, r.checkpoint_id, r.seq, r.parent_id, r.root_id, delta_marker in r.meta) for r in rows]
    interrupted_ids = {row.checkpoint_id for row in _INTERRUPTED_STEPS.all(transaction, {"thread": thread})}
    kept_keys = find_needed_steps(steps, referenced_ids, interrupted_ids)
    for step in steps:
        if step.has_delta_values and (step.ns, step.checkpoint_id) in kept_keys:
            key_columns = GraphKey(thread, step.ns, step.checkpoint_id).columns()
            ancestors = delta_ancestors(transaction, parse_graph_checkpoint(ONE.all(transaction, key_columns)[0]))
            kept_keys.update((ancestor.key.ns, ancestor.key.checkpoint_id) for ancestor in ancestors)
    unused_keys = [GraphKey(thread, s.ns, s.checkpoint_id) for s in steps if (s.ns, s.checkpoint_id) not in kept_keys]
    return UnusedSteps(
        unused_keys, {GraphKey(thread, ns, id): parent for (ns, id), parent in _find_new_parents(steps, kept_keys)}
    )


def find_needed_steps(
    steps: Sequence[GraphStep], referenced_ids: Collection[str], interrupted_ids: Collection[str] = ()
) -> set[tuple[str, str]]:
    """Return the namespace and id of each step to keep. The ancestors with parts of their values are not included."""
    root_steps = sorted((step for step in steps if step.ns == ""), key=lambda step: step.seq)
    first_kept_seq = max(
        (s.seq for s in root_steps if s.checkpoint_id in referenced_ids and s.checkpoint_id not in interrupted_ids),
        default=0,
    )
    kept_ids = {
        step.checkpoint_id for step in root_steps if step.checkpoint_id in referenced_ids or step.seq >= first_kept_seq
    }
    kept_ids |= _find_memory_steps(steps, root_steps, kept_ids)
    unneeded_ids = {step.checkpoint_id for step in root_steps} - kept_ids
    return {(s.ns, s.checkpoint_id) for s in steps if (s.root_id if s.ns else s.checkpoint_id) not in unneeded_ids}


def _find_memory_steps(
    steps: Sequence[GraphStep], root_steps: Sequence[GraphStep], kept_ids: Collection[str]
) -> set[str]:
    """Find the steps that hold the last memory of subgraphs, before and after each kept step."""
    namespaces_by_root: dict[str | None, set[str]] = defaultdict(set)
    for step in steps:
        if step.ns and ":" not in step.ns:
            namespaces_by_root[step.root_id].add(step.ns)
    if not namespaces_by_root:
        return set()
    memory_before: dict[str | None, dict[str, str]] = {}
    memory_after: dict[str | None, dict[str, str]] = {}
    for step in root_steps:
        id = step.checkpoint_id
        memory_before[id] = memory_after.get(step.parent_id, {})
        memory_after[id] = (
            {**memory_before[id], **dict.fromkeys(namespaces_by_root[id], id)}
            if id in namespaces_by_root
            else memory_before[id]
        )
    return {root for id in kept_ids for root in (*memory_before[id].values(), *memory_after[id].values())}


def _find_new_parents(
    steps: Iterable[GraphStep], kept_keys: AbstractSet[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], str | None]]:
    """Yield each kept step whose parent is deleted, with its nearest kept ancestor, or None."""
    above_unused: dict[tuple[str, str], str | None] = {}
    for step in sorted(steps, key=lambda one: one.seq):  # each after its parent
        key = (step.ns, step.checkpoint_id)
        parent = above_unused.get((step.ns, step.parent_id or ""), step.parent_id)
        if key not in kept_keys:
            above_unused[key] = parent
        elif parent != step.parent_id:
            yield key, parent


_CHECKPOINT_STEPS = CompiledStatement(
    select(CHECKPOINT.c.id, CHECKPOINT.c.graph_checkpoint_id).where(
        CHECKPOINT.c.internal_session_id == bindparam("branch"), CHECKPOINT.c.graph_checkpoint_id.is_not(None)
    )
)
_OPEN_BRANCHES = select(BRANCH.c.id, BRANCH.c.thread_id, BRANCH.c.meta).where(
    BRANCH.c.external_session_id == bindparam("session"), BRANCH.c.status == OPEN
)
_STEPS = CompiledStatement(
    select(
        GRAPH_CHECKPOINT.c.ns,
        GRAPH_CHECKPOINT.c.checkpoint_id,
        GRAPH_CHECKPOINT.c.seq,
        GRAPH_CHECKPOINT.c.parent_id,
        GRAPH_CHECKPOINT.c.root_id,
        GRAPH_CHECKPOINT.c.meta,
    ).where(GRAPH_CHECKPOINT.c.thread_id == bindparam("thread"))
)
_INTERRUPTED_STEPS = CompiledStatement(
    select(GRAPH_WRITE.c.checkpoint_id).where(
        GRAPH_WRITE.c.thread_id == bindparam("thread"), GRAPH_WRITE.c.ns == "", GRAPH_WRITE.c.channel == INTERRUPT
    )
)
_DELETE_STEP = CompiledStatement(delete(GRAPH_CHECKPOINT).where(*parameter_conditions(GRAPH_CHECKPOINT, *KEY_COLUMNS)))
_SET_PARENT = CompiledUpdate(GRAPH_CHECKPOINT, "parent_id")

UUID6_EPOCH = 0x01B21DD213814000
"""The Unix epoch in the clock of version 6 UUIDs: 100 ns intervals since 15 October 1582."""

ORPHAN_GRACE_SECONDS = 3600
"""The seconds for which a write without its checkpoint is kept: LangGraph may store it before its checkpoint."""


class Collected(NamedTuple):
    """The space that a collection freed, or would free."""

    values: int
    bytes: int
    writes: int
    lists: int
    steps: int = 0

    def __add__(self, other: Collected) -> Collected:  # type: ignore[override]  # the sum of two, not their items
        return Collected(*map(add, self, other))


NOTHING_COLLECTED = Collected(0, 0, 0, 0)


def collect(
    transaction: Reading,
    blobs: Blobs,
    *,
    imports: bool = False,
    steps: bool = False,
    ignored_checkpoints: Collection[int] = (),
) -> Collected:
    """Delete the values and steps of a session that nothing needs; in a transaction that only reads, count them."""
    writing = transaction if isinstance(transaction, Writing) else None
    if writing:
        blobs.lock(writing)
    staged_threads = set(staging.list_staged_threads(transaction, blobs.session_id)) if imports else set()
    if writing:
        for thread in staged_threads:
            delete_thread(writing, thread)
    step_count, ignored_keys = 0, set[GraphKey]()
    unused_steps = find_unused_steps(transaction, blobs.session_id, ignored_checkpoints) if steps else ()
    for unused in unused_steps:
        step_count += len(unused.graph_keys)
        if writing:
            delete_unused_steps(writing, unused)
        else:
            ignored_keys.update(unused.graph_keys)
    has_checkpoint = exists().where(*(GRAPH_CHECKPOINT.c[name] == GRAPH_WRITE.c[name] for name in KEY_COLUMNS))
    query = select(*_key_columns(GRAPH_WRITE)).where(_is_of_owner(GRAPH_WRITE, blobs), ~has_checkpoint).distinct()
    orphans = [one for row in transaction.execute(query) if _is_old((one := GraphKey(*row)).checkpoint_id)]
    ignored_keys.update(orphans)
    if writing and orphans:
        DELETE_WRITES.run(writing, *(key.columns() for key in orphans))
    live, lists = find_live_values(
        transaction, blobs, lambda graph_key: graph_key.thread in staged_threads or graph_key in ignored_keys
    )
    rewritten_lists = [key for key, base in lists.items() if base is not None and base not in lists]
    if writing:
        for key in rewritten_lists:
            _write_in_full(writing, blobs, key)
    sizes = CompiledStatement(
        select(BLOB.c.hash, func.length(BLOB.c.data).label("size")).where(_is_of_owner(BLOB, blobs))
    )
    unused_values = [row for page in sizes.pages(transaction, raw=True) for row in page if row[0] not in live]
    if writing:
        _delete_values(writing, blobs, [key for key, _ in unused_values])
    return Collected(
        len(unused_values), sum(size for _, size in unused_values), len(orphans), len(rewritten_lists), step_count
    )


def find_live_values(
    transaction: Reading, blobs: Blobs, is_ignored: Callable[[GraphKey], bool]
) -> tuple[set[bytes], dict[bytes, bytes | None]]:
    """Find the hashes of the values that a session refers to, and of each list the one that it continues, or None."""
    live = set(_find_referenced_hashes(transaction, blobs, is_ignored))
    live.update(_load_record_parts(transaction, blobs, live))
    query = select(BLOB.c.hash, BLOB.c.data).where(_is_of_owner(BLOB, blobs))
    lists = {key: data for key, data in transaction.execute(query.where(BLOB.c.type == LIST)) if key in live}
    for verified_list in verify_lists(transaction, blobs, lists):
        if verified_list.problem:
            raise blobs.damaged(verified_list.key, "is a damaged list")
        live.update(split_hashes(verified_list.items))
    chunked = [data for key, data in transaction.execute(query.where(BLOB.c.codec == CHUNKED)) if key in live]
    live.update(chunk for data in chunked for chunk in split_hashes(data))
    return live, {key: base_hash(data) for key, data in lists.items()}


def _is_of_owner(table: Any, blobs: Blobs) -> Any:
    return table.c.external_session_id == blobs.session_id


def _key_columns(table: Any) -> list[Any]:
    return [table.c[name] for name in KEY_COLUMNS]


def _is_old(checkpoint_id: str) -> bool:
    """Return whether an id is older than `ORPHAN_GRACE_SECONDS`; True for an id without a time, unlike LangGraph's."""
    try:
        uuid = UUID(checkpoint_id)
    except ValueError:
        return True
    if uuid.version != 6:
        return True
    uuid_ticks = (uuid.time_low << 28) | (uuid.time_mid << 12) | (uuid.time_hi_version & 0x0FFF)
    return (uuid_ticks - UUID6_EPOCH) / 1e7 < time.time() - ORPHAN_GRACE_SECONDS


def _find_referenced_hashes(
    transaction: Reading, blobs: Blobs, is_ignored: Callable[[GraphKey], bool]
) -> Iterator[bytes]:
    # First those that checkpoints keep: a turn can replace a pending write only after the checkpoint is stored.
    for page in _WITH_PENDING_WRITES.pages(transaction, {"session": blobs.session_id}):
        for id, thread, checkpoint_id, pending in page:
            if not is_ignored(GraphKey(thread, "", checkpoint_id)):
                yield from pending_writes.hashes(pending, f"checkpoint {id}")
    for table, column in ((GRAPH_CHECKPOINT, GRAPH_CHECKPOINT.c.channels), (GRAPH_WRITE, GRAPH_WRITE.c.value)):
        query = CompiledStatement(select(*_key_columns(table), column).where(_is_of_owner(table, blobs)))
        for row in (row for page in query.pages(transaction) for row in page):
            if not is_ignored(GraphKey(row.thread_id, row.ns, row.checkpoint_id)):
                yield from referenced_hashes(row._asdict())


_WITH_PENDING_WRITES = CompiledStatement(
    select(CHECKPOINT.c.id, BRANCH.c.thread_id, CHECKPOINT.c.graph_checkpoint_id, CHECKPOINT.c.pending)
    .join_from(
        CHECKPOINT,
        BRANCH,
        BRANCH.c.id == CHECKPOINT.c.internal_session_id,
    )
    .where(BRANCH.c.external_session_id == bindparam("session"), CHECKPOINT.c.pending != pending_writes.NO_WRITES)
)
"""The query for the checkpoints that keep pending writes."""


def _load_record_parts(transaction: Reading, blobs: Blobs, live: Container[bytes]) -> Iterator[bytes]:
    """Yield the hashes of the values that the live records consist of."""
    query = select(BLOB.c.hash).where(_is_of_owner(BLOB, blobs), BLOB.c.type == RECORD)
    records = [key for (key,) in transaction.execute(query) if key in live]
    for part in slices(records):
        for value in blobs.get_many(transaction, part).values():
            yield from unpack(value.data).values()


def _write_in_full(transaction: Writing, blobs: Blobs, key: bytes) -> None:
    data = pack_list(None, 0, blobs.item_hashes(transaction, key))
    transaction.execute(update(BLOB).where(_is_of_owner(BLOB, blobs), BLOB.c.hash == key).values(data=PlainBytes(data)))


def _delete_values(transaction: Writing, blobs: Blobs, keys: list[bytes]) -> None:
    statement = delete(BLOB).where(_is_of_owner(BLOB, blobs), BLOB.c.hash == bindparam("gone"))
    for part in slices(keys):
        transaction.execute(statement, [{"gone": key} for key in part])
