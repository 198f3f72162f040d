"""Row-level security protects rows from queries that do not filter by tenant or user."""

import json
import re
import uuid
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import backend
import pytest
from alembic import command
from scripted import World, call, scripted, tool_node_graph
from sqlalchemy import delete, func, insert, select, text, update
from test_access import test_each_verb_works_with_exactly_the_role_it_needs as d5_the_role_is_enough
from test_access import world
from test_tenant_isolation import filled
from typer.testing import CliRunner

import agentgit
from agentgit import Keyring, Workspace
from agentgit.cli.app import app
from agentgit.errors import InvalidInput, NotAllowed, NotFound, SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import partitioning, roles, schema
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import redacted_url

__all__ = ["world"]  # the fixture

TABLES = METADATA.sorted_tables
OF_SESSIONS = {
    "external_session", "internal_session", "tool_invocation", "world_log", "operation", "workspace_snapshot", "tag",
    "checkpoint", "search_text", "blob", "graph_checkpoint", "graph_write",
}  # fmt: skip
"""The tables in which users see rows of own and shared sessions only; the trail has other rows, too."""


@contextmanager
def as_role(url):
    """Create a role that owns nothing, grant it the rights to work, and yield a URL for it."""
    role = f"agentgit_{uuid.uuid4().hex}"
    with closing(Database(url)) as owner:
        owner.write(lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN"))
        try:
            roles.grant(owner, role)
            yield url.set(username=role)
        finally:
            owner.write(lambda c: c.exec_driver_sql(f"DROP OWNED BY {role}; DROP ROLE {role}"))


@pytest.fixture
def database(postgres_url):
    """Open an empty PostgreSQL database with all tables, as a role that owns nothing."""
    with as_role(postgres_url) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture
def owner(postgres_url):
    """Open the same database as a superuser, who bypasses row-level security."""
    with closing(Database(postgres_url)) as database:
        yield database


def seen(database):
    """Count the rows of each table that an unfiltered query finds."""
    with database.reading() as connection:
        counts = (select(func.count()).select_from(table).scalar_subquery() for table in TABLES)
        found = connection.execute(select(*counts)).one()
    return dict(zip((table.name for table in TABLES), found, strict=True))


def works(repo, session):
    """Run a turn in a new session, undo it, continue on the new branch, and tag and search it."""
    things, model = World(), scripted(call("add", item="chair"), *["done"] * 9)
    agent = repo.wrap(tool_node_graph(model, things.tools()), session, effects=things.effects())
    agent.run("a chair")
    agent.checkpoint("later", data={"kept": True})
    agent = agent.undo()
    assert things.items == []
    agent.run("and more")
    agent.checkpoint("finished")
    repo.session(session).tag("HEAD", "v1")
    assert len(list(repo.session(session).search("finished"))) == 1
    assert len(repo.session(session).branches()) == 2


def test_every_table_has_forced_row_level_security(owner):
    """Every table has a policy and row-level security, which is forced for the owners of tables, too."""
    walled = text(
        "SELECT relname FROM pg_class JOIN pg_policy ON polrelid = pg_class.oid "
        "WHERE relrowsecurity AND relforcerowsecurity AND relnamespace = to_regnamespace(current_schema())"
    )
    with owner.reading() as connection:
        assert set(connection.execute(walled).scalars()) == set(METADATA.tables)


def test_the_policies_match_the_security_page(owner):
    """Each table is restricted by user or only by tenant, as docs/security.md says."""
    policies = text(
        "SELECT tablename, qual FROM pg_policies WHERE schemaname = current_schema() AND policyname = 'agentgit_wall'"
    )
    with owner.reading() as connection:
        found = {row.tablename: row.qual for row in connection.execute(policies)}
    asks = ("agentgit.user_id", "agentgit_sees_")
    by_user = {name for name, qual in found.items() if any(one in qual for one in asks)}
    assert by_user == OF_SESSIONS | {"audit_event"}
    assert {name for name, qual in found.items() if "agentgit.tenant_id" not in qual} == set()
    page = (Path(__file__).parents[2] / "docs/security.md").read_text()
    named = {
        "external_session": "sessions", "internal_session": "branches", "checkpoint": "checkpoints",
        "tool_invocation": "calls", "world_log": "the world log", "operation": "operations",
        "workspace_snapshot": "snapshots", "tag": "tags", "search_text": "search texts",
        "audit_event": "the trail of a session", "blob": "values",
        "graph_checkpoint": "LangGraph's checkpoints and writes", "graph_write": "LangGraph's checkpoints and writes",
        "user": "users", "api_key": "keys", "session_member": "members",
        "session_link": "links", "login_failure": "failed logins",
        "erasure": "what was erased", "erased_name": "what was erased", "encryption_key": "names of encryption keys",
        "tenant": "the tenant itself",
    }  # fmt: skip
    assert set(named) == set(METADATA.tables)
    rows = dict(re.findall(r"^\| \*\*by tenant (.*?)\*\* \| (.*?) \|", page, flags=re.M))
    told = {kind: set(re.split(r", | \| ", words)) for kind, words in rows.items()}
    assert told["and user"] == {named[name] for name in by_user}
    assert told["alone"] - {"events of no session"} == {named[name] for name in set(found) - by_user}


@pytest.fixture
def others(world, owner):
    """Yield the row counts of a filled tenant by table, and a repository of another tenant of its database."""
    filled(world)
    before = seen(owner)
    assert {name for name, count in before.items() if not count} <= {
        "encryption_key",
        "workspace_snapshot",
        "erasure",
    }
    with agentgit.open(backend.url(world.repo), tenant="acme") as there:
        works(there, "s")
        yield before, there


@pytest.mark.long
def test_an_unfiltered_query_finds_only_rows_of_its_tenant(others, owner):
    """An unfiltered query finds the rows of its tenant, and none without a tenant."""
    before, there = others
    mine = seen(backend.database(there))
    assert mine == {name: count - before[name] for name, count in seen(owner).items()}
    assert mine["checkpoint"] > 0
    assert set(seen(backend.database(there).limited_to()).values()) == {0}
    named = seen(backend.database(there).limited_to(tenant_name="acme"))
    assert {name for name, count in named.items() if count} == {"tenant"}


@pytest.mark.long
def test_an_unfiltered_statement_never_changes_another_tenant(others, owner, world):
    """An unfiltered delete spares another tenant, and no row can be inserted or moved into it."""
    before, there = others
    database, theirs = backend.database(there), world.repo.context.store.tenant_id
    mine, trail = seen(database), {"audit_event", "erasure"}  # tables whose rows nobody can change
    for table in TABLES:
        row = {}
        with owner.reading() as connection:
            of = table.c.id if table.name == "tenant" else table.c.tenant_id
            row = connection.execute(select(table).where(of == theirs)).mappings().first()
        statements = [] if row is None else [insert(table).values(dict(row))]
        if mine[table.name] and table.name not in trail:
            statements.append(update(table).values({of.name: theirs}))
        # For an erasure a trigger runs first, and finds no event of the erasure that it can read.
        said = "cannot be changed" if table.name == "erasure" else "row-level security"
        for statement in statements:
            with pytest.raises(NotAllowed, match=said):
                database.write(lambda c, statement=statement: c.execute(statement))
    for table in reversed(TABLES):
        if table.name not in {*trail, "tenant"}:
            database.write(lambda c, table=table: c.execute(delete(table)))
    assert {n: count for n, count in seen(owner).items() if n not in trail} == {
        name: count + (name == "tenant") for name, count in before.items() if name not in trail
    }


@pytest.mark.long
def test_an_unfiltered_query_finds_only_own_and_shared_sessions(world):
    """An unfiltered query finds session rows for the owner and current members, and none for a stranger."""
    everything = seen(backend.database(world.repo))
    of_sessions = {name for name in OF_SESSIONS if everything[name]}
    assert of_sessions >= OF_SESSIONS - {"workspace_snapshot"}

    def found(name):
        counts = seen(world.handles[name].context.store.database)
        return {name for name in of_sessions if counts[name]}

    assert found("eve") == set()
    assert found("vic") == found("ada") == of_sessions
    works(world.handles["eve"], "own")
    assert seen(world.handles["eve"].context.store.database)["external_session"] == 1
    assert seen(backend.database(world.ada))["checkpoint"] == everything["checkpoint"]
    world.ada.session("s").sharing.unshare("vic")
    assert found("vic") == set()
    world.ada.session("s").sharing.share("vic", expires_in=timedelta(hours=1))
    assert found("vic") == of_sessions
    members = METADATA.tables["session_member"]
    past = update(members).values(expires_at=datetime.now(UTC) - timedelta(hours=1))
    backend.write(world.repo, lambda c: c.execute(past))
    assert found("vic") == set()
    assert seen(backend.database(world.repo))["external_session"] == 2


@pytest.mark.long
def test_only_members_see_the_trail_of_a_session(world):
    """A stranger sees only events of no session, and a member also those of the shared session."""
    query = select(METADATA.tables["audit_event"])
    with world.handles["eve"].context.store.database.reading() as connection:
        rows = connection.execute(query).all()
    assert {row.external_session_id for row in rows} == {0}
    with world.handles["vic"].context.store.database.reading() as connection:
        assert {row.external_session_id for row in connection.execute(query)} == {0, world.ada.session("s").id}


@pytest.mark.parametrize("ends", ["taken", "over"])
def test_a_running_turn_finishes_after_its_user_loses_access(database, ends):
    """Calls of a turn whose user loses access are recorded; then the user sees and starts nothing more."""
    with agentgit.open(database.url) as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        ada.session("s", create=True)
        ada.session("other", create=True)
        ada.session("s").sharing.share("bob", "editor")
        things, members = World(), METADATA.tables["session_member"]
        past = update(members).values(expires_at=datetime.now(UTC) - timedelta(hours=1))

        def lose(item: str) -> str:
            """Remove the user's access during a call."""
            if ends == "taken":
                ada.session("s").sharing.unshare("bob")
            else:
                backend.write(repo, lambda c: c.execute(past))
            return item

        model = scripted(call("lose", item="right"), call("add", item="chair"), *["done"] * 5)
        graph = tool_node_graph(model, [lose, *things.tools()])
        effects = {**things.effects(), "lose": "irreversible"}
        agent = bob.wrap(graph, "ada/s", effects=effects)
        agent.run("a chair")
        done = [(one.tool_name, one.status) for one in ada.session("s").tool_track(branch="main")]
        assert done == [("lose", "done"), ("add", "done")]
        assert ada.session("s").branch().conversation_history[-1]["content"] == "done"
        assert agent._branch.store.database is not backend.database(bob)
        for after in (agent._branch.store.database, backend.database(bob)):
            assert {seen(after)[name] for name in OF_SESSIONS} == {0}
        for refused in (agent.history, lambda: agent.run("more"), lambda: bob.wrap(graph, "ada/s", effects=effects)):
            with pytest.raises(NotFound, match="no session"):
                refused()
        assert len(ada.session("s").tool_track(branch="main")) == 2
        assert [one.kind for one in ada.events.newest(session="s", kinds="turn.*")] == ["turn.done"]
        ada.wrap(graph, "s", effects=effects).run("go on")


def test_a_running_rollback_finishes_after_its_user_loses_access(database):
    """Reversals of a rollback whose user loses access are recorded, and the rollback is done."""
    with agentgit.open(database.url) as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        ada.session("s", create=True)
        ada.session("s").sharing.share("bob", "editor")
        undone = []

        def add(item: str) -> str:
            """Add an item."""
            return item

        def undo(args, _result):
            undone.append(args["item"])
            if ada.session("s").sharing.members():
                ada.session("s").sharing.unshare("bob")

        graph = tool_node_graph(scripted(call("add", item="chair"), call("add", item="table"), "done"), [add])
        agent = bob.wrap(graph, "ada/s", effects={"add": agentgit.reversible(undo)})
        agent.run("a chair and a table")
        with pytest.raises(NotFound):  # a user without access receives no report
            agent.rollback("main#1")
        assert undone == ["table", "chair"]
        assert [one.status for one in ada.session("s").tool_track(branch="main")] == ["reversed", "reversed"]
        assert [one.status for one in ada.session("s").operations()] == ["done"]
        assert {seen(backend.database(bob))[name] for name in OF_SESSIONS} == {0}


def test_connection_settings_end_with_their_transaction(world):
    """A connection from the pool shows no rows of its previous user."""
    database = backend.database(world.ada)
    with database.reading() as connection:
        process = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
    nobody = database.limited_to()
    with nobody.reading() as connection:
        assert connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one() == process
        assert connection.exec_driver_sql("SELECT count(*) FROM external_session").scalar_one() == 0
    with pytest.raises(ZeroDivisionError), database.reading():
        raise ZeroDivisionError
    assert seen(nobody)["external_session"] == 0


@pytest.mark.long
def test_every_verb_works_for_an_unprivileged_role(world):
    """A granted database role that owns nothing is enough for each verb, with the session role it requires."""
    d5_the_role_is_enough(world)


@pytest.mark.long
def test_an_unprivileged_role_erases_and_reports_the_missing_vacuum(database, tmp_path):
    """An unprivileged role erases sessions and users, spares shared data, and reports the missing VACUUM."""
    with agentgit.open(database.url) as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        for handle in (ada, bob):
            works(handle, "s")
        ada.session("s").sharing.share("bob", "forker")
        bob.session("copied", create=True, template="ada/s@finished")
        before = bob.session("s").branch().conversation_history
        done = ada.session("s").delete()
        assert bob.session("copied").get_checkpoint("main#1").metadata["description"] == "from an erased session"
        assert done.rows["checkpoint"] > 0
        assert any("VACUUM" in left for left in done.left)
        assert bob.session("s").branch().conversation_history == before
        works(ada, "again")
        assert repo.users.delete("ada").sessions == 1
        assert repo.maintenance.gc().problem == ""
        assert repo.maintenance.fsck(3).is_sound
        assert repo.events.verify().is_sound
        assert set(seen(backend.database(bob).limited_to()).values()) == {0}


@pytest.mark.long
def test_an_unprivileged_role_creates_and_rotates_keys(database):
    """A role that owns nothing can encrypt contents and rotate keys."""
    old, new = Keyring.new_key(), Keyring.new_key()
    with agentgit.open(database.url, keyring=Keyring({"a": old})) as repo:
        works(repo, "s")
    with agentgit.open(database.url, keyring=Keyring({"a": old, "b": new}, "b")) as repo:
        assert "VACUUM" in (rotated := repo.maintenance.rotate_keys()).problem
        assert rotated.changed > 0
        assert repo.maintenance.fsck(3).is_sound
    with agentgit.open(database.url, keyring=Keyring({"b": new})) as repo:
        works(repo, "t")
        assert len(repo.session("s").branch().conversation_history) > 0


def test_an_unprivileged_role_cannot_change_tables_or_the_trail(world, database):
    """An unprivileged role cannot disable row-level security, change or empty the trail, or move the schema."""
    for statement in (
        "ALTER TABLE external_session DISABLE ROW LEVEL SECURITY", "DROP POLICY agentgit_wall ON blob",
        "UPDATE audit_event SET kind = ''", "TRUNCATE audit_event", "DROP TABLE audit_event",
        "UPDATE agentgit_version SET version_num = '0001'", "DELETE FROM tenant",
        "ALTER TABLE audit_event DISABLE TRIGGER ALL", "SET session_replication_role = replica",
        "UPDATE erasure SET last_seq = 0",
    ):  # fmt: skip
        with pytest.raises(NotAllowed):
            backend.write(world.repo, lambda c, statement=statement: c.exec_driver_sql(statement))
    removed = backend.database(world.repo)
    with pytest.raises(NotAllowed, match="cannot be changed"):
        removed.write(lambda c: c.exec_driver_sql("DELETE FROM audit_event"))
    assert world.repo.events.verify().is_sound


def test_erasing_keeps_snapshots_that_another_user_has(database, tmp_path):
    """Erasing a session releases no snapshot that another user's session has, although that one is invisible."""
    (tmp_path / "files").mkdir()
    with Workspace(tmp_path / "files", tmp_path / "store") as workspace, agentgit.open(database.url) as repo:
        for name in ("ada", "bob"):
            things, model = World(), scripted("done")
            graph = tool_node_graph(model, things.tools())
            theirs = repo.as_user(repo.users.add(name))
            theirs.wrap(graph, "s", effects=things.effects(), workspace=workspace).run("hello")
        assert theirs.session("s").delete().snapshots == 0
        assert [one.pinned for one in workspace.list()] == [True]


@pytest.fixture
def apart(empty_server):
    """Create a database, and yield it as opened by its owner and by a role that owns nothing."""
    with closing(Database(empty_server)) as owner:
        schema.upgrade(owner)
        with as_role(empty_server) as url, closing(Database(url)) as database:
            yield owner, database


@pytest.mark.long
def test_errors_of_an_unprivileged_role_name_the_owners_command(second, apart):
    """Errors for an old schema or a command that changes tables name the command that the owner must run."""
    owner, database = apart
    theirs = f"--db {redacted_url(owner.url)}"
    for verb, change in (
        ("partition 4", lambda: partitioning.partition(database, 4)),
        ("grant me", lambda: roles.grant(database, "me")),
    ):
        with pytest.raises(NotAllowed) as refused:
            change()
        assert f"agentgit db {verb} {theirs}" in str(refused.value).replace("'", "")
    schema.upgrade(database)  # the schema is up to date
    backend.migrate(owner, command.downgrade, "0001")
    with pytest.raises(NotAllowed, match="does not own the tables"):
        schema.upgrade(database)
    with pytest.raises(SchemaMismatch) as refused:
        agentgit.open(database.url)
    said = str(refused.value).replace("'", "")
    assert f"agentgit db upgrade {theirs}" in said
    assert f"then agentgit db grant {database.url.username} {theirs}" in said
    schema.upgrade(owner)
    with agentgit.open(database.url) as repo:
        works(repo, "s")


@pytest.mark.long
def test_a_migration_sees_the_rows_of_all_tenants(empty_server, second):
    """A migration by a table owner without superuser rights changes the rows of all tenants."""
    role = f"agentgit_{uuid.uuid4().hex}"
    with closing(Database(empty_server)) as all_seeing:
        rights = f"GRANT CREATE ON DATABASE {empty_server.database} TO {role}; ALTER SCHEMA public OWNER TO {role}"
        all_seeing.write(lambda c: c.exec_driver_sql(f"CREATE ROLE {role} LOGIN; {rights}"))
        try:
            with closing(Database(empty_server.set(username=role))) as owner:
                schema.upgrade(owner)
                for tenant in ("one", "two"):
                    with agentgit.open(owner.url, tenant=tenant) as repo:
                        repo.session("s", create=True)
                backend.migrate(owner, command.downgrade, "0001")
                schema.upgrade(owner)
                assert seen(owner)["external_session"] == 0
            with all_seeing.reading() as connection:
                colors = connection.exec_driver_sql("SELECT color FROM external_session").scalars().all()
            assert colors == ["red", "red"]
        finally:
            all_seeing.write(lambda c: c.exec_driver_sql(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))


@pytest.mark.long
def test_the_command_line_grants_and_partitions(apart):
    """`db grant` and `db partition` report in JSON, and the role works on partitioned tables."""
    owner, database = apart
    where = ["--db", owner.url.render_as_string(hide_password=False), "--json"]
    granted = CliRunner().invoke(app, ["db", "grant", database.url.username, *where])
    assert json.loads(granted.stdout) == {
        "database": owner.name, "role": database.url.username, "tables": len(METADATA.tables) + 1,
        "is_limited_to_tenant": True,
    }  # fmt: skip
    divided = CliRunner().invoke(app, ["db", "partition", "2", *where])
    assert json.loads(divided.stdout) == {"database": owner.name, "divided": len(METADATA.tables) - 1, "parts": 2}
    with agentgit.open(database.url) as repo:
        works(repo, "s")


def test_bad_roles_are_refused(owner, database, repo_on_sqlite):
    """Bad input: a grant on SQLite, or to a missing role, a superuser or a table owner, is refused."""
    with pytest.raises(InvalidInput, match="no roles"):
        roles.grant(repo_on_sqlite, "any")
    with pytest.raises(NotFound, match="CREATE ROLE"):
        roles.grant(owner, "nobody at all")
    with pytest.raises(NotAllowed, match="BYPASSRLS"):
        roles.grant(owner, owner.url.username)
    role = database.url.username
    owner.write(lambda c: c.exec_driver_sql(f"GRANT {owner.url.username} TO {role}"))
    with pytest.raises(NotAllowed, match="membership"):  # a member can become the superuser by SET ROLE
        roles.grant(owner, role)
    owner.write(lambda c: c.exec_driver_sql(f"REVOKE {owner.url.username} FROM {role}"))
    owner.write(
        lambda c: c.exec_driver_sql(f"GRANT CREATE ON SCHEMA public TO {role}; ALTER TABLE tag OWNER TO {role}")
    )
    with pytest.raises(NotAllowed, match="owns the tables"):
        roles.grant(owner, role)
    owner.write(lambda c: c.exec_driver_sql(f"ALTER TABLE tag OWNER TO {owner.url.username}"))


@pytest.fixture
def repo_on_sqlite():
    """Open a SQLite database, which has no roles."""
    with closing(Database(":memory:")) as database:
        yield database
