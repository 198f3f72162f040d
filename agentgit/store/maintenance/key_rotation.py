"""Key rotation: encrypt stored values with another key, encrypt them for the first time, or decrypt them.

A rotation processes the tables in batches, beside turns and other processes. It replaces a value only if it has not
changed since it was read, so nothing is lost. If it is interrupted, run it again: it skips what is already done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from sqlalchemy import and_, func, literal, select, tuple_, update

from agentgit.sessions.reports import Rotated
from agentgit.store.audit.trail import record_event
from agentgit.store.database import Database
from agentgit.store.records.encryption_keys import (
    count_values_by_key,
    encrypted_rows,
    key_name_of,
    raw_table,
    registered_proofs,
    sealed_columns,
    unregister_key,
    write_proofs,
)
from agentgit.store.search.index import delete_words
from agentgit.store.sql.columns import row_key
from agentgit.store.sql.encryption import (
    Seal,
    decode_text,
    decode_value,
    encode_text,
    encode_value,
)
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.transaction import Writing

BATCH_ROWS = 500
"""The number of rows in one transaction. It is small, so that other writers do not wait for long."""

RotationProgress = Callable[[int, int], None]


def rotate(
    database: Database, seal: Seal, *, decrypt: bool, user_id: int, progress: RotationProgress | None = None
) -> Rotated:
    """Encrypt all values with the current key, and forget keys that no value uses then."""
    if decrypt:
        database.write(lambda c: write_proofs(c, seal, is_fully_encrypted=False), durable=True)
    total, done, changed = _count_rows(database), 0, 0
    for name in sealed_columns():
        last_key: tuple[Any, ...] | None = None
        while rows := _read_page(database, name, last_key):
            changed += database.write(partial(_reencrypt, seal=seal, name=name, rows=rows, decrypt=decrypt))
            last_key = tuple(getattr(rows[-1], key.name) for key in raw_table(name).primary_key)
            done += len(rows)
            if progress is not None:
                progress(min(done, total), total)
    with database.reading() as transaction:
        counts_by_key = count_values_by_key(transaction)

    def finish(transaction: Writing) -> None:
        current_key = None if decrypt else seal.keyring.current
        for key_name in registered_proofs(transaction):
            if key_name != current_key and not counts_by_key.get(key_name):
                unregister_key(transaction, key_name)
        if current_key is not None and "" not in counts_by_key:
            write_proofs(transaction, seal, is_fully_encrypted=True)
        delete_words(transaction)  # the next search adds those that may be stored now
        record_event(transaction, "keys.rotated", user_id=user_id, key=current_key, values=changed)

    database.write(finish, durable=True)
    return Rotated(changed=changed, keys=counts_by_key)


def _count_rows(database: Database) -> int:
    with database.reading() as transaction:
        tables = map(raw_table, sealed_columns())
        queries = (select(func.count()).select_from(one).where(*encrypted_rows(one)) for one in tables)
        return sum(int(transaction.execute(query).scalar_one()) for query in queries)


def _read_page(database: Database, name: str, last_key: tuple[Any, ...] | None) -> Sequence[Any]:
    table = raw_table(name)
    keys = list(table.primary_key)
    query = select(*keys, *(table.c[column] for column in sealed_columns()[name])).where(*encrypted_rows(table))
    if last_key is not None:
        values = (literal(value, key.type) for key, value in zip(keys, last_key, strict=True))
        query = query.where(tuple_(*keys) > tuple_(*values))
    with database.reading() as transaction:
        return transaction.execute(query.order_by(*keys).limit(BATCH_ROWS)).all()


def _reencrypt(transaction: Writing, seal: Seal, name: str, rows: Sequence[Any], decrypt: bool) -> int:
    return sum(_reencrypt_row(transaction, seal, name, row, decrypt) for row in rows)


def _reencrypt_row(transaction: Writing, seal: Seal, name: str, row: Any, decrypt: bool) -> int:
    """Re-encrypt the values of a row that need it, unless they have changed since; return the number of changes."""
    table, changed = raw_table(name), 0
    key_text = row_key(METADATA.tables[name], row._mapping)
    row_condition = and_(*(key == getattr(row, key.name) for key in table.primary_key))
    new_seal, key_name = (None, "") if decrypt else (seal, seal.keyring.current)
    for column in sealed_columns()[name]:
        stored, place = getattr(row, column), f"{name}.{column}"
        if stored is None or key_name_of(stored) == key_name:
            continue
        new_value: bytes | str
        if isinstance(stored, str):
            new_value = encode_text(new_seal, place, decode_text(seal, place, stored, key_text), key_text)
        else:
            value = decode_value(seal, place, bytes(stored), key_text)
            new_value = bytes(encode_value(new_seal, place, value, key_text))
        condition = and_(row_condition, table.c[column] == stored)
        changed += transaction.execute(update(table).where(condition).values({column: new_value})).rowcount
    return changed
