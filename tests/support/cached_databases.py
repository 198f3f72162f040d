"""Copies of the contents of a database, because a copy takes far less time than repeating the setup."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgit.store.database import Database
from agentgit.store.sql.tables import METADATA

Rows = dict[str, bytes]
"""The output of COPY for each table on PostgreSQL; the database file under the key `file` on SQLite."""


def taken(database: Database) -> Rows:
    if database.is_sqlite:
        database.shrink()  # moves everything into the database file
        return {"file": Path(str(database.url.database)).read_bytes()}
    with database.engine.connect() as connection:
        cursor: Any = connection.connection.cursor()
        found = {}
        for table in METADATA.sorted_tables:
            with cursor.copy(f'COPY "{table.name}" TO STDOUT (FORMAT binary)') as copy:
                found[table.name] = b"".join(map(bytes, copy))
        empty = min(map(len, found.values()))
        return {name: data for name, data in found.items() if len(data) > empty}


def put(database: Database, rows: Rows) -> None:
    """Write the contents into another database, which must be empty and not open."""
    if database.is_sqlite:
        Path(str(database.url.database)).write_bytes(rows["file"])
        return
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # triggers ran in the source
        connection.exec_driver_sql("DELETE FROM blob")  # what writers to threads without a session lock is in the copy
        cursor: Any = connection.connection.cursor()
        for name, data in rows.items():
            with cursor.copy(f'COPY "{name}" FROM STDIN (FORMAT binary)') as copy:
                copy.write(data)
