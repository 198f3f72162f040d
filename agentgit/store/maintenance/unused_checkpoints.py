"""The steps between checkpoints: graph checkpoints of branches that no checkpoint of agentgit needs any more.

LangGraph saves one at every super-step. What stays of a branch: those that its checkpoints name, and everything since
the newest of these that asks nobody anything, as far as its next turn may have to look back; of both also the
subgraphs' checkpoints that belong to them, what subgraphs with memory knew then, and the ancestors whose writes their
values are spread over. A branch that somebody holds keeps all its steps, and so does one that was imported: the next
import compares them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, delete, select

from agentgit.sessions.maintenance import Parts
from agentgit.sessions.session import OPEN
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, GRAPH_CHECKPOINT, GRAPH_WRITE
from agentgit.store.threads.graph_rows import DROP_WRITES, INTERRUPT, KEY, ONE, GraphKey, found, where
from agentgit.store.threads.lifecycle import DELTA_COUNTERS, delta_chain
from agentgit.store.threads.staging import IMPORTED
from agentgit.values import as_object


class GraphStep(NamedTuple):
    """A graph checkpoint without its values; `spreads` says that its values may lean on its ancestors."""

    ns: str
    checkpoint_id: str
    seq: int
    parent_id: str | None = None
    root_id: str | None = None
    spreads: bool = False


class Spare(NamedTuple):
    """Graph checkpoints that nothing needs, and the new parent of each step whose parent is one of them."""

    gone: list[GraphKey]
    parents: dict[GraphKey, str | None]


def find(
    connection: Connection,
    tenant_id: int,
    without: Collection[int] = (),
    branches: Collection[int] | None = None,
    parts: Parts | None = None,
) -> Iterator[Spare]:
    """Find the steps that nothing needs, one branch after the other.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        without: Checkpoints of agentgit that are taken as gone already.
        branches: The branches to look at; None for all.
        parts: The reporter of the progress.
    """
    found = connection.execute(_BRANCHES, {"tenant": tenant_id}).all()
    wanted = [branch for branch in found if branches is None or branch.id in branches]
    for branch in (parts or Parts()).over("branches", ([one] for one in wanted)):
        rows = _NAMED.all(connection, {"tenant": tenant_id, "branch": branch.id})
        named = {row.graph_checkpoint_id for row in rows if row.id not in without}
        if named and IMPORTED not in as_object(branch.meta):
            yield _of_thread(connection, tenant_id, branch.thread_id, named)


def drop(connection: Connection, tenant_id: int, spare: Spare) -> None:
    """Delete steps with their writes, and let those that came after one of them follow an earlier one."""
    if spare.gone:
        keys = [place.columns(tenant_id) for place in spare.gone]
        DROP_WRITES.run(connection, *keys)
        _DROP.run(connection, *keys)
    for place, parent in spare.parents.items():
        _FOLLOW.run(connection, place.columns(tenant_id), parent_id=parent)


def _of_thread(connection: Connection, tenant_id: int, thread: str, named: Collection[str]) -> Spare:
    spreads = DELTA_COUNTERS.encode()
    pages = _STEPS.pages(connection, {"tenant": tenant_id, "thread": thread})
    rows = (row for page in pages for row in page)
    steps = [GraphStep(r.ns, r.checkpoint_id, r.seq, r.parent_id, r.root_id, spreads in r.meta) for r in rows]
    asking = {row.checkpoint_id for row in _ASKING.all(connection, {"tenant": tenant_id, "thread": thread})}
    kept = needed(steps, named, asking)
    for step in steps:
        if step.spreads and (step.ns, step.checkpoint_id) in kept:
            at = GraphKey(thread, step.ns, step.checkpoint_id).columns(tenant_id)
            chain = delta_chain(connection, tenant_id, found(ONE.all(connection, at)[0]))
            kept.update((each.place.ns, each.place.checkpoint_id) for each in chain)
    gone = [GraphKey(thread, s.ns, s.checkpoint_id) for s in steps if (s.ns, s.checkpoint_id) not in kept]
    return Spare(gone, {GraphKey(thread, ns, id): parent for (ns, id), parent in _new_parents(steps, kept)})


def needed(steps: Sequence[GraphStep], named: Collection[str], asking: Collection[str] = ()) -> set[tuple[str, str]]:
    """Choose the steps of a thread that stay, by namespace and id; but not those that values are spread over.

    Args:
        steps: All steps of the thread.
        named: The ids that checkpoints of agentgit name.
        asking: The ids of those that wait, or once waited, for an answer.

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
    """Find the steps at which subgraphs with memory last knew something, seen from those that are kept."""
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
    """Yield each kept step whose parent is deleted, with its nearest ancestor that is kept, or None."""
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
        # Damaged rows may form a circle; it leads nowhere.
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
