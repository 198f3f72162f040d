"""A PostgreSQL role that owns nothing can do every verb after `agentgit db grant`, and nothing else."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

import backend
import pytest
from alembic import command
from command_line import run
from postgres_databases import as_role
from scripted import World, call, obeying, scripted, tool_node_graph
from test_access import test_each_verb_works_with_exactly_the_role_it_needs as d5_the_role_is_enough
from test_access import world

import agentgit
from agentgit import Keyring, Workspace
from agentgit.errors import InvalidInput, NotAllowed, NotFound, SchemaMismatch
from agentgit.handles.retention import WORDS_REMAIN
from agentgit.store.database import Database
from agentgit.store.schema import schema
from agentgit.store.sql.tables import METADATA
from agentgit.store.sql.url import redacted_url

__all__ = ["world"]  # the fixture


@pytest.fixture
def database(postgres_url):
    """Open an empty PostgreSQL database with all tables, as a role that owns nothing."""
    with as_role(postgres_url) as url, closing(Database(url)) as database:
        yield database


@pytest.fixture
def owner(postgres_url):
    with closing(Database(postgres_url)) as database:
        yield database


def works(repo, session):
    """Run a turn in a new session, undo it, continue on the new branch, and tag and search it."""
    things = World()
    agent = obeying(repo, things, session)
    agent.run("add chair")
    agent.checkpoint("later", data={"kept": True})
    agent = agent.undo()
    assert things.items == []
    agent.run("and more")
    agent.checkpoint("finished")
    repo.session(session).tag("HEAD", "v1")
    assert len(list(repo.session(session).search("finished"))) == 1
    assert len(repo.session(session).branches()) == 2


@pytest.fixture
def members(database):
    with agentgit.open(database.url) as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        ada.session("s", create=True).sharing.share("bob", "editor")
        yield ada, bob


@pytest.mark.parametrize("ends", ["taken", "over"])
def test_a_running_turn_finishes_after_its_user_loses_access(members, ends):
    (ada, bob), things = members, World()

    def lose(item: str) -> str:
        """Remove the user's access during a call."""
        if ends == "taken":
            ada.session("s").sharing.unshare("bob")
        else:
            backend.change(ada, "session_member", expires_at=datetime.now(UTC) - timedelta(hours=1))
        return item

    model = scripted(call("lose", item="right"), call("add", item="chair"), *["done"] * 5)
    graph = tool_node_graph(model, [lose, *things.tools()])
    effects = {**things.effects(), "lose": "irreversible"}
    agent = bob.wrap(graph, "ada/s", effects=effects)
    agent.run("a chair")
    done = [(one.tool_name, one.status) for one in ada.session("s").tool_track(branch="main")]
    assert done == [("lose", "done"), ("add", "done")]
    assert ada.session("s").branch().conversation_history[-1]["content"] == "done"
    for refused in (agent.history, lambda: agent.run("more"), lambda: bob.wrap(graph, "ada/s", effects=effects)):
        with pytest.raises(NotFound, match="no session"):
            refused()
    assert len(ada.session("s").tool_track(branch="main")) == 2
    assert [one.kind for one in ada.events.newest(session="s", kinds="turn.*")] == ["turn.done"]
    ada.wrap(graph, "s", effects=effects).run("go on")


def test_a_running_rollback_finishes_after_its_user_loses_access(members):
    ada, bob = members
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
    agent.rollback("main#1")
    with pytest.raises(NotFound, match="no session"):
        agent.history()
    assert undone == ["table", "chair"]
    assert [one.status for one in ada.session("s").tool_track(branch="main")] == ["reversed", "reversed"]
    assert [one.status for one in ada.session("s").operations()] == ["done"]


@pytest.mark.long
def test_every_verb_works_for_an_unprivileged_role(world):
    d5_the_role_is_enough(world)


@pytest.mark.long
def test_an_unprivileged_role_erases_and_leaves_the_index_of_words_to_the_owner(database, tmp_path):
    with agentgit.open(database.url) as repo:
        ada, bob = (repo.as_user(repo.users.add(name)) for name in ("ada", "bob"))
        for handle in (ada, bob):
            works(handle, "s")
        ada.session("s").sharing.share("bob", "viewer")
        bob.session("copied", create=True, template="ada/s@finished")
        before = bob.session("s").branch().conversation_history
        done = ada.session("s").delete()
        assert bob.session("copied").get_checkpoint("main#1").metadata["description"] == "from an erased session"
        assert done.rows["checkpoint"] > 0
        assert WORDS_REMAIN in done.left
        assert bob.session("s").branch().conversation_history == before
        works(ada, "again")
        assert repo.users.delete("ada").sessions == 1
        assert "does not own the tables" in repo.maintenance.gc().problem
        assert repo.maintenance.fsck(3).is_sound


@pytest.mark.long
def test_an_unprivileged_role_creates_and_rotates_keys(database):
    old, new = Keyring.new_key(), Keyring.new_key()
    with agentgit.open(database.url, keyring=Keyring({"a": old})) as repo:
        works(repo, "s")
    with agentgit.open(database.url, keyring=Keyring({"a": old, "b": new}, "b")) as repo:
        assert "does not own the tables" in (rotated := repo.maintenance.rotate_keys()).problem
        assert rotated.changed > 0
        assert repo.maintenance.fsck(3).is_sound
    with agentgit.open(database.url, keyring=Keyring({"b": new})) as repo:
        works(repo, "t")
        assert len(repo.session("s").branch().conversation_history) > 0


def test_an_unprivileged_role_can_check_and_not_change_tables_or_the_trail(world, database):
    schema.compare(database)
    for statement in (
        "ALTER TABLE external_session ADD COLUMN mine int",
        "UPDATE event SET kind = ''", "DELETE FROM event", "TRUNCATE event", "DROP TABLE event",
        "UPDATE agentgit_version SET version_num = '0001f'",
        "ALTER TABLE event DISABLE TRIGGER ALL", "SET session_replication_role = replica",
    ):  # fmt: skip
        with pytest.raises(NotAllowed):
            backend.write(world.repo, lambda c, statement=statement: c.connection.exec_driver_sql(statement))


def test_erasing_keeps_snapshots_that_another_user_has(database, tmp_path):
    (tmp_path / "files").mkdir()
    with Workspace(tmp_path / "files", tmp_path / "store") as workspace, agentgit.open(database.url) as repo:
        for name in ("ada", "bob"):
            theirs = repo.as_user(repo.users.add(name))
            obeying(theirs, workspace=workspace).run("hello")
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
def test_errors_of_an_unprivileged_role_name_the_command_of_the_owner_which_grants(second, apart):
    owner, database = apart
    role = database.url.username
    theirs = f"--db {redacted_url(owner.url)}"
    with pytest.raises(NotAllowed) as refused:
        schema.grant(database, "public", "me")
    assert f"agentgit db upgrade {theirs}" in str(refused.value).replace("'", "")
    schema.upgrade(database)  # the schema is up to date
    backend.migrate(owner, command.downgrade, "0001f")
    with pytest.raises(NotAllowed, match="does not own the tables"):
        schema.upgrade(database)
    with pytest.raises(SchemaMismatch) as refused:
        agentgit.open(database.url)
    said = str(refused.value).replace("'", "")
    assert f"agentgit db upgrade {theirs}" in said
    schema.upgrade(owner)
    tables = len(METADATA.tables) + 1
    words = ("--schema", "public", "--role", role, "--db", backend.address(owner), "--json")
    granted = json.loads(run("db", "grant", *words).out)
    assert granted == {"database": owner.name, "schema": "public", "role": role, "tables": tables}
    with agentgit.open(database.url) as repo:
        works(repo, "s")


def test_bad_roles_are_refused(owner, database):
    with pytest.raises(InvalidInput, match="no roles"), closing(Database(":memory:")) as on_sqlite:
        schema.grant(on_sqlite, "public", "any")
    with pytest.raises(NotAllowed, match="is a superuser"):
        schema.grant(owner, "public", owner.url.username)
    role = database.url.username
    owner.write(lambda c: c.connection.exec_driver_sql(f"GRANT {owner.url.username} TO {role}"))
    with pytest.raises(NotAllowed, match="is a member"):  # a member can become the superuser by SET ROLE
        schema.grant(owner, "public", role)
    owner.write(lambda c: c.connection.exec_driver_sql(f"REVOKE {owner.url.username} FROM {role}"))
    owner.write(
        lambda c: c.connection.exec_driver_sql(
            f"GRANT CREATE ON SCHEMA public TO {role}; ALTER TABLE tag OWNER TO {role}"
        )
    )
    with pytest.raises(NotAllowed, match="owns the tables"):
        schema.grant(owner, "public", role)
    owner.write(lambda c: c.connection.exec_driver_sql(f"ALTER TABLE tag OWNER TO {owner.url.username}"))
