"""Rules about many at once: of those that want the same, one gets it, and nothing of the others is lost."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from threading import Barrier

from agentgit.conformance.rules import Rule, Trial, expect, refused
from agentgit.conformance.values import NOTHING
from agentgit.effects import invocation
from agentgit.errors import Conflict
from agentgit.repository import Repository
from agentgit.store.records.checkpoints import Label
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.values import as_object

WRITERS = 6
"""The number of writers that want the same at once."""

EACH = 4
"""The number of times that each writer tries."""

WAIT_SECONDS = 60


def _at_once(trial: Trial, work: Callable[[Repository, int], object]) -> list[object]:
    """Let several do something at the same moment, each with connections of its own; give what they got or raised."""
    repos, start = [trial.another() for _ in range(WRITERS)], Barrier(WRITERS)

    def one(number: int) -> object:
        start.wait(WAIT_SECONDS)
        try:
            return work(repos[number], number)
        except Conflict as error:
            return error

    with ThreadPoolExecutor(WRITERS) as pool:
        return list(pool.map(one, range(WRITERS)))


def _won(found: list[object]) -> int:
    return sum(not isinstance(one, Conflict) for one in found)


def one_takes_a_branch(trial: Trial) -> None:
    """Of many that want to run a branch one gets it; the others get a Conflict that has its head."""
    branch_id = trial.branch()
    trial.repo.context.store.database.write(
        lambda c: trial.repo.context.store.checkpoints.add(
            c, branch_id, NOTHING, Label(kind="named", user_id=trial.repo.user.id, name="here")
        )
    )
    head = trial.repo.session(trial.name).get_checkpoint("here").id
    found = _at_once(
        trial,
        lambda repo, number: repo.context.store.database.write(
            lambda c: repo.context.store.sessions.acquire(c, branch_id, f"conformance|{number}|0|0")
        ),
    )
    trial.repo.session(trial.name).recover(force=True)
    expect(_won(found) == 1, f"{_won(found)} of {WRITERS} took the branch.")
    told = {error.head for error in found if isinstance(error, Conflict)}
    expect(told == {head}, f"The head is {head}, and they were told {told}.")


def late_ones_are_fenced(trial: Trial) -> None:
    """A run that lost a branch to another run no longer holds it, even after that run has ended."""
    branch_id, store = trial.branch(), trial.repo.context.store
    write, sessions = store.database.write, store.sessions
    first = write(lambda c: sessions.acquire(c, branch_id, "conformance|1|0|0"))
    write(lambda c: sessions.release(c, branch_id, "conformance|1|0|0"))
    second = write(lambda c: sessions.acquire(c, branch_id, "conformance|2|0|0"))
    refused(lambda: write(lambda c: sessions.hold(c, first)), Conflict, "A run of before still holds it.")
    write(lambda c: sessions.hold(c, second))
    write(lambda c: sessions.release(c, branch_id, "conformance|2|0|0"))


def one_reverses_a_call(trial: Trial) -> None:
    """Of many that want to reverse a call one gets it, and a status that may not follow is refused."""
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
    call = store.database.write(lambda c: store.journal.intend(c, intent))
    refused(
        lambda: store.database.write(lambda c: store.journal.move(c, call, invocation.REVERSED)),
        Conflict,
        "A call that has not ended was reversed.",
    )
    store.database.write(lambda c: store.journal.end(c, call, CallOutcome(status=invocation.DONE, result=1)))
    found = _at_once(
        trial,
        lambda repo, number: repo.context.store.database.write(
            lambda c: repo.context.store.journal.move(c, call, invocation.REVERSING, owner=str(number))
        ),
    )
    expect(_won(found) == 1, f"{_won(found)} of {WRITERS} reverse the same call.")


def no_checkpoint_is_lost(trial: Trial) -> None:
    """Checkpoints that many make on one branch are all there, numbered without a gap, and the head is the last."""
    branch_id = trial.branch()

    def make(repo: Repository, number: int) -> None:
        for n in range(EACH):
            label = Label(kind="named", user_id=repo.user.id, name=f"{number}-{n}")
            store = repo.context.store
            store.database.write(lambda c, said=label, store=store: store.checkpoints.add(c, branch_id, NOTHING, said))  # type: ignore[misc]

    _at_once(trial, make)
    store = trial.another().context.store
    with store.database.reading() as connection:
        branch = store.sessions.branch(connection, branch_id)
        rows = sorted(store.checkpoints.on_path(connection, store.sessions.lineage(connection, branch)), key=_number)
    expect([row.number for row in rows] == list(range(1, WRITERS * EACH + 1)), "Numbers are missing or there twice.")
    expect(len({row.name for row in rows}) == WRITERS * EACH, "A checkpoint is lost.")
    expect(branch.head_id == rows[-1].id, "The head is not the last checkpoint.")


def _number(row: object) -> int:
    return int(getattr(row, "number"))  # noqa: B009  # a row has the columns of its query


def no_fact_is_lost(trial: Trial) -> None:
    """Concurrent changes to the metadata of one branch are all kept."""
    branch_id = trial.branch()

    def change(repo: Repository, number: int) -> None:
        for n in range(EACH):
            facts = {f"{number}-{n}": n}
            store = repo.context.store
            store.database.write(lambda c, facts=facts, store=store: store.sessions.note(c, branch_id, facts))  # type: ignore[misc]

    _at_once(trial, change)
    store = trial.another().context.store
    with store.database.reading() as connection:
        found = as_object(store.sessions.branch(connection, branch_id).meta)
    expect(len(found) == WRITERS * EACH, f"{WRITERS * EACH - len(found)} of {WRITERS * EACH} facts are lost.")


def one_session_is_made(trial: Trial) -> None:
    """Many that make a session of the same name find one and the same, with one branch and a whole trail."""
    found = _at_once(trial, lambda repo, number: repo.session(trial.name, create=True).id)
    expect(len(set(found)) == 1, f"{len(set(found))} sessions have the same name.")
    expect(len(trial.repo.session(trial.name).branches()) == 1, "It has more than one branch.")
    expect(trial.repo.events.verify().is_sound, "The audit trail is broken.")


_RULES = (
    one_takes_a_branch,
    late_ones_are_fenced,
    one_reverses_a_call,
    no_checkpoint_is_lost,
    no_fact_is_lost,
    one_session_is_made,
)
RULES = tuple(Rule("concurrency", run) for run in _RULES)
