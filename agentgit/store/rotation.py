"""Sealing anew what is stored: with another key, for the first time, or not at all any more.

It goes through the tables a batch at a time, beside turns and other processes. Each value is replaced only if it is
still the one that was read, so nothing is lost; broken off, it is run again, and what is done is passed over.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from sqlalchemy import (
    Column,
    Connection,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
    func,
    literal,
    select,
    tuple_,
    update,
)

from agentgit.errors import Corrupt, KeyMissing
from agentgit.sessions.upkeep import Rotated
from agentgit.store.blobs import BLOB, LIST
from agentgit.store.columns import Payload, SealedText
from agentgit.store.database import Database
from agentgit.store.encryption import TEXT_MARK, Seal, as_given, as_stored, key_of, sealed_text, text_as_stored
from agentgit.store.prepared import Prepared
from agentgit.store.tables import METADATA
from agentgit.store.telling.trail import note
from agentgit.store.texts import forget_words
from agentgit.store.unlocking import forget, registered

AT_ONCE = 500
"""How many rows one transaction takes, so that other writers need not wait for long."""

SHOWN = 40
"""So many bytes from the beginning of a sealed value tell its key; in base64 a third more."""

Progress = Callable[[int, int], None]


@cache
def _raw(name: str) -> Table:
    """Give a table whose values come as they are stored."""
    kinds = {Payload: LargeBinary, SealedText: Text}
    columns = [
        Column(c.name, kinds.get(type(c.type), lambda c=c: c.type)(), primary_key=c.primary_key)
        for c in METADATA.tables[name].c
    ]
    return Table(name, MetaData(), *columns)


@cache
def sealed_columns() -> Mapping[str, Sequence[str]]:
    """Name the columns that are sealed, by their tables."""
    found = {
        table.name: [c.name for c in table.c if isinstance(c.type, Payload | SealedText)]
        for table in METADATA.sorted_tables
    }
    return {name: columns for name, columns in found.items() if columns}


class Rotation:
    """Seals the values of one tenant anew.

    Args:
        database: with the keys that its values have, and the current one.
        tenant_id: whose values.
    """

    def __init__(self, database: Database, tenant_id: int) -> None:
        self.database, self.tenant_id = database, tenant_id

    def run(self, seal: Seal, *, off: bool, user_id: int, progress: Progress | None = None) -> Rotated:
        """Seal all that is not sealed with the current key, and forget the keys that nothing is sealed with then.

        Args:
            seal: with the current key, and those that values are sealed with.
            off: True to store all of it in clear.
            user_id: who wants it.
            progress: told how many rows are done, and of how many.
        """
        total, done, changed = self._count(), 0, 0
        for name in sealed_columns():
            last: tuple[Any, ...] | None = None
            while rows := self._page(name, last):
                changed += self.database.write(
                    lambda c, name=name, rows=rows: sum(self._anew(c, seal, name, row, off) for row in rows)  # type: ignore[misc]
                )
                last = tuple(getattr(rows[-1], key.name) for key in _raw(name).primary_key)
                done += len(rows)
                if progress is not None:
                    progress(min(done, total), total)
        left = self.counts()

        def end(connection: Connection) -> None:
            wanted = None if off else seal.keyring.current
            for known in registered(connection, self.tenant_id):
                if known != wanted and not left.get(known):
                    forget(connection, self.tenant_id, known)
            forget_words(connection, self.tenant_id)  # the next search puts in those that may lie there now
            note(connection, self.tenant_id, "keys.rotated", user_id=user_id, key=wanted, values=changed)

        self.database.write(end, durable=True)
        return Rotated(changed=changed, keys=left)

    def counts(self) -> dict[str, int]:
        """Count the values that each key has sealed; those in clear are under the empty name."""
        found: Counter[str] = Counter()
        with self.database.reading() as connection:
            for name, columns in sealed_columns().items():
                table = _raw(name)
                for column in columns:
                    head = func.substr(table.c[column], 1, 2 * SHOWN).label("head")
                    query = select(head).where(*self._of(table), table.c[column].is_not(None))
                    for page in Prepared(query).pages(connection, raw=True):
                        found.update(_key(head) for (head,) in page)
        return dict(sorted(found.items()))

    def damaged(self, connection: Connection, seal: Seal | None) -> Iterator[tuple[str, str]]:
        """Give the rows with a value that does not open, and which; those of the table blob apart, by their hashes."""
        for name, columns in sealed_columns().items():
            table = _raw(name)
            query = select(*table.primary_key, *(table.c[column] for column in columns)).where(*self._of(table))
            for page in Prepared(query).pages(connection) if name != BLOB.name else ():
                for row in page:
                    for column in columns:
                        try:
                            _opened(seal, f"{name}.{column}", getattr(row, column))
                        except (Corrupt, KeyMissing):
                            key = "/".join(str(getattr(row, c.name)) for c in list(table.primary_key)[1:])
                            yield f"{name} {key}", column

    def _of(self, table: Table) -> list[Any]:
        """Say which rows of a table are meant. Lists are hashes, which the database itself follows."""
        mine = [table.c.tenant_id == self.tenant_id]
        return [*mine, table.c.type != LIST] if table.name == BLOB.name else mine

    def _count(self) -> int:
        with self.database.reading() as connection:
            counts = (select(func.count()).where(*self._of(_raw(name))) for name in sealed_columns())
            return sum(int(connection.execute(query).scalar_one()) for query in counts)

    def _page(self, name: str, last: tuple[Any, ...] | None) -> Sequence[Any]:
        table = _raw(name)
        keys = list(table.primary_key)
        query = select(*keys, *(table.c[column] for column in sealed_columns()[name])).where(*self._of(table))
        if last is not None:
            end = tuple_(*(literal(value, key.type) for key, value in zip(keys, last, strict=True)))
            query = query.where(tuple_(*keys) > end)
        with self.database.reading() as connection:
            return connection.execute(query.order_by(*keys).limit(AT_ONCE)).all()

    def _anew(self, connection: Connection, seal: Seal, name: str, row: Any, off: bool) -> int:
        """Seal the values of a row that are not as they should be, if nobody has changed them; tell how many."""
        table, changed = _raw(name), 0
        this = and_(*(key == getattr(row, key.name) for key in table.primary_key))
        for column in sealed_columns()[name]:
            stored = getattr(row, column)
            wanted = "" if off else seal.keyring.current
            if stored is None or _key(stored) == wanted:
                continue
            new = _closed(None if off else seal, f"{name}.{column}", _opened(seal, f"{name}.{column}", stored), stored)
            same = and_(this, table.c[column] == stored)
            changed += connection.execute(update(table).where(same).values({column: new})).rowcount
        return changed


def _key(stored: bytes | str) -> str:
    """Tell which key a stored value has, also from its beginning; the empty text if none."""
    if isinstance(stored, str):
        # Whole groups of four: the beginning of a text may end anywhere.
        rest = len(stored) - (len(stored) - len(TEXT_MARK)) % 4
        stored = sealed_text(stored[:rest])
    return key_of(bytes(stored)) or ""


def _opened(seal: Seal | None, place: str, stored: bytes | str | None) -> bytes:
    """Open a stored value; a plain text gives its bytes."""
    if stored is None:
        return b""
    return as_given(seal, place, sealed_text(stored) if isinstance(stored, str) else bytes(stored))


def _closed(seal: Seal | None, place: str, value: bytes, stored: bytes | str) -> bytes | str:
    """Seal a value anew, in the form that it is stored in."""
    if isinstance(stored, str):
        return text_as_stored(seal, place, value.decode())
    return bytes(as_stored(seal, place, value))
