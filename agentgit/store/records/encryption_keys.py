"""Opening an encrypted database: all its keys must be there and be the right ones before anything is read."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, delete, select, update
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.database import Database
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encrypted_columns import counts
from agentgit.store.sql.encryption import Seal, key_of, missing
from agentgit.store.sql.tables import ENCRYPTION_KEY

_PLACE, _PROOF = "encryption_key.proof", b"agentgit"
_WHOLE = b"agentgit, nothing is in clear, and every row has its code"
"""The contents of the proof of a key: that it is this key, and whether everything was encrypted at the time."""


def unlock(database: Database, tenant_id: int) -> None:
    """Check that the keys of a tenant are available, and register the one that is new.

    Args:
        database: The database as it was opened, with keys or without.
        tenant_id: The tenant whose values are read and written with it from now on.

    Raises:
        KeyMissing: A key that may seal values was not given.
        InvalidInput: A key is not the same as before.
    """
    seal = database.seal
    if seal is not None:
        seal.tenant_id = tenant_id
    with database.reading() as connection:
        known = registered(connection, tenant_id)
    for name, proof in known.items():
        if seal is None or name not in seal.keyring:
            raise missing(name)
        seal.is_whole |= _says_whole(seal, name, proof)
    if seal is not None and seal.keyring.current not in known:
        if not seal.is_whole:
            with database.reading() as connection:
                stored = counts(connection, tenant_id)
            # What has a key that is not known had one: somebody took its row away, and with it what that said.
            seal.is_whole = "" not in stored or not stored.keys() <= {"", *known}
        database.write(lambda connection: _register(connection, tenant_id, seal), durable=True)


def registered(connection: Connection, tenant_id: int) -> dict[str, bytes]:
    """Return the keys that values of a tenant may be sealed with, each with its proof."""
    rows = connection.execute(
        select(ENCRYPTION_KEY.c.id, ENCRYPTION_KEY.c.proof)
        .where(ENCRYPTION_KEY.c.tenant_id == tenant_id)
        .order_by(ENCRYPTION_KEY.c.id)
    )
    # SQLite keeps a text in a column of bytes, too: it is no proof.
    return {row.id: b"" if isinstance(row.proof, str) else bytes(row.proof) for row in rows}


def forget(connection: Connection, tenant_id: int, name: str) -> None:
    """Forget a key that nothing is sealed with any more."""
    connection.execute(
        delete(ENCRYPTION_KEY).where(ENCRYPTION_KEY.c.tenant_id == tenant_id, ENCRYPTION_KEY.c.id == name)
    )


def prove(connection: Connection, tenant_id: int, seal: Seal, *, is_whole: bool) -> None:
    """Write down whether all that a tenant has is sealed, in the proofs of its keys, where nobody can forge it."""
    for name in registered(connection, tenant_id):
        if name in seal.keyring:
            same = (ENCRYPTION_KEY.c.tenant_id == tenant_id, ENCRYPTION_KEY.c.id == name)
            connection.execute(update(ENCRYPTION_KEY).where(*same).values(proof=_proof(seal, name, is_whole=is_whole)))
    seal.is_whole = is_whole


def _proof(seal: Seal, name: str, *, is_whole: bool) -> bytes:
    return seal.seal(_PLACE, _WHOLE if is_whole else _PROOF, name)


def _register(connection: Connection, tenant_id: int, seal: Seal) -> None:
    name = seal.keyring.current
    values: dict[str, Any] = {
        "tenant_id": tenant_id,
        "id": name,
        "proof": _proof(seal, name, is_whole=seal.is_whole),
        "created_at": datetime.now(UTC),
    }
    if not _ADD.count(connection, values):  # another process was faster; its key may be another one
        seal.is_whole |= _says_whole(seal, name, registered(connection, tenant_id)[name])


def _says_whole(seal: Seal, name: str, proof: bytes) -> bool:
    """Return whether the proof of a key says that nothing is in clear.

    Raises:
        InvalidInput: It is another key's.
    """
    try:
        said = seal.open(_PLACE, proof) if key_of(proof) == name else b""
    except Corrupt:
        said = b""
    if said not in (_PROOF, _WHOLE):
        raise InvalidInput(
            f"The key {name} differs from the key of that name with which this database is encrypted. Pass that key, "
            "or give the new key another name."
        )
    return said == _WHOLE


_ADD = CompiledStatement(
    {
        "sqlite": sqlite.insert(ENCRYPTION_KEY).on_conflict_do_nothing(),
        "postgresql": postgresql.insert(ENCRYPTION_KEY).on_conflict_do_nothing(),
    }
)
