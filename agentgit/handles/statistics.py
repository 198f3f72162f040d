"""Statistics of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from agentgit.handles.context import BranchRef, Context
from agentgit.sessions import ExternalSession
from agentgit.sessions.stats import Prices, Stats, require_prices
from agentgit.store.maintenance import statistics


def collect_stats(
    connection: Connection,
    context: Context,
    sessions: Sequence[ExternalSession],
    subject: str,
    branch: BranchRef,
    prices: Prices | None,
    *,
    storage: bool,
) -> Stats:
    """Return the statistics of sessions."""
    checked_prices, store = require_prices(prices) if prices is not None else None, context.store
    rows = [row for session in sessions for row in store.sessions.branches(connection, session.id)]
    if branch is not None:
        rows = [context.lookup.branch(connection, sessions[0], branch)]
        subject = f"branch {rows[0].name} of {subject}"
    return Stats(
        subject=subject,
        branches=tuple(statistics.count_figures(connection, store, sessions, rows)),
        names=statistics.count_names(connection, store, [row.id for row in rows]),
        sessions=len(sessions),
        prices=checked_prices,
        storage=statistics.measure_storage(connection, store, rows) if storage else None,
    )
