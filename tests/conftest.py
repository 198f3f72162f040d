"""Databases for the tests: SQLite always, PostgreSQL where a server answers."""

import gc
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from contextlib import ExitStack, closing

import faults
import lives
import points
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from receivers import Receiver
from shells import ipython, shown  # noqa: F401  # fixtures
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError

import agentgit
from agentgit.store.database import Database
from agentgit.store.schema import migrations, schema
from agentgit.store.sql.tables import METADATA

LITTLE = 4 * 2**20
"""So many bytes of tables, indexes and dead rows are emptied row by row."""

QUIET_SECONDS = 60
"""How long the end of a test waits for what others do in its database."""

AT_WORK = """
SELECT pg_stat_clear_snapshot(), pid, query FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'
"""

LEFT_OUT = "left out on PostgreSQL"

POSTGRES = make_url(os.environ.get("AGENTGIT_TEST_POSTGRES_URL", "postgresql+psycopg://postgres@127.0.0.1:5432/test"))

# The same examples each time, so that what fails fails again; with AGENTGIT_EXPLORE=1 new ones are looked for.
# No example has a deadline: how long one takes depends on what else the machine does.
EXPLORING = bool(os.environ.get("AGENTGIT_EXPLORE"))
settings.register_profile("same", settings.get_profile("ci"))
settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("exploring" if EXPLORING else "same")
if not EXPLORING:
    # Hypothesis tries constants out of all modules that are imported by then: examples would depend on what ran before,
    # and on each line of agentgit. It has no option for that; test_hypothesis_determinism.py holds it.
    providers._get_local_constants = providers.Constants


MOST_VARIANTS = 3
"""How many variants of a parametrized test `make test` runs; `make test-all` runs the others as well."""

ONE_DATABASE = {"agents", "faces", "crash"}
"""Rooms whose tests `make test` runs on SQLite alone; those of the store run on both databases."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark as long what `make test` leaves out of tests with many variants."""
    variants = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function):
            variants[item.path, item.originalname].append(item)
    for (path, _), tests in variants.items():
        chosen = tests
        if path.parent.name in ONE_DATABASE:
            chosen = [test for test in tests if "postgresql" not in test.name] or tests
        step = max(1, len(chosen) / MOST_VARIANTS)
        short = {chosen[int(n * step)] for n in range(min(len(chosen), MOST_VARIANTS))}
        for test in tests:
            if test not in short:
                test.add_marker("long")


def pytest_collection_finish(session):
    """Let no collection of garbage look at what stays: thousands of tests and modules took a fifth of the time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter):
    """Say in one line, after all others, how much was not tested for want of a server."""
    yield
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if LEFT_OUT in str(report.longrepr)]
    if skipped:
        terminalreporter.line(
            f"{len(skipped)} tests were {LEFT_OUT}: no server answers. Start one at 127.0.0.1:5432, or set "
            "AGENTGIT_TEST_POSTGRES_URL.", yellow=True,
        )  # fmt: skip


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory):
    """A SQLite file with its tables, to be copied; making one takes longer than most tests."""
    path = tmp_path_factory.mktemp("template") / "agentgit.db"
    with closing(Database(path)) as database:
        schema.prepare(database)
    return path


@pytest.fixture(scope="session")
def postgres_made():
    """The place of a fresh PostgreSQL database with its tables, dropped at the end.

    Where no server answers the test is skipped, and the summary says so; with $AGENTGIT_REQUIRE_POSTGRES it fails.
    """
    missing = pytest.fail if os.environ.get("AGENTGIT_REQUIRE_POSTGRES") else pytest.skip
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 30})
    name = f"agentgit_test_{uuid.uuid4().hex}"
    try:
        with server.connect() as connection:
            connection.execute(text(f'CREATE DATABASE "{name}"'))
            # What is killed in the tests are processes, not the server: no commit need wait for its disk.
            connection.execute(text(f'ALTER DATABASE "{name}" SET synchronous_commit = off'))
    except OperationalError:
        server.dispose()
        missing(f"{LEFT_OUT}: no server answers at {POSTGRES}; set $AGENTGIT_TEST_POSTGRES_URL")
    url = POSTGRES.set(database=name)
    with closing(Database(url)) as database:
        schema.upgrade(database)
    yield url
    with server.connect() as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    server.dispose()


@pytest.fixture
def postgres_url(postgres_made):
    """The place of a PostgreSQL database with empty tables, which are emptied again at the end."""
    yield postgres_made
    with closing(Database(postgres_made)) as database:
        database.write(_empty)


@pytest.fixture
def empty_server(postgres_made):
    """A PostgreSQL database without tables, dropped at the end."""
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT")
    name = f"agentgit_test_{uuid.uuid4().hex}"
    with server.connect() as connection:
        connection.execute(text(f'CREATE DATABASE "{name}"'))
    yield postgres_made.set(database=name)
    with server.connect() as connection:
        connection.execute(text(f'DROP DATABASE "{name}" WITH (FORCE)'))
    server.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request, tmp_path):
    """The place of a database without tables, of each kind."""
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
    """Let the library have a second schema, which gives each session a color; what that is called."""
    folder = tmp_path / "migrations"
    shutil.copytree(migrations.folder(), folder)
    (folder / "versions" / "9000_colors.py").write_text(SECOND.replace("{now}", schema.REVISION))
    monkeypatch.setattr(*points.FOLDER_OF_MIGRATIONS.place, lambda: folder)
    monkeypatch.setattr(*points.NEWEST_SCHEMA.place, "9000")
    return "9000"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """A ready, empty database of each kind."""
    if request.param == "sqlite":
        path = tmp_path / "agentgit.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        with closing(Database(path)) as database:
            yield database
        return
    with closing(Database(request.getfixturevalue("postgres_made"))) as database:
        yield database
        database.write(_empty)


def _empty(connection):
    """Empty the tables: row by row where there is little, which takes a tenth of the time of a TRUNCATE.

    Dead rows stay behind, and would fool tests of sizes; so a database that has grown is truncated.
    """
    _until_quiet(connection)
    connection.exec_driver_sql("SET LOCAL session_replication_role = replica")  # no trigger and no foreign key is asked
    sizes = 'pg_total_relation_size(\'"{0}"\'), EXISTS (SELECT FROM "{0}")'
    names = [table.name for table in METADATA.sorted_tables]
    found = iter(connection.exec_driver_sql("SELECT " + ", ".join(map(sizes.format, names))).one())
    tables = [(name, next(found), next(found)) for name in names]
    if sum(size for _, size, _ in tables) > LITTLE:
        connection.exec_driver_sql("TRUNCATE " + ", ".join(f'"{name}"' for name in names))
        return
    filled = [name for name, _, is_filled in tables if is_filled]
    connection.exec_driver_sql(";".join(f'DELETE FROM "{name}"' for name in filled))  # noqa: S608  # our own names


def _until_quiet(connection):
    """Wait until nobody else is in a transaction.

    The server may still be at the last commit of a process that was killed: its rows would be the next test's.
    """
    until = time.monotonic() + QUIET_SECONDS
    while found := connection.exec_driver_sql(AT_WORK).all():
        assert time.monotonic() < until, f"the test has ended, and somebody is still at work: {found}"
        time.sleep(0.01)


@pytest.fixture
def repo(database):
    """A repository on a ready, empty database of each kind."""
    with agentgit.open(database.url) as repo:
        yield repo


LIVED = {}
"""What was lived already in this process: per kind of database what it holds after that."""


@pytest.fixture
def lived_through(database):
    """Opens a repository where a function has lived: it lives once in this process, then its rows are copied."""
    with ExitStack() as open_till_the_end:

        def opened(live):
            kept = LIVED.setdefault((live, database.is_sqlite), {})
            if kept:
                lives.put(database, kept)
            else:
                with agentgit.open(database.url) as repo:
                    live(repo)
                kept |= lives.taken(database)
            return open_till_the_end.enter_context(agentgit.open(database.url))

        yield opened


@pytest.fixture
def receiver():
    """A server that receives webhooks."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def long_webhook_pauses():
    """Let a webhook that failed wait until a test says otherwise, however slow the machine is."""
    with faults.long_webhook_pauses():
        yield


@pytest.fixture
def long_login_pauses():
    """Let who guessed wrong too often wait longer than the test takes."""
    with faults.long_login_pauses():
        yield


@pytest.fixture
def webhooks_allowed(monkeypatch):
    """Allow webhooks to this machine, as an operator does, before a test opens anything."""
    monkeypatch.setenv("AGENTGIT_WEBHOOK_ALLOW", "127.0.0.1")
