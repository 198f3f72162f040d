"""The schema: new and old databases get it by the same migrations, and others are refused with clear errors."""

import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from traceback import format_exception

import backend
import command_line
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import inspect

import agentgit
from agentgit.agents.importing.readers import open_database
from agentgit.errors import InvalidInput, SchemaMismatch, Unavailable
from agentgit.store.database import Database
from agentgit.store.schema import migrations, schema
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.url import parse_url


@pytest.fixture
def path(tmp_path):
    return tmp_path / "agentgit.db"


def test_the_schema_has_no_sequence_and_no_trigger_but_that_of_the_trail(postgres_url):
    """Ids are made by the application, and data would be right without any trigger."""
    queries = {
        "triggers": "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal",
        "sequences": "SELECT relname FROM pg_class JOIN pg_namespace n ON n.oid = relnamespace "
        "WHERE relkind = 'S' AND nspname = current_schema()",
        "defaults": "SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef",
    }
    with closing(Database(postgres_url)) as database, database.reading() as transaction:
        found = {name: list(transaction.connection.exec_driver_sql(query).scalars()) for name, query in queries.items()}
    assert set(found["triggers"]) == {"event_stays", "event_stays_whole"}
    assert found["sequences"] == []
    assert not [default for default in found["defaults"] if "nextval" in default or "random" in default]


def test_a_file_that_is_not_a_database_is_refused_and_unchanged(path):
    path.write_text("these are notes, " * 100)
    with pytest.raises(SchemaMismatch, match="not a SQLite database"):
        schema.prepare(Database(path))
    assert path.read_text() == "these are notes, " * 100
    with pytest.raises(Unavailable, match="folder"):
        schema.prepare(Database(path / "in a missing folder" / "x.db"))


def test_a_foreign_database_is_refused_and_unchanged(path):
    with closing(Database(path)) as database:
        database.write(lambda c: c.connection.exec_driver_sql("CREATE TABLE invoice (id INTEGER)"))
        with pytest.raises(SchemaMismatch, match="invoice"):
            schema.prepare(database)
        with database.reading() as transaction:
            assert inspect(transaction.connection).get_table_names() == ["invoice"]


def test_a_newer_database_is_refused_with_the_upgrade_command(path):
    with closing(Database(path)) as database:
        schema.upgrade(database)
        database.write(lambda c: c.connection.exec_driver_sql("UPDATE agentgit_version SET version_num = '9999'"))
        for verb in (schema.check, schema.upgrade, schema.prepare):
            with pytest.raises(SchemaMismatch, match="pip install --upgrade agentgit"):
                verb(database)


def test_concurrent_threads_can_upgrade_several_databases(tmp_path):
    """Alembic's context is global."""

    def work(n):
        with closing(Database(tmp_path / f"{n % 4}.db")) as database:
            schema.prepare(database)
            return schema.current_revision(database)

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(work, range(12))) == {schema.REVISION}


@pytest.mark.parametrize(
    "where",
    ["postgresql://me:top@se:cret@host/db", "postgresql://me:top@secret@host/db", "postgresql://me:secret@h:1x/d"],
)
def test_a_password_in_a_malformed_url_is_not_shown(where):
    for read in (parse_url, open_database):
        with pytest.raises(InvalidInput, match="%") as refused:
            read(where)
        assert "secret" not in "".join(format_exception(refused.value))
    assert str(parse_url("postgresql://me:a%40b@host/db").password) == "a@b"


def test_ids_increase_and_fit_into_javascript_numbers():
    ids = [new_id() for _ in range(10_000)]
    assert ids == sorted(set(ids))
    assert ids[-1] < 2**53


HOST = """
from alembic import context
from sqlalchemy import Column, Integer, MetaData, Table, create_engine
from agentgit.store.schema.migrations import include_object

metadata = MetaData()
Table("invoice", metadata, Column("id", Integer, primary_key=True))
engine = create_engine(context.config.get_main_option("sqlalchemy.url"))
with engine.connect() as connection:
    context.configure(connection=connection, target_metadata=metadata, include_object=include_object)
    with context.begin_transaction():
        context.run_migrations()
engine.dispose()
"""


@pytest.mark.long
def test_an_application_with_alembic_can_share_the_database(tmp_path, empty):
    (tmp_path / "host" / "versions").mkdir(parents=True)
    (tmp_path / "host" / "env.py").write_text(HOST)
    (tmp_path / "host" / "script.py.mako").write_text((migrations.folder() / "script.py.mako").read_text())
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "host"))
    config.set_main_option("path_separator", "os")
    with closing(Database(empty)) as database:
        config.set_main_option("sqlalchemy.url", backend.address(database).replace("%", "%%"))
        command.revision(config, "first", autogenerate=True)
        command.upgrade(config, "head")
        assert schema.current_revision(database) is None
        schema.upgrade(database)
        command.check(config)
        written = command.revision(config, "second", autogenerate=True)
        assert "drop_table" not in Path(written.path).read_text()
        command.upgrade(config, "head")
        schema.compare(database)
        backend.migrate(database, command.downgrade, "base")
        with database.reading() as transaction:
            assert "invoice" in inspect(transaction.connection).get_table_names()


@pytest.mark.long
def test_a_table_name_clash_is_refused_with_a_workaround(empty_server):
    with closing(Database(empty_server)) as database:
        database.write(lambda c: c.connection.exec_driver_sql('CREATE TABLE "user" (email TEXT)'))
        with pytest.raises(SchemaMismatch, match=r"names of agentgit: user\..*--schema agentgit"):
            schema.upgrade(database)
        with closing(Database(empty_server.update_query_dict({"options": "-csearch_path=agentgit"}))) as apart:
            with pytest.raises(SchemaMismatch, match="db grant --schema"):
                schema.upgrade(apart)
            database.write(lambda c: c.connection.exec_driver_sql("CREATE SCHEMA agentgit"))
            schema.upgrade(apart)
            schema.compare(apart)
            with agentgit.open(apart.url) as repo:
                assert repo.session("s", create=True).name == "s"
        assert schema.current_revision(database) is None


@pytest.mark.long
def test_passwords_may_have_any_character(empty_server):
    password, name = "p@ss%40w:rd/%s", f"agentgit_{uuid.uuid4().hex}"
    url = empty_server.set(username=name, password=password)
    with closing(Database(empty_server)) as owner:
        owner.write(
            lambda c: c.connection.exec_driver_sql(f"CREATE ROLE {name} LOGIN PASSWORD '{password.replace('%', '%%')}'")
        )
        owner.write(lambda c: c.connection.exec_driver_sql(f"ALTER SCHEMA public OWNER TO {name}"))
        with closing(Database(url)) as database:
            with pytest.raises(SchemaMismatch) as refused:
                schema.prepare(database)
            assert password not in str(refused.value)
            assert "'postgresql+psycopg://" in str(refused.value)
            assert "password in place of ***" in str(refused.value)
            assert database.url.password == password
            assert "schema" in command_line.run("db", "upgrade", "--db", backend.address(database)).out
        with agentgit.open(url) as repo:
            assert repo.session("s", create=True).name == "s"
            assert password not in repr(repo)
        owner.write(lambda c: c.connection.exec_driver_sql(f"DROP OWNED BY {name} CASCADE"))
        owner.write(lambda c: c.connection.exec_driver_sql(f"DROP ROLE {name}"))
