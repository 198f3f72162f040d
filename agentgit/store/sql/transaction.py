"""The transactions: functions of the store take a `Reading` to read, a `Writing` to write."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVarTuple, overload

from sqlalchemy import CompoundSelect, Connection, CursorResult, Executable, Select, TextClause
from sqlalchemy.sql.selectable import TypedReturnsRows

from agentgit.store.sql.batch import Batch
from agentgit.store.sql.encryption import Seal

Ts = TypeVarTuple("Ts")

AnyRow = tuple[Any, ...]

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None


class PendingEvent(NamedTuple):
    """An event of a transaction, which becomes a row of the trail just before the commit."""

    kind: str
    session_id: int | None
    branch_id: int | None
    user_id: int | None
    owner_id: int | None
    at: datetime
    detail: Mapping[str, Any]


class Reading:
    def __init__(self, connection: Connection, seal: Seal | None = None, batch: Batch | None = None) -> None:
        self._connection = connection
        self.dialect = connection.dialect
        self.seal = seal
        """Encrypts and decrypts the values; None if the database has no keys."""
        self.batch = batch
        """The statements that wait to be sent to a server; None on SQLite."""
        self.is_sqlite = self.dialect.name == "sqlite"
        self.new_values: Mapping[int, Any] = {}
        """The values of each owner that readers find before they are inserted; see `agentgit.store.objects.blobs`."""
        self.known_tallies: dict[int, Callable[[], Any]] = {}
        """How to read the tallies of branches, until a call changes; see `Journal.tally`."""

    @overload
    def execute(self, query: Select[*Ts] | CompoundSelect[*Ts], parameters: Parameters = None) -> CursorResult[*Ts]: ...

    @overload
    def execute(self, query: TextClause, parameters: Parameters = None) -> CursorResult[*AnyRow]: ...

    def execute(self, query: Executable, parameters: Parameters = None) -> CursorResult[*AnyRow]:
        return self.connection.execute(query, parameters)

    @property
    def connection(self) -> Connection:
        """The connection, for a statement that bypasses the batch: those that wait are sent before it."""
        if self.batch is not None:
            self.batch.begin()
        return self._connection


class Writing(Reading):
    def __init__(self, connection: Connection, seal: Seal | None = None, batch: Batch | None = None) -> None:
        super().__init__(connection, seal, batch)
        self.events: list[PendingEvent] = []
        self.known_names: dict[int, Callable[[], Any]] = {}
        """How to read the names of branches and their sessions, for the events of this transaction."""

    @overload
    def execute(self, query: TypedReturnsRows[*Ts], parameters: Parameters = None) -> CursorResult[*Ts]: ...

    @overload
    def execute(self, query: Executable, parameters: Parameters = None) -> CursorResult[*AnyRow]: ...

    def execute(self, query: Executable, parameters: Parameters = None) -> CursorResult[*AnyRow]:
        return self.connection.execute(query, parameters)
