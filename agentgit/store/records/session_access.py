"""Access to sessions: the sessions that a user can see, their members and their share links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, bindparam, case, delete, func, literal, or_, select, tuple_

from agentgit.auth import Member, ShareLink, User
from agentgit.auth.credentials import LINK_PREFIX, format_token, hash_of, is_secret_of, new_secret, parse_token
from agentgit.auth.principal import OWNER, ROLES, Role
from agentgit.checkpoints.queries import TimeCursor
from agentgit.errors import Corrupt
from agentgit.sessions import ExternalSession
from agentgit.store.audit.trail import record_event
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.users import is_usable
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import is_id, new_id
from agentgit.store.sql.rows import insert_rows, update_rows, value_of
from agentgit.store.sql.tables import BRANCH, SESSION, SESSION_LINK, SESSION_MEMBER, USER
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import as_object

_rank = case(*((SESSION_MEMBER.c.role == role, number) for number, role in enumerate(ROLES)))


class VisibleSessions:
    def own(
        self, transaction: Reading, user_id: int, *conditions: Any, limit: int | None = None
    ) -> list[ExternalSession]:
        query = _own_sessions(user_id).where(*conditions).limit(limit)
        return [_session_from_row(row) for row in transaction.execute(query)]

    def shared(
        self, transaction: Reading, user_id: int, *conditions: Any, limit: int | None = None
    ) -> list[ExternalSession]:
        """List the sessions that others share with a user, most recently updated first."""
        roles = (
            select(SESSION_MEMBER.c.external_session_id, func.max(_rank).label("rank"))
            .where(SESSION_MEMBER.c.user_id == user_id, _is_unexpired(datetime.now(UTC)))
            .group_by(SESSION_MEMBER.c.external_session_id)
            .subquery()
        )
        source = SESSION.join(roles, roles.c.external_session_id == SESSION.c.id).outerjoin(USER, _is_owner)
        query = _sessions(roles.c.rank, source).where(SESSION.c.user_id != user_id, *conditions)
        return [_session_from_row(row) for row in transaction.execute(query.limit(limit)).all()]

    def page(
        self,
        transaction: Reading,
        user_id: int,
        *,
        limit: int | None,
        after: TimeCursor | None,
        shared: bool,
        name: str | None,
    ) -> list[ExternalSession]:
        """List the sessions that a user can see, most recently updated first."""
        conditions: list[Any] = []
        if after is not None:
            before = tuple_(literal(after.at, SESSION.c.updated_at.type), literal(after.id))
            conditions.append(tuple_(SESSION.c.updated_at, SESSION.c.id) < before)
        if name is not None:
            conditions.append(SESSION.c.session_name.icontains(name, autoescape=True))
        own_sessions = self.own(transaction, user_id, *conditions, limit=limit)
        if not shared:
            return own_sessions
        shared_sessions = self.shared(transaction, user_id, *conditions, limit=limit)
        return sorted([*own_sessions, *shared_sessions], key=lambda one: (one.updated_at, one.id), reverse=True)[:limit]

    def find(self, transaction: Reading, user_id: int, ref: str | int) -> list[ExternalSession]:
        """Find the sessions that match a name or an id: the user's own ones, or if there are none, shared ones."""
        id_conditions, name = [], str(ref)
        if isinstance(ref, int) and (session := self.find_by_id(transaction, user_id, ref)) is not None:
            return [session]
        if name.isascii() and name.isdigit() and len(name) < 17:
            id_conditions.append(SESSION.c.id == int(name))
        own_sessions = self.own(transaction, user_id, or_(SESSION.c.session_name == name, *id_conditions))
        matches_full_name = USER.c.name.concat("/").concat(SESSION.c.session_name) == name
        # `eve/plan` is a session of eve; another user's session whose own name is `eve/plan` must not match.
        name_conditions = [] if "/" in name else [SESSION.c.session_name == name]
        return own_sessions or self.shared(
            transaction, user_id, or_(matches_full_name, *name_conditions, *id_conditions)
        )

    def find_by_id(self, transaction: Reading, user_id: int, session_id: int) -> ExternalSession | None:
        if not is_id(session_id):
            return None
        row = _SELECT_OWN.first(transaction, {"user": user_id, "session": session_id})
        if row is not None:
            return _session_from_row(row)
        sessions = self.shared(transaction, user_id, SESSION.c.id == session_id)
        return sessions[0] if sessions else None

    def references(self, transaction: Reading, user_id: int) -> list[str]:
        condition = SESSION.c.user_id == user_id
        own_names = transaction.execute(select(SESSION.c.session_name).where(condition)).scalars()
        return [*own_names, *(session.reference for session in self.shared(transaction, user_id))]

    def shared_ids(self, transaction: Reading, user_id: int) -> list[int]:
        rows = _SELECT_SHARED_IDS.all(transaction, {"user": user_id, "now": datetime.now(UTC)})
        return [row.external_session_id for row in rows]

    def owner_id(self, transaction: Reading, session_id: int) -> int | None:
        row = _SELECT_OWNER.first(transaction, {"session": session_id})
        return row.user_id if row is not None else None

    def role(self, transaction: Reading, user_id: int, session_id: int) -> tuple[Role | None, bool]:
        """Return the role of a user in a session (None if they cannot see it), and whether the user owns it."""
        if self.owner_id(transaction, session_id) == user_id:
            return OWNER, True
        parameters = {"user": user_id, "session": session_id, "now": datetime.now(UTC)}
        ranks = [ROLES.index(row.role) for row in _SELECT_ROLES.all(transaction, parameters)]
        return (ROLES[max(ranks)] if ranks else None), False


_is_owner = USER.c.id == SESSION.c.user_id


def _sessions(rank: Any, source: Any) -> Select[Any]:
    branches = select(func.count()).where(BRANCH.c.external_session_id == SESSION.c.id).scalar_subquery()
    return (
        select(SESSION, branches.label("branch_count"), USER.c.name.label("owner_name"), rank)
        .select_from(source)
        .order_by(SESSION.c.updated_at.desc(), SESSION.c.id.desc())
    )


def _own_sessions(user_id: Any) -> Select[Any]:
    query = _sessions(literal(None).label("rank"), SESSION.outerjoin(USER, _is_owner))
    return query.where(SESSION.c.user_id == user_id)


def _is_unexpired(now: Any) -> Any:
    return or_(SESSION_MEMBER.c.expires_at.is_(None), SESSION_MEMBER.c.expires_at > now)


def _readable_object(data: bytes) -> dict[str, Any]:
    """Return a JSON object, which is empty if it is damaged: the session is there, and `fsck` finds what is not."""
    try:
        return as_object(data)
    except Corrupt:
        return {}


def _session_from_row(row: StoredRow) -> ExternalSession:
    return value_of(
        ExternalSession,
        row,
        current_internal_session_id=row.current_branch_id,
        metadata=_readable_object(row.meta),
        role=OWNER if row.rank is None else ROLES[row.rank],
        is_own=row.rank is None,
    )


_now = bindparam("now", type_=SESSION_MEMBER.c.expires_at.type)
_user_conditions = (SESSION_MEMBER.c.user_id == bindparam("user"), _is_unexpired(_now))
_SELECT_SHARED_IDS = CompiledStatement(select(SESSION_MEMBER.c.external_session_id).where(*_user_conditions).distinct())
_SELECT_OWNER = CompiledStatement(select(SESSION.c.user_id).where(SESSION.c.id == bindparam("session")))
_SELECT_OWN = CompiledStatement(_own_sessions(bindparam("user")).where(SESSION.c.id == bindparam("session")))
_SELECT_ROLES = CompiledStatement(
    select(SESSION_MEMBER).where(*_user_conditions, SESSION_MEMBER.c.external_session_id == bindparam("session"))
)


NO_LINK = 0
"""The link id of a role that was granted by user name and not through a link."""


class MemberStore:
    def share(
        self,
        transaction: Writing,
        session_id: int,
        user: User,
        role: Role,
        expires_at: datetime | None,
        by_user_id: int,
    ) -> Member:
        """Grant a user a role in a session. It replaces an earlier role that was granted by name."""
        now = datetime.now(UTC)
        member = Member(user_id=user.id, user_name=user.name, role=role, created_at=now, expires_at=expires_at)
        self._store(transaction, session_id, member)
        record_event(
            transaction,
            "session.shared",
            session_id=session_id,
            user_id=by_user_id,
            user=user.id,
            role=role,
            expires_at=expires_at.isoformat() if expires_at is not None else None,
        )
        return member

    def _store(self, transaction: Writing, session_id: int, member: Member) -> None:
        """Store a role in the place of the one that the user has by the same link, or by name."""
        row = {**vars(member), "external_session_id": session_id, "link_id": member.link_id or NO_LINK}
        del row["user_name"]
        is_same = (*self._member_conditions(session_id, member.user_id), SESSION_MEMBER.c.link_id == row["link_id"])
        transaction.execute(delete(SESSION_MEMBER).where(*is_same))
        insert_rows(transaction, SESSION_MEMBER, row)

    def remove(self, transaction: Writing, session_id: int, user_id: int, by_user_id: int) -> Sequence[int]:
        """Remove all roles of a user in a session. Return the ids of the links that gave them, including `NO_LINK`."""
        # One statement, so that the user cannot join in between through a link that would not be returned.
        deletion = (
            delete(SESSION_MEMBER)
            .where(*self._member_conditions(session_id, user_id))
            .returning(SESSION_MEMBER.c.link_id)
        )
        link_ids = transaction.execute(deletion).scalars().all()
        if link_ids:
            record_event(transaction, "session.unshared", session_id=session_id, user_id=by_user_id, user=user_id)
        return link_ids

    def all(self, transaction: Reading, session_id: int) -> list[Member]:
        """List the valid roles in a session, sorted by user name."""
        query = (
            select(SESSION_MEMBER, USER.c.name.label("user_name"))
            .select_from(SESSION_MEMBER.join(USER, USER.c.id == SESSION_MEMBER.c.user_id))
            .where(SESSION_MEMBER.c.external_session_id == session_id, _is_unexpired(datetime.now(UTC)))
            .order_by(USER.c.name, SESSION_MEMBER.c.link_id)
        )
        return [value_of(Member, row, link_id=row.link_id or None) for row in transaction.execute(query)]

    # -- links

    def add_link(
        self, transaction: Writing, session_id: int, role: Role, expires_at: datetime | None, by_user_id: int
    ) -> ShareLink:
        """Create a share link. Its token is only in the returned value and cannot be read again."""
        secret, now = new_secret(), datetime.now(UTC)
        link = ShareLink(id=new_id(), session_id=session_id, role=role, created_at=now, expires_at=expires_at)
        row = {**vars(link), "external_session_id": session_id, "hash": hash_of(secret)}
        del row["session_id"], row["token"]
        insert_rows(transaction, SESSION_LINK, row)
        record_event(transaction, "link.made", session_id=session_id, user_id=by_user_id, link=link.id, role=role)
        return replace(link, token=format_token(LINK_PREFIX, link.id, secret))

    def links(self, transaction: Reading, session_id: int) -> list[ShareLink]:
        """List the links of a session, including expired and revoked ones, oldest first."""
        in_session = SESSION_LINK.c.external_session_id == session_id
        rows = transaction.execute(select(SESSION_LINK).where(in_session).order_by(SESSION_LINK.c.id))
        return [_link_from_row(row) for row in rows]

    def link(self, transaction: Reading, link_id: int) -> ShareLink | None:
        row = transaction.execute(select(SESSION_LINK).where(SESSION_LINK.c.id == link_id).limit(1)).first()
        return _link_from_row(row) if row is not None else None

    def revoke_link(self, transaction: Writing, session_id: int, link_id: int, by_user_id: int) -> None:
        """Revoke a link and the roles of all users who joined through it. No-op if it is already revoked."""
        conditions = (SESSION_LINK.c.id == link_id, SESSION_LINK.c.revoked_at.is_(None))
        if update_rows(transaction, SESSION_LINK, *conditions, revoked_at=datetime.now(UTC)):
            transaction.execute(
                delete(SESSION_MEMBER).where(
                    SESSION_MEMBER.c.external_session_id == session_id, SESSION_MEMBER.c.link_id == link_id
                )
            )
            record_event(transaction, "link.revoked", session_id=session_id, user_id=by_user_id, link=link_id)

    def accept(self, transaction: Writing, token: str, user_id: int) -> int | None:
        """Join a session through a link. Return the session id, or None if no valid link has this token."""
        link_id, secret = parse_token(LINK_PREFIX, token)
        row = transaction.execute(
            select(SESSION_LINK).where(SESSION_LINK.c.id == link_id).with_for_update().limit(1)
        ).first()
        if row is None or not is_secret_of(secret, bytes(row.hash)) or not is_usable(row):
            return None
        session_id = int(row.external_session_id)
        if VisibleSessions().owner_id(transaction, session_id) != user_id:
            joined = {"user_id": user_id, "user_name": "", "created_at": datetime.now(UTC), "link_id": link_id}
            self._store(transaction, session_id, value_of(Member, row, **joined))
            record_event(transaction, "link.used", session_id=session_id, user_id=user_id, link=link_id)
        return session_id

    def _member_conditions(self, session_id: int, user_id: int) -> tuple[Any, ...]:
        return SESSION_MEMBER.c.external_session_id == session_id, SESSION_MEMBER.c.user_id == user_id


def _link_from_row(row: Any) -> ShareLink:
    return value_of(ShareLink, row, session_id=row.external_session_id)
