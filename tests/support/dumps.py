"""Everything that the tables of a database hold, as text."""

import backend
from sqlalchemy import select

from agentgit.store.sql.tables import METADATA


def dumped(repo):
    """Give everything that all tables hold, as one text; the words of messages that FTS5 keeps apart are not in it."""
    found = []
    with backend.reading(repo) as connection:
        for table in METADATA.sorted_tables:
            found += [f"{table.name}: {tuple(row)}" for row in connection.execute(select(table))]
    return "\n".join(found)
