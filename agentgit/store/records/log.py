"""The log: pages of checkpoints, newest first, read from columns and an index without any state.

A page is read branch by branch, each branch yielding its newest checkpoints. A branch is skipped if its newest
checkpoint is older than the whole page.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, func, select, tuple_

from agentgit.checkpoints.queries import TOP, Filter, TimeCursor
from agentgit.store.records.sessions import Segment, StoredRow
from agentgit.store.sql import row_codes
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import BRANCH, CHECKPOINT

ALL = 2**31 - 1
"""A number greater than that of any checkpoint on a branch."""


@dataclass(frozen=True, kw_only=True)
class LogPart:
    """The part of a log on one branch.

    Args:
        branch_id: The branch.
        until: The number of the last checkpoint of the branch that belongs to the log.
        newest_id: The id of the newest checkpoint of the part, if it is known.
        beyond: The number of later checkpoints of the branch that are in the search index.
    """

    branch_id: int
    until: int = ALL
    newest_id: int | None = None
    beyond: int = 0


def of_path(path: Sequence[Segment], *, points: bool = False) -> list[LogPart]:
    """Return the log parts of a path.

    Args:
        path: The path, root first.
        points: True to include the branch points, which the first checkpoint of the next branch stands for.
    """
    ends = [segment.branch.branch_point_id for segment in path[1:]]
    newest = [*ends, path[-1].branch.head_id]
    lasts = [ALL if one.checkpoints is None else one.checkpoints + points for one in path]
    return [
        LogPart(branch_id=one.branch.id, until=last, newest_id=newest_id, beyond=max(0, one.branch.searched - last))
        for one, newest_id, last in zip(path, newest, lasts, strict=True)
    ]


def of_branches(branches: Iterable[StoredRow]) -> list[LogPart]:
    """Return the log parts of whole branches."""
    return [LogPart(branch_id=row.id, newest_id=row.head_id) for row in branches if row.head_id is not None]


class LogStore:
    """The checkpoints of one tenant in order of time.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def page(
        self,
        connection: Connection,
        parts: Sequence[LogPart],
        wanted: Filter,
        tagged: int | None,
        after: TimeCursor,
        limit: int,
    ) -> list[StoredRow]:
        """Read checkpoints, newest first, each with the name, thread and session of its branch.

        Args:
            connection: Any open connection.
            parts: The parts of branches to read.
            wanted: The filter for the checkpoints.
            tagged: The id of the checkpoint that has the tag of the filter; None if there is none.
            after: The position after which the page starts.
            limit: The maximum number of checkpoints.
        """
        prepared = _rows(_shape(wanted))
        found: list[StoredRow] = []
        for newest, part in sorted(self._newest(connection, parts), key=lambda pair: pair[0], reverse=True):
            if len(found) == limit and _mark(found[-1]) > newest:
                break
            given = self._given(part, wanted, tagged) | {"at": after.at, "last": after.id, "limit": limit}
            rows = row_codes.authentic(connection, CHECKPOINT, prepared.all(connection, given))
            found = sorted([*found, *rows], key=_mark, reverse=True)[:limit]
        return found

    def count(self, connection: Connection, parts: Sequence[LogPart], wanted: Filter, tagged: int | None) -> int:
        """Count checkpoints without reading them."""
        prepared = _count(_shape(wanted))
        return sum(prepared.all(connection, self._given(part, wanted, tagged))[0].count for part in parts)

    def back(self, connection: Connection, path: Sequence[Segment], steps: int) -> StoredRow | None:
        """Read the checkpoint that is `steps` before the end of a path; None if the path is shorter."""
        for part in reversed(of_path(path)):
            given = {"tenant": self.tenant_id, "branch": part.branch_id, "end": part.until}
            rows = row_codes.authentic(connection, CHECKPOINT, _BACK.all(connection, {**given, "steps": steps}))
            if rows:
                row: StoredRow = rows[0]
                return row
            steps -= _count(()).all(connection, given)[0].count
        return None

    def _newest(self, connection: Connection, parts: Sequence[LogPart]) -> list[tuple[TimeCursor, LogPart]]:
        """Pair each part with an upper bound of the marks of its checkpoints."""
        ids = [part.newest_id for part in parts if part.newest_id is not None] if len(parts) > 1 else []
        known: dict[int, TimeCursor] = {}
        for some in slices(ids):
            rows = connection.execute(_TIMES, {"tenant": self.tenant_id, "ids": some})
            known.update((row.id, TimeCursor(row.created_at, row.id)) for row in rows)
        return [(known.get(part.newest_id or 0, TOP), part) for part in parts]

    def _given(self, part: LogPart, wanted: Filter, tagged: int | None) -> dict[str, Any]:
        asked = {name: value for name, value in asdict(wanted).items() if value is not None}
        if "tag" in asked:
            asked["tag"] = tagged or 0  # no checkpoint has id 0
        return {"tenant": self.tenant_id, "branch": part.branch_id, "end": part.until, **asked}


def _mark(row: StoredRow) -> TimeCursor:
    return TimeCursor(row.created_at, row.id)


def _shape(wanted: Filter) -> tuple[str, ...]:
    return tuple(sorted(name for name, value in vars(wanted).items() if value is not None))


_C = CHECKPOINT.c
_CONDITIONS = {
    "name": _C.name == bindparam("name"),
    "since": _C.created_at >= bindparam("since"),
    "until": _C.created_at <= bindparam("until"),
    "tag": _C.id == bindparam("tag"),
    "author": _C.user_id == bindparam("author"),
    "auto": _C.is_auto == bindparam("auto"),
}
_PART = (
    _C.tenant_id == bindparam("tenant"),
    _C.internal_session_id == bindparam("branch"),
    _C.number <= bindparam("end"),
)
_WITH_BRANCH = select(
    CHECKPOINT, BRANCH.c.name.label("branch_name"), BRANCH.c.thread_id, BRANCH.c.external_session_id
).join_from(CHECKPOINT, BRANCH, and_(BRANCH.c.tenant_id == _C.tenant_id, BRANCH.c.id == _C.internal_session_id))
_BACK = CompiledStatement(_WITH_BRANCH.where(*_PART).order_by(_C.number.desc()).limit(1).offset(bindparam("steps")))
_TIMES = select(_C.id, _C.created_at).where(
    _C.tenant_id == bindparam("tenant"), _C.id.in_(bindparam("ids", expanding=True))
)


def _conditions(shape: tuple[str, ...]) -> list[Any]:
    return [*_PART, *(_CONDITIONS[name] for name in shape)]


@functools.cache
def _rows(shape: tuple[str, ...]) -> CompiledStatement:
    """Build the query of a page for a set of conditions."""
    order = (_C.created_at, _C.id)
    behind = tuple_(*order) < tuple_(bindparam("at", type_=_C.created_at.type), bindparam("last", type_=_C.id.type))
    query: Select[Any] = _WITH_BRANCH.where(*_conditions(shape), behind)
    return CompiledStatement(query.order_by(*(column.desc() for column in order)).limit(bindparam("limit")))


@functools.cache
def _count(shape: tuple[str, ...]) -> CompiledStatement:
    return CompiledStatement(select(func.count().label("count")).select_from(CHECKPOINT).where(*_conditions(shape)))
