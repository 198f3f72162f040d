"""Rules about transactions and concurrent writers: an exclusive claim has one winner, and no write is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from threading import Barrier

from sqlalchemy import Connection

from agentgit.conformance.rules import CheckContext, Rule, expect, require_error
from agentgit.conformance.storage import EMPTY_SNAPSHOT
from agentgit.effects import invocation
from agentgit.errors import Conflict
from agentgit.repository import Repository
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.sql.driver_errors import TransactionConflict
from agentgit.values import as_object


class _Stop(Exception):
    """Aborts a transaction."""


def leave_nothing_if_they_fail(trial: CheckContext) -> None:
    """A transaction that raises stores nothing, and the caller receives the exception unchanged."""
    branch_id, store = trial.branch(), trial.repo.context.store

    def fail(connection: Connection) -> None:
        store.sessions.merge_metadata(connection, branch_id, {"a": 1})
        store.sessions.create(connection, trial.repo.user.id, f"{trial.name}-2")
        raise _Stop

    require_error(lambda: store.database.write(fail), _Stop, "An exception raised in a transaction was swallowed.")
    expect("a" not in _read_branch_metadata(trial, branch_id), "A change of a failed transaction was stored.")
    names = [session.session_name for session in trial.repo.sessions()]
    expect(f"{trial.name}-2" not in names, "A row of a failed transaction was stored.")


def are_kept(trial: CheckContext) -> None:
    """Committed changes are visible to new connections, also after the repository that wrote them is closed."""
    branch_id = trial.branch()
    first_repo = trial.open_again()
    first_repo.context.store.database.write(
        lambda c: first_repo.context.store.sessions.merge_metadata(c, branch_id, {"a": 1}), durable=True
    )
    first_repo.close()
    expect(_read_branch_metadata(trial, branch_id) == {"a": 1}, "A committed change is missing.")


def are_seen_whole(trial: CheckContext) -> None:
    """No reader sees uncommitted changes of another transaction, and every reader sees them after the commit."""
    branch_id, store, other_repo = trial.branch(), trial.repo.context.store, trial.open_again()
    if store.database.in_memory:
        return  # an in-memory database has one connection, so its users take turns
    observed = []

    def write(connection: Connection) -> None:
        store.sessions.merge_metadata(connection, branch_id, {"a": 1})
        with other_repo.context.store.database.reading() as reader:
            observed.append(as_object(other_repo.context.store.sessions.branch(reader, branch_id).meta))

    store.database.write(write)
    expect(observed[-1] == {}, "A change was seen before it was committed.")
    expect(_read_branch_metadata(trial, branch_id) == {"a": 1}, "A change was not seen after it was committed.")


def run_again(trial: CheckContext) -> None:
    """A transaction that conflicts with another one runs again, and its changes are stored once."""
    branch_id, store, runs = trial.branch(), trial.repo.context.store, []

    def write(connection: Connection) -> None:
        runs.append(1)
        store.sessions.count_turn(connection, branch_id)
        if len(runs) == 1:
            raise TransactionConflict("Another writer interfered. Try again.")

    store.database.write(write)
    expect(len(runs) == 2, f"The transaction ran {len(runs)} times.")
    expect(_read_branch_metadata(trial, branch_id) == {"turns": 1}, "Its change was stored twice, or not at all.")


def see_one_moment(trial: CheckContext) -> None:
    """A snapshot read sees nothing that is committed after it began."""
    branch_id, store, other_repo = trial.branch(), trial.repo.context.store, trial.open_again()
    if store.database.in_memory:
        return
    with other_repo.context.store.database.reading(repeatable_read=True) as reader:
        before = other_repo.context.store.sessions.branch(reader, branch_id).meta
        store.database.write(lambda c: store.sessions.merge_metadata(c, branch_id, {"a": 1}))
        after = other_repo.context.store.sessions.branch(reader, branch_id).meta
    expect(before == after, "A snapshot read saw a later change.")


def _read_branch_metadata(trial: CheckContext, branch_id: int) -> dict[str, object]:
    """Read the metadata of a branch with new connections."""
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        return as_object(store.sessions.branch(connection, branch_id).meta)


_TRANSACTIONS = (leave_nothing_if_they_fail, are_kept, are_seen_whole, run_again, see_one_moment)
TRANSACTION_RULES = tuple(Rule("transactions", run) for run in _TRANSACTIONS)

WRITERS = 6
"""The number of writers that compete at the same time."""

WRITES_PER_WRITER = 4
"""The number of writes of each writer."""

WAIT_SECONDS = 60


def _run_concurrently(trial: CheckContext, work: Callable[[Repository, int], object]) -> list[object]:
    """Run the work of all writers at once, each with its own connections; return the results or conflicts."""
    repos, start = [trial.open_again() for _ in range(WRITERS)], Barrier(WRITERS)

    def run_writer(number: int) -> object:
        start.wait(WAIT_SECONDS)
        try:
            return work(repos[number], number)
        except Conflict as error:
            return error

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(run_writer, range(WRITERS)))


def _count_successes(results: list[object]) -> int:
    return sum(not isinstance(result, Conflict) for result in results)


def one_takes_a_branch(trial: CheckContext) -> None:
    """If many runs acquire a branch at once, one succeeds, and the others get a Conflict with the branch's head."""
    branch_id = trial.branch()
    trial.repo.context.store.database.write(
        lambda c: trial.repo.context.store.checkpoints.add(
            c, branch_id, EMPTY_SNAPSHOT, Label(kind="named", user_id=trial.repo.user.id, name="here")
        )
    )
    head = trial.repo.session(trial.name).get_checkpoint("here").id
    results = _run_concurrently(
        trial,
        lambda repo, number: repo.context.store.database.write(
            lambda c: repo.context.store.sessions.acquire(c, branch_id, f"conformance|{number}|0|0")
        ),
    )
    trial.repo.session(trial.name).recover(force=True)
    expect(_count_successes(results) == 1, f"{_count_successes(results)} of {WRITERS} took the branch.")
    reported_heads = {error.head for error in results if isinstance(error, Conflict)}
    expect(reported_heads == {head}, f"The head is {head}, but the writers were told {reported_heads}.")


def late_ones_are_fenced(trial: CheckContext) -> None:
    """A run whose branch was acquired by another run no longer holds it."""
    branch_id, store = trial.branch(), trial.repo.context.store
    write, sessions = store.database.write, store.sessions
    first = write(lambda c: sessions.acquire(c, branch_id, "conformance|1|0|0"))
    write(lambda c: sessions.release(c, first))
    second = write(lambda c: sessions.acquire(c, branch_id, "conformance|2|0|0"))
    require_error(lambda: write(lambda c: sessions.require_held(c, first)), Conflict, "An earlier run still holds it.")
    write(lambda c: sessions.require_held(c, second))
    write(lambda c: sessions.release(c, second))


def one_reverses_a_call(trial: CheckContext) -> None:
    """If many writers reverse a call at once, one succeeds; an invalid change of a call's status is refused."""
    branch_id, store = trial.branch(), trial.repo.context.store
    intent = Intent(
        session_id=trial.repo.session(trial.name).id,
        branch_id=branch_id,
        batch=0,
        batch_index=0,
        tool_name="t",
        tool_call_id=None,
        effect="reversible",
        undo=None,
        args={},
        idempotency_key=trial.name,
        owner="conformance",
        started_at=datetime.now(UTC),
    )
    call_id = store.database.write(lambda c: store.journal.intend(c, intent))
    require_error(
        lambda: store.database.write(lambda c: store.journal.move(c, call_id, invocation.REVERSED)),
        Conflict,
        "A call that has not ended was reversed.",
    )
    store.database.write(lambda c: store.journal.end(c, call_id, CallOutcome(status=invocation.DONE, result=1)))
    results = _run_concurrently(
        trial,
        lambda repo, number: repo.context.store.database.write(
            lambda c: repo.context.store.journal.move(c, call_id, invocation.REVERSING, owner=str(number))
        ),
    )
    expect(_count_successes(results) == 1, f"{_count_successes(results)} of {WRITERS} reverse the same call.")


def no_checkpoint_is_lost(trial: CheckContext) -> None:
    """Checkpoints that writers create on one branch at once are all stored, with gapless numbers up to the head."""
    branch_id = trial.branch()

    def create_checkpoints(repo: Repository, number: int) -> None:
        for n in range(WRITES_PER_WRITER):
            label = Label(kind="named", user_id=repo.user.id, name=f"{number}-{n}")
            store = repo.context.store
            store.database.write(partial(store.checkpoints.add, branch_id=branch_id, state=EMPTY_SNAPSHOT, label=label))

    _run_concurrently(trial, create_checkpoints)
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        branch = store.sessions.branch(connection, branch_id)
        rows = sorted(store.checkpoints.on_path(connection, store.sessions.lineage(connection, branch)), key=_number)
    expect(
        [row.number for row in rows] == list(range(1, WRITERS * WRITES_PER_WRITER + 1)),
        "Numbers are missing or duplicated.",
    )
    expect(len({row.name for row in rows}) == WRITERS * WRITES_PER_WRITER, "A checkpoint is lost.")
    expect(branch.head_id == rows[-1].id, "The head is not the last checkpoint.")


def _number(row: object) -> int:
    return int(getattr(row, "number"))  # noqa: B009  # a row has the columns of its query


def no_fact_is_lost(trial: CheckContext) -> None:
    """Concurrent changes to the metadata of one branch are all kept."""
    branch_id = trial.branch()

    def change(repo: Repository, number: int) -> None:
        for n in range(WRITES_PER_WRITER):
            facts = {f"{number}-{n}": n}
            store = repo.context.store
            store.database.write(partial(store.sessions.merge_metadata, branch_id=branch_id, entries=facts))

    _run_concurrently(trial, change)
    store = trial.open_again().context.store
    with store.database.reading() as connection:
        metadata = as_object(store.sessions.branch(connection, branch_id).meta)
    expect(
        len(metadata) == WRITERS * WRITES_PER_WRITER,
        f"{WRITERS * WRITES_PER_WRITER - len(metadata)} of {WRITERS * WRITES_PER_WRITER} facts are lost.",
    )


def one_session_is_made(trial: CheckContext) -> None:
    """If many writers create a session of the same name, all get one session, with one branch and an intact trail."""
    session_ids = _run_concurrently(trial, lambda repo, number: repo.session(trial.name, create=True).id)
    expect(len(set(session_ids)) == 1, f"{len(set(session_ids))} sessions have the same name.")
    expect(len(trial.repo.session(trial.name).branches()) == 1, "The session has more than one branch.")
    expect(trial.repo.events.verify().is_sound, "The audit trail is broken.")


_CONCURRENCY = (
    one_takes_a_branch,
    late_ones_are_fenced,
    one_reverses_a_call,
    no_checkpoint_is_lost,
    no_fact_is_lost,
    one_session_is_made,
)
CONCURRENCY_RULES = tuple(Rule("concurrency", run) for run in _CONCURRENCY)
