"""Key rotation: encrypt stored values with another key, encrypt them for the first time, or decrypt them.

A rotation processes the tables in batches, beside turns and other processes. It replaces a value only if it has not
changed since it was read, so nothing is lost. If it is interrupted, run it again: it skips what is already done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Column, Connection, Table, and_, func, literal, select, tuple_, update

from agentgit.errors import Corrupt, KeyMissing
from agentgit.sessions.reports import Rotated
from agentgit.store.audit.trail import note
from agentgit.store.database import Database
from agentgit.store.records.encryption_keys import forget, registered, write_proofs
from agentgit.store.search.index import forget_words
from agentgit.store.sql import row_codes
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encrypted_columns import counts, key_in, of_tenant, raw, sealed_columns
from agentgit.store.sql.encryption import (
    Seal,
    UnencryptedValue,
    decode_value,
    encode_value,
    text_as_given,
    text_as_stored,
)
from agentgit.store.sql.tables import BLOB

BATCH_ROWS = 500
"""The number of rows in one transaction. It is small, so that other writers do not wait for long."""

Progress = Callable[[int, int], None]


class Rotation:
    """Rotation of the encryption keys of one tenant.

    Args:
        database: The database, opened with the current key and all keys that its values are encrypted with.
        tenant_id: The tenant.
    """

    def __init__(self, database: Database, tenant_id: int) -> None:
        self.database, self.tenant_id = database, tenant_id

    def run(self, seal: Seal, *, off: bool, user_id: int, progress: Progress | None = None) -> Rotated:
        """Encrypt all values with the current key, sign all rows with it, and forget the keys that no value uses then.

        Args:
            seal: The seal, with the current key and all keys that values are encrypted with.
            off: True to decrypt all values and remove the signatures instead.
            user_id: The user who asks for it.
            progress: The function to call with the number of rows done and their total.
        """
        if off:
            self.database.write(lambda c: write_proofs(c, self.tenant_id, seal, is_whole=False), durable=True)
        total, done, changed = self._count(), 0, 0
        for name in sealed_columns():
            last: tuple[Any, ...] | None = None
            while rows := self._page(name, last):
                changed += self.database.write(partial(self._reencrypt_rows, seal, name, rows, off))
                last = _place(list(raw(name).primary_key), rows[-1])
                done += len(rows)
                if progress is not None:
                    progress(min(done, total), total)
        for table in row_codes.tables():
            changed += self._sign(table, seal, off=off)
        left = self.counts()

        def end(connection: Connection) -> None:
            wanted = None if off else seal.keyring.current
            for known in registered(connection, self.tenant_id):
                if known != wanted and not left.get(known):
                    forget(connection, self.tenant_id, known)
            if wanted is not None and "" not in left:
                write_proofs(connection, self.tenant_id, seal, is_whole=True)
            forget_words(connection, self.tenant_id)  # the next search adds those that may be stored now
            note(connection, self.tenant_id, "keys.rotated", user_id=user_id, key=wanted, values=changed)

        self.database.write(end, durable=True)
        return Rotated(changed=changed, keys=left)

    def counts(self) -> dict[str, int]:
        """Count the values by the key that encrypts them. Values in clear are under the empty name."""
        with self.database.reading() as connection:
            return counts(connection, self.tenant_id)

    def damaged(self, connection: Connection, seal: Seal | None) -> Iterator[tuple[str, str]]:
        """Yield each row with a value that cannot be decrypted, and the problem. `blob` is left to `check_values`."""
        for name, columns in sealed_columns().items():
            table = raw(name)
            keys = list(table.primary_key)
            query = select(*keys, *(table.c[column] for column in columns)).where(*of_tenant(table, self.tenant_id))
            # Raw, because damaged cells may hold values that their column cannot.
            for page in CompiledStatement(query).pages(connection, raw=True) if name != BLOB.name else ():
                for row in page:
                    for column, value in zip(columns, row[len(keys) :], strict=True):
                        where = f"{name} {'/'.join(map(str, row[1 : len(keys)]))}"
                        try:
                            _opened(seal, f"{name}.{column}", value)
                        except UnencryptedValue:
                            yield where, f"its {column} is not encrypted, although this database is"
                        except (Corrupt, KeyMissing, TypeError, ValueError, AttributeError):
                            yield where, f"its {column} cannot be decrypted with its key"

    def _sign(self, table: Table, seal: Seal, *, off: bool) -> int:
        """Sign each row of a table with the current key, or remove its code if `off`; return the number of changes."""
        keys, wanted, changed = list(table.primary_key), "" if off else seal.keyring.current, 0

        def page(connection: Connection) -> tuple[int, Any]:
            query = select(table).where(table.c.tenant_id == self.tenant_id, *_after(keys, last))
            rows = connection.execute(query.order_by(*keys).limit(BATCH_ROWS).with_for_update(key_share=True)).all()
            others = [row for row in rows if key_in(row.mac) != wanted]
            for row in others if off else row_codes.authentic(connection, table, others):
                this = and_(*(key == getattr(row, key.name) for key in keys))
                new = None if off else row_codes.code(seal, table, row._asdict())
                connection.execute(update(table).where(this).values(mac=new))
            return len(others), _place(keys, rows[-1]) if rows else None

        last: tuple[Any, ...] | None = None
        while True:
            done, last = self.database.write(page)
            changed += done
            if last is None:
                return changed

    def _count(self) -> int:
        with self.database.reading() as connection:
            counts = (select(func.count()).where(*of_tenant(raw(name), self.tenant_id)) for name in sealed_columns())
            return sum(int(connection.execute(query).scalar_one()) for query in counts)

    def _page(self, name: str, last: tuple[Any, ...] | None) -> Sequence[Any]:
        table = raw(name)
        keys = list(table.primary_key)
        query = select(*keys, *(table.c[column] for column in sealed_columns()[name])).where(
            *of_tenant(table, self.tenant_id)
        )
        with self.database.reading() as connection:
            return connection.execute(query.where(*_after(keys, last)).order_by(*keys).limit(BATCH_ROWS)).all()

    def _reencrypt_rows(self, seal: Seal, name: str, rows: Sequence[Any], off: bool, connection: Connection) -> int:
        return sum(self._reencrypt_row(connection, seal, name, row, off) for row in rows)

    def _reencrypt_row(self, connection: Connection, seal: Seal, name: str, row: Any, off: bool) -> int:
        """Re-encrypt the values of a row that need it, unless they have changed since; return the number of changes."""
        table, changed = raw(name), 0
        this = and_(*(key == getattr(row, key.name) for key in table.primary_key))
        for column in sealed_columns()[name]:
            stored = getattr(row, column)
            wanted = "" if off else seal.keyring.current
            if stored is None or key_in(stored) == wanted:
                continue
            new = _closed(None if off else seal, f"{name}.{column}", _opened(seal, f"{name}.{column}", stored), stored)
            same = and_(this, table.c[column] == stored)
            changed += connection.execute(update(table).where(same).values({column: new})).rowcount
        return changed


def _place(keys: Sequence[Column[Any]], row: Any) -> tuple[Any, ...]:
    return tuple(getattr(row, key.name) for key in keys)


def _after(keys: Sequence[Column[Any]], last: tuple[Any, ...] | None) -> list[Any]:
    """Build the conditions for the rows after `last`, in primary-key order; for all rows if it is None."""
    if last is None:
        return []
    return [tuple_(*keys) > tuple_(*(literal(value, key.type) for key, value in zip(keys, last, strict=True)))]


def _opened(seal: Seal | None, place: str, stored: bytes | str | None) -> bytes:
    """Decrypt a stored value and return its bytes. Values in clear are returned as they are."""
    if stored is None:
        return b""
    if not isinstance(stored, str | bytes | memoryview):
        raise TypeError("neither text nor bytes")
    if isinstance(stored, str):
        return text_as_given(seal, place, stored).encode()
    return decode_value(seal, place, bytes(stored))


def _closed(seal: Seal | None, place: str, value: bytes, stored: bytes | str) -> bytes | str:
    """Encrypt a value for a column of the same type as `stored`. Without a seal, return it in clear."""
    if isinstance(stored, str):
        return text_as_stored(seal, place, value.decode())
    return bytes(encode_value(seal, place, value))
