"""Databases of earlier schemas are upgraded with all that is in them; `frozen/` has one of each, as it was then."""

import sqlite3
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from scripted import World, call, scripted, tool_node_graph
from sqlalchemy import MetaData, create_engine, insert, select, text

import agentgit
from agentgit.errors import SchemaMismatch
from agentgit.store import schema
from agentgit.store.database import Database
from conftest import POSTGRES

FROZEN = sorted((Path(__file__).parent / "frozen").glob("*.sql"))


@pytest.fixture
def empty_server(postgres_url):
    """A PostgreSQL database without tables, dropped at the end."""
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    name = f"agentgit_test_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    yield postgres_url.set(database=name)
    with server.connect() as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    server.dispose()


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def frozen(request, tmp_path):
    """The path of a SQLite file of an earlier schema, and which schema that is."""
    path = tmp_path / "frozen.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(request.param.read_text())
    return path, request.param.stem


def on_a_server(path, revision, url, monkeypatch):
    """Bring all rows of a SQLite file to a PostgreSQL database of the same schema."""
    with closing(Database(url)) as target, closing(Database(path)) as source:
        with monkeypatch.context() as then:
            then.setattr(schema, "REVISION", revision)
            schema.upgrade(target)
        tables = MetaData()
        with source.reading() as connection:
            tables.reflect(connection)
            rows = {table: connection.execute(select(table)).mappings().all() for table in tables.sorted_tables}

        def copy(connection):
            for table, found in rows.items():
                if found and table.name != schema.VERSION_TABLE:
                    connection.execute(insert(table), [dict(row) for row in found])

        target.write(copy)


def goes_on(where):
    """Look at a session that was recorded long ago, and go on with it."""
    world = World()
    world.items.append("a chair")
    replies = (call("add", "call-1", item="a chair"), "ordered", call("add", "call-3", item="a sofa"), "a sofa then")
    with agentgit.open(where) as repo:
        points = repo.checkpoints("support-42", "main")
        assert [len(point.conversation_history) for point in points] == [0, 4, 4, 4, 8]
        assert [m["content"] for m in points[-1].conversation_history][-4::3] == ["and a table", "ordered too"]
        agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "support-42", effects=world.effects())
        assert agent.run("rather a sofa") == "a sofa then"
        assert [c.args["item"] for c in agent.tool_track()] == ["a chair", "a sofa"]
        agent.undo()
    assert world.items == ["a chair"]


def test_d6_a_file_of_every_schema_is_upgraded(frozen):
    """D6: a SQLite file of an earlier release opens as it is, with its sessions, and goes on."""
    path, revision = frozen
    with closing(Database(path)) as database:
        assert schema.current(database) == revision
    goes_on(path)
    with closing(Database(path)) as database:
        assert schema.current(database) == schema.REVISION


def test_d6_a_server_of_every_schema_is_upgraded(frozen, empty_server, monkeypatch):
    """D6: a PostgreSQL database of an earlier release is refused with the command, and after it works as before."""
    path, revision = frozen
    on_a_server(path, revision, empty_server, monkeypatch)
    with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
        agentgit.open(empty_server)
    with closing(Database(empty_server)) as database:
        assert schema.upgrade(database) == schema.REVISION
    goes_on(empty_server)
