"""The principals of handles on behalf of others: of a user, for admins, and of the user of an API key."""

from __future__ import annotations

from agentgit.auth import Principal, User
from agentgit.errors import NotAllowed
from agentgit.handles.context import Context, UserRef


def disabled_user_error(user: User) -> NotAllowed:
    """Return the error for acting as a disabled user."""
    return NotAllowed(f"User {user.name} is disabled. An admin can enable them: repo.users.enable({user.name!r}).")


def invalid_key_error() -> NotAllowed:
    """Return the error for a key or a sign-in link that is not valid; it is the same for every cause."""
    return NotAllowed("This key is not valid, or no longer. Check it, or ask an admin for a sign-in link.")


def principal_of_user(context: Context, user: UserRef) -> Principal:
    """Return the principal of another user. For admins."""
    context.require_admin("as_user")
    target = context.read(lambda c: context.find_user(c, user))
    if target.disabled_at is not None:
        raise disabled_user_error(target)
    return Principal(tenant_id=context.store.tenant_id, user=target, by=context.principal)


def principal_of_key(context: Context, text: object) -> Principal:
    """Return the principal of the user of an API key.

    Nothing is stored about a wrong key: nobody can guess one, but anybody could fill a table with attempts.
    """
    store = context.store
    with store.database.reading() as connection:
        key = store.api_keys.find_by_text(connection, text)
        user = store.users.find(connection, key.user_id) if key is not None else None
    if key is None or not key.scopes or user is None or user.disabled_at is not None:
        raise invalid_key_error()
    if store.api_keys.is_use_due(key):
        store.database.write(lambda c: store.api_keys.record_use(c, key.id))
    return Principal(tenant_id=store.tenant_id, user=user, scopes=key.scopes, key_id=key.id)
