"""Erasure removes all data of a session or a user, and leaves shared data of others intact."""

from datetime import UTC, datetime
from pathlib import Path

import backend
import pytest
from sqlalchemy import text

import agentgit
from agentgit.demo import EFFECTS, build
from agentgit.errors import Conflict, Corrupt, InvalidInput, NotAllowed, NotFound
from agentgit.handles.retention import WORDS_REMAIN
from agentgit.store.sql.tables import SEARCH_INDEX

MARK = "zebrafish"

INDEX_FILE = f"SELECT pg_read_binary_file(pg_relation_filepath('{SEARCH_INDEX}'))"


def files_hold(repo, words):
    """Return whether the files of the database hold a word: of SQLite, or that of the search index on PostgreSQL."""
    database = backend.database(repo)
    if database.is_sqlite:
        files = [Path(path).read_bytes() for path in database.files if Path(path).exists()]
    else:
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").exec_driver_sql("CHECKPOINT")
            files = [connection.exec_driver_sql(INDEX_FILE).scalar_one()]
    return any(words.encode() in file for file in files)


@pytest.fixture
def two(repo, tmp_path):
    """Create two sessions that share a message; the first one has the mark in its names, contents and files."""
    repo = agentgit.open(backend.url(repo), compression="none")
    shop = str(tmp_path / "shop.db")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text(MARK)
    first = repo.wrap(build(shop), session=MARK, effects=EFFECTS, workspace=tmp_path / "files")
    first.run("order two chairs")
    first.checkpoint(f"{MARK} place", description=f"{MARK} told", data={MARK: 1})
    repo.session(MARK).tag("HEAD", f"{MARK}-tag")
    first.run(f"note {MARK}")
    second = repo.wrap(build(shop), session="other", effects=EFFECTS)
    second.run("order two chairs")
    first.rollback(f"{MARK} place")
    for name in (MARK, "other"):
        assert len(list(repo.session(name).search("chairs"))) > 0
    yield repo
    repo.close()


def test_erasing_a_session_leaves_no_data_and_spares_others(two):
    session = two.session(MARK)
    other = two.session("other").branch().conversation_history
    head = two.session("other").get_checkpoint("HEAD").to_dict()
    assert MARK in backend.as_stored(two)
    before = two.events.newest(session=MARK, limit=1000)
    done = two.session(MARK).delete(force=True)
    assert done.rows["checkpoint"] > 3
    assert done.values > 0
    assert done.events == len(before)
    assert done.snapshots > 0
    is_sqlite = backend.database(two).is_sqlite
    assert done.left == ([] if is_sqlite else [WORDS_REMAIN])
    assert MARK not in backend.as_stored(two)
    assert files_hold(two, MARK) is not is_sqlite
    assert two.maintenance.gc().problem == ""
    assert not files_hold(two, MARK)
    with pytest.raises(NotFound):
        two.session(MARK)
    assert two.session("other").branch().conversation_history == other
    assert two.session("other").get_checkpoint("HEAD").to_dict() == head
    assert two.maintenance.fsck(3).findings == ()
    assert [hit.kind for hit in two.session("other").search("chairs")] != []
    (told,) = two.events.newest(kinds="session.erased")
    assert (told.detail["erased"], told.user_id, told.owner_id) == (session.id, two.user.id, two.user.id)


def test_damage_of_another_session_keeps_no_erased_words(two):
    two.session(MARK).delete(force=True)
    damage = text("UPDATE blob SET data = :junk WHERE type = 'list' AND external_session_id = :other")
    backend.write(two, lambda c: c.execute(damage, {"junk": b"", "other": two.session("other").id}))
    with agentgit.open(backend.url(two)) as fresh:
        with pytest.raises(Corrupt):
            fresh.maintenance.gc()
        assert not files_hold(fresh, MARK)


@pytest.mark.long
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_erasing_a_session_clears_the_planner_statistics(repo, tmp_path):
    known = text(
        "SELECT tablename || '.' || attname || ' ' || "
        "concat_ws(' ', most_common_vals::text, histogram_bounds::text, most_common_elems::text) "
        "FROM pg_stats WHERE schemaname = current_schema()"
    )

    def told():
        with backend.reading(repo) as transaction:
            rows = transaction.execute(known).scalars().all()
        return [row.partition(" ")[0] for row in rows if MARK in row or MARK.encode().hex() in row]

    repo = agentgit.open(backend.url(repo), compression="none")
    for name in (MARK, "other"):
        agent = repo.wrap(build(str(tmp_path / "shop.db")), session=name, effects=EFFECTS)
        for number in range(3):
            agent.run(f"note {name} {number}")
            agent.checkpoint(f"{name} place {number}")
            repo.session(name).tag("HEAD", f"{name}-{number}")
        assert len(list(repo.session(name).search("note"))) > 0
    backend.database(repo).shrink(wipe=True)
    assert {"blob.data", "checkpoint.name", "search_text.words", "tag.name"} <= set(told())
    repo.session(MARK).delete(force=True)
    assert repo.maintenance.gc().problem == ""
    assert told() == []
    repo.close()


def test_a_running_session_is_not_erased(two):
    branch = two.session("other").branch()
    with backend.at_work(two) as alive:
        backend.take(two, branch, alive)
        with pytest.raises(Conflict, match="Nothing was erased"):
            two.session("other").delete(force=True)
    assert two.session("other").branch().checkpoint_count == branch.checkpoint_count
    assert two.session("other").delete(force=True).sessions == 1


@pytest.mark.long
def test_erasing_a_user_removes_everything_of_the_user(two, tmp_path):
    bob, ann = (two.as_user(two.users.add(name)) for name in ("bob", MARK))
    (tmp_path / "hers").mkdir()
    (tmp_path / "hers" / "a.txt").write_text("hers")
    ann.wrap(build(str(tmp_path / "shop.db")), "hers", effects=EFFECTS, workspace=tmp_path / "hers").run("hello")
    ann.wrap(build(str(tmp_path / "shop.db")), "more", template="hers", workspace=tmp_path / "hers").checkpoint("same")
    two.session("other").sharing.share(ann.user, "editor")
    mine = ann.session("other").get_checkpoint("HEAD")
    ann.session("other").tag("HEAD", "good")
    ann.session("other").checkpoint("in another's")
    ann.session("hers").sharing.share(bob.user, "viewer")
    two.session("other").sharing.share(bob.user, "viewer")
    bob.session("copied", create=True, template=f"{MARK}/hers@HEAD")
    assert MARK in bob.session("copied").get_checkpoint("main#1").metadata["description"]
    bob.session("bobs", create=True)
    bob.session("bobs").sharing.share(ann.user, "editor")
    key = two.keys.create("a key", user=ann.user)
    by_key, by_name = two.authenticate(key.secret), agentgit.open(backend.url(two), user=MARK)
    done = two.users.delete(ann.user, force=True)
    assert (done.sessions, done.rows["user"], done.rows["session_member"], done.rows["api_key"]) == (2, 1, 3, 1)
    assert (done.snapshots > 0, set(done.left) <= {WORDS_REMAIN}) == (True, True)
    two.session(MARK).delete(force=True)
    assert MARK not in backend.as_stored(two)
    assert two.maintenance.gc().problem == ""
    assert not files_hold(two, MARK)
    assert by_name.sessions() == []
    for ended in (ann.sessions, by_key.sessions, lambda: by_name.session("again", create=True)):
        with pytest.raises(NotAllowed):
            ended()
    by_name.close()
    assert [session.session_name for session in bob.sessions()] == ["bobs", "copied", "other"]
    assert bob.session("copied").get_checkpoint("main#1").metadata["description"] == "from an erased session"
    with pytest.raises(Conflict, match="created from an erased session"):
        bob.session("copied", create=True, template="other@HEAD")
    assert next(point.user_id for point in two.session("other").log()) == ann.user.id != mine.user_id
    assert [event.user_id for event in two.events.newest(session="other", kinds="tag.*")] == [ann.user.id]
    assert two.maintenance.fsck(3).findings == ()


def test_only_admins_and_the_user_may_erase_a_user(two):
    bob, ann = (two.as_user(two.users.add(name, is_admin=name == "ann")) for name in ("bob", "ann"))
    narrow = two.authenticate(two.keys.create("a key", "write", user="bob").secret)
    for who, refused in ((bob, "ann"), (narrow, "bob")):
        with pytest.raises(NotAllowed):
            who.users.delete(refused, force=True)
    with pytest.raises(InvalidInput, match="local owner"):
        two.users.delete("local", force=True)
    bob.session("bobs", create=True)
    assert bob.users.delete("bob", force=True).sessions == 1
    with pytest.raises(NotFound):
        two.users.delete("bob", force=True)
    backend.write(two, lambda c: two.context.store.users.change(c, two.user.id, {"disabled_at": datetime.now(UTC)}))
    with pytest.raises(Conflict, match="last admin"):
        ann.users.delete("ann", force=True)
    assert [user.name for user in ann.users.list()] == ["ann", "local"]
