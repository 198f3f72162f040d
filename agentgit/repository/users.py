"""Management of users, their API keys and their sign-in links."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from agentgit.async_api import async_twin
from agentgit.auth import ApiKey, NewKey, Principal, User
from agentgit.auth.credentials import (
    BROWSER_KEY_NAME,
    BROWSER_LIFETIME,
    KEY_LIFETIME,
    LINK_LIFETIME,
    LINK_NAME,
    expiry_time,
)
from agentgit.auth.principal import ADMIN, ALL_SCOPES, LOCAL, READ, require_name, with_included_scopes
from agentgit.errors import Conflict, InvalidInput, NotAllowed, NotFound
from agentgit.handles.context import Context, UserRef
from agentgit.handles.retention import erase
from agentgit.next_steps import Next
from agentgit.sessions.reports import Erased
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance import erasure
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.transaction import Reading, Writing


def disabled_user_error(user: User) -> NotAllowed:
    return NotAllowed(f"User {user.name} is disabled.", Next("enable_user", name=user.name))


def invalid_key_error() -> NotAllowed:
    """Return the error for a key or a sign-in link that is not valid; it is the same for every cause."""
    return NotAllowed("This key is not valid, or no longer. Check it, or ask an admin for a sign-in link.")


def principal_of_user(context: Context, user: UserRef) -> Principal:
    """Return the principal of another user. For admins."""
    context.require_admin("as_user")
    target = context.read(lambda c: context.find_user(c, user))
    if isinstance(user, str) and (user == LOCAL or target.name != user):  # often from a token: never an id, nor `local`
        raise NotFound(f"There is no user {user!r} whom a program may act for.", Next("list_users"))
    if target.disabled_at is not None:
        raise disabled_user_error(target)
    return Principal(user=target, by=context.principal)


def principal_of_key(context: Context, text: object) -> Principal:
    """Return the principal of the user of an API key.

    Nothing is stored about a wrong key: nobody can guess one, but anybody could fill a table with attempts.
    """
    store = context.store
    with store.database.reading() as transaction:
        key = store.api_keys.find_by_text(transaction, text)
        user = store.users.find(transaction, key.user_id) if key is not None else None
    if key is None or not key.scopes or user is None or user.disabled_at is not None:
        raise invalid_key_error()
    if store.api_keys.is_use_due(key):
        store.database.write(lambda c: store.api_keys.record_use(c, key.id))
    return Principal(user=user, scopes=key.scopes, key_id=key.id)


class Users:
    """The users, available as `Repository.users`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._users = context.store.users

    def add(self, name: str, is_admin: bool = False) -> User:
        """Create a user. Admins only.

        Args:
            name: The unique name: 1 to 200 characters without a `/`.
            is_admin: True to make the user an admin.

        Raises:
            InvalidInput: The name is not valid.
            Conflict: A user with this name already exists.
            NotAllowed: You are not an admin.
        """
        require_name(name, "user")

        def create_user(transaction: Writing) -> User:
            self._context.lookup.require_admin(transaction, "users.add")
            if self._users.find_by_name(transaction, name) is not None:
                raise Conflict(f"A user called {name} already exists. Choose another name.")
            return self._users.add(transaction, name, is_admin=is_admin, by_user_id=self._context.user.id)

        return self._context.change(create_user)

    def list(self) -> list[User]:
        """List all users, sorted by name. Admins only.

        Raises:
            NotAllowed: You are not an admin.
        """

        def load_all(transaction: Reading) -> list[User]:
            self._context.lookup.require_admin(transaction, "users.list")
            return self._users.all(transaction)

        return self._context.read(load_all)

    def find(self, user: UserRef) -> User:
        """Find a user by name or id. Only admins can find users other than themselves.

        Raises:
            NotFound: There is no such user.
            NotAllowed: You are not an admin, and the user is not you.
        """

        me = self._context.user

        def load(transaction: Reading) -> User:
            if user not in (me, me.name, me.id):
                self._context.lookup.require_admin(transaction, "users.find")
            return self._context.find_user(transaction, user)

        return self._context.read(load)

    def create_link(self, user: UserRef) -> NewKey:
        """Create a sign-in link, with which a browser signs in as a user, once within 24 hours. Admins only.

        Args:
            user: A User, a name or an id.

        Returns:
            The link. Its `secret` is the token in the address that `agentgit users link` prints.

        Raises:
            InvalidInput: The user is the local owner, who never signs in.
            NotFound: There is no such user.
            NotAllowed: You are not an admin.
        """
        expires_at = expiry_time(LINK_LIFETIME)

        def create(transaction: Writing) -> NewKey:
            target = self._find_manageable_user(transaction, user, "users.create_link", admins_only=True)
            _require_not_local(target)
            self._users.require_exists(transaction, target.id)
            keys, me = self._context.store.api_keys, self._context.user
            return keys.add(transaction, target.id, LINK_NAME, frozenset(), expires_at, me.id)

        return self._context.change(create)

    def sign_in(self, link: str) -> NewKey:
        """Use up a sign-in link, and return a new key for a browser of its user: with all rights, for 30 days.

        Args:
            link: The token of the link.

        Raises:
            NotAllowed: The link was used, has expired or does not exist, or its user is disabled.
        """
        store, expires_at = self._context.store, expiry_time(BROWSER_LIFETIME)
        with store.database.reading() as transaction:  # a wrong link must not wait for the lock of writers
            found = store.api_keys.find_by_text(transaction, link)
        if found is None or found.scopes:
            raise invalid_key_error()

        def exchange(transaction: Writing) -> NewKey:
            user = self._users.find(transaction, found.user_id)
            if (
                user is None
                or user.disabled_at is not None
                or not store.api_keys.revoke(transaction, found.id, user.id)
            ):
                raise invalid_key_error()
            self._users.require_exists(transaction, user.id)
            return store.api_keys.add(transaction, user.id, BROWSER_KEY_NAME, ALL_SCOPES, expires_at, user.id)

        return store.database.write(exchange)

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
        def change(transaction: Writing) -> User:
            target = self._find_manageable_user(transaction, user, f"users.{verb}", admins_only=True)
            _require_not_local(target)
            self._users.change(transaction, target.id, values)
            record_event(transaction, kind, user_id=self._context.user.id, user=target.id)
            return self._context.find_user(transaction, target.id)

        return self._context.change(change)

    def delete(self, user: UserRef, *, force: bool = False) -> Erased:
        """Permanently erase a user with all their sessions, keys and roles; their handles end at once.

        Only admins can erase users other than themselves. What the user did in other users' sessions stays there, under
        the id of the erased user. Each session is erased as `Session.delete` describes.

        Args:
            user: A User, a name or an id.
            force: True to erase them although effects of their sessions stand in the world, where they then stay.

        Returns:
            The counts of what was erased, and what could not be reached.

        Raises:
            Conflict: One of the sessions is in use, effects stand in the world, or the user is the last admin; nothing
                was erased.
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

        def authorize(transaction: Reading) -> None:
            self._find_manageable_user(transaction, target, "users.delete")
            erasure.lock_user(store, transaction, target.id)

        return erase(
            self._context,
            erasure.select_user_sessions(target.id),
            authorize,
            lambda c: erasure.erase_user(store, c, target, me.id),
            force=force,
        )

    def _find_manageable_user(
        self, transaction: Reading, user: UserRef, verb: str, *, admins_only: bool = False
    ) -> User:
        """Find a user that the principal may manage: itself or, for an admin, any user."""
        me = self._context.user
        if admins_only or user not in (me, me.name, me.id):
            self._context.lookup.require_admin(transaction, verb)
        self._context.lookup.require_scope(transaction, ADMIN)
        return self._context.find_user(transaction, user)

    aadd = async_twin(add)
    alist = async_twin(list)
    afind = async_twin(find)
    acreate_link = async_twin(create_link)
    asign_in = async_twin(sign_in)
    adisable = async_twin(disable)
    aenable = async_twin(enable)
    adelete = async_twin(delete)


def _require_not_local(user: User) -> None:
    if user.name == LOCAL:
        raise InvalidInput("The local owner has no credentials and cannot be disabled.", Next("add_user"))


class Keys:
    """The API keys of a user, available as `Repository.keys`.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._keys = context.store.api_keys

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
            scopes: `read`, `write` or `admin`; each includes the ones before it.
            expires_in: How long the key is valid, 90 days by default; None is until it is revoked.
            user: The user who gets the key; None is yourself. Only admins can pass another user.

        Returns:
            The key. Its `secret` is available only here, and is not part of the repr.

        Raises:
            InvalidInput: A scope or the time is not valid, or the key is for the local owner, who never signs in.
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
        if require_name(name, "key") in (BROWSER_KEY_NAME, LINK_NAME):
            raise InvalidInput(f"{name!r} is the name that agentgit gives to keys of its own. Choose another name.")
        all_scopes, expires_at = with_included_scopes(scopes), expiry_time(expires_in)

        def create_key(transaction: Writing) -> NewKey:
            owner = self._find_owner(transaction, user, "keys.create")
            _require_not_local(owner)
            self._context.store.users.require_exists(transaction, owner.id)
            self._context.lookup.check_valid(
                transaction
            )  # a revocation that `require_exists` waited for is visible now
            return self._keys.add(transaction, owner.id, name, all_scopes, expires_at, self._context.user.id)

        return self._context.change(create_key, scope=ADMIN)

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

        def revoke_key(transaction: Writing) -> ApiKey:
            me = self._context.user
            existing = self._keys.find(transaction, key_id) if is_id(key_id) else None
            if existing is None or (existing.user_id != me.id and not me.is_admin):
                raise NotFound(f"There is no key {key_id!r}.", Next("list_keys"))
            self._keys.revoke(transaction, existing.id, me.id)
            return self._keys.find(transaction, existing.id) or existing

        return self._context.change(revoke_key, scope=READ if is_in_use else ADMIN)

    def _find_owner(self, transaction: Reading, user: UserRef | None, verb: str) -> User:
        me = self._context.user
        if user is None or user in (me, me.name, me.id):
            return me
        self._context.lookup.require_admin(transaction, verb)
        return self._context.find_user(transaction, user)

    acreate = async_twin(create)
    alist = async_twin(list)
    arevoke = async_twin(revoke)
