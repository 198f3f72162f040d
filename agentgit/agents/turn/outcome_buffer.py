"""A buffer for the outcomes of one turn's calls before they are written to the journal.

The outcome of a call that acts on the world is written as soon as the call ends. The outcome of a read-only call waits
for the next transaction of the turn, so that it needs none of its own: the intent of an acting call, the save of a
step, or the end of the turn.
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
    """Outcomes taken from the buffer, which the taker writes.

    Args:
        number: The number of outcomes.
        write: A function that writes them in a transaction.
    """

    number: int
    write: Callable[[Connection], None]


MAX_BUFFERED = 64
"""The most calls in the buffer; if the process dies, the record loses at most this many calls, all read-only."""


class OutcomeBuffer:
    """The outcomes of the calls of one turn that are not written yet.

    Args:
        turn: The turn.
    """

    def __init__(self, turn: RunningTurn) -> None:
        self.turn = turn
        self.store = turn.context.store
        self._entries: list[tuple[AdmittedCall, CallOutcome]] = []
        self._lock = threading.Lock()

    def add(self, call: AdmittedCall, outcome: CallOutcome) -> None:
        """Write the outcome of a call, or buffer it until the next transaction of the turn."""
        with self._lock:
            self._entries.append((call, outcome))
            is_due = len(self._entries) >= MAX_BUFFERED
        # A checkpoint requested after this check does not matter here: the request writes the buffer itself.
        if is_due or not _is_deferrable(call, outcome) or self.turn.counts_calls:
            self.write()

    def write(self) -> None:
        """Write the buffered outcomes; if the database is unavailable they stay, at most until the turn ends."""
        try:
            with self.draining() as outcomes:
                self.store.database.write(outcomes.write)
        except Unavailable:
            return  # the tool has run, so its caller must not get an error

    def write_with(self, work: Callable[[Connection], T]) -> T:
        """Write the buffered outcomes and do other work, in one durable transaction."""

        def write_all(connection: Connection) -> T:
            outcomes.write(connection)
            return work(connection)

        with self.draining() as outcomes:
            return self.store.database.write(write_all, durable=True)

    @contextmanager
    def draining(self) -> Iterator[TakenOutcomes]:
        """Yield the buffered outcomes, to be written in a transaction of the block; if the block raises they stay."""
        with self._lock:
            entries, self._entries = self._entries, []
        try:
            yield TakenOutcomes(len(entries), lambda connection: self._write(connection, entries))
        except BaseException:
            with self._lock:
                self._entries[:0] = entries
            raise

    def _write(self, connection: Connection, entries: Sequence[tuple[AdmittedCall, CallOutcome]]) -> None:
        new_entries = [(call.intent, outcome) for call, outcome in entries if call.id is None]
        if new_entries and self.turn.is_holding_branch(connection):  # otherwise they no longer belong to any track
            self.store.journal.add(connection, new_entries)
        for call, outcome in entries:
            if call.id is None:
                continue
            if call.answer is not None:
                self.store.recorded_calls.fail_replay(connection, call.id, outcome.error or outcome.status)
            else:
                self.store.journal.end(connection, call.id, outcome)


def _is_deferrable(call: AdmittedCall, outcome: CallOutcome) -> bool:
    return call.id is None and outcome.status in (DONE, FAILED) and outcome.answers is None
