"""The schema: one road for new and old databases, and clear refusals."""

import sqlite3
import threading

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from agentgit.errors import InvalidInput, SchemaMismatch, Unavailable
from agentgit.store import schema
from agentgit.store.database import Database, parse_url
from agentgit.store.ids import new_id
from agentgit.store.tables import METADATA


def _is_plain(name, kind, _parents):
    """Tell whether a table is one of ours: FTS5 keeps its index in tables of its own, which have no class."""
    return kind != "table" or not name.startswith("search_words")


WITHOUT_FTS = {"include_name": _is_plain}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agentgit.db"


def test_migrations_make_exactly_the_tables(path):
    """D1: what Alembic builds is what the SQLModel classes say."""
    database = Database(path)
    assert schema.upgrade(database) == schema.REVISION
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": schema.VERSION_TABLE, **WITHOUT_FTS})
        assert compare_metadata(context, METADATA) == []
    database.close()


def test_revision_is_the_newest_migration():
    """The constant that open() compares with is the head of the folder."""
    assert ScriptDirectory(str(schema.migrations())).get_heads() == [schema.REVISION]


def test_every_key_leads_with_the_tenant():
    """The same schema can be sharded: every primary and unique key begins with tenant_id."""
    for table in METADATA.tables.values():
        keys = [c for c in table.constraints if c.__visit_name__ in ("primary_key_constraint", "unique_constraint")]
        for key in keys:
            first = next(iter(key.columns)).name
            assert first == ("id" if table.name == "tenant" else "tenant_id"), key


def test_a_file_that_is_no_database_is_refused_and_untouched(path):
    """Bad input: a text file given as a database stays as it was."""
    path.write_text("these are notes, " * 100)
    with pytest.raises(SchemaMismatch, match="not a SQLite database"):
        schema.ready(Database(path))
    assert path.read_text() == "these are notes, " * 100


def test_somebody_elses_database_is_refused_and_untouched(path):
    """Bad input: a database with other tables gets none of ours."""
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE invoice (id INTEGER)")
    connection.close()
    database = Database(path)
    with pytest.raises(SchemaMismatch, match="invoice"):
        schema.ready(database)
    database.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("invoice",)]
    connection.close()


def test_a_newer_database_is_refused_with_the_command(path):
    """Bad input: a database from a later release says to upgrade the library."""
    database = Database(path)
    schema.upgrade(database)
    with database.engine.begin() as connection:
        connection.exec_driver_sql("UPDATE agentgit_version SET version_num = '9999'")
    for verb in (schema.check, schema.upgrade, schema.ready):
        with pytest.raises(SchemaMismatch, match="pip install --upgrade agentgit"):
            verb(database)
    database.close()


def test_a_missing_folder_is_unavailable(tmp_path):
    """Bad input: a path into no folder says so."""
    with pytest.raises(Unavailable, match="folder"):
        schema.ready(Database(tmp_path / "no" / "such" / "x.db"))


def test_many_threads_may_upgrade_many_databases(tmp_path):
    """Alembic's global context never mixes two upgrades of one process."""
    failures: list[BaseException] = []

    def work(n: int) -> None:
        database = Database(tmp_path / f"{n % 4}.db")
        try:
            schema.ready(database)
            assert schema.current(database) == schema.REVISION
        except BaseException as error:  # noqa: BLE001  # a thread's failure is the test's failure
            failures.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("where", ["mysql://x/y", "://", "sqlite:/x://"])
def test_an_address_of_nothing_is_refused(where):
    """Bad input: what is neither a path nor a known URL is a typed error."""
    with pytest.raises(InvalidInput):
        parse_url(where)


def test_ids_rise_and_fit_into_javascript():
    """Ids of one process only rise, and stay below 2^53."""
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert ids[-1] < 2**53
