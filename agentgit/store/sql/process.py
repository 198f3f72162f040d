"""Processes: forks with open databases, the owners of work, and the leases of runs.

After a fork, the child uses no connection of its parent. SQLite advises against carrying a connection over a fork, and
two processes on one socket of a server would read each other's answers.

A lease is the time for which a run on a server counts as alive. On the same machine a dead process can be detected, but
not on another machine. A run therefore stores the time until which it is surely alive, by the clock of the database,
and one thread in each process renews the leases of all its runs. A run whose lease has ended is treated as dead. If it
is still alive, epochs and owners keep it from doing harm. SQLite needs no leases, because a file is on one machine.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import secrets
import socket
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from sqlalchemy import DateTime, Table, bindparam, func, select, update

from agentgit.errors import Conflict, InvalidInput
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.transaction import Reading, Writing


class ForkListener(Protocol):
    """An object that must act when its process forks; it may have a method `before_fork`, too."""

    def after_fork(self) -> None:
        """Reset the object in the child process. This must not close anything of the parent."""


_fork_listeners: weakref.WeakSet[ForkListener] = weakref.WeakSet()
_fork_listeners_lock = threading.RLock()
"""Held during a fork, too, so that no other thread changes the listeners in the child's copy."""


def register_for_fork(listener: ForkListener) -> None:
    """Notify an object of each fork for as long as it exists."""
    with _fork_listeners_lock:
        _fork_listeners.add(listener)


def _notify_before_fork() -> None:
    _fork_listeners_lock.acquire()
    for listener in list(_fork_listeners):
        if (before_fork := getattr(listener, "before_fork", None)) is not None:
            before_fork()


def _notify_after_fork() -> None:
    _own_start_time.cache_clear()
    for listener in list(_fork_listeners):
        listener.after_fork()
    _fork_listeners_lock.release()


if hasattr(os, "register_at_fork"):  # other systems have no fork
    os.register_at_fork(
        before=_notify_before_fork,
        after_in_parent=_fork_listeners_lock.release,
        after_in_child=_notify_after_fork,
    )


_active_owners: set[str] = set()
"""The owners in this process that are still at work."""

ZOMBIE = "ended"
"""The value instead of a start time for a process that is dead, but that its parent has not reaped yet."""


@contextmanager
def register_owner() -> Iterator[str]:
    """Yield a name for one piece of work, which counts as alive until the block ends or the process dies."""
    name = f"{_here()}|{os.getpid()}|{_own_start_time()}|{secrets.token_hex(8)}"
    _active_owners.add(name)
    try:
        yield name
    finally:
        _active_owners.discard(name)


ENDING_SECONDS = 5.0
"""The longest time for which Ctrl-C waits. What the thread needs may be held by the traceback of the error."""


def beyond_ctrl_c(work: Callable[[], object]) -> None:
    """Do work in another thread, which Ctrl-C does not reach, and wait for it, except on an event loop."""

    def run() -> None:
        try:
            work()
        except Conflict:
            return  # somebody else has taken over what the work is about
        except BaseException as error:  # noqa: BLE001  # the error that the caller is handling goes on
            _log.warning("Work that was interrupted could not be ended: %s", error)

    thread = threading.Thread(target=run, name="agentgit-ending", daemon=True)
    thread.start()
    try:
        asyncio.get_running_loop()  # another task may hold what the thread waits for
    except RuntimeError:
        thread.join(ENDING_SECONDS)


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception came from outside, such as Ctrl-C, or was raised while one was handled."""
    while error is not None and isinstance(error, (Exception, GeneratorExit)):
        error = error.__context__  # drivers may raise an error of their own instead
    return error is not None


def count_active_owners() -> int:
    """Return how many pieces of work run in this process."""
    return len(_active_owners)


def is_alive(name: str | None) -> bool:
    """Return whether a piece of work may still be running. On another host this is unknown, so the result is True."""
    if name is None:
        return False
    host, pid, start_time, _ = name.split("|")
    if host != _here():
        return True
    if int(pid) == os.getpid() and start_time == _start_time(os.getpid()):
        return name in _active_owners
    return _process_exists(int(pid)) and start_time == _start_time(int(pid))


def is_alive_here(name: str | None) -> bool:
    """Return whether a piece of work is certainly running. On another host this is unknown, so the result is False."""
    return name is not None and name.split("|")[0] == _here() and is_alive(name)


@functools.cache
def _here() -> str:
    """Return the scope of pids: one boot of one machine and one container; without /proc, the host name."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot_id}/{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return socket.gethostname()[:60]


def _start_time(pid: int) -> str:
    """Return the start time of a process, which detects a reused pid; empty if the system does not provide it."""
    try:
        state, *_, start_time = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:20]
    except (OSError, ValueError):
        return ""
    return start_time if state not in "ZX" else ZOMBIE


@functools.cache
def _own_start_time() -> str:
    return _start_time(os.getpid())


def _process_exists(pid: int) -> bool:
    if os.name != "posix":
        return True  # on other systems os.kill would end the process
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it runs as another user
    return True


LEASE_SECONDS = 60.0
"""The default lease: long enough for a paused virtual machine or a slow failover, but short enough to wait for."""

MIN_LEASE_SECONDS = 3.0
"""The minimum lease in seconds. A shorter one would end during an ordinary pause."""

PER_LEASE = 3
"""The number of renewals during a lease. Two of them may fail."""

_log = logging.getLogger("agentgit")


class LeasedRow(NamedTuple):
    """A row that a piece of work holds."""

    table: Table
    id: int


class Leases:
    def __init__(self, write: Callable[[Callable[[Writing], None]], None], seconds: float = LEASE_SECONDS) -> None:
        if not seconds >= MIN_LEASE_SECONDS:
            raise InvalidInput(
                f"lease_seconds={seconds} is too short to be renewed in time. Use {MIN_LEASE_SECONDS:g} or more."
            )
        self.seconds = seconds
        self._write = write
        self.after_fork()

    def after_fork(self) -> None:
        """Begin without leases, because the parent renews its own."""
        self._lock = threading.RLock()
        """Entered instead of the condition, between whose own `__enter__` and its block Ctrl-C may come."""
        self._condition = threading.Condition(self._lock)
        self._leased_rows: dict[str, set[LeasedRow]] = {}
        self._thread: threading.Thread | None = None

    def start_renewing(self, owner: str, row: LeasedRow) -> None:
        """Renew the lease of a row until `stop_renewing` is called."""
        with self._lock:
            self._leased_rows.setdefault(owner, set()).add(row)
            if self._thread is None:
                thread = threading.Thread(target=self._renew_periodically, name="agentgit-leases", daemon=True)
                thread.start()  # Ctrl-C may come before it has begun
                self._thread = thread

    def stop_renewing(self, owner: str) -> None:
        with self._lock:
            self._leased_rows.pop(owner, None)

    def renew(self) -> None:
        groups: dict[Table, tuple[set[str], set[int]]] = {}
        with self._lock:
            for owner, rows in self._leased_rows.items():
                for table, id in rows:
                    owners, ids = groups.setdefault(table, (set(), set()))
                    owners.add(owner)
                    ids.add(id)
        for table, (owners, ids) in groups.items():
            parameters = {"owners": sorted(owners), "ids": sorted(ids), **self.parameters}
            self._write(functools.partial(_renew, table=table, given=parameters))

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameter of `LEASE_END`."""
        return {"lease": timedelta(seconds=self.seconds)}

    def close(self) -> None:
        with self._lock:
            self._leased_rows.clear()
            self._thread = None
            self._condition.notify_all()

    def _renew_periodically(self) -> None:
        interval = self.seconds / PER_LEASE
        delay = interval
        while self._wait_for_renewal(delay):
            try:
                self.renew()
                delay = interval
            # Catch everything: the runs go on, and without this thread no later lease would be renewed either.
            except Exception as error:  # noqa: BLE001  # if it lasts, others may take their branches
                _log.warning("Leases could not be renewed: %s", error)
                delay = interval / PER_LEASE

    def _wait_for_renewal(self, seconds: float) -> bool:
        """Wait, and return whether there is anything to renew."""
        this_thread = threading.current_thread()
        with self._lock:
            self._condition.wait_for(lambda: self._thread is not this_thread, seconds)
            if self._thread is this_thread and not self._leased_rows:
                self._thread = None
            return self._thread is this_thread


LEASE_END = func.statement_timestamp() + bindparam("lease")
"""The end of a lease that begins now, by the clock of the server.

`now()` would be the start of the transaction, which may be long ago. `clock_timestamp()` is volatile, and Citus refuses
volatile functions in an UPDATE. `statement_timestamp()` is the moment at which the server received this statement, also
in a pipeline. An UPDATE that then waits for a lock stores a lease that is shorter by that wait, never a longer one: a
run may be taken over early, which its epoch makes harmless, and the next renewal sets the full time. On Citus the
machine to which the program is connected evaluates the function, so all machines that accept connections need clocks
that agree within a fraction of a lease.
"""


def _renew(transaction: Writing, table: Table, given: Mapping[str, Any]) -> None:
    transaction.execute(
        update(table)
        .where(table.c.id.in_(bindparam("ids", expanding=True)), table.c.owner.in_(bindparam("owners", expanding=True)))
        .values(lease_until=LEASE_END),
        given,
    )


def is_lease_over(transaction: Reading, lease_until: datetime | None) -> bool:
    """Return whether a lease has ended, by the time of this one statement. None is a lease that never ends."""
    return lease_until is not None and bool(_IS_OVER.all(transaction, {"until": lease_until})[0].is_over)


_IS_OVER = CompiledStatement(
    select((func.statement_timestamp() > bindparam("until", type_=DateTime(timezone=True))).label("is_over"))
)
