"""What a database holds after something was lived in it, to be put into others: living it takes far longer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentgit.store.database import Database
from agentgit.store.sql.tables import METADATA

Rows = dict[str, bytes]
"""Per table what PostgreSQL's COPY writes of it; of SQLite the file, under its own name."""


def taken(database: Database) -> Rows:
    """Give all that a database holds."""
    if database.is_sqlite:
        database.shrink()  # the file alone has everything
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
    """Put it into another database, which is empty and which nobody has open."""
    if database.is_sqlite:
        Path(str(database.url.database)).write_bytes(rows["file"])
        return
    with database.engine.begin() as connection:
        connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # as where it comes from
        cursor: Any = connection.connection.cursor()
        for name, data in rows.items():
            with cursor.copy(f'COPY "{name}" FROM STDIN (FORMAT binary)') as copy:
                copy.write(data)
