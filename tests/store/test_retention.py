"""Retention: which checkpoints of a session are deleted, and that needed ones always stay."""

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import backend
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import call, obeying, scripted, tool_node_graph
from sqlalchemy import text

import agentgit
from agentgit.checkpoints import Retention
from agentgit.checkpoints.retention import KeptPoint, judge
from agentgit.errors import InvalidInput
from agentgit.handles.rollbacks import Rollbacks
from agentgit.rollback.request import RollbackOptions
from agentgit.store.maintenance import retention
from agentgit.store.sql.transaction import Writing

NOW = datetime(2026, 1, 1, tzinfo=UTC)

POINT = st.fixed_dictionaries(
    {
        "name": st.sampled_from([None, None, "a", "b", "\0\ud800"]),
        "is_auto": st.booleans(),
        "created_at": st.integers(0, 1000).map(lambda days: NOW - timedelta(days=days)),
        "needed": st.sampled_from(["", "", "", "a branch leaves from it"]),
    }
)
POINTS = st.lists(POINT, max_size=60).map(lambda made: [KeptPoint(id=n, **fields) for n, fields in enumerate(made)])
LIMIT = st.none() | st.integers(1, 50)
RETENTIONS = st.builds(
    Retention,
    compress_after=LIMIT,
    keep_last=st.integers(1, 30),
    max_checkpoints=LIMIT,
    max_age=st.none() | st.integers(1, 900).map(lambda days: timedelta(days=days)),
)


def kept(points, retention):
    return [one.point for one in judge(points, retention, NOW) if not one.is_removed]


# -- the rule


def test_the_default_retention_thins_out_above_fifty_checkpoints():
    points = [KeptPoint(id=n, name="n" if n in (5, 9) else None, created_at=NOW) for n in range(51)]
    assert kept(points[:50], Retention()) == points[:50]
    assert [point.id for point in kept(points, Retention())] == [0, 9, *range(31, 51)]


def test_the_oldest_checkpoints_go_above_the_limit():
    points = [KeptPoint(id=n, is_auto=n not in (1, 2), name="x" * n or None, created_at=NOW) for n in range(101)]
    [gone] = [one for one in judge(points, Retention(compress_after=None), NOW) if one.is_removed]
    assert (gone.point.id, gone.why) == (3, "there are more than 100")
    three = Retention(compress_after=None, keep_last=1, max_checkpoints=3)
    assert [point.id for point in kept(points, three)] == [0, 2, 100]


def test_an_age_limit_keeps_the_first_and_the_newest_checkpoints():
    points = [KeptPoint(id=n, name="x", created_at=NOW - timedelta(days=100 - n)) for n in range(10)]
    aged = Retention(compress_after=None, max_checkpoints=None, keep_last=3, max_age=timedelta(days=95))
    assert [point.id for point in kept(points, aged)] == [0, 5, 6, 7, 8, 9]
    aged = Retention(compress_after=None, max_checkpoints=None, keep_last=3, max_age=timedelta(days=1))
    assert [point.id for point in kept(points, aged)] == [0, 7, 8, 9]


@given(POINTS, RETENTIONS)
def test_needed_and_newest_checkpoints_stay_and_only_they_exceed_the_limit(points, retention):
    stay, most = kept(points, retention), retention.max_checkpoints
    last = min(retention.keep_last, most or retention.keep_last)
    spared = {point.id for point in points if point.needed} | {point.id for point in points[-last:]}
    assert spared <= {point.id for point in stay}
    if most is not None and len(stay) > most:
        assert {point.id for point in stay} == spared


@given(POINTS, RETENTIONS, st.randoms())
def test_thinning_is_idempotent(points, retention, chance):
    judged = judge(points, retention, NOW)
    assert [one.point for one in judged] == points
    assert all(one.why for one in judged)
    shuffled = list(points)
    chance.shuffle(shuffled)
    assert judge(shuffled, retention, NOW) == judged
    stay = kept(points, retention)
    assert kept(stay, retention) == stay


@given(RETENTIONS)
def test_a_retention_survives_serialization(retention):
    assert Retention.from_dict(retention.to_dict()) == retention
    assert str(retention)


@pytest.mark.parametrize(
    "bad",
    [
        {"max_checkpoints": 0}, {"max_checkpoints": -1}, {"compress_after": "50"}, {"keep_last": None},
        {"keep_last": True}, {"max_checkpoints": 2**40}, {"max_age": 5}, {"max_age": timedelta(0)},
    ],
    ids=str,
)  # fmt: skip
def test_bad_input_an_invalid_limit_is_refused(bad):
    with pytest.raises(InvalidInput):
        Retention(**bad)


@pytest.mark.parametrize(
    "bad", [{"max": 3}, {"max_age": "long"}, {"max_age": 1e300}, {"max_age": float("nan")}], ids=str
)
def test_bad_input_an_invalid_stored_retention_is_refused(bad):
    with pytest.raises((InvalidInput, ValueError)):
        Retention.from_dict(bad)


# -- in a session


def turns(repo, number):
    agent = obeying(repo)
    for _ in range(number):
        agent.run("hm")
    return agent


ONE = Retention(compress_after=1, keep_last=1)


def why(repo):
    """Return why each checkpoint would stay that does, if only one may."""
    thinned = repo.session("s").retention.apply(ONE, dry_run=True)
    return {one.point.reference: one.why for one in thinned.kept}


def references(repo):
    with backend.reading(repo) as transaction:
        return [point.reference for point in retention.points(transaction, repo.context.store, repo.session("s").id)]


@pytest.mark.long
def test_a_session_is_thinned_out_automatically_as_turns_end(repo):
    agent = turns(repo, 6)
    assert len(repo.session("s").checkpoints()) == 12
    assert repo.session("s").retention.set(Retention(compress_after=10, keep_last=4)) is None
    named = agent.checkpoint("mine")
    assert references(repo) == ["main#1", "main#10", "main#11", "main#12", "main#13"]
    for _ in range(20):
        agent.run("hm")
        assert len(references(repo)) <= 10
    assert repo.session("s").get_checkpoint("mine").id == named.id
    assert repo.session("s").retention.set(None) == Retention(compress_after=10, keep_last=4)
    assert repo.session("s").retention.get() is None
    for _ in range(6):
        agent.run("hm")
    assert len(references(repo)) > 10
    assert len(agent.history()) == 64


def test_the_retention_is_stored_with_the_session(repo):
    turns(repo, 1)
    repo.session("s").retention.set(Retention(compress_after=2, keep_last=1))
    with agentgit.open(backend.url(repo)) as other:
        turns(other, 1)
    assert references(repo) == ["main#1", "main#4"]
    assert repo.sessions()[0].metadata["retention"]["keep_last"] == 1


@pytest.mark.long
def test_branch_points_heads_and_first_checkpoints_stay(repo):
    agent = obeying(repo)
    for n in range(4):
        agent.run(f"add i{n}")
    agent.fork("main#3")
    retry = agent.rollback("main#5")
    retry.run("add x")
    retry.rollback("main#2", name="third")
    reasons = why(repo)
    assert reasons["main#3"] == "branch main-2 starts from it"
    assert reasons["main#8"] == "it is the head of branch main"
    assert reasons["main-3#3"] == "it is the head of branch main-3"
    assert reasons["main-3#1"] == "a branch begins with it"
    assert reasons["main#1"] == "it is the first"
    planned = repo.session("s").retention.apply(ONE, dry_run=True)
    done = repo.session("s").retention.apply(ONE)
    assert [one.point for one in done.gone] == [one.point for one in planned.gone]
    assert sorted(references(repo)) == sorted(reasons)
    assert str(repo.session("s").tree())
    for reference in reasons:
        assert repo.session("s").plan_rollback(reference).checkpoint_id
    assert repo.maintenance.fsck(level=3).is_sound


def test_a_tagged_checkpoint_stays(repo):
    turns(repo, 4)
    repo.session("s").tag("main#3", "v1")
    assert why(repo)["main#3"] == "it has the tag v1"
    repo.session("s").retention.apply(ONE)
    assert repo.session("s").get_checkpoint("v1").metadata["reference"] == "main#3"
    repo.session("s").untag("v1")
    repo.session("s").retention.apply(ONE)
    assert "main#3" not in references(repo)


def test_the_checkpoint_before_an_unresolved_effect_stays(repo):
    agent = obeying(repo)
    for n in range(5):
        agent.run(f"add i{n}")
    call = agent.tool_track()[1]
    for status in ("reverse_failed", "reverse_unknown", "reversing", "intended", "unknown"):
        backend.change(repo, "tool_invocation", call.id, status=status)
        assert why(repo)["main#3"] == f"it is the last checkpoint before add, which is {status}"
        assert "main#4" not in why(repo)
    with pytest.raises(agentgit.Conflict, match="the last checkpoint before add, which is unknown"):
        repo.session("s").delete_checkpoint("main#3")
    assert repo.session("s").cleanup_auto_checkpoints(keep=0) == 8
    assert references(repo) == ["main#3", "main#10"]


def test_a_checkpoint_with_a_pending_interrupt_stays(repo, world):
    graph = tool_node_graph(scripted(call("add_if_approved", item="x"), "ok"), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.invoke({"messages": [("user", "ask")]})
    agent.checkpoint("waiting")
    asked = references(repo)[-1]
    agent.checkpoint("waiting")
    agent.checkpoint("waiting")
    assert why(repo)[asked] == "it waits for a person's answer"


def test_clear_returns_the_number_of_deleted_checkpoints(repo):
    agent = obeying(repo)
    for n in range(5):
        agent.run(f"add i{n}")
        agent.checkpoint(f"n{n}")
    agent.fork("main#6")
    assert repo.session("s").retention.clear(branch="main-2").gone == []
    result = repo.session("s").retention.clear()
    assert len(result.gone) == 13
    assert references(repo) == ["main#6", "main#15", "main-2#1"]
    assert {verdict.point.reference: verdict.why for verdict in result.kept} == {
        "main#6": "branch main-2 starts from it",
        "main#15": "it is the head of branch main",
        "main-2#1": "it is the head of branch main-2",
    }
    assert str(result).startswith("13 checkpoints deleted, 3 kept\n  kept  main#6 n1  branch main-2")
    assert repo.session("s").retention.clear().gone == []
    assert len(agent.history()) == 20
    assert len(agent.tool_track()) == 5


def test_automatic_checkpoints_go_before_named_ones(repo):
    for n in range(4):
        turns(repo, 1).checkpoint(f"n{n}")
    repo.session("s").retention.set(Retention(compress_after=None, keep_last=1, max_checkpoints=5))
    repo.session("s").retention.apply()
    assert references(repo) == ["main#1", "main#3", "main#6", "main#9", "main#12"]


def test_bad_input_thinning_without_a_retention_is_refused(repo):
    turns(repo, 1)
    with pytest.raises(InvalidInput, match="keeps everything"):
        repo.session("s").retention.apply()
    with pytest.raises(InvalidInput, match="retention must be"):
        repo.session("s").retention.set({"max_checkpoints": 3})
    with pytest.raises(agentgit.NotFound):
        repo.session("nobody").retention.get()
    assert len(references(repo)) == 2


def test_a_rollback_to_a_deleted_checkpoint_is_refused(repo, monkeypatch):
    agent = turns(repo, 4)
    rollbacks = Rollbacks(repo.context, agent.session.id)
    held = rollbacks._request("main#3", None, RollbackOptions())
    repo.session("s").retention.apply(ONE)
    monkeypatch.setattr(Rollbacks, "_request", lambda *_: held)
    # A fork finds its checkpoint in the transaction that creates the branch, so nothing can delete it in between.
    for verb, said in ((agent.rollback, "has been deleted"), (agent.fork, "does not exist")):
        with pytest.raises(agentgit.NotFound, match=said):
            verb("main#3")
    assert [branch.name for branch in repo.session("s").branches()] == ["main"]


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)  # SQLite has one writer at a time
def test_a_fork_during_thinning_never_uses_a_deleted_checkpoint(repo):
    agent = turns(repo, 4)
    session = repo.session("s")
    with backend.database(repo).engine.begin() as connection:
        transaction = Writing(connection)
        repo.context.store.sessions.lock(transaction, session.id)
        transaction.execute(text("SET LOCAL lock_timeout = '1s'"))
        with ThreadPoolExecutor(1) as pool:
            forked = pool.submit(agent.fork, "main#3")
            repo.context.store.checkpoints.delete(
                transaction, session.id, [repo.session("s").get_checkpoint("main#3").id]
            )
            assert not forked.done()
            connection.commit()
            with pytest.raises(agentgit.NotFound):
                forked.result(30)
    assert repo.maintenance.fsck(level=3).is_sound
