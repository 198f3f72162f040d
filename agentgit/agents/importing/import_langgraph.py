"""The import of the threads of a saver or of its database, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import URL

from agentgit.agents.importing.copying import CheckpointCopier, differing_copy, put_copies
from agentgit.agents.importing.readers import Source, ThreadEntry, open_database, source_of
from agentgit.agents.importing.thread import BATCH, OnStep, ThreadImport, load_parents
from agentgit.errors import AgentGitError, Conflict, InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.rollback.request import require_one_of
from agentgit.sessions.reports import EXTENDED, FAILED, IMPORTED, UNCHANGED, ImportReport, Progress, ThreadReport
from agentgit.store.sql.batch import slices
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store
from agentgit.store.threads import lifecycle, staging
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.owners import SESSION_THREAD_PREFIX

Keys = dict[tuple[str, str], str | None]
"""The parent of each graph checkpoint, by namespace and id."""


class PlainThreadImport:
    """The import of one thread."""

    def __init__(self, store: Store, source: Source, thread_id: str, on_step: OnStep) -> None:
        self.store, self.source, self.thread_id, self._on_step = store, source, thread_id, on_step
        self.thread_name = f"Thread {thread_id!r}"
        self.staging_thread = staging.staging_thread_id(0, "", thread_id)
        self.copier = CheckpointCopier(store, {})
        # A separate instance, because a shared one may cache rows that were staged and removed under the same name.
        self.graphs = GraphStore(store.compression)

    def run(self) -> ThreadReport:
        """Import the thread, or what is new in it since an earlier import."""
        if self.thread_id.startswith(SESSION_THREAD_PREFIX):
            raise InvalidInput(f"{self.thread_name} cannot be imported: such an id is reserved for sessions.")
        newest = self.source.newest(self.thread_id)
        if newest is None:
            raise NotFound(f"There is no thread {self.thread_id!r} in the database to import from.")
        entries = sorted(self.source.index(self.thread_id), key=lambda entry: (entry.id, entry.ns))
        existing = load_parents(self.store, self.thread_id)
        new = [entry for entry in entries if entry[:2] not in existing]
        has_continued = bool(existing.keys() - {entry[:2] for entry in entries})
        if existing and len(new) == len(entries):
            raise Conflict(f"{self.thread_name} exists here with other content. Delete one of them, or leave it out.")
        if new and has_continued:
            raise Conflict(
                f"{self.thread_name} has continued in both databases. Continue it here without importing it again, or "
                "delete it here to import it anew."
            )
        self._require_newer(new, existing)
        if not new and (has_continued or self._has_same_writes(entries, existing)):
            return self._report(UNCHANGED)
        try:
            self._stage(entries, existing)
            self._compare_copy(entries[-1], existing)
            self.store.database.write(partial(self._publish, existing=existing, count=len(new)), durable=True)
        except Unavailable:
            raise
        except Exception:
            self.store.database.write(self._delete_staged)
            raise
        return self._report(EXTENDED if existing else IMPORTED, len(new))

    def _report(self, status: str, count: int = 0) -> ThreadReport:
        hidden = tuple(sorted(self.copier.hidden_names))
        return ThreadReport(
            thread_id=self.thread_id, session_name=None, status=status, graph_checkpoints=count, hidden=hidden
        )

    def _require_newer(self, new: Sequence[ThreadEntry], existing: Keys) -> None:
        """Check that what is new follows what is here, because a thread continues from what was stored last."""
        newest = {ns: max(id for other, id in existing if other == ns) for ns, _ in existing}
        if any(entry.id < newest.get(entry.ns, "") for entry in new):
            raise Conflict(
                f"{self.thread_name} lacks a part of its history here, which cannot be added before the rest. Delete "
                "it here to import it anew."
            )

    def _has_same_writes(self, entries: Sequence[ThreadEntry], existing: Keys) -> bool:
        """Return whether the graph checkpoints without a successor have the same pending writes here."""
        return all(
            self.copier.has_same_writes(
                GraphKey(self.thread_id, leaf.ns, leaf.id), self.source.read(self.thread_id, leaf)
            )
            for leaf in _ends(entries, existing)
        )

    def _stage(self, entries: Sequence[ThreadEntry], existing: Keys) -> None:
        """Copy to the staging thread what neither the thread nor it has, and the writes that runs have added since."""
        with self.store.database.reading() as transaction:
            owner = self.graphs.owners.find(transaction, self.thread_id)
        self.graphs.owners.add(self.staging_thread, owner)  # so that nothing has to be copied when it is published
        staged = load_parents(self.store, self.staging_thread)
        missing = [entry for entry in entries if entry[:2] not in existing]
        if [entry[:2] for entry in missing[: len(staged)]] != sorted(staged, key=lambda key: (key[1], key[0])):
            self.store.database.write(self._delete_staged)  # the thread has changed since an interrupted import
            staged = {}
        known = {**existing, **staged}
        remaining = [entry for entry in missing if entry[:2] not in staged]
        to_read = [*_ends(entries, known), *remaining]
        parent_thread = self.thread_id if existing else None
        done_count = 0
        for batch in slices(to_read, BATCH):
            copies = []
            for entry in batch:
                found = self.source.read(self.thread_id, entry)
                draft = self.copier.draft(entry, found, parent_thread) if entry[:2] not in known else None
                copies.append((entry, draft, self.copier.numbered_writes(found)))
            self.store.database.write(partial(put_copies, self.graphs, self.staging_thread, copies))
            done_count += len(batch)
            self._on_step(done_count, len(to_read))

    def _compare_copy(self, newest: ThreadEntry, existing: Keys) -> None:
        if newest[:2] in existing:  # only its writes were copied
            return
        source_tuple = self.source.read(self.thread_id, newest)
        differences = self.copier.differences(GraphKey(self.staging_thread, newest.ns, newest.id), source_tuple)
        if differences:
            raise differing_copy(self.thread_name, differences)

    def _publish(self, transaction: Writing, *, existing: Keys, count: int) -> None:
        """Move what was staged to the thread."""
        owner = self.graphs.owners.find(transaction, self.thread_id)
        self.graphs.blobs.of(owner).lock(transaction)  # waits for a run of the thread that is saving a step
        is_same = staging.checkpoint_parents(transaction, self.thread_id) == existing
        moved_count = staging.move(transaction, self.graphs.blobs, self.staging_thread, self.thread_id, owner)
        if not is_same or moved_count != count:
            raise Conflict(f"{self.thread_name} changed here while it was imported. Nothing was added. Try again.")

    def _delete_staged(self, transaction: Writing) -> None:
        lifecycle.delete_thread(transaction, self.staging_thread)


def _ends(entries: Sequence[ThreadEntry], known: Keys) -> list[ThreadEntry]:
    """Return the known graph checkpoints without a known successor, or with a new one: runs may have added writes."""
    known_parents = {(ns, parent) for (ns, _), parent in known.items()}
    new_parents = {(entry.ns, entry.parent) for entry in entries if entry[:2] not in known}
    return [
        entry
        for entry in entries
        if entry[:2] in known and (entry[:2] not in known_parents or entry[:2] in new_parents)
    ]


OnProgress = Callable[[Progress], None]


def import_langgraph(
    context: Context,
    saver_or_url: Any,
    *,
    threads: Sequence[str] | None,
    progress: OnProgress | None,
    session_prefix: str,
    as_threads: bool,
    on_error: str,
) -> ImportReport:
    require_one_of("on_error", on_error, ("stop", "continue"))
    if isinstance(threads, str):
        raise InvalidInput(f"threads must be a list of thread ids; write [{threads!r}].")
    if as_threads and session_prefix:
        raise InvalidInput("A prefix names sessions, but threads were to stay threads. Choose one of the two.")
    reports: list[ThreadReport] = []
    with _open_source(saver_or_url) as source:
        thread_ids = [str(thread) for thread in threads] if threads is not None else source.threads()
        for number, thread in enumerate(thread_ids, 1):
            on_step = _begin_progress(progress, thread, number, len(thread_ids))
            name = None if as_threads else session_prefix + thread
            try:
                if name is None:
                    reports.append(PlainThreadImport(context.store, source, thread, on_step).run())
                else:
                    reports.append(ThreadImport(context, source, thread, name, on_step).run())
            except AgentGitError as error:
                if on_error == "stop":
                    raise
                reports.append(ThreadReport(thread_id=thread, session_name=name, status=FAILED, error=error))
    return ImportReport(reports)


def _begin_progress(progress: OnProgress | None, thread_id: str, number: int, thread_count: int) -> OnStep:
    """Return a function that reports the progress of one thread, and report that its import begins."""

    def report_step(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(thread_id=thread_id, number=number, threads=thread_count, done=done, total=total))

    report_step(0, 0)
    return report_step


def _open_source(saver_or_url: Any) -> Source:
    if isinstance(saver_or_url, BaseCheckpointSaver):
        return source_of(saver_or_url)
    if isinstance(saver_or_url, (str, Path, URL)):
        return open_database(saver_or_url)
    raise InvalidInput(f"{type(saver_or_url).__name__} is not a saver; give a LangGraph checkpointer, a path or a URL.")


def import_thread(context: Context, graph: Any, session: str, thread_id: str) -> ThreadReport:
    """Import one thread of the saver that a graph was compiled with; see `Repository.wrap`."""
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise InvalidInput(
            f"thread_id={thread_id!r} names a thread of the graph's own saver, but the graph was compiled without one. "
            "Compile it with that saver: graph.compile(checkpointer=…), or leave thread_id out."
        )
    with source_of(graph.checkpointer) as source:
        return ThreadImport(context, source, str(thread_id), session, channels=graph.channels).run()
