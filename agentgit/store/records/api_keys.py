"""API keys of one tenant in the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Connection, and_, or_, select, update

from agentgit.auth.keys import ApiKey, NewKey, key_text
from agentgit.auth.scopes import widened, widest
from agentgit.auth.sharing import hash_of, is_secret_of, new_secret
from agentgit.store.audit.trail import note
from agentgit.store.sql import row_codes
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import API_KEY

USE_IS_NOTED = timedelta(minutes=1)
"""The shortest interval at which the last use of a key is recorded."""


class ApiKeyStore:
    """The API keys of one tenant.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def add(
        self,
        connection: Connection,
        user_id: int,
        name: str,
        scopes: frozenset[str],
        expires_at: datetime | None,
        by: int,
    ) -> NewKey:
        """Make a key; its text is only in what this gives."""
        key_id, secret, now = new_id(), new_secret(), datetime.now(UTC)
        row = {
            "tenant_id": self.tenant_id,
            "id": key_id,
            "user_id": user_id,
            "name": name,
            "hash": hash_of(secret),
            "scope": widest(scopes),
            "created_at": now,
            "expires_at": expires_at,
        }
        row_codes.add(connection, API_KEY, row)
        note(
            connection,
            self.tenant_id,
            "key.created",
            user_id=by,
            key=key_id,
            of=user_id,
            scope=row["scope"],
            expires_at=expires_at.isoformat() if expires_at is not None else None,
        )
        made = ApiKey(id=key_id, user_id=user_id, name=name, scopes=scopes, created_at=now, expires_at=expires_at)
        return NewKey(made, key_text(self.tenant_id, key_id, secret))

    def all(self, connection: Connection, user_id: int) -> list[ApiKey]:
        """List the keys of a user, also those that hold no more, the oldest first."""
        mine = and_(API_KEY.c.tenant_id == self.tenant_id, API_KEY.c.user_id == user_id)
        rows = connection.execute(select(API_KEY).where(mine).order_by(API_KEY.c.id))
        return [_value(row) for row in row_codes.authentic(connection, API_KEY, rows)]

    def find(self, connection: Connection, key_id: int) -> ApiKey | None:
        """Find a key by its id; None if there is none."""
        row = self._row(connection, key_id)
        return _value(row) if row is not None else None

    def _row(self, connection: Connection, key_id: int) -> Any:
        return row_codes.first(connection, API_KEY, select(API_KEY).where(*self._this(key_id)))

    def shown(self, connection: Connection, key_id: int, secret: str) -> ApiKey | None:
        """Find the key that has this secret, if it holds now; None otherwise."""
        row = self._row(connection, key_id)
        if row is None or not is_secret_of(secret, bytes(row.hash)) or row.revoked_at is not None:
            return None
        return _value(row) if row.expires_at is None or row.expires_at > datetime.now(UTC) else None

    def is_use_due(self, key: ApiKey) -> bool:
        """Return whether the last use of a key is to be written down."""
        return key.last_used_at is None or key.last_used_at < datetime.now(UTC) - USE_IS_NOTED

    def use(self, connection: Connection, key_id: int) -> None:
        """Write down that a key is used, unless somebody just did."""
        now = datetime.now(UTC)
        due = or_(API_KEY.c.last_used_at.is_(None), API_KEY.c.last_used_at < now - USE_IS_NOTED)
        connection.execute(update(API_KEY).where(*self._this(key_id), due).values(last_used_at=now))

    def revoke(self, connection: Connection, key_id: int, by: int) -> None:
        """End a key at once; again, nothing happens."""
        this = (*self._this(key_id), API_KEY.c.revoked_at.is_(None))
        if row_codes.change(connection, API_KEY, *this, revoked_at=datetime.now(UTC)):
            note(connection, self.tenant_id, "key.revoked", user_id=by, key=key_id)

    def _this(self, key_id: int) -> tuple[Any, ...]:
        return API_KEY.c.tenant_id == self.tenant_id, API_KEY.c.id == key_id


def _value(row: Any) -> ApiKey:
    return ApiKey(
        id=row.id,
        user_id=row.user_id,
        name=row.name,
        scopes=widened(row.scope),
        created_at=row.created_at,
        expires_at=row.expires_at,
        last_used_at=row.last_used_at,
        revoked_at=row.revoked_at,
    )
