"""The sessions that a user sees: own ones, and those that others share with them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, case, func, literal, or_, select, tuple_

from agentgit.auth.roles import OWNER, ROLES, Role
from agentgit.sessions import ExternalSession
from agentgit.sessions.session import SessionMark
from agentgit.store.records.sessions import Found
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import seal_of
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.tables import BRANCH, SESSION, SESSION_MEMBER, USER
from agentgit.values import as_object

_rank = case(*((SESSION_MEMBER.c.role == role, number) for number, role in enumerate(ROLES)))


class Visible:
    """The sessions of one tenant, as its users see them.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def own(
        self, connection: Connection, user_id: int, *conditions: Any, limit: int | None = None
    ) -> list[ExternalSession]:
        """List a user's own sessions, the one that moved last first."""
        query = self._query(literal(None).label("rank"), SESSION.outerjoin(USER, self._owner()))
        mine = query.where(SESSION.c.user_id == user_id, *conditions)
        return [
            _external(row) for row in row_codes.authentic(connection, SESSION, connection.execute(mine.limit(limit)))
        ]

    def shared(
        self, connection: Connection, user_id: int, *conditions: Any, limit: int | None = None
    ) -> list[ExternalSession]:
        """List those that others share with a user, the one that moved last first."""
        self._require_authentic(connection, user_id)
        roles = (
            select(SESSION_MEMBER.c.external_session_id, func.max(_rank).label("rank"))
            .where(
                SESSION_MEMBER.c.tenant_id == self.tenant_id,
                SESSION_MEMBER.c.user_id == user_id,
                _holds(datetime.now(UTC)),
            )
            .group_by(SESSION_MEMBER.c.external_session_id)
            .subquery()
        )
        of = SESSION.join(roles, roles.c.external_session_id == SESSION.c.id).outerjoin(USER, self._owner())
        query = self._query(roles.c.rank, of).where(SESSION.c.user_id != user_id, *conditions)
        return [
            _external(row) for row in row_codes.authentic(connection, SESSION, connection.execute(query.limit(limit)))
        ]

    def _require_authentic(self, connection: Connection, user_id: int) -> None:
        """Verify all shares of a user, because queries that join them do not read whole rows."""
        if seal_of(connection) is not None:
            shares = select(SESSION_MEMBER).where(
                SESSION_MEMBER.c.tenant_id == self.tenant_id, SESSION_MEMBER.c.user_id == user_id
            )
            row_codes.authentic(connection, SESSION_MEMBER, connection.execute(shares))

    def page(
        self,
        connection: Connection,
        user_id: int,
        *,
        limit: int | None,
        after: SessionMark | None,
        shared: bool,
        name: str | None,
    ) -> list[ExternalSession]:
        """List the sessions that a user sees, the one that moved last first.

        Args:
            connection: Any open connection.
            user_id: The user who looks.
            limit: The greatest number of them; None for all.
            after: The last one of the page before.
            shared: False for own ones only.
            name: Only sessions with this in their name.
        """
        conditions: list[Any] = []
        if after is not None:
            before = tuple_(literal(after.at, SESSION.c.updated_at.type), literal(after.id))
            conditions.append(tuple_(SESSION.c.updated_at, SESSION.c.id) < before)
        if name is not None:
            conditions.append(SESSION.c.session_name.icontains(name, autoescape=True))
        found = self.own(connection, user_id, *conditions, limit=limit)
        if not shared:
            return found
        others = self.shared(connection, user_id, *conditions, limit=limit)
        return sorted([*found, *others], key=lambda one: (one.updated_at, one.id), reverse=True)[:limit]

    def find(self, connection: Connection, user_id: int, ref: str | int) -> list[ExternalSession]:
        """Find the sessions that a name or an id may mean; own ones, and only if there is none, shared ones."""
        by_id, name = [], str(ref)
        if isinstance(ref, int) and (one := self.by_id(connection, user_id, ref)) is not None:
            return [one]
        if name.isascii() and name.isdigit() and len(name) < 17:
            by_id.append(SESSION.c.id == int(name))
        found = self.own(connection, user_id, or_(SESSION.c.session_name == name, *by_id))
        full = USER.c.name.concat("/").concat(SESSION.c.session_name) == name
        # `eve/plan` is eve's, and not what another one calls so.
        plain = [] if "/" in name else [SESSION.c.session_name == name]
        return found or self.shared(connection, user_id, or_(full, *plain, *by_id))

    def by_id(self, connection: Connection, user_id: int, session_id: int) -> ExternalSession | None:
        """Find the session of that id; None if the user sees none."""
        if not is_id(session_id):
            return None
        this = SESSION.c.id == session_id
        found = self.own(connection, user_id, this) or self.shared(connection, user_id, this)
        return found[0] if found else None

    def references(self, connection: Connection, user_id: int) -> list[str]:
        """List how the sessions are called that a user sees."""
        mine = and_(SESSION.c.tenant_id == self.tenant_id, SESSION.c.user_id == user_id)
        own = connection.execute(select(SESSION.c.session_name).where(mine)).scalars()
        return [*own, *(one.reference for one in self.shared(connection, user_id))]

    def shared_ids(self, connection: Connection, user_id: int) -> list[int]:
        """List the ids of the sessions that others share with a user."""
        self._require_authentic(connection, user_id)
        rows = _SHARED.all(connection, {"tenant": self.tenant_id, "user": user_id, "now": datetime.now(UTC)})
        return [row.external_session_id for row in rows]

    def owner(self, connection: Connection, session_id: int) -> int | None:
        """Find whose a session is; None if it is not there."""
        asked = {"tenant": self.tenant_id, "session": session_id}
        rows = row_codes.authentic(connection, SESSION, _SESSION.all(connection, asked))
        return rows[0].user_id if rows else None

    def role(self, connection: Connection, user_id: int, session_id: int) -> tuple[Role | None, bool]:
        """Return what a user may do with a session now, None if they do not see it; and whether it is their own."""
        if self.owner(connection, session_id) == user_id:
            return OWNER, True
        asked = {"tenant": self.tenant_id, "user": user_id, "session": session_id, "now": datetime.now(UTC)}
        roles = [
            ROLES.index(row.role)
            for row in row_codes.authentic(connection, SESSION_MEMBER, _ROLES.all(connection, asked))
        ]
        return (ROLES[max(roles)] if roles else None), False

    def _query(self, rank: Any, of: Any) -> Select[Any]:
        branches = (
            select(func.count())
            .where(BRANCH.c.tenant_id == SESSION.c.tenant_id, BRANCH.c.external_session_id == SESSION.c.id)
            .scalar_subquery()
        )
        return (
            select(SESSION, branches.label("branch_count"), USER.c.name.label("owner_name"), rank)
            .select_from(of)
            .where(SESSION.c.tenant_id == self.tenant_id)
            .order_by(SESSION.c.updated_at.desc(), SESSION.c.id.desc())
        )

    @staticmethod
    def _owner() -> Any:
        return and_(USER.c.tenant_id == SESSION.c.tenant_id, USER.c.id == SESSION.c.user_id)


def _holds(now: Any) -> Any:
    return or_(SESSION_MEMBER.c.expires_at.is_(None), SESSION_MEMBER.c.expires_at > now)


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
        owner_name=row.owner_name or "",
        role=OWNER if row.rank is None else ROLES[row.rank],
        is_own=row.rank is None,
    )


_now = bindparam("now", type_=SESSION_MEMBER.c.expires_at.type)
_of_user = (
    SESSION_MEMBER.c.tenant_id == bindparam("tenant"),
    SESSION_MEMBER.c.user_id == bindparam("user"),
    _holds(_now),
)
_SHARED = CompiledStatement(select(SESSION_MEMBER.c.external_session_id).where(*_of_user).distinct())
_SESSION = CompiledStatement(
    select(SESSION).where(SESSION.c.tenant_id == bindparam("tenant"), SESSION.c.id == bindparam("session"))
)
_ROLES = CompiledStatement(
    select(SESSION_MEMBER).where(*_of_user, SESSION_MEMBER.c.external_session_id == bindparam("session"))
)
