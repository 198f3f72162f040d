"""Reruns in the database. The reruns of many sessions are branches of one name, with a mark in their metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, or_, select

from agentgit.sessions.session import RERUN
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import BRANCH, OPERATION
from agentgit.store.store import Store
from agentgit.values import as_object


class RerunMarks:
    """The reruns of one tenant."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def names_like(self, connection: Connection, beginning: str) -> set[str]:
        """Return the names of branches that begin with a text."""
        names = select(BRANCH.c.name).distinct().where(BRANCH.c.tenant_id == self.store.tenant_id)
        return set(connection.execute(names.where(BRANCH.c.name.startswith(beginning, autoescape=True))).scalars())

    def update(self, branch_id: int, facts: Mapping[str, Any]) -> None:
        """Add facts to the mark of a rerun, in its own transaction."""
        self.store.database.write(
            lambda connection: self.store.sessions.change_metadata(
                connection, branch_id, lambda meta: meta | {RERUN: {**meta.get(RERUN, {}), **facts}}
            ),
            durable=True,
        )

    def read(self, connection: Connection, name: str) -> Iterator[tuple[StoredRow, dict[str, Any], dict[str, Any]]]:
        """Yield the branches of the reruns of a name, oldest first, each with its mark and its report."""
        for part in slices(self._of_group(connection, name)):
            reports = self.reports(connection, [row.id for row in part])
            for row in part:
                yield row, as_object(row.meta)[RERUN], reports.get(row.id, {})

    def reports(self, connection: Connection, branch_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the reports of reruns by the ids of their branches, with the names that the branches have now."""
        operations = [one for one in self.store.operations.of_branches(connection, branch_ids) if one.kind == RERUN]
        ids = {id for one in operations for id in (one.internal_session_id, one.source_id)}
        query = select(BRANCH.c.id, BRANCH.c.name).where(BRANCH.c.tenant_id == self.store.tenant_id)
        names = {row.id: row.name for row in connection.execute(query.where(BRANCH.c.id.in_(ids)))}
        return {
            one.internal_session_id: as_object(one.report)
            | {"branch": names[one.internal_session_id], "source": names[one.source_id]}
            for one in operations
        }

    def _of_group(self, connection: Connection, name: str) -> list[StoredRow]:
        """Return the branches of the reruns of a name, oldest first.

        The marks are encrypted. The branches that may have the mark are those whose names begin with the name of the
        reruns and, because a branch may have been renamed, those with a report.
        """
        tenant_id = self.store.tenant_id
        reported = select(OPERATION.c.internal_session_id).where(
            OPERATION.c.tenant_id == tenant_id, OPERATION.c.kind == RERUN
        )
        query = select(BRANCH).where(
            BRANCH.c.tenant_id == tenant_id,
            or_(BRANCH.c.name.startswith(name, autoescape=True), BRANCH.c.id.in_(reported)),
        )
        rows = connection.execute(query.order_by(BRANCH.c.id)).all()
        return [row for row in rows if as_object(row.meta).get(RERUN, {}).get("group") == name]
