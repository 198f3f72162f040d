"""Checks of the rows: what they refer to exists, their words are known, and keys, members and links have owners."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, func, select

from agentgit.auth.principal import ROLES, SCOPES
from agentgit.effects.invocation import REDO
from agentgit.sessions.session import OPEN, PARTIAL, REPLAYING, RUNNING
from agentgit.store.maintenance.erasure import erased_users
from agentgit.store.maintenance.fsck.values import RESTORE, FsckReport, rows
from agentgit.store.records.session_access import BY_NAME
from agentgit.store.search.index import CALL, MESSAGE, NAMED
from agentgit.store.sql.columns import UTCDateTime
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.tables import (
    API_KEY,
    BRANCH,
    CHECKPOINT,
    GRAPH_CHECKPOINT,
    METADATA,
    OPERATION,
    SEARCH_TEXT,
    SESSION,
    SESSION_LINK,
    SESSION_MEMBER,
    TAG,
    TOOL_INVOCATION,
    USER,
    WEBHOOK,
    WORKSPACE_SNAPSHOT,
)
from agentgit.store.store import Store
from agentgit.values import from_json

LOST = "Restore the database from a backup, or delete the session: other rows that belong to this one are missing."
BRANCH_STATUSES = (OPEN, RUNNING, REPLAYING, PARTIAL)
CHECKPOINT_KINDS = ("before", "after", "tools", "branch", "named")
TEXT_KINDS = (MESSAGE, CALL, NAMED)


class Owner(NamedTuple):
    """Of a branch: its session, and how many calls its track begins with, and may have at most."""

    session_id: int
    inherited: int
    calls: int


class Spot(NamedTuple):
    """Of a checkpoint: its branch, and how many calls lie before it."""

    branch_id: int
    position: int


class RowCheck:
    """One check of the rows of a tenant. It keeps the ids of what it has seen, for those that refer to them.

    Args:
        connection: Any open connection.
        store: The store of the tenant.
        report: The report that receives the findings.
        hashes: True to also compare what rows say of states, and to read their JSON.
    """

    def __init__(self, connection: Connection, store: Store, report: FsckReport, *, hashes: bool) -> None:
        self.connection, self.store, self.report, self.hashes = connection, store, report, hashes
        self.users = self.ids(USER)
        self.authors = self.users | set(erased_users(connection, store.tenant_id))
        """The users who may have made something, also those who were erased since."""
        self.current: dict[int, int | None] = {}
        """Of each session the branch that it continues on."""
        self.of_branch: dict[int, Owner] = {}
        columns = (CHECKPOINT.c.id, CHECKPOINT.c.internal_session_id, CHECKPOINT.c.position)
        self.of_checkpoint = {id: Spot(*rest) for id, *rest in self._columns(*columns)}
        self.call_ids = self.ids(TOOL_INVOCATION)
        self.operation_ids = self.ids(OPERATION)
        self.snapshot_ids = self.ids(WORKSPACE_SNAPSHOT)

    def _columns(self, *columns: Any, where: Any = None) -> Iterator[Any]:
        """Read some columns; with a count, by the others."""
        query = select(*columns).where(columns[0].table.c.tenant_id == self.store.tenant_id)
        if where is not None:
            query = query.where(where).group_by(columns[0])
        for page in CompiledStatement(query).pages(self.connection, raw=True):
            yield from page

    def ids(self, table: Any) -> set[int]:
        """Return the ids of all rows."""
        return {id for (id,) in self._columns(table.c.id)}

    def read(self, *columns: Any) -> Iterable[Any]:
        """Read some columns of all rows of a table, and count these."""
        query = select(*columns).where(columns[0].table.c.tenant_id == self.store.tenant_id)
        return rows(self.connection, query, self.report)

    def one_of(self, row: str, column: str, value: Any, known: Collection[str]) -> None:
        """Check that a word is one that means something."""
        if value not in known:
            self.report.add(row, f"its {column} is {value!r}, which is unknown", RESTORE)

    def refers(self, row: str, what: str, id: int | None, known: Collection[int], todo: str = LOST) -> None:
        """Check that what a row refers to is there."""
        if id is not None and id not in known:
            self.report.add(row, f"its {what} {id} is missing", todo)

    def same_session(self, row: str, what: str, branch_id: int | None, session_id: int) -> None:
        """Check that a branch which a row refers to is there, and of the same session."""
        self.refers(row, what, branch_id, self.of_branch)
        owner = self.of_branch.get(branch_id or 0)
        if owner is not None and owner.session_id != session_id:
            self.report.add(row, f"its session {session_id} is not the session of its {what}", RESTORE)

    def json(self, row: str, **columns: bytes | None) -> None:
        """Check that JSON can be read; not at the first level."""
        for name, data in columns.items():
            if self.hashes and data is not None:
                try:
                    from_json(data)
                except ValueError:
                    self.report.add(row, f"its {name} cannot be read", RESTORE)

    def check(self) -> None:
        """Check the rows of sessions: all but the stored values, what LangGraph saved, and what tools did."""
        self.sessions()
        self.branches()
        self.snapshots()
        self.checkpoints()
        self.tags()
        self.texts()
        if self.hashes:
            self.times()

    # -- sessions and branches

    def sessions(self) -> None:
        """Check the sessions: they have an owner; the branch that they continue on is checked with the branches."""
        for row in self.read(SESSION.c.id, SESSION.c.user_id, SESSION.c.current_branch_id, SESSION.c.meta):
            self.current[row.id] = row.current_branch_id
            self.refers(f"external_session {row.id}", "user", row.user_id, self.users)
            self.json(f"external_session {row.id}", meta=row.meta)

    def branches(self) -> None:
        """Check the branches: their session, parent, branch point and head, and that each leads to a root."""
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
        made = dict(
            self._columns(TOOL_INVOCATION.c.internal_session_id, func.count(), where=TOOL_INVOCATION.c.kind != REDO)
        )
        found_ = list(self.read(*(BRANCH.c[name] for name in columns)))
        self.of_branch = {
            row.id: Owner(row.external_session_id, row.inherited, row.inherited + made.get(row.id, 0)) for row in found_
        }
        parents = {row.id: row.parent_id for row in found_}
        circles = in_circles(parents)
        for row in found_:
            name = f"internal_session {row.id}"
            self.refers(name, "session", row.external_session_id, self.current)
            self.one_of(name, "status", row.status, BRANCH_STATUSES)
            self.refers(name, "parent", row.parent_id, parents)
            if row.id in circles:
                self.report.add(name, "it is its own ancestor", RESTORE)
            self._point(name, "head", row.head_id, row.id)
            self._point(name, "branch point", row.branch_point_id, row.parent_id)
            point = self.of_checkpoint.get(row.branch_point_id or 0)
            # One whose calls ran again has all of its track for itself, and inherits nothing.
            begins = {0, point.position} if point is not None else {0}
            if row.inherited not in begins and (point or not row.branch_point_id):
                self.report.add(
                    name,
                    f"it records {row.inherited} inherited calls, but its branch point has "
                    f"{point.position if point else 0}",
                    RESTORE,
                )
            self.json(name, meta=row.meta)
        for session_id, branch_id in self.current.items():
            if branch_id not in self.of_branch or self.of_branch[branch_id].session_id != session_id:
                todo = "Continue on another branch: agentgit switch SESSION BRANCH."
                self.report.add(f"external_session {session_id}", f"its branch {branch_id} is missing", todo)

    def _point(self, name: str, what: str, checkpoint_id: int | None, branch_id: int | None) -> None:
        self.refers(name, what, checkpoint_id, self.of_checkpoint)
        found = self.of_checkpoint.get(checkpoint_id or 0)
        if branch_id is not None and found is not None and found.branch_id != branch_id:
            self.report.add(name, f"its {what} {checkpoint_id} is a checkpoint of another branch", RESTORE)

    def snapshots(self) -> None:
        """Check what is known of workspaces: the session and the branch, and what opens the workspace again."""
        c = WORKSPACE_SNAPSHOT.c
        for row in self.read(c.id, c.external_session_id, c.internal_session_id, c.settings):
            name = f"workspace_snapshot {row.id}"
            self.refers(name, "session", row.external_session_id, self.current)
            self.same_session(name, "branch", row.internal_session_id, row.external_session_id)
            self.json(name, settings=row.settings)

    def checkpoints(self) -> None:
        """Check the checkpoints: their branch, their graph checkpoint and their files, and that they agree."""
        for row in rows(self.connection, _with_state(self.store.tenant_id), self.report):
            name = f"checkpoint {row.id}"
            self.refers(name, "branch", row.internal_session_id, self.of_branch)
            self.one_of(name, "kind", row.kind, CHECKPOINT_KINDS)
            todo = "Its files cannot be restored. Roll back with files=False to restore only its conversation."
            self.refers(name, "snapshot of files", row.workspace_snapshot_id, self.snapshot_ids, todo)
            self.refers(name, "user", row.user_id, self.authors)
            if bool(row.is_auto) is (row.kind == "named"):
                self.report.add(name, f"its kind is {row.kind}, but its is_auto is {bool(row.is_auto)}", RESTORE)
            branch = self.of_branch.get(row.internal_session_id)
            if branch is not None and not branch.inherited <= row.position <= branch.calls:
                said = f"its position is {row.position}, but its branch has {branch.inherited} to {branch.calls} calls"
                self.report.add(name, said, RESTORE)
            if row.data is not None:
                self.json(name, data=row.data)
            if row.thread_id is None:  # its branch is not there, and that was told
                continue
            if row.graph_checkpoint_id is not None and row.hash_there is None:
                todo = "Delete it with session.delete_checkpoint(id), or restore the database from a backup."
                self.report.add(name, f"its graph checkpoint {row.graph_checkpoint_id} is missing", todo)
            elif self.hashes and (row.state_hash, row.message_count) != (row.hash_there or b"", row.count_there or 0):
                self.report.add(name, "its state_hash or message_count does not match its graph checkpoint", RESTORE)

    def tags(self) -> None:
        """Check the tags: their session, who made them, and their checkpoint."""
        for row in self.read(TAG.c.name, TAG.c.external_session_id, TAG.c.checkpoint_id, TAG.c.user_id):
            name = f"tag {row.name!r}"
            self.refers(name, "session", row.external_session_id, self.current)
            self.refers(name, "user", row.user_id, self.authors)
            self.refers(name, "checkpoint", row.checkpoint_id, self.of_checkpoint, "Remove it: session.untag(name).")
            spot = self.of_checkpoint.get(row.checkpoint_id)
            if spot is not None and row.external_session_id in self.current:
                self.same_session(name, "checkpoint's branch", spot.branch_id, row.external_session_id)

    def texts(self) -> None:
        """Check the texts that a search finds: their branch, and the call that they are of."""
        for row in self.read(
            SEARCH_TEXT.c.id, SEARCH_TEXT.c.internal_session_id, SEARCH_TEXT.c.kind, SEARCH_TEXT.c.row_id
        ):
            name = f"search_text {row.id}"
            self.refers(name, "branch", row.internal_session_id, self.of_branch)
            self.one_of(name, "kind", row.kind, TEXT_KINDS)
            if row.kind == CALL:
                self.refers(name, "call", row.row_id, self.call_ids)

    def times(self) -> None:
        """Check that SQLite, which keeps times as text, has nothing else in their place."""
        tables = [table for table in METADATA.sorted_tables if "tenant_id" in table.c]
        for table in tables if self.store.database.is_sqlite else ():
            mine = table.c.tenant_id == self.store.tenant_id
            for column in (one for one in table.c if isinstance(one.type, UTCDateTime)):
                torn = and_(column.is_not(None), func.datetime(column).is_(None))
                for _, *key in self.connection.execute(select(*table.primary_key).where(mine, torn)).all():
                    name = f"{table.name} {'/'.join(map(str, key))}"
                    self.report.add(name, f"its {column.name} is not a time", RESTORE)


def _with_state(tenant_id: int) -> Any:
    """Read the checkpoints, each beside what it points at."""
    c, of_branch = CHECKPOINT.c, and_(BRANCH.c.tenant_id == tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    at = and_(
        GRAPH_CHECKPOINT.c.tenant_id == tenant_id,
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
    joined = CHECKPOINT.outerjoin(BRANCH, of_branch).outerjoin(GRAPH_CHECKPOINT, at)
    return select(*columns).select_from(joined).where(c.tenant_id == tenant_id)


def in_circles(parents: Mapping[int, int | None]) -> set[int]:
    """Find the branches that are their own ancestors.

    Example:
        >>> sorted(in_circles({1: None, 2: 1, 3: 4, 4: 3, 5: 3}))
        [3, 4]
    """
    known: set[int] = set()
    circles: set[int] = set()
    for start in parents:
        way: dict[int, None] = {}
        at: int | None = start
        while at is not None and at not in known and at not in way:
            way[at] = None
            at = parents.get(at)
        if at in way:
            met = list(way)
            circles.update(met[met.index(at) :])
        known.update(way)
    return circles


REVOKE = "It grants no access. Delete the row."


def check_rights(check: RowCheck) -> None:
    """Check the API keys, the webhooks, the members and links of sessions."""
    for row in check.read(API_KEY.c.id, API_KEY.c.user_id, API_KEY.c.scope):
        check.refers(f"api_key {row.id}", "user", row.user_id, check.users, REVOKE)
        check.one_of(f"api_key {row.id}", "scope", row.scope, SCOPES)
    _sharing(check)
    # Its rows are counted where the outbox is checked.
    hooks = select(WEBHOOK.c.id, WEBHOOK.c.user_id, WEBHOOK.c.external_session_id)
    mine = hooks.where(WEBHOOK.c.tenant_id == check.store.tenant_id)
    for row in rows(check.connection, mine, check.report, counted=False):
        check.refers(f"webhook {row.id}", "user", row.user_id, check.users)
        check.refers(f"webhook {row.id}", "session", row.external_session_id, check.current)


def _sharing(check: RowCheck) -> None:
    """Check the links of sessions, and the members, each of whom came by name or by a link of that session."""
    links = {BY_NAME: 0}
    for row in check.read(SESSION_LINK.c.id, SESSION_LINK.c.external_session_id, SESSION_LINK.c.role):
        links[row.id] = row.external_session_id
        check.refers(f"session_link {row.id}", "session", row.external_session_id, check.current, REVOKE)
        check.one_of(f"session_link {row.id}", "role", row.role, ROLES[:-1])
    for row in check.read(
        SESSION_MEMBER.c.external_session_id, SESSION_MEMBER.c.user_id, SESSION_MEMBER.c.link_id, SESSION_MEMBER.c.role
    ):
        name = f"session_member {row.external_session_id}/{row.user_id}/{row.link_id}"
        check.refers(name, "session", row.external_session_id, check.current, REVOKE)
        check.refers(name, "user", row.user_id, check.users, REVOKE)
        check.refers(name, "link", row.link_id, links, REVOKE)
        check.one_of(name, "role", row.role, ROLES)
        if links.get(row.link_id, 0) not in (0, row.external_session_id):
            check.report.add(name, "its link is for another session", REVOKE)
