"""The contents of all tables of a database, as text."""

import backend
from sqlalchemy import select

from agentgit.store.sql.tables import METADATA


def dumped(repo):
    """Return the contents of all tables as one text, without the word index of FTS5."""
    found = []
    with backend.reading(repo) as connection:
        for table in METADATA.sorted_tables:
            found += [f"{table.name}: {tuple(row)}" for row in connection.execute(select(table))]
    return "\n".join(found)
