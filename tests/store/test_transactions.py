"""Transactions on SQLite and PostgreSQL: all or nothing, seen whole, and one winner of every exclusive claim."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import backend
import pytest

import agentgit
from agentgit import Conflict
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.journal import CallOutcome
from agentgit.values import as_object

WRITERS = 6
WRITES = 4
TIME = 60

NOTHING = CheckpointState(graph_checkpoint_id=None, state_hash=b"", position=0, message_count=0)
"""The state of a checkpoint without a conversation."""


@pytest.fixture
def branch(repo):
    return repo.session("s", create=True).branch()


def metadata(repo, branch):
    with agentgit.open(backend.url(repo)) as other, backend.reading(other) as transaction:
        return as_object(other.context.store.sessions.branch(transaction, branch.id).meta)


def race(repo, work):
    """Run a function for each writer at once, each with connections of its own; return the results and conflicts."""
    start = Barrier(WRITERS)

    def run(other, number):
        start.wait(TIME)
        try:
            return work(other, number)
        except Conflict as error:
            return error

    with ExitStack() as stack, ThreadPoolExecutor(WRITERS) as pool:
        repos = [stack.enter_context(agentgit.open(backend.url(repo))) for _ in range(WRITERS)]
        return list(pool.map(run, repos, range(WRITERS)))


def conflicts(results):
    return [result for result in results if isinstance(result, Conflict)]


# -- one transaction


def test_a_change_is_seen_by_others_only_after_its_commit(repo, branch):
    seen = []

    def change(transaction):
        repo.context.store.sessions.merge_metadata(transaction, branch.id, {"a": 1})
        seen.append(metadata(repo, branch))

    backend.write(repo, change)
    assert [*seen, metadata(repo, branch)] == [{}, {"a": 1}]


def test_a_snapshot_read_sees_one_moment(repo, branch):
    sessions = repo.context.store.sessions
    with (
        agentgit.open(backend.url(repo)) as other,
        backend.database(other).reading(repeatable_read=True) as reader,
    ):
        before = other.context.store.sessions.branch(reader, branch.id).meta
        backend.write(repo, lambda c: sessions.merge_metadata(c, branch.id, {"a": 1}))
        assert other.context.store.sessions.branch(reader, branch.id).meta == before
    assert metadata(repo, branch) == {"a": 1}


# -- many writers


def test_one_of_many_writers_reverses_a_call(repo, branch):
    call = backend.begin_call(repo, branch, item="chair")
    with pytest.raises(Conflict):
        backend.write(repo, lambda c: repo.context.store.journal.move(c, call, "reversed"))
    backend.write(repo, lambda c: repo.context.store.journal.end(c, call, CallOutcome(status="done", result=1)))
    results = race(
        repo,
        lambda other, number: backend.write(
            other, lambda c: other.context.store.journal.move(c, call, "reversing", owner=str(number))
        ),
    )
    assert len(conflicts(results)) == WRITERS - 1


def test_no_checkpoint_and_no_metadata_of_many_writers_is_lost(repo, branch):
    def work(other, number):
        store = other.context.store
        for n in range(WRITES):
            label = Label(kind="named", user_id=other.user.id, name=f"{number}-{n}")
            backend.write(other, lambda c, label=label: store.checkpoints.add(c, branch.id, NOTHING, label))
            backend.write(other, lambda c, n=n: store.sessions.merge_metadata(c, branch.id, {f"{number}-{n}": n}))
            backend.write(other, lambda c: store.sessions.count_turn(c, branch.id))

    assert race(repo, work) == [None] * WRITERS
    made = sorted(repo.session("s").checkpoints(), key=lambda checkpoint: checkpoint.metadata["number"])
    names = {f"{number}-{n}" for number in range(WRITERS) for n in range(WRITES)}
    assert [checkpoint.metadata["number"] for checkpoint in made] == list(range(1, len(names) + 1))
    assert {checkpoint.checkpoint_name for checkpoint in made} == names
    kept = metadata(repo, branch)
    assert (kept.pop("turns"), set(kept)) == (WRITERS * WRITES, names)
    assert repo.session("s").get_checkpoint("HEAD").id == made[-1].id
    assert repo.maintenance.fsck(3).is_sound


def test_many_writers_that_create_one_session_get_the_same(repo):
    made = race(repo, lambda other, number: other.session("s", create=True).id)
    assert set(made) == {repo.session("s").id}
    assert len(repo.session("s").branches()) == 1
