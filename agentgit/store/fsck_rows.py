"""Checking the rows: what they refer to is there, their words are known, and what they say of states agrees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, and_, select

from agentgit.sessions import operation
from agentgit.sessions.session import OPEN, PARTIAL, REPLAYING, RUNNING
from agentgit.store.checkpoints import OPERATION
from agentgit.store.fsck_values import RESTORE, Report, rows
from agentgit.store.graph_rows import CHECKPOINT as GRAPH
from agentgit.store.journal import INVOCATION, LOGGED, WORLD
from agentgit.store.sessions import BRANCH, CHECKPOINT, SESSION, TAG, USER
from agentgit.store.snapshots import SNAPSHOT
from agentgit.store.store import Store
from agentgit.store.texts import TEXT
from agentgit.tools.effects import KINDS, UNDECLARED
from agentgit.tools.invocation import CALL, FAILED, MOVES, PAUSED, REDO, REPLAY, REVERSED
from agentgit.values import from_json

LOST = "Restore the database from a copy, or delete the session: what belongs to this row cannot be found."
BRANCH_STATUSES = (OPEN, RUNNING, REPLAYING, PARTIAL)
CALL_STATUSES = frozenset({*MOVES, FAILED, PAUSED, REVERSED})
CALL_KINDS = (CALL, REPLAY, REDO)
CHECKPOINT_KINDS = ("before", "after", "tools", "branch", "named")
OPERATION_STATUSES = (operation.RUNNING, operation.DONE, operation.PARTIAL)


def check_rows(connection: Connection, store: Store, report: Report, *, hashes: bool) -> None:
    """Check the rows of sessions: all but the stored values and what LangGraph saved.

    Args:
        connection: any.
        store: whose.
        report: takes what is found.
        hashes: True to also compare what rows say of states, and to read their JSON.
    """
    check = _Rows(connection, store, report, hashes=hashes)
    check.sessions()
    check.branches()
    check.snapshots()
    check.checkpoints()
    check.tags()
    check.calls()
    check.texts()
    check.operations()
    check.world()


class _Rows:
    """One check of the rows of a tenant. It keeps the ids of what it has seen, for those that refer to them."""

    def __init__(self, connection: Connection, store: Store, report: Report, *, hashes: bool) -> None:
        self.connection, self.store, self.report, self.hashes = connection, store, report, hashes
        self.users = self._ids(USER)
        self.current: dict[int, int | None] = {}
        """Of each session the branch that it continues on."""
        self.of_branch: dict[int, tuple[int, str]] = {}
        """Of each branch its session and its thread."""
        self.of_checkpoint = dict(self._columns(CHECKPOINT.c.id, CHECKPOINT.c.internal_session_id))
        self.call_ids = self._ids(INVOCATION)
        self.operation_ids = self._ids(OPERATION)
        self.snapshot_ids = self._ids(SNAPSHOT)

    def _columns(self, *columns: Any) -> Iterable[Any]:
        query = select(*columns).where(columns[0].table.c.tenant_id == self.store.tenant_id)
        return (tuple(row) for row in self.connection.execute(query))

    def _ids(self, table: Any) -> set[int]:
        return {id for (id,) in self._columns(table.c.id)}

    def _rows(self, *columns: Any) -> Iterable[Any]:
        query = select(*columns).where(columns[0].table.c.tenant_id == self.store.tenant_id)
        return rows(self.connection, query, self.report)

    def _one_of(self, row: str, column: str, value: Any, known: Collection[str]) -> None:
        if value not in known:
            self.report.add(row, f"its {column} is {value!r}, which means nothing", RESTORE)

    def _refers(self, row: str, what: str, id: int | None, known: Collection[int], todo: str = LOST) -> None:
        if id is not None and id not in known:
            self.report.add(row, f"its {what} {id} is not there", todo)

    def _json(self, row: str, **columns: bytes | None) -> None:
        for name, data in columns.items():
            if self.hashes and data is not None:
                try:
                    from_json(data)
                except ValueError:
                    self.report.add(row, f"its {name} cannot be read", RESTORE)

    # -- sessions and branches

    def sessions(self) -> None:
        """Check the sessions: they have an owner; the branch that they continue on is checked with the branches."""
        for row in self._rows(SESSION.c.id, SESSION.c.user_id, SESSION.c.current_branch_id, SESSION.c.meta):
            self.current[row.id] = row.current_branch_id
            self._refers(f"external_session {row.id}", "user", row.user_id, self.users)
            self._json(f"external_session {row.id}", meta=row.meta)

    def branches(self) -> None:
        """Check the branches: their session, parent, branch point and head, and that each leads to a root."""
        columns = (
            "id",
            "external_session_id",
            "thread_id",
            "status",
            "head_id",
            "parent_id",
            "branch_point_id",
            "meta",
        )
        found_ = list(self._rows(*(BRANCH.c[name] for name in columns)))
        self.of_branch = {row.id: (row.external_session_id, row.thread_id) for row in found_}
        parents = {row.id: row.parent_id for row in found_}
        for row in found_:
            name = f"internal_session {row.id}"
            self._refers(name, "session", row.external_session_id, self.current)
            self._one_of(name, "status", row.status, BRANCH_STATUSES)
            self._refers(name, "parent", row.parent_id, parents)
            if _loops(row.id, parents):
                self.report.add(name, "it is its own ancestor", RESTORE)
            self._point(name, "head", row.head_id, row.id)
            self._point(name, "branch point", row.branch_point_id, row.parent_id)
            self._json(name, meta=row.meta)
        for session_id, branch_id in self.current.items():
            if branch_id is None or self.of_branch.get(branch_id, (None,))[0] != session_id:
                todo = "Continue on another branch: agentgit switch SESSION BRANCH."
                self.report.add(f"external_session {session_id}", f"its branch {branch_id} is not there", todo)

    def _point(self, name: str, what: str, checkpoint_id: int | None, branch_id: int | None) -> None:
        self._refers(name, what, checkpoint_id, self.of_checkpoint)
        owner = self.of_checkpoint.get(checkpoint_id or 0, branch_id)
        if branch_id is not None and owner != branch_id:
            self.report.add(name, f"its {what} {checkpoint_id} is a checkpoint of another branch", RESTORE)

    def snapshots(self) -> None:
        """Check what is known of workspaces: the session and the branch."""
        for row in self._rows(SNAPSHOT.c.id, SNAPSHOT.c.external_session_id, SNAPSHOT.c.internal_session_id):
            name = f"workspace_snapshot {row.id}"
            self._refers(name, "session", row.external_session_id, self.current)
            self._refers(name, "branch", row.internal_session_id, self.of_branch)

    def checkpoints(self) -> None:
        """Check the checkpoints: their branch, their graph checkpoint and their files, and that they agree."""
        for row in rows(self.connection, _with_state(self.store.tenant_id), self.report):
            name = f"checkpoint {row.id}"
            self._refers(name, "branch", row.internal_session_id, self.of_branch)
            self._one_of(name, "kind", row.kind, CHECKPOINT_KINDS)
            todo = "Its files cannot be brought back; its conversation can, with files=False."
            self._refers(name, "snapshot of files", row.workspace_snapshot_id, self.snapshot_ids, todo)
            if row.data is not None:
                self._json(name, data=row.data)
            if row.thread_id is None:  # its branch is not there, and that was told
                continue
            if row.graph_checkpoint_id is not None and row.hash_there is None:
                todo = "Delete it with repo.delete_checkpoint(id), or restore the database from a copy."
                self.report.add(name, f"its graph checkpoint {row.graph_checkpoint_id} is not there", todo)
            elif self.hashes and (row.state_hash, row.message_count) != (row.hash_there or b"", row.count_there or 0):
                self.report.add(name, "its state_hash or message_count is not that of its graph checkpoint", RESTORE)

    def tags(self) -> None:
        """Check the tags: their session and their checkpoint."""
        for row in self._rows(TAG.c.name, TAG.c.external_session_id, TAG.c.checkpoint_id):
            name = f"tag {row.name!r}"
            self._refers(name, "session", row.external_session_id, self.current)
            self._refers(name, "checkpoint", row.checkpoint_id, self.of_checkpoint, "Take it away: repo.untag(name).")

    def texts(self) -> None:
        """Check the texts that a search finds: their branch."""
        for row in self._rows(TEXT.c.id, TEXT.c.internal_session_id):
            self._refers(f"search_text {row.id}", "branch", row.internal_session_id, self.of_branch)

    # -- the world

    def calls(self) -> None:
        """Check the tool invocations: their branch, what they replay, and their words."""
        columns = ("id", "external_session_id", "internal_session_id", "status", "effect", "kind", "replay_of")
        content = ("args", "result", "answers") if self.hashes else ()
        for row in self._rows(*(INVOCATION.c[name] for name in (*columns, *content))):
            name = f"tool_invocation {row.id}"
            self._refers(name, "branch", row.internal_session_id, self.of_branch)
            owner = self.of_branch.get(row.internal_session_id, (row.external_session_id,))[0]
            if owner != row.external_session_id:
                self.report.add(name, f"its session {row.external_session_id} is not that of its branch", RESTORE)
            self._refers(name, "earlier call", row.replay_of, self.call_ids)
            self._one_of(name, "status", row.status, CALL_STATUSES)
            self._one_of(name, "effect", row.effect, (*KINDS, UNDECLARED))
            self._one_of(name, "kind", row.kind, CALL_KINDS)
            if self.hashes:
                self._json(name, args=row.args, result=row.result, answers=row.answers)

    def operations(self) -> None:
        """Check the operations: their session, branches, and the checkpoint that they lead to."""
        columns = ("id", "external_session_id", "status", "source_id", "target_id", "internal_session_id")
        for row in self._rows(*(OPERATION.c[name] for name in (*columns, "request", "report"))):
            name = f"operation {row.id}"
            self._refers(name, "session", row.external_session_id, self.current)
            self._refers(name, "source", row.source_id, self.of_branch)
            self._refers(name, "branch", row.internal_session_id, self.of_branch)
            self._refers(name, "checkpoint", row.target_id or None, self.of_checkpoint)
            self._one_of(name, "status", row.status, OPERATION_STATUSES)
            self._json(name, request=row.request, report=row.report)

    def world(self) -> None:
        """Check the world log: the session, the call and the operation of each entry."""
        columns = (
            WORLD.c.external_session_id,
            WORLD.c.seq,
            WORLD.c.invocation_id,
            WORLD.c.action,
            WORLD.c.operation_id,
        )
        for row in self._rows(*columns):
            name = f"world_log {row.external_session_id}/{row.seq}"
            self._refers(name, "session", row.external_session_id, self.current)
            self._refers(name, "call", row.invocation_id, self.call_ids)
            self._refers(name, "operation", row.operation_id, self.operation_ids)
            self._one_of(name, "action", row.action, LOGGED)


def _with_state(tenant_id: int) -> Any:
    """Read the checkpoints, each beside what it points at."""
    c, of_branch = CHECKPOINT.c, and_(BRANCH.c.tenant_id == tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    at = and_(
        GRAPH.c.tenant_id == tenant_id,
        GRAPH.c.thread_id == BRANCH.c.thread_id,
        GRAPH.c.ns == "",
        GRAPH.c.checkpoint_id == c.graph_checkpoint_id,
    )
    columns = (
        c.id, c.internal_session_id, c.kind, c.data, c.workspace_snapshot_id, c.graph_checkpoint_id, c.state_hash,
        c.message_count, BRANCH.c.thread_id, GRAPH.c.state_hash.label("hash_there"),
        GRAPH.c.message_count.label("count_there"),
    )  # fmt: skip
    joined = CHECKPOINT.outerjoin(BRANCH, of_branch).outerjoin(GRAPH, at)
    return select(*columns).select_from(joined).where(c.tenant_id == tenant_id)


def _loops(branch_id: int, parents: Mapping[int, int | None]) -> bool:
    """Tell whether a branch is its own ancestor."""
    seen: set[int] = set()
    at = parents.get(branch_id)
    while at is not None and at not in seen:
        seen.add(at)
        at = parents.get(at)
    return branch_id in seen
