"""Sessions, branches and checkpoints in the database. Every query is bound to one tenant."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, exists, func, insert, or_, select, update

from agentgit.auth import User
from agentgit.checkpoints import refs
from agentgit.errors import Conflict
from agentgit.sessions import ExternalSession
from agentgit.sessions.session import OPEN, RUNNING
from agentgit.store.ids import new_id
from agentgit.store.journal import Part
from agentgit.store.tables import CheckpointRow, ExternalSessionRow, InternalSessionRow, OperationRow, UserRow
from agentgit.values import as_object, to_json

USER = UserRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table
SESSION = ExternalSessionRow.__table__  # type: ignore[attr-defined]  # as above
BRANCH = InternalSessionRow.__table__  # type: ignore[attr-defined]  # as above
CHECKPOINT = CheckpointRow.__table__  # type: ignore[attr-defined]  # as above
OPERATION = OperationRow.__table__  # type: ignore[attr-defined]  # as above

Found = Row[Any]
"""A row as SQLAlchemy gives it; it does not leave this room."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a new checkpoint points at.

    Args:
        graph_checkpoint_id: LangGraph's checkpoint; None before the first.
        state_hash: the hash of the state there.
        position: how many tool invocations lie before it.
        message_count: how many messages its conversation has.
    """

    graph_checkpoint_id: str | None
    state_hash: bytes
    position: int
    message_count: int


@dataclass(frozen=True, kw_only=True)
class Label:
    """How a new checkpoint is called and why it was made.

    Args:
        kind: `before`, `after`, `tools`, `branch` or `named`.
        user_id: who made it.
        name: the name a person gave it.
        description: what a person wrote about it.
        restore_point: the id of the user message that it belongs to.
        data: JSON-like data a person kept with it.
        id: made beforehand, or None.
    """

    kind: str
    user_id: int
    name: str | None = None
    description: str | None = None
    restore_point: str | None = None
    data: Any = None
    id: int | None = None


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of a path that lies on one branch.

    Args:
        branch: the branch.
        checkpoints: the number of its last checkpoint on the path; None for all.
        track: its part of the tool track.
    """

    branch: Found
    checkpoints: int | None
    track: Part


class Sessions:
    """The sessions of one tenant.

    Args:
        tenant_id: whose.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def find_user(self, connection: Connection, name: str) -> User | None:
        """Find the user of that name."""
        row = connection.execute(select(USER).where(USER.c.tenant_id == self.tenant_id, USER.c.name == name)).first()
        return User(id=row.id, name=row.name, created_at=row.created_at) if row is not None else None

    def add_user(self, connection: Connection, name: str) -> User:
        """Make a user."""
        user = User(id=new_id(), name=name, created_at=datetime.now(UTC))
        connection.execute(insert(USER), {"tenant_id": self.tenant_id, **vars(user)})
        return user

    # -- external sessions

    def create(self, connection: Connection, user_id: int, name: str) -> int:
        """Make a session with its first branch, `main`; give its id."""
        now, session_id = datetime.now(UTC), new_id()
        connection.execute(
            insert(SESSION),
            {
                "tenant_id": self.tenant_id, "id": session_id, "user_id": user_id, "session_name": name,
                "created_at": now, "updated_at": now, "is_active": True, "meta": to_json({}),
            },
        )  # fmt: skip
        branch_id = self.create_branch(connection, session_id, "main")
        self.set_current(connection, session_id, branch_id)
        return session_id

    def sessions(
        self, connection: Connection, user_id: int, *conditions: Any, limit: int | None = None
    ) -> list[ExternalSession]:
        """List a user's sessions, the one that moved last first."""
        branches = (
            select(func.count())
            .where(BRANCH.c.tenant_id == SESSION.c.tenant_id, BRANCH.c.external_session_id == SESSION.c.id)
            .scalar_subquery()
        )
        query = (
            select(SESSION, branches.label("branch_count"))
            .where(SESSION.c.tenant_id == self.tenant_id, SESSION.c.user_id == user_id, *conditions)
            .order_by(SESSION.c.updated_at.desc(), SESSION.c.id.desc())
            .limit(limit)
        )
        return [_external(row) for row in connection.execute(query)]

    def find(self, connection: Connection, user_id: int, ref: str | int) -> list[ExternalSession]:
        """Find the sessions that a name or an id may mean."""
        named = SESSION.c.session_name == str(ref)
        if str(ref).isascii() and str(ref).isdigit() and len(str(ref)) < 17:
            named = or_(named, SESSION.c.id == int(ref))
        return self.sessions(connection, user_id, named)

    def names(self, connection: Connection, user_id: int) -> list[str]:
        """List the names of a user's sessions."""
        where = and_(SESSION.c.tenant_id == self.tenant_id, SESSION.c.user_id == user_id)
        return list(connection.execute(select(SESSION.c.session_name).where(where)).scalars())

    def set_current(self, connection: Connection, session_id: int, branch_id: int) -> None:
        """Make the session continue on that branch."""
        connection.execute(
            update(SESSION)
            .where(SESSION.c.tenant_id == self.tenant_id, SESSION.c.id == session_id)
            .values(current_branch_id=branch_id, updated_at=datetime.now(UTC))
        )

    def touch(self, connection: Connection, session_id: int) -> None:
        """Note that a session moved."""
        this = and_(SESSION.c.tenant_id == self.tenant_id, SESSION.c.id == session_id)
        connection.execute(update(SESSION).where(this).values(updated_at=datetime.now(UTC)))

    # -- branches

    def create_branch(
        self,
        connection: Connection,
        session_id: int,
        name: str,
        *,
        status: str = OPEN,
        parent_id: int | None = None,
        branch_point_id: int | None = None,
        inherited: int = 0,
    ) -> int:
        """Make a branch; give its id.

        Args:
            session_id: its session.
            name: unique in the session.
            status: see `InternalSession`.
            parent_id: the branch it leaves from.
            branch_point_id: the checkpoint where it leaves.
            inherited: how many invocations its track begins with.
        """
        branch_id = new_id()
        connection.execute(
            insert(BRANCH),
            {
                "tenant_id": self.tenant_id, "id": branch_id, "external_session_id": session_id,
                "thread_id": f"agentgit-{branch_id}", "name": name, "status": status, "parent_id": parent_id,
                "branch_point_id": branch_point_id, "inherited": inherited, "created_at": datetime.now(UTC),
                "meta": to_json({}),
            },
        )  # fmt: skip
        return branch_id

    def free_name(self, connection: Connection, session_id: int, wanted: str | None, source: str) -> str:
        """Choose the name of a new branch.

        Args:
            session_id: its session.
            wanted: the name that a person asked for; None for the next one like `main-2`.
            source: the branch that it is named after.

        Raises:
            InvalidInput: no branch can be called so.
            Conflict: there is a branch of that name.
        """
        taken = {row.name for row in self.branches(connection, session_id)}
        if wanted is not None:
            if wanted in taken:
                raise Conflict(f"There is a branch {wanted} already. Choose another name, or agent.switch({wanted!r}).")
            return refs.branch_name(wanted)
        base = re.sub(r"-\d+$", "", source)
        return next(name for n in itertools.count(2) if (name := f"{base}-{n}") not in taken)

    def branches(self, connection: Connection, session_id: int) -> Sequence[Found]:
        """Read the branches of a session in the order they were made."""
        query = select(BRANCH).where(BRANCH.c.tenant_id == self.tenant_id, BRANCH.c.external_session_id == session_id)
        return connection.execute(query.order_by(BRANCH.c.id)).all()

    def branch(self, connection: Connection, branch_id: int) -> Found:
        """Read one branch."""
        return connection.execute(select(BRANCH).where(self._is_branch(branch_id))).one()

    def acquire(self, connection: Connection, branch_id: int, owner: str) -> None:
        """Take a branch for one run, if it is open.

        Raises:
            Conflict: somebody else is running it, or its rollback was not finished.
        """
        taken = connection.execute(
            update(BRANCH)
            .where(self._is_branch(branch_id), BRANCH.c.status == OPEN)
            .values(status=RUNNING, owner=owner)
        )
        if taken.rowcount == 1:
            return
        row = self.branch(connection, branch_id)
        if row.status == RUNNING:
            raise Conflict(
                f"Another agent is running branch {row.name}. Wait for its turn to end, or go your own way with "
                "agent.fork().",
                head=row.head_id,
            )
        raise Conflict(
            f"Branch {row.name} is {row.status}: its rollback was not finished. Look at repo.operations(), then call "
            "repo.resume(operation)."
        )

    def release(self, connection: Connection, branch_id: int, owner: str | None) -> None:
        """Give a branch back after a run; nothing happens if somebody else has taken it over."""
        mine = and_(self._is_branch(branch_id), BRANCH.c.status == RUNNING, BRANCH.c.owner == owner)
        connection.execute(update(BRANCH).where(mine).values(status=OPEN, owner=None))

    def set_status(self, connection: Connection, branch_id: int, status: str) -> None:
        """Set what a branch is in the middle of."""
        connection.execute(update(BRANCH).where(self._is_branch(branch_id)).values(status=status, owner=None))

    def count_turn(self, connection: Connection, branch_id: int) -> int:
        """Count one more turn of a branch; tell how many it had."""
        meta = as_object(self.branch(connection, branch_id).meta)
        meta["turns"] = meta.get("turns", 0) + 1
        connection.execute(update(BRANCH).where(self._is_branch(branch_id)).values(meta=to_json(meta)))
        return int(meta["turns"])

    def lineage(self, connection: Connection, branch: Found) -> list[Segment]:
        """Follow a branch to the root; give the parts of its path, root first."""
        others = {row.id: row for row in self.branches(connection, branch.external_session_id)}
        line = [branch]
        while line[-1].parent_id is not None:
            line.append(others[line[-1].parent_id])
        points = self._points(connection, [row.branch_point_id for row in line[:-1]])
        # A branch begins with a checkpoint that stands for its branch point, so its parent's part ends before that.
        ends = [None, *(points[row.branch_point_id] - 1 for row in line[:-1])]
        inherited = [None, *(row.inherited for row in line[:-1])]
        parts = [
            Segment(
                branch=row,
                checkpoints=end,
                track=Part(
                    branch_id=row.id, before=row.inherited, count=None if until is None else until - row.inherited
                ),
            )
            for row, end, until in zip(line, ends, inherited, strict=True)
        ]
        return parts[::-1]

    def _points(self, connection: Connection, ids: list[int]) -> dict[int, int]:
        """Look up the numbers of some checkpoints on their branches."""
        query = select(CHECKPOINT.c.id, CHECKPOINT.c.number).where(
            CHECKPOINT.c.tenant_id == self.tenant_id, CHECKPOINT.c.id.in_(bindparam("ids", expanding=True))
        )
        return {row.id: row.number for row in connection.execute(query, {"ids": ids})}

    def on_path(self, segments: Sequence[Segment]) -> Any:
        """Give the condition that a checkpoint lies on that path."""
        return or_(
            *(
                and_(
                    CHECKPOINT.c.internal_session_id == part.branch.id,
                    CHECKPOINT.c.number <= (part.checkpoints if part.checkpoints is not None else 2**31 - 1),
                )
                for part in segments
            )
        )

    # -- checkpoints

    def add_checkpoint(self, connection: Connection, branch_id: int, snapshot: Snapshot, label: Label) -> int:
        """Store a checkpoint and make it the head of its branch; give its id."""
        of_branch = and_(CHECKPOINT.c.tenant_id == self.tenant_id, CHECKPOINT.c.internal_session_id == branch_id)
        count = connection.execute(select(func.max(CHECKPOINT.c.number)).where(of_branch)).scalar() or 0
        checkpoint_id, now = label.id or new_id(), datetime.now(UTC)
        connection.execute(
            insert(CHECKPOINT),
            {
                "tenant_id": self.tenant_id, "id": checkpoint_id, "internal_session_id": branch_id,
                "number": count + 1, "name": label.name, "description": label.description, "kind": label.kind,
                "is_auto": label.kind != "named", "user_id": label.user_id, "created_at": now,
                "graph_checkpoint_id": snapshot.graph_checkpoint_id, "state_hash": snapshot.state_hash,
                "position": snapshot.position, "message_count": snapshot.message_count,
                "restore_point": label.restore_point,
                "data": to_json(label.data) if label.data is not None else None,
            },
        )  # fmt: skip
        connection.execute(update(BRANCH).where(self._is_branch(branch_id)).values(head_id=checkpoint_id))
        return checkpoint_id

    def checkpoint(self, connection: Connection, checkpoint_id: int) -> Found:
        """Read one checkpoint that must exist."""
        where = and_(CHECKPOINT.c.tenant_id == self.tenant_id, CHECKPOINT.c.id == checkpoint_id)
        return connection.execute(select(CHECKPOINT).where(where)).one()

    def checkpoints(self, connection: Connection, *conditions: Any) -> Sequence[Found]:
        """Read checkpoints, each with its branch's name and session, oldest first."""
        joined = CHECKPOINT.join(
            BRANCH,
            and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id),
        )
        columns = (BRANCH.c.name.label("branch_name"), BRANCH.c.thread_id, BRANCH.c.external_session_id)
        query = select(CHECKPOINT, *columns).select_from(joined)
        query = query.where(CHECKPOINT.c.tenant_id == self.tenant_id, *conditions).order_by(CHECKPOINT.c.id)
        return connection.execute(query).all()

    def delete_checkpoints(self, connection: Connection, ids: Sequence[int]) -> int:
        """Delete those of these checkpoints that nothing needs; tell how many went."""
        gone = 0
        for checkpoint_id in ids:
            needed = (BRANCH.c.head_id == checkpoint_id, BRANCH.c.branch_point_id == checkpoint_id)
            kept = [
                exists().where(BRANCH.c.tenant_id == self.tenant_id, or_(*needed)),
                exists().where(OPERATION.c.tenant_id == self.tenant_id, OPERATION.c.target_id == checkpoint_id),
            ]
            this = and_(CHECKPOINT.c.tenant_id == self.tenant_id, CHECKPOINT.c.id == checkpoint_id)
            gone += connection.execute(delete(CHECKPOINT).where(this, *(~one for one in kept))).rowcount
        return gone

    def _is_branch(self, branch_id: int) -> Any:
        return and_(BRANCH.c.tenant_id == self.tenant_id, BRANCH.c.id == branch_id)


def _external(row: Found) -> ExternalSession:
    return ExternalSession(
        id=row.id,
        user_id=row.user_id,
        session_name=row.session_name,
        created_at=row.created_at,
        updated_at=row.updated_at,
        is_active=row.is_active,
        current_internal_session_id=row.current_branch_id,
        metadata=as_object(row.meta),
        branch_count=row.branch_count,
    )
