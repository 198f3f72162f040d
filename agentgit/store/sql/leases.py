"""Leases: how long a run on a server counts as alive after it was last heard of.

On one machine a process is seen to be dead. Of another machine nobody can tell, so a run there says until when it is
surely alive, by the clock of the database, and one thread in each process renews that for all its runs. A run whose
lease has ended is treated like a dead one; if it lives all the same, epochs and owners keep it from doing harm.
SQLite needs none: a file is on one machine. See `docs/decisions/0028-leases.md`.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, bindparam, func, select, update

from agentgit.errors import InvalidInput

LEASE_SECONDS = 60.0
"""Long enough for a paused virtual machine or a slow failover; short enough that a person waits for it."""

SHORTEST = 3.0
"""Seconds; a shorter one would end in an ordinary pause."""

PER_LEASE = 3
"""The number of renewals in the time of a lease: two of them may fail."""

_log = logging.getLogger("agentgit")


class Held(NamedTuple):
    """A row that a piece of work has taken."""

    table: Table
    tenant_id: int
    id: int


class Leases:
    """The leases of this process on one server.

    Args:
        write: Runs work in a transaction that sees all of a tenant.
        seconds: The duration of a lease, in seconds.

    Raises:
        InvalidInput: It is too short to be renewed in time.
    """

    def __init__(
        self, write: Callable[[int, Callable[[Connection], None]], None], seconds: float = LEASE_SECONDS
    ) -> None:
        if not seconds >= SHORTEST:
            raise InvalidInput(
                f"lease_seconds={seconds} is too short to be renewed in time; give {SHORTEST:g} or more."
            )
        self.seconds = seconds
        self._write = write
        self._changed = threading.Condition()
        self._held: dict[str, set[Held]] = {}
        self._thread: threading.Thread | None = None

    def keep(self, owner: str, held: Held) -> None:
        """Renew the lease of a row from now on."""
        with self._changed:
            self._held.setdefault(owner, set()).add(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._beat, name="agentgit-leases", daemon=True)
                self._thread.start()

    def end(self, owner: str) -> None:
        """Renew nothing more of a piece of work."""
        with self._changed:
            self._held.pop(owner, None)

    def renew(self) -> None:
        """Renew all leases of this process, but of rows that were taken from it."""
        of: dict[tuple[Table, int], tuple[set[str], set[int]]] = {}
        with self._changed:
            for owner, rows in self._held.items():
                for table, tenant_id, id in rows:
                    owners, ids = of.setdefault((table, tenant_id), (set(), set()))
                    owners.add(owner)
                    ids.add(id)
        for (table, tenant_id), (owners, ids) in of.items():
            given = {"tenant": tenant_id, "owners": sorted(owners), "ids": sorted(ids), **self.given}
            self._write(tenant_id, functools.partial(_renew, table=table, given=given))

    @property
    def given(self) -> dict[str, Any]:
        """The parameter of `UNTIL`."""
        return {"lease": timedelta(seconds=self.seconds)}

    def close(self) -> None:
        """Renew nothing any more."""
        with self._changed:
            self._held.clear()
            self._thread = None
            self._changed.notify_all()

    def after_fork(self) -> None:
        """Forget, in a child, what its parent renews."""
        self._changed, self._held, self._thread = threading.Condition(), {}, None

    def _beat(self) -> None:
        every = self.seconds / PER_LEASE
        pause = every
        while self._waited(pause):
            try:
                self.renew()
                pause = every
            # Whatever it is: the runs go on, and a thread that ended would not renew the next ones either.
            except Exception as error:  # noqa: BLE001  # if it lasts, somebody may take their branches
                _log.warning("Leases could not be renewed: %s", error)
                pause = every / PER_LEASE

    def _waited(self, seconds: float) -> bool:
        """Wait; tell whether there is anything to renew then."""
        me = threading.current_thread()
        with self._changed:
            self._changed.wait_for(lambda: self._thread is not me, seconds)
            if self._thread is me and not self._held:
                self._thread = None
            return self._thread is me


UNTIL = func.clock_timestamp() + bindparam("lease")
"""The end of a lease that is given now. The time of the transaction may be long past."""


def _renew(connection: Connection, table: Table, given: Mapping[str, Any]) -> None:
    connection.execute(
        update(table)
        .where(
            table.c.tenant_id == bindparam("tenant"),
            table.c.id.in_(bindparam("ids", expanding=True)),
            table.c.owner.in_(bindparam("owners", expanding=True)),
        )
        .values(lease_until=UNTIL),
        given,
    )


def is_over(connection: Connection, until: datetime | None) -> bool:
    """Return whether a lease has ended; None is one that never does."""
    return until is not None and bool(connection.execute(select(func.clock_timestamp() > until)).scalar_one())
