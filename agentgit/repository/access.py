"""The verbs of who may: acting as a user, sharing sessions, links to them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import Connection

from agentgit.auth import JWT, Member, Principal, ShareLink, User
from agentgit.auth.devices import device_of
from agentgit.auth.keys import key_parts
from agentgit.auth.passwords import is_password_of, renewed
from agentgit.auth.roles import OWNER, VIEWER, Role, expect_role
from agentgit.auth.scopes import WRITE
from agentgit.auth.sharing import end_of
from agentgit.auth.tokens import claims_of
from agentgit.auth.user import LOCAL, is_name
from agentgit.errors import InvalidInput, NotAllowed, NotFound
from agentgit.handles.context import UserRef
from agentgit.handles.session import SessionRef, Verbs
from agentgit.repository.users import Keys, Users
from agentgit.sessions import ExternalSession
from agentgit.sessions.events import NOWHERE, Event, chosen
from agentgit.sessions.session import expect_limit
from agentgit.store.audit.trail import Whose, note
from agentgit.store.records.login_attempts import LoginSubject
from agentgit.store.sql.ids import is_id

if TYPE_CHECKING:
    from agentgit.repository import Repository

JWT_SWITCH = "AGENTGIT_JWT"
"""The environment variable that refuses all tokens when it is `off`."""

LINK_HOLDS = timedelta(days=7)
"""The default lifetime of a link."""


def shut_out(user: User) -> NotAllowed:
    """Make the failure of acting for a user who is disabled."""
    return NotAllowed(f"User {user.name} is disabled. repo.users.enable({user.name!r}) lets them in again.")


class People(Verbs):
    """Methods of a repository that manage users and their rights.

    Args:
        given: As `Verbs` takes it.
    """

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.is_borrowed = False
        """True if another repository opened the database, and closes it."""
        self.jwt: JWT | None = None
        """The settings by which tokens are verified; with None, no token is accepted."""

    @cached_property
    def users(self) -> Users:
        """The users of the tenant, for its admins."""
        return Users(self)

    @cached_property
    def keys(self) -> Keys:
        """The API keys of the user."""
        return Keys(self)

    # -- acting for somebody

    def as_user(self, user: UserRef) -> Repository:
        """Return a handle that acts for another user of the tenant, with that user's rights and no more; for admins.

        It shares the database and what was wrapped here can be undone through it; closing it closes nothing. It ends
        when the user is disabled, and with the access of the admin.

        Args:
            user: A User, a name or an id.

        Raises:
            NotAllowed: You are no admin, or the user is disabled.
            NotFound: There is no such user.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
            >>> session = ada.ensure_session("support-42")
            >>> bob.sessions()
            []
            >>> member = ada.share(session, "bob")
            >>> [(one.reference, one.role) for one in bob.sessions()]
            [('ada/support-42', 'viewer')]
        """
        self._expect_admin("as_user")
        found = self._read(lambda c: self._find_user(c, user))
        if found.disabled_at is not None:
            raise shut_out(found)
        by = self.principal if self.principal.since is not None else None
        return self._bound(Principal(tenant_id=self.store.tenant_id, user=found, since=datetime.now(UTC), by=by))

    def _bound(self, principal: Principal) -> Repository:
        """Return a handle on the same database for another principal."""
        made = type(self)(self.store, principal, self.effects, self.registry)
        made.jwt, made.is_borrowed = self.jwt, True
        return cast("Repository", made)

    def authenticate(self, credential: str, source: str | None = None) -> Repository:
        """Return a handle for whoever shows this credential; it ends when that is revoked, disabled or over.

        Args:
            credential: An API key, or a token if the database was opened with `jwt=`.
            source: The caller's address, to count failures by; None counts none.

        Raises:
            NotAllowed: It does not hold; the text is the same whatever the cause.
            TooManyAttempts: There were too many failures from that address.
            Unavailable: PyJWT is not installed.
        """
        subjects = self.store.failures.subjects(None, source)
        with self.store.database.reading() as connection:
            self.store.failures.expect_free(connection, subjects)
        principal = self._shown(credential) if isinstance(credential, str) else None
        if principal is None:
            raise self._unknown(None, subjects)
        return self._bound(principal)

    def _shown(self, credential: str) -> Principal | None:
        """Return the principal of a credential; None if the credential is not valid."""
        parts = key_parts(credential)
        if parts is None:
            return self._told(credential)
        tenant_id, key_id, secret = parts
        if tenant_id != self.store.tenant_id:
            return None
        with self.store.database.reading() as connection:
            key = self.store.keys.shown(connection, key_id, secret)
            user = self.store.users.find(connection, key.user_id) if key is not None else None
        if key is None or user is None or user.disabled_at is not None:
            return None
        if self.store.keys.is_use_due(key):
            self.store.database.write(lambda c: self.store.keys.use(c, key.id))
        return Principal(
            tenant_id=tenant_id,
            user=user,
            scopes=key.scopes,
            since=datetime.now(UTC),
            until=key.expires_at,
            key_id=key.id,
        )

    def _told(self, token: str) -> Principal | None:
        """Return the principal of a token; None if the token is not valid."""
        jwt = self.jwt
        if jwt is None or os.environ.get(JWT_SWITCH, "").lower() in ("off", "0", "false", "no"):
            return None
        claims = claims_of(token, jwt)
        if claims is None or claims.user_name == LOCAL:
            return None
        with self.store.database.reading() as connection:
            user = self.store.users.named(connection, claims.user_name)
            if self.store.users.is_of_erased(connection, claims.user_name, claims.issued_at):
                return None
        if jwt.id_claim is not None and (user is None or claims.user_id != user.id):
            return None
        if user is None and jwt.create_users and is_name(claims.user_name):
            user = self.store.database.write(lambda c: self._made(c, claims.user_name))
        if user is None:
            return None
        found = Principal(tenant_id=self.store.tenant_id, user=user, since=claims.issued_at, until=claims.expires_at)
        with self.store.database.reading() as connection:
            return found if self.store.users.stands(connection, found) else None

    def _made(self, connection: Connection, name: str) -> User:
        found = self.store.users.named(connection, name)
        return found or self.store.users.add(connection, name, by=self.user.id)

    def login(self, name: str, password: str, source: str | None = None, device: str | None = None) -> Repository:
        """Return a handle for the user who has this password; it ends when the user is disabled or gets another one.

        Args:
            name: The name of the user.
            password: The password of the user.
            source: The caller's address, to count failures by; None counts by the name alone.
            device: What `keys.device()` gave after an earlier login there; while it holds, failures elsewhere do not
                count, and those of this device count for it alone.

        Raises:
            NotAllowed: Nobody of that name has this password; the text is the same whatever the cause.
            TooManyAttempts: There were too many failures; `retry_after` says how many seconds to wait.
            Unavailable: Argon2 is not installed.
        """
        with self.store.database.reading() as connection:
            user = self.store.users.named(connection, name) if isinstance(name, str) else None
            stored = self.store.users.password(connection, user.id) if user is not None else None
        known = device_of(device, stored, user.id, datetime.now(UTC)) if device and user and stored else None
        subjects = self.store.failures.subjects(str(name), source, known)
        self.store.database.write(lambda c: self.store.failures.attempt(c, subjects))
        # No transaction is open while this takes its time, and it takes as long for who is not there.
        if not is_password_of(password, stored) or user is None or stored is None or user.disabled_at is not None:
            raise self._unknown(user.id if user is not None else None)
        new = renewed(password, stored)
        principal = self.store.database.write(lambda c: self._let_in(c, user, stored, new, subjects))
        if principal is None:
            raise self._unknown(user.id)
        return self._bound(principal)

    def _let_in(
        self, connection: Connection, user: User, stored: str, new: str | None, subjects: Sequence[LoginSubject]
    ) -> Principal | None:
        """Log a user in by the password that was looked at; None if it is another one by now."""
        self.store.users.hold(connection, user.id)
        if self.store.users.password(connection, user.id) != stored:
            return None
        if new is not None:
            self.store.users.change(connection, user.id, {"password": new})
        self.store.failures.succeeded(connection, subjects)
        note(connection, self.store.tenant_id, "login.done", user_id=user.id)
        return Principal(tenant_id=self.store.tenant_id, user=user, since=datetime.now(UTC))

    def _unknown(self, user_id: int | None, failed: Sequence[LoginSubject] = ()) -> NotAllowed:
        """Write down that somebody could not say who they are; give the failure that is the same for all causes."""

        def tell(connection: Connection) -> None:
            self.store.failures.attempt(connection, failed)
            note(connection, self.store.tenant_id, "login.failed", user_id=user_id)

        self.store.database.write(tell)
        return NotAllowed("These credentials do not hold. Check them, or ask an admin for new ones.")

    def audit(self, *, kinds: str | Sequence[str] = "*", limit: int = 50) -> list[Event]:
        """Return the newest events that belong to no session, oldest first: logins, users, keys; for admins.

        Args:
            kinds: The kinds of events, as `on` takes them.
            limit: The largest number of results.

        Raises:
            NotAllowed: You are not an admin.
            InvalidInput: There is no such kind, or the limit is not valid.
        """
        wanted, nowhere = chosen(kinds), Whose(self.user.id, session_id=NOWHERE)
        expect_limit(limit, "events")
        self._expect_admin("audit")
        return self._read(lambda c: self.store.trail.newest(c, nowhere, kinds=wanted, limit=limit))

    # -- sharing

    def share(
        self, session: SessionRef, user: UserRef, role: Role = VIEWER, expires_in: timedelta | None = None
    ) -> Member:
        """Grant a user a role in a session, in place of the one that you granted before.

        Args:
            session: The session, as `session` takes it.
            user: A User, a name or an id.
            role: `viewer` (look at everything), `forker` (also begin an own session from it), `editor` (also run turns
                and roll back) or `owner` (also share and delete it).
            expires_in: The time for which the role lasts; None is until somebody takes it away.

        Raises:
            NotFound: There is no such session or user.
            NotAllowed: You are not its owner.
            InvalidInput: The role or the time is not valid, or the user owns the session.
        """
        expect_role(role)
        until = end_of(expires_in)

        def give(connection: Connection) -> Member:
            found = self.lookup.session(connection, session, OWNER)
            who = self._find_user(connection, user)
            if who.id == found.user_id:
                raise InvalidInput(f"{who.name} owns session {found.session_name}, and may do everything with it.")
            return self.store.members.share(connection, found.id, who, role, until, self.user.id)

        return self._change(give)

    def unshare(self, session: SessionRef, user: UserRef) -> None:
        """Take all roles of somebody in a session away at once; or leave it yourself.

        The links by which somebody who is taken out had joined end, too, with the right of others who joined by those.

        Args:
            session: The session, as `session` takes it.
            user: A User, a name or an id.

        Raises:
            NotFound: There is no such session, or they have no role in it.
            NotAllowed: You are not its owner.
        """

        def take(connection: Connection) -> None:
            who = self._find_user(connection, user)
            leaves = who.id == self.user.id
            found = self.lookup.session(connection, session, VIEWER if leaves else OWNER)
            links = self.store.members.remove(connection, found.id, who.id, self.user.id)
            if not links:
                raise NotFound(f"Session {found.reference} is not shared with {who.name}. See repo.members(session).")
            # Who is taken out could come again by them; who leaves takes nobody along.
            for link_id in () if leaves else links:
                self.store.members.revoke_link(connection, found.id, link_id, self.user.id)

        self._change(take, scope=WRITE)

    def members(self, session: SessionRef = None) -> list[Member]:
        """List who has a role in a session now, besides its owner."""
        return self._read(lambda c: self.store.members.all(c, self.lookup.session(c, session).id))

    # -- links

    def share_link(
        self, session: SessionRef, role: Role = VIEWER, expires_in: timedelta | None = LINK_HOLDS
    ) -> ShareLink:
        """Make a link: each user of the tenant who has its token can join the session, until the link ends.

        Args:
            session: The session, as `session` takes it.
            role: The role of those who join, as `share` takes it, but not `owner`.
            expires_in: The time for which the link, and the right of all who join by it, hold; None is until revoked.

        Returns:
            The link; its `token` is only here, and is not in its repr.

        Raises:
            NotFound: There is no such session.
            NotAllowed: You are not its owner.
            InvalidInput: It is no role that a link can give, or no time.
        """
        if expect_role(role) == OWNER:
            raise InvalidInput(
                "A link cannot give a session away. Share it by name: repo.share(session, user, 'owner')."
            )
        until = end_of(expires_in)

        def make(connection: Connection) -> ShareLink:
            found = self.lookup.session(connection, session, OWNER)
            return self.store.members.add_link(connection, found.id, role, until, self.user.id)

        return self._change(make)

    def links(self, session: SessionRef = None) -> list[ShareLink]:
        """List the links of a session, also those that have ended; for its owner.

        Raises:
            NotFound: There is no such session.
            NotAllowed: You are not its owner.
        """
        return self._read(lambda c: self.store.members.links(c, self.lookup.session(c, session, OWNER).id))

    def revoke_link(self, link: ShareLink | int) -> ShareLink:
        """End a link at once, and the right of all who joined by it; give it as it is then.

        Args:
            link: The link or its id.

        Raises:
            NotFound: There is no such link.
            NotAllowed: You are not the owner of its session.
        """
        wanted = link.id if isinstance(link, ShareLink) else link

        def end(connection: Connection) -> ShareLink:
            found = self.store.members.link(connection, wanted) if is_id(wanted) else None
            if found is None or self.lookup.sees(connection, found.session_id) is None:
                raise NotFound(f"There is no link {wanted!r}. repo.links(session) lists those of a session.")
            self.lookup.admit(connection, found.session_id, OWNER)
            self.store.members.revoke_link(connection, found.session_id, found.id, self.user.id)
            return replace(found, revoked_at=found.revoked_at or datetime.now(UTC))

        return self._change(end)

    def accept(self, token: str) -> ExternalSession:
        """Join a session by the token of a link; give the session.

        Args:
            token: The token as `share_link` returned it.

        Raises:
            NotFound: No link that holds has this token.
        """

        def join(connection: Connection) -> ExternalSession:
            self.store.users.expect(connection, self.user.id)
            session_id = self.store.members.accept(connection, token, self.user.id)
            if session_id is None:
                raise NotFound("This link does not hold: it was mistyped, revoked, or has ended. Ask for a new one.")
            return self.lookup.session(connection, session_id)

        return self._change(join, scope=WRITE)
