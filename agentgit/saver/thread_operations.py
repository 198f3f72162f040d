"""Operations of the saver on whole threads, and on all stored data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial

from langgraph.checkpoint.base import BaseCheckpointSaver

from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.maintenance.gc import NOTHING_COLLECTED, Collected, collect
from agentgit.store.records.encryption_keys import unlock
from agentgit.store.schema import schema
from agentgit.store.sql.transaction import Writing
from agentgit.store.threads import lifecycle
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.owners import SESSION_THREAD_PREFIX, list_owners


class ThreadOperations(BaseCheckpointSaver[float]):
    """The part of LangGraph's `BaseCheckpointSaver` that copies and deletes threads, and garbage collection."""

    sessions: bool
    """True if this saver may access the threads of sessions."""

    database: Database
    """The database that this saver reads and writes."""

    _compression: str

    @cached_property
    def store(self) -> GraphStore:
        """The graph checkpoints of this saver."""
        schema.prepare(self.database)
        unlock(self.database)
        return GraphStore(self._compression)

    def _write(self, work: Callable[[Writing], None]) -> None:
        self.store  # noqa: B018  # its first use prepares the database
        self.database.write(work)

    def _require_access(self, thread_id: object) -> str:
        """Return the id of a thread, if this saver may access it."""
        thread = str(thread_id)
        if thread.startswith(SESSION_THREAD_PREFIX) and not self.sessions:
            raise InvalidInput(
                f"Thread {thread!r} belongs to a session, as its id begins with {SESSION_THREAD_PREFIX}. Use the "
                "session, with repo.wrap(...), or SQLModelSaver(..., sessions=True), which can break the session."
            )
        return thread

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints and writes of a thread."""
        thread = self._require_access(thread_id)
        self._write(lambda transaction: lifecycle.delete_thread(transaction, thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints whose metadata names one of these runs, with their writes."""
        runs = [str(run_id) for run_id in run_ids]
        self._write(lambda transaction: lifecycle.delete_for_runs(transaction, runs, sessions=self.sessions))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the checkpoints and writes of a thread into a new one."""
        store, source, target = (
            self.store,
            self._require_access(source_thread_id),
            self._require_access(target_thread_id),
        )
        self.database.write(lambda transaction: store.copy_thread(transaction, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints."""
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}.")
        threads = [self._require_access(thread_id) for thread_id in thread_ids]
        operation = lifecycle.prune if strategy == "keep_latest" else lifecycle.delete_thread

        def prune_threads(transaction: Writing) -> None:
            for thread in threads:
                operation(transaction, thread)

        self._write(prune_threads)

    def gc(self, *, dry_run: bool = False, shrink: bool = False, imports: bool = False) -> Collected:
        """Delete the values that no thread needs. Deleting threads and checkpoints leaves their values behind.

        It is safe to run while this or other programs write. It collects one thread with its copies after the other;
        their writers wait until it ends.

        Example:
            >>> from agentgit import SQLModelSaver
            >>> with SQLModelSaver.from_conn_string(":memory:") as saver:
            ...     saver.gc(dry_run=True)
            Collected(values=0, bytes=0, writes=0, lists=0, steps=0)
        """
        store, collected = self.store, NOTHING_COLLECTED
        with self.database.reading() as transaction:
            owners = list_owners(transaction)
            if dry_run:
                counts = (collect(transaction, store.blobs.of(one), imports=imports) for one in owners)
                return sum(counts, NOTHING_COLLECTED)
        for owner in owners:
            collected += self.database.write(partial(collect, blobs=store.blobs.of(owner), imports=imports))
        if shrink:
            self.database.shrink()
        return collected
