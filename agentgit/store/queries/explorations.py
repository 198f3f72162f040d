"""Explorations and reruns in the database: sets of ordinary branches with a mark in their metadata."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, or_, select

from agentgit.checkpoints.diff import Tokens
from agentgit.checkpoints.references import free_name
from agentgit.effects import ToolInvocation
from agentgit.effects.kinds import UNDECLARED
from agentgit.errors import NotFound
from agentgit.sessions.messages import from_stored, text_of
from agentgit.sessions.session import RERUN
from agentgit.sessions.tree import BEGUN, Exploration, ExploredBranch
from agentgit.store.records.checkpoints import CHECKPOINT_WITH_BRANCH
from agentgit.store.records.journal import TrackPart
from agentgit.store.records.json_columns import read_meta, read_report
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.rows import rows_with
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, OPERATION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey

MARK_KEY = "exploration"
"""The key of the mark in the metadata of a branch: its exploration and its progress."""

DEFAULT_NAME = "explore"
"""The default name of an exploration. A number is added if the name is taken."""


def mark_of(row: StoredRow) -> dict[str, Any]:
    """Read the exploration mark of a branch; empty if no exploration made the branch."""
    mark: dict[str, Any] = read_meta(row).get(MARK_KEY, {})
    return mark


def branch_name(name: str, choices: Sequence[int]) -> str:
    return "/".join([name, *map(str, choices)])


class Explorations:
    def __init__(self, store: Store) -> None:
        self.store = store

    def update_mark(self, transaction: Writing, branch_id: int, **facts: Any) -> None:
        self.store.sessions.update_mark(transaction, branch_id, MARK_KEY, facts)

    def free_name(self, transaction: Reading, session_id: int) -> str:
        taken_names = {row.name.partition("/")[0] for row in self.store.sessions.branches(transaction, session_id)}
        return free_name(DEFAULT_NAME, taken_names)

    def load_branches(self, transaction: Reading, session_id: int, name: str) -> list[StoredRow]:
        """Read the branches of an exploration, each before the branches that continue it."""
        branches = self.store.sessions.branches(transaction, session_id)
        rows = [row for row in branches if row.name.startswith(f"{name}/") and mark_of(row).get("name") == name]
        return sorted(rows, key=lambda row: tuple(mark_of(row)["choices"]))

    def newest_name(self, transaction: Reading, session_id: int) -> str:
        for row in reversed(self.store.sessions.branches(transaction, session_id)):
            if mark := mark_of(row):
                return str(mark["name"])
        raise NotFound("This session has no exploration yet. Start one first.")

    def read(
        self, transaction: Reading, session_id: int, name: str, path: Collection[str] | None = None
    ) -> Exploration:
        rows = self.load_branches(transaction, session_id, name)
        if not rows:
            raise NotFound(f"This session has no exploration {name!r}. Leave out the name for the newest one.")
        start_branch = self.store.sessions.branch(transaction, mark_of(rows[0])["of"])
        rows = [row for row in rows if path is None or row.name in path]
        ids = {id for row in rows for id in (row.branch_point_id, mark_of(row)["end"]) if id is not None}
        found = rows_with(transaction, CHECKPOINT_WITH_BRANCH, CHECKPOINT.c.id, ids)
        checkpoints = {row.id: row for row in found}  # deleted ones are left out
        explored: dict[tuple[int, ...], ExploredBranch] = {}
        total_tokens: int | None = None
        runs = self.store.journal.newest_runs(transaction, session_id)
        for row in rows:
            messages, calls = self._load_turn(transaction, row, checkpoints, runs)
            branch = _explored_branch(row, messages, calls, explored)
            explored[branch.choices] = branch
            total_tokens = _add_optional(total_tokens, _count_tokens(messages))
        branches = list(explored.values())
        undeclared = {call.tool_name for one in branches for call in one.tool_calls if call.effect == UNDECLARED}
        return Exploration(
            name=name, branch=start_branch.name, branches=branches, tokens=total_tokens, undeclared=sorted(undeclared)
        )

    def _load_turn(
        self,
        transaction: Reading,
        row: StoredRow,
        checkpoints: Mapping[int, StoredRow],
        runs: Mapping[int, Row[Any]],
    ) -> tuple[list[dict[str, Any]], list[ToolInvocation]]:
        """Read the messages (in LangChain's stored form) and the tool calls of the turn of one explored branch."""
        end, start = checkpoints.get(mark_of(row)["end"]), checkpoints.get(row.branch_point_id)
        graphs, key = self.store.graphs, GraphKey(row.thread_id, "", (end and end.graph_checkpoint_id) or "")
        state = graphs.find(transaction, key) if end is not None else graphs.newest(transaction, row.thread_id)
        messages: list[dict[str, Any]] = []
        if state is not None:
            new_count = max(0, state.message_count - (start.message_count if start is not None else 0))
            messages = graphs.messages(transaction, state, last=new_count)
        count = end.position - row.inherited if end is not None else None
        return messages, self.store.journal.live_track(
            transaction, runs, [TrackPart(branch_id=row.id, before=row.inherited, count=count)]
        )


def _explored_branch(
    row: StoredRow,
    messages: list[dict[str, Any]],
    calls: list[ToolInvocation],
    explored: dict[tuple[int, ...], ExploredBranch],
) -> ExploredBranch:
    """Build an explored branch from its mark, its own content, and the content of the branch that it continues."""
    mark = mark_of(row)
    choices = tuple(mark["choices"])
    parent = explored.get(choices[:-1])
    all_messages = [*(parent.messages if parent else ()), *(from_stored(message) for message in messages)]
    answers = [text_of(message) for message in all_messages if message["role"] == "assistant"]
    return ExploredBranch(
        id=row.id,
        name=row.name,
        choices=choices,
        status=mark.get("status", BEGUN),
        answer=answers[-1] if answers else None,
        messages=all_messages,
        tool_calls=[*(parent.tool_calls if parent else ()), *calls],
        tokens=_add_optional(parent.tokens if parent else None, _count_tokens(messages)),
        score=float(mark["score"]) if mark.get("score") is not None else None,
        error=mark.get("error"),
    )


def _count_tokens(messages: list[dict[str, Any]]) -> int | None:
    with_usage = [one for one in map(from_stored, messages) if one.get("usage_metadata")]
    return Tokens.of(with_usage).total if with_usage else None


def _add_optional(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else a + b


class RerunMarks:
    def __init__(self, store: Store) -> None:
        self.store = store

    def names_like(self, transaction: Reading, beginning: str) -> set[str]:
        names = select(BRANCH.c.name).distinct()
        return set(transaction.execute(names.where(BRANCH.c.name.startswith(beginning, autoescape=True))).scalars())

    def update(self, transaction: Writing, branch_id: int, facts: Mapping[str, Any]) -> None:
        self.store.sessions.update_mark(transaction, branch_id, RERUN, facts)

    def read(self, transaction: Reading, name: str) -> Iterator[tuple[StoredRow, dict[str, Any], dict[str, Any]]]:
        """Yield the branches of the reruns of a name, oldest first, each with its mark and its report."""
        for part in slices(self._of_group(transaction, name)):
            reports = self.reports(transaction, [row.id for row in part])
            for row in part:
                yield row, read_meta(row)[RERUN], reports.get(row.id, {})

    def reports(self, transaction: Reading, branch_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """Return the reports of reruns by the ids of their branches, with the names that the branches have now."""
        operations = [one for one in self.store.operations.of_branches(transaction, branch_ids) if one.kind == RERUN]
        ids = {id for one in operations for id in (one.internal_session_id, one.source_id)}
        query = select(BRANCH.c.id, BRANCH.c.name)
        names = {row.id: row.name for row in transaction.execute(query.where(BRANCH.c.id.in_(ids)))}
        return {
            one.internal_session_id: read_report(one)
            | {"branch": names[one.internal_session_id], "source": names[one.source_id]}
            for one in operations
        }

    def _of_group(self, transaction: Reading, name: str) -> list[StoredRow]:
        """Return the branches of the reruns of a name, oldest first.

        The marks are encrypted. The branches that may have the mark are those whose names begin with the name of the
        reruns and, because a branch may have been renamed, those with a report.
        """
        reported = select(OPERATION.c.internal_session_id).where(OPERATION.c.kind == RERUN)
        query = select(BRANCH).where(or_(BRANCH.c.name.startswith(name, autoescape=True), BRANCH.c.id.in_(reported)))
        rows = transaction.execute(query.order_by(BRANCH.c.id)).all()
        return [row for row in rows if read_meta(row).get(RERUN, {}).get("group") == name]
