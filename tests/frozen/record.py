"""Records the databases of this folder: run with the code of a release on the path, it gives what that release writes.

    PYTHONPATH=that-release:that-release/tests python tests/frozen/record.py postgresql://…/empty > 0007.postgresql.sql

What is in them is looked at by tests/test_upgrade.py, so each one holds the same: a session with two turns, a tag, a
rollback that took a table back and restored a file, words to search for, and from 0007 on a webhook and a trail.
"""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from scripted import World, call, scripted, tool_node_graph

import agentgit
from agentgit import Workspace
from agentgit.store import schema
from agentgit.store.compression import train
from agentgit.store.database import Database, parse_url

REPLIES = (call("add", "call-1", item="a chair"), "ordered", call("add", "call-2", item="a table"), "ordered too")

SAMPLES = [
    f'{{"type":"ai","data":{{"content":"ordered {n}","tool_calls":[{{"name":"add","id":"call-{n}"}}]}}}}'.encode()
    for n in range(200)
]


def fill(where: str) -> None:
    """Write the session, with the methods that every release since 0006 has."""
    world, files = World(), Path("files")
    files.mkdir()
    (files / "list.txt").write_text("chair\n")
    with closing(Database(where)) as database:
        schema.upgrade(database)
    with agentgit.open(where) as repo:
        dictionaries, made = repo.store.graphs.content.blobs.dictionaries, train(SAMPLES, 1024)
        repo.store.database.write(lambda connection: dictionaries.add(connection, made))
        dictionaries.use(made)
        if hasattr(repo, "webhooks"):
            repo.webhooks.add("https://example.org/hook", "rollback.*", secret="not a secret at all, really")  # noqa: S106
        graph = tool_node_graph(scripted(*REPLIES), world.tools())
        agent = repo.wrap(graph, "support-42", effects=world.effects(), workspace=Workspace(files, "store"))
        agent.run("order a chair")
        before = agent.checkpoint("before payment", description="one chair")
        (files / "list.txt").write_text("chair\ntable\n")
        agent.run("and a table")
        repo.tag(before, "v1")
        list(repo.search("chair"))
        agent.rollback(before, name="retry", force=True)


def dump(where: str) -> str:
    """Give all of it as SQL."""
    url = parse_url(where)
    if url.get_backend_name() == "sqlite":
        with closing(sqlite3.connect(str(url.database))) as connection:
            return "".join(f"{line};\n" for line in statements(connection))
    place = url.set(drivername="postgresql").render_as_string(hide_password=False)
    command = ["pg_dump", "--inserts", "--no-owner", "--no-privileges", place]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout  # noqa: S603  # our own command


def statements(connection: sqlite3.Connection) -> Iterator[str]:
    """Give a file's tables, rows, indexes and triggers; `iterdump` cannot read the index of FTS5."""
    made = connection.execute(
        "SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY rowid"
    ).fetchall()
    yield "PRAGMA foreign_keys=OFF; BEGIN"
    for name, sql in [(name, sql) for kind, name, sql in made if kind == "table"]:
        if not name.startswith("search_words_"):  # FTS5 makes these
            yield sql
    for name in [name for kind, name, _ in made if kind == "table" and name != "search_words"]:
        columns = [row[1] for row in connection.execute(f"PRAGMA table_info({name})")]
        quoted = " || ',' || ".join(f'quote("{column}")' for column in columns)
        for (values,) in connection.execute(f'SELECT {quoted} FROM "{name}"'):  # noqa: S608  # our own names
            yield f'INSERT OR REPLACE INTO "{name}" VALUES ({values})'  # noqa: S608  # as above
    yield from (sql for kind, _, sql in made if kind != "table")
    yield "COMMIT"


if __name__ == "__main__":
    os.chdir(tempfile.mkdtemp())
    fill(sys.argv[1])
    sys.stdout.write(dump(sys.argv[1]))
