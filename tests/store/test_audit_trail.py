"""The audit trail records each event in the transaction of its change, and detects tampering."""

import subprocess
import sys
import threading
from collections import Counter
from contextlib import closing
from datetime import UTC, datetime, timedelta

import backend
import points
import pytest
from scripted import World, call, obedient, scripted, tool_node_graph
from sqlalchemy import delete, insert, text, update

import agentgit
from agentgit import Conflict, InvalidInput, NotAllowed, NotFound, RollbackIncomplete
from agentgit.checkpoints import Retention
from agentgit.errors import AgentGitError
from agentgit.sessions.events import KINDS, match_kinds, tips_of
from agentgit.store.audit.trail import record_event
from agentgit.store.database import Database
from agentgit.store.records.checkpoints import named_label
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import AUDIT_EVENT


@pytest.fixture
def world():
    return World()


@pytest.fixture
def agent(repo, world):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


def kinds(repo, of=None, **how):
    """Return the kinds of the events, except created checkpoints."""
    return [event.kind for event in repo.events.list(session=of, **how) if event.kind != "checkpoint.created"]


def tamper(repo, *statements):
    """Change the trail past its triggers, as the owner of the database can."""

    def work(connection):
        if connection.dialect.name == "sqlite":
            for name in ("update", "delete", "replace"):
                connection.execute(text(f"DROP TRIGGER IF EXISTS audit_event_no_{name}"))
        else:
            connection.execute(text("SET LOCAL session_replication_role = replica"))
        for statement in statements:
            connection.execute(statement)

    backend.write(repo, work)


def test_the_trail_records_events_in_order(repo, agent, world):
    """Turns, calls, rollbacks, forks, switches, tags, retention and gc are recorded with user and details."""
    agent.run("add chair")
    agent.run("look")
    retry = agent.rollback("main#1")
    retry.fork(name="aside")
    retry = retry.switch("main")
    repo.session().tag("main#2", "v1")
    repo.session().untag("v1")
    repo.session("s").retention.set(Retention(max_checkpoints=5))
    repo.session("s").retention.set(None)
    repo.maintenance.gc(shrink=False)
    found = list(repo.events.list())
    assert [event.kind for event in found if event.kind != "checkpoint.created"] == [
        "session.created", "call.done", "turn.done", "turn.done", "rollback.begun", "call.reversed", "rollback.done",
        "fork.done", "switch.done", "tag.created", "tag.deleted", "retention.changed", "retention.changed", "gc.done",
    ]  # fmt: skip
    of_session = [event for event in found if event.session_id is not None]
    assert [event.number for event in of_session] == list(range(1, len(of_session) + 1))
    assert {event.session_name for event in of_session} == {"s"}
    by_kind = {event.kind: event for event in found}
    assert by_kind["call.done"].detail["tool"] == "add"
    assert (by_kind["rollback.done"].branch_name, by_kind["rollback.done"].detail["reversed"]) == ("main-2", 1)
    assert by_kind["tag.created"].user_id == repo.user.id
    assert by_kind["gc.done"].session_id is None
    assert repo.events.verify().is_sound
    assert set(by_kind) <= set(KINDS)


def test_a_failed_transaction_records_no_event(repo, agent):
    """An event is written in the transaction of its change, so a failed verb leaves no event."""
    agent.run("hello")
    before = list(repo.events.list())

    def work(connection):
        repo.context.store.checkpoints.add(connection, agent.branch_id, repo.context.store.head_state(
            connection, repo.context.store.sessions.branch(connection, agent.branch_id)).checkpoint_state,
            named_label(1, "never"))  # fmt: skip
        raise Conflict("taken back")

    with pytest.raises(Conflict):
        backend.write(repo, work)
    assert list(repo.events.list()) == before
    assert repo.session("s").checkpoints()[-1].checkpoint_name is None


def test_a_stopped_and_resumed_rollback_is_recorded(repo, agent, world):
    """A rollback that stops, a person's resolution and the resumption each have an event."""
    agent.run("add chair")
    world.broken.add("chair")
    with pytest.raises(RollbackIncomplete) as stopped:
        agent.undo()
    call_id = agent.tool_track()[0].id
    repo.resolve(call_id, "happened")
    repo.resume(stopped.value.operation)
    assert kinds(repo)[3:] == [
        "rollback.begun", "call.reverse_failed", "rollback.incomplete", "call.reversed", "call.resolved",
        "rollback.resumed", "rollback.done",
    ]  # fmt: skip


def test_a_waiting_or_failed_turn_is_recorded(repo, world):
    """A turn that waits for an answer and a turn that raised each have an event."""
    model = scripted(call("add_if_approved", item="a"), call("fail", why="never"))
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "one")]})
    with pytest.raises(RuntimeError):
        agent.invoke({"messages": [("user", "two")]})
    assert [kind for kind in kinds(repo) if kind.startswith(("turn", "call"))] == [
        "turn.waiting", "call.unknown", "turn.failed",
    ]  # fmt: skip


def test_a_deletion_event_lists_the_deleted_checkpoints(repo, agent):
    """A checkpoint deleted by a person is recorded with its id, those deleted by retention with their count."""
    agent.checkpoint("x")
    agent.checkpoint("y")
    gone = repo.session().delete_checkpoint("x")
    event = list(repo.events.list())[-1]
    assert (event.kind, event.detail["checkpoints"], event.user_id) == ("checkpoint.deleted", [gone.id], repo.user.id)
    repo.session("s").retention.set(Retention(max_checkpoints=2, keep_last=1, compress_after=None))
    for _ in range(3):
        agent.checkpoint("z")
    by_itself = list(repo.events.list(kinds="checkpoint.deleted"))[-1]
    assert (by_itself.user_id, by_itself.detail["count"]) == (None, 1)


def test_the_database_refuses_changes_to_the_trail(repo, agent):
    """No SQL statement of a database user updates, replaces or deletes an event."""
    agent.checkpoint("x")
    with backend.reading(repo) as connection:
        row = dict(connection.execute(AUDIT_EVENT.select().limit(1)).mappings().one())
    refused = [update(AUDIT_EVENT).values(kind="tag.created"), delete(AUDIT_EVENT)]
    refused += [text("DELETE FROM audit_event")] if backend.is_sqlite(repo) else [text("TRUNCATE audit_event")]
    if backend.is_sqlite(repo):
        replacing = insert(AUDIT_EVENT).prefix_with("OR REPLACE")
        elsewhere = {**row, "external_session_id": 7, "kind": "tag.created"}  # another key, but the same unique id
        for values in ({**row, "kind": "tag.created"}, elsewhere):
            with pytest.raises(AgentGitError, match="UNIQUE"):
                backend.write(repo, lambda c, v=values: c.execute(replacing.values(v)))
        by_rowid = "INSERT OR REPLACE INTO audit_event (rowid, {0}) SELECT 1, {1} FROM audit_event WHERE rowid = 1"
        names = list(row)
        changed = ["seq + 9" if name == "seq" else "id + 9" if name == "id" else name for name in names]
        statement = text(by_rowid.format(", ".join(names), ", ".join(changed)))
        with pytest.raises(AgentGitError, match="UNIQUE"):
            backend.write(repo, lambda c: c.execute(statement))
    for statement in refused:
        with pytest.raises(NotAllowed):
            backend.write(repo, lambda c, s=statement: c.execute(s))
    assert kinds(repo) == ["session.created"]


@pytest.mark.parametrize("how", ["edit", "remove", "swap", "cut", "anew"])
def test_changes_made_past_the_triggers_are_detected(repo, agent, how):
    """An edit, a removal in the middle, a swap, a cut at the end and a forged end are each detected."""
    for n in range(4):
        agent.checkpoint(f"c{n}")
    known = repo.events.tips()
    second, third, last = (AUDIT_EVENT.c.seq == n for n in (2, 3, 5))
    statements = {
        "edit": [update(AUDIT_EVENT).where(second).values(user_id=7)],
        "remove": [delete(AUDIT_EVENT).where(third)],
        "swap": [
            update(AUDIT_EVENT).where(w).values(seq=n)
            for w, n in ((second, 99), (third, 2), (AUDIT_EVENT.c.seq == 99, 3))
        ],
        "cut": [delete(AUDIT_EVENT).where(last)],
        "anew": [delete(AUDIT_EVENT).where(last)],
    }
    tamper(repo, *statements[how])
    if how == "anew":
        agent.checkpoint("another")
    assert not repo.events.verify(known).is_sound
    assert repo.events.verify().is_sound == (how in ("cut", "anew"))
    assert repo.maintenance.fsck().is_sound == (how in ("cut", "anew"))
    assert repo.maintenance.fsck(level=1).is_sound == (how not in ("remove", "swap"))


def test_saved_tips_stay_valid_while_the_trail_grows(repo, agent):
    """Saved tips verify as long as the trail only grows; malformed tips are refused."""
    agent.checkpoint("x")
    known = repo.events.verify().tips
    assert known == repo.events.tips()
    agent.checkpoint("y")
    again = repo.events.verify(known)
    assert (again.is_sound, again.events, again.findings) == (True, 3, ())
    with pytest.raises(InvalidInput):
        tips_of('{"session_id": 7, "number": 2, "hash": "ab"}\n{"session_id": 7')


def test_concurrent_writers_produce_one_gapless_chain(database):
    """Threads that write to one session through two handles produce one chain without a gap."""
    with agentgit.open(database.url) as one, agentgit.open(database.url) as two:
        session = one.session("s", create=True)
        problems = []

        def write(repo, name):
            try:
                for n in range(10):
                    backend.write(
                        repo,
                        lambda c, n=n: record_event(
                            c, repo.context.store.tenant_id, "tag.created", session_id=session.id, name=f"{name}{n}"
                        ),
                    )
            except AgentGitError as error:
                problems.append(error)

        threads = [
            threading.Thread(target=write, args=(repo, name)) for name, repo in (("a", one), ("b", two), ("c", two))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = list(one.events.list(session="s"))
        assert problems == []
        assert [event.number for event in found] == list(range(1, 32))
        assert [e.detail["name"] for e in found if e.detail.get("name", "").startswith("b")] == [
            f"b{n}" for n in range(10)
        ]
        assert one.events.verify().is_sound


def test_an_event_feed_continues_after_a_given_event(repo, agent):
    """`after` selects newer events, by event or id, of one session or all; kinds and times filter."""
    agent.checkpoint("x")
    repo.session("other", create=True)
    first, *rest = repo.events.list()
    assert list(repo.events.list(after=first)) == rest == list(repo.events.list(after=first.id))
    assert [event.number for event in repo.events.list(session="s", after=first)] == [2]
    assert [event.session_name for event in repo.events.list(kinds="session.*")] == ["s", "other"]
    assert list(repo.events.list(since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert repo.events.newest(limit=1) == [rest[-1]]
    for wrong in ({"kinds": "chekpoint.created"}, {"since": datetime.now()}, {"after": "x"}):  # misspelled on purpose
        with pytest.raises(InvalidInput):
            repo.events.list(**wrong)
    with pytest.raises(InvalidInput, match=r"checkpoint\.created"):
        match_kinds("checkpoint.creatd")
    with pytest.raises(NotFound):
        repo.events.list(session="nobody")


def test_an_event_whose_id_is_taken_is_stored_under_another(repo, monkeypatch):
    """An event whose new id already exists is stored under another id, without an error."""
    one, other = (repo.session(name, create=True) for name in ("one", "other"))
    taken = list(repo.events.list(session=one.id))[-1].id
    given = iter([taken])
    monkeypatch.setattr(*points.NEW_ID_OF_EVENT.place, lambda: next(given, None) or new_id())
    backend.write(
        repo, lambda c: record_event(c, repo.context.store.tenant_id, "tag.created", session_id=other.id, name="n")
    )
    assert next(given, "used") == "used"
    assert [event.kind for event in repo.events.list(session=other.id)][-1] == "tag.created"
    assert repo.events.verify().is_sound


def test_a_paged_feed_returns_each_event_once(repo, monkeypatch):
    """A long feed is read page by page, each event once."""
    monkeypatch.setattr("agentgit.repository.events.PAGE", 7)
    sessions = [repo.session(f"s{n}", create=True) for n in range(3)]
    for n in range(10):
        for session in sessions:
            backend.write(
                repo,
                lambda c, n=n, s=session: record_event(
                    c, repo.context.store.tenant_id, "tag.created", session_id=s.id, name=str(n)
                ),
            )
    found = Counter((event.session_id, event.number) for event in repo.events.list())
    assert (len(found), max(found.values())) == (33, 1)
    assert len(list(repo.events.list(session="s1"))) == 11


def test_a_follower_receives_the_events_of_other_handles(repo, agent):
    """A follower of the trail receives the events of other handles, each once and in order."""
    got, feed = [], repo.events.list(follow=True, poll=0.01)

    def follow():
        for event in feed:
            got.append(event)
            if event.detail.get("name") == "last":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    with agentgit.open(backend.url(repo)) as other:
        for name in ("a", "b", "last"):
            other.wrap(tool_node_graph(scripted("x"), []), "s").checkpoint(name)
    thread.join(60)
    assert [event.detail.get("name") for event in got] == [None, "a", "b", "last"]
    assert [event.number for event in got] == [1, 2, 3, 4]


def test_a_users_feed_shows_only_that_users_sessions(database):
    """A user's feed has no events of other users' sessions, even if asked for by id."""
    with agentgit.open(database.url, user="ann") as hers, agentgit.open(database.url, user="bob") as his:
        session = hers.session("s", create=True)
        assert list(his.events.list()) == []
        with pytest.raises(NotFound):
            his.events.list(session=session.id)
        assert [event.session_id for event in hers.events.list()] == [session.id]


def test_hostile_names_and_huge_details_are_stored_unchanged(repo):
    """Control characters, NUL, lone surrogates and a very long list are read back unchanged, and verify."""
    name = "a\x00b\x1b[31m\udc80</script>\u202e"
    session = repo.session(name, create=True)
    huge = list(range(50_000))
    backend.write(
        repo,
        lambda c: record_event(
            c, repo.context.store.tenant_id, "checkpoint.deleted", session_id=session.id, checkpoints=huge
        ),
    )
    created, deleted = repo.events.list()
    assert (created.session_name, deleted.detail["checkpoints"]) == (name, huge)
    assert repo.events.verify().is_sound


def test_an_imported_session_starts_a_new_trail(repo, agent, tmp_path):
    """The trail of an imported session begins with the import event, which counts what was imported."""
    agent.run("add chair")
    repo.session("s").export(tmp_path / "s.jsonl")
    made = repo.import_(tmp_path / "s.jsonl", session="copy")
    (event,) = repo.events.list(session="copy")
    assert (event.kind, event.number, event.detail["checkpoints"], event.detail["calls"]) == (
        "session.imported", 1, made.checkpoints, 1,
    )  # fmt: skip
    assert repo.maintenance.fsck(level=3).is_sound


KILLED = """
import os, sys, agentgit
from agentgit.store import database
repo = agentgit.open(sys.argv[1])
plain = database.finish_events
def dying(connection):
    if plain(connection).rows:
        os._exit(9)
database.finish_events = dying
repo.session("never", create=True)
"""


@pytest.mark.long
def test_a_process_killed_before_its_commit_leaves_no_event(database):
    """After a kill between the event and the commit, neither the session nor its event exists."""
    url = database.url.render_as_string(hide_password=False)
    done = subprocess.run([sys.executable, "-c", KILLED, url], check=False)  # noqa: S603  # our own program
    with agentgit.open(database.url) as repo:
        assert (done.returncode, repo.sessions(), list(repo.events.list())) == (9, [], [])
        assert repo.events.verify().is_sound


def test_event_ids_increase_along_a_chain_despite_clock_skew(repo, monkeypatch):
    """A process whose clock is behind still writes an event with a higher id than the one before."""
    session = repo.session("s", create=True)
    monkeypatch.setattr(*points.NEW_ID_OF_EVENT.place, lambda: 5)
    backend.write(repo, lambda c: record_event(c, repo.context.store.tenant_id, "tag.created", session_id=session.id))
    first, second = repo.events.list()
    assert first.id < second.id <= first.id + 1024
    assert [event.number for event in repo.events.list(after=first)] == [2]


def test_an_in_memory_database_has_an_audit_trail():
    """An in-memory database records events too."""
    with agentgit.open(":memory:") as repo, closing(Database(":memory:")):
        repo.session("s", create=True)
        assert kinds(repo) == ["session.created"]
