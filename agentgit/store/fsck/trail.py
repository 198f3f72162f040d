"""Looking whether the audit trail is as it was written: no row changed, none missing in between, none moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, select

from agentgit.sessions.events import Tip
from agentgit.store.fsck.values import RESTORE, Report, rows
from agentgit.store.tables import ErasureRow
from agentgit.store.telling.outbox import DELIVERY, HOOK
from agentgit.store.telling.trail import EVENT, hash_of
from agentgit.values import as_object

ERASURE = ErasureRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table

LOST = "Somebody changed the trail past its triggers. Compare it with a copy of the database; nothing can mend it."


def check_trail(
    connection: Connection, tenant_id: int, report: Report, known: Mapping[int, Tip] | None = None, *, hashes: bool
) -> dict[int, Tip]:
    """Check every chain of a tenant; give their ends.

    Args:
        connection: any.
        tenant_id: whose.
        report: takes what is found.
        known: ends that an earlier look has given; the trails must still lead through these.
        hashes: False to look at the numbers alone.
    """
    gone = rows(connection, select(ERASURE).where(ERASURE.c.tenant_id == tenant_id), report)
    erased = {row.external_session_id: row for row in gone}
    told: dict[int, Tip] = {}
    tips: dict[int, Tip] = {}
    met: dict[int, Tip] = {}
    last_ids: dict[int, int] = {}
    query = select(EVENT).where(EVENT.c.tenant_id == tenant_id)
    for row in rows(connection, query.order_by(EVENT.c.external_session_id, EVENT.c.seq), report):
        session_id, name = row.external_session_id, f"audit_event {row.external_session_id}/{row.seq}"
        before = tips.get(session_id, Tip(number=0, hash=""))
        if row.seq != before.number + 1:
            report.add(name, f"the events from {before.number + 1} to {row.seq - 1} before it are not there", LOST)
        elif hashes and hash_of(bytes.fromhex(before.hash), row._asdict()) != row.hash:
            report.add(name, "its hash does not match it and the event before it", LOST)
        if row.id <= last_ids.get(session_id, 0):
            report.add(name, "its id is not greater than that of the event before it", LOST)
        if session_id in erased:
            report.add(name, "its session was erased, with its trail", LOST)
        if row.kind == "session.erased":
            said = as_object(row.detail)
            told[said["erased"]] = Tip(number=said["events"], hash=said["hash"])
        last_ids[session_id] = row.id
        tips[session_id] = Tip(number=row.seq, hash=bytes(row.hash).hex())
        if known and session_id in known and known[session_id].number == row.seq:
            met[session_id] = tips[session_id]
    met.update(_check_erased(erased, told, known or {}, report))
    for session_id, tip in (known or {}).items():
        name = f"audit_event {session_id}/{tip.number}"
        if session_id not in met:
            report.add(name, "it was there when these tips were written down, and is not there now", LOST)
        elif met[session_id] != tip:
            report.add(name, "it had another hash when these tips were written down", LOST)
    return tips


def _check_erased(
    erased: Mapping[int, Any], told: Mapping[int, Tip], known: Mapping[int, Tip], report: Report
) -> dict[int, Tip]:
    """Check that the trail tells of each erasure; give what the ends that were known of their trails must be."""
    met: dict[int, Tip] = {}
    for session_id, row in erased.items():
        end = Tip(number=row.last_seq, hash=bytes(row.last_hash).hex())
        if told.get(session_id) != end:
            report.add(f"erasure {session_id}", "the trail does not tell that this session was erased so", LOST)
        before = known.get(session_id, end)
        met[session_id] = before if before.number < end.number else end
    return met


def erased_sessions(connection: Connection, tenant_id: int) -> list[int]:
    """List the sessions that were erased."""
    query = select(ERASURE.c.external_session_id).where(ERASURE.c.tenant_id == tenant_id)
    return sorted(connection.execute(query).scalars())


def check_outbox(connection: Connection, tenant_id: int, report: Report) -> None:
    """Check that what is to be sent has a webhook and an event."""
    hooks = {row.id for row in rows(connection, select(HOOK.c.id).where(HOOK.c.tenant_id == tenant_id), report)}
    query = (
        select(DELIVERY.c.id, DELIVERY.c.webhook_id, EVENT.c.seq)
        .select_from(
            DELIVERY.outerjoin(
                EVENT,
                (EVENT.c.tenant_id == DELIVERY.c.tenant_id)
                & (EVENT.c.external_session_id == DELIVERY.c.external_session_id)
                & (EVENT.c.seq == DELIVERY.c.seq),
            )
        )
        .where(DELIVERY.c.tenant_id == tenant_id)
    )
    for row in rows(connection, query, report):
        if row.webhook_id not in hooks:
            report.add(f"webhook_delivery {row.id}", f"its webhook {row.webhook_id} is not there", RESTORE)
        if row.seq is None:
            report.add(f"webhook_delivery {row.id}", "its event is not in the trail", LOST)
