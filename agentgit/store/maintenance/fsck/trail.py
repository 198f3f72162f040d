"""Checks of the audit trail and the outbox: no event was modified, removed from a chain, or moved."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import Connection, Table, select

from agentgit.errors import Corrupt
from agentgit.sessions.events import NO_SESSION, Tip, hash_of
from agentgit.store.maintenance.fsck.cells import Cells, Read, readable
from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, rows
from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.sql.tables import AUDIT_EVENT, ERASURE, SESSION, WEBHOOK, WEBHOOK_DELIVERY
from agentgit.values import as_object

LOST = "The trail was modified despite its triggers. Compare it with a backup of the database; it cannot be repaired."


class Ends(NamedTuple):
    """The ends of a tenant's trails.

    Args:
        tips: The last event of each trail.
        erased: The sessions that were erased, according to the trail.
    """

    tips: Sequence[Tip]
    erased: Sequence[int]


def check_trail(
    connection: Connection, tenant_id: int, report: FsckReport, known: Collection[Tip] = (), *, hashes: bool
) -> Ends:
    """Check every chain of a tenant; return the ends of the chains.

    Args:
        connection: Any open connection.
        tenant_id: The tenant.
        report: The report that receives the findings.
        known: Ends that earlier checks returned. The trails must still contain them.
        hashes: False to check only the numbers of the events.
    """
    rows_of = select(*_columns(ERASURE, connection)).where(ERASURE.c.tenant_id == tenant_id)
    gone = {row.external_session_id: _end_of(row) for row in rows(connection, rows_of, report)}
    chains = _Chains(report, gone, hashes=hashes, wanted={(tip.session_id, tip.number) for tip in known})
    query = select(*_columns(AUDIT_EVENT, connection))
    query = query.where(AUDIT_EVENT.c.tenant_id == tenant_id).order_by(
        AUDIT_EVENT.c.external_session_id, AUDIT_EVENT.c.seq
    )
    for page in Cells(connection, query).pages():
        for one in page:
            report.attempt(one.name, partial(chains.check_event, one))
        report.advance(len(page))
    erased = {session_id: end for session_id, end in gone.items() if end in chains.recorded_erasures}
    _check_erased(connection, tenant_id, gone, erased, report)
    chains.found_hashes.update({(end.session_id, end.number): end.hash for end in erased.values()})
    _check_known(known, chains.found_hashes, erased, report)
    return Ends(list(chains.tips.values()), sorted(erased))


class _Chains:
    """The chains of a tenant, as far as they have been read.

    Args:
        report: The report that receives the findings.
        erased: The erased sessions, whose trails must be gone.
        hashes: False to check only the numbers of the events.
        wanted: The session ids and event numbers whose hashes are to be collected.
    """

    def __init__(
        self, report: FsckReport, erased: Collection[int], *, hashes: bool, wanted: Collection[tuple[int, int]]
    ) -> None:
        self.report, self.erased, self.hashes, self.wanted = report, erased, hashes, wanted
        self.recorded_erasures: set[Tip] = set()
        """The ends of the trails of erased sessions, as recorded in the trail that belongs to no session."""
        self.tips: dict[int, Tip] = {}
        """The end of each chain."""
        self.found_hashes: dict[tuple[int, int], str] = {}
        """The hashes of the wanted events that exist, by session id and event number."""
        self._last_ids: dict[int, int] = {}
        self._unsure: set[int] = set()
        """The chains whose last row has no valid hash, so that the next row cannot be checked against it."""

    def check_event(self, one: Read) -> None:
        """Check a row against the previous row of its chain, and make it the end of the chain."""
        row, session_id = one.row, one.row.external_session_id
        for what in one.problems:
            self._wrong(one, what)
        if not one.has_key:
            return  # its chain is unknown
        before = self.tips.get(session_id, Tip(session_id=session_id, number=0, hash=""))
        if row.seq <= before.number:
            self._wrong(one, f"its number does not follow {before.number}, the number of the previous event")
            return
        is_whole = self._is_whole(one, before)
        if is_whole and row.id <= self._last_ids.get(session_id, 0):
            self._wrong(one, "its id is not greater than the id of the previous event")
        if session_id in self.erased:
            self._wrong(one, "its session was erased, with its trail")
        if row.kind == "session.erased" and session_id == NO_SESSION and is_whole:
            self._take_erasure(one)
        if is_whole:
            self._last_ids[session_id] = row.id
        self._unsure.discard(session_id)
        if len(row.hash) != HASH_BYTES:
            self._unsure.add(session_id)
        tip = self.tips[session_id] = Tip(session_id=session_id, number=row.seq, hash=bytes(row.hash).hex())
        if (session_id, row.seq) in self.wanted:
            self.found_hashes[session_id, row.seq] = tip.hash

    def _is_whole(self, one: Read, before: Tip) -> bool:
        """Return whether a row is unmodified, as far as this can be checked. Report what is wrong with it."""
        row = one.row
        if row.seq != before.number + 1:
            self._wrong(one, f"the events from {before.number + 1} to {row.seq - 1} before it are missing")
            return not one.problems
        if one.problems or not self.hashes or row.external_session_id in self._unsure:
            return not one.problems
        if hash_of(bytes.fromhex(before.hash), row._asdict()) != row.hash:
            self._wrong(one, "its hash does not match its contents and the previous event")
            return False
        return True

    def _take_erasure(self, one: Read) -> None:
        """Store the end of an erased session's trail, as the trail records it."""
        try:
            said = as_object(one.row.detail)
            self.recorded_erasures.add(
                Tip(session_id=int(said["erased"]), number=int(said["events"]), hash=str(said["hash"]))
            )
        except (Corrupt, ValueError, TypeError, LookupError):
            self._wrong(one, "its detail cannot be read")

    def _wrong(self, one: Read, what: str) -> None:
        self.report.add(one.name, what, LOST)


def _end_of(erasure: Any) -> Tip:
    """Return the end of an erased session's trail, as the erasure row records it."""
    return Tip(session_id=erasure.external_session_id, number=erasure.last_seq, hash=bytes(erasure.last_hash).hex())


def _check_known(
    known: Collection[Tip], met: Mapping[tuple[int, int], str], erased: Mapping[int, Tip], report: FsckReport
) -> None:
    """Check that the trails still contain the known ends. Of an erased trail, only the last event can be compared."""
    for tip in known:
        name, found = f"audit_event {tip.session_id}/{tip.number}", met.get((tip.session_id, tip.number))
        if found is None and not (tip.session_id in erased and tip.number < erased[tip.session_id].number):
            report.add(name, "it existed when these tips were recorded, and is missing now", LOST)
        elif found not in (None, tip.hash):
            report.add(name, "it had another hash when these tips were recorded", LOST)


def _check_erased(
    connection: Connection, tenant_id: int, gone: Collection[int], erased: Collection[int], report: FsckReport
) -> None:
    """Check that the trail records each erasure, and that the erased sessions are gone."""
    for session_id in gone:
        if session_id not in erased:
            report.add(f"erasure {session_id}", "the trail does not record this erasure", LOST)
    query = select(SESSION.c.id).where(SESSION.c.tenant_id == tenant_id)
    for (session_id,) in rows(connection, query, report, counted=False):
        if session_id in gone:
            report.add(f"erasure {session_id}", "this session still exists", "Run session.delete() again.")


def _columns(table: Table, connection: Connection) -> list[Any]:
    """Return expressions for the columns of a table, so that the driver can read every time. See `readable`."""
    return [readable(column, is_sqlite=connection.dialect.name == "sqlite") for column in table.c]


def check_outbox(connection: Connection, tenant_id: int, report: FsckReport) -> None:
    """Check that each delivery has a webhook and an event."""
    hooks = {row.id for row in rows(connection, select(WEBHOOK.c.id).where(WEBHOOK.c.tenant_id == tenant_id), report)}
    query = (
        select(WEBHOOK_DELIVERY.c.id, WEBHOOK_DELIVERY.c.webhook_id, AUDIT_EVENT.c.seq)
        .select_from(
            WEBHOOK_DELIVERY.outerjoin(
                AUDIT_EVENT,
                (AUDIT_EVENT.c.tenant_id == WEBHOOK_DELIVERY.c.tenant_id)
                & (AUDIT_EVENT.c.external_session_id == WEBHOOK_DELIVERY.c.external_session_id)
                & (AUDIT_EVENT.c.seq == WEBHOOK_DELIVERY.c.seq),
            )
        )
        .where(WEBHOOK_DELIVERY.c.tenant_id == tenant_id)
    )
    for row in rows(connection, query, report):
        if row.webhook_id not in hooks:
            report.add(f"webhook_delivery {row.id}", f"its webhook {row.webhook_id} is missing", RESTORE)
        if row.seq is None:
            report.add(f"webhook_delivery {row.id}", "its event is not in the trail", LOST)
