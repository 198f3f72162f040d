"""A transaction that the server aborts and that runs again has the same result as one that runs once."""

import io
from contextlib import closing

import pytest
from exports import written
from langgraph.checkpoint.sqlite import SqliteSaver
from scripted import World, obedient, obeying, tool_node_graph

import agentgit
from agentgit.checkpoints import Retention
from agentgit.store.database import Database
from agentgit.store.sql.tables import METADATA

BREAKS_OFF = """
CREATE SEQUENCE broken_off;
CREATE FUNCTION break_off() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF coalesce(current_setting('test.passes', true), '') = pg_current_xact_id()::text THEN RETURN NULL; END IF;
    IF nextval('broken_off') %% 2 = 1 THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END IF;
    PERFORM set_config('test.passes', pg_current_xact_id()::text, true);
    RETURN NULL;
END $$
"""
"""A trigger function that aborts every other transaction at its commit; no rollback resets its sequence."""


@pytest.fixture
def breaking(postgres_url):
    """Yield a function that makes the server abort each later write transaction once."""

    def begin():
        with closing(Database(postgres_url)) as database:
            database.write(lambda c: [c.connection.exec_driver_sql(one) for one in [BREAKS_OFF, *triggers]])

    triggers = [
        f'CREATE CONSTRAINT TRIGGER break_off AFTER INSERT OR UPDATE OR DELETE ON "{table.name}" '
        "DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION break_off()"
        for table in METADATA.sorted_tables
    ]
    yield begin
    with closing(Database(postgres_url)) as database:
        database.write(lambda c: c.connection.exec_driver_sql("DROP FUNCTION IF EXISTS break_off CASCADE"))
        database.write(lambda c: c.connection.exec_driver_sql("DROP SEQUENCE IF EXISTS broken_off"))


def broken_off(url):
    with closing(Database(url)) as database, database.reading() as transaction:
        return transaction.connection.exec_driver_sql("SELECT last_value / 2 FROM broken_off").scalar_one()


def live(repo, threads):
    """Run turns, rollbacks, switches, merges, explorations, imports and maintenance, and return the results."""
    world, progress = World(), []
    agent = obeying(repo, world)
    agent.run("add chair; charge 5")
    agent.checkpoint("mine", data={"a": 1})
    agent.session.tag("mine", "v1", branch=agent.branch_id)
    agent.run("add table; note x")
    other = agent.rollback("main#3", force=True)
    agent = agent.switch("main", sync="note")
    agent.run("look")
    agent = agent.switch("main", sync="world")
    agent.undo(force=True).redo(force=True)
    third = agent.fork(name="third")
    third.run("look")
    agent.merge("third")
    agent.cherry_pick(agent.head)
    agent.explore(1, ["hello", "look"], score=lambda leaf: 1.0)
    file = io.BytesIO(written(repo, "s"))
    carried = repo.import_(file, session="copy", progress=lambda done, of: progress.append(done <= of))
    imported = repo.import_langgraph(threads)
    repo.session("s").retention.set(Retention(max_checkpoints=50))
    repo.maintenance.gc(progress=lambda done, of: progress.append(done <= of))
    assert all(progress)
    return [
        *(shape(one) for one in (agent, other, obeying(repo, world, "copy"))),
        {name: sorted(map(repr, what)) for name, what in vars(world).items()},
        [carried.tool_calls, carried.checkpoints],
        [one.status for one in imported.threads],
        [(one.kind, one.status) for one in repo.session("s").operations()],
        sorted(event.kind for event in repo.events.newest(session="s")),
    ]


def shape(agent):
    """Return the parts of a session that are equal in two runs, without ids and times."""
    return [
        [(message.type, message.content, message.name) for message in agent.messages()],
        [(call.tool_name, call.args, call.result, call.status, call.kind) for call in agent.tool_track()],
        [(point.metadata["reference"], point.get_summary().partition(" - ")[0]) for point in agent.checkpoints()],
        [(branch.name, branch.status) for branch in agent.session.branches()],
    ]


@pytest.fixture
def threads(tmp_path):
    path = tmp_path / "threads.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        graph = tool_node_graph(obedient(), World().tools(), saver)
        graph.invoke({"messages": [("user", "add lamp")]}, {"configurable": {"thread_id": "t"}})
    return path


@pytest.mark.long
def test_t_retried_transactions_leave_the_same_result(postgres_url, breaking, threads, tmp_path):
    with agentgit.open(tmp_path / "calm.db") as repo:
        calm = live(repo, threads)
    with agentgit.open(postgres_url) as repo:
        breaking()
        again = live(repo, threads)
        assert repo.maintenance.fsck(level=3).findings == ()
    assert broken_off(postgres_url) > 50
    assert again == calm


def test_t_a_note_is_added_once_if_the_start_of_a_turn_is_retried(postgres_url, breaking):
    with agentgit.open(postgres_url) as repo:
        agent = obeying(repo)
        agent.run("add chair")
        agent.run("add table")
        agent.rollback("main#3")
        agent = agent.switch("main", sync="note")
        breaking()
        agent.run("look")
        assert sum(message.name == "agentgit" for message in agent.messages()) == 1
