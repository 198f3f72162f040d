"""The dictionaries of a tenant. A value that was packed with one is nothing without it.

So a collection deletes one only if nothing is packed with it, and whoever packs makes sure that it is still there, in
the transaction that stores the value.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from sqlalchemy import Connection, Select, bindparam, delete, insert, select

from agentgit.errors import Corrupt
from agentgit.store.compression import Dictionary
from agentgit.store.encryption import Clear
from agentgit.store.prepared import Prepared
from agentgit.store.tables import DictionaryRow

_table = DictionaryRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table


class Dictionaries:
    """The dictionaries of one tenant, each read once.

    Args:
        tenant_id: whose.
    """

    def __init__(self, tenant_id: int) -> None:
        self._tenant_id = tenant_id
        self._known: dict[int, Dictionary] = {}
        self._newest: Dictionary | None = None
        self._has_looked = False

    def newest(self, connection: Connection) -> Dictionary | None:
        """Give the dictionary to pack new values with, if there is one; it stays until this transaction ends.

        It is looked for once, and again when it was collected, because somebody has trained a newer one.

        Raises:
            Corrupt: it does not match its hash.
        """
        if self._newest is not None and not self._is_there(connection, self._newest.id):
            self._known.pop(self._newest.id, None)
            self._has_looked = False
        if not self._has_looked:
            query = self._query().order_by(_table.c.created_at.desc(), _table.c.id.desc()).limit(1)
            row = connection.execute(query).first()
            self._newest = self._checked(row) if row is not None else None
            self._has_looked = True
        return self._newest

    def _is_there(self, connection: Connection, id: int) -> bool:
        return _HELD.first(connection, {"tenant": self._tenant_id, "id": id}) is not None

    def ids(self, connection: Connection) -> list[int]:
        """List them, oldest first."""
        query = select(_table.c.id).where(_table.c.tenant_id == self._tenant_id)
        return list(connection.execute(query.order_by(_table.c.created_at, _table.c.id)).scalars())

    def delete(self, connection: Connection, ids: Sequence[int]) -> None:
        """Delete dictionaries that nothing is packed with."""
        if ids:
            connection.execute(delete(_table).where(_table.c.tenant_id == self._tenant_id, _table.c.id.in_(ids)))

    def find(self, connection: Connection, id: int) -> Dictionary:
        """Give the dictionary that a value was packed with.

        Raises:
            ValueError: there is none with that id.
            Corrupt: it does not match its hash.
        """
        if id not in self._known:
            row = connection.execute(self._query().where(_table.c.id == id)).first()
            if row is None:
                raise ValueError(f"its dictionary {id} is missing")
            self._checked(row)
        return self._known[id]

    def _query(self) -> Select[tuple[int, bytes, bytes]]:
        return select(_table.c.id, _table.c.hash, _table.c.data).where(_table.c.tenant_id == self._tenant_id)

    def _checked(self, row: Any) -> Dictionary:
        id, hash, data = row
        is_clear = isinstance(data, Clear)
        what = "is in clear, where everything is encrypted" if is_clear else "does not match its hash"
        if is_clear or sha256(data).digest() != hash or (found := Dictionary(data)).id != id:
            raise Corrupt(
                f"The row {id} in table dictionary {what}. Run: agentgit fsck; then restore the database from a copy.",
                row=f"dictionary {id}",
            )
        self._known[id] = found
        return found

    def add(self, connection: Connection, made: Dictionary) -> None:
        """Store a dictionary that may be stored already; `use` it when that is committed."""
        key = sha256(made.data).digest()
        row = connection.execute(self._query().where(_table.c.id == made.id)).first()
        if row is None or row.hash != key:
            values = {"tenant_id": self._tenant_id, "id": made.id, "hash": key, "data": made.data}
            connection.execute(insert(_table), {**values, "created_at": datetime.now(UTC)})

    def use(self, made: Dictionary) -> None:
        """Pack new values with this dictionary from now on."""
        self._known[made.id] = self._newest = made
        self._has_looked = True


# The lock is what a collection waits for: a value that is about to be packed with it is not to be left without it.
_HELD = Prepared(
    select(_table.c.id)
    .where(_table.c.tenant_id == bindparam("tenant"), _table.c.id == bindparam("id"))
    .with_for_update(read=True, key_share=True)
)
