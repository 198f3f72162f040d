"""Operations of the saver on whole threads, and on all stored data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import Connection

from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.maintenance.gc import Collected, collect
from agentgit.store.threads.graph_store import GraphStore
from agentgit.store.threads.lifecycle import OF_SESSIONS


class WholeThreads(BaseCheckpointSaver[float]):
    """The part of LangGraph's `BaseCheckpointSaver` that copies and deletes threads, and care for all values."""

    sessions: bool
    """True if this saver reaches the threads of sessions."""

    @property
    @abstractmethod
    def database(self) -> Database:
        """The database that this saver reads and writes."""

    @property
    @abstractmethod
    def store(self) -> GraphStore:
        """The graph checkpoints of this saver's tenant."""

    def _reached(self, thread_id: object) -> str:
        """Return the id of a thread that this saver may touch.

        Raises:
            InvalidInput: The thread is of a session.
        """
        thread = str(thread_id)
        if thread.startswith(OF_SESSIONS) and not self.sessions:
            raise InvalidInput(
                f"Thread {thread!r} belongs to a session, as its id begins with {OF_SESSIONS}. Use the session, with "
                "repo.wrap(...), or SQLModelSaver(..., sessions=True), which can break the session."
            )
        return thread

    def delete_thread(self, thread_id: str) -> None:
        """Delete the checkpoints and writes of a thread.

        Raises:
            InvalidInput: The thread is of a session.
        """
        store, thread = self.store, self._reached(thread_id)
        self.database.write(lambda connection: store.delete_thread(connection, thread))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Delete the checkpoints, with their writes, whose metadata names one of these runs."""
        store, runs = self.store, [str(run_id) for run_id in run_ids]
        self.database.write(lambda connection: store.delete_for_runs(connection, runs, sessions=self.sessions))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy the checkpoints and writes of a thread into a new one.

        Raises:
            Conflict: The target has checkpoints already.
            InvalidInput: One of them is of a session.
        """
        store, source, target = self.store, self._reached(source_thread_id), self._reached(target_thread_id)
        self.database.write(lambda connection: store.copy_thread(connection, source, target))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete old checkpoints.

        Args:
            thread_ids: Of which threads.
            strategy: `keep_latest` keeps the newest of each namespace, and what its values still need; `delete`
                keeps nothing.

        Raises:
            InvalidInput: The strategy is neither, or a thread is of a session.
        """
        if strategy not in ("keep_latest", "delete"):
            raise InvalidInput(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}.")
        store, threads = self.store, [self._reached(thread_id) for thread_id in thread_ids]
        verb = store.prune if strategy == "keep_latest" else store.delete_thread

        def work(connection: Connection) -> None:
            for thread in threads:
                verb(connection, thread)

        self.database.write(work)

    def gc(self, *, dry_run: bool = False, shrink: bool = False, imports: bool = False) -> Collected:
        """Delete the values that no thread needs any more; deleting threads and checkpoints leaves them behind.

        Writers wait while it runs. It is safe beside them, also in other programs.

        Args:
            dry_run: True to count only.
            shrink: True to also give the free space of the database's files back, which takes as long as copying them.
            imports: True to also delete what imports have left half way; one that is at work then fails with
                `Conflict`. Without it the next import of the thread goes on from there.

        Example:
            >>> from agentgit import SQLModelSaver
            >>> with SQLModelSaver.from_conn_string(":memory:") as saver:
            ...     saver.gc(dry_run=True)
            Collected(values=0, bytes=0, writes=0, lists=0, steps=0)
        """
        blobs = self.store.content.blobs
        if dry_run:
            with self.database.reading() as connection:
                return collect(connection, blobs, dry_run=True, imports=imports)
        collected = self.database.write(lambda connection: collect(connection, blobs, imports=imports))
        if shrink:
            self.database.shrink()
        return collected
