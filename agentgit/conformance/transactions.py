"""Rules about transactions: whole or not at all, kept once they are committed, and seen by nobody before."""

from __future__ import annotations

from sqlalchemy import Connection

from agentgit.conformance.rules import Rule, Trial, expect, refused
from agentgit.store.sql.driver_errors import Again
from agentgit.values import as_object


class _Stop(Exception):
    """Breaks a transaction off."""


def leave_nothing_if_they_fail(trial: Trial) -> None:
    """Of a transaction that raises nothing stays, and what it raised arrives as it was."""
    branch_id, store = trial.branch(), trial.repo.context.store

    def fail(connection: Connection) -> None:
        store.sessions.note(connection, branch_id, {"a": 1})
        store.sessions.create(connection, trial.repo.user.id, f"{trial.name}-2")
        raise _Stop

    refused(lambda: store.database.write(fail), _Stop, "What a transaction raises is swallowed.")
    expect("a" not in _facts(trial, branch_id), "A change of a transaction that failed is there.")
    names = [session.session_name for session in trial.repo.sessions()]
    expect(f"{trial.name}-2" not in names, "A row of a transaction that failed is there.")


def are_kept(trial: Trial) -> None:
    """Committed changes are there for whoever opens the database then, with the handle that wrote them closed."""
    branch_id = trial.branch()
    first = trial.another()
    first.context.store.database.write(
        lambda c: first.context.store.sessions.note(c, branch_id, {"a": 1}), durable=True
    )
    first.close()
    expect(_facts(trial, branch_id) == {"a": 1}, "What was committed is gone.")


def are_seen_whole(trial: Trial) -> None:
    """Nobody sees what another transaction has not committed, and a reader sees it after that."""
    branch_id, store, other = trial.branch(), trial.repo.context.store, trial.another()
    if store.database.in_memory:
        return  # it has one connection, whose users take turns
    seen = []

    def write(connection: Connection) -> None:
        store.sessions.note(connection, branch_id, {"a": 1})
        with other.context.store.database.reading() as reader:
            seen.append(as_object(other.context.store.sessions.branch(reader, branch_id).meta))

    store.database.write(write)
    expect(seen[-1] == {}, "A change was seen before it was committed.")
    expect(_facts(trial, branch_id) == {"a": 1}, "A change was not seen after it was committed.")


def run_again(trial: Trial) -> None:
    """A transaction that another one was in the way of runs again, and is stored once."""
    branch_id, store, runs = trial.branch(), trial.repo.context.store, []

    def write(connection: Connection) -> None:
        runs.append(1)
        store.sessions.count_turn(connection, branch_id)
        if len(runs) == 1:
            raise Again("Another writer was in the way. Try again.")

    store.database.write(write)
    expect(len(runs) == 2, f"It ran {len(runs)} times.")
    expect(_facts(trial, branch_id) == {"turns": 1}, "What it did is stored twice, or not at all.")


def see_one_moment(trial: Trial) -> None:
    """A reader that asks for one moment sees nothing that is committed later."""
    branch_id, store, other = trial.branch(), trial.repo.context.store, trial.another()
    if store.database.in_memory:
        return
    with other.context.store.database.reading(one_moment=True) as reader:
        before = other.context.store.sessions.branch(reader, branch_id).meta
        store.database.write(lambda c: store.sessions.note(c, branch_id, {"a": 1}))
        after = other.context.store.sessions.branch(reader, branch_id).meta
    expect(before == after, "A reader of one moment saw another one.")


def _facts(trial: Trial, branch_id: int) -> dict[str, object]:
    """Read the metadata of a branch with new connections."""
    store = trial.another().context.store
    with store.database.reading() as connection:
        return as_object(store.sessions.branch(connection, branch_id).meta)


_RULES = (leave_nothing_if_they_fail, are_kept, are_seen_whole, run_again, see_one_moment)
RULES = tuple(Rule("transactions", run) for run in _RULES)
