"""Migrations upgrade a database with all its rows, downgrade it, run as SQL by hand, and run concurrently."""

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import backend
import pytest
from sqlalchemy import MetaData, insert, select, text

import agentgit
from agentgit.errors import InvalidInput, NotAllowed, SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import migrations, schema
from agentgit.store.schema.introspection import FTS_TABLE, build_shape, list_differences, read_shape


def plain(url):
    """Return the URL in the form that PostgreSQL's own programs take."""
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def rows_of(database, columns=None):
    """Return all rows of all tables; `columns` limits the columns by table."""
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
            if not table.name.startswith(FTS_TABLE) and table.name != migrations.VERSION_TABLE
            if columns is None or table.name in columns
        }


def test_a_sqlite_file_of_an_earlier_schema_is_upgraded_on_open(tmp_path, second):
    """Opening a SQLite file of an earlier schema upgrades it and keeps every row."""
    path = tmp_path / "agentgit.db"
    with closing(Database(path)) as database:
        before = filled(database, "0001")
        with pytest.raises(
            SchemaMismatch, match=rf"has schema 0001 and this library needs {second}\. Run: .*db upgrade"
        ):
            schema.check(database)
        with agentgit.open(path) as repo:
            assert [one.session_name for one in repo.sessions()] == ["here"]
        assert schema.current_revision(database) == second
        assert_kept(database, before)


@pytest.mark.long
def test_a_postgresql_database_is_upgraded_only_on_command(empty_server, second):
    """A PostgreSQL database of an earlier schema is refused with the command to run, which keeps every row."""
    with closing(Database(empty_server)) as database:
        before = filled(database, "0001")
        with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
            schema.prepare(database)
        assert schema.upgrade(database) == second
        schema.check(database, deep=True)
        assert_kept(database, before)


def filled(database, revision):
    """Create the tables of a schema, insert a session and all that belongs to it, and return the rows."""
    with agentgit.open(":memory:") as repo:
        repo.session("here", create=True)
        found = rows_of(backend.database(repo))
    schema.upgrade(database, revision)

    def put(connection):
        for table in tables_of(connection):
            if rows := found[table.name]:
                connection.execute(insert(table), [{c.name: row[c.name] for c in table.c} for row in rows])

    database.write(put)
    return rows_of(database)


def assert_kept(database, before):
    """Assert that every value is unchanged, and that the second schema's migration has changed every session."""
    columns = {name: set(rows[0]) for name, rows in before.items() if rows}
    after = rows_of(database, columns)
    found = {name: sorted(map(repr, rows)) for name, rows in after.items()}
    assert found == {name: sorted(map(repr, before[name])) for name in columns}
    assert [row["color"] for row in rows_of(database)["external_session"]] == ["red"]


@pytest.mark.long
def test_each_migration_can_be_downgraded_and_upgraded_again(empty, second):
    """Each downgrade restores the schema before it, and the database can be upgraded again."""
    with closing(Database(empty)) as database:
        filled(database, second)
        with pytest.raises(NotAllowed, match=r"1 row of external_session.*--yes"):
            schema.downgrade(database, "base")
        assert schema.current_revision(database) == second
        for revision in [*migrations.revisions()[-2::-1], "base"]:
            schema.downgrade(database, revision, allow_data_loss=True)
            assert database.write(lambda c, at=revision: list_differences(read_shape(c), build_shape(c, at))) == []
        assert schema.current_revision(database) is None
        with pytest.raises(SchemaMismatch, match="no agentgit tables"):
            schema.downgrade(database, "base")
        assert schema.upgrade(database) == second
        schema.check(database, deep=True)


def test_a_downgrade_to_base_leaves_only_the_version_table(empty_server):
    """A downgrade to `base` leaves no table, function or trigger of ours except the version table."""
    left = text(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relkind <> 'i' "
        "UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('public')"
    )
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        assert schema.downgrade(database, "base") == []
        with database.reading() as connection:
            assert connection.execute(left).scalars().all() == [migrations.VERSION_TABLE]


def tables_of(connection):
    """Return the tables in an order in which rows can be inserted."""
    tables = MetaData()
    tables.reflect(connection)
    return [one for one in tables.sorted_tables if not one.name.startswith((FTS_TABLE, migrations.VERSION_TABLE))]


@pytest.mark.long
def test_a_downgrade_needs_consent_only_if_data_is_lost(empty, second):
    """A downgrade needs consent only if data is lost, which it names, and an impossible target is refused."""
    with closing(Database(empty)) as database:
        filled(database, "0001")
        schema.upgrade(database)
        # The weights have their default value, so only the colors are lost.
        with pytest.raises(NotAllowed, match=r"loses 1 row with a color in external_session\. Back"):
            schema.downgrade(database, "0001")
        database.write(lambda c: c.exec_driver_sql("UPDATE external_session SET color = NULL"))
        assert schema.downgrade(database, "0001") == []
        with pytest.raises(InvalidInput, match=f"older than {second}"):
            schema.downgrade(database, second)
        with pytest.raises(InvalidInput, match="no schema '7'"):
            schema.downgrade(database, "7")
        schema.upgrade(database)
        with pytest.raises(InvalidInput, match="agentgit db downgrade 0001"):
            schema.upgrade(database, "0001")


def test_a_deep_check_finds_manual_schema_changes(empty):
    """A deep check names a column, trigger or table that differs from the migrations and accepts an extra index."""
    with closing(Database(empty)) as database:
        schema.upgrade(database)
        database.write(lambda c: c.exec_driver_sql("CREATE INDEX ix_mine ON checkpoint (tenant_id, kind)"))
        schema.check(database, deep=True)
        drop = (
            "DROP TRIGGER audit_event_no_update"
            if database.is_sqlite
            else "DROP TRIGGER audit_event_stays ON audit_event"
        )
        for change in (drop, "DROP TABLE tag", "ALTER TABLE operation ADD COLUMN color TEXT"):
            database.write(lambda c, change=change: c.exec_driver_sql(change))
        schema.check(database)
        with pytest.raises(SchemaMismatch, match=r"tag is missing; audit_event: .*trigger.*missing.*color is unexp"):
            schema.check(database, deep=True)


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("ALTER POLICY agentgit_wall ON tag USING (true)", "tag: policy agentgit_wall was modified"),
        (
            "CREATE OR REPLACE FUNCTION agentgit_sees_session(bigint, bigint) RETURNS boolean LANGUAGE sql "
            "AS 'SELECT true'",
            "tag: function agentgit_sees_session was modified",
        ),
        ("ALTER TABLE audit_event DISABLE TRIGGER USER", "audit_event_stays is off, not on"),
        (
            "CREATE OR REPLACE FUNCTION agentgit_audit_event_stays() RETURNS trigger LANGUAGE plpgsql "
            "AS 'BEGIN RETURN NEW; END'",
            "audit_event: function agentgit_audit_event_stays was modified",
        ),
        (
            "DROP TRIGGER audit_event_stays ON audit_event; CREATE TRIGGER audit_event_stays BEFORE UPDATE ON "
            "audit_event FOR EACH ROW WHEN (false) EXECUTE FUNCTION agentgit_audit_event_stays()",
            "audit_event: definition of trigger audit_event_stays was modified",
        ),
        ("ALTER TABLE audit_event ENABLE REPLICA TRIGGER audit_event_stays", "audit_event_stays is off"),
        (
            "ALTER FUNCTION agentgit_sees_session(bigint, bigint) SECURITY DEFINER",
            "tag: function agentgit_sees_session was modified",
        ),
        (
            "CREATE RULE no_trail AS ON INSERT TO audit_event DO INSTEAD NOTHING",
            "audit_event: rule no_trail is unexpected",
        ),
    ],
)
def test_a_deep_check_finds_an_ineffective_policy_or_trigger(empty_server, change, told):
    """A deep check names a policy, a trigger or its function that still exists but no longer protects anything."""
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        schema.check(database, deep=True)
        database.write(lambda c: c.exec_driver_sql(change))
        with pytest.raises(SchemaMismatch, match=told):
            schema.check(database, deep=True)


def test_a_deep_check_finds_an_ineffective_trigger_in_sqlite(tmp_path):
    """On SQLite, too, a deep check names a trigger that still exists but no longer protects anything."""
    with closing(Database(tmp_path / "agentgit.db")) as database:
        schema.upgrade(database)
        schema.check(database, deep=True)
        for change in (
            "DROP TRIGGER audit_event_no_update",
            "CREATE TRIGGER audit_event_no_update BEFORE UPDATE ON audit_event BEGIN SELECT 1; END",
        ):
            database.write(lambda c, change=change: c.exec_driver_sql(change))
        with pytest.raises(SchemaMismatch, match="definition of trigger audit_event_no_update was modified"):
            schema.check(database, deep=True)


@pytest.mark.long
def test_the_upgrade_sql_can_be_run_by_an_administrator(empty, second):
    """The SQL of an upgrade has the same result as the upgrade, and `stamp` accepts only tables of that schema."""
    with closing(Database(empty)) as database:
        kind = database.engine.dialect.name
        for start, end in ((None, "0001"), ("0001", None)):
            by_hand(empty, schema.script(kind, start, end))
            assert schema.current_revision(database) == (end or schema.REVISION)
        schema.check(database, deep=True)
        database.write(lambda c: c.exec_driver_sql(f"DROP TABLE {migrations.VERSION_TABLE}"))
        with pytest.raises(SchemaMismatch, match="names of agentgit"):
            schema.upgrade(database)
        unexpected = "do not match schema 0001: external_session: column color is unexpected"
        with pytest.raises(SchemaMismatch, match=unexpected):
            schema.stamp(database, "0001")
        schema.stamp(database, schema.REVISION)
        schema.check(database, deep=True)


def by_hand(where, script):
    """Run SQL without agentgit, as an administrator does."""
    if isinstance(where, Path):
        with closing(sqlite3.connect(where)) as connection:
            connection.executescript(script)
        return
    command = ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", plain(where)]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True)  # noqa: S603  # our own command


@pytest.mark.parametrize("wanted", [("mysql", None, None), ("sqlite", "0001", "0001"), ("sqlite", "9000", "0001")])
def test_a_script_without_an_upgrade_path_is_refused(wanted, second):
    """Bad input: a script for an unknown kind of database, or for schemas without a way up, is refused."""
    with pytest.raises(InvalidInput):
        schema.script(*wanted)


@pytest.mark.long
def test_threads_and_processes_can_upgrade_one_database_at_once(empty):
    """Twelve threads and three processes upgrade one empty database at once, and all of them succeed."""
    where = str(empty) if isinstance(empty, Path) else empty.render_as_string(hide_password=False)
    code = (
        "import sys; from agentgit.store.schema import schema; from agentgit.store.database import Database; "
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
