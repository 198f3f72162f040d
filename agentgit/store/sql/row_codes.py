"""Message authentication codes of rows, which reveal changes to a database with keys by somebody without a key.

A code covers the columns of its row as they are read, including encrypted ones. So no value can be swapped with the
value of another row, emptied, or restored alone. A row is verified before it is changed, so that a tampered row never
gets a valid code.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, bindparam, insert, literal, select, update
from sqlalchemy.sql import ClauseElement

from agentgit.errors import Corrupt
from agentgit.store.sql.compiled_statement import CompiledStatement, Converter, PendingResult
from agentgit.store.sql.encryption import Seal, seal_of
from agentgit.store.sql.tables import METADATA

RowT = TypeVar("RowT")

UNSIGNED_COLUMNS: Mapping[str, frozenset[str]] = {
    "api_key": frozenset({"last_used_at"}),
    "external_session": frozenset({"updated_at", "is_active", "meta"}),
    "internal_session": frozenset({"status", "owner", "lease_until", "epoch", "searched", "meta"}),
    "operation": frozenset({"owner", "lease_until"}),
    "graph_checkpoint": frozenset({"seq"}),
}
"""The columns of each table that a code does not cover, because they change all the time."""


def signed_tables() -> list[Table]:
    """Return the tables whose rows have a code."""
    return [table for table in METADATA.sorted_tables if "mac" in table.c]


def sign_row(connection: Connection, table: Table, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a new row with its code. Without keys, and in tables without a column for it, a row has no code."""
    if "mac" not in table.c:
        return dict(row)
    seal = seal_of(connection)
    return {**row, "mac": code_of_row(seal, table, row) if seal is not None else None}


def insert_rows(connection: Connection, table: Table, *rows: Mapping[str, Any]) -> None:
    """Insert new rows. Without any, do nothing."""
    if rows:  # without rows, the statement would insert a row of defaults
        connection.execute(insert(table), [sign_row(connection, table, row) for row in rows])


def update_rows(connection: Connection, table: Table, *conditions: Any, **values: Any) -> int:
    """Update the rows that meet the conditions, and return their number."""
    seal = seal_of(connection)
    if seal is None:
        return int(connection.execute(update(table).where(*conditions).values(**values)).rowcount)
    query = select(table).where(*conditions).order_by(*table.primary_key).with_for_update(key_share=True)
    rows = connection.execute(query).all()
    for row, mac in [(row, code_of_updated_row(seal, table, row, values)) for row in rows]:
        connection.execute(
            update(table)
            .where(and_(*(key == getattr(row, key.name) for key in table.primary_key)))
            .values(**values, mac=mac)
        )
    return len(rows)


def copy_rows(connection: Connection, table: Table, *conditions: Any, **values: Any) -> None:
    """Copy the rows that meet the conditions."""
    if seal_of(connection) is None:
        expressions = [literal(values[c.name], c.type).label(c.name) if c.name in values else c for c in table.c]
        query = select(*expressions).where(*conditions)
        connection.execute(insert(table).from_select([column.name for column in table.c], query))
        return
    rows = verify_rows(connection, table, connection.execute(select(table).where(*conditions)))
    insert_rows(connection, table, *({**row._asdict(), **values} for row in rows))


class SignedWrite(CompiledStatement):
    """A compiled statement that stores whole rows, each with its code."""

    def __init__(self, statement: ClauseElement | Mapping[str, ClauseElement], table: Table) -> None:
        super().__init__(statement)
        self._table = table

    def _execute(
        self, connection: Connection, rows: Sequence[Mapping[str, Any]], result: PendingResult | None = None
    ) -> None:
        super()._execute(connection, [sign_row(connection, self._table, row) for row in rows], result)


def queue_insert(connection: Connection, table: Table, row: Mapping[str, Any]) -> None:
    """Insert a new row as `insert_rows` does, but with a compiled statement, which is queued on a server."""
    _compiled_insert(table, tuple(row)).run(connection, row)


@cache
def _compiled_insert(table: Table, columns: Sequence[str]) -> SignedWrite:
    names = (*columns, "mac") if "mac" in table.c else columns
    return SignedWrite(insert(table).values({name: bindparam(name) for name in names}), table)


class AuthenticQuery(CompiledStatement):
    """A compiled query for whole rows. It raises `Corrupt` for a row that was changed without the key."""

    def __init__(self, statement: ClauseElement | Mapping[str, ClauseElement], table: Table) -> None:
        super().__init__(statement)
        self._table = table

    def _row_converter(self, connection: Connection) -> Converter:
        convert, seal, table = super()._row_converter(connection), seal_of(connection), self._table
        if seal is None:
            return convert

        def read_verified(driver_row: Any) -> Any:
            row = convert(driver_row)
            if row.tenant_id is not None:
                _require_authentic(seal, table, row)
            return row

        return read_verified


class SignedUpdate:
    """A compiled update of one row, for updates that every turn makes."""

    def __init__(self, table: Table, *columns: str, conditions: Sequence[str] = ()) -> None:
        where = [key == bindparam(f"of_{key.name}") for key in table.primary_key]
        where += [table.c[name] == bindparam(f"if_{name}") for name in conditions]
        statement = update(table).where(*where).values({name: bindparam(f"new_{name}") for name in columns})
        self._table = table
        self._select_for_update = CompiledStatement(select(table).where(*where).with_for_update(key_share=True))
        self._update = CompiledStatement(statement)
        self._signed_update = CompiledStatement(statement.values(mac=bindparam("new_mac")))

    def run(
        self, connection: Connection, key: Mapping[str, Any], conditions: Mapping[str, Any] | None = None, **values: Any
    ) -> bool:
        """Update the row, and return whether it met the conditions. Without conditions, return True."""
        parameters = {f"of_{name}": value for name, value in key.items()}
        parameters |= {f"if_{name}": value for name, value in (conditions or {}).items()}
        new_values = {f"new_{name}": value for name, value in values.items()}
        seal = seal_of(connection)
        if seal is None and conditions is None:
            self._update.run(connection, parameters | new_values)
            return True
        if seal is None:
            return self._update.count(connection, parameters | new_values) == 1
        rows = self._select_for_update.all(connection, parameters)
        for row in rows:
            mac = code_of_updated_row(seal, self._table, row, values)
            self._signed_update.run(connection, parameters | new_values | {"new_mac": mac})
        return bool(rows)


def verify_rows(connection: Connection, table: Table, rows: Iterable[RowT]) -> list[RowT]:
    """Verify the codes of rows, and return the rows as they were read."""
    seal, verified = seal_of(connection), list(rows)
    if seal is not None:
        for row in verified:
            _require_authentic(seal, table, row)
    return verified


def _require_authentic(seal: Seal, table: Table, row: Any) -> None:
    if not is_authentic(seal, table, row):
        name = "/".join(str(getattr(row, key.name)) for key in list(table.primary_key)[1:])
        raise Corrupt(
            f"The row {table.name} {name} was modified without the key of this database. Run: agentgit "
            "fsck, which names all such rows; then restore the database from a backup.",
            row=f"{table.name} {name}",
        )


def columns_to_read(connection: Connection, table: Table, *names: str) -> list[ColumnElement[Any]]:
    """Return these columns for a query; in a database with keys all columns, which `verify_rows` needs."""
    return list(table.c) if seal_of(connection) is not None else [table.c[name] for name in names]


def read_first(connection: Connection, table: Table, query: Select[Any]) -> Row[Any] | None:
    """Read and verify the first row of a query; None if there is none."""
    rows = verify_rows(connection, table, connection.execute(query.limit(1)))
    return rows[0] if rows else None


def is_authentic(seal: Seal, table: Table, row: Any) -> bool:
    """Return whether a row's code matches its contents. A row without one passes if not all must be encrypted."""
    if row.mac is None:
        return not seal.is_fully_encrypted
    # SQLite can store text in a column of bytes.
    return isinstance(row.mac, bytes) and seal.is_code(table.name, _message(table, row._asdict()), row.mac)


def code_of_row(seal: Seal, table: Table, row: Mapping[str, Any]) -> bytes:
    """Return the code of a row, made with the current key."""
    return seal.code(table.name, _message(table, row))


def code_of_updated_row(seal: Seal, table: Table, row: Any, values: Mapping[str, Any]) -> bytes:
    """Return the code that a row has after a change."""
    _require_authentic(seal, table, row)
    return code_of_row(seal, table, {**row._asdict(), **values})


@cache
def _signed_columns(table: Table) -> Sequence[str]:
    return sorted(set(table.c.keys()) - UNSIGNED_COLUMNS.get(table.name, frozenset()) - {"mac"})


def _message(table: Table, row: Mapping[str, Any]) -> bytes:
    """Return the bytes that a code covers. None is left out, so that a table can get another column later."""
    signed_values = [
        (name.encode(), _to_bytes(row[name])) for name in _signed_columns(table) if row.get(name) is not None
    ]
    return b"".join(b"%d:%b%d:%b" % (len(name), name, len(value), value) for name, value in signed_values)


def _to_bytes(value: Any) -> bytes:
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().encode()
    return bytes(value) if isinstance(value, bytes | memoryview) else str(value).encode("utf-8", "surrogatepass")
