"""The bases of a merge: the newest checkpoints that are behind both sides, with which each side is compared.

Each merge records in the data of its checkpoint what it merged. The history of a branch is therefore not a line: what a
merge brought to it, and what had come to that branch before, is behind it too. If two branches merged each other, or
both merged a third and a fourth one, there may be several newest checkpoints, of which none is behind another.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Connection, and_, or_

from agentgit.store.queries.comparison import Comparing
from agentgit.store.records.checkpoints import merged_by
from agentgit.store.records.sessions import Found
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Store

Behind = dict[int, int]
"""The branches behind a checkpoint, each with the number of its last checkpoint there."""


class Bases:
    """Finds what the sides of a merge have in common.

    Args:
        store: The store of the database.
    """

    def __init__(self, store: Store) -> None:
        self.checkpoints = store.checkpoints
        self.comparing = Comparing(store)

    def find(self, connection: Connection, ours: Found, theirs: Found) -> list[Found]:
        """Find the newest checkpoints that are behind both, the newest first; none if they are of two sessions.

        Args:
            connection: An open connection; the transaction may be read-only.
            ours: The row of one side.
            theirs: The row of the other.
        """
        one, other = (self._behind(connection, row) for row in (ours, theirs))
        common = [
            and_(CHECKPOINT.c.internal_session_id == branch, CHECKPOINT.c.number == min(one[branch], other[branch]))
            for branch in one.keys() & other.keys()
        ]
        rows = self.checkpoints.find(connection, or_(*common)) if common else []
        # The first one of a branch stands for the one that it left from, which is older, and there too.
        return self._newest(connection, [row for row in rows if row.kind != "branch"] or rows)

    def _newest(self, connection: Connection, rows: Sequence[Found]) -> list[Found]:
        """Leave out what is behind others."""
        newest: list[Found] = []
        covered: Behind = {}
        for row in sorted(rows, key=lambda row: -row.id):
            if row.number > covered.get(row.internal_session_id, 0):
                newest.append(row)
                for branch, number in self._behind(connection, row).items():
                    covered[branch] = max(number, covered.get(branch, 0))
        return newest

    def _behind(self, connection: Connection, row: Found) -> Behind:
        """Return what is behind a checkpoint, by its own way and by merges."""
        behind: Behind = {}
        todo = [row]
        while todo:
            at = todo.pop()
            for branch, number in self.comparing.ends(connection, at).items():
                behind[branch] = max(number, behind.get(branch, 0))
            merged = self._merged(connection, self.comparing.noted(connection, at), at.external_session_id)
            todo += [one for one in merged if one.number > behind.get(one.internal_session_id, 0)]
        return behind

    def _merged(self, connection: Connection, noted: Sequence[Found], session_id: int) -> Sequence[Found]:
        """Read the checkpoints that were merged; one that was deleted since is forgotten."""
        ids = {source for row in noted if (source := merged_by(row.data)) is not None}
        rows = self.checkpoints.find(connection, CHECKPOINT.c.id.in_(ids)) if ids else []
        return [row for row in rows if row.external_session_id == session_id]
