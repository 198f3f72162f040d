"""The outcomes of one turn's calls, on their way into the journal.

What acts on the world is written as soon as it ended. What only reads waits for the next transaction of its turn: the
intent of a call that acts, the save of a step, or the turn's end; so that it needs none of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from sqlalchemy import Connection

from agentgit.agents.turn.calls import AdmittedCall
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects.invocation import DONE, FAILED
from agentgit.errors import Unavailable
from agentgit.store.records.journal import CallOutcome

T = TypeVar("T")


class TakenOutcomes(NamedTuple):
    """Outcomes that somebody writes down.

    Args:
        number: The number of outcomes.
        write: A function that writes them in a transaction.
    """

    number: int
    write: Callable[[Connection], None]


MOST_WAITING = 64
"""The most calls that wait; if the process dies, the record loses at most this many calls, which only read."""


class Outcomes:
    """The outcomes of the calls of one turn that are not written yet.

    Args:
        turn: The turn.
    """

    def __init__(self, turn: RunningTurn) -> None:
        self.turn = turn
        self.store = turn.context.store
        self._waiting: list[tuple[AdmittedCall, CallOutcome]] = []
        self._lock = threading.Lock()

    def add(self, call: AdmittedCall, outcome: CallOutcome) -> None:
        """Write down how a call ended, or let that wait for the next transaction of the turn."""
        with self._lock:
            self._waiting.append((call, outcome))
            is_due = len(self._waiting) >= MOST_WAITING
        # What is asked for after this is no reason to hurry: whoever asks writes what waits.
        if is_due or not _may_wait(call, outcome) or self.turn.counts_calls:
            self.write()

    def write(self) -> None:
        """Write down what waits; if the database is out of reach it waits on, at most until the turn ends."""
        try:
            with self.joined() as taken:
                self.store.database.write(taken.write)
        except Unavailable:
            return  # the tool has run, and its program must not be told otherwise

    def write_with(self, work: Callable[[Connection], T]) -> T:
        """Write down what waits and do something else, both durably or neither."""

        def both(connection: Connection) -> T:
            taken.write(connection)
            return work(connection)

        with self.joined() as taken:
            return self.store.database.write(both, durable=True)

    @contextmanager
    def joined(self) -> Iterator[TakenOutcomes]:
        """Yield the waiting outcomes, to be written in a transaction of the block; they wait on if the block raises."""
        with self._lock:
            taken, self._waiting = self._waiting, []
        try:
            yield TakenOutcomes(len(taken), lambda connection: self._write(connection, taken))
        except BaseException:
            with self._lock:
                self._waiting[:0] = taken
            raise

    def _write(self, connection: Connection, taken: Sequence[tuple[AdmittedCall, CallOutcome]]) -> None:
        new = [(call.intent, outcome) for call, outcome in taken if call.id is None]
        if new and self.turn.holds(connection):  # else they belong on no track any more
            self.store.journal.add(connection, new)
        for call, outcome in taken:
            if call.id is None:
                continue
            if call.answer is not None:
                self.store.fences.withdraw(connection, call.id, outcome.error or outcome.status)
            else:
                self.store.journal.end(connection, call.id, outcome)


def _may_wait(call: AdmittedCall, outcome: CallOutcome) -> bool:
    return call.id is None and outcome.status in (DONE, FAILED) and outcome.answers is None
