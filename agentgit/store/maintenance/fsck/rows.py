"""Checks of rows: the rows that they refer to exist, enumerated values are known, and access rights have owners."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, select

from agentgit.auth.principal import ROLES, SCOPES, SIGN_IN
from agentgit.effects.files import CHANGED_BY
from agentgit.effects.invocation import REDO
from agentgit.errors import Corrupt
from agentgit.sessions.session import BRANCH_STATUSES
from agentgit.store.maintenance.erasure import list_erased_users
from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, read_rows
from agentgit.store.records.session_access import NO_LINK
from agentgit.store.sql.columns import UTCDateTime
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import (
    API_KEY,
    BRANCH,
    CALL,
    CHECKPOINT,
    CHECKPOINT_KINDS,
    EVENT,
    GRAPH_CHECKPOINT,
    METADATA,
    OPERATION,
    SEARCH_TEXT,
    SESSION,
    SESSION_LINK,
    SESSION_MEMBER,
    TAG,
    TEXT_KINDS,
    TOOL_INVOCATION,
    USER,
    WORKSPACE_SNAPSHOT,
)
from agentgit.store.store import Store
from agentgit.values import as_object, as_strings, stored_json

RESTORE_OR_DELETE = (
    "Restore the database from a backup, or delete the session: other rows that belong to this one are missing."
)


class BranchTrack(NamedTuple):
    """The session of a branch, the number of calls that its track inherits, and the length of its track."""

    session_id: int
    inherited: int
    calls: int


class CheckpointPosition(NamedTuple):
    """The branch of a checkpoint and its position on the tool track."""

    branch_id: int
    position: int


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {"data": stored_json, "kinds": as_strings, "result": stored_json}
"""The decoders of the JSON columns that do not hold an object."""


class RowCheck:
    """A check of the rows. It keeps the ids that it has read, to check references to them."""

    def __init__(self, connection: Connection, store: Store, report: FsckReport, *, with_hashes: bool) -> None:
        self.connection, self.store, self.report, self.with_hashes = connection, store, report, with_hashes
        self.user_ids = self.read_ids(USER)
        self.author_ids = self.user_ids | set(list_erased_users(connection))
        """The ids of all users that rows may name as author, including erased users."""
        self.current_branches: dict[int, int | None] = {}
        """The current branch of each session, by id."""
        self.branch_tracks: dict[int, BranchTrack] = {}
        columns = (CHECKPOINT.c.id, CHECKPOINT.c.internal_session_id, CHECKPOINT.c.position)
        self.checkpoint_positions = {id: CheckpointPosition(*rest) for id, *rest in self._read_columns(*columns)}
        self.call_ids = self.read_ids(TOOL_INVOCATION)
        self.operation_ids = self.read_ids(OPERATION)
        self.snapshot_ids = self.read_ids(WORKSPACE_SNAPSHOT)

    def _read_columns(self, *columns: Any, where: Any = None) -> Iterator[Any]:
        """Read some columns of a table. With `where`, group the rows by the first column."""
        query = select(*columns)
        if where is not None:
            query = query.where(where).group_by(columns[0])
        for page in CompiledStatement(query).pages(self.connection, raw=True):
            yield from page

    def read_ids(self, table: Any) -> set[int]:
        """Return the ids of all rows of a table."""
        return {id for (id,) in self._read_columns(table.c.id)}

    def read(self, *columns: Any) -> Iterable[Any]:
        """Read some columns of all rows of a table, and count the rows for the progress."""
        query = select(*columns)
        return read_rows(self.connection, query, self.report)

    def require_known(self, row: str, column: str, value: Any, known_values: Collection[str]) -> None:
        """Check that an enumerated value is known."""
        if value not in known_values:
            self.report.add(row, f"its {column} is {value!r}, which is unknown", RESTORE)

    def require_existing(
        self, row: str, relation: str, id: int | None, known_ids: Collection[int], todo: str = RESTORE_OR_DELETE
    ) -> None:
        """Check that the row with the given id exists, if there is an id."""
        if id is not None and id not in known_ids:
            self.report.add(row, f"its {relation} {id} is missing", todo)

    def require_same_session(self, row: str, relation: str, branch_id: int | None, session_id: int) -> None:
        """Check that a branch to which a row refers exists and belongs to the same session."""
        self.require_existing(row, relation, branch_id, self.branch_tracks)
        branch_track = self.branch_tracks.get(branch_id or 0)
        if branch_track is not None and branch_track.session_id != session_id:
            self.report.add(row, f"its session {session_id} is not the session of its {relation}", RESTORE)

    def require_valid_json(self, row: str, **columns: bytes | None) -> None:
        """Check that JSON columns can be decoded as their readers decode them. Does nothing at level 1."""
        for name, data in columns.items():
            decode: Callable[[bytes], Any] = _DECODERS.get(name, as_object)
            if self.with_hashes and data is not None:
                try:
                    decode(data)
                except Corrupt:
                    self.report.add(row, f"its {name} cannot be read", RESTORE)

    def check_rows(self) -> None:
        """Check the rows of sessions, without stored values, graph checkpoints and tool calls."""
        self.check_sessions()
        self.check_branches()
        self.check_snapshots()
        self.check_checkpoints()
        self.check_tags()
        self.check_texts()
        self.check_events()
        if self.with_hashes:
            self.check_times()

    # -- sessions and branches

    def check_sessions(self) -> None:
        """Check the owner of each session. `check_branches` checks its current branch."""
        for row in self.read(SESSION.c.id, SESSION.c.user_id, SESSION.c.current_branch_id, SESSION.c.meta):
            self.current_branches[row.id] = row.current_branch_id
            self.require_existing(f"external_session {row.id}", "user", row.user_id, self.user_ids)
            self.require_valid_json(f"external_session {row.id}", meta=row.meta)

    def check_events(self) -> None:
        """Check the session and the detail of each event."""
        for row in self.read(EVENT.c.id, EVENT.c.external_session_id, EVENT.c.detail):
            self.require_existing(f"event {row.id}", "session", row.external_session_id, self.current_branches)
            self.require_valid_json(f"event {row.id}", detail=row.detail)

    def check_branches(self) -> None:
        """Check the session, parent, branch point, head and ancestors of each branch, and the current branches."""
        columns = (
            "id",
            "external_session_id",
            "thread_id",
            "status",
            "head_id",
            "parent_id",
            "branch_point_id",
            "inherited",
            "meta",
        )
        call_counts = dict(
            self._read_columns(
                TOOL_INVOCATION.c.internal_session_id, func.count(), where=TOOL_INVOCATION.c.kind != REDO
            )
        )
        branch_rows = list(self.read(*(BRANCH.c[name] for name in columns)))
        self.branch_tracks = {
            row.id: BranchTrack(row.external_session_id, row.inherited, row.inherited + call_counts.get(row.id, 0))
            for row in branch_rows
        }
        parents = {row.id: row.parent_id for row in branch_rows}
        cycles = find_cycles(parents)
        for row in branch_rows:
            name = f"internal_session {row.id}"
            self.require_existing(name, "session", row.external_session_id, self.current_branches)
            self.require_known(name, "status", row.status, BRANCH_STATUSES)
            self.require_existing(name, "parent", row.parent_id, parents)
            if row.id in cycles:
                self.report.add(name, "it is its own ancestor", RESTORE)
            self._require_own_checkpoint(name, "head", row.head_id, row.id)
            self._require_own_checkpoint(name, "branch point", row.branch_point_id, row.parent_id)
            branch_point = self.checkpoint_positions.get(row.branch_point_id or 0)
            most = branch_point.position if branch_point is not None else 0
            # A branch that executed its calls again has the whole track itself and inherits nothing.
            is_valid = row.inherited in (0, most) or (0 < row.inherited < most and self._starts_before_point(row))
            if not is_valid and (branch_point or not row.branch_point_id):
                self.report.add(
                    name,
                    f"it records {row.inherited} inherited calls, but its branch point has {most}",
                    RESTORE,
                )
            self.require_valid_json(name, meta=row.meta)
        for session_id, branch_id in self.current_branches.items():
            if branch_id not in self.branch_tracks or self.branch_tracks[branch_id].session_id != session_id:
                todo = "Continue on another branch."
                self.report.add(f"external_session {session_id}", f"its branch {branch_id} is missing", todo)

    def _starts_before_point(self, branch: Any) -> bool:
        """Return whether a branch begins with another graph checkpoint than its branch point.

        Then it inherits the calls up to there. The beginning of a branch without checkpoints is unknown.
        """
        c = CHECKPOINT.c
        states = select(c.graph_checkpoint_id)
        own = states.where(c.internal_session_id == branch.id).order_by(c.number).limit(1)
        first = self.connection.execute(own).first()
        point = self.connection.execute(states.where(c.id == branch.branch_point_id)).scalar()
        return first is None or first.graph_checkpoint_id != point

    def _require_own_checkpoint(
        self, name: str, relation: str, checkpoint_id: int | None, branch_id: int | None
    ) -> None:
        self.require_existing(name, relation, checkpoint_id, self.checkpoint_positions)
        checkpoint = self.checkpoint_positions.get(checkpoint_id or 0)
        if branch_id is not None and checkpoint is not None and checkpoint.branch_id != branch_id:
            self.report.add(name, f"its {relation} {checkpoint_id} is a checkpoint of another branch", RESTORE)

    def check_snapshots(self) -> None:
        """Check the snapshots of workspaces: their session, branch and settings."""
        c = WORKSPACE_SNAPSHOT.c
        for row in self.read(c.id, c.external_session_id, c.internal_session_id, c.settings, c.changed_by):
            name = f"workspace_snapshot {row.id}"
            self.require_known(name, "changed_by", row.changed_by, CHANGED_BY)
            self.require_existing(name, "session", row.external_session_id, self.current_branches)
            self.require_same_session(name, "branch", row.internal_session_id, row.external_session_id)
            self.require_valid_json(name, settings=row.settings)

    def check_checkpoints(self) -> None:
        """Check the checkpoints: their branch, snapshot of files, position and graph checkpoint."""
        for row in read_rows(self.connection, _select_with_states(), self.report):
            name = f"checkpoint {row.id}"
            self.require_existing(name, "branch", row.internal_session_id, self.branch_tracks)
            self.require_known(name, "kind", row.kind, CHECKPOINT_KINDS)
            todo = "Its files cannot be restored. Roll back without files to restore only its conversation."
            self.require_existing(name, "snapshot of files", row.workspace_snapshot_id, self.snapshot_ids, todo)
            self.require_existing(name, "user", row.user_id, self.author_ids)
            if bool(row.is_auto) is (row.kind == "named"):
                self.report.add(name, f"its kind is {row.kind}, but its is_auto is {bool(row.is_auto)}", RESTORE)
            branch_track = self.branch_tracks.get(row.internal_session_id)
            if branch_track is not None and not branch_track.inherited <= row.position <= branch_track.calls:
                limits = f"{branch_track.inherited} to {branch_track.calls}"
                problem = f"its position is {row.position}, but its branch has {limits} calls"
                self.report.add(name, problem, RESTORE)
            if row.data is not None:
                self.require_valid_json(name, data=row.data)
            if row.thread_id is None:  # its branch is missing, which is already reported
                continue
            if row.graph_checkpoint_id is not None and row.hash_there is None:
                todo = "Delete the checkpoint, or restore the database from a backup."
                self.report.add(name, f"its graph checkpoint {row.graph_checkpoint_id} is missing", todo)
            elif self.with_hashes and (row.state_hash, row.message_count) != (
                row.hash_there or b"",
                row.count_there or 0,
            ):
                self.report.add(name, "its state_hash or message_count does not match its graph checkpoint", RESTORE)

    def check_tags(self) -> None:
        """Check the tags: their session, user and checkpoint."""
        for row in self.read(TAG.c.name, TAG.c.external_session_id, TAG.c.checkpoint_id, TAG.c.user_id):
            name = f"tag {row.name!r}"
            self.require_existing(name, "session", row.external_session_id, self.current_branches)
            self.require_existing(name, "user", row.user_id, self.author_ids)
            self.require_existing(name, "checkpoint", row.checkpoint_id, self.checkpoint_positions, "Remove the tag.")
            checkpoint = self.checkpoint_positions.get(row.checkpoint_id)
            if checkpoint is not None and row.external_session_id in self.current_branches:
                self.require_same_session(name, "checkpoint's branch", checkpoint.branch_id, row.external_session_id)

    def check_texts(self) -> None:
        """Check the texts of the search index: their branch, and their call if they have one."""
        for row in self.read(
            SEARCH_TEXT.c.id, SEARCH_TEXT.c.internal_session_id, SEARCH_TEXT.c.kind, SEARCH_TEXT.c.row_id
        ):
            name = f"search_text {row.id}"
            self.require_existing(name, "branch", row.internal_session_id, self.branch_tracks)
            self.require_known(name, "kind", row.kind, TEXT_KINDS)
            if row.kind == CALL:
                self.require_existing(name, "call", row.row_id, self.call_ids)

    def check_times(self) -> None:
        """Check on SQLite, which stores times as text, that every time can be parsed."""
        for table in METADATA.sorted_tables if self.store.database.is_sqlite else ():
            for column in (one for one in table.c if isinstance(one.type, UTCDateTime)):
                is_invalid = and_(column.is_not(None), func.datetime(column).is_(None))
                for key in self.connection.execute(select(*table.primary_key).where(is_invalid)).all():
                    name = f"{table.name} {'/'.join(map(str, key))}"
                    self.report.add(name, f"its {column.name} is not a time", RESTORE)


def _select_with_states() -> Any:
    """Build the query for checkpoints with their branch's thread and their graph checkpoint."""
    c, branch_join = (
        CHECKPOINT.c,
        BRANCH.c.id == CHECKPOINT.c.internal_session_id,
    )
    state_join = and_(
        GRAPH_CHECKPOINT.c.thread_id == BRANCH.c.thread_id,
        GRAPH_CHECKPOINT.c.ns == "",
        GRAPH_CHECKPOINT.c.checkpoint_id == c.graph_checkpoint_id,
    )
    columns = (
        c.id,
        c.internal_session_id,
        c.kind,
        c.data,
        c.workspace_snapshot_id,
        c.graph_checkpoint_id,
        c.state_hash,
        c.message_count,
        c.position,
        c.is_auto,
        c.user_id,
        BRANCH.c.thread_id,
        GRAPH_CHECKPOINT.c.state_hash.label("hash_there"),
        GRAPH_CHECKPOINT.c.message_count.label("count_there"),
    )
    joined = CHECKPOINT.outerjoin(BRANCH, branch_join).outerjoin(GRAPH_CHECKPOINT, state_join)
    return select(*columns).select_from(joined)


def find_cycles(parents: Mapping[int, int | None]) -> set[int]:
    """Return the ids of branches that are their own ancestors.

    Example:
        >>> sorted(find_cycles({1: None, 2: 1, 3: 4, 4: 3, 5: 3}))
        [3, 4]
    """
    visited: set[int] = set()
    cycles: set[int] = set()
    for start in parents:
        path: dict[int, None] = {}
        branch_id: int | None = start
        while branch_id is not None and branch_id not in visited and branch_id not in path:
            path[branch_id] = None
            branch_id = parents.get(branch_id)
        if branch_id in path:
            path_ids = list(path)
            cycles.update(path_ids[path_ids.index(branch_id) :])
        visited.update(path)
    return cycles


DELETE_ROW = "It grants no access. Delete the row."


def check_rights(check: RowCheck) -> None:
    """Check the API keys, and the members and links of sessions."""
    for row in check.read(API_KEY.c.id, API_KEY.c.user_id, API_KEY.c.scope):
        check.require_existing(f"api_key {row.id}", "user", row.user_id, check.user_ids, DELETE_ROW)
        check.require_known(f"api_key {row.id}", "scope", row.scope, (SIGN_IN, *SCOPES))
    _check_sharing(check)


def _check_sharing(check: RowCheck) -> None:
    """Check the links of sessions, and that each member was added by name or by a link of the same session."""
    sessions_by_link = {NO_LINK: 0}
    for row in check.read(SESSION_LINK.c.id, SESSION_LINK.c.external_session_id, SESSION_LINK.c.role):
        sessions_by_link[row.id] = row.external_session_id
        check.require_existing(
            f"session_link {row.id}", "session", row.external_session_id, check.current_branches, DELETE_ROW
        )
        check.require_known(f"session_link {row.id}", "role", row.role, ROLES[:-1])
    for row in check.read(
        SESSION_MEMBER.c.external_session_id, SESSION_MEMBER.c.user_id, SESSION_MEMBER.c.link_id, SESSION_MEMBER.c.role
    ):
        name = f"session_member {row.external_session_id}/{row.user_id}/{row.link_id}"
        check.require_existing(name, "session", row.external_session_id, check.current_branches, DELETE_ROW)
        check.require_existing(name, "user", row.user_id, check.user_ids, DELETE_ROW)
        check.require_existing(name, "link", row.link_id, sessions_by_link, DELETE_ROW)
        check.require_known(name, "role", row.role, ROLES)
        if sessions_by_link.get(row.link_id, 0) not in (0, row.external_session_id):
            check.report.add(name, "its link is for another session", DELETE_ROW)
