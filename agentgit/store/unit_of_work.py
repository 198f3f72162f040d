"""The unit of work of a turn: rows that wait until they are written together.

A graph saves a step after every node, and each step is a few rows. A transaction for each would cost more than the
rows, so a turn collects them. They are written

- before the intent of a call that acts on the world, in its transaction,
- with the outcome of such a call, in its transaction,
- at the end of the turn, in its transaction,
- before anybody in the turn reads,
- in the background, `FLUSH_SECONDS` after the first of them was added.

A process that is killed loses the rows that wait and those of a transaction under way; one that ends, or closes its
database, writes them first. Intents and outcomes of calls that are not read-only never wait. Each transaction checks
that the turn still holds its branch, so the rows of a turn that was taken over are never stored.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from math import inf
from time import monotonic
from typing import Any, NamedTuple, TypeVar, cast

from agentgit.errors import Conflict
from agentgit.store.database import Database, before_transactions
from agentgit.store.records.journal import CallOutcome, Intent
from agentgit.store.records.sessions import StoredRow, TakenOver
from agentgit.store.sql import process
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import (
    INTERRUPT,
    GraphCheckpoint,
    Namespace,
    NewCheckpoint,
    NewestState,
    NewRows,
    NewWrites,
)
from agentgit.values import to_json

LOG = logging.getLogger("agentgit")

T = TypeVar("T")

FLUSH_SECONDS = 0.05
"""The longest time for which a row waits before it is written in the background."""

RETRY_SECONDS = 1.0
"""The time for which rows wait after an attempt to write them failed."""

MAX_RETRIES = 60
"""The number of times that the background tries to write the rows of a turn that could not be ended."""

MAX_CALLS = 64
"""The most read-only calls that wait; a process that is killed loses at most this many from the record."""


class RecordedCall(NamedTuple):
    """A call that has ended, with the intents of the calls that contain it and run on, the outermost first."""

    intent: Intent
    outcome: CallOutcome
    outer_intents: Sequence[Intent] = ()
    is_replay: bool = False


class _Waiting(NamedTuple):
    rows: list[NewRows]
    calls: list[RecordedCall]
    answers: dict[int, tuple[Intent, Any]]


class UnitOfWork:
    """The rows of one turn that wait to be written. It is thread-safe."""

    def __init__(self, store: Store, branch: StoredRow, newest: NewestState, world_seq: int) -> None:
        self._store = store
        self._branch = branch
        self._newest: Mapping[Namespace, GraphCheckpoint | None] = {(branch.thread_id, ""): newest.checkpoint}
        self._interrupts: dict[str, bool] = {}
        """Whether a task of a graph checkpoint has an interrupt, for each one that something was written on top of."""
        if newest.checkpoint is not None and (newest.has_writes or newest.is_interrupted):
            self._interrupts[newest.checkpoint.key.checkpoint_id] = newest.is_interrupted
        store.graphs.owners.add(branch.thread_id, branch.external_session_id)
        self.after_fork()
        self._intended: set[int] = set()
        """The calls whose intents are written."""
        self._new_intended: set[int] = set()
        """The calls whose intents a transaction under way writes."""
        self._next_arrival: int | None = None
        """The arrival number of the next call, in a transaction under way that has read it."""
        self.world_seq: int | None = world_seq
        """The length of the session's world log while only this turn adds to it; None once somebody else may have."""
        self.read_session_meta: Callable[[], bytes] = bytes
        """Return the metadata of the session, which the last transaction of the turn reads."""
        self._is_taken_over = False
        self._failures = 0
        """The number of attempts to write that have failed since the last one that succeeded."""
        self._is_closed = False
        self._has_ended = False
        """True once the turn has tried to write everything for the last time."""
        self._retries_left = MAX_RETRIES
        process.register_for_fork(self)
        store.database.register_for_close(self)

    def after_fork(self) -> None:
        """Begin without rows: those of the parent are written there."""
        self._lock = threading.Lock()
        # Held while rows are written, so that they are written in the order in which they were added.
        self._write_lock = threading.Lock()
        self._writer: int | None = None
        """The thread that holds the lock."""
        self._rows: list[NewRows] = []
        self._calls: list[RecordedCall] = []
        self._answers: dict[int, tuple[Intent, Any]] = {}
        """The calls that run, with what each has used so far of the answers and numbers of its task."""

    @property
    def is_waiting(self) -> bool:
        """True if something waits or is being written."""
        return bool(self._rows or self._calls or self._answers or self._write_lock.locked())

    def add(self, rows: NewRows) -> bool:
        """Add a graph checkpoint or writes. Return False if the turn has ended, so that the caller must store them."""
        if isinstance(rows, NewCheckpoint):
            self._encode_missing(rows)
        with self._lock:
            if self._is_taken_over:
                raise TakenOver
            if self._is_closed:
                return False
            self._rows.append(rows)
            self._record_writes(rows)
        _flusher.schedule(self)
        return True

    def _record_writes(self, rows: NewRows) -> None:
        """Record that a graph checkpoint of the root graph is no longer without writes."""
        if isinstance(rows, NewWrites):
            if not rows.key.ns:
                has_interrupt = any(channel == INTERRUPT for _, channel, _ in rows.writes)
                self._interrupts[rows.key.checkpoint_id] = has_interrupt or self._interrupts.get(
                    rows.key.checkpoint_id, False
                )
        elif rows.key.ns and (root_id := (rows.draft.meta.get("parents") or {}).get("")):
            self._interrupts.setdefault(root_id, False)

    @property
    def newest(self) -> NewestState:
        """The newest graph checkpoint of the branch, as far as it is written."""
        checkpoint = self._newest[self._branch.thread_id, ""]
        if checkpoint is None:
            return NewestState()
        is_interrupted = self._interrupts.get(checkpoint.key.checkpoint_id)
        return NewestState(checkpoint, bool(is_interrupted), is_interrupted is not None)

    def _encode_missing(self, new: NewCheckpoint) -> None:
        """Encode the values that the parent does not have now, because the graph may change them later."""
        newest = self._newest.get(new.key.namespace)
        known: set[str] = set(newest.values) if newest is not None else set()
        for rows in list(self._rows):
            if isinstance(rows, NewCheckpoint) and rows.key.namespace == new.key.namespace:
                known.update(rows.draft.channels)
        for name in new.draft.channels:
            if name not in known:
                new.draft.encode(name)

    def add_call(self, call: RecordedCall) -> None:
        with self._lock:
            self._calls.append(call)
            is_full = len(self._calls) >= MAX_CALLS
        if is_full:
            self.flush()
        else:
            _flusher.schedule(self)

    def add_answers(self, intent: Intent, answers: Any) -> None:
        """Add what a running call has used so far, which is written no later than what is made with it."""
        with self._lock:
            self._answers[intent.id] = intent, answers
        _flusher.schedule(self)

    def flush(self) -> None:
        if self.is_waiting:
            self._write_with(None, durable=False, closing=False)

    def flush_in_background(self) -> None:
        """Write what waits. If that fails, it waits for the next attempt, or for whoever in the turn writes next."""
        if self._writes_in_this_thread:  # it closes the database in a callback of its own transaction
            return
        try:
            self.flush()
        except Conflict:
            return  # the next step of the graph raises it
        except Exception as error:  # noqa: BLE001  # the thread serves other turns too, and whoever writes next raises it
            if self._failures == 1:
                LOG.warning("The last steps of a turn are not saved yet: %s", error)

    def write(self, work: Callable[[Writing], T], *, durable: bool = True, closing: bool = False) -> T:
        """Write what waits and do other work, in one transaction."""
        return cast(T, self._write_with(work, durable=durable, closing=closing))

    def _write_with(self, work: Callable[[Writing], T] | None, *, durable: bool, closing: bool) -> T | None:
        """Write what waits. If that fails, what is not written waits again."""
        with self._write_lock:
            self._writer = threading.get_ident()
            waiting = _Waiting([], [], {})
            try:
                with self._lock:
                    waiting = _Waiting(self._rows, self._calls, self._answers)
                    self._rows, self._calls, self._answers = [], [], {}
                    self._is_closed |= closing  # now, so that the saver stores what comes later itself
                    self._has_ended |= closing
                result = self._write_waiting(waiting, work, durable=durable, closing=closing)
            except BaseException:
                self._failures += 1
                with self._lock:
                    self._rows[:0], self._calls[:0] = waiting.rows, waiting.calls
                    self._answers = waiting.answers | self._answers
                    self._is_closed &= not closing
                if self._rows or self._calls:
                    self._retries_left -= self._has_ended
                    if not self._store.database.is_closed and self._retries_left >= 0:
                        _flusher.schedule(self, RETRY_SECONDS)
                raise
            finally:
                self._writer = None
            self._failures = 0
            return result

    def _write_waiting(
        self, waiting: _Waiting, work: Callable[[Writing], T] | None, *, durable: bool, closing: bool
    ) -> T | None:
        if self._is_taken_over:
            self._write_outcomes_alone(waiting)
            raise TakenOver
        if work is None and not any(waiting):
            return None  # another thread has just written it
        newest_before, world_seq_before = self._newest, self.world_seq
        # Outcomes store no values and need no hold; the end of a turn checks it when it releases the branch.
        has_outcomes_alone = work is None and not (waiting.rows or waiting.answers)
        has_outcomes_alone = has_outcomes_alone and all(map(self._is_intended, waiting.calls))
        # An attempt before may have been committed, or refused because somebody else has the branch.
        attempts = count(self._failures)

        def write_all(transaction: Writing) -> T | None:
            self.world_seq, self._next_arrival = world_seq_before, None
            self._new_intended = set()
            # Each locks the session against the collection of its values, before anything is read.
            if closing:
                counts_calls = bool(self._intended) and not waiting.calls
                self.read_session_meta = self._store.sessions.touch(
                    transaction, self._branch, counts_calls=counts_calls
                )
            if next(attempts) or not (closing or has_outcomes_alone):
                self._read_held(transaction)
            self._newest = self._write(transaction, waiting, newest_before)  # `work` may ask for it
            return work(transaction) if work is not None else None

        # A later commit of the turn takes steps to the disk, but the outcome of a call that acted must not wait.
        can_wait = not durable and not any(map(self._is_intended, waiting.calls))
        try:
            result = self._store.database.write(write_all, durable=durable, async_commit=can_wait)
        except TakenOver:
            self._is_taken_over = True
            self._write_outcomes_alone(waiting)
            raise
        except BaseException:
            self._newest, self.world_seq = newest_before, None
            raise
        self._intended |= self._new_intended
        for entry in waiting.rows:
            if isinstance(entry, NewCheckpoint):
                self._store.graphs.seen.add(entry.key)
        return result

    def _write_outcomes_alone(self, waiting: _Waiting) -> None:
        """Write the outcomes of the calls that acted in a turn that was taken over, and drop everything else."""
        waiting.rows.clear()
        waiting.answers.clear()
        waiting.calls[:] = filter(self._is_intended, waiting.calls)
        if waiting.calls:
            self._store.database.write(
                lambda transaction: self._write_outcomes(
                    transaction, self._leave_out_stored(transaction, waiting.calls)
                ),
                durable=True,
            )
            waiting.calls.clear()

    @property
    def _writes_in_this_thread(self) -> bool:
        return self._writer == threading.get_ident()

    def _write(
        self, transaction: Writing, waiting: _Waiting, newest: Mapping[Namespace, GraphCheckpoint | None]
    ) -> Mapping[Namespace, GraphCheckpoint | None]:
        """Write what waited, and return the newest graph checkpoints."""
        newest = self._store.graphs.write(transaction, waiting.rows, newest, is_protected=True)
        if waiting.answers:
            self.intend(transaction, [intent for intent, _ in waiting.answers.values()])
            for id, (_, answers) in waiting.answers.items():
                self._store.journal.change(transaction, id, answers=to_json(answers))
        calls = self._leave_out_stored(transaction, waiting.calls)
        new_calls = [(call.intent, call.outcome) for call in calls if not self._is_intended(call)]
        if new_calls:
            ended_ids = {intent.id for intent, _ in new_calls}
            outer = {one.id: one for call in calls for one in call.outer_intents if one.id not in ended_ids}
            self.intend(transaction, [*outer.values()])
            self._store.journal.add(transaction, new_calls, self._next_arrival)
            self._next_arrival = None
        self._write_outcomes(transaction, calls)
        self._new_intended |= {intent.id for intent, _ in new_calls}  # what it began may still make calls
        return newest

    def _leave_out_stored(self, transaction: Reading, calls: Sequence[RecordedCall]) -> Sequence[RecordedCall]:
        """Leave out the calls that a failed attempt has stored. A graph checkpoint may be stored twice, a call not."""
        if not self._failures or not calls:  # otherwise the answer to a commit may have been lost
            return calls
        statuses = self._store.journal.calls_of_turn(transaction, self._branch.id, calls[0].intent.owner)
        return [
            call
            for call in calls
            if call.intent.id not in statuses
            or (self._is_intended(call) and statuses[call.intent.id] != call.outcome.status)
        ]

    def _is_intended(self, call: RecordedCall) -> bool:
        return call.is_replay or call.intent.id in self._intended | self._new_intended

    def _write_outcomes(self, transaction: Writing, calls: Sequence[RecordedCall]) -> None:
        """Write the outcomes of the calls whose intents are written. This needs no hold on the branch."""
        for call in calls:
            if not self._is_intended(call):
                continue
            if call.is_replay:
                error = call.outcome.error or call.outcome.status
                self._store.recorded_calls.fail_replay(transaction, call.intent.id, error)
            else:
                seq = self._store.journal.end(transaction, call.intent.id, call.outcome)
                if seq is not None and self.world_seq is not None:
                    self.world_seq = seq if seq == self.world_seq + 1 else None

    def _read_held(self, transaction: Writing) -> None:
        held = self._store.sessions.require_held(transaction, self._branch)
        self._next_arrival = held.next_arrival
        if self.world_seq != held.world_seq:
            self.world_seq = None

    def lock_session(self, transaction: Writing) -> None:
        """Lock the session, and read again what others may have changed before the lock was free."""
        self._store.sessions.lock(transaction, self._branch.external_session_id)
        self._read_held(transaction)

    def intend(self, transaction: Writing, intents: Sequence[Intent]) -> None:
        """Record that calls are about to run or, for tools that are making another call, that they run."""
        known = self._intended | self._new_intended
        if self._failures and intents:  # the answer to a commit may have been lost
            known |= self._store.journal.calls_of_turn(transaction, self._branch.id, intents[0].owner).keys()
        for intent in intents:
            if intent.id not in known:
                arrival, self._next_arrival = self._next_arrival, None
                self._store.journal.intend(transaction, intent, arrival)
        self._new_intended |= {one.id for one in intents}

    @contextmanager
    def current(self) -> Iterator[None]:
        """Write what waits before each transaction in the block, so that its reader sees it."""

        def flush(database: Database) -> None:
            if not self._writes_in_this_thread and database.is_same(self._store.database):
                self.flush()

        with before_transactions(flush):
            yield


MAX_THREADS = 32
"""The most threads that write in the background."""

SLOW_SECONDS = 0.25
"""The time that a write in the background has alone; then another thread goes on with what else is due.

In a busy process, threads that write at the same time cost more than they save: with 64 turns at once a quarter of all
CPU time. A turn that ends meanwhile has written its rows itself."""

EXIT_SECONDS = 5.0
"""The longest time for which a process that ends waits until what its turns have left is written."""


class _Flusher:
    """Writes what has waited long enough: one thread waits for it, and begins a thread for each write."""

    def __init__(self) -> None:
        self.after_fork()
        process.register_for_fork(self)
        atexit.register(self.flush_all)

    def after_fork(self) -> None:
        """Begin without threads and without work, which stay with the parent."""
        self._lock = threading.RLock()
        """Entered instead of the condition, between whose own `__enter__` and its block Ctrl-C may come."""
        self._condition = threading.Condition(self._lock)
        self._due: dict[UnitOfWork, float] = {}
        self._writing: set[UnitOfWork] = set()
        self._is_running = False

    def schedule(self, unit: UnitOfWork, seconds: float = FLUSH_SECONDS) -> None:
        """Flush a unit of work after some seconds, unless it is scheduled already."""
        with self._lock:
            at, next_time = monotonic() + seconds, self._next_time()
            if self._due.get(unit, inf) <= at:
                return
            self._due[unit] = at
            if self._is_running and at < next_time:
                self._condition.notify_all()
            with suppress(RuntimeError):  # a process that ends starts no thread from Python 3.12 on
                if not self._is_running:
                    threading.Thread(target=self._run, name="agentgit-flush", daemon=True).start()
                    self._is_running = True

    def _next_time(self) -> float:
        """Return the time of the next write; infinity if nothing waits."""
        return min((due for unit, due in self._due.items() if unit not in self._writing), default=inf)

    def _run(self) -> None:
        while True:
            with self._lock:
                while (seconds := self._next_time() - monotonic()) > 0:
                    self._condition.wait(seconds if seconds < inf else None)
                unit = min(self._due.keys() - self._writing, key=self._due.__getitem__)
                del self._due[unit]
                self._writing.add(unit)
            thread = threading.Thread(target=self._flush, args=[unit], name="agentgit-flush", daemon=True)
            try:
                thread.start()
                thread.join(SLOW_SECONDS if len(self._writing) < MAX_THREADS else None)
            except RuntimeError:
                self._flush(unit)
            del unit, thread  # while nothing is due, no turn may be kept in memory

    def _flush(self, unit: UnitOfWork) -> None:
        unit.flush_in_background()
        with self._lock:
            self._writing.discard(unit)
            self._condition.notify_all()

    def flush_all(self) -> None:
        """Write everything that waits now, as far as that takes no longer than `EXIT_SECONDS`."""
        with self._lock:
            self._due = dict.fromkeys(self._due, 0.0)
            self._condition.notify_all()
            if self._is_running:
                # A turn that goes on may add rows, which are due later.
                self._condition.wait_for(lambda: not self._writing and 0.0 not in self._due.values(), EXIT_SECONDS)
            else:
                for unit in [*self._due]:
                    unit.flush_in_background()


_flusher = _Flusher()
