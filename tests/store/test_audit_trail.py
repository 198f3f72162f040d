"""The audit trail records each event in the transaction of its change, and the database lets nobody change it."""

import backend
import points
import processes
import pytest
from scripted import call, obeying, scripted, tool_node_graph
from sqlalchemy import delete, insert, text, update

import agentgit
from agentgit import NotAllowed, RollbackIncomplete
from agentgit.checkpoints import Retention
from agentgit.errors import AgentGitError
from agentgit.sessions.events import KINDS
from agentgit.store.audit.trail import record_event
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.tables import EVENT, SESSION


def record(repo, session, kind, **detail):
    backend.write(repo, lambda c: record_event(c, kind, session_id=session.id, **detail))


@pytest.fixture
def agent(repo, world):
    return obeying(repo, world)


def kinds(repo):
    """Return the kinds of the events, except created checkpoints."""
    return [event.kind for event in repo.events.newest(limit=1000) if event.kind != "checkpoint.created"]


def test_the_trail_records_events_in_order(repo, agent, world):
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
    found = repo.events.newest(limit=1000)
    assert [event.kind for event in found if event.kind != "checkpoint.created"] == [
        "session.created", "call.done", "turn.done", "turn.done", "rollback.begun", "call.reversed", "rollback.done",
        "fork.done", "switch.done", "tag.created", "tag.deleted", "retention.changed", "retention.changed", "gc.done",
    ]  # fmt: skip
    of_session = [event for event in found if event.session_id is not None]
    assert {event.session_name for event in of_session} == {"s"}
    by_kind = {event.kind: event for event in found}
    assert by_kind["call.done"].detail["tool"] == "add"
    assert (by_kind["rollback.done"].branch_name, by_kind["rollback.done"].detail["reversed"]) == ("main-2", 1)
    assert by_kind["tag.created"].user_id == repo.user.id
    assert by_kind["gc.done"].session_id is None
    assert set(by_kind) <= set(KINDS)


def test_a_stopped_and_resumed_rollback_is_recorded(repo, agent, world):
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
    model = scripted(call("add_if_approved", item="a"), call("fail", why="never"))
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [("user", "one")]})
    with pytest.raises(RuntimeError):
        agent.invoke({"messages": [("user", "two")]})
    assert kinds(repo)[1:] == ["turn.waiting", "call.unknown", "turn.failed"]


def test_a_deletion_event_lists_the_deleted_checkpoints(repo, agent):
    agent.checkpoint("x")
    agent.checkpoint("y")
    gone = repo.session().delete_checkpoint("x")
    event = repo.events.newest()[-1]
    assert (event.kind, event.detail["checkpoints"], event.user_id) == ("checkpoint.deleted", [gone.id], repo.user.id)
    repo.session("s").retention.set(Retention(max_checkpoints=2, keep_last=1, compress_after=None))
    for _ in range(3):
        agent.checkpoint("z")
    by_itself = repo.events.newest(kinds="checkpoint.deleted")[-1]
    assert (by_itself.user_id, by_itself.detail["count"]) == (None, 1)


def test_the_database_refuses_changes_to_the_trail(repo, agent):
    agent.checkpoint("x")
    repo.maintenance.gc(shrink=False)  # an event of no session
    with backend.reading(repo) as transaction:
        row = dict(transaction.execute(EVENT.select().limit(1)).mappings().one())
    refused = [update(EVENT).values(kind="tag.created"), delete(EVENT)]
    refused += [delete(EVENT).where(EVENT.c.id == event.id) for event in repo.events.newest()]
    if backend.is_sqlite(repo):
        replacing = insert(EVENT).prefix_with("OR REPLACE")
        elsewhere = {**row, "id": 7}  # another id, but the same ordinal
        for values in ({**row, "kind": "tag.created"}, {**row, "ordinal": 99}, elsewhere):
            with pytest.raises(AgentGitError, match="UNIQUE"):
                backend.write(repo, lambda c, v=values: c.execute(replacing.values(v)))
    else:
        # The trigger looks for the session of an event in its own schema, whatever temporary tables there are.
        hidden = "CREATE TEMPORARY TABLE external_session (id bigint); DELETE FROM event"
        refused += [text("TRUNCATE event"), text(hidden)]
    for statement in refused:
        with pytest.raises(NotAllowed):
            backend.write(repo, lambda c, s=statement: c.execute(s))
    assert kinds(repo) == ["session.created", "gc.done"]


def test_events_go_only_with_their_session(repo, agent):
    repo.session("other", create=True)
    gone = repo.session("plain", create=True)
    backend.write(repo, lambda c: c.execute(delete(SESSION).where(SESSION.c.id == gone.id)))
    assert [event.session_name for event in repo.events.newest()] == ["s", "other"]


def test_an_event_whose_id_is_taken_is_stored_under_another(repo, monkeypatch):
    one, other = (repo.session(name, create=True) for name in ("one", "other"))
    taken = repo.events.newest(session=one.id)[-1].id
    given = iter([taken])
    monkeypatch.setattr(*points.NEW_ID_OF_EVENT.place, lambda: next(given, None) or new_id())
    record(repo, other, "tag.created", name="n")
    assert next(given, "used") == "used"
    assert repo.events.newest(session=other.id)[-1].kind == "tag.created"


def test_hostile_names_and_huge_details_are_stored_unchanged(repo):
    name = "a\x00b\x1b[31m\udc80</script>\u202e"
    session = repo.session(name, create=True)
    huge = list(range(50_000))
    record(repo, session, "checkpoint.deleted", checkpoints=huge)
    created, deleted = repo.events.newest()
    assert (created.session_name, deleted.detail["checkpoints"]) == (name, huge)


def test_an_imported_session_starts_a_new_trail(repo, agent, tmp_path):
    agent.run("add chair")
    repo.session("s").export(tmp_path / "s.jsonl")
    made = repo.import_(tmp_path / "s.jsonl", session="copy")
    (event,) = repo.events.newest(session="copy")
    assert (event.kind, event.detail["checkpoints"], event.detail["calls"]) == ("session.imported", made.checkpoints, 1)
    assert repo.maintenance.fsck(level=3).is_sound


KILLED = """
import os, sys, agentgit
from agentgit.store import database
repo = agentgit.open(sys.argv[1])
plain = database.finish_events
def dying(connection):
    if plain(connection):
        os._exit(9)
database.finish_events = dying
repo.session("never", create=True)
"""


@pytest.mark.long
def test_a_process_killed_before_its_commit_leaves_no_event(database):
    done = processes.run(KILLED, backend.address(database))
    with agentgit.open(database.url) as repo:
        assert (done.returncode, repo.sessions(), repo.events.newest()) == (9, [], [])
