"""PostgreSQL tables partitioned by tenant keep their rows, keys, policies and triggers, and work as before."""

from contextlib import closing

import backend
import pytest
from alembic import command
from test_row_level_security import seen, works
from test_upgrade import rows_of

import agentgit
from agentgit.errors import InvalidInput, NotAllowed
from agentgit.store.database import Database
from agentgit.store.schema import partitioning, roles, schema
from agentgit.store.sql.tables import METADATA

PARTS = "SELECT count(*) FROM pg_inherits"


@pytest.fixture
def divided(empty_server):
    """Partition a database that has a session in each of three tenants; yield it and its rows from before."""
    with closing(Database(empty_server)) as database:
        schema.upgrade(database)
        for tenant in ("local", "one", "two"):
            with agentgit.open(empty_server, tenant=tenant) as repo:
                works(repo, "before")
        before = rows_of(database)
        assert partitioning.partition(database, 3) == len(METADATA.tables) - 1
        yield database, before


@pytest.mark.long
def test_a_partitioned_database_keeps_its_data_and_works(divided):
    """A partitioned database has every row and the schema of the migrations, and sessions continue in it."""
    database, before = divided
    after = rows_of(database, {table.name: set(table.c.keys()) for table in METADATA.sorted_tables})
    assert {name: sorted(map(repr, rows)) for name, rows in after.items()} == {
        name: sorted(map(repr, before[name])) for name in after
    }
    schema.check(database)
    with database.reading() as connection:
        assert connection.exec_driver_sql(PARTS).scalar() >= 3 * (len(METADATA.tables) - 1)
    for tenant in ("local", "one"):
        with agentgit.open(database.url, tenant=tenant) as repo:
            works(repo, "after")
            assert len(repo.session("before").branches()) == 2
            assert repo.maintenance.fsck(level=3).is_sound
            repo.maintenance.gc()
            assert repo.events.verify().is_sound
    assert partitioning.partition(database, 3) == 0


@pytest.mark.long
def test_a_partitioned_database_keeps_row_level_security(divided):
    """Grants and tenant isolation survive partitioning; no partition is read or edited past its table."""
    database, _ = divided
    with agentgit.open(database.url) as repo:
        role = f"agentgit_parts_{repo.context.store.tenant_id}"
    database.write(lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN"))
    roles.grant(database, role)
    with agentgit.open(database.url.set(username=role), tenant="one") as repo:
        works(repo, "mine")
        assert seen(backend.database(repo))["external_session"] == 2
        assert set(seen(backend.database(repo).limited_to()).values()) == {0}
        with pytest.raises(NotAllowed), backend.reading(repo) as connection:
            connection.exec_driver_sql("SELECT * FROM blob_p0")
    for place in ("audit_event", "audit_event_p0", "audit_event_p1"):
        with pytest.raises(NotAllowed, match="cannot be changed"):
            database.write(lambda c, at=place: c.exec_driver_sql(f"UPDATE {at} SET kind = ''"))  # noqa: S608  # our own names
    database.write(lambda c: c.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}"))


@pytest.mark.long
def test_a_partitioned_database_can_be_migrated(divided, second):
    """A migration goes up and down on partitioned tables."""
    database, _ = divided
    schema.upgrade(database)
    backend.migrate(database, command.downgrade, "0001")
    assert schema.current_revision(database) == "0001"


def test_invalid_partitioning_is_refused(database):
    """Bad input: partitioning a SQLite database, or into one partition, is refused."""
    with pytest.raises(InvalidInput, match="SQLite" if database.is_sqlite else "partitions"):
        partitioning.partition(database, 1)
