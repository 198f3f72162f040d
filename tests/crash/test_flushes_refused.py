"""A turn whose rows wait while its lease ends, its answer from the server is lost, or its schema changes.

It raises a typed error, and nothing is lost, stored twice, or done twice.
"""

import threading
from contextlib import suppress
from datetime import UTC, datetime

import backend
import faults
import points
import psycopg
import pytest
from chains import HI, chain, says, texts

import agentgit
from agentgit import Conflict, SchemaMismatch, Unavailable

LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.fixture(autouse=True)
def nothing_is_flushed_in_the_background():
    """Let everything wait until the turn itself writes it."""
    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        yield


@pytest.fixture(autouse=True)
def nothing_is_renewed():
    """Make the pause between renewals longer than any test, so that an ended lease stays ended."""
    with faults.setting(points.SECONDS_PER_LEASE, 0.01):
        yield


def wrapped(repo, world, *nodes):
    return repo.wrap(chain(*nodes), "s", effects=world.effects(), check_effects=False)


def calls(world, name, **args):
    return lambda: world.tool(name).invoke(args)


def run_outside(url, statement):
    """Run a statement as another process does, so that nothing is flushed before it."""
    backend.from_outside(lambda: backend.run_sql(url, statement))


def track(agent):
    return [(call.tool_name, call.status) for call in agent.tool_track()]


def taken_over(repo, world):
    """Return a function that lets the lease of a turn end, and runs a turn of another program on its branch."""

    def take_over():
        with agentgit.open(backend.url(repo)) as other:
            if backend.is_sqlite(repo):
                other.session("s").recover(force=True)  # a lease on SQLite ends only with its process
            else:
                backend.change(repo, "internal_session", lease_until=LONG_AGO)
            wrapped(other, world, says("other")).invoke({"messages": [("user", "theirs")]})

    return lambda: backend.from_outside(take_over)


def test_a_turn_whose_lease_ended_while_rows_waited_acts_no_more(repo, world):
    nodes = (
        says("one", calls(world, "look")),
        says("two", taken_over(repo, world)),
        says("three", calls(world, "add", item="chair")),
    )
    with pytest.raises(Conflict, match="taken over"):
        wrapped(repo, world, *nodes).invoke(HI)
    assert world.items == []
    late = wrapped(repo, world, says("other"))
    assert texts(late) == ["theirs", "other"]
    assert track(late) == []
    late.invoke({"messages": [("user", "more")]})
    assert texts(late) == ["theirs", "other", "more", "other"]
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("fails_at_first", [False, True])
def test_a_call_whose_lease_ended_while_its_tool_ran_is_recorded(repo, world, fails_at_first):
    """Its outcome is stored although no step is, and later if the database refuses it at first."""
    failed = []

    def refuse(plain, journal, transaction, call_id, outcome):
        if fails_at_first and outcome.status == "done" and not failed:
            failed.append(True)
            raise Unavailable("no space left")
        return plain(journal, transaction, call_id, outcome)

    # The branch is taken over in the tool, before its outcome is written.
    taking_over = faults.before(points.RECORD_CALL, taken_over(repo, world))

    def act():
        with taking_over, faults.around(points.WRITE_OUTCOME, refuse):
            world.tool("add").invoke({"item": "chair"})

    with pytest.raises(Conflict, match="taken over"):
        wrapped(repo, world, says("one"), says("two", act), says("three")).invoke(HI)
    assert (bool(failed), world.items) == (fails_at_first, ["chair"])
    late = wrapped(repo, world, says("other"))
    assert texts(late)[-2:] == ["theirs", "other"]
    assert track(late) == [("add", "done")]
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_takeover_waits_for_a_flush_that_has_checked_its_hold(repo, world):
    judged, refused = threading.Event(), []

    def take_over():
        with agentgit.open(backend.url(repo)) as other:
            backend.change(repo, "internal_session", lease_until=LONG_AGO)
            agent = wrapped(other, world, says("other"))
            judged.set()
            try:
                agent.invoke({"messages": [("user", "theirs")]})
            except Conflict as error:
                refused.append(error)

    other = threading.Thread(target=take_over)

    def stall():
        """Stop in the transaction of the flush, after its check."""
        if not other.ident:
            backend.from_outside(other.start)
            assert judged.wait(60)
            other.join(1)
            assert other.is_alive()  # it waits

    with faults.after(points.WRITE_STEPS, stall), suppress(Conflict):
        wrapped(repo, world, says("one"), says("two", lambda: repo.session("s").log()), says("three")).invoke(HI)
    other.join(60)
    agent = wrapped(repo, world, says("late"))
    assert texts(agent)[:2] == ["hi", "one"]
    assert refused or "theirs" in texts(agent)
    agent.invoke({"messages": [("user", "more")]})
    assert texts(agent)[-2:] == ["more", "late"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_running_turn_ends_after_an_upgrade_that_other_programs_refuse(repo, world):
    url, refused = backend.url(repo), []

    def upgrade():
        run_outside(url, "UPDATE agentgit_version SET version_num = '9' || version_num")
        with pytest.raises(SchemaMismatch, match="newer than this library"):
            agentgit.open(url)
        refused.append(True)

    agent = wrapped(repo, world, says("one", calls(world, "look")), says("two", upgrade), says("three"))
    agent.invoke(HI)
    assert refused
    assert texts(agent) == ["hi", "one", "two", "three"]
    assert track(agent) == [("look", "done")]
    backend.run_sql(url, "UPDATE agentgit_version SET version_num = substr(version_num, 2)")
    assert repo.maintenance.fsck(3).is_sound


RENAMED, BACK = (
    f"ALTER TABLE graph_checkpoint RENAME COLUMN {old} TO {new}" for old, new in [("meta", "facts"), ("facts", "meta")]
)


def test_a_flush_that_finds_another_schema_keeps_what_waits(repo, world):
    url = backend.url(repo)

    def read():
        run_outside(url, RENAMED)
        try:
            with pytest.raises(SchemaMismatch):
                agent.get_state()
        finally:
            run_outside(url, BACK)

    agent = wrapped(
        repo, world,
        says("one", calls(world, "look")), says("two", read), says("three", calls(world, "add", item="chair")),
    )  # fmt: skip
    agent.invoke(HI)
    assert texts(agent) == ["hi", "one", "two", "three"]
    assert track(agent) == [("look", "done"), ("add", "done")]
    assert world.items == ["chair"]
    assert repo.maintenance.fsck(3).is_sound


def test_a_turn_that_ends_in_another_schema_can_be_continued(repo, world):
    url, tried = backend.url(repo), []

    def change():
        if not tried:
            tried.append(True)
            run_outside(url, RENAMED)

    nodes = says("one", calls(world, "add", item="chair")), says("two", change), says("three")
    try:
        with pytest.raises(SchemaMismatch):
            wrapped(repo, world, *nodes).invoke(HI)
    finally:
        backend.run_sql(url, BACK)
    agent = wrapped(repo, world, *nodes)
    agent.invoke(None)
    assert texts(agent) == ["hi", "one", "two", "three"]
    assert world.items == ["chair"]
    assert ("add", "done") in track(agent)
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
@pytest.mark.parametrize("number", range(1, 6))
def test_a_flush_whose_commit_was_not_answered_stores_nothing_twice(repo, world, number):
    writes = []

    def lose_answer(plain, batch):
        plain(batch)
        if len(writes) == number:
            writes.append("the retry")
            raise psycopg.OperationalError("server closed the connection unexpectedly")

    def read():
        with suppress(Unavailable):
            agent.get_state()

    nodes = (
        says("one", calls(world, "look")),
        says("two", read),
        says("three", calls(world, "add", item="chair")),
        says("four", calls(world, "look")),
    )
    agent = wrapped(repo, world, *nodes)
    writing = faults.before(points.EVERY_WRITE, lambda: writes.append("begun"))
    with writing, faults.around(points.SEND_COMMIT, lose_answer), suppress(Unavailable):
        agent.invoke(HI)
    assert "the retry" in writes
    agent = wrapped(repo, world, *nodes)
    for call in agent.tool_track():
        if call.status == "unknown":
            repo.resolve(call, "happened" if world.items else "did_not_happen")
    if texts(agent)[-1:] != ["four"]:
        agent.invoke(None if texts(agent) else HI)
    assert texts(agent) == ["hi", "one", "two", "three", "four"]
    assert world.items == ["chair"]
    assert [one for one in track(agent) if one[0] == "look"] == 2 * [("look", "done")]
    agent.invoke(HI)
    assert texts(agent) == 2 * ["hi", "one", "two", "three", "four"]
    assert repo.maintenance.fsck(3).is_sound
