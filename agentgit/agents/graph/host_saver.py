"""The saver for hosts of a served graph: what a host does to threads and runs, done to sessions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import select

from agentgit.agents.graph import confirmation
from agentgit.agents.graph.served_graphs import HostRun, ServedGraphs
from agentgit.async_api import awaiting
from agentgit.errors import Conflict, NotFound, RollbackIncomplete, WorkspaceChanged
from agentgit.handles.branching import Branching
from agentgit.handles.context import Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.handles.session import Session
from agentgit.handles.templates import SessionFactory
from agentgit.rollback.request import RollbackOptions, require_one_of
from agentgit.saver.branch_saver import SessionThreads, ThreadReader
from agentgit.sessions.session import RUNNING
from agentgit.store.queries.graph_points import BranchHead, GraphPlace, GraphPoint, find_graph_point, find_thread_head
from agentgit.store.records.json_columns import read_meta
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading


class ThreadSessions:
    """The sessions of a user, by their thread ids."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def find(self, thread_id: str) -> int | None:
        """Return the id of the session of a thread; None if there is none."""
        return self.context.read(
            lambda transaction: self.context.store.sessions.of_thread(transaction, self.context.user.id, thread_id)
        )

    def find_threads(self, thread_id: str) -> SessionThreads | None:
        """Return the threads of the branches of a session; None if there is no such session."""

        def read(transaction: Reading) -> SessionThreads | None:
            head = self.find_head(transaction, thread_id)
            if head is None:
                return None
            rows = self.context.store.sessions.branches(transaction, head.row.external_session_id)
            return SessionThreads(head.row.thread_id, [row.thread_id for row in rows])

        return self.context.read(read)

    def find_head(self, transaction: Reading, thread_id: str) -> BranchHead | None:
        """Find where the next run of a thread begins; None if the thread has no session."""
        head = find_thread_head(transaction, self.context.user.id, thread_id)
        if head is not None:
            self.context.lookup.require_role(transaction, head.row.external_session_id)
        return head

    def find_point(self, session_id: int, place: GraphPlace) -> GraphPoint | None:
        """Find a checkpoint of a session by LangGraph's id; None if there is none."""

        def read(transaction: Reading) -> GraphPoint | None:
            session = self.context.lookup.session(transaction, session_id)
            return find_graph_point(
                self.context.store, transaction, session_id, session.current_internal_session_id, place
            )

        return self.context.read(read)

    def require_target(self, session_id: int, point: GraphPoint) -> GraphPoint:
        """Return a point with a checkpoint to roll back to; if its branch has none after the point, make one."""
        if point.target is not None:
            return point
        branching = Branching(self.context, session_id)
        snapshot = branching.take_snapshot("rollback")
        newest = self.context.change(lambda c: branching.ensure_checkpoint(c, point.branch.id, snapshot))
        found = self.find_point(session_id, point.place)
        if found is None:
            raise NotFound("The checkpoint was deleted. Nothing was run.")
        # Calls without a result are open there, and the newest checkpoint stands before them.
        return found if found.target is not None else replace(found, target=newest)


LONGEST_WAIT = 60.0
"""The seconds to wait for the end of a run that was cancelled: its turn, then its calls in threads, which go on."""

DELETE_WAIT = 10.0
"""The seconds to wait for the end of a run whose thread is deleted."""

POLL_INTERVAL = 0.05
"""The seconds between two attempts."""

CANCEL = RollbackOptions(tools="reversible", on_error="continue")
"""The rollback of a run that is cancelled: nobody can be asked for consent."""


class _ShownByHost(type):
    """The type of a saver that a host names when it refuses a graph that shows one."""

    def __repr__(cls) -> str:
        return f"agentgit's {cls.__name__}; export repo.graph(...).copy({{'checkpointer': None}})"


class HostSaver(ThreadReader, metaclass=_ShownByHost):
    """The saver that a host is given beside a graph of `Repository.graph`. `Repository.saver` creates it.

    A host reads threads with it, and deletes, copies and prunes them. The runs of the graph write with savers of their
    own, so that `put` and `put_writes` are refused.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._sessions = context, ThreadSessions(context)
        super().__init__(context.store, self._sessions.find_threads)

    # -- threads

    def delete_thread(self, thread_id: str) -> None:
        """Erase the session of a thread, as `Session.delete`. What its tools did stays in the world.

        Args:
            thread_id: The thread. Nothing happens if it has no session.

        Raises:
            Conflict: A run of the thread has not ended.
        """
        _wait(self._delete(str(thread_id)))

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await _await(self._delete(str(thread_id)))

    def _delete(self, thread_id: str) -> Generator[None, None, None]:
        session_id, deadline = self._sessions.find(thread_id), time.monotonic() + DELETE_WAIT
        if session_id is None:
            return
        while self._is_running(session_id) and time.monotonic() < deadline:
            yield
        Session(self._context, session_id).delete(force=True)  # a host deletes without asking

    def _is_running(self, session_id: int) -> bool:
        branches = self._context.read(lambda c: self._context.store.sessions.branches(c, session_id))
        return any(branch.status == RUNNING for branch in branches)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Create a session that begins with the newest state of a thread. It has a history and a world of its own.

        Args:
            source_thread_id: The thread to copy. Nothing happens if it has no session.
            target_thread_id: The thread of the new session.

        Raises:
            Conflict: The target has a session, or the source is in the middle of a run, whose calls the copy would
                repeat.
            InvalidInput: The id of the target cannot be the name of a session.
        """
        source, target = self._sessions.find(str(source_thread_id)), str(target_thread_id)
        if source is None:
            return
        if self._sessions.find(target) is not None:
            raise Conflict(f"Thread {target} already exists. Nothing was copied; choose another id.")
        branching, store = Branching(self._context, source), self._context.store
        branch, snapshot = branching.read_branch(None), branching.take_snapshot("fork")
        if not self._context.read(lambda c: store.head_state(c, branch).is_settled):
            raise Conflict(
                f"Thread {source_thread_id} waits for an answer, or its run was interrupted. A copy would repeat "
                "calls; end the run first."
            )
        checkpoint = self._context.change(lambda c: branching.ensure_checkpoint(c, branch.id, snapshot))
        SessionFactory(self._context).ensure(target, checkpoint.id)

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Delete checkpoints that nothing needs.

        Args:
            thread_ids: The threads.
            strategy: `keep_latest` keeps the conversation and what a session needs, as `session.retention.clear()`;
                `delete` erases the sessions.

        Raises:
            InvalidInput: The strategy is not valid.
        """
        require_one_of("strategy", strategy, ("keep_latest", "delete"))
        for thread_id in thread_ids:
            session_id = self._sessions.find(str(thread_id))
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif session_id is not None:
                Session(self._context, session_id).retention.clear()

    # -- runs

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Roll threads back to the points before runs that were cancelled in this process.

        Effects that can be reversed without a person's consent are reversed; the others stay in the world, and
        `Session.operations` has the report. A run that has ended by itself stays: to delete the record of a run undoes
        nothing. So does a cancelled run that another one has followed.

        Args:
            run_ids: The ids of the runs, as in the metadata of their configs.

        Raises:
            Conflict: The turn of a run has not ended in time.
        """
        _wait(self._roll_back_all(run_ids))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`. Undo functions that are coroutine functions run on the caller's loop."""
        await _await(self._roll_back_all(run_ids))

    def _roll_back_all(self, run_ids: Sequence[str]) -> Generator[None, None, None]:
        graphs = ServedGraphs.of(self._context.registry)
        for run_id in map(str, run_ids):
            run = graphs.runs.get(run_id)
            if run is None or self._sessions.find(run.thread_id) != run.session_id:
                continue
            if run.thread_id in graphs.held:  # another call rolls it back
                continue
            graphs.held.add(run.thread_id)
            try:
                yield from self._await_end(run_id, run)
                if graphs.runs.get(run_id) is run:
                    self._roll_back(run)
                    graphs.runs.pop(run_id, None)
            finally:
                graphs.held.discard(run.thread_id)

    def _await_end(self, run_id: str, run: HostRun) -> Generator[None, None, None]:
        """Wait for the turn of a run, then for its calls in threads."""
        registry, deadline = self._context.registry, time.monotonic() + LONGEST_WAIT
        while ServedGraphs.of(registry).runs.get(run_id) is run and self._is_running(run.session_id):
            if time.monotonic() > deadline:
                raise Conflict(f"Run {run_id} has not ended. Cancel it first; then its rollback is possible.")
            yield
        while run.branch_id in list(registry.running_calls.values()) and time.monotonic() < deadline:
            yield

    def _roll_back(self, run: HostRun) -> None:
        rollbacks = Rollbacks(self._context, run.session_id)
        try:
            branch = rollbacks.read_branch(None)
        except NotFound:  # the session was deleted
            return
        if (branch.id, branch.epoch) != (run.branch_id, run.epoch + 1):
            return  # it did not begin, or another run has followed
        asked = confirmation.read(read_meta(branch))
        if asked is not None:  # it has only asked whether it may begin
            rollbacks.set_current_branch(asked.previous, source_id=branch.id)
            return
        start = self._context.read(lambda transaction: self._find_start(transaction, run))
        if start is None:
            return
        options = replace(CANCEL, epoch=branch.epoch)
        with self._context.recording_moves(run.session_id):
            try:
                try:
                    rollbacks.run(start, branch.id, options)
                except WorkspaceChanged:  # the effects of tools are reversed
                    why = "both a turn and somebody else have changed files, so all are left as they are"
                    rollbacks.run(start, branch.id, replace(options, files=False, why_files_stay=why))
            except RollbackIncomplete as incomplete:  # an undo function raised; what still cannot be undone stays
                self._context.engine().resume(incomplete.operation, force=True)

    def _find_start(self, transaction: Reading, run: HostRun) -> int | None:
        """Return the checkpoint of the point where a run began; None if it did nothing."""
        if run.start_id is not None:
            return run.start_id
        c = CHECKPOINT.c
        query = select(c.id).where(
            c.internal_session_id == run.branch_id, c.kind == "before", c.id > (run.head_id or 0)
        )
        return transaction.execute(query.order_by(c.number).limit(1)).scalar()


def _wait(attempts: Generator[None, None, None]) -> None:
    """Run a generator to its end; where it yields, sleep and try again."""
    for _ in attempts:
        time.sleep(POLL_INTERVAL)


async def _await(attempts: Generator[None, None, None]) -> None:
    """Run a generator to its end as `_wait` does. Between two attempts, no thread is held, because the loop has few."""
    try:
        with awaiting():
            while await asyncio.to_thread(next, attempts, _END) is not _END:
                await asyncio.sleep(POLL_INTERVAL)
    finally:
        with suppress(ValueError):  # this task was cancelled, and the thread goes on with it
            attempts.close()


_END: Any = object()
