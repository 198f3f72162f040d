"""Tenant isolation and key scopes: no verb or SQL reaches another tenant, and no verb exceeds the scope of its key."""

import io
import json
import uuid
from contextlib import closing

import backend
import postgres_databases
import pytest
from command_line import run
from sqlalchemy import select
from test_access import ADMIN, EDITOR, OWN, OWNER, VERBS, VIEWER, outcome, world

import agentgit
from agentgit.auth.principal import SCOPE_OF_ROLE, SCOPES
from agentgit.demo import EFFECTS, build
from agentgit.errors import AgentGitError, InvalidInput, NotAllowed, NotFound, SchemaMismatch
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import in_schema

__all__ = ["world"]  # the fixture


def rows(repo, *without):
    """Return all rows by table."""
    found = {}
    with backend.reading(repo) as transaction:
        for table in METADATA.sorted_tables:
            columns = [column for column in table.c if column.name != "searched"]
            if table.name not in without:
                query = select(*columns).order_by(*table.primary_key)
                found[table.name] = [tuple(row) for row in transaction.execute(query)]
    return found


@pytest.fixture
def tenants(empty_server):
    """Create two tenants on one server, and yield the URL of each, by schema; the roles have other names."""
    with postgres_databases.tenants(empty_server, "acme", "beta") as urls:
        yield urls


def test_the_role_decides_which_tenant_a_connection_is(tenants, tmp_path):
    for name, url in tenants.items():
        with agentgit.open(url) as repo:
            agent = repo.wrap(build(tmp_path / f"{name}.db"), "s", effects=EFFECTS)
            agent.run("order two chairs")
            agent.undo().run(f"this is for {name}")
    for name, url in tenants.items():
        with agentgit.open(url) as repo:
            assert [f"for {name}" in str(repo.session("s").branch().conversation_history)] == [True]
            assert len(repo.sessions()) == 1
            assert repo.maintenance.fsck(3).is_sound


REACHES = (
    "SELECT * FROM beta.checkpoint",
    "SELECT count(*) FROM beta.blob",
    "INSERT INTO beta.blob SELECT * FROM blob",
    "DELETE FROM beta.event",
    "TRUNCATE beta.tag",
    "SET search_path TO beta; SELECT * FROM checkpoint",
    "SELECT beta.agentgit_event_stays()",
    "SELECT pg_get_functiondef('beta.agentgit_event_stays'::regproc)",
    "SELECT * FROM beta.agentgit_version",
    "CREATE VIEW pg_temp.theirs AS SELECT * FROM beta.blob",
    "SET ROLE {other}",
    "SET SESSION AUTHORIZATION {other}",
    "ALTER ROLE {other} SET search_path TO acme",
    "GRANT {other} TO CURRENT_USER",
    "GRANT USAGE ON SCHEMA beta TO CURRENT_USER",
    "ALTER SCHEMA acme OWNER TO {other}",
    "COPY beta.blob TO STDOUT",
    "COPY blob TO PROGRAM 'cat'",
    "SELECT pg_read_file('PG_VERSION')",
    # of its own schema
    "CREATE TABLE more (id int)",
    "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE tag ADD COLUMN mine int",
    "ALTER TABLE event DISABLE TRIGGER ALL",
    "DROP TRIGGER event_stays ON event",
    "CREATE TRIGGER mine BEFORE INSERT ON tag EXECUTE FUNCTION agentgit_event_stays()",
    "DROP TABLE tag",
    "UPDATE event SET kind = ''",
    "UPDATE agentgit_version SET version_num = '9'",
    "CREATE SCHEMA mine",
)


@pytest.mark.parametrize("statement", REACHES)
def test_a_role_cannot_reach_another_tenant_or_change_a_table(tenants, statement):
    other = tenants["beta"].username
    with closing(Database(tenants["acme"])) as database, pytest.raises(AgentGitError) as refused:
        database.write(lambda c: c.connection.exec_driver_sql(statement.format(other=other)).all())
    cause = refused.value.__cause__
    assert getattr(cause, "orig", cause).sqlstate in ("42501", "42P01")


def test_the_statistics_of_another_tenants_values_are_hidden(tenants):
    with agentgit.open(tenants["beta"]) as repo:
        repo.users.add("somebody")
    postgres_databases.run(tenants["beta"].set(username="postgres"), 'ANALYZE beta."user"')
    query = "SELECT count(*) FROM pg_stats WHERE schemaname = 'beta' UNION ALL SELECT count(*) FROM pg_stat_activity "
    query += f"WHERE usename = '{tenants['beta'].username}' AND query <> '<insufficient privilege>'"
    with closing(Database(tenants["acme"])) as database, database.reading() as transaction:
        assert list(transaction.connection.exec_driver_sql(query).scalars()) == [0, 0]


def test_a_tenant_is_made_and_kept_up_on_the_command_line(empty_server):
    role, other = (f"agentgit_{uuid.uuid4().hex}" for _ in range(2))
    owner = empty_server.render_as_string(hide_password=False)

    def agentgit_db(*words):
        return run(*words, "--db", owner)

    try:
        for _ in range(2):  # it may be repeated
            granted = agentgit_db("db", "grant", "--schema", "a 'b\" %s", "--role", role, "--json")
            assert granted.code == 0, granted
            assert json.loads(granted.out)["schema"] == "a 'b\" %s"
        assert agentgit_db("db", "grant", "--schema", "beta", "--role", other).code == 0
        with agentgit.open(empty_server.set(username=role)) as repo:
            repo.session("s", create=True)
        assert agentgit_db("db", "check", "--schema", "beta").code == 0
        for words in (("db", "check"), ("db", "upgrade"), ("gc",), ("fsck",)):
            assert agentgit_db(*words, "--all-schemas").code == 0, words
            assert agentgit_db(*words, "--schema", "a 'b\" %s").code == 0, words
            assert agentgit_db(*words, "--all-schemas", "--schema", "beta").code == 2, words
        first = in_schema(empty_server, "a 'b\" %s")
        postgres_databases.run(first, "UPDATE agentgit_version SET version_num = '9999'")
        for words in (("db", "check"), ("gc",)):  # one that fails does not stop the command in the others
            kept_up = agentgit_db(*words, "--all-schemas")
            assert (kept_up.code != 0, "9999" in kept_up.err, "beta:\n" in kept_up.out) == (True, True, True), words
        postgres_databases.run(first, f"UPDATE agentgit_version SET version_num = '{schema.REVISION}'")  # noqa: S608  # ours
        tenant = empty_server.set(username=role).render_as_string(hide_password=False)
        assert "You own no schema" in run("gc", "--all-schemas", "--db", tenant).err
        missing = agentgit_db("db", "check", "--schema", "gamma")
        assert (missing.code != 0, "agentgit db grant" in missing.err) == (True, True)
        with closing(Database(empty_server)) as database:
            assert schema.own_schemas(database) == ["a 'b\" %s", "beta"]
            assert schema.current_revision(database) is None  # the schema `public` is left alone
            for words, error, said in (
                (("beta", role), NotAllowed, "can use the schema"),
                (("", "x"), InvalidInput, "1 to 63"),
                (("x", "r" * 64), InvalidInput, "1 to 63"),
                (("x", "a\0b"), InvalidInput, "printable"),
                (("$user", other), InvalidInput, "own"),
                (("pg_x", other), InvalidInput, "own"),
                (("x", "public"), InvalidInput, "own"),
                (("x", "none"), InvalidInput, "own"),
                (("beta", empty_server.username), NotAllowed, "superuser"),
            ):
                with pytest.raises(error, match=said):
                    schema.grant(database, *words)
        with pytest.raises(InvalidInput, match="no schemas"):
            in_schema("notes.db", "beta")
        with pytest.raises(SchemaMismatch, match="db grant"), closing(Database(in_schema(owner, "gamma"))) as missing:
            schema.upgrade(missing)
    finally:
        for name in (role, other):
            postgres_databases.run(empty_server, f"DROP OWNED BY {name}", f"DROP ROLE {name}")


@pytest.mark.parametrize(
    "before",
    [
        "CREATE SCHEMA gamma AUTHORIZATION {role}", "ALTER ROLE {role} CREATEROLE", "ALTER ROLE {role} SUPERUSER",
        "ALTER DATABASE {database} OWNER TO {role}", "GRANT postgres TO {role}",
    ],
)  # fmt: skip
def test_a_role_that_reaches_more_is_refused(tenants, before):
    role, owner = tenants["acme"].username, tenants["acme"].set(username="postgres")
    postgres_databases.run(owner, before.format(role=role, database=owner.database))
    name = "gamma" if "gamma" in before else "acme"
    with closing(Database(owner)) as database, pytest.raises(NotAllowed, match="Use another role"):
        schema.grant(database, name, role)
    postgres_databases.run(
        owner, f"ALTER DATABASE {owner.database} OWNER TO postgres", f"ALTER ROLE {role} NOSUPERUSER"
    )


def test_rights_that_were_there_before_are_taken_away(tenants):
    """A role that only reads becomes no role of agentgit by an upgrade, and keeps nobody from one."""
    role, owner = tenants["acme"].username, tenants["acme"].set(username="postgres")
    reader = f"agentgit_{uuid.uuid4().hex}"
    postgres_databases.run(
        owner,
        f"GRANT ALL ON SCHEMA acme TO {role}", "GRANT ALL ON ALL TABLES IN SCHEMA acme TO PUBLIC",
        f"CREATE ROLE {reader} LOGIN", f"GRANT USAGE ON SCHEMA acme, beta TO {reader}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA acme TO {reader}",
        f"GRANT SELECT ON ALL TABLES IN SCHEMA beta TO {reader}",
    )  # fmt: skip
    try:
        with closing(Database(owner)) as database:
            schema.grant(database, "acme", role)
        for url, statement in (
            (tenants["acme"], "CREATE FUNCTION more() RETURNS int LANGUAGE sql AS 'SELECT 1'"),
            (tenants["acme"], "ALTER TABLE event DISABLE TRIGGER ALL"),
            (owner.set(username=reader), "DELETE FROM acme.blob"),
            (owner.set(username=reader), "INSERT INTO acme.tag SELECT * FROM acme.tag"),
        ):
            with closing(Database(url)) as database, pytest.raises(NotAllowed):
                database.write(lambda c, statement=statement: c.connection.exec_driver_sql(statement))
    finally:
        postgres_databases.run(owner, f"DROP OWNED BY {reader}", f"DROP ROLE {reader}")


def test_the_owner_runs_nothing_of_a_schema_that_is_not_its_own(tenants):
    """A superuser may enter every schema, where somebody else's triggers would run with its rights."""
    role, owner = tenants["acme"].username, tenants["acme"].set(username="postgres")
    postgres_databases.run(
        owner, f"CREATE SCHEMA trap AUTHORIZATION {role}", "CREATE TABLE trap.agentgit_version (version_num text)",
        f"ALTER TABLE trap.agentgit_version OWNER TO {role}",
    )  # fmt: skip
    with closing(Database(owner)) as database:
        assert schema.own_schemas(database) == ["acme", "beta"]


def test_an_upgrade_keeps_the_rights_of_a_tenant(tenants, second):
    url = tenants["acme"]
    with closing(Database(in_schema(url.set(username="postgres"), "acme"))) as owner:
        with pytest.raises(SchemaMismatch):
            agentgit.open(url)
        assert schema.upgrade(owner) == second
    with agentgit.open(url) as repo:
        repo.session("s", create=True)


@pytest.mark.long
def test_no_verb_takes_what_belongs_to_another_tenant(world, tmp_path):
    """Ids, keys, links and values of one database are nothing in another one."""
    repo, ada = world.repo, world.ada
    key = repo.keys.create("k", user="ada")
    ada.session("s").tag("main#1", "more")
    ada.session("gone", create=True).delete()
    repo.users.delete(repo.users.add("gone"))
    with pytest.raises(NotAllowed):
        repo.authenticate("x")
    link = ada.session("s").sharing.create_link("editor")
    session, point = world.ada.session("s"), world.ada.session("s").get_checkpoint("main#2")
    branch = world.ada.session("s").branch()
    with agentgit.open(tmp_path / "there.db") as there:
        ada = there.as_user(there.users.add("ada"))
        for name in ("bob", "guest"):
            there.users.add(name)
        mine = ada.wrap(build(str(tmp_path / "shop.db")), "s", effects=EFFECTS)
        mine.run("order two lamps")
        ada.session("s").sharing.share("local", "owner")
        strange = {
            "operation": lambda: there.operation(world.operation),
            "resume": lambda: there.resume(world.operation),
            "resolve": lambda: there.resolve(world.call, "happened"),
            "link": lambda: there.revoke_link(world.link),
            "accept": lambda: there.accept(link.token),
            "key": lambda: there.keys.revoke(key.key),
            "session": lambda: there.session(session),
            "session id": lambda: there.session(session.id).delete(),
            "checkpoint": lambda: there.session().get_checkpoint(point),
            "template": lambda: ada.session("t", create=True, template=point),
            "id": lambda: ada.session("t", create=True, template=point.id),
            "branch": lambda: there.session(branch.external_session_id).export(io.BytesIO()),
            "diff": lambda: there.session("ada/s").diff(point.id, "main#1"),
            "rewind": lambda: ada.session("s").rewind_files(point.id),
        }
        assert {name: (outcome(ask) or [None])[0] for name, ask in strange.items()} == dict.fromkeys(
            strange, NotFound.__name__
        )
        with pytest.raises(NotAllowed, match="not valid"):
            there.authenticate(key.secret)
        seen = str(rows(there)) + str(list(there.events.list())) + str(there.events.audit()) + str(there.users.list())
        assert not [word for word in ("chair", str(session.id), str(key.key.id), "olga") if word in seen]


NEEDS = {VIEWER: "read", EDITOR: "write", OWNER: "admin", ADMIN: "admin"}


@pytest.mark.parametrize("scope", SCOPES[:-1])
def test_an_api_key_cannot_exceed_its_scope(world, scope):
    assert NEEDS == {**SCOPE_OF_ROLE, ADMIN: "admin"}
    repo = world.repo
    repo.users.add("root", is_admin=True)
    world.ada.session("s").sharing.share("root", "owner")
    link = world.ada.session("s").sharing.create_link()
    handle = repo.authenticate(repo.keys.create("k", scope, user="root").secret)
    before, wrong = rows(repo, "event"), {}
    own = {
        "accept": lambda r, w: r.accept(link.token),
        "unshare": lambda r, w: r.session("ada/s").sharing.unshare("root"),
        "keys.create": lambda r, w: r.keys.create("more"),
        "keys.revoke": lambda r, w: r.keys.revoke(1),
        "ensure_session": lambda r, w: r.session("new", create=True),
        "start": lambda r, w: r.session("mine", create=True, template="ada/s@main#2"),
        "wrap": lambda r, w: w.wrap(r, "new"),
        "import_": lambda r, w: r.import_(io.BytesIO(b"{}")),
        "users.delete": lambda r, w: r.users.delete("root"),
        "import_langgraph": lambda r, w: r.import_langgraph("no.db"),
    }
    writes = {name: (EDITOR, ask) for name, ask in own.items() if not name.startswith(("keys", "users"))}
    admin = {name: (OWNER, ask) for name, ask in own.items() if name not in writes}
    for name, (needs, ask) in {**VERBS, **admin, **(writes if scope != "write" else {})}.items():
        if needs != OWN and SCOPES.index(NEEDS[needs]) > SCOPES.index(scope):
            found = outcome(lambda ask=ask: ask(handle, world))
            if found is None or found[0] != "NotAllowed":
                wrong[name] = found
    assert wrong == {}
    assert rows(repo, "event") == before
