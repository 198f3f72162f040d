"""Checks of the audit trail: no event was modified, removed from a chain, or moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select

from agentgit.errors import Corrupt
from agentgit.sessions.events import NO_SESSION, Tip, hash_row
from agentgit.store.maintenance.fsck.cells import CheckedRow, RowReader, readable_column
from agentgit.store.maintenance.fsck.values import FsckReport, read_rows
from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.sql.tables import AUDIT_EVENT, ERASURE, SESSION
from agentgit.values import as_object

TRAIL_MODIFIED = (
    "The trail was modified despite its triggers. Compare it with a backup of the database; it cannot be repaired."
)


class TrailEnds(NamedTuple):
    """The ends of a tenant's trails."""

    tips: Sequence[Tip]
    erased: Sequence[int]


def check_trail(
    connection: Connection, tenant_id: int, report: FsckReport, known_tips: Collection[Tip] = (), *, with_hashes: bool
) -> TrailEnds:
    """Check every chain of a tenant; return the ends of the chains."""
    erasure_query = select(*_readable_columns(ERASURE, connection)).where(ERASURE.c.tenant_id == tenant_id)
    erasures = {row.external_session_id: _tip_of_erasure(row) for row in read_rows(connection, erasure_query, report)}
    chains = _ChainCheck(
        report, erasures, with_hashes=with_hashes, wanted_events={(tip.session_id, tip.number) for tip in known_tips}
    )
    query = select(*_readable_columns(AUDIT_EVENT, connection))
    query = query.where(AUDIT_EVENT.c.tenant_id == tenant_id).order_by(
        AUDIT_EVENT.c.external_session_id, AUDIT_EVENT.c.seq
    )
    for page in RowReader(connection, query).pages():
        for checked_row in page:
            report.attempt(checked_row.name, partial(chains.check_event, checked_row))
        report.advance(len(page))
    confirmed_erasures = {session_id: end for session_id, end in erasures.items() if end in chains.recorded_erasures}
    _check_erasures(connection, tenant_id, erasures, confirmed_erasures, report)
    chains.found_hashes.update({(end.session_id, end.number): end.hash for end in confirmed_erasures.values()})
    _check_known_tips(known_tips, chains.found_hashes, confirmed_erasures, report)
    return TrailEnds(list(chains.tips.values()), sorted(confirmed_erasures))


class _ChainCheck:
    """The chains of a tenant, as far as they have been read."""

    def __init__(
        self,
        report: FsckReport,
        erased_ids: Collection[int],
        *,
        with_hashes: bool,
        wanted_events: Collection[tuple[int, int]],
    ) -> None:
        self.report, self.erased_ids, self.with_hashes, self.wanted_events = (
            report,
            erased_ids,
            with_hashes,
            wanted_events,
        )
        self.recorded_erasures: set[Tip] = set()
        """The ends of the trails of erased sessions, as recorded in the trail that belongs to no session."""
        self.tips: dict[int, Tip] = {}
        """The end of each chain."""
        self.found_hashes: dict[tuple[int, int], str] = {}
        """The hashes of the wanted events that exist, by session id and event number."""
        self._last_ids: dict[int, int] = {}
        self._unverifiable: set[int] = set()
        """The chains whose last row has no valid hash, so that the next row cannot be checked against it."""

    def check_event(self, checked_row: CheckedRow) -> None:
        """Check a row against the previous row of its chain, and make it the end of the chain."""
        row, session_id = checked_row.row, checked_row.row.external_session_id
        for problem in checked_row.problems:
            self._add_finding(checked_row, problem)
        if not checked_row.has_key:
            return  # its chain is unknown
        previous_tip = self.tips.get(session_id, Tip(session_id=session_id, number=0, hash=""))
        if row.seq <= previous_tip.number:
            self._add_finding(
                checked_row, f"its number does not follow {previous_tip.number}, the number of the previous event"
            )
            return
        is_intact = self._is_intact(checked_row, previous_tip)
        if is_intact and row.id <= self._last_ids.get(session_id, 0):
            self._add_finding(checked_row, "its id is not greater than the id of the previous event")
        if session_id in self.erased_ids:
            self._add_finding(checked_row, "its session was erased, with its trail")
        if row.kind == "session.erased" and session_id == NO_SESSION and is_intact:
            self._record_erasure(checked_row)
        if is_intact:
            self._last_ids[session_id] = row.id
        self._unverifiable.discard(session_id)
        if len(row.hash) != HASH_BYTES:
            self._unverifiable.add(session_id)
        tip = self.tips[session_id] = Tip(session_id=session_id, number=row.seq, hash=bytes(row.hash).hex())
        if (session_id, row.seq) in self.wanted_events:
            self.found_hashes[session_id, row.seq] = tip.hash

    def _is_intact(self, checked_row: CheckedRow, previous_tip: Tip) -> bool:
        """Return whether a row is unmodified, as far as this can be checked. Report what is wrong with it."""
        row = checked_row.row
        if row.seq != previous_tip.number + 1:
            self._add_finding(
                checked_row, f"the events from {previous_tip.number + 1} to {row.seq - 1} before it are missing"
            )
            return not checked_row.problems
        if checked_row.problems or not self.with_hashes or row.external_session_id in self._unverifiable:
            return not checked_row.problems
        if hash_row(bytes.fromhex(previous_tip.hash), row._asdict()) != row.hash:
            self._add_finding(checked_row, "its hash does not match its contents and the previous event")
            return False
        return True

    def _record_erasure(self, checked_row: CheckedRow) -> None:
        """Store the end of an erased session's trail, as the trail records it."""
        try:
            detail = as_object(checked_row.row.detail)
            self.recorded_erasures.add(
                Tip(session_id=int(detail["erased"]), number=int(detail["events"]), hash=str(detail["hash"]))
            )
        except (Corrupt, ValueError, TypeError, LookupError):
            self._add_finding(checked_row, "its detail cannot be read")

    def _add_finding(self, checked_row: CheckedRow, problem: str) -> None:
        self.report.add(checked_row.name, problem, TRAIL_MODIFIED)


def _tip_of_erasure(erasure: Any) -> Tip:
    """Return the end of an erased session's trail, as the erasure row records it."""
    return Tip(session_id=erasure.external_session_id, number=erasure.last_seq, hash=bytes(erasure.last_hash).hex())


def _check_known_tips(
    known_tips: Collection[Tip],
    found_hashes: Mapping[tuple[int, int], str],
    confirmed_erasures: Mapping[int, Tip],
    report: FsckReport,
) -> None:
    """Check that the trails still contain the known ends. Of an erased trail, only the last event can be compared."""
    for tip in known_tips:
        name, found_hash = f"audit_event {tip.session_id}/{tip.number}", found_hashes.get((tip.session_id, tip.number))
        if found_hash is None and not (
            tip.session_id in confirmed_erasures and tip.number < confirmed_erasures[tip.session_id].number
        ):
            report.add(name, "it existed when these tips were recorded, and is missing now", TRAIL_MODIFIED)
        elif found_hash not in (None, tip.hash):
            report.add(name, "it had another hash when these tips were recorded", TRAIL_MODIFIED)


def _check_erasures(
    connection: Connection,
    tenant_id: int,
    erasures: Collection[int],
    confirmed_erasures: Collection[int],
    report: FsckReport,
) -> None:
    """Check that the trail records each erasure, and that the erased sessions are gone."""
    for session_id in erasures:
        if session_id not in confirmed_erasures:
            report.add(f"erasure {session_id}", "the trail does not record this erasure", TRAIL_MODIFIED)
    query = select(SESSION.c.id).where(SESSION.c.tenant_id == tenant_id)
    for (session_id,) in read_rows(connection, query, report, counted=False):
        if session_id in erasures:
            report.add(f"erasure {session_id}", "this session still exists", "Delete the session again.")


def _readable_columns(table: Table, connection: Connection) -> list[Any]:
    """Return expressions for the columns of a table, so that the driver can read every time. See `readable_column`."""
    return [readable_column(column, is_sqlite=connection.dialect.name == "sqlite") for column in table.c]
