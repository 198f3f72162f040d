"""Opening an encrypted database: all its keys must be there and be the right ones before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.database import Database
from agentgit.store.encryption import Seal, missing
from agentgit.store.prepared import Prepared
from agentgit.store.tables import EncryptionKeyRow

KEY = EncryptionKeyRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table

_PLACE, _PROOF = "encryption_key.proof", b"agentgit"


def unlock(database: Database, tenant_id: int) -> None:
    """Make sure that the keys of a tenant are there, and write down the one that is new.

    Args:
        database: as it was opened, with keys or without.
        tenant_id: whose values are read and written with it from now on.

    Raises:
        KeyMissing: a key that values may be sealed with was not given.
        InvalidInput: a key is another one than it was.
    """
    seal = database.seal
    if seal is not None:
        seal.tenant_id = tenant_id
    with database.reading() as connection:
        known = registered(connection, tenant_id)
    for name, proof in known.items():
        if seal is None or name not in seal.keyring:
            raise missing(name)
        _expect_same(seal, name, proof)
    if seal is not None and seal.keyring.current not in known:
        database.write(lambda connection: _register(connection, tenant_id, seal), durable=True)


def registered(connection: Connection, tenant_id: int) -> dict[str, bytes]:
    """Give the keys that values of a tenant may be sealed with, each with its proof."""
    rows = connection.execute(select(KEY.c.id, KEY.c.proof).where(KEY.c.tenant_id == tenant_id).order_by(KEY.c.id))
    return {row.id: bytes(row.proof) for row in rows}


def forget(connection: Connection, tenant_id: int, name: str) -> None:
    """Forget a key that nothing is sealed with any more."""
    connection.execute(delete(KEY).where(KEY.c.tenant_id == tenant_id, KEY.c.id == name))


def _register(connection: Connection, tenant_id: int, seal: Seal) -> None:
    values: dict[str, Any] = {
        "tenant_id": tenant_id, "id": seal.keyring.current, "proof": seal.seal(_PLACE, _PROOF),
        "created_at": datetime.now(UTC),
    }  # fmt: skip
    if not _ADD.count(connection, values):  # another process was faster; its key may be another one
        _expect_same(seal, seal.keyring.current, registered(connection, tenant_id)[seal.keyring.current])


def _expect_same(seal: Seal, name: str, proof: bytes) -> None:
    try:
        seal.open(_PLACE, proof)
    except Corrupt as error:
        raise InvalidInput(
            f"The key {name} is another one than this database is encrypted with under that name. Give the right one, "
            "or give a new key a new name."
        ) from error


_ADD = Prepared({
    "sqlite": sqlite.insert(KEY).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(KEY).on_conflict_do_nothing(),
})  # fmt: skip
