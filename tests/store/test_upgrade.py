"""Migrations upgrade a database with all its rows, go down and up again, and run concurrently."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext

import backend
import processes
import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import MetaData, delete, insert, select, text

import agentgit
from agentgit.errors import SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.schema.migrations import VERSION_TABLE
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import in_schema, parse_url


def tables_of(connection):
    """Return the tables in an order in which rows can be inserted."""
    tables = MetaData()
    tables.reflect(connection)
    return [tables.tables[one.name] for one in METADATA.sorted_tables if one.name in tables.tables]


def rows_of(database):
    """Return all rows of all tables that have some."""
    with database.reading() as transaction:
        rows = {
            one.name: transaction.execute(select(one)).mappings().all() for one in tables_of(transaction.connection)
        }
    return {name: found for name, found in rows.items() if found}


def test_a_sqlite_file_of_an_earlier_schema_is_upgraded_on_open(tmp_path, second):
    path = tmp_path / "agentgit.db"
    with closing(Database(path)) as database:
        before = filled(database, "0001f")
        with pytest.raises(
            SchemaMismatch, match=rf"has schema 0001f and this library needs {second}\. Run: .*db upgrade"
        ):
            schema.check(database)
        with agentgit.open(path) as repo:
            assert [one.session_name for one in repo.sessions()] == ["here"]
        assert schema.current_revision(database) == second
        assert_kept(database, before)


def test_lost_rows_that_writers_lock_are_found_and_restored(empty_server):
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        database.write(lambda c: c.connection.exec_driver_sql("DELETE FROM blob WHERE external_session_id > -9"))
        with agentgit.open(empty_server) as repo:
            (found,) = repo.maintenance.fsck().findings
            assert (found.row, found.todo) == ("blob", "Run agentgit db upgrade.")
            schema.upgrade(database)
            assert repo.maintenance.fsck(3).findings == ()


def test_a_pooler_that_drops_the_schema_is_noticed(empty_server):
    def connect():
        return psycopg.connect(empty_server.set(drivername="postgresql").render_as_string(hide_password=False))

    for name, is_refused in (("public", False), ('odd "name', True)):
        refusal = pytest.raises(SchemaMismatch, match="A pooler has led to") if is_refused else nullcontext()
        with closing(Database(in_schema(empty_server, name), connect=connect)) as database, refusal:
            schema.require_wanted(database)


def test_a_database_of_another_draft_is_refused_by_name(empty):
    """The first schema changes until its release, and nothing upgrades what it was before."""
    with closing(Database(empty)) as database:
        schema.upgrade(database)
        database.write(lambda c: c.connection.exec_driver_sql("UPDATE agentgit_version SET version_num = '0001'"))
        for attempt in (agentgit.open, lambda _: schema.upgrade(database)):
            with pytest.raises(SchemaMismatch, match=r"another draft of agentgit \(schema 0001\)"):
                attempt(empty)


@pytest.mark.long
def test_a_postgresql_database_is_upgraded_only_on_command(empty_server, second):
    with closing(Database(empty_server)) as database:
        before = filled(database, "0001f")
        with pytest.raises(SchemaMismatch, match="agentgit db upgrade"):
            schema.prepare(database)
        assert schema.upgrade(database) == second
        assert_kept(database, before)


def filled(database, revision):
    """Create the tables of a schema, insert a session and all that belongs to it, and return the rows."""
    with agentgit.open(":memory:") as repo:
        repo.session("here", create=True)
        found = rows_of(backend.database(repo))
    backend.migrate(database, command.upgrade, revision)

    def put(transaction):
        for table in tables_of(transaction.connection):
            if rows := found.get(table.name):
                transaction.execute(delete(table))  # the local owner
                transaction.execute(insert(table), [{c.name: row[c.name] for c in table.c} for row in rows])

    database.write(put)
    return rows_of(database)


def assert_kept(database, before):
    """Assert that every value is unchanged, and that the second schema's migration has changed every session."""
    after = rows_of(database)
    for name, rows in before.items():
        left = [{column: row[column] for column in rows[0]} for row in after[name]]
        assert sorted(map(repr, left)) == sorted(map(repr, map(dict, rows)))
    assert [row["color"] for row in after["external_session"]] == ["red"]


@pytest.mark.long
def test_each_migration_can_be_downgraded_and_upgraded_again(empty, second):
    with closing(Database(empty)) as database:
        filled(database, second)
        backend.migrate(database, command.downgrade, "0001f")
        ignored = ("search_words", "ix_search_text_words")
        options = {"version_table": VERSION_TABLE, "include_name": lambda name, *_: not str(name).startswith(ignored)}
        with database.reading() as transaction:
            assert compare_metadata(MigrationContext.configure(transaction.connection, opts=options), METADATA) == []
        backend.migrate(database, command.downgrade, "base")
        assert schema.current_revision(database) is None
        assert schema.upgrade(database) == second


def test_a_downgrade_to_base_leaves_only_the_version_table(empty_server):
    left = text(
        "SELECT relname FROM pg_class WHERE relnamespace = to_regnamespace('public') AND relkind <> 'i' "
        "UNION ALL SELECT proname FROM pg_proc WHERE pronamespace = to_regnamespace('public')"
    )
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        backend.migrate(database, command.downgrade, "base")
        with database.reading() as transaction:
            assert transaction.execute(left).scalars().all() == [VERSION_TABLE]


def test_a_check_finds_what_was_changed_by_hand(empty):
    with closing(Database(empty)) as database:
        schema.upgrade(database)
        schema.compare(database)
        for change in (
            "DROP TABLE tag", "ALTER TABLE checkpoint ADD COLUMN color TEXT",
            "DROP INDEX ix_checkpoint_log", "CREATE INDEX ix_mine ON checkpoint (kind)",
        ):  # fmt: skip
            database.write(lambda c, change=change: c.connection.exec_driver_sql(change))
        schema.check(database)
        with pytest.raises(SchemaMismatch) as refused:
            schema.compare(database)
        for difference in ("add_table tag", "remove_column checkpoint color", "ix_checkpoint_log", "ix_mine"):
            assert difference in str(refused.value)


@pytest.mark.long
def test_threads_and_processes_can_upgrade_one_database_at_once(empty):
    where = parse_url(empty).render_as_string(hide_password=False)
    code = (
        "import sys; from agentgit.store.schema import schema; from agentgit.store.database import Database; "
        "print(schema.upgrade(Database(sys.argv[1])))"
    )

    def work(_):
        with closing(Database(where)) as database:
            return schema.upgrade(database)

    started = [processes.Started(code, where) for _ in range(3)]
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(work, range(12)))
    assert answers + [one.wait().stdout.strip() for one in started] == [schema.REVISION] * 15
    with closing(Database(where)) as database:
        schema.compare(database)
