"""Members of a session, and the links by which others can join it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, delete, or_, select

from agentgit.auth import Member, ShareLink, User
from agentgit.auth.roles import Role
from agentgit.auth.sharing import hash_of, is_secret_of, link_parts, link_token, new_secret
from agentgit.store.audit.trail import note
from agentgit.store.sql import row_codes
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import SESSION, SESSION_LINK, SESSION_MEMBER, USER

BY_NAME = 0
"""The link of a right that no link gave."""


class MemberStore:
    """Whom the sessions of one tenant are shared with.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def share(
        self, connection: Connection, session_id: int, user: User, role: Role, expires_at: datetime | None, by: int
    ) -> Member:
        """Grant a user a role in a session, in place of one that was granted by name before."""
        since = self._put(connection, session_id, user.id, BY_NAME, role, expires_at)
        note(
            connection,
            self.tenant_id,
            "session.shared",
            session_id=session_id,
            user_id=by,
            user=user.id,
            role=role,
            expires_at=expires_at.isoformat() if expires_at is not None else None,
        )
        return Member(user_id=user.id, user_name=user.name, role=role, created_at=since, expires_at=expires_at)

    def _put(
        self,
        connection: Connection,
        session_id: int,
        user_id: int,
        link_id: int,
        role: Role,
        expires_at: datetime | None,
    ) -> datetime:
        """Write a right down; give since when it holds."""
        now = datetime.now(UTC)
        connection.execute(
            delete(SESSION_MEMBER).where(*self._of(session_id, user_id), SESSION_MEMBER.c.link_id == link_id)
        )
        row = {
            "tenant_id": self.tenant_id,
            "external_session_id": session_id,
            "user_id": user_id,
            "link_id": link_id,
            "role": role,
            "created_at": now,
            "expires_at": expires_at,
        }
        row_codes.add(connection, SESSION_MEMBER, row)
        return now

    def remove(self, connection: Connection, session_id: int, user_id: int, by: int) -> Sequence[int]:
        """Take all roles of somebody in a session away; give the links that they came by, `BY_NAME` among them."""
        # In one statement: nobody comes in between, by a link that is not given then.
        taken = delete(SESSION_MEMBER).where(*self._of(session_id, user_id)).returning(SESSION_MEMBER.c.link_id)
        links = connection.execute(taken).scalars().all()
        if links:
            note(connection, self.tenant_id, "session.unshared", session_id=session_id, user_id=by, user=user_id)
        return links

    def all(self, connection: Connection, session_id: int) -> list[Member]:
        """List the roles in a session that hold now, by the name of the user."""
        query = (
            select(SESSION_MEMBER, USER.c.name)
            .select_from(
                SESSION_MEMBER.join(
                    USER, and_(USER.c.tenant_id == SESSION_MEMBER.c.tenant_id, USER.c.id == SESSION_MEMBER.c.user_id)
                )
            )
            .where(
                SESSION_MEMBER.c.tenant_id == self.tenant_id,
                SESSION_MEMBER.c.external_session_id == session_id,
                or_(SESSION_MEMBER.c.expires_at.is_(None), SESSION_MEMBER.c.expires_at > datetime.now(UTC)),
            )
            .order_by(USER.c.name, SESSION_MEMBER.c.link_id)
        )
        return [
            Member(
                user_id=row.user_id,
                user_name=row.name,
                role=row.role,
                created_at=row.created_at,
                expires_at=row.expires_at,
                link_id=row.link_id or None,
            )
            for row in row_codes.authentic(connection, SESSION_MEMBER, connection.execute(query))
        ]

    # -- links

    def add_link(
        self, connection: Connection, session_id: int, role: Role, expires_at: datetime | None, by: int
    ) -> ShareLink:
        """Make a link; its token is only in what this gives."""
        link_id, secret, now = new_id(), new_secret(), datetime.now(UTC)
        row = {
            "tenant_id": self.tenant_id,
            "id": link_id,
            "external_session_id": session_id,
            "hash": hash_of(secret),
            "role": role,
            "created_at": now,
            "expires_at": expires_at,
        }
        row_codes.add(connection, SESSION_LINK, row)
        note(connection, self.tenant_id, "link.made", session_id=session_id, user_id=by, link=link_id, role=role)
        made = ShareLink(id=link_id, session_id=session_id, role=role, created_at=now, expires_at=expires_at)
        return replace(made, token=link_token(link_id, secret))

    def links(self, connection: Connection, session_id: int) -> list[ShareLink]:
        """List the links of a session, also those that hold no more, the oldest first."""
        of = and_(SESSION_LINK.c.tenant_id == self.tenant_id, SESSION_LINK.c.external_session_id == session_id)
        rows = connection.execute(select(SESSION_LINK).where(of).order_by(SESSION_LINK.c.id))
        return [_link(row) for row in row_codes.authentic(connection, SESSION_LINK, rows)]

    def link(self, connection: Connection, link_id: int) -> ShareLink | None:
        """Find a link by its id; None if there is none."""
        row = row_codes.first(connection, SESSION_LINK, select(SESSION_LINK).where(*self._link(link_id)))
        return _link(row) if row is not None else None

    def revoke_link(self, connection: Connection, session_id: int, link_id: int, by: int) -> None:
        """End a link, and the right of all who joined by it."""
        this = (*self._link(link_id), SESSION_LINK.c.revoked_at.is_(None))
        if row_codes.change(connection, SESSION_LINK, *this, revoked_at=datetime.now(UTC)):
            of = (SESSION_MEMBER.c.tenant_id == self.tenant_id, SESSION_MEMBER.c.external_session_id == session_id)
            connection.execute(delete(SESSION_MEMBER).where(*of, SESSION_MEMBER.c.link_id == link_id))
            note(connection, self.tenant_id, "link.revoked", session_id=session_id, user_id=by, link=link_id)

    def accept(self, connection: Connection, token: str, user_id: int) -> int | None:
        """Join a session by the token of a link; give the session, or None if no link that holds has this token."""
        link_id, secret = link_parts(token)
        row = row_codes.first(
            connection, SESSION_LINK, select(SESSION_LINK).where(*self._link(link_id)).with_for_update()
        )
        if row is None or not is_secret_of(secret, bytes(row.hash)) or row.revoked_at is not None:
            return None
        if row.expires_at is not None and row.expires_at <= datetime.now(UTC):
            return None
        session_id = int(row.external_session_id)
        this = and_(SESSION.c.tenant_id == self.tenant_id, SESSION.c.id == session_id)
        if connection.execute(select(SESSION.c.user_id).where(this)).scalar() != user_id:
            self._put(connection, session_id, user_id, link_id, row.role, row.expires_at)
            note(connection, self.tenant_id, "link.used", session_id=session_id, user_id=user_id, link=link_id)
        return session_id

    def _of(self, session_id: int, user_id: int) -> tuple[Any, ...]:
        of = (SESSION_MEMBER.c.tenant_id == self.tenant_id, SESSION_MEMBER.c.external_session_id == session_id)
        return *of, SESSION_MEMBER.c.user_id == user_id

    def _link(self, link_id: int) -> tuple[Any, ...]:
        return SESSION_LINK.c.tenant_id == self.tenant_id, SESSION_LINK.c.id == link_id


def _link(row: Any) -> ShareLink:
    return ShareLink(
        id=row.id,
        session_id=row.external_session_id,
        role=row.role,
        created_at=row.created_at,
        expires_at=row.expires_at,
        revoked_at=row.revoked_at,
    )
