"""How large a database gets: bytes of each table for a turn on PostgreSQL, and what follows for many checkpoints.

    python -m bench.multiuser.capacity

It is measured between two sizes, so that what an empty table takes is not counted with the first turns.
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
"""Turns of a session before the first look, and until the second."""

SESSIONS = 2
"""So many sessions have those turns."""

SIZES = "SELECT relname, pg_table_size(oid), pg_indexes_size(oid) FROM pg_class WHERE relname = ANY(%s)"


class Kind(NamedTuple):
    """A kind of session.

    Args:
        name: how the table calls it.
        asked: characters of what a user says in a turn.
        answered: characters of what the model says.
        calls: True if a tool is called in each turn.
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
    """What one turn takes.

    Args:
        tables: bytes of each table.
        indexes: bytes of its indexes.
        checkpoints: how many checkpoints it makes.
    """

    tables: Mapping[str, float]
    indexes: Mapping[str, float]
    checkpoints: float

    @property
    def each(self) -> float:
        """Bytes for each checkpoint of a branch, with all that belongs to it."""
        return (sum(self.tables.values()) + sum(self.indexes.values())) / self.checkpoints


def measure(kind: Kind) -> Sizes:
    """Run sessions of a kind in a database of their own."""
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
    """Give the bytes of each table, of its indexes, and of the rows of checkpoints."""
    with psycopg.connect(postgres.plain(url), autocommit=True) as connection:
        connection.execute("VACUUM")
        found = connection.execute(SIZES, [list(METADATA.tables)]).fetchall()
        rows = connection.execute("SELECT count(*) FROM checkpoint").fetchone()
    tables, indexes = ({name: row[n] for name, *row in found} for n in range(2))
    return tables, indexes, {**dict.fromkeys(tables, 0), "checkpoint": rows[0] if rows else 0}


def page(found: Mapping[str, Sizes]) -> str:
    """Write the tables of docs/scale.md."""
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
