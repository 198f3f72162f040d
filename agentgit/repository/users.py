"""Management of a tenant's users and their API keys."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection

from agentgit.async_api import async_twin
from agentgit.auth import ApiKey, NewKey, User
from agentgit.auth.credentials import device_token, hash_password, is_password_of, require_password
from agentgit.auth.principal import ADMIN, LOCAL, READ, require_name, with_included_scopes
from agentgit.auth.sharing import expiry_time
from agentgit.errors import Conflict, InvalidInput, NotAllowed, NotFound
from agentgit.handles.context import Context, UserRef
from agentgit.handles.retention import erase
from agentgit.sessions.reports import Erased
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance import erasure
from agentgit.store.sql.ids import is_id

KEY_LIFETIME = timedelta(days=90)
"""The default lifetime of an API key."""


class Users:
    """The users of a tenant, available as `Repository.users`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._users = context.store.users

    def __repr__(self) -> str:
        return f"Users(for {self._context.user.name!r})"

    def add(self, name: str, password: str | None = None, is_admin: bool = False) -> User:
        """Create a user. Admins only.

        Args:
            name: The name, unique in the tenant: 1 to 200 characters without a `/`.
            password: The password: 10 to 1,000 characters. None if the user logs in with keys or tokens only.
            is_admin: True to make the user an admin.

        Raises:
            InvalidInput: The name or the password is not valid.
            Conflict: A user with this name already exists.
            NotAllowed: You are not an admin.
        """
        require_name(name, "user")
        password_hash = hash_password(require_password(password)) if password is not None else None

        def create_user(connection: Connection) -> User:
            self._context.lookup.require_admin(connection, "users.add")
            if self._users.find_by_name(connection, name) is not None:
                raise Conflict(f"A user called {name} already exists. Choose another name.")
            new_user = self._users.add(connection, name, is_admin=is_admin, by_user_id=self._context.user.id)
            if password_hash is not None:
                self._users.change(connection, new_user.id, {"password": password_hash})
            return new_user

        return self._context.change(create_user)

    def list(self) -> list[User]:
        """List all users, sorted by name. Admins only.

        Raises:
            NotAllowed: You are not an admin.
        """

        def load_all(connection: Connection) -> list[User]:
            self._context.lookup.require_admin(connection, "users.list")
            return self._users.all(connection)

        return self._context.read(load_all)

    def find(self, user: UserRef) -> User:
        """Find a user by name or id. Only admins can find users other than themselves.

        Raises:
            NotFound: There is no such user.
            NotAllowed: You are not an admin, and the user is not you.
        """

        me = self._context.user

        def load(connection: Connection) -> User:
            if user not in (me, me.name, me.id):
                self._context.lookup.require_admin(connection, "users.find")
            return self._context.find_user(connection, user)

        return self._context.read(load)

    def set_password(self, user: UserRef, password: str | None, *, current: str | None = None) -> User:
        """Change a user's password and end the user's logins. Only admins can change the password of another user.

        Tokens and the logins of all other browsers are revoked, too. API keys stay valid; revoke them one by one.

        Args:
            user: A User, a name or an id.
            password: The new password: 10 to 1,000 characters. None removes the password.
            current: Your current password. It is required if you change your own password and logged in with a
                credential, so that an open browser or a stolen key is not enough to take over the account.

        Raises:
            InvalidInput: The password is not valid, or the user is the local owner, who never logs in.
            NotFound: There is no such user.
            NotAllowed: You are not an admin and the user is not you, or `current` is missing or wrong.
            Conflict: The password was changed in the meantime.
            TooManyAttempts: `current` was wrong too often.
        """
        new_hash = hash_password(require_password(password)) if password is not None else None
        current_hash = self._check_current_password(user, current)

        def change(connection: Connection, user_id: int) -> None:
            if current_hash is not None and self._users.password_hash(connection, user_id) != current_hash:
                raise Conflict("The password was changed in the meantime. Give the new one as the current one.")
            self._users.set_password(connection, user_id, new_hash, self._context.principal.key_id)

        return self._change_user(user, "set_password", "user.changed", change)

    def _check_current_password(self, user: UserRef, current: str | None) -> str | None:
        """Check the current password of a user who changes their own; return its hash, None if none is needed."""
        context, me = self._context, self._context.user

        def load_hash(connection: Connection) -> str | None:
            is_own = self._find_manageable_user(connection, user, "users.set_password").id == me.id
            return (
                self._users.password_hash(connection, me.id) if is_own and context.principal.since is not None else None
            )

        current_hash = context.read(load_hash)
        if current_hash is None:
            return None
        if current is None:
            raise NotAllowed("To change your password, give the current one as well.")
        subjects = context.store.login_attempts.subjects(me.name, None)
        context.store.database.write(lambda c: context.store.login_attempts.count_attempt(c, subjects))
        if not is_password_of(current, current_hash):
            raise NotAllowed("The current password is wrong. Nothing was changed.")
        context.store.database.write(lambda c: context.store.login_attempts.record_success(c, subjects))
        return current_hash

    def disable(self, user: UserRef) -> User:
        """Disable a user and all their keys and handles at once. Their sessions stay. Admins only.

        Raises:
            InvalidInput: The user is the local owner, who cannot be disabled.
            NotFound: There is no such user.
            NotAllowed: You are not an admin.
        """
        return self._update_user(user, "disable", "user.disabled", disabled_at=datetime.now(UTC))

    def enable(self, user: UserRef) -> User:
        """Enable a disabled user again. Admins only.

        Raises:
            InvalidInput: The user is the local owner, who cannot be disabled.
            NotFound: There is no such user.
            NotAllowed: You are not an admin.
        """
        return self._update_user(user, "enable", "user.enabled", disabled_at=None)

    def _update_user(self, user: UserRef, verb: str, kind: str, **values: Any) -> User:
        def change(connection: Connection, user_id: int) -> None:
            self._users.change(connection, user_id, values)

        return self._change_user(user, verb, kind, change, admins_only=True)

    def _change_user(
        self,
        user: UserRef,
        verb: str,
        event_kind: str,
        apply: Callable[[Connection, int], None],
        *,
        admins_only: bool = False,
    ) -> User:
        def change(connection: Connection) -> User:
            target = self._find_manageable_user(connection, user, f"users.{verb}", admins_only=admins_only)
            if target.name == LOCAL:
                raise InvalidInput("The local owner has no credentials and cannot be disabled. Add a user for that.")
            apply(connection, target.id)
            record_event(
                connection, self._context.store.tenant_id, event_kind, user_id=self._context.user.id, user=target.id
            )
            return self._context.find_user(connection, target.id)

        return self._context.change(change)

    def revoke_tokens(self, user: UserRef | None = None) -> None:
        """Revoke all logins and tokens that were issued before now, including those of browsers.

        API keys stay valid; revoke them one by one. A key named `browser` is the login of a browser.

        Args:
            user: The user; None for all users of the tenant. Only admins can pass None or another user.

        Raises:
            NotFound: There is no such user.
            NotAllowed: You are not an admin, and the user is not you.
        """

        def revoke(connection: Connection) -> None:
            if user is None:
                self._context.lookup.require_admin(connection, "users.revoke_tokens")
            target_id = (
                self._find_manageable_user(connection, user, "users.revoke_tokens").id if user is not None else None
            )
            self._users.revoke_tokens(connection, target_id)
            record_event(
                connection,
                self._context.store.tenant_id,
                "tokens.revoked",
                user_id=self._context.user.id,
                user=target_id,
            )

        self._context.change(revoke)

    def delete(self, user: UserRef) -> Erased:
        """Permanently erase a user with all their sessions, keys and roles; their handles end at once.

        Only admins can erase users other than themselves. What the user did in other users' sessions stays there, under
        the id of the erased user. Each session is erased as `Session.delete` describes.

        Args:
            user: A User, a name or an id.

        Returns:
            The counts of what was erased, and what could not be reached.

        Raises:
            Conflict: One of the sessions is in use, or the user is the last admin; nothing was erased.
            InvalidInput: The user is the local owner, who exists wherever the database is opened.
            NotFound: There is no such user.
            NotAllowed: You are not an admin, and the user is not you.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.as_user(repo.users.add("ada")).session("support-42", create=True)
            >>> repo.users.delete("ada").sessions, [user.name for user in repo.users.list()]
            (1, ['local'])
        """
        store, me = self._context.store, self._context.user
        target = self._context.read(lambda c: self._find_manageable_user(c, user, "users.delete"))
        if target.name == LOCAL:
            raise InvalidInput(
                "The local owner is whoever opens the database, and cannot be deleted. Delete each session instead."
            )

        def authorize(connection: Connection) -> None:
            self._find_manageable_user(connection, target, "users.delete")
            erasure.lock_user(store, connection, target.id)

        return erase(
            self._context,
            erasure.select_user_sessions(store, target.id),
            authorize,
            lambda c: erasure.erase_user(store, c, target, me.id),
        )

    def _find_manageable_user(
        self, connection: Connection, user: UserRef, verb: str, *, admins_only: bool = False
    ) -> User:
        """Find a user that the principal may manage: itself or, for an admin, any user."""
        me = self._context.user
        if admins_only or user not in (me, me.name, me.id):
            self._context.lookup.require_admin(connection, verb)
        self._context.lookup.require_scope(connection, ADMIN)
        return self._context.find_user(connection, user)

    aadd = async_twin(add)
    alist = async_twin(list)
    afind = async_twin(find)
    aset_password = async_twin(set_password)
    adisable = async_twin(disable)
    aenable = async_twin(enable)
    arevoke_tokens = async_twin(revoke_tokens)
    adelete = async_twin(delete)


class Keys:
    """The API keys of a user, available as `Repository.keys`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys = context.store.api_keys

    def __repr__(self) -> str:
        return f"Keys(for {self._context.user.name!r})"

    def create(
        self,
        name: str,
        scopes: str | Collection[str] = READ,
        expires_in: timedelta | None = KEY_LIFETIME,
        user: UserRef | None = None,
    ) -> NewKey:
        """Create an API key.

        Args:
            name: The purpose of the key.
            scopes: `read`, `fork`, `write` or `admin`; each includes the ones before it.
            expires_in: How long the key is valid, 90 days by default; None is until it is revoked.
            user: The user who gets the key; None is yourself. Only admins can pass another user.

        Returns:
            The key. Its `secret` is available only here, and is not part of the repr.

        Raises:
            InvalidInput: A scope or the time is not valid, or the key is for the local owner, who never logs in.
            NotFound: There is no such user.
            NotAllowed: You are not an admin and the key is for another user, or you use a key without the scope
                `admin`.

        Example:
            >>> import agentgit
            >>> repo = agentgit.open(":memory:")
            >>> ada = repo.users.add("ada")
            >>> made = repo.keys.create("nightly", "read", user="ada")
            >>> made.secret.startswith("agit_"), made.secret in repr(made)
            (True, False)
            >>> repo.authenticate(made.secret).user.name
            'ada'
        """
        require_name(name, "key")
        all_scopes, expires_at = with_included_scopes(scopes), expiry_time(expires_in)

        def create_key(connection: Connection) -> NewKey:
            owner = self._find_owner(connection, user, "keys.create")
            if owner.name == LOCAL:
                raise InvalidInput("The local owner has no credentials. Create the key for a user.")
            self._context.store.users.require_exists(connection, owner.id)
            self._context.lookup.check_valid(
                connection
            )  # `expect` waits for a revocation of this login, which is visible by now
            return self._keys.add(connection, owner.id, name, all_scopes, expires_at, self._context.user.id)

        return self._context.change(create_key, scope=ADMIN)

    def device(self) -> str:
        """Return a token for the device that you log in from. Pass it to `login(device=...)` the next time.

        The token grants no access. On a device that presents it, other people's failed attempts do not lock you out.
        It is valid for a year, or until your password changes.

        Raises:
            InvalidInput: You have no password.
            NotAllowed: You did not log in with a password. Other credentials must not help to guess it.
        """
        principal = self._context.principal
        if principal.key_id is not None or principal.until is not None:
            raise NotAllowed("To register a device, first log in with a password.")

        def create_token(connection: Connection) -> str:
            password_hash = self._context.store.users.password_hash(connection, self._context.user.id)
            if password_hash is None:
                raise InvalidInput("A user without a password cannot register a device.")
            return device_token(password_hash, self._context.user.id, datetime.now(UTC))

        return self._context.read(create_token)

    def list(self, user: UserRef | None = None) -> list[ApiKey]:
        """List the keys of a user, oldest first, including expired and revoked ones.

        Args:
            user: The user; None is yourself. Only admins can pass another user.

        Raises:
            NotFound: There is no such user.
            NotAllowed: You are not an admin, and the user is not you.
        """
        return self._context.read(lambda c: self._keys.all(c, self._find_owner(c, user, "keys.list").id))

    def revoke(self, key: ApiKey | int) -> ApiKey:
        """Revoke a key at once, also for handles that were opened with it, and return the revoked key.

        Args:
            key: The key or its id. Only admins can revoke the keys of other users.

        Raises:
            NotFound: There is no such key.
            NotAllowed: You use another key, which does not have the scope `admin`. You can always revoke the key that
                you use.
        """
        key_id = key.id if isinstance(key, ApiKey) else key
        is_in_use = key_id == self._context.principal.key_id

        def revoke_key(connection: Connection) -> ApiKey:
            me = self._context.user
            existing = self._keys.find(connection, key_id) if is_id(key_id) else None
            if existing is None or (existing.user_id != me.id and not me.is_admin):
                raise NotFound(f"There is no key {key_id!r}. repo.keys.list() lists yours.")
            self._keys.revoke(connection, existing.id, me.id)
            return self._keys.find(connection, existing.id) or existing

        return self._context.change(revoke_key, scope=READ if is_in_use else ADMIN)

    def _find_owner(self, connection: Connection, user: UserRef | None, verb: str) -> User:
        me = self._context.user
        if user is None or user in (me, me.name, me.id):
            return me
        self._context.lookup.require_admin(connection, verb)
        return self._context.find_user(connection, user)

    acreate = async_twin(create)
    adevice = async_twin(device)
    alist = async_twin(list)
    arevoke = async_twin(revoke)
