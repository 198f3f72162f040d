"""Checks of rows that no constraint can make: positions, ancestors, JSON, authors, and references over other rows."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from sqlalchemy import Column, ColumnElement, FromClause, Table, and_, exists, func, not_, or_, select

from agentgit.effects.invocation import REDO
from agentgit.effects.kinds import MEMORY
from agentgit.effects.memory import names_item
from agentgit.errors import Corrupt
from agentgit.store.maintenance.erasure import list_erased_users
from agentgit.store.maintenance.fsck.reading import RESTORE, FsckReport, checked, read_rows, row_name
from agentgit.store.maintenance.retention import parse_retention
from agentgit.store.records.journal import LAST_LOGGED_STATUSES, NEXT_LOGGED
from agentgit.store.records.json_columns import read_meta, read_report, read_request
from agentgit.store.records.session_access import NO_LINK
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import (
    BRANCH,
    CHECKPOINT,
    EVENT,
    GRAPH_CHECKPOINT,
    METADATA,
    OPERATION,
    SESSION,
    SESSION_LINK,
    SESSION_MEMBER,
    TAG,
    TOOL_INVOCATION,
    USER,
    WORKSPACE_SNAPSHOT,
    WORLD_LOG,
)
from agentgit.store.sql.transaction import Reading
from agentgit.values import as_object, stored_json

DELETE_ROW = "The row grants its role all the same. Delete it, or remove the user from the session."


class RowCheck:
    """A check of the rows of sessions. It keeps ids that it has read, to compare rows with each other."""

    def __init__(self, transaction: Reading, report: FsckReport) -> None:
        self.transaction, self.report, self.with_hashes = transaction, report, report.with_hashes
        self._select = partial(checked, report)
        c = CHECKPOINT.c
        rows = self._read_raw(self._select(c.id, c.internal_session_id, c.position))
        self.positions: dict[int, tuple[int, int]] = {id: (branch_id, position) for id, branch_id, position in rows}
        """The branch of each checkpoint, and its position on the tool track."""
        self.call_ids = {id for (id,) in self._read_raw(self._select(TOOL_INVOCATION.c.id))}
        self.tracks: dict[int, tuple[int, int]] = {}
        """The number of calls that the track of each branch inherits, and the length of its track."""

    def run(self) -> None:
        """Run all checks. One that cannot go on does not prevent the others."""
        for check in (
            self.check_references,
            self.check_json,
            self.check_branches,
            self.check_checkpoints,
            self.check_calls,
            self.check_operations,
            self.check_world,
            self.check_authors,
            self.check_members,
        ):
            self.report.attempt("the database", check)

    def _read_raw(self, query: Any) -> Iterable[Any]:
        return (row for page in CompiledStatement(query).pages(self.transaction, raw=True) for row in page)

    def read(self, *columns: Any) -> Iterable[Any]:
        """Read some columns of all rows of a table, and count the rows for the progress."""
        return read_rows(self.transaction, self._select(*columns), self.report)

    def require_json(self, row: str, name: str, data: Any, decode: Callable[[Any], Any] = as_object) -> Any:
        """Decode a value as its readers do, or report that this is impossible. Does nothing at level 1."""
        if self.with_hashes and data is not None:
            try:
                return decode(data)
            except Corrupt:
                self.report.add(row, f"its {name} cannot be read", RESTORE)
        return None

    def check_references(self) -> None:
        """Check that what refers to a row by its id alone refers to one of its own session."""
        for column, target in references_within_sessions():
            table, owned = column.table, target.alias()
            is_own = owned.c.id == column, _session_of(owned, table) == _session_of(table, owned)
            keys = self._select(*table.primary_key, column).where(column.is_not(None), ~exists().where(*is_own))
            for *key, id in self.transaction.execute(keys):
                problem = f"its {column.name} {id} is no {target.name} of its session"
                self.report.add(row_name(table, key), problem, RESTORE)

    def check_json(self) -> None:
        for column in (SESSION.c.meta, EVENT.c.detail, WORKSPACE_SNAPSHOT.c.settings):
            for id, data in self.read(column.table.c.id, column):
                self.require_json(f"{column.table.name} {id}", column.name, data)
                if column is SESSION.c.meta:
                    self.require_json(f"external_session {id}", "retention", data, parse_retention)

    def check_branches(self) -> None:
        """Check the ancestors and the inherited calls of each branch, and that each session has a current branch."""
        c = BRANCH.c
        calls = self._select(TOOL_INVOCATION.c.internal_session_id, func.count()).where(TOOL_INVOCATION.c.kind != REDO)
        counts = dict(self._read_raw(calls.group_by(TOOL_INVOCATION.c.internal_session_id)))
        columns = (c.id, c.parent_id, c.branch_point_id, c.head_id, c.inherited, c.meta)
        rows = list(self.read(*columns))
        self.tracks = {row.id: (row.inherited, row.inherited + counts.get(row.id, 0)) for row in rows}
        with_checkpoints = {branch_id for branch_id, _ in self.positions.values()}
        cycle = find_cycle({row.id: row.parent_id for row in rows})
        for row in rows:
            name = f"internal_session {row.id}"
            if row.id in cycle:
                self.report.add(name, "it is its own ancestor", RESTORE)
            if row.head_id is None and row.id in with_checkpoints:
                self.report.add(name, "it has checkpoints, but no head", RESTORE)
            _, most = self.positions.get(row.branch_point_id or 0, (0, 0))
            # A branch that executed its calls again has the whole track itself and inherits nothing.
            is_valid = row.inherited in (0, most) or (0 < row.inherited < most and self._starts_before_point(row))
            if not is_valid:
                problem = f"it records {row.inherited} inherited calls, but its branch point has {most}"
                self.report.add(name, problem, RESTORE)
            self.require_json(name, "meta", row, read_meta)
        for (id,) in self._read_raw(self._select(SESSION.c.id).where(SESSION.c.current_branch_id.is_(None))):
            self.report.add(f"external_session {id}", "it has no current branch", "Continue on a branch.")

    def _starts_before_point(self, branch: Any) -> bool:
        """Return whether a branch begins with another graph checkpoint than its branch point, as far as is known."""
        c = CHECKPOINT.c
        states = select(c.graph_checkpoint_id)
        own = states.where(c.internal_session_id == branch.id).order_by(c.number).limit(1)
        first = self.transaction.execute(own).first()
        point = self.transaction.execute(states.where(c.id == branch.branch_point_id)).scalar()
        return first is None or first.graph_checkpoint_id != point

    def check_checkpoints(self) -> None:
        for row in read_rows(self.transaction, _with_states(self.report), self.report):
            name = f"checkpoint {row.id}"
            inherited, calls = self.tracks.get(row.internal_session_id, (0, row.position))
            if not inherited <= row.position <= calls:
                problem = f"its position is {row.position}, but its branch has {inherited} to {calls} calls"
                self.report.add(name, problem, RESTORE)
            self.require_json(name, "data", row.data, stored_json)
            if row.graph_checkpoint_id is not None and row.hash_there is None:
                todo = "Delete the checkpoint, or restore the database from a backup."
                self.report.add(name, f"its graph checkpoint {row.graph_checkpoint_id} is missing", todo)
                continue
            recorded = row.state_hash, row.message_count
            if self.with_hashes and recorded != (row.hash_there or b"", row.count_there or 0):
                self.report.add(name, "its state_hash or message_count does not match its graph checkpoint", RESTORE)

    # -- what tools did

    def check_calls(self) -> None:
        c = TOOL_INVOCATION.c
        for name in ("replay_of", "parent_id"):
            others = dict(self._read_raw(self._select(c.id, c[name]).where(c[name].is_not(None))))
            for id in sorted(find_cycle(others)):
                self.report.add(f"tool_invocation {id}", f"its {name} leads back to itself", RESTORE)
        query = self._select(c.id, c.effect, c.args, c.result, c.answers)
        for row in read_rows(self.transaction, query, self.report, counted=False) if self.with_hashes else ():
            name = f"tool_invocation {row.id}"
            args = self.require_json(name, "args", row.args)
            self.require_json(name, "result", row.result, stored_json)
            self.require_json(name, "answers", row.answers)
            if row.effect == MEMORY and args is not None and not names_item(args):
                self.report.add(name, "it is a write to memory without the item or the value before it", RESTORE)

    def check_operations(self) -> None:
        c = OPERATION.c
        for row in self.read(c.id, c.kind, c.status, c.request, c.report):
            name = f"operation {row.id}"
            request = self.require_json(name, "request", row, read_request) or {}
            self.require_json(name, "report", row, read_report)
            for step in request.get("steps", ()):
                if step["invocation"] not in self.call_ids:
                    self.report.add(name, f"its call {step['invocation']} is missing", RESTORE)

    def check_world(self) -> None:
        """Check that no branch has seen more than happened, and the entries of each call in the log."""
        log, call = WORLD_LOG.c, TOOL_INVOCATION.c
        last_seq = select(func.max(log.seq)).where(log.external_session_id == BRANCH.c.external_session_id)
        is_beyond_end = BRANCH.c.world_seen > func.coalesce(last_seq.correlate(BRANCH).scalar_subquery(), 0)
        for id, count in self.transaction.execute(self._select(BRANCH.c.id, BRANCH.c.world_seen).where(is_beyond_end)):
            problem = f"it has seen {count} entries of the world log, which has fewer"
            self.report.add(f"internal_session {id}", problem, RESTORE)
        columns = (log.external_session_id, log.invocation_id, log.seq, log.action)
        after = func.lead(log.action).over(partition_by=columns[:2], order_by=log.seq).label("after")
        entry = self._select(*columns, after).subquery().c
        is_of_call = and_(call.id == entry.invocation_id, call.external_session_id == entry.external_session_id)
        is_followed = entry.after.is_not(None)
        is_wrong = (
            and_(not_(is_followed), entry.action != call.status),
            *(and_(is_followed, entry.action == one, entry.after.not_in(NEXT_LOGGED[one])) for one in NEXT_LOGGED),
        )
        query = select(call.id, call.status, entry.action, entry.after).where(is_of_call, or_(*is_wrong))
        for id, status, action, following in self.transaction.execute(query):
            name = f"tool_invocation {id}"
            if following is not None:
                self.report.add(name, f"in the world log, {following} comes after {action}", RESTORE)
            elif action not in LAST_LOGGED_STATUSES.get(status, ()):
                problem = f"its status is {status}, but its last entry in the world log is {action}"
                self.report.add(name, problem, RESTORE)

    def check_authors(self) -> None:
        """Check that whoever has made something in a session exists, or was erased."""
        known = {id for (id,) in self._read_raw(self._select(USER.c.id))} | {*list_erased_users(self.transaction)}
        for table in (CHECKPOINT, TAG, OPERATION):
            for *key, user_id in self._read_raw(self._select(*table.primary_key, table.c.user_id)):
                if user_id not in known:
                    self.report.add(row_name(table, key), f"its user {user_id} is missing", RESTORE)

    def check_members(self) -> None:
        """Check that each member was added by name or by a link of the same session."""
        link, member = SESSION_LINK.c, SESSION_MEMBER.c
        sessions = {NO_LINK: 0} | dict(self._read_raw(self._select(link.id, link.external_session_id)))
        for session_id, user_id, link_id in self.read(member.external_session_id, member.user_id, member.link_id):
            name = f"session_member {session_id}/{user_id}/{link_id}"
            if link_id not in sessions:
                self.report.add(name, f"its link {link_id} is missing", DELETE_ROW)
            elif sessions[link_id] not in (0, session_id):
                self.report.add(name, "its link is for another session", DELETE_ROW)


def references_within_sessions() -> Iterator[tuple[Column[Any], Table]]:
    """Yield each foreign key of one column between two tables of a session, unless it says which session it is."""
    for table in METADATA.sorted_tables:
        for key in table.foreign_key_constraints:
            column, target = key.columns[0], key.referred_table
            is_of_session = _owner_of(table) is not None and _owner_of(target) is not None
            if len(key.columns) == 1 and is_of_session and column is not _owner_of(table):
                yield column, target


def _owner_of(table: FromClause) -> ColumnElement[Any] | None:
    """Return the column of a table that says which session, or else which branch, a row belongs to."""
    return table.c.get("external_session_id", table.c.get("internal_session_id"))


def _session_of(table: FromClause, other: FromClause) -> Any:
    """Return the session of a row for a query that has another table, too."""
    if "external_session_id" in table.c:
        return table.c.external_session_id
    query = select(BRANCH.c.external_session_id).where(BRANCH.c.id == table.c.internal_session_id)
    return query.correlate(table, other).scalar_subquery()


def _with_states(report: FsckReport) -> Any:
    """Build the query for checkpoints, each with the hash and the number of messages of its graph checkpoint."""
    c, state = CHECKPOINT.c, GRAPH_CHECKPOINT.c
    is_state = and_(state.thread_id == BRANCH.c.thread_id, state.ns == "", state.checkpoint_id == c.graph_checkpoint_id)
    columns = (
        c.id, c.internal_session_id, c.position, c.data, c.graph_checkpoint_id,
        c.state_hash, c.message_count, state.state_hash.label("hash_there"), state.message_count.label("count_there"),
    )  # fmt: skip
    joined = CHECKPOINT.join(BRANCH, BRANCH.c.id == c.internal_session_id).outerjoin(GRAPH_CHECKPOINT, is_state)
    return checked(report, *columns).select_from(joined)


def find_cycle(parents: Mapping[int, int | None]) -> Collection[int]:
    """Return the ids of rows that are their own ancestors, if there are any: those of one cycle."""
    try:
        TopologicalSorter({id: [parent] for id, parent in parents.items() if parent is not None}).prepare()
    except CycleError as error:
        return set(error.args[1])
    return ()
