"""Users and API keys in the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import Select, and_, bindparam, or_, select, update

from agentgit.auth import Principal, User
from agentgit.auth.credentials import (
    KEY_PREFIX,
    ApiKey,
    NewKey,
    format_token,
    hash_of,
    is_secret_of,
    new_secret,
    parse_token,
)
from agentgit.auth.principal import LOCAL, SIGN_IN, widest, with_included_scopes
from agentgit.errors import NotAllowed
from agentgit.store.audit.trail import record_event
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import is_id, new_id
from agentgit.store.sql.rows import insert_rows, update_rows, value_of
from agentgit.store.sql.tables import API_KEY, USER
from agentgit.store.sql.transaction import Reading, Writing


class UserStore:
    def find(self, transaction: Reading, ref: User | str | int) -> User | None:
        if isinstance(ref, User):
            ref = ref.id
        if isinstance(ref, int) and not is_id(ref):
            return None
        name_matches = USER.c.name == str(ref)
        if isinstance(ref, int) or (ref.isascii() and ref.isdigit() and len(ref) < 17):
            name_matches = USER.c.id == int(ref) if isinstance(ref, int) else or_(name_matches, USER.c.id == int(ref))
        # A name takes precedence over an id with the same text.
        return self._find_one(transaction, select(USER).where(name_matches).order_by(USER.c.name != str(ref)))

    def find_by_name(self, transaction: Reading, name: str) -> User | None:
        query = select(USER).where(USER.c.name == name)
        return self._find_one(transaction, query)

    def database_id(self, transaction: Reading) -> str:
        """Return the id of the local owner, by which a storage of files tells one database from another."""
        return str(transaction.execute(select(USER.c.id).where(USER.c.name == LOCAL)).scalar_one())

    def all(self, transaction: Reading) -> list[User]:
        query = select(USER).order_by(USER.c.name, USER.c.id)
        return [_user_from_row(row) for row in transaction.execute(query).all()]

    def _find_one(self, transaction: Reading, query: Select[Any]) -> User | None:
        row = transaction.execute(query.limit(1)).first()
        return _user_from_row(row) if row is not None else None

    def add(self, transaction: Writing, name: str, *, is_admin: bool = False, by_user_id: int | None = None) -> User:
        user = User(id=new_id(), name=name, created_at=datetime.now(UTC), is_admin=is_admin)
        insert_rows(transaction, USER, {**vars(user)})
        if by_user_id is not None:
            record_event(transaction, "user.added", user_id=by_user_id, user=user.id, is_admin=is_admin)
        return user

    def lock(self, transaction: Reading, user_id: int, *, admins: bool = False) -> None:
        """Lock a user: until this transaction ends, nothing can be created for the user."""
        condition = or_(USER.c.id == user_id, USER.c.is_admin) if admins else USER.c.id == user_id
        query = select(USER.c.id).where(condition).order_by(USER.c.id)
        transaction.execute(query.with_for_update())

    def require_exists(self, transaction: Reading, user_id: int) -> None:
        """Check that a user exists, and prevent their deletion until this transaction ends."""
        query = select(USER.c.id).where(USER.c.id == user_id)
        if transaction.execute(query.with_for_update(read=True, key_share=True)).first() is None:
            raise NotAllowed("This user was deleted and can no longer create anything.")

    def change(self, transaction: Writing, user_id: int, values: Mapping[str, Any]) -> None:
        condition = USER.c.id == user_id
        update_rows(transaction, USER, condition, **values)

    def is_valid(self, transaction: Reading, principal: Principal) -> bool:
        if principal.is_operator:
            return True
        if principal.by is not None and not self.is_valid(transaction, principal.by):
            return False
        parameters = {"user": principal.user.id, "key": principal.key_id or 0}
        row = _ACCESS_STATUS.first(transaction, parameters)
        if row is None or row.disabled_at is not None:
            return False
        return principal.key_id is None or (row.key_id is not None and is_usable(row))


def is_usable(key: Any) -> bool:
    return key.revoked_at is None and (key.expires_at is None or key.expires_at > datetime.now(UTC))


def _user_from_row(row: Any) -> User:
    return value_of(User, row)


_ACCESS_STATUS = CompiledStatement(
    select(USER.c.disabled_at, API_KEY.c.id.label("key_id"), API_KEY.c.revoked_at, API_KEY.c.expires_at)
    .select_from(
        USER.outerjoin(
            API_KEY,
            and_(API_KEY.c.user_id == USER.c.id, API_KEY.c.id == bindparam("key")),
        )
    )
    .where(USER.c.id == bindparam("user"))
)


USE_RECORD_INTERVAL = timedelta(minutes=1)
"""The minimum interval at which the last use of a key is recorded."""


class ApiKeyStore:
    def add(
        self,
        transaction: Writing,
        user_id: int,
        name: str,
        scopes: frozenset[str],
        expires_at: datetime | None,
        by_user_id: int,
    ) -> NewKey:
        """Create a key, or a link without scopes. Its text is only in the returned value and cannot be read again."""
        secret, now = new_secret(), datetime.now(UTC)
        key = ApiKey(id=new_id(), user_id=user_id, name=name, scopes=scopes, created_at=now, expires_at=expires_at)
        row = {**vars(key), "hash": hash_of(secret), "scope": widest(scopes)}
        del row["scopes"]
        insert_rows(transaction, API_KEY, row)
        record_event(
            transaction,
            "key.created",
            user_id=by_user_id,
            key=key.id,
            of=user_id,
            scope=row["scope"],
            expires_at=expires_at.isoformat() if expires_at is not None else None,
        )
        return NewKey(key, format_token(KEY_PREFIX, key.id, secret))

    def all(self, transaction: Reading, user_id: int) -> list[ApiKey]:
        """List the keys of a user, including expired and revoked ones, oldest first."""
        condition = API_KEY.c.user_id == user_id
        rows = transaction.execute(select(API_KEY).where(condition).order_by(API_KEY.c.id))
        return [_key_from_row(row) for row in rows]

    def find(self, transaction: Reading, key_id: int) -> ApiKey | None:
        row = self._load_row(transaction, key_id)
        return _key_from_row(row) if row is not None else None

    def _load_row(self, transaction: Reading, key_id: int) -> Any:
        return transaction.execute(select(API_KEY).where(API_KEY.c.id == key_id).limit(1)).first()

    def find_by_text(self, transaction: Reading, text: object) -> ApiKey | None:
        """Find the key or the sign-in link with this text; None if there is none, or it is revoked or expired."""
        key_id, secret = parse_token(KEY_PREFIX, text)
        row = self._load_row(transaction, key_id)
        is_valid = row is not None and is_secret_of(secret, bytes(row.hash)) and is_usable(row)
        return _key_from_row(row) if is_valid else None

    def is_use_due(self, key: ApiKey) -> bool:
        return key.last_used_at is None or key.last_used_at < datetime.now(UTC) - USE_RECORD_INTERVAL

    def record_use(self, transaction: Writing, key_id: int) -> None:
        """Record the use of a key, unless a use was recorded within the last minute."""
        now = datetime.now(UTC)
        is_due = or_(API_KEY.c.last_used_at.is_(None), API_KEY.c.last_used_at < now - USE_RECORD_INTERVAL)
        transaction.execute(update(API_KEY).where(API_KEY.c.id == key_id, is_due).values(last_used_at=now))

    def revoke(self, transaction: Writing, key_id: int, by_user_id: int) -> bool:
        """Revoke a key immediately; False if it was already revoked."""
        conditions = (API_KEY.c.id == key_id, API_KEY.c.revoked_at.is_(None))
        is_changed = bool(update_rows(transaction, API_KEY, *conditions, revoked_at=datetime.now(UTC)))
        if is_changed:
            record_event(transaction, "key.revoked", user_id=by_user_id, key=key_id)
        return is_changed


def _key_from_row(row: Any) -> ApiKey:
    return value_of(ApiKey, row, scopes=with_included_scopes(row.scope) if row.scope != SIGN_IN else frozenset())
