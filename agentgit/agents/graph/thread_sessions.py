"""The sessions of a repository as threads: found by the ids that clients of LangGraph know them by."""

from __future__ import annotations

from sqlalchemy import Connection

from agentgit.errors import NotFound
from agentgit.handles.branching import Branching
from agentgit.handles.context import Context
from agentgit.saver.branch_saver import SessionThreads
from agentgit.store.queries.graph_points import BranchHead, GraphPoint, find_graph_point, find_thread_head


class ThreadSessions:
    """The sessions of a user, by their thread ids."""

    def __init__(self, context: Context) -> None:
        self.context = context

    def find(self, thread_id: str) -> int | None:
        """Return the id of the session of a thread; None if there is none."""
        return self.context.read(
            lambda connection: self.context.store.sessions.of_thread(connection, self.context.user.id, thread_id)
        )

    def find_threads(self, thread_id: str) -> SessionThreads | None:
        """Return the threads of the branches of a session; None if there is no such session."""

        def read(connection: Connection) -> SessionThreads | None:
            head = self.find_head(connection, thread_id)
            if head is None:
                return None
            rows = self.context.store.sessions.branches(connection, head.row.external_session_id)
            return SessionThreads(head.row.thread_id, [row.thread_id for row in rows])

        return self.context.read(read)

    def find_head(self, connection: Connection, thread_id: str) -> BranchHead | None:
        """Find where the next run of a thread begins; None if the thread has no session."""
        head = find_thread_head(self.context.store, connection, self.context.user.id, thread_id)
        if head is not None:
            self.context.lookup.require_role(connection, head.row.external_session_id)
        return head

    def find_point(self, session_id: int, checkpoint_id: str) -> GraphPoint | None:
        """Find a checkpoint of a session by LangGraph's id; None if there is none."""

        def read(connection: Connection) -> GraphPoint | None:
            session = self.context.lookup.session(connection, session_id)
            return find_graph_point(
                self.context.store, connection, session_id, session.current_internal_session_id, checkpoint_id
            )

        return self.context.read(read)

    def require_target(self, session_id: int, point: GraphPoint) -> GraphPoint:
        """Return a point with a checkpoint to roll back to; if its branch has none after the point, make one."""
        if point.target is not None:
            return point
        branching = Branching(self.context, session_id)
        snapshot = branching.take_snapshot("rollback")
        self.context.change(lambda c: branching.ensure_checkpoint(c, point.branch.id, snapshot))
        found = self.find_point(session_id, point.checkpoint.key.checkpoint_id)
        if found is None:
            raise NotFound("The checkpoint was deleted. Nothing was run.")
        return found
