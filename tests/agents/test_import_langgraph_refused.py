"""Refused, hostile and concurrent imports, which raise typed errors and leave no thread partly visible."""

import os
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import backend
import faults
import ormsgpack
import points
import pytest
from foreign_threads import on, postgres_origin, said, shop, sqlite_origin
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver
from scripted import World

import agentgit
from agentgit import Conflict, Corrupt, InvalidInput, NotFound, SchemaMismatch, Unavailable


@pytest.fixture
def origin(tmp_path):
    """Create a SQLite source database with the threads `a`, `b` and `c`."""
    made = sqlite_origin(tmp_path)
    for thread in ("a", "b", "c"):
        made.talk(shop(World()), thread, "order a chair", "hello")
    return made


@pytest.fixture
def repo(tmp_path):
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        yield repo


DAMAGE = {
    "cut bytes": "UPDATE checkpoints SET checkpoint = substr(checkpoint, 1, 100) WHERE thread_id = 'b' AND {}",
    "other bytes": "UPDATE checkpoints SET checkpoint = x'ff00ff00' WHERE thread_id = 'b' AND {}",
    "nothing": "UPDATE checkpoints SET checkpoint = NULL WHERE thread_id = 'b' AND {}",
    "no record": "UPDATE checkpoints SET checkpoint = x'01' WHERE thread_id = 'b' AND {}",
    "broken metadata": "UPDATE checkpoints SET metadata = '{{' WHERE thread_id = 'b' AND {}",
    "metadata of another kind": "UPDATE checkpoints SET metadata = '[]' WHERE thread_id = 'b' AND {}",
    "another id": "UPDATE checkpoints SET checkpoint_id = checkpoint_id || 'x' WHERE thread_id = 'b' AND {}",
    "a long id": "UPDATE checkpoints SET checkpoint_id = 'f' || hex(zeroblob(99)) WHERE thread_id = 'b' AND {}",
    "no text": "UPDATE checkpoints SET checkpoint_ns = CAST(x'ff' AS TEXT) WHERE thread_id = 'b' AND {}",
    "broken write": "UPDATE writes SET value = x'c1' WHERE thread_id = 'b' AND {}",
}
NEWEST = "checkpoint_id = (SELECT max(checkpoint_id) FROM checkpoints WHERE thread_id = 'b')"
OLDEST = "checkpoint_id = (SELECT min(checkpoint_id) FROM checkpoints WHERE thread_id = 'b')"


@pytest.mark.each_value_once
@pytest.mark.parametrize("where", [NEWEST, OLDEST], ids=["newest", "oldest"])
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_thread_is_named_and_not_imported(repo, origin, damage, where):
    if damage == "broken write":
        where = OLDEST  # the newest graph checkpoint of a finished thread has no writes
    origin.execute(DAMAGE[damage].format(where))
    report = repo.import_langgraph(origin.url, on_error="continue")
    assert [one.status for one in report.threads if one.thread_id != "b"] == ["imported"] * 2
    if damage == "another id" and where == OLDEST:
        return  # the thread then looks like one whose beginning was pruned
    (failed,) = report.failed
    assert type(failed.error) is Corrupt
    assert "'b'" in str(failed.error)
    assert {s.session_name for s in repo.sessions()} == {"a", "c"}
    assert len(backend.threads(repo)) == 2
    with pytest.raises(Corrupt, match="'b'"):
        repo.import_langgraph(origin.url)


def test_circular_parents_are_refused(repo, origin):
    newest = origin.tuples("b")[0].config["configurable"]["checkpoint_id"]
    origin.execute(f"UPDATE checkpoints SET parent_checkpoint_id = ? WHERE {OLDEST}", newest)  # noqa: S608  # our own words
    with pytest.raises(Corrupt, match="circle"):
        repo.import_langgraph(origin.url, ["b"])


def test_an_imported_value_cannot_call_a_function(repo, origin, tmp_path):
    trap = ormsgpack.Ext(0, ormsgpack.packb(("os", "mkdir", str(tmp_path / "trap"))))
    serde = JsonPlusSerializer()
    checkpoint = origin.tuples("b")[0].checkpoint
    checkpoint["channel_values"]["trap"] = trap
    damaged = f"UPDATE checkpoints SET checkpoint = ? WHERE {NEWEST}"  # noqa: S608  # our own words
    origin.execute(damaged, serde.dumps_typed(checkpoint)[1])
    repo.import_langgraph(origin.url)
    assert repo.session("b").get_checkpoint("HEAD").session_state["trap"] is not None
    assert not (tmp_path / "trap").exists()


def test_secrets_are_not_imported(repo, tmp_path):
    origin = sqlite_origin(tmp_path)
    with origin.saver() as saver:
        shop(World())(saver).invoke(said("hello"), on("t", api_key="sk-1", tenant="acme", session_token="x"))  # noqa: S106  # no secret
    (one,) = repo.import_langgraph(origin.url).threads
    assert one.hidden == ("api_key", "session_token")
    metadata = next(repo.wrap(shop(World())(None), "t").get_state_history()).metadata
    assert metadata["tenant"] == "acme"
    assert "api_key" not in metadata


class Reversed(JsonPlusSerializer):
    def dumps_typed(self, obj):
        kind, data = super().dumps_typed(obj)
        return f"{kind}+own", data[::-1]

    def loads_typed(self, data):
        return super().loads_typed((data[0].removesuffix("+own"), data[1][::-1]))


def test_values_of_a_custom_serializer_need_the_programs_saver(repo, tmp_path):
    with closing(sqlite3.connect(tmp_path / "own.db", check_same_thread=False)) as connection:
        saver = SqliteSaver(connection, serde=Reversed())
        shop(World())(saver).invoke(said("hello"), on("t"))
        with pytest.raises(InvalidInput, match=r"'msgpack\+own'.*its own saver"):
            repo.import_langgraph(tmp_path / "own.db")
        assert repo.sessions() == []
        repo.import_langgraph(saver)
    assert repo.session("t").get_checkpoint("HEAD").conversation_history[-1]["content"] == "Hello."


class Fickle(InMemorySaver):
    reads = 0

    def get_tuple(self, config):
        found = super().get_tuple(config)
        if found is not None:
            self.reads += 1
            found.checkpoint["channel_values"]["reads"] = self.reads
        return found


def test_a_thread_that_reads_differently_after_storing_is_refused(repo):
    saver = Fickle()
    shop(World())(saver).invoke(said("hello"), on("t"))
    with pytest.raises(Corrupt, match=r"'t'.*channel 'reads'"):
        repo.import_langgraph(saver)
    assert repo.sessions() == []
    assert backend.threads(repo) == set()


def test_an_unsuitable_source_is_refused_with_a_description(repo, tmp_path):
    (tmp_path / "text").write_text("hello, this is no database at all")
    (tmp_path / "empty").touch()
    for name, statement in {
        "shop.db": "CREATE TABLE chair (id)",
        "near.db": "CREATE TABLE checkpoints (thread_id, checkpoint)",
    }.items():
        with closing(sqlite3.connect(tmp_path / name)) as connection, connection:
            connection.execute(statement)
    for name, says in {
        "text": "it begins with b'hello, this is n'",
        "empty": "with no tables",
        "shop.db": "with the tables chair",
        "near.db": "checkpoint_id",
        "agentgit.db": "of agentgit:",
        ".": "is a directory",
    }.items():
        with pytest.raises(SchemaMismatch, match=re.escape(says)):
            repo.import_langgraph(tmp_path / name)
    for where, kind in {
        "nothing.db": NotFound, ":memory:": NotFound, "mysql://x/y": InvalidInput, "://": InvalidInput,
        "postgresql://postgres:secret@127.0.0.1:1/x": Unavailable,
    }.items():  # fmt: skip
        with pytest.raises(kind) as failed:
            repo.import_langgraph(where)
        assert "secret" not in str(failed.value)
    with pytest.raises(InvalidInput, match="not a saver"):
        repo.import_langgraph(42)


def test_an_unsuitable_postgresql_database_is_refused(repo, postgres_url):
    with pytest.raises(SchemaMismatch, match="of agentgit:"):
        repo.import_langgraph(postgres_url.render_as_string(hide_password=False))
    with postgres_origin(postgres_url) as empty, pytest.raises(SchemaMismatch, match="with no tables"):
        repo.import_langgraph(empty.url)


def test_wrong_arguments_are_refused(repo, origin):
    with pytest.raises(NotFound, match="'d'"):
        repo.import_langgraph(origin.url, ["d"])
    with pytest.raises(InvalidInput, match="1 to 200"):
        repo.import_langgraph(origin.url, ["a"], session_prefix="x" * 200)
    (one,) = repo.import_langgraph(origin.url, ["a"], session_prefix="x" * 200, on_error="continue").failed
    assert one.session_name == "x" * 200 + "a"
    with pytest.raises(InvalidInput, match="on_error"):
        repo.import_langgraph(origin.url, on_error="ignore")
    with pytest.raises(InvalidInput, match=r"\['a'\]"):
        repo.import_langgraph(origin.url, "a")
    assert repo.sessions() == []


def test_a_session_with_other_content_stays_unchanged(repo, origin):
    """An import never extends a session that was not made from the thread, but fills an empty one."""
    repo.wrap(shop(World())(None), "a").run("hello")
    repo.session("b", create=True)
    with pytest.raises(Conflict, match="'a' already exists"):
        repo.import_langgraph(origin.url, ["a"])
    assert len(repo.session("a").checkpoints()) == 2
    repo.import_langgraph(origin.url, ["a", "b"], session_prefix="old-")
    assert {s.session_name for s in repo.sessions()} == {"a", "b", "old-a", "old-b"}
    repo.import_langgraph(origin.url, ["b"])
    assert len(repo.session("b").checkpoints()) == 4


def test_a_session_continued_after_its_import_is_not_extended(repo, origin):
    repo.import_langgraph(origin.url, ["a"])
    repo.wrap(shop(World())(None), "a").run("hello")
    assert [one.status for one in repo.import_langgraph(origin.url, ["a"]).threads] == ["unchanged"]
    origin.talk(shop(World()), "a", "hello")
    with pytest.raises(Conflict, match="new turns in its own database"):
        repo.import_langgraph(origin.url, ["a"])
    assert len(repo.session("a").checkpoints()) == 6


def test_a_running_session_is_not_extended(repo, origin):
    repo.import_langgraph(origin.url, ["a"])
    origin.talk(shop(World()), "a", "hello")
    agent = repo.wrap(shop(World())(None), "a")
    turn = agent.stream(said("hello"))
    next(turn)
    with pytest.raises(Conflict):
        repo.import_langgraph(origin.url, ["a"])
    list(turn)
    assert len(repo.session("a").checkpoints()) == 6


def test_two_concurrent_imports_duplicate_nothing(repo, origin):
    def bring_in():
        with agentgit.open(backend.url(repo)) as mine:
            return mine.import_langgraph(origin.url, on_error="continue")

    with ThreadPoolExecutor(2) as pool:
        reports = [one.result() for one in [pool.submit(bring_in), pool.submit(bring_in)]]
    assert all(isinstance(failed.error, Conflict) for report in reports for failed in report.failed)
    assert repo.import_langgraph(origin.url).failed == []
    assert sorted(s.session_name for s in repo.sessions()) == ["a", "b", "c"]
    assert [len(repo.session(name).checkpoints()) for name in "abc"] == [4, 4, 4]
    assert [len(repo.session(name).tool_track()) for name in "abc"] == [1, 1, 1]
    assert len(backend.threads(repo)) == 3


def test_a_late_import_leaves_nothing_behind(repo, origin):
    overtaken = []

    def overtake():
        if not overtaken:
            overtaken.append(True)
            repo.import_langgraph(origin.url, ["a"])

    with faults.after(points.LOOK_FOR_IMPORTED, overtake), pytest.raises(Conflict, match="changed while"):
        repo.import_langgraph(origin.url, ["a"])
    assert overtaken
    assert len(backend.threads(repo)) == 1
    assert len(repo.session("a").checkpoints()) == 4


STEPS = {
    "it is read back": points.READ_BACK_IMPORTED,
    "it is compared": points.COMPARE_IMPORTED,
    "it lands": points.LAND_IMPORTED,
    "its rows land": points.LAND_IMPORTED_ROWS,
}


@pytest.mark.parametrize("step", STEPS)
def test_an_import_whose_rows_were_removed_raises_a_conflict(repo, origin, step):
    point, taken = STEPS[step], []

    def emptied(plain, *args, **kwargs):
        if not taken:
            taken.extend(backend.threads(repo))
            inside = args[1] if point == points.LAND_IMPORTED_ROWS else None  # this step runs in a transaction
            faults.delete_thread(repo, taken[0], inside)
        found = plain(*args, **kwargs)
        return found if point != points.COMPARE_IMPORTED else ["channel 'messages'"]

    with faults.around(point, emptied), pytest.raises(Conflict, match="Is another import of it running"):
        repo.import_langgraph(origin.url, ["a"])
    assert len(taken) == 1
    assert repo.sessions() == []
    assert backend.threads(repo) == set()
    assert repo.import_langgraph(origin.url, ["a"]).failed == []
    assert len(repo.session("a").checkpoints()) == 4


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_in_a_read_only_folder_can_be_imported(repo, origin, tmp_path):
    folder = tmp_path / "sealed"
    folder.mkdir()
    (folder / "langgraph.db").write_bytes((tmp_path / "langgraph.db").read_bytes())
    folder.chmod(0o500)
    try:
        assert repo.import_langgraph(folder / "langgraph.db").count("imported") == 3
    finally:
        folder.chmod(0o700)
