"""The size of a PostgreSQL database: the bytes of each table for a turn, and an estimate for many checkpoints.

    python -m bench.multiuser.capacity

The bytes are measured between two sizes, so that the size of an empty table does not count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

import psycopg
from sqlalchemy import URL

import agentgit
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.sql.tables import METADATA
from bench import postgres
from bench.graphs import ORDER, build, text

FIRST, TURNS = 10, 60
"""The turns of a session before the first measurement, and before the second."""

SESSIONS = 2
"""The number of sessions."""

SIZES = "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE relname = ANY(%s)"


class Kind(NamedTuple):
    """A kind of session.

    Args:
        name: The column heading in the table.
        asked: The number of characters in a message of the user.
        answered: The number of characters in a reply of the model.
        calls: True if each turn calls a tool.
    """

    name: str
    asked: int
    answered: int
    calls: bool


KINDS = (
    Kind("chat: 100 characters, and 400 back", 100, 400, False),
    Kind("work: the same, and a tool call", 100, 400, True),
    Kind("documents: 2,000 characters, and 4,000 back", 2000, 4000, False),
)


class Sizes(NamedTuple):
    """The sizes of one turn.

    Args:
        tables: The bytes of each table.
        indexes: The bytes of its indexes.
        checkpoints: The number of checkpoints.
    """

    tables: Mapping[str, float]
    indexes: Mapping[str, float]
    checkpoints: float

    @property
    def each(self) -> float:
        """The bytes for each checkpoint of a branch, with everything that belongs to it."""
        return (sum(self.tables.values()) + sum(self.indexes.values())) / self.checkpoints


def measure(kind: Kind) -> Sizes:
    """Run sessions of a kind in a new database, and return the sizes of a turn."""
    with postgres.scratch() as url:
        with closing(Database(url)) as database:
            schema.upgrade(database)
        with agentgit.open(url) as repo:
            graph = build(kind.answered)
            agents = [repo.wrap(graph, f"s{n}", effects={"order": "read_only"}) for n in range(SESSIONS)]
            turns = [(one, n) for n in range(TURNS) for one in agents]
            _run(turns[: FIRST * SESSIONS], kind)
            before = _sizes(url)
            _run(turns[FIRST * SESSIONS :], kind)
            after = _sizes(url)
    count = (TURNS - FIRST) * SESSIONS
    tables, indexes, rows = ({name: (after[n][name] - before[n][name]) / count for name in after[n]} for n in range(3))
    return Sizes(tables, indexes, rows["checkpoint"])


def _run(turns: Sequence[tuple[agentgit.RollbackAgent, int]], kind: Kind) -> None:
    for agent, n in turns:
        said = text(hash((agent.session.id, n)), kind.asked)
        agent.run(f"{ORDER} {said}" if kind.calls else said)


def _sizes(url: URL) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """Return the bytes of each table, the bytes of its indexes, and the number of checkpoints."""
    with psycopg.connect(postgres.plain(url), autocommit=True) as connection:
        connection.execute("VACUUM")
        found = connection.execute(SIZES, [list(METADATA.tables)]).fetchall()
        rows = connection.execute("SELECT count(*) FROM checkpoint").fetchone()
    tables, indexes = ({name: row[n] for name, *row in found} for n in range(2))
    return tables, indexes, {**dict.fromkeys(tables, 0), "checkpoint": rows[0] if rows else 0}


def page(found: Mapping[str, Sizes]) -> str:
    """Return the table of docs/scale.md as Markdown."""
    lines = ["| bytes for a turn | " + " | ".join(found) + " |", "|---|" + "---|" * len(found)]
    for name in METADATA.tables:
        if any(one.tables[name] + one.indexes[name] > 1 for one in found.values()):
            cells = (f"{one.tables[name]:,.0f} + {one.indexes[name]:,.0f}" for one in found.values())
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    lines.append("| checkpoints | " + " | ".join(f"{one.checkpoints:.1f}" for one in found.values()) + " |")
    lines.append("| **for a checkpoint** | " + " | ".join(f"**{one.each:,.0f}**" for one in found.values()) + " |")
    for power in (6, 7, 8, 9):
        cells = (f"{one.each * 10**power / 2**30:,.0f} GiB" for one in found.values())
        lines.append(f"| 10^{power} checkpoints | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(page({kind.name: measure(kind) for kind in KINDS}))
