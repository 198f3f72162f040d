"""Encryption keys: which of them encrypts each value, and the check that all are available before anything is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from sqlalchemy import Column, LargeBinary, MetaData, Table, Text, delete, func, select, update

from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.database import Database
from agentgit.store.sql.columns import Payload, SealedText
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import TEXT_MARK, Seal, missing_key, parse_key_name, sealed_text_bytes
from agentgit.store.sql.rows import insert_missing
from agentgit.store.sql.tables import BLOB, ENCRYPTION_KEY, LIST, METADATA
from agentgit.store.sql.transaction import Reading, Writing

_PLACE, _PROOF = "encryption_key.proof", b"agentgit"
_WHOLE = b"agentgit, nothing is in clear"
"""The plaintexts of a key's proof. It proves that the key is the same, and `_WHOLE` that everything is encrypted."""


def unlock(database: Database) -> None:
    """Check that the keys are available, and register the current key if it is new."""
    seal = database.seal
    with database.reading() as transaction:
        proofs = registered_proofs(transaction)
    for name, proof in proofs.items():
        if seal is None or name not in seal.keyring:
            raise missing_key(name)
        seal.is_fully_encrypted |= _is_full_proof(seal, name, proof)
    if seal is not None and seal.keyring.current not in proofs:
        if not seal.is_fully_encrypted:
            with database.reading() as transaction:
                value_counts = count_values_by_key(transaction)
            # Values sealed with an unregistered key mean that its row was deleted, and with it what its proof stated.
            seal.is_fully_encrypted = "" not in value_counts or not value_counts.keys() <= {"", *proofs}
        database.write(lambda transaction: _register_current_key(transaction, seal), durable=True)


def registered_proofs(transaction: Reading) -> dict[str, bytes]:
    rows = transaction.execute(select(ENCRYPTION_KEY.c.id, ENCRYPTION_KEY.c.proof).order_by(ENCRYPTION_KEY.c.id))
    return {row.id: bytes(row.proof) for row in rows}


def unregister_key(transaction: Writing, name: str) -> None:
    transaction.execute(delete(ENCRYPTION_KEY).where(ENCRYPTION_KEY.c.id == name))


def write_proofs(transaction: Writing, seal: Seal, *, is_fully_encrypted: bool) -> None:
    """Record whether all values are sealed, in the proofs of its keys, which cannot be forged."""
    for name in registered_proofs(transaction):
        if name in seal.keyring:
            transaction.execute(
                update(ENCRYPTION_KEY)
                .where(ENCRYPTION_KEY.c.id == name)
                .values(proof=_proof(seal, name, is_fully_encrypted=is_fully_encrypted))
            )
    seal.is_fully_encrypted = is_fully_encrypted


def _proof(seal: Seal, name: str, *, is_fully_encrypted: bool) -> bytes:
    return seal.seal(_PLACE, _WHOLE if is_fully_encrypted else _PROOF, key_name=name)


def _register_current_key(transaction: Writing, seal: Seal) -> None:
    name = seal.keyring.current
    values: dict[str, Any] = {
        "id": name,
        "proof": _proof(seal, name, is_fully_encrypted=seal.is_fully_encrypted),
        "created_at": datetime.now(UTC),
    }
    if not _ADD.count(transaction, values):  # another process registered this name first, perhaps for a different key
        seal.is_fully_encrypted |= _is_full_proof(seal, name, registered_proofs(transaction)[name])


def _is_full_proof(seal: Seal, name: str, proof: bytes) -> bool:
    try:
        plaintext = seal.open(_PLACE, proof) if parse_key_name(proof) == name else b""
    except Corrupt:
        plaintext = b""
    if plaintext not in (_PROOF, _WHOLE):
        raise InvalidInput(
            f"The key {name} differs from the key of that name with which this database is encrypted. Pass that key, "
            "or give the new key another name."
        )
    return plaintext == _WHOLE


_ADD = insert_missing(ENCRYPTION_KEY)


# -- values as they are stored

HEAD_BYTES = 40
"""The number of bytes of an encrypted value that contain the name of its key. In base64 it is a third more."""


@cache
def raw_table(name: str) -> Table:
    """Return a table whose values are read as they are stored."""
    stored_types: dict[type, Any] = {Payload: LargeBinary, SealedText: Text}
    columns = [
        Column(c.name, stored_types.get(type(c.type), lambda c=c: c.type)(), primary_key=c.primary_key)
        for c in METADATA.tables[name].c
    ]
    return Table(name, MetaData(), *columns)


@cache
def sealed_columns() -> Mapping[str, Sequence[str]]:
    columns_by_table = {
        table.name: [c.name for c in table.c if isinstance(c.type, Payload | SealedText)]
        for table in METADATA.sorted_tables
    }
    return {name: columns for name, columns in columns_by_table.items() if columns}


def encrypted_rows(table: Table) -> list[Any]:
    """Return the conditions for rows that may be encrypted. Lists are not: the database itself follows their hashes."""
    return [table.c.type != LIST] if table.name == BLOB.name else []


def count_values_by_key(transaction: Reading) -> dict[str, int]:
    """Count the values by the key that sealed them. The empty name is for those without a key."""
    counts: Counter[str] = Counter()
    for name, columns in sealed_columns().items():
        table = raw_table(name)
        for column in columns:
            head = func.substr(table.c[column], 1, 2 * HEAD_BYTES).label("head")
            query = select(head).where(*encrypted_rows(table), table.c[column].is_not(None))
            for page in CompiledStatement(query).pages(transaction, raw=True):
                counts.update(key_name_of(head) for (head,) in page)
    return dict(sorted(counts.items()))


def key_name_of(stored: Any) -> str:
    """Return the name of the key of a stored value, or of its beginning; empty if it has none."""
    if not isinstance(stored, str | bytes | memoryview):
        return ""
    if isinstance(stored, str):
        # base64 has groups of four characters, and the beginning of a text may end within one.
        length = len(stored) - (len(stored) - len(TEXT_MARK)) % 4
        stored = sealed_text_bytes(stored[:length])
    return parse_key_name(bytes(stored)) or ""
