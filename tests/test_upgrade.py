"""Databases of earlier schemas are upgraded with all that is in them; `frozen/` has one of each, as it was then."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import psycopg
import pytest
from scripted import World, call, scripted, tool_node_graph
from sqlalchemy import MetaData, insert, select

import agentgit
from agentgit.errors import InvalidInput, NotAllowed, SchemaMismatch
from agentgit.store import migrations, schema
from agentgit.store.database import Database
from agentgit.store.shapes import WORDS, differences, shape_at, shape_of

FROZEN = sorted(path for path in (Path(__file__).parent / "frozen").glob("*.sql") if path.stem.isdigit())


@pytest.fixture(params=FROZEN, ids=lambda path: path.stem)
def frozen(request, tmp_path):
    """The path of a SQLite file of an earlier schema, and which schema that is."""
    path = tmp_path / "frozen.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(request.param.read_text())
    return path, request.param.stem


def plain(url):
    """The URL as PostgreSQL's own programs want it."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def on_a_server(path, revision, url):
    """Make a PostgreSQL database of an earlier schema: as it was dumped then, or with the rows of the SQLite file."""
    dumped = FROZEN[0].with_name(f"{revision}.postgresql.sql")
    if dumped.exists():
        with psycopg.connect(plain(url)) as connection:
            connection.execute(dumped.read_text())
        return
    with closing(Database(url)) as target, closing(Database(path)) as source:
        schema.upgrade(target, revision)
        found = rows_of(source)

        def copy(connection):
            tables = MetaData()
            tables.reflect(connection)
            for table in tables.sorted_tables:
                if found.get(table.name):
                    connection.execute(insert(table), found[table.name])

        target.write(copy)


def rows_of(database, columns=None):
    """Read all rows of all tables; `columns` are those to read, by table."""
    tables = MetaData()
    with database.reading() as connection:
        tables.reflect(connection)
        return {
            table.name: [
                dict(row)
                for row in connection.execute(
                    select(*(c for c in table.c if columns is None or c.name in columns[table.name]))
                ).mappings()
            ]
            for table in tables.sorted_tables
            if not table.name.startswith(WORDS) and table.name != migrations.VERSION_TABLE
            if columns is None or table.name in columns
        }


def kept(database, upgraded):
    """Upgrade; tell whether every value of every row is there as it was."""
    before = rows_of(database)
    columns = {name: set(rows[0]) for name, rows in before.items() if rows}
    upgraded()
    after = rows_of(database, columns)
    return all(sorted(map(repr, before[name])) == sorted(map(repr, after[name])) for name in columns)


def goes_on(where, revision):
    """Look at a session that was recorded long ago, and go on with it."""
    world = World()
    world.items.append("a chair")
    replies = (call("add", "call-1", item="a chair"), "ordered", call("add", "call-3", item="a sofa"), "a sofa then")
    with agentgit.open(where) as repo:
        points = repo.checkpoints("support-42", "main")
        assert [len(point.conversation_history) for point in points] == [0, 4, 4, 4, 8]
        assert [m["content"] for m in points[-1].conversation_history][-4::3] == ["and a table", "ordered too"]
        if revision >= "0006":
            assert [tag.name for tag in repo.tags("support-42")] == ["v1"]
            assert len(list(repo.search("chair"))) == 4
            assert [(one.kind, one.status) for one in repo.operations("support-42")] == [("rollback", "done")]
        if revision >= "0007":
            assert (repo.audit_verify().is_sound, repo.audit_verify().events) == (True, 16)
            assert [hook.url for hook in repo.webhooks.list()] == ["https://example.org/hook"]
            assert repo.webhooks.list()[0].pending == 2
        assert repo.fsck(level=3).is_sound
        agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "support-42", effects=world.effects())
        assert agent.run("rather a sofa") == "a sofa then"
        assert [c.args["item"] for c in agent.tool_track()] == ["a chair", "a sofa"]
        agent.undo()
    assert world.items == ["a chair"]


def test_d6_a_file_of_every_schema_is_upgraded(frozen):
    """D6: a SQLite file of an earlier release opens as it is, with every row as it was, and goes on."""
    path, revision = frozen
    with closing(Database(path)) as database:
        assert schema.current(database) == revision
        assert kept(database, lambda: schema.ready(database))
        assert schema.current(database) == schema.REVISION
    goes_on(path, revision)


def test_d6_a_server_of_every_schema_is_upgraded(frozen, empty_server):
    """D6: a PostgreSQL database of an earlier release is refused with the command; after it every row is as it was."""
    path, revision = frozen
    on_a_server(path, revision, empty_server)
    with closing(Database(empty_server)) as database:
        if revision != schema.REVISION:
            with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
                schema.ready(database)
        assert kept(database, lambda: schema.upgrade(database))
        schema.check(database, deep=True)
    goes_on(empty_server, revision)


def test_d5_the_whole_road_down_and_up_again(empty):
    """D5: each migration's way back really gives the schema before it, and the way up is open again."""
    with agentgit.open(":memory:") as repo, closing(Database(empty)) as database:
        repo.ensure_session("here")
        found = rows_of(repo.store.database)
        schema.upgrade(database)
        database.write(
            lambda c: [c.execute(insert(table), found[table.name]) for table in tables_of(c) if found[table.name]]
        )
        with pytest.raises(NotAllowed, match=r"1 row of external_session.*--yes"):
            schema.downgrade(database, "base")
        assert schema.current(database) == schema.REVISION
        for revision in [*migrations.revisions()[-2::-1], "base"]:
            schema.downgrade(database, revision, lose=True)
            assert database.write(lambda c, at=revision: differences(shape_of(c), shape_at(c, at))) == []
        assert schema.current(database) is None
        assert schema.upgrade(database) == schema.REVISION
        schema.check(database, deep=True)


def tables_of(connection):
    """List the tables in an order in which rows can be put into them."""
    tables = MetaData()
    tables.reflect(connection)
    return [one for one in tables.sorted_tables if not one.name.startswith((WORDS, migrations.VERSION_TABLE))]


def test_d5_a_downgrade_that_loses_nothing_needs_no_yes(empty):
    """D5: what is asked for is what would be lost; where nothing is, nothing is asked. What cannot be is refused."""
    with closing(Database(empty)) as database:
        schema.upgrade(database)
        assert schema.downgrade(database, "0004") == []
        for revision in ("0005", "0005"):
            with pytest.raises(InvalidInput, match="older than 0005"):
                schema.downgrade(database, revision)
        with pytest.raises(InvalidInput, match="no schema '17'"):
            schema.downgrade(database, "17")
        with pytest.raises(InvalidInput, match="agentgit db downgrade 0002"):
            schema.upgrade(database, "0002")


def test_d5_a_deep_check_finds_what_was_changed_by_hand(empty):
    """D5: a column, a trigger or a table that differs from what the migrations make is named; an index more is not."""
    with closing(Database(empty)) as database:
        schema.upgrade(database)
        database.write(lambda c: c.exec_driver_sql("CREATE INDEX ix_mine ON checkpoint (tenant_id, kind)"))
        schema.check(database, deep=True)
        drop = (
            "DROP TRIGGER audit_event_no_update"
            if database.is_sqlite
            else "DROP TRIGGER audit_event_stays ON audit_event"
        )
        for change in (drop, "DROP TABLE tag", "ALTER TABLE webhook ADD COLUMN color TEXT"):
            database.write(lambda c, change=change: c.exec_driver_sql(change))
        schema.check(database)
        with pytest.raises(SchemaMismatch, match=r"no table tag; audit_event: .*there is no trigger.*a column color"):
            schema.check(database, deep=True)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER POLICY agentgit_wall ON tag USING (true)", "tag: policy agentgit_wall does something else"),
        (
            "CREATE OR REPLACE FUNCTION agentgit_sees_session(bigint, bigint) RETURNS boolean LANGUAGE sql "
            "AS 'SELECT true'",
            "tag: function agentgit_sees_session does something else",
        ),
        ("ALTER TABLE audit_event DISABLE TRIGGER USER", "audit_event_stays is off, and should be on"),
        (
            "CREATE OR REPLACE FUNCTION agentgit_audit_event_stays() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN RETURN NEW; END'",
            "audit_event: function agentgit_audit_event_stays does something else",
        ),
        (
            "DROP TRIGGER audit_event_stays ON audit_event; CREATE TRIGGER audit_event_stays BEFORE UPDATE ON "
            "audit_event FOR EACH ROW WHEN (false) EXECUTE FUNCTION agentgit_audit_event_stays()",
            "audit_event: definition of trigger audit_event_stays does something else",
        ),
        ("ALTER TABLE audit_event ENABLE REPLICA TRIGGER audit_event_stays", "audit_event_stays is off"),
        (
            "ALTER FUNCTION agentgit_sees_session(bigint, bigint) SECURITY DEFINER",
            "tag: function agentgit_sees_session does something else",
        ),
        (
            "CREATE RULE no_trail AS ON INSERT TO audit_event DO INSTEAD NOTHING",
            "audit_event: there is a rule no_trail",
        ),
    ],
)
def test_d5_a_deep_check_finds_a_wall_that_lets_all_through(empty_server, change, told):
    """D5: a policy, a trigger or a function behind one that is there by name and does nothing more is named."""
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        schema.check(database, deep=True)
        database.write(lambda c: c.exec_driver_sql(change))
        with pytest.raises(SchemaMismatch, match=told):
            schema.check(database, deep=True)


def test_d5_a_deep_check_finds_a_trigger_of_a_file_that_lets_all_through(tmp_path):
    """D5: on SQLite, too, a trigger that is there by name and does nothing more is named."""
    with closing(Database(tmp_path / "agentgit.db")) as database:
        schema.upgrade(database)
        schema.check(database, deep=True)
        for change in (
            "DROP TRIGGER audit_event_no_update",
            "CREATE TRIGGER audit_event_no_update BEFORE UPDATE ON audit_event BEGIN SELECT 1; END",
        ):
            database.write(lambda c, change=change: c.exec_driver_sql(change))
        with pytest.raises(SchemaMismatch, match="definition of trigger audit_event_no_update does something else"):
            schema.check(database, deep=True)


def test_d5_an_administrator_runs_the_sql_by_hand(empty):
    """D5: the SQL of an upgrade gives what the upgrade gives; `stamp` takes only tables that are of that schema."""
    with closing(Database(empty)) as database:
        kind = database.engine.dialect.name
        for start, end in ((None, "0003"), ("0003", None)):
            by_hand(empty, schema.script(kind, start, end))
            assert schema.current(database) == (end or schema.REVISION)
        schema.check(database, deep=True)
        database.write(lambda c: c.exec_driver_sql(f"DROP TABLE {migrations.VERSION_TABLE}"))
        with pytest.raises(SchemaMismatch, match="called as ours"):
            schema.upgrade(database)
        with pytest.raises(SchemaMismatch, match=r"not those of schema 0004.*there is a table audit_event"):
            schema.stamp(database, "0004")
        schema.stamp(database, schema.REVISION)
        schema.check(database, deep=True)


def by_hand(where, script):
    """Run SQL as an administrator does, with the database's own program."""
    if isinstance(where, Path):
        with closing(sqlite3.connect(where)) as connection:
            connection.executescript(script)
        return
    command = ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", plain(where)]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True)  # noqa: S603  # our own command


@pytest.mark.parametrize("wanted", [("mysql", None, None), ("sqlite", "0004", "0004"), ("sqlite", "0005", "0002")])
def test_a_script_of_nothing_is_refused(wanted):
    """Bad input: another kind of database, or no way up."""
    with pytest.raises(InvalidInput):
        schema.script(*wanted)


def test_d5_threads_and_processes_upgrade_one_empty_database_at_once(empty):
    """D5: twelve threads and three processes begin at once on a database without tables; each can use it."""
    where = str(empty) if isinstance(empty, Path) else empty.render_as_string(hide_password=False)
    code = (
        "import sys; from agentgit.store import schema; from agentgit.store.database import Database; "
        "sys.stdin.read(1); print(schema.upgrade(Database(sys.argv[1])))"
    )
    command = [sys.executable, "-c", code, where]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603  # our own
        for _ in range(3)
    ]
    answers = []

    def work():
        with closing(Database(where)) as database:
            answers.append(schema.upgrade(database))

    threads = [threading.Thread(target=work) for _ in range(12)]
    for one in processes:
        one.stdin.write("!")
        one.stdin.flush()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers + [one.communicate()[0].strip() for one in processes] == [schema.REVISION] * 15
    with closing(Database(where)) as database:
        schema.check(database, deep=True)
