"""The Principal: who a handle on the database acts for, and how much of it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from agentgit.auth.scopes import EVERYTHING
from agentgit.auth.user import User


@dataclass(frozen=True, kw_only=True)
class Principal:
    """One user of one tenant, as a handle is bound to it.

    Args:
        tenant_id: The tenant; nothing of another one is ever seen.
        user: The id of the user.
        scopes: The part of that user's rights that the handle has.
        since: Since when it holds, aware UTC: whether it still does is asked each time. None for who opened the
            database itself, whom nobody can shut out of it.
        until: The time at which it ends by itself, aware UTC; None is never.
        key_id: The API key that it comes from; None if it comes from none.
        by: The admin who acts for the user; when that one's access ends, so does this. None if nobody does.
    """

    tenant_id: int
    user: User
    scopes: frozenset[str] = EVERYTHING
    since: datetime | None = None
    until: datetime | None = None
    key_id: int | None = None
    by: Principal | None = None
