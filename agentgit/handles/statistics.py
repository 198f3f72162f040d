"""The figures of sessions."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection

from agentgit.handles.context import BranchRef, Context
from agentgit.sessions import ExternalSession
from agentgit.sessions.stats import Prices, Stats, require_prices
from agentgit.store.maintenance import statistics


def count(
    connection: Connection,
    context: Context,
    sessions: Sequence[ExternalSession],
    subject: str,
    branch: BranchRef,
    prices: Prices | None,
    *,
    storage: bool,
) -> Stats:
    """Count what some sessions have.

    Args:
        connection: An open connection.
        context: The store and the principal.
        sessions: The sessions to count.
        subject: The words by which a person calls them.
        branch: One branch of the only session; None for all branches.
        prices: What a million tokens cost, as `Session.stats` takes it.
        storage: True to also measure what they take of the database.

    Raises:
        InvalidInput: A price is not valid.
        NotFound: There is no such branch.
    """
    given, store = require_prices(prices) if prices is not None else None, context.store
    rows = [row for session in sessions for row in store.sessions.branches(connection, session.id)]
    if branch is not None:
        rows = [context.lookup.branch(connection, sessions[0], branch)]
        subject = f"branch {rows[0].name} of {subject}"
    return Stats(
        subject=subject,
        branches=tuple(statistics.figures(connection, store, sessions, rows)),
        names=statistics.names(connection, store, [row.id for row in rows]),
        sessions=len(sessions),
        prices=given,
        storage=statistics.storage(connection, store, rows) if storage else None,
    )
