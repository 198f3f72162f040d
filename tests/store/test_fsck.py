"""`maintenance.fsck` finds each kind of damage to the database at its level, and names the row."""

import os
import random
from contextlib import suppress
from io import BytesIO

import backend
import exports
import orjson
import pytest
import served
from langgraph.store.memory import InMemoryStore
from memory_graphs import noting, said
from scripted import GRAPHS, World, obedient, tool_node_graph
from sqlalchemy import literal_column, select, table, text, update

import agentgit
from agentgit import Corrupt, SQLModelSaver
from agentgit.errors import AgentGitError, NotFound
from agentgit.sessions.reports import Finding
from agentgit.store.maintenance.fsck import reading
from agentgit.store.maintenance.fsck.reading import FsckReport, checked
from agentgit.store.maintenance.fsck.rows import references_within_sessions
from agentgit.store.sql.tables import TOOL_INVOCATION

JUNK = bytes(range(32))
MESSAGE = "type = 'message' AND size > 100"


def live(repo):
    """Create a session with two branches, calls, a rollback, a named checkpoint, a tag and values of every kind."""
    world = World()
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    for n in range(4):
        agent.run(f"add i{n}")
    agent.checkpoint("named", data={"a": 1})
    agent.session.tag("named", "v1", branch=agent.branch_id)
    agent.rollback("main#3").run("add x")
    repo.session("s").search("add")
    saver = SQLModelSaver(backend.database(repo))
    graph = GRAPHS["functional"](obedient(), world.tools(), checkpointer=saver)
    graph.invoke({"messages": [("user", "hm")], "n": os.urandom(600_000).hex()}, {"configurable": {"thread_id": "t"}})
    assert repo.maintenance.fsck(level=3).findings == ()


@pytest.fixture
def lived(lived_through):
    return lived_through(live)


def damage(repo, *statements):
    """Run statements with the foreign keys off, and assert that each one changes a row."""

    def work(transaction):
        if not backend.is_sqlite(repo):
            transaction.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            statement = statement.replace("{message}", MESSAGE)
            done = transaction.execute(text(statement), {"junk": JUNK} if ":junk" in statement else {})
            assert done.rowcount != 0, f"nothing was damaged by {statement}"

    if not backend.is_sqlite(repo):
        backend.write(repo, work)
        return
    with backend.database(repo).engine.connect() as connection:
        raw = connection.connection.dbapi_connection
        raw.execute("PRAGMA foreign_keys=OFF")
        work(connection)
        raw.commit()
        raw.execute("PRAGMA foreign_keys=ON")


def all_rows(repo):
    with backend.reading(repo) as transaction:
        return {
            name: sorted(map(repr, transaction.execute(select(literal_column("*")).select_from(table(name)))))
            for name in backend.tables()
        }


def of(repo, level):
    return repo.maintenance.fsck(level=level).findings


S, B, C, P = "external_session", "internal_session", "tool_invocation", "checkpoint"
G, W, L, DOING, V = "graph_checkpoint", "graph_write", "world_log", "operation", "blob"
CIRCLE = """
    UPDATE internal_session
    SET parent_id = (SELECT b.id FROM internal_session b WHERE b.id <> internal_session.id),
        branch_point_id = (SELECT max(c.id) FROM checkpoint c WHERE c.internal_session_id <> internal_session.id)
"""
"""Makes both branches ancestors of each other."""
REPEAT = """
    INSERT INTO world_log
    SELECT external_session_id, seq + one.number, invocation_id, one.action, NULL, created_at FROM world_log, {0} one
    WHERE invocation_id NOT IN (SELECT invocation_id FROM world_log WHERE action = 'reversed')
"""
"""Adds entries to the world log for each call that is done."""
DAMAGES = {
    "a value is gone": (1, "DELETE FROM blob WHERE {message}", V, "its item"),
    "a list is gone": (1, "DELETE FROM blob WHERE type = 'list' AND size = 8", G, "its value"),
    "a record is gone": (1, "DELETE FROM blob WHERE type = 'record'", "graph_", "its value"),
    "a chunk is gone": (1, "DELETE FROM blob WHERE type = 'chunk'", V, "its chunk"),
    "a value has other bytes": (2, "UPDATE blob SET data = :junk WHERE {message}", V, ""),
    "a chunk has other bytes": (2, "UPDATE blob SET data = :junk WHERE type = 'chunk'", V, ""),
    "a value has another type": (2, "UPDATE blob SET type = 'json' WHERE {message}", V, "match"),
    "a value has another size": (2, "UPDATE blob SET size = 7777 WHERE {message}", V, "7777 bytes"),
    "a list has other bytes": (1, "UPDATE blob SET data = :junk WHERE type = 'list'", V, "not a list of hashes"),
    "a list is cut": (1, "UPDATE blob SET data = substr(data, 1, 40) WHERE type = 'list' AND size = 8", V, ""),
    "a list has other items": (
        2,
        "UPDATE blob SET data = (SELECT data FROM blob b WHERE b.type = 'list' AND b.size = 2 LIMIT 1) "
        "WHERE type = 'list' AND size = 8",
        V,
        "does not match its items",
    ),
    "a record has other bytes": (1, "UPDATE blob SET data = :junk WHERE type = 'record'", V, ""),
    "a graph checkpoint is gone": (
        1, "DELETE FROM graph_checkpoint WHERE checkpoint_id IN (SELECT graph_checkpoint_id FROM checkpoint "
        "WHERE name = 'named')", P, "its graph checkpoint",
    ),
    "channels cannot be read": (1, "UPDATE graph_checkpoint SET channels = :junk", G, "channels"),
    "a header cannot be read": (2, "UPDATE graph_checkpoint SET header = :junk", G, "header"),
    "metadata cannot be read": (2, "UPDATE graph_checkpoint SET meta = :junk", G, "metadata"),
    "a state hash is another": (2, "UPDATE graph_checkpoint SET state_hash = :junk", G, "state_hash"),
    "a count is another": (2, "UPDATE graph_checkpoint SET message_count = 99", G, "99 messages"),
    "a write's value is gone": (1, "UPDATE graph_write SET value = :junk", W, "its value"),
    "a session's metadata is torn": (2, "UPDATE external_session SET meta = :junk", S, "meta"),
    "a branch is its own ancestor": (1, CIRCLE, B, "its own ancestor"),
    "a branch has no head": (
        1, "UPDATE internal_session SET head_id = NULL WHERE name = 'main'", B, "it has checkpoints, but no head",
    ),
    "a branch's thread is gone": (
        1, "DELETE FROM graph_checkpoint WHERE thread_id LIKE 'agentgit-%'", P, "its graph checkpoint",
    ),
    "a checkpoint's hash is another": (
        2, "UPDATE checkpoint SET state_hash = :junk WHERE graph_checkpoint_id IS NOT NULL", P, "state_hash",
    ),
    "a checkpoint's count is another": (2, "UPDATE checkpoint SET message_count = 99 WHERE name = 'named'", P, "count"),
    "a checkpoint's data is torn": (2, "UPDATE checkpoint SET data = :junk WHERE name = 'named'", P, "data"),
    "a call's arguments are torn": (2, "UPDATE tool_invocation SET args = :junk", C, "args"),
    "a call's result is torn": (2, "UPDATE tool_invocation SET result = :junk", C, "result"),
    "an operation's request is torn": (2, "UPDATE operation SET request = :junk", DOING, "request"),
    "a position is another": (
        1, "UPDATE checkpoint SET position = position + 1 WHERE kind = 'named'", P, "its position is 5",
    ),
    "a branch inherits too few calls": (
        1, "UPDATE internal_session SET inherited = 2 WHERE name = 'main-2'", B, "it records 2 inherited calls",
    ),
    "a root inherits calls": (
        1, "UPDATE internal_session SET inherited = 1 WHERE name = 'main'", B, "it records 1 inherited calls",
    ),
    "a branch has seen too much": (1, "UPDATE internal_session SET world_seen = 99", B, "99 entries of the world log"),
    "a call that was reversed is done": (
        1, "UPDATE tool_invocation SET status = 'done' WHERE status = 'reversed'", C, "in the world log is reversed",
    ),
    "a call has not begun": (1, "UPDATE tool_invocation SET status = 'intended'", C, "its status is intended"),
    "the world tells another thing": (
        1, "UPDATE world_log SET action = 'done' WHERE action = 'reversed'", C, "in the world log is done",
    ),
    "a call was done twice": (
        1, REPEAT.format("(SELECT 1000 AS number, 'done' AS action)"), C, "done comes after done",
    ),
    "a call failed and was done again": (
        1, REPEAT.format("(SELECT 1000 AS number, 'failed' AS action UNION ALL SELECT 2000, 'done')"),
        C, "failed comes after done",
    ),
    "a call was reversed before it was done": (
        1, "UPDATE world_log SET seq = seq + 1000 WHERE action = 'done' AND invocation_id IN "
        "(SELECT w.invocation_id FROM world_log w WHERE w.action = 'reversed')", C, "done comes after reversed",
    ),
    "a checkpoint has no user": (1, "UPDATE checkpoint SET user_id = 5", P, "its user 5"),
    "a tag has no user": (1, "UPDATE tag SET user_id = 5", "tag 'v1'", "its user 5"),
    "an operation has no user": (1, "UPDATE operation SET user_id = 5", DOING, "its user 5"),
    "a list has another size": (1, "UPDATE blob SET size = size + 1 WHERE type = 'list'", V, "items, but it has"),
    "a list is packed": (1, "UPDATE blob SET codec = 1 WHERE type = 'list'", V, "not a list of hashes"),
    "a state is its own parent": (1, "UPDATE graph_checkpoint SET parent_id = checkpoint_id", G, "saved after it"),
    "states continue each other": (
        1, "UPDATE graph_checkpoint SET parent_id = (SELECT max(g.checkpoint_id) FROM graph_checkpoint g "
        "WHERE g.thread_id = graph_checkpoint.thread_id AND g.ns = graph_checkpoint.ns)", G, "saved after it",
    ),
    "the head's thread was emptied": (
        1,
        "DELETE FROM graph_checkpoint WHERE thread_id = (SELECT thread_id FROM internal_session WHERE name = 'main-2')",
        P, "its graph checkpoint",
    ),
}  # fmt: skip
"""Each damage, with the level that finds it, the statement, and the row and text of the finding."""


@pytest.mark.parametrize("name", DAMAGES)
def test_every_kind_of_damage_is_found_and_named(lived, name):
    level, statement, table, said = DAMAGES[name]
    damage(lived, statement)
    for deep in range(level, 4):
        found = [one for one in of(lived, deep) if one.row.startswith(table) and said in one.what]
        assert found, (deep, of(lived, deep))
        assert all(one.todo.endswith(".") and len(one.todo) > 10 for one in found)
    if level > 1:
        assert not [one for one in of(lived, level - 1) if one.row.startswith(table) and said in one.what]


def test_circular_lists_are_found(lived):
    rows = lived.context.read(
        lambda c: (
            c.execute(text("SELECT hash FROM blob WHERE type = 'list' AND size > 2 ORDER BY size")).scalars().all()
        )
    )
    one, other = rows[-1], rows[-2]
    change = text("UPDATE blob SET data = :data WHERE hash = :key")
    for key, base in ((one, other), (other, one)):
        made = {"data": b"\1" + base + (1).to_bytes(4, "big") * 2 + base, "key": key}
        backend.write(lived, lambda c, made=made: c.execute(change, made))
    assert any("have no first one" in found.what for found in of(lived, 2))


def test_an_unreadable_sqlite_file_is_a_finding(tmp_path):
    path = tmp_path / "torn.db"
    world = World()
    with agentgit.open(path) as repo:
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
        for n in range(20):
            agent.run(f"add {os.urandom(500).hex()}{n}")
        repo.maintenance.gc()
        torn = repo.context.read(
            lambda c: c.execute(text("SELECT rootpage FROM sqlite_master WHERE name = 'blob'")).scalar()
        )
    data = bytearray(path.read_bytes())
    data[(torn - 1) * 4096 : (torn - 1) * 4096 + 64] = os.urandom(64)
    path.write_bytes(bytes(data))
    with agentgit.open(path) as repo:
        found = repo.maintenance.fsck(level=2)
    assert not found.is_sound


def test_findings_above_the_limit_are_only_counted(lived, monkeypatch):
    monkeypatch.setattr(reading, "MOST", 20)
    damage(lived, "UPDATE blob SET data = :junk", "UPDATE graph_checkpoint SET channels = :junk",
           "UPDATE graph_write SET value = :junk")  # fmt: skip
    found = lived.maintenance.fsck(level=2)
    assert len(found.findings) == 20
    assert found.more > 0
    assert found.to_dict()["is_sound"] is False


def test_a_check_changes_nothing_and_does_not_read_from_the_cache(lived):
    lived.session("s").branch().conversation_history  # noqa: B018  # it is read
    damage(lived, "UPDATE blob SET data = :junk WHERE {message}")
    before = all_rows(lived)
    first = of(lived, 2)
    assert first
    assert of(lived, 2) == first
    told = []
    done = lived.maintenance.fsck(level=3, progress=lambda done, total: told.append((done, total)))
    assert set(first) <= set(done.findings)
    assert all(done <= total for done, total in told)
    assert told[-1] == (done.objects, done.objects)
    assert all_rows(lived) == before
    assert isinstance(first[0], Finding)
    assert first[0].row in str(first[0])


def test_only_a_branch_that_starts_before_its_branch_point_inherits_fewer_calls(repo):
    """A branch that a run began in the middle of a turn is sound; with a changed count, any other one is not."""
    world = World()
    app = repo.graph(tool_node_graph(obedient(), world.tools()), effects=world.effects())
    served.run(app, "add a", "add b", "add c")
    _, middle, _ = (one.config for one in app.get_state_history(served.THREAD) if one.next == ("tools",))
    app.invoke(None, middle)  # from its branch point, after b, it inherits only a
    repo.session("t").fork("main#4", name="forked")
    assert repo.maintenance.fsck(level=3).findings == ()
    export = exports.written(repo, "t")
    damage(repo, "UPDATE internal_session SET inherited = 1 WHERE name = 'forked'")
    findings = [str(one) for one in repo.maintenance.fsck(level=1).findings]
    assert any("it records 1 inherited calls, but its branch point has 2" in one for one in findings)

    def inherit_fewer(records):
        branches = {branch["name"]: branch for branch in exports.of(records, "branch")}
        assert (branches["main-2"]["inherited"], branches["forked"]["inherited"]) == (1, 2)
        branches["forked"]["inherited"] = 1

    with agentgit.open(":memory:") as other:
        other.import_(BytesIO(export))
        assert other.maintenance.fsck(level=3).findings == ()
        with pytest.raises(Corrupt, match="it records 1 inherited calls"):
            other.import_(exports.forged(export, inherit_fewer), session="again")


def test_operation_steps_that_refer_to_a_missing_call_are_found(lived):
    rows = lived.context.read(lambda c: c.execute(text("SELECT id, request FROM operation")).all())
    change = text("UPDATE operation SET request = :data WHERE id = :id")
    for id, request in rows:
        plan = {**orjson.loads(request), "steps": [{"invocation": 5, "action": "reverse", "why": ""}]}
        made = {"data": orjson.dumps(plan), "id": id}
        backend.write(lived, lambda c, made=made: c.execute(change, made))
    assert [one.what for one in of(lived, 2)] == ["its call 5 is missing"]


def test_a_check_of_one_session_finds_its_damage_and_no_other(lived):
    (damaged,) = (one for one in lived.sessions() if one.session_name == "s")
    other = lived.session("beside", create=True)
    head = lived.session("s").get_checkpoint("HEAD")
    backend.change(lived, "checkpoint", head.id, position=77)
    found = lived.maintenance.fsck(3).findings
    assert found
    assert lived.maintenance.fsck(3, session="s").findings == found
    assert lived.maintenance.fsck(3, session=damaged).findings == found
    assert lived.maintenance.fsck(3, session=other.id).is_sound
    with pytest.raises(NotFound):
        lived.maintenance.fsck(session="none")


def test_a_step_that_belongs_to_another_session_than_its_branch_is_found_in_a_check_of_the_session(lived):
    other, branch = lived.session("beside", create=True), lived.session("s").branches()[0]
    thread = lived.context.read(lambda c: c.execute(text(f"SELECT thread_id FROM {B} WHERE id = {branch.id}")).scalar())  # noqa: S608  # ours
    damage(lived, f"UPDATE {G} SET external_session_id = {other.id} WHERE thread_id = '{thread}'")  # noqa: S608  # ours
    found = lived.maintenance.fsck(1, session="s").findings
    assert any("belongs to another session" in one.what for one in found)


def test_a_reference_to_a_row_of_another_session_is_found(repo, world, tmp_path):
    for name in ("s", "beside"):
        graph = tool_node_graph(obedient(), world.tools())
        agent = repo.wrap(graph, name, effects=world.effects(), workspace=tmp_path / name)
        agent.run("add a")
        agent.session.tag("HEAD", name, branch=agent.branch_id)
        agent.rollback("main#1")
    assert repo.maintenance.fsck(3).is_sound
    mine, beside = (FsckReport(None, 1, repo.session(name).id) for name in ("s", "beside"))
    found = {}
    for column, target in references_within_sessions():
        key = column.table.primary_key
        with backend.reading(repo) as transaction:
            *row, before = transaction.execute(checked(mine, *key, column)).first()
            stranger = transaction.execute(checked(beside, target.c.id)).scalars().first()
        is_row = [part == value for part, value in zip(key, row, strict=True)]
        change = update(column.table).where(*is_row)
        backend.write(
            repo, lambda c, change=change, name=column.name, to=stranger: c.execute(change.values({name: to}))
        )
        whole = repo.maintenance.fsck(1).findings
        assert repo.maintenance.fsck(1, session="s").findings == whole
        assert repo.maintenance.fsck(1, session="beside").is_sound
        found[str(column)] = [one.what for one in whole if f"its {column.name} {stranger}" in one.what]
        backend.write(repo, lambda c, change=change, name=column.name, to=before: c.execute(change.values({name: to})))
    assert found.keys() == {
        "checkpoint.workspace_snapshot_id", "operation.target_id", "tag.checkpoint_id", "tool_invocation.parent_id",
        "tool_invocation.replay_of", "world_log.invocation_id", "world_log.operation_id",
    }  # fmt: skip
    assert [column for column, whats in found.items() if len(whats) != 1 or "of its session" not in whats[0]] == []
    assert repo.maintenance.fsck(3).is_sound


def test_a_circle_of_branches_ends_with_the_name_of_the_branch(lived):
    damage(lived, CIRCLE)
    session = lived.session("s")
    for read in (session.tool_track, lambda: list(session.log()), lambda: session.plan_rollback("main#1")):
        with pytest.raises(Corrupt, match="The ancestors of branch main"):
            read()
    assert str(session.tree())
    assert str(session.folded_tree())


IN_DOUBT = ("unknown", "reverse_failed", "reverse_unknown")


@pytest.mark.parametrize("seed", range(4))
def test_true_histories_have_no_findings(repo, seed):
    """Turns, failing tools and undo functions, rollbacks, redo, switches, forks, exploration, imports and templates."""
    rng, world, done = random.Random(seed), World(), set()  # noqa: S311  # not a secret
    graph = tool_node_graph(obedient(), world.tools())
    names = ["s"]

    def point():
        return rng.choice(list(repo.session(names[-1]).log()))

    def branch():
        return rng.choice([one.name for one in repo.session(names[-1]).branches()])

    def orders():
        return "; ".join(rng.sample(["add a", "charge 5", "send hi", "note n", "look", "add b", "fail x"], 2))

    def doubtful():
        return rng.choice([one for one in backend.journal(repo) if one.status in IN_DOUBT])

    def take(file):
        names.append(repo.import_(file).session.session_name)

    verbs = {
        "turn": lambda agent: agent.run(orders()),
        "another turn": lambda agent: agent.run(orders()),
        "failing turn": lambda agent: agent.run(rng.choice(["fail x", "add b; fail x"])),
        "rollback": lambda agent: agent.rollback(point(), force=True),
        "rollback that runs calls": lambda agent: agent.rollback(point(), replay="execute", force=True),
        "undo that fails": lambda agent: world.broken.update(["a", "5"]) or agent.undo(force=True),
        "undo": lambda agent: world.broken.clear() or agent.undo(force=True),
        "redo": lambda _: repo.session(names[-1]).redo(force=True),
        "switch": lambda _: repo.session(names[-1]).switch(branch(), force=True),
        "fork": lambda agent: agent.fork(point()),
        "explore": lambda agent: agent.explore([orders()], 2),
        "named": lambda agent: agent.session.tag(agent.checkpoint().id, f"v{rng.random()}"),
        "resume": lambda _: (
            world.broken.clear() or repo.resume(repo.session(names[-1]).operations()[-1].id, force=True)
        ),
        "resolve": lambda _: repo.resolve(doubtful(), rng.choice(["happened", "did_not_happen"])),
        "import": lambda _: take(BytesIO(exports.written(repo, names[-1]))),
        "template": lambda agent: repo.wrap(graph, f"t{rng.random()}", effects=world.effects(), template=point()),
        "retention": lambda _: repo.session(names[-1]).cleanup_auto_checkpoints(keep=1),
    }
    repo.wrap(graph, "s", effects=world.effects()).run("add a; charge 5")
    for _ in range(30):
        verb = rng.choice([*verbs, "turn", "turn", "turn"])
        with suppress(RuntimeError, AgentGitError, LookupError):  # a tool raises, or the verb is refused here
            verbs[verb](repo.wrap(graph, names[-1], effects=world.effects()))
            done.add(verb)
    assert repo.maintenance.fsck(3).findings == ()
    assert all(repo.maintenance.fsck(3, session=one).is_sound for one in repo.sessions())
    assert len(done) > 6


def test_fsck_names_a_write_to_memory_without_its_item():
    """A plan needs the item of a write to memory and the value before it, so fsck checks them."""
    with agentgit.open(":memory:") as repo:
        repo.wrap(noting(InMemoryStore()), "s").invoke(said("+food=pizza"))
        backend.write(repo, lambda c: c.execute(TOOL_INVOCATION.update().values(args=b'{"key":"food"}')))
        assert [one.what for one in repo.maintenance.fsck(2).findings] == [
            "it is a write to memory without the item or the value before it"
        ]


@pytest.mark.parametrize(
    "value", ["x", "2026-01-01", "2026-01-01 00:00:00", "2026-13-45 00:00:00.000000", "2026-02-30 00:00:00.000000"]
)
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)  # PostgreSQL has a type for times
def test_an_invalid_time_is_refused(lived, value):
    for name in ("checkpoint", "tool_invocation", "operation", "world_log", "tag"):
        with pytest.raises(AgentGitError):
            backend.write(lived, lambda c, name=name: c.execute(text(f"UPDATE {name} SET created_at = '{value}'")))  # noqa: S608  # ours


@pytest.mark.parametrize(
    "statement", ["UPDATE tool_invocation SET args = :junk", "UPDATE tool_invocation SET result = :junk"]
)
def test_bad_input_an_unreadable_call_raises_corrupt(lived, statement):
    damage(lived, statement)
    with pytest.raises(Corrupt, match="agentgit fsck") as caught:
        lived.session(lived.sessions()[0].id).tool_track()
    assert caught.value.row.startswith("tool_invocation ")
