"""Sharing of one session: the roles of its members, and links with which others join."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from agentgit.async_api import async_twin
from agentgit.auth import Member, ShareLink
from agentgit.auth.credentials import expiry_time
from agentgit.auth.principal import OWNER, VIEWER, WRITE, Role, require_role
from agentgit.errors import InvalidInput, NotFound
from agentgit.handles.context import Context, SessionAccess, UserRef
from agentgit.next_steps import Next
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.transaction import Writing

T = TypeVar("T")

DEFAULT_LINK_LIFETIME = timedelta(days=7)
"""The default lifetime of a link."""


class Sharing:
    """The members of a session and the links to it, as `Session.sharing`.

    Args:
        context: The store and the principal.
        session_id: The id of the session.
    """

    def __init__(self, context: Context, session_id: int) -> None:
        self._context, self._access = context, SessionAccess(context, session_id)

    def share(self, user: UserRef, role: Role = VIEWER, expires_in: timedelta | None = None) -> Member:
        """Grant a user a role in the session. It replaces the role that you granted before.

        Args:
            user: A User, a name or an id.
            role: `viewer` (read everything, and start a session of their own from it), `editor` (also run turns and
                roll back) or `owner` (also share and delete it).
            expires_in: How long the role is valid; None until it is revoked.

        Raises:
            NotFound: There is no such user.
            NotAllowed: You are not its owner.
            InvalidInput: The role or the time is not valid, or the user owns the session.
        """
        require_role(role)
        expires_at = expiry_time(expires_in)

        def add_member(transaction: Writing) -> Member:
            session = self._access.load_session(transaction, OWNER)
            invited_user = self._context.find_user(transaction, user)
            if invited_user.id == session.user_id:
                raise InvalidInput(
                    f"{invited_user.name} owns session {session.session_name} and already has full access to it."
                )
            return self._context.store.members.share(
                transaction, session.id, invited_user, role, expires_at, self._context.user.id
            )

        return self._context.change(add_member)

    def unshare(self, user: UserRef) -> None:
        """Revoke all roles of a user in the session at once. With yourself as the user, leave the session.

        Removing someone else also revokes the links with which they joined, and the roles of others who joined with
        these links.

        Args:
            user: A User, a name or an id.

        Raises:
            NotFound: There is no such user, or they have no role in the session.
            NotAllowed: You are not its owner.
        """

        def remove_member(transaction: Writing) -> None:
            removed_user = self._context.find_user(transaction, user)
            is_leaving = removed_user.id == self._context.user.id
            session = self._access.load_session(transaction, VIEWER if is_leaving else OWNER)
            links = self._context.store.members.remove(transaction, session.id, removed_user.id, self._context.user.id)
            if not links:
                raise NotFound(
                    f"Session {session.reference} is not shared with {removed_user.name}.", Next("list_members")
                )
            # A removed user could join again with these links. A user who leaves must not remove others.
            for link_id in () if is_leaving else links:
                self._context.store.members.revoke_link(transaction, session.id, link_id, self._context.user.id)

        self._context.change(remove_member, scope=WRITE)

    def members(self) -> list[Member]:
        """List the users who have a role in the session now, except its owner."""
        return self._context.read(lambda c: self._context.store.members.all(c, self._access.load_session(c).id))

    # -- links

    def create_link(self, role: Role = VIEWER, expires_in: timedelta | None = DEFAULT_LINK_LIFETIME) -> ShareLink:
        """Create a link. Each user who has its token can join the session until the link ends.

        Args:
            role: The role of those who join, as for `share`, except `owner`.
            expires_in: How long the link and the roles of those who join with it are valid; None until it is revoked.

        Returns:
            The link. Its `token` is returned only here, and its repr does not show it.

        Raises:
            NotAllowed: You are not its owner.
            InvalidInput: A link cannot give this role, or the time is not valid.
        """
        if require_role(role) == OWNER:
            raise InvalidInput("A link cannot give away ownership. Share the session with a user in the role owner.")
        expires_at = expiry_time(expires_in)

        def add_link(transaction: Writing) -> ShareLink:
            session = self._access.load_session(transaction, OWNER)
            return self._context.store.members.add_link(
                transaction, session.id, role, expires_at, self._context.user.id
            )

        return self._context.change(add_link)

    def links(self) -> list[ShareLink]:
        """List the links of the session, including those that have ended. Only its owner can do this.

        Raises:
            NotAllowed: You are not its owner.
        """
        return self._context.read(
            lambda c: self._context.store.members.links(c, self._access.load_session(c, OWNER).id)
        )

    def revoke_link(self, link: ShareLink | int) -> ShareLink:
        """Revoke a link, and the roles of all who joined with it, at once; return the revoked link.

        Args:
            link: The link or its id.

        Raises:
            NotFound: There is no such link.
            NotAllowed: You are not the owner of its session.
        """
        link_id = link.id if isinstance(link, ShareLink) else link

        def revoke(transaction: Writing) -> ShareLink:
            stored_link = self._context.store.members.link(transaction, link_id) if is_id(link_id) else None
            if stored_link is None or stored_link.session_id != self._access.session_id:
                raise NotFound(f"There is no link {link_id!r}.", Next("list_links"))
            self._access.load_session(transaction, OWNER)
            self._context.store.members.revoke_link(
                transaction, stored_link.session_id, stored_link.id, self._context.user.id
            )
            return replace(stored_link, revoked_at=stored_link.revoked_at or datetime.now(UTC))

        return self._context.change(revoke)

    ashare = async_twin(share)
    aunshare = async_twin(unshare)
    amembers = async_twin(members)
    acreate_link = async_twin(create_link)
    alinks = async_twin(links)
    arevoke_link = async_twin(revoke_link)
