"""The import of one thread of another saver as a session, which is checked before it becomes visible.

The graph checkpoints are first copied to a staging thread (`agentgit.store.threads.staging`), a few in each
transaction. When all are copied and the newest state equals that of the source, one transaction creates the session
and moves them to its branch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from langgraph.checkpoint.base import CheckpointTuple

from agentgit.agents.importing.commit import EarlierImport, ImportCommit
from agentgit.agents.importing.copying import CheckpointCopier, differing_copy, put_copies
from agentgit.agents.importing.readers import Source, ThreadEntry
from agentgit.errors import Conflict, Corrupt, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.saver.delta_reducer import Channels
from agentgit.sessions.reports import EXTENDED, IMPORTED, UNCHANGED, ThreadReport
from agentgit.store.sql.batch import slices
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store
from agentgit.store.threads import lifecycle, staging
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore

BATCH = 16
"""The number of graph checkpoints in one transaction."""

OnStep = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class ThreadLine:
    """The part of a thread that is imported."""

    roots: Sequence[str]
    entries: Sequence[ThreadEntry]
    others: frozenset[str]


def newest_line(index: Sequence[ThreadEntry], newest: str, name: str) -> ThreadLine:
    """Follow the newest graph checkpoint of a thread back to its beginning.

    Example:
        >>> places = [("", "1", None), ("", "2", "1"), ("", "3", "1"), ("sub:x", "2", None)]
        >>> index = [ThreadEntry(*place) for place in places]
        >>> line = newest_line(index, "3", "t")
        >>> line.roots, line.others, len(line.entries)
        (['1', '3'], frozenset({'2'}), 3)
    """
    roots = {entry.id: entry for entry in index if not entry.ns}
    line: list[str] = []
    checkpoint_id: str | None = newest
    while checkpoint_id in roots and len(line) <= len(roots):
        line.append(checkpoint_id)
        checkpoint_id = roots[checkpoint_id].parent
    if len(line) > len(roots):
        raise Corrupt(f"{name} is damaged: the parents of its graph checkpoints form a circle.", row=name)
    line.reverse()
    subgraph_entries = sorted((entry for entry in index if entry.ns), key=lambda entry: (entry.id, entry.ns))
    return ThreadLine(
        roots=line, entries=[*(roots[id] for id in line), *subgraph_entries], others=frozenset(roots) - frozenset(line)
    )


def load_parents(store: Store, thread: str) -> dict[tuple[str, str], str | None]:
    """Load the parent id of each graph checkpoint of a thread, by namespace and id."""
    with store.database.reading() as transaction:
        return staging.checkpoint_parents(transaction, thread)


@dataclass
class ThreadImport:
    """The import of one thread."""

    context: Context
    source: Source
    thread_id: str
    session_name: str
    on_step: OnStep = field(default=lambda done, total: None)
    channels: Channels = field(default_factory=dict)

    def __post_init__(self) -> None:
        store = self.context.store
        self.store = store
        self.copier = CheckpointCopier(store, self.channels)
        # A separate instance, because a shared one may cache rows that were staged and removed under the same name.
        self.graphs = GraphStore(store.compression)
        self.import_commit = ImportCommit(self.context, self.session_name, self.thread_id)
        self.staging_thread = staging.staging_thread_id(self.context.user.id, self.session_name, self.thread_id)
        self.thread_name = f"Thread {self.thread_id!r}"
        self._other_count = 0

    def run(self) -> ThreadReport:
        """Import the thread, or what is new in it since an earlier import."""
        newest = self.source.newest(self.thread_id)
        if newest is None:
            raise NotFound(f"There is no thread {self.thread_id!r} in the database to import from.")
        earlier = self.import_commit.find()
        newest_id = str(newest.checkpoint.get("id") if isinstance(newest.checkpoint, dict) else "")
        if earlier is not None and self._is_up_to_date(earlier, newest_id, newest):
            return self._report(UNCHANGED)
        line = newest_line(self.source.index(self.thread_id), newest_id, self.thread_name)
        if newest_id not in line.roots:
            raise Corrupt(
                f"{self.thread_name} has no graph checkpoint {newest_id!r}; it was not imported.", row=self.thread_name
            )
        if earlier is not None and earlier.newest_id not in line.roots:
            raise Conflict(
                f"{self.thread_name} no longer continues the history that session {self.session_name!r} was imported "
                "from. Import it under another session name."
            )
        try:
            added_count = self._stage(line, earlier)
            self._compare_copy(line, newest_id, earlier, added_count)
            counts = self.import_commit.commit(self.staging_thread, added_count, line.roots, earlier)
        except Unavailable:
            raise
        except Exception:
            self.store.database.write(self._delete_staged)
            raise
        return replace(
            self._report(EXTENDED if earlier else IMPORTED),
            graph_checkpoints=added_count,
            checkpoints=counts.checkpoints,
            tool_calls=counts.calls,
            left_out=len(line.others) + self._other_count,
        )

    def _report(self, status: str) -> ThreadReport:
        hidden = tuple(sorted(self.copier.hidden_names))
        return ThreadReport(thread_id=self.thread_id, session_name=self.session_name, status=status, hidden=hidden)

    def _is_up_to_date(self, earlier: EarlierImport, newest_id: str, newest: CheckpointTuple) -> bool:
        if earlier.newest_id == newest_id:
            graph_key = GraphKey(earlier.branch_thread_id, "", newest_id)
            with self.store.database.reading() as transaction:
                count = staging.count_writes(transaction, graph_key)
            if earlier.has_moved or count == len(newest.pending_writes or ()):
                return True
        elif earlier.has_moved:
            raise Conflict(
                f"{self.thread_name} has new turns in its own database, and session {self.session_name!r} has new "
                "turns here. Continue here without importing it again, or import it under another name."
            )
        return False

    # -- staging

    def _stage(self, line: ThreadLine, earlier: EarlierImport | None) -> int:
        """Stage the graph checkpoints that are missing here; return the number of staged ones."""
        branch_parents = load_parents(self.store, earlier.branch_thread_id) if earlier else {}
        parent_thread = earlier.branch_thread_id if earlier else None
        staged_parents = load_parents(self.store, self.staging_thread)
        if earlier is not None:
            self.graphs.owners.add(self.staging_thread, earlier.session_id)  # so that nothing has to be copied
        if not staged_parents.keys() <= {entry[:2] for entry in line.entries}:
            self.store.database.write(self._delete_staged)  # the thread has changed since an interrupted import
            staged_parents = {}
        known_parents = {**branch_parents, **staged_parents}
        parent_keys = {(ns, parent) for (ns, _), parent in known_parents.items()}
        # Only a graph checkpoint without a successor can have new pending writes.
        known_leaves = [entry for entry in line.entries if entry[:2] in known_parents and entry[:2] not in parent_keys]
        new_entries = [entry for entry in line.entries if entry[:2] not in known_parents]
        entries_to_read, done_count, added_count = [*known_leaves, *new_entries], 0, len(staged_parents)
        for entries in slices(entries_to_read, BATCH):
            batch = [(entry, self.source.read(self.thread_id, entry)) for entry in entries]
            on_line = [pair for pair in batch if self._is_on_line(pair[1], line)]
            self._other_count += len(batch) - len(on_line)
            drafts = [
                (
                    entry,
                    self.copier.draft(entry, found, parent_thread) if entry[:2] not in known_parents else None,
                    self.copier.numbered_writes(found),
                )
                for entry, found in on_line
            ]
            self.store.database.write(partial(put_copies, self.graphs, self.staging_thread, drafts))
            added_count += sum(draft is not None for _, draft, _ in drafts)
            done_count += len(batch)
            self.on_step(done_count, len(entries_to_read))
        return added_count

    def _delete_staged(self, transaction: Writing) -> None:
        lifecycle.delete_thread(transaction, self.staging_thread)

    @staticmethod
    def _is_on_line(checkpoint_tuple: CheckpointTuple, line: ThreadLine) -> bool:
        """Return whether a graph checkpoint belongs to the newest line; True if its metadata names no parent."""
        parents: Any = checkpoint_tuple.metadata.get("parents")
        root = parents.get("") if isinstance(parents, Mapping) else None
        return root not in line.others

    # -- checking

    def _compare_copy(self, line: ThreadLine, newest: str, earlier: EarlierImport | None, added_count: int) -> None:
        staged_parents = load_parents(self.store, self.staging_thread)
        known_parents = {**(load_parents(self.store, earlier.branch_thread_id) if earlier else {}), **staged_parents}
        if len(staged_parents) != added_count or not {("", root) for root in line.roots} <= known_parents.keys():
            raise self.import_commit.conflict_error()
        source_tuple = self.source.read(self.thread_id, ThreadEntry("", newest, None))
        thread = self.staging_thread if ("", newest) in staged_parents or earlier is None else earlier.branch_thread_id
        differences = self.copier.differences(GraphKey(thread, "", newest), source_tuple)
        if differences and load_parents(self.store, self.staging_thread) != staged_parents:
            raise self.import_commit.conflict_error()
        if differences:
            raise differing_copy(self.thread_name, differences)
