"""Databases for the tests: SQLite always, PostgreSQL where a server answers."""

import gc
import os
import shutil
import sysconfig
from collections import defaultdict
from contextlib import ExitStack, closing

import backend
import cached_databases
import points
import postgres_databases
import pytest
import sent_statements
import soaks
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from kits import postgres_spare, postgres_tables  # noqa: F401  # fixtures
from notebook_shells import ipython, shown  # noqa: F401  # fixtures
from scripted import World
from sqlalchemy import make_url, text
from sqlalchemy.exc import OperationalError

import agentgit
from agentgit.store.database import Database
from agentgit.store.schema import migrations, schema
from agentgit.store.sql.tables import METADATA

LITTLE = 4 * 2**20
"""The largest size in bytes of tables, indexes and dead rows that `_empty` deletes row by row."""

LEFT_OUT = "left out on PostgreSQL"

POSTGRES = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))

# The examples are the same each time, so that a failure is repeatable; AGENTGIT_EXPLORE=1 searches for new ones.
# No example has a deadline: its duration depends on the load of the machine.
EXPLORING = bool(os.environ.get("AGENTGIT_EXPLORE"))
settings.register_profile("same", settings.get_profile("ci"))
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("exploring" if EXPLORING else "same")
if not EXPLORING:
    # Hypothesis tries constants from all imported modules, so examples would depend on the tests that ran before and on
    # each line of agentgit. Hypothesis has no option for this; test_hypothesis_determinism.py tests the patch.
    providers._get_local_constants = providers.Constants


sent_statements.watch_connections()

# `.venv/bin/pytest` leaves PATH alone; tests that run a shell as a user does must find this environment's `agentgit`.
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])

MOST_VARIANTS = 2
"""The number of variants of a parametrized test that `make test` runs."""

ONE_DATABASE = {"agents", "deep_agents", "faces", "crash"}
"""Test folders that `make test` runs on SQLite only; the tests of the store run on both databases."""

MOSTLY_ONE_DATABASE = {"agents", "deep_agents", "faces"}
"""Test folders in which one variant of a test runs on PostgreSQL, because the tests of the store hold what differs."""


def pytest_report_header():
    return f"random sessions and kills: SEED={soaks.SEED} repeats them"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the variants that only `make soak` runs with `soak`, and those that `make test` leaves out with `long`."""
    variants = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function):
            variants[item.path, item.originalname].append(item)
    for (path, _), tests in variants.items():
        kept = _without_repeats(path.parent.name, tests)
        chosen = kept
        if path.parent.name in ONE_DATABASE:
            chosen = [test for test in kept if not _is_on_postgres(test)] or kept
        step = max(1, len(chosen) / MOST_VARIANTS)
        short = {chosen[int(n * step)] for n in range(min(len(chosen), MOST_VARIANTS))}
        for test in tests:
            if test not in kept or test.get_closest_marker("soak"):
                test.add_marker("soak")
                test.add_marker("long")
            elif test not in short:
                test.add_marker("long")


def _without_repeats(folder, tests):
    """Return the variants of a test that add something to the others."""
    if tests[0].get_closest_marker("each_value_once"):
        return [tests[number] for number in soaks.each_value_once([test.callspec.params for test in tests])]
    on_postgres = [test for test in tests if _is_on_postgres(test)] if folder in MOSTLY_ONE_DATABASE else []
    if len(on_postgres) == len(tests):
        return tests
    return [test for test in tests if test not in on_postgres[1:]]


def _is_on_postgres(test):
    return "postgresql" in test.name


def pytest_collection_finish(session):
    """Exclude the collected tests and modules from garbage collection, which took a fifth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Print, as the last line, how many tests were skipped because no server answers."""
    yield
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if LEFT_OUT in str(report.longrepr)]
    if skipped:
        terminalreporter.line(
            f"{len(skipped)} tests were {LEFT_OUT}: no server answers. Start one at 127.0.0.1:5432, or set "
            "AGENTGIT_TEST_POSTGRES_URL.", yellow=True,
        )  # fmt: skip


@pytest.fixture(autouse=True)
def sent_statements_can_be_distributed():
    """Fail a test during which the library sent PostgreSQL a statement that a distributed database refuses."""
    yield
    breaches = sent_statements.take_breaches()
    assert not breaches, "\n".join(map(str, breaches))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """Create a SQLite file with all tables for tests to copy; creating one takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "agentgit.db"
    with closing(Database(path)) as database:
        schema.prepare(database)
    return path


@pytest.fixture(scope="session")
def postgres_made():
    """Create a PostgreSQL database with all tables, yield its URL, and drop it at the end.

    If no server answers, the test is skipped and the summary reports it; with $AGENTGIT_REQUIRE_POSTGRES it fails.
    """
    missing = pytest.fail if os.environ.get("AGENTGIT_REQUIRE_POSTGRES") else pytest.skip
    with ExitStack() as stack:
        try:
            url = stack.enter_context(postgres_databases.created(POSTGRES))
        except OperationalError:
            missing(f"{LEFT_OUT}: no server answers at {POSTGRES}; set $AGENTGIT_TEST_POSTGRES_URL")
        with postgres_databases.on(POSTGRES) as server, server.connect() as connection:
            # The tests kill processes, not the server, so commits need not wait for the disk.
            connection.execute(text(f'ALTER DATABASE "{url.database}" SET synchronous_commit = off'))
            sent_statements.read_volatile_functions(connection)
        with closing(Database(url)) as database:
            schema.upgrade(database)
        yield url


@pytest.fixture
def postgres_url(postgres_made):
    """Yield the URL of a PostgreSQL database with empty tables, and empty them at the end."""
    yield postgres_made
    with closing(Database(postgres_made)) as database:
        database.write(_empty)


@pytest.fixture
def empty_server(postgres_made):
    """Create a PostgreSQL database without tables, yield its URL, and drop it at the end."""
    with postgres_databases.created(postgres_made) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """Return the URL or path of a database without tables, once per kind of database."""
    return tmp_path / "empty.db" if request.param == "sqlite" else request.getfixturevalue("empty_server")


SECOND = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9000", "{now}"


def upgrade():
    op.add_column("external_session", sa.Column("color", sa.Text, nullable=True))
    op.add_column("external_session", sa.Column("weight", sa.Integer, server_default="0", nullable=False))
    op.execute("UPDATE external_session SET color = 'red'")


def downgrade():
    for name in ("weight", "color"):
        op.drop_column("external_session", name)
"""


@pytest.fixture
def second(tmp_path, monkeypatch):
    """Add a newer schema, which gives each session a color, and return its revision."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.folder(), folder)
    (folder / "versions" / "9000_colors.py").write_text(SECOND.replace("{now}", schema.REVISION))
    monkeypatch.setattr(*points.FOLDER_OF_MIGRATIONS.place, lambda: folder)
    monkeypatch.setattr(*points.NEWEST_SCHEMA.place, "9000")
    return "9000"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """Open an empty database with all tables, once per kind of database."""
    if request.param == "sqlite":
        path = tmp_path / "agentgit.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        with closing(Database(path)) as database:
            yield database
        return
    with closing(Database(request.getfixturevalue("postgres_made"))) as database:
        yield database
        database.write(_empty)


@pytest.fixture
def url(database):
    """Return the URL of an empty database with all tables, once per kind of database."""
    return database.url


LOCKS = """INSERT INTO blob (external_session_id, hash, type, codec, size, data)
SELECT -number, sha256('list\\000'), 'list', 0, 0, '\\x00' FROM generate_series(1, 64) AS number"""


def _empty(transaction):
    """Empty the tables, and add the rows that writers to threads without a session lock.

    A small database is deleted row by row, which takes a tenth of the time of a TRUNCATE. A larger database is
    truncated, because the remaining dead rows would distort tests of sizes.
    """
    connection = transaction.connection
    backend.wait_until_quiet(connection)
    connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # disables triggers and foreign keys
    sizes = 'pg_total_relation_size(\'"{0}"\'), EXISTS (SELECT FROM "{0}")'
    names = [table.name for table in METADATA.sorted_tables]
    found = iter(connection.exec_driver_sql("SELECT " + ", ".join(map(sizes.format, names))).one())
    tables = [(name, next(found), next(found)) for name in names]
    if sum(size for _, size, _ in tables) > LITTLE:
        connection.exec_driver_sql("TRUNCATE " + ", ".join(f'"{name}"' for name in names))
    else:
        filled = [name for name, _, is_filled in tables if is_filled]
        connection.exec_driver_sql(";".join(f'DELETE FROM "{name}"' for name in filled))  # noqa: S608  # our own names
    connection.exec_driver_sql(LOCKS)


@pytest.fixture
def repo(database):
    """Open a repository on an empty database with all tables, once per kind of database."""
    with agentgit.open(database.url) as repo:
        yield repo


@pytest.fixture
def saver(database):
    """Create a saver on an empty database, once per kind of database."""
    return agentgit.SQLModelSaver(database)


@pytest.fixture
def world():
    """Create the world that the tools of `scripted` change."""
    return World()


LIVED = {}
"""The database contents after each function that has run in this process, per kind of database."""


@pytest.fixture
def lived_through(database):
    """Return a function that runs a setup function and opens the repository.

    Each setup function runs once in this process; later tests get a copy of its rows.
    """
    with ExitStack() as open_till_the_end:

        def opened(live):
            kept = LIVED.setdefault((live, database.is_sqlite), {})
            if kept:
                cached_databases.put(database, kept)
            else:
                with agentgit.open(database.url) as repo:
                    live(repo)
                kept |= cached_databases.taken(database)
            return open_till_the_end.enter_context(agentgit.open(database.url))

        yield opened
