"""Authentication: by a password, by a credential, or as an admin on behalf of a user."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection

from agentgit.auth import JWT, Principal, User
from agentgit.auth.credentials import claims_of, device_of, is_password_of, key_parts, rehash_if_outdated
from agentgit.auth.principal import LOCAL, is_name
from agentgit.errors import NotAllowed
from agentgit.handles.context import Context, UserRef
from agentgit.store.audit.trail import record_event
from agentgit.store.records.login_attempts import LoginSubject

JWT_SWITCH = "AGENTGIT_JWT"
"""The environment variable that rejects all tokens when it is `off`."""


def disabled_user_error(user: User) -> NotAllowed:
    """Return the error for acting as a disabled user."""
    return NotAllowed(f"User {user.name} is disabled. An admin can enable them: repo.users.enable({user.name!r}).")


class Authenticator:
    """Authenticates users, and returns their principals."""

    def __init__(self, context: Context, jwt: JWT | None) -> None:
        self.context = context
        self.jwt = jwt

    def as_user(self, user: UserRef) -> Principal:
        """Return the principal of another user. For admins."""
        self.context.require_admin("as_user")
        target = self.context.read(lambda c: self.context.find_user(c, user))
        if target.disabled_at is not None:
            raise disabled_user_error(target)
        impersonator = self.context.principal if self.context.principal.since is not None else None
        return Principal(tenant_id=self.context.store.tenant_id, user=target, since=datetime.now(UTC), by=impersonator)

    def authenticate(self, credential: str, source: str | None = None) -> Principal:
        """Return the principal of an API key or a token."""
        subjects = self.context.store.login_attempts.subjects(None, source)
        with self.context.store.database.reading() as connection:
            self.context.store.login_attempts.require_not_blocked(connection, subjects)
        principal = self._principal_of(credential) if isinstance(credential, str) else None
        if principal is None:
            raise self._record_failure(None, subjects)
        return principal

    def _principal_of(self, credential: str) -> Principal | None:
        """Return the principal of a credential; None if the credential is not valid."""
        parts = key_parts(credential)
        if parts is None:
            return self._principal_of_token(credential)
        tenant_id, key_id, secret = parts
        if tenant_id != self.context.store.tenant_id:
            return None
        with self.context.store.database.reading() as connection:
            key = self.context.store.api_keys.find_by_secret(connection, key_id, secret)
            user = self.context.store.users.find(connection, key.user_id) if key is not None else None
        if key is None or user is None or user.disabled_at is not None:
            return None
        if self.context.store.api_keys.is_use_due(key):
            self.context.store.database.write(lambda c: self.context.store.api_keys.record_use(c, key.id))
        return Principal(
            tenant_id=tenant_id,
            user=user,
            scopes=key.scopes,
            since=datetime.now(UTC),
            until=key.expires_at,
            key_id=key.id,
        )

    def _principal_of_token(self, token: str) -> Principal | None:
        """Return the principal of a token; None if the token is not valid."""
        jwt = self.jwt
        if jwt is None or os.environ.get(JWT_SWITCH, "").lower() in ("off", "0", "false", "no"):
            return None
        claims = claims_of(token, jwt)
        if claims is None or claims.user_name == LOCAL:
            return None
        with self.context.store.database.reading() as connection:
            user = self.context.store.users.find_by_name(connection, claims.user_name)
            if self.context.store.users.is_issued_to_erased_user(connection, claims.user_name, claims.issued_at):
                return None
        if jwt.id_claim is not None and (user is None or claims.user_id != user.id):
            return None
        if user is None and jwt.create_users and is_name(claims.user_name):
            user = self.context.store.database.write(lambda c: self._find_or_add_user(c, claims.user_name))
        if user is None:
            return None
        principal = Principal(
            tenant_id=self.context.store.tenant_id, user=user, since=claims.issued_at, until=claims.expires_at
        )
        with self.context.store.database.reading() as connection:
            return principal if self.context.store.users.is_valid(connection, principal) else None

    def _find_or_add_user(self, connection: Connection, name: str) -> User:
        existing = self.context.store.users.find_by_name(connection, name)
        return existing or self.context.store.users.add(connection, name, by_user_id=self.context.user.id)

    def login(self, name: str, password: str, source: str | None = None, device: str | None = None) -> Principal:
        """Return the principal of the user with this name and password."""
        with self.context.store.database.reading() as connection:
            user = self.context.store.users.find_by_name(connection, name) if isinstance(name, str) else None
            stored_hash = self.context.store.users.password_hash(connection, user.id) if user is not None else None
        device_id = (
            device_of(device, stored_hash, user.id, datetime.now(UTC)) if device and user and stored_hash else None
        )
        subjects = self.context.store.login_attempts.subjects(str(name), source, device_id)
        self.context.store.database.write(lambda c: self.context.store.login_attempts.count_attempt(c, subjects))
        # Hashing is slow, so no transaction is open. It takes as long for a user who does not exist.
        if (
            not is_password_of(password, stored_hash)
            or user is None
            or stored_hash is None
            or user.disabled_at is not None
        ):
            raise self._record_failure(user.id if user is not None else None)
        new_hash = rehash_if_outdated(password, stored_hash)
        principal = self.context.store.database.write(
            lambda c: self._complete_login(c, user, stored_hash, new_hash, subjects)
        )
        if principal is None:
            raise self._record_failure(user.id)
        return principal

    def _complete_login(
        self,
        connection: Connection,
        user: User,
        stored_hash: str,
        new_hash: str | None,
        subjects: Sequence[LoginSubject],
    ) -> Principal | None:
        """Log a user in; return None if the password has changed since it was checked."""
        self.context.store.users.lock(connection, user.id)
        if self.context.store.users.password_hash(connection, user.id) != stored_hash:
            return None
        if new_hash is not None:
            self.context.store.users.change(connection, user.id, {"password": new_hash})
        self.context.store.login_attempts.record_success(connection, subjects)
        record_event(connection, self.context.store.tenant_id, "login.done", user_id=user.id)
        return Principal(tenant_id=self.context.store.tenant_id, user=user, since=datetime.now(UTC))

    def _record_failure(self, user_id: int | None, subjects: Sequence[LoginSubject] = ()) -> NotAllowed:
        """Record a failed login, and return the error, which is the same for every cause."""

        def record(connection: Connection) -> None:
            self.context.store.login_attempts.count_attempt(connection, subjects)
            record_event(connection, self.context.store.tenant_id, "login.failed", user_id=user_id)

        self.context.store.database.write(record)
        return NotAllowed("Wrong name or password, or an invalid key. Check them, or ask an admin for new ones.")
