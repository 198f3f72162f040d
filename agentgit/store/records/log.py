"""The log: pages of checkpoints, newest first, read from columns and an index without any state.

A page is read branch by branch, each branch yielding its newest checkpoints. A branch is skipped if its newest
checkpoint is older than the whole page.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Boolean, Select, bindparam, func, select, tuple_

from agentgit.checkpoints.queries import FIRST_TIME_CURSOR, Filter, TimeCursor
from agentgit.store.records.checkpoints import CHECKPOINT_WITH_BRANCH
from agentgit.store.records.journal import UNBOUNDED
from agentgit.store.records.sessions import Segment, StoredRow
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.rows import rows_with
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading


@dataclass(frozen=True, kw_only=True)
class LogPart:
    branch_id: int
    last_number: int = UNBOUNDED
    newest_id: int | None = None


def parts_of_path(path: Sequence[Segment], *, with_branch_points: bool = False) -> list[LogPart]:
    newest_ids = [*(one.branch.branch_point_id for one in path[1:]), path[-1].branch.head_id]
    last_numbers = [UNBOUNDED if one.last_number is None else one.last_number + with_branch_points for one in path]
    places = zip(path, last_numbers, newest_ids, strict=True)
    return [LogPart(branch_id=one.branch.id, last_number=last, newest_id=newest) for one, last, newest in places]


def parts_of_branches(branches: Iterable[StoredRow]) -> list[LogPart]:
    return [LogPart(branch_id=row.id, newest_id=row.head_id) for row in branches if row.head_id is not None]


class LogStore:
    def page(
        self,
        transaction: Reading,
        parts: Sequence[LogPart],
        log_filter: Filter,
        tagged_id: int | None,
        after: TimeCursor,
        limit: int,
    ) -> list[StoredRow]:
        """Read checkpoints, newest first, each with the name, thread and session of its branch."""
        query = _page_query(_filter_fields(log_filter))
        page_rows: list[StoredRow] = []
        page_place = {"at": after.at, "last": after.id, "limit": limit}
        ids = [part.newest_id for part in parts if part.newest_id is not None] if len(parts) > 1 else []
        newest_rows = rows_with(transaction, select(_C.id, _C.created_at), _C.id, ids)
        upper_bounds = {row.id: _cursor_of(row) for row in newest_rows}
        bounded_parts = [(upper_bounds.get(part.newest_id or 0, FIRST_TIME_CURSOR), part) for part in parts]
        for upper_bound, part in sorted(bounded_parts, key=lambda pair: pair[0], reverse=True):
            if len(page_rows) == limit and _cursor_of(page_rows[-1]) > upper_bound:
                break
            rows = query.all(transaction, self._parameters(part, log_filter, tagged_id) | page_place)
            page_rows = sorted([*page_rows, *rows], key=_cursor_of, reverse=True)[:limit]
        return page_rows

    def count(self, transaction: Reading, parts: Sequence[LogPart], log_filter: Filter, tagged_id: int | None) -> int:
        query = _count_query(_filter_fields(log_filter))
        return sum(query.all(transaction, self._parameters(part, log_filter, tagged_id))[0].count for part in parts)

    def find_ancestor(self, transaction: Reading, path: Sequence[Segment], steps: int) -> StoredRow | None:
        """Read the checkpoint that is `steps` before the end of a path; None if the path is shorter."""
        for part in reversed(parts_of_path(path)):
            parameters = {"branch": part.branch_id, "end": part.last_number}
            if (row := _SELECT_ANCESTOR.first(transaction, {**parameters, "steps": steps})) is not None:
                return row
            steps -= _count_query(()).all(transaction, parameters)[0].count
        return None

    def _parameters(self, part: LogPart, log_filter: Filter, tagged_id: int | None) -> dict[str, Any]:
        values = {name: value for name, value in asdict(log_filter).items() if value is not None}
        if "tag" in values:
            values["tag"] = tagged_id or 0  # no checkpoint has id 0
        return {"branch": part.branch_id, "end": part.last_number, **values}


def _cursor_of(row: StoredRow) -> TimeCursor:
    return TimeCursor(row.created_at, row.id)


def _filter_fields(log_filter: Filter) -> tuple[str, ...]:
    return tuple(sorted(name for name, value in vars(log_filter).items() if value is not None))


_C = CHECKPOINT.c
_CONDITIONS = {
    "name": _C.name == bindparam("name"),
    "since": _C.created_at >= bindparam("since"),
    "until": _C.created_at <= bindparam("until"),
    "tag": _C.id == bindparam("tag"),
    "author": _C.user_id == bindparam("author"),
    "auto": _C.is_auto == bindparam("auto"),
    "with_calls": (_C.position > 0) == bindparam("with_calls", type_=Boolean),
}
_PART_CONDITIONS = (_C.internal_session_id == bindparam("branch"), _C.number <= bindparam("end"))
_SELECT_ANCESTOR = CompiledStatement(
    CHECKPOINT_WITH_BRANCH.where(*_PART_CONDITIONS).order_by(_C.number.desc()).limit(1).offset(bindparam("steps"))
)


def _conditions(filter_fields: tuple[str, ...]) -> list[Any]:
    return [*_PART_CONDITIONS, *(_CONDITIONS[name] for name in filter_fields)]


@functools.cache
def _page_query(filter_fields: tuple[str, ...]) -> CompiledStatement:
    order = (_C.created_at, _C.id)
    is_after_cursor = tuple_(*order) < tuple_(
        bindparam("at", type_=_C.created_at.type), bindparam("last", type_=_C.id.type)
    )
    query: Select[Any] = CHECKPOINT_WITH_BRANCH.where(*_conditions(filter_fields), is_after_cursor)
    return CompiledStatement(query.order_by(*(column.desc() for column in order)).limit(bindparam("limit")))


@functools.cache
def _count_query(filter_fields: tuple[str, ...]) -> CompiledStatement:
    return CompiledStatement(
        select(func.count().label("count")).select_from(CHECKPOINT).where(*_conditions(filter_fields))
    )
