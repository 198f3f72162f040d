"""Reruns in the database. The reruns of many sessions are branches of one name, with a mark in their metadata."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Connection, select

from agentgit.sessions.session import RERUN
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import BRANCH
from agentgit.store.store import Store
from agentgit.values import as_object


class RerunMarks:
    """The reruns of one tenant.

    Args:
        store: The store of the tenant.
    """

    def __init__(self, store: Store) -> None:
        self.store = store

    def names_like(self, connection: Connection, beginning: str) -> set[str]:
        """Return the names of branches that begin with a text."""
        names = select(BRANCH.c.name).distinct().where(BRANCH.c.tenant_id == self.store.tenant_id)
        return set(connection.execute(names.where(BRANCH.c.name.startswith(beginning, autoescape=True))).scalars())

    def exist(self, connection: Connection, name: str) -> bool:
        """Return whether there are reruns of a name."""
        return any(self._of_group(connection, name))

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
        rows = self._of_group(connection, name)
        for part in slices(rows):
            operations = self.store.operations.of_branches(connection, [row.id for row in part])
            reports = {one.internal_session_id: as_object(one.report) for one in operations if one.kind == RERUN}
            for row in part:
                yield row, as_object(row.meta)[RERUN], reports.get(row.id, {})

    def _of_group(self, connection: Connection, name: str) -> list[StoredRow]:
        """Return the branches of the reruns of a name, oldest first; the names of branches begin with it."""
        query = select(BRANCH).where(
            BRANCH.c.tenant_id == self.store.tenant_id, BRANCH.c.name.startswith(name, autoescape=True)
        )
        rows = row_codes.verify_rows(connection, BRANCH, connection.execute(query.order_by(BRANCH.c.id)))
        return [row for row in rows if as_object(row.meta).get(RERUN, {}).get("group") == name]
