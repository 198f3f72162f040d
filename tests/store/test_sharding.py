"""The SQL scripts for distributed servers create every table, and PostgreSQL can run them."""

from contextlib import closing

import pytest
from test_upgrade import by_hand
from typer.testing import CliRunner

from agentgit.cli.app import app
from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.schema.introspection import build_shape, list_differences, read_shape
from agentgit.store.schema.partitioning import KINDS, distributed_script
from agentgit.store.schema.schema import REVISION
from agentgit.store.sql.tables import METADATA

STANDS_FOR_CITUS = """
CREATE TABLE spread (name text);
CREATE FUNCTION create_reference_table(regclass) RETURNS void LANGUAGE sql AS
  $$ INSERT INTO spread VALUES (trim($1::text, '"')) $$;
CREATE FUNCTION create_distributed_table(regclass, text, colocate_with text) RETURNS void LANGUAGE sql AS
  $$ SELECT colocate_with::regclass WHERE colocate_with <> 'none'; INSERT INTO spread VALUES (trim($1::text, '"')) $$;
"""
"""Functions with the names of those of Citus, which record the tables that they receive."""


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_d5_the_script_for_each_server_creates_every_table(kind, empty_server):
    """D5: run on PostgreSQL in place of the server, each script creates our tables, keys and indexes."""
    if kind == "citus":
        by_hand(empty_server, STANDS_FOR_CITUS)
    by_hand(empty_server, distributed_script(kind).replace("USING ybgin", "USING gin"))
    with closing(Database(empty_server)) as database:
        wrong = database.write(lambda c: list_differences(read_shape(c), build_shape(c, REVISION)))
        kept = [one for one in wrong if not any(word in one for word in ("policy", "row-level", "trigger", "function"))]
        assert kept == []
        assert (wrong == []) is (kind == "yugabyte")
        if kind == "citus":
            with database.reading() as connection:
                given = connection.exec_driver_sql("SELECT name FROM spread").scalars().all()
            assert sorted(given) == sorted(METADATA.tables)


def test_a_server_without_a_script_is_refused():
    """Bad input: a server without a script is refused with the names of the servers that have one."""
    with pytest.raises(InvalidInput, match="citus, cockroach, yugabyte"):
        distributed_script("oracle")


def test_d5_a_partial_schema_script_for_another_server_is_refused():
    """D5: a start schema together with a server that takes the whole schema is refused with the command to run."""
    done = CliRunner().invoke(app, ["db", "sql", "0001", "--for", "citus"])
    assert isinstance(done.exception, InvalidInput)
    assert "agentgit db sql --for citus" in str(done.exception)
