"""The SQL scripts for distributed servers create every table, PostgreSQL runs them, and agentgit works on the result.

Citus itself is not run here: `tests/support/citus_stand_in.py` stands for it.
"""

import subprocess
from contextlib import closing

import backend
import citus_stand_in
import pytest
import sent_statements
from echo_graph import echoing
from scripted import World, obedient, tool_node_graph
from sqlalchemy import update
from typer.testing import CliRunner

import agentgit
from agentgit import reversible
from agentgit.cli.app import app
from agentgit.errors import InvalidInput
from agentgit.store.database import Database
from agentgit.store.schema import partitioning, roles, schema
from agentgit.store.schema.partitioning import KINDS, distributed_script
from agentgit.store.sql.tables import AUDIT_EVENT, METADATA


def by_hand(url, script):
    """Run SQL without agentgit, as an administrator does."""
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    command = ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", address]
    subprocess.run(command, input=script, text=True, check=True, capture_output=True)  # noqa: S603  # our own command


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_the_script_for_each_server_creates_every_table(kind, empty_server):
    """Run on PostgreSQL in place of the server, each script creates our tables, keys and indexes."""
    if kind == "citus":
        by_hand(empty_server, citus_stand_in.SQL)
    by_hand(empty_server, distributed_script(kind).replace("USING ybgin", "USING gin"))
    with closing(Database(empty_server)) as database:
        schema.compare(database)


@pytest.fixture
def like_citus(empty_server):
    """Open a database that the script for Citus has made, on PostgreSQL in place of Citus."""
    by_hand(empty_server, citus_stand_in.SQL)
    by_hand(empty_server, distributed_script("citus"))
    with closing(Database(empty_server)) as database:
        yield database


async def test_turns_rollbacks_and_everything_else_run_on_the_schema_for_citus(like_citus, tmp_path):
    """Turns, rollbacks, forks, search, export, fsck, gc and erasing need no trigger and no row-level security.

    All of their statements can be distributed, and a change of the trail, which no trigger refuses, is detected.
    """
    world = World()
    with sent_statements.recording() as sent, agentgit.open(like_citus.url) as repo:
        agent = repo.wrap(
            tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(add=reversible(world.remove))
        )
        agent.run("add chair")
        agent.checkpoint("before")
        agent.run("add table")
        agent = agent.rollback("before")
        await agent.arun("look")
        agent.fork().run("add lamp")
        session = repo.session("s")
        assert session.search("chair")
        session.export(tmp_path / "s.jsonl")
        session.delete()
        repo.import_(tmp_path / "s.jsonl", session="copy")
        with agentgit.open(like_citus.url, tenant="other") as other:
            other.wrap(echoing(), "s").run("hello")
        repo.maintenance.gc()
        assert world.items == ["chair", "lamp"]
        assert (repo.maintenance.fsck(3).is_sound, repo.events.verify().is_sound) == (True, True)
        of_tenant = AUDIT_EVENT.c.tenant_id == repo.context.store.tenant_id
        backend.write(repo, lambda c: c.execute(update(AUDIT_EVENT).where(of_tenant).values(kind="x")))
        assert not repo.events.verify().is_sound
    assert sent_statements.take_breaches() == []
    kinds = {" ".join(sql.split()[:3]) for sql in sent}
    assert kinds >= {"INSERT INTO tenant", "INSERT INTO blob", "DELETE FROM external_session"}
    assert any("statement_timestamp()" in sql for sql in sent)


def test_a_grant_on_citus_says_what_does_not_limit_the_role(like_citus):
    """`db grant` grants the rights on distributed tables, and says that nothing limits the role to a tenant."""
    role = like_citus.url.database.replace("test", "role")
    like_citus.write(lambda c: c.exec_driver_sql(f'CREATE ROLE "{role}"'))
    try:
        assert roles.grant(like_citus, role) == (len(METADATA.tables) + 1, False)
        url = like_citus.url.render_as_string(hide_password=False)
        said = CliRunner().invoke(app, ["db", "grant", role, "--db", url]).stdout
        warning = "neither row-level security nor triggers, so this role can read all tenants and delete audit events."
        assert warning in " ".join(said.split())
    finally:
        like_citus.write(lambda c: c.exec_driver_sql(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'))


def test_tables_that_citus_distributes_are_not_partitioned(like_citus):
    """`db partition` refuses tables that Citus distributes, instead of replacing them by local ones."""
    with pytest.raises(InvalidInput, match="already divides these tables"):
        partitioning.partition(like_citus, 2)


def test_a_server_without_a_script_is_refused():
    """Bad input: a server without a script is refused with the names of the servers that have one."""
    with pytest.raises(InvalidInput, match="citus, cockroach, yugabyte"):
        distributed_script("oracle")
