"""The saver for hosts of a served graph: what a host does to threads and runs, done to sessions."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection, and_, select

from agentgit.agents.graph import confirmation
from agentgit.agents.graph.thread_sessions import ThreadSessions
from agentgit.async_api import awaiting
from agentgit.effects import RollbackPlan
from agentgit.errors import Conflict, InvalidInput, NotFound, RollbackBlocked, RollbackIncomplete
from agentgit.handles.branching import Branching
from agentgit.handles.context import Context
from agentgit.handles.rollbacks import RollbackOptions, Rollbacks
from agentgit.handles.session import Session
from agentgit.handles.templates import SessionFactory
from agentgit.saver.branch_saver import ThreadReader
from agentgit.store.queries.graph_points import GraphPoint
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, GRAPH_CHECKPOINT, SESSION
from agentgit.values import as_object

T = TypeVar("T")

LONGEST_WAIT = 60.0
"""The seconds to wait for the end of a turn that was cancelled, and then for its calls: a thread cannot be stopped."""

FLUSH_TIME = 0.2
"""The seconds after which the first checkpoint of a run that has ended is written."""

POLL_INTERVAL = 0.1
"""The seconds between two attempts."""

CANCEL = RollbackOptions(tools="reversible", on_error="continue")
"""The rollback of a run that is cancelled: nobody can be asked for consent."""

PRUNE_STRATEGIES = ("keep_latest", "delete")


class HostSaver(ThreadReader):
    """The saver that a host is given beside a graph of `Repository.graph`. `Repository.saver` creates it.

    A host reads threads with it, and deletes, copies and prunes them. The runs of the graph write with savers of their
    own, so that `put` and `put_writes` are refused.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self._context, self._sessions = context, ThreadSessions(context)
        super().__init__(context.store, self._sessions.find_threads)

    def delete_thread(self, thread_id: str) -> None:
        """Erase the session of a thread, as `Session.delete`. What its tools did stays in the world.

        Args:
            thread_id: The thread. Nothing happens if it has no session.

        Raises:
            Conflict: A run of the thread has not ended.
        """
        session_id = self._sessions.find(str(thread_id))
        if session_id is not None:
            _when_idle(lambda: Session(self._context, session_id).delete())

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Roll threads back to the points before runs, as a host does to cancel them.

        Effects that can be reversed without a person's consent are reversed; the others stay in the world, and
        `Session.operations` has the report. A run that others have followed stays, because a rollback would undo these,
        too.

        Args:
            run_ids: The ids of the runs, as in the metadata of their checkpoints.

        Raises:
            Conflict: The turn of a run has not ended.
        """
        ids = [str(run_id) for run_id in run_ids]
        if not self._context.read(lambda connection: self._find_sessions(connection, ids)):
            time.sleep(FLUSH_TIME)  # a run that was cancelled at its beginning writes its first checkpoint at its end
        for session_id in self._context.read(lambda connection: self._find_sessions(connection, ids)):
            # After each rollback, another of the runs may be the last one.
            while any(_when_idle(partial(self._roll_back, session_id, run_id)) for run_id in ids):
                pass

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`. Undo functions that are coroutine functions run on the caller's loop."""
        with awaiting():
            await super().adelete_for_runs(run_ids)

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Create a session that begins with the newest state of a thread. It has a history and a world of its own.

        Args:
            source_thread_id: The thread to copy. Nothing happens if it has no session.
            target_thread_id: The thread of the new session.

        Raises:
            Conflict: The target has a session.
            InvalidInput: The id of the target cannot be the name of a session.
        """
        source, target = self._sessions.find(str(source_thread_id)), str(target_thread_id)
        if source is None:
            return
        if self._sessions.find(target) is not None:
            raise Conflict(f"Thread {target} already exists. Nothing was copied; choose another id.")
        branching = Branching(self._context, source)
        branch, snapshot = branching.read_branch(None), branching.take_snapshot("fork")
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
        if strategy not in PRUNE_STRATEGIES:
            raise InvalidInput(f"strategy must be 'keep_latest' or 'delete', not {strategy!r}.")
        for thread_id in thread_ids:
            session_id = self._sessions.find(str(thread_id))
            if strategy == "delete":
                self.delete_thread(thread_id)
            elif session_id is not None:
                Session(self._context, session_id).retention.clear()

    # -- runs

    def _find_sessions(self, connection: Connection, run_ids: Sequence[str]) -> list[int]:
        """Return the ids of the user's sessions with checkpoints of runs."""
        c = GRAPH_CHECKPOINT.c
        query = (
            select(c.external_session_id)
            .join(SESSION, and_(SESSION.c.tenant_id == c.tenant_id, SESSION.c.id == c.external_session_id))
            .where(c.tenant_id == self.store.tenant_id, c.run_id.in_(run_ids))
            .where(SESSION.c.user_id == self._context.user.id)
        )
        return list(connection.execute(query.distinct()).scalars())

    def _roll_back(self, session_id: int, run_id: str) -> bool:
        """Roll back to the point before a run, if it is the last one of the current branch; return whether it was."""
        rollbacks = Rollbacks(self._context, session_id)
        branch = rollbacks.read_branch(None)
        run = self._context.read(lambda connection: self._find_run(connection, branch, run_id))
        if run is None:
            return False
        asked = confirmation.read(as_object(branch.meta))
        if asked is not None:  # the run has only asked whether it may begin
            rollbacks.set_current_branch(asked.previous)
        else:
            to = self._find_start(session_id, run)
            self._await_calls(rollbacks.plan(to, branch.id, CANCEL))
            with self._context.recording_moves(session_id):
                try:
                    rollbacks.run(to, branch.id, CANCEL)
                except RollbackIncomplete as incomplete:  # an undo function raised; what still cannot be undone stays
                    self._context.engine().resume(incomplete.operation, force=True)
        return True

    def _await_calls(self, plan: RollbackPlan) -> None:
        """Wait for the calls of a plan that run on after their turn was cancelled, so that they can be reversed."""
        ids, deadline = {step.invocation.id for step in plan.steps}, time.monotonic() + LONGEST_WAIT
        while not ids.isdisjoint(self._context.registry.running_calls) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL)

    def _find_run(self, connection: Connection, branch: StoredRow, run_id: str) -> Run | None:
        """Find a run, if the newest checkpoint of a branch is one of its own."""
        c, newest = GRAPH_CHECKPOINT.c, self.store.newest(connection, branch.thread_id)
        query = (
            select(c.checkpoint_id, c.parent_id)
            .where(c.tenant_id == self.store.tenant_id, c.external_session_id == branch.external_session_id)
            .where(c.ns == "", c.run_id == run_id)
            .order_by(c.checkpoint_id)
        )
        rows = connection.execute(query).all()
        if newest is None or newest.key.checkpoint_id not in {row.checkpoint_id for row in rows}:
            return None
        # Forks have copies of its checkpoints, of which the first has no parent.
        first_id = rows[0].checkpoint_id
        parent_id = next((row.parent_id for row in rows if row.checkpoint_id == first_id and row.parent_id), None)
        if parent_id is not None:
            return Run(parent_id, None)
        beginning_id = self._find_beginning(connection, branch.external_session_id)
        return Run(None, beginning_id) if beginning_id is not None else None

    def _find_beginning(self, connection: Connection, session_id: int) -> int | None:
        """Return the checkpoint before the first run of a session; None if the session began with a state."""
        root = self._context.store.sessions.branches(connection, session_id)[0]
        c = CHECKPOINT.c
        query = select(c.id).where(
            c.tenant_id == self.store.tenant_id, c.internal_session_id == root.id, c.graph_checkpoint_id.is_(None)
        )
        return connection.execute(query.order_by(c.number).limit(1)).scalar()

    def _find_start(self, session_id: int, run: Run) -> GraphPoint | int:
        """Return the point before a run.

        Raises:
            NotFound: It was deleted.
        """
        if run.beginning_id is not None:
            return run.beginning_id
        point = self._sessions.find_point(session_id, run.parent_id or "")
        if point is None:
            raise NotFound(f"The checkpoint before the run, {run.parent_id}, was deleted. Nothing was done.")
        return self._sessions.require_target(session_id, point)


class Run(NamedTuple):
    """A run of a host.

    Args:
        parent_id: The graph checkpoint before its first one; None if it is the first run of its thread.
        beginning_id: The checkpoint before the first run of its thread; None for another run.
    """

    parent_id: str | None
    beginning_id: int | None


def _when_idle(action: Callable[[], T]) -> T:
    """Perform an action as soon as the turn that is in its way has ended.

    Raises:
        Conflict, RollbackBlocked: The turn has not ended in time.
    """
    deadline = time.monotonic() + LONGEST_WAIT
    while True:
        try:
            return action()
        except (Conflict, RollbackBlocked):
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_INTERVAL)
