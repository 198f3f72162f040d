"""Sessions and branches in the database."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from types import SimpleNamespace
from typing import Any

from sqlalchemy import Row, String, bindparam, func, literal, select, union_all, update

from agentgit.checkpoints import references
from agentgit.errors import Conflict, Corrupt, Simulated
from agentgit.next_steps import Next
from agentgit.sessions import ExternalSession
from agentgit.sessions.rerun import DONE
from agentgit.sessions.session import IMPORTED, OPEN, RERUN, RUNNING, SIMULATED, idle_status
from agentgit.store.audit.trail import BRANCH_WITH_SESSION, EPOCH, NAME_COLUMNS, know_names, record_event
from agentgit.store.records.journal import CALLS, LAST_SEQ_OF_BRANCH, NEXT_ARRIVAL_OF_BRANCH, NEXT_BATCH, TrackPart
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.users import UserStore
from agentgit.store.sql import process
from agentgit.store.sql.compiled_statement import CompiledStatement, PendingResult
from agentgit.store.sql.driver_errors import missing_row, require_row
from agentgit.store.sql.ids import is_id, new_id
from agentgit.store.sql.process import LEASE_END, LeasedRow, Leases, is_lease_over
from agentgit.store.sql.rows import CompiledUpdate, insert_rows, queue_insert, update_rows
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, SESSION, TAG, is_running
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.threads.owners import thread_of_branch
from agentgit.values import as_object, to_json

StoredRow = Row[Any]
"""A row that SQLAlchemy or a `CompiledStatement` returned. Other packages read its columns; users get values."""


@dataclass(frozen=True, kw_only=True)
class Segment:
    """The part of a path on one branch."""

    branch: StoredRow
    last_number: int | None
    track_part: TrackPart


class SessionStore:
    def __init__(self, leases: Leases | None = None) -> None:
        self.leases = leases
        self.users = UserStore()

    # -- external sessions

    def create(
        self,
        transaction: Writing,
        user_id: int,
        name: str,
        thread_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> int:
        """Create a session with its first branch, `main`, and return its id."""
        self.users.require_exists(transaction, user_id)
        thread = {"user": user_id, "thread": name}
        if thread_id is None and _SELECT_WITH_THREAD.first(transaction, thread) is None:
            thread_id = name
        now, session_id, branch_id = datetime.now(UTC), new_id(), new_id()
        row = {
            "id": session_id,
            "current_branch_id": branch_id,
            "user_id": user_id,
            "session_name": name,
            "thread_id": thread_id,
            "created_at": now,
            "updated_at": now,
            "is_active": True,
            "meta": to_json(metadata or {}),
        }
        insert_rows(transaction, SESSION, row)
        self.create_branch(transaction, session_id, "main", branch_id=branch_id)
        record_event(transaction, "session.created", session_id=session_id, user_id=user_id)
        return session_id

    def of_thread(self, transaction: Reading, user_id: int, thread_id: str) -> int | None:
        """Return the id of the user's session for a thread of a served graph, else of one with that name."""
        thread = {"user": user_id, "thread": thread_id}
        row = _SELECT_OF_THREAD.first(transaction, thread)
        return row.id if row is not None else None

    def load_row(self, transaction: Reading, session_id: int) -> StoredRow:
        condition = SESSION.c.id == session_id
        row = transaction.execute(select(SESSION).where(condition).limit(1)).first()
        return require_row(row, "session", session_id)

    def is_imported(self, transaction: Reading, session_id: int) -> bool:
        """Return whether a file brought the session, or the one that it was begun from."""
        return IMPORTED in as_object(self.load_row(transaction, session_id).meta)

    def names(self, transaction: Reading, user_id: int) -> list[str]:
        condition = SESSION.c.user_id == user_id
        return list(transaction.execute(select(SESSION.c.session_name).where(condition)).scalars())

    def current_branch_id(self, transaction: Reading, session_id: int) -> int | None:
        """Return the id of a session's current branch; None if the session was deleted or is not visible."""
        condition = SESSION.c.id == session_id
        return transaction.execute(select(SESSION.c.current_branch_id).where(condition)).scalar()

    def require_current(self, transaction: Reading, session_id: int, *branch_ids: int) -> None:
        """Check that one of these branches is the current branch of a session, which must be locked."""
        if self.current_branch_id(transaction, session_id) not in branch_ids:
            raise session_has_moved()

    def set_current(self, transaction: Writing, session_id: int, branch_id: int, user_id: int | None = None) -> None:
        if user_id is not None:
            record_event(transaction, "switch.done", branch_id=branch_id, user_id=user_id)
        now = datetime.now(UTC)
        if not update_rows(
            transaction, SESSION, SESSION.c.id == session_id, current_branch_id=branch_id, updated_at=now
        ):
            raise missing_row("session", session_id)

    def lock(self, transaction: Writing, session_id: int) -> None:
        """Keep other turns, operations and fenced calls of a session from starting until this transaction ends."""
        if not transaction.is_sqlite:
            _LOCK.run(transaction, {"session": session_id})

    def touch(self, transaction: Writing, branch: StoredRow, *, counts_calls: bool = False) -> Callable[[], bytes]:
        """Set the update time of a branch's session, lock it as `lock` does, and return what reads its metadata."""
        session_id = branch.external_session_id
        parameters = {"session": session_id, "branch": branch.id, "now": datetime.now(UTC)}
        result = _TOUCH[counts_calls].submit(transaction, parameters)
        know_names(transaction, branch.id, result.first)
        if counts_calls:
            transaction.known_tallies[branch.id] = result.first
        return lambda: bytes(require_row(result.first(), "session", session_id).meta)

    # -- branches

    def create_branch(
        self,
        transaction: Writing,
        session_id: int,
        name: str,
        *,
        branch_id: int | None = None,
        meta: Mapping[str, Any] | None = None,
        **state: Any,
    ) -> Any:
        branch_id = branch_id or new_id()
        row = {
            "id": branch_id,
            "external_session_id": session_id,
            "thread_id": thread_of_branch(branch_id),
            "name": name,
            "status": OPEN,
            "head_id": None,
            "parent_id": None,
            "branch_point_id": None,
            "inherited": 0,
            "created_at": datetime.now(UTC),
            "world_seen": 0,
            "searched": 0,
            "meta": to_json(meta or {}),
            **state,
        }
        queue_insert(transaction, BRANCH, row)
        return SimpleNamespace(**row)

    def choose_branch_name(self, transaction: Reading, session_id: int, requested: str | None, source: str) -> str:
        """Choose the name of a new branch: the requested one, or that of the source with another number."""
        taken = {row.name: row.use for row in _SELECT_NAMES.all(transaction, {"session": session_id})}
        if requested is None:
            base = re.sub(r"-\d+$", "", source)
            return references.free_name(base, {base, *taken})
        name = references.require_name(requested, "branch")
        if taken.get(name) == "branch":
            raise Conflict(f"Branch {name} already exists. Choose another name.", Next("switch", branch=name))
        if name in taken:
            raise Conflict(f"A tag named {name} already exists. Choose another name.")
        return name

    def rename(self, transaction: Writing, session: ExternalSession, name: str, user_id: int) -> None:
        if name != session.session_name and name in self.names(transaction, session.user_id):
            raise Conflict(f"Session {name} already exists. Choose another name.")
        update_rows(transaction, SESSION, SESSION.c.id == session.id, session_name=name)
        record_event(
            transaction, "session.renamed", session_id=session.id, user_id=user_id, before=session.session_name
        )

    def rename_branch(self, transaction: Writing, branch: StoredRow, name: str, user_id: int) -> None:
        if name != branch.name:
            self.choose_branch_name(transaction, branch.external_session_id, name, branch.name)
        update_rows(transaction, BRANCH, BRANCH.c.id == branch.id, name=name)
        record_event(transaction, "branch.renamed", branch_id=branch.id, user_id=user_id, before=branch.name)

    def branches(self, transaction: Reading, session_id: int) -> Sequence[StoredRow]:
        return _SELECT_BRANCHES.all(transaction, {"session": session_id})

    def find_branch(self, transaction: Reading, session_id: int, ref: str | int | None) -> StoredRow | None:
        """Read a branch of a session by name or id, or its current one, with the names that events need."""
        column = "name" if isinstance(ref, str) else "id" if is_id(ref) else None
        if column is None and ref is not None:
            return None
        return _FIND_BRANCH[column].first(transaction, {"session": session_id, "ref": ref})

    def require_branch(self, transaction: Reading, session_id: int, branch_id: int) -> StoredRow:
        return require_row(self.find_branch(transaction, session_id, branch_id), "branch", branch_id)

    def branch(self, transaction: Reading, branch_id: int) -> StoredRow:
        return require_row(_SELECT_BRANCH.first(transaction, {"branch": branch_id}), "branch", branch_id)

    def require_real_thread(self, transaction: Reading, thread_id: str) -> None:
        rows = transaction.execute(select(BRANCH).where(BRANCH.c.thread_id == thread_id)).all()
        for row in rows:
            require_real(row)

    def acquire(
        self, transaction: Writing, branch_id: int, owner: str, idle: str = OPEN, head_id: int | None = None
    ) -> Callable[[], StoredRow | None]:
        """Acquire a branch for one run, together with the next queries.

        Return a function that returns its new row, which `require_held` and `release` take, or None if it is not idle.
        With `head_id`, that becomes the head of the branch; the checkpoint is made in this transaction.
        """
        parameters = {"branch": branch_id, "by": owner, "idle": idle, "head": head_id}
        parameters |= self.leases.parameters if self.leases is not None else {}
        result = _ACQUIRE[self.leases is not None].submit(transaction, parameters)

        def read_row() -> StoredRow | None:
            row = result.first()
            if row is not None and self.leases is not None:
                self.leases.start_renewing(owner, LeasedRow(BRANCH, branch_id))
            return row

        return read_row

    def not_idle(self, transaction: Reading, branch_id: int, idle: str) -> Conflict:
        row = self.branch(transaction, branch_id)
        require_no_unfinished_rollback(row)
        if idle == OPEN:
            require_real(row)
        text = f"Another agent is running branch {row.name}. Wait for its turn to end."
        return Conflict(text, Next("fork"), head=row.head_id)  # also if the branch was released at this very moment

    def require_held(self, transaction: Writing, acquired_row: StoredRow) -> StoredRow:
        """Check that a run holds its branch, and keep its session; return what its next calls and events need."""
        row = _SELECT_HOLD.first(transaction, {"branch": acquired_row.id})
        # The epoch alone is not enough: a server that is restored may repeat it.
        if row is None or (row.status, row.epoch, row.owner) != (RUNNING, acquired_row.epoch, acquired_row.owner):
            raise TakenOver
        know_names(transaction, acquired_row.id, lambda: row)
        return row

    def query_running(self, transaction: Reading, session_id: int) -> PendingResult:
        """Query the id, owner and lease of each running branch of a session, including those whose run has died."""
        return _SELECT_RUNNING.submit(transaction, {"session": session_id})

    def is_abandoned(self, transaction: Reading, row: Any) -> bool:
        """Return whether the owner of a branch or an operation is dead, or its lease has ended."""
        return not process.is_alive(row.owner) or is_lease_over(transaction, row.lease_until)

    def set_world_seen(self, transaction: Writing, branch: StoredRow, seq: int) -> None:
        if branch.world_seen != seq:
            _SET_WORLD_SEEN.run(transaction, {"id": branch.id}, world_seen=seq)

    def release(self, transaction: Writing, acquired_row: StoredRow, **changes: Any) -> None:
        if not self.release_abandoned(transaction, acquired_row, **changes):
            raise TakenOver

    def release_abandoned(self, transaction: Writing, branch: StoredRow, **changes: Any) -> bool:
        """Release a branch whose run has died; return False if another run has taken it over."""
        held = {"status": RUNNING, "epoch": branch.epoch, "owner": branch.owner}
        values = {"status": idle_status(read_meta(branch)), "owner": None, "lease_until": None, **changes}
        return _release(*changes).run(transaction, {"id": branch.id}, held, **values)

    def set_status(self, transaction: Writing, branch_id: int, status: str) -> None:
        _SET_STATUS.run(transaction, {"id": branch_id}, status=status, owner=None, lease_until=None)

    def count_turn(self, transaction: Writing, branch_id: int) -> int:
        return int(
            self.change_metadata(transaction, branch_id, lambda m: m | {"turns": m.get("turns", 0) + 1})["turns"]
        )

    def merge_metadata(self, transaction: Writing, branch_id: int, entries: Mapping[str, Any]) -> None:
        """Add entries to the metadata of a branch. Existing keys are replaced, and removed if their value is None."""
        self.change_metadata(transaction, branch_id, lambda meta: {**meta, **entries})

    def update_mark(self, transaction: Writing, branch_id: int, key: str, facts: Mapping[str, Any]) -> None:
        self.change_metadata(transaction, branch_id, lambda meta: meta | {key: {**meta.get(key, {}), **facts}})

    def change_metadata(
        self, transaction: Writing, branch_id: int, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        """Change the metadata of a branch, and return it. The branch stays locked until the transaction ends."""
        row = require_row(_LOCK_META.first(transaction, {"branch": branch_id}), "branch", branch_id)
        meta = {name: value for name, value in change(read_meta(row)).items() if value is not None}
        _SET_META.run(transaction, {"id": branch_id}, meta=to_json(meta))
        return meta

    def lineage(self, transaction: Reading, branch: StoredRow) -> list[Segment]:
        """Follow a branch to the root, and return the segments of its path, root first."""
        try:
            return self._load_lineage(transaction, branch)
        except KeyError as error:  # erased between the two statements
            raise missing_row("branch or branch point", error.args[0]) from error

    def _load_lineage(self, transaction: Reading, branch: StoredRow) -> list[Segment]:
        ancestor_rows = _LINEAGE.all(transaction, {"branch": branch.id}) if branch.parent_id else []
        ancestors = {row.id: row for row in ancestor_rows}
        branches = [branch]
        while branches[-1].parent_id is not None:
            branches.append(ancestors[branches[-1].parent_id])
            if len(branches) > len(ancestors):
                name = f"internal_session {branch.id}"
                raise Corrupt(f"The ancestors of branch {branch.name} lead back to themselves.", Next("fsck"), row=name)
        point_ids = [row.branch_point_id for row in branches[:-1]]
        query = select(CHECKPOINT.c.id, CHECKPOINT.c.number).where(CHECKPOINT.c.id.in_(point_ids))
        point_numbers = dict(transaction.execute(query).all()) if point_ids else {}
        # The first checkpoint of a branch stands for its branch point, so the parent's segment ends before that point.
        last_numbers = [None, *(point_numbers[row.branch_point_id] - 1 for row in branches[:-1])]
        # A branch that recorded part of the track itself takes that part from no ancestor.
        track_ends = [None, *accumulate((row.inherited for row in branches[:-1]), min)]
        segments = [
            Segment(
                branch=row,
                last_number=last_number,
                track_part=TrackPart(
                    branch_id=row.id,
                    before=row.inherited,
                    count=None if track_end is None else max(0, track_end - row.inherited),
                ),
            )
            for row, last_number, track_end in zip(branches, last_numbers, track_ends, strict=True)
        ]
        return segments[::-1]


# The statements of every turn are built once, because building one takes as long as running it.
_this_branch = BRANCH.c.id == bindparam("branch")
_SELECT_BRANCH = CompiledStatement(select(BRANCH).where(_this_branch))
_known = SESSION.alias("known")
_of_user = select(_known.c.id).where(_known.c.user_id == bindparam("user"))
_with_thread = _of_user.where(_known.c.thread_id == bindparam("thread"))
_with_name = _of_user.where(_known.c.session_name == bindparam("thread"), _known.c.thread_id.is_(None))
IS_OF_THREAD = SESSION.c.id == func.coalesce(
    _with_thread.limit(1).scalar_subquery(), _with_name.limit(1).scalar_subquery()
)
"""The condition for a user's session of a thread of a served graph; see `SessionStore.of_thread`."""
_SELECT_WITH_THREAD = CompiledStatement(_with_thread.limit(1))
_SELECT_OF_THREAD = CompiledStatement(select(SESSION.c.id).where(IS_OF_THREAD))
_WITH_SESSION = (
    select(BRANCH, LAST_SEQ_OF_BRANCH.label("world_seq"), *NAME_COLUMNS)
    .select_from(BRANCH_WITH_SESSION)
    .where(SESSION.c.id == bindparam("session"))
)
_FIND_BRANCH = {
    "name": CompiledStatement(_WITH_SESSION.where(BRANCH.c.name == bindparam("ref"))),
    "id": CompiledStatement(_WITH_SESSION.where(BRANCH.c.id == bindparam("ref"))),
    None: CompiledStatement(_WITH_SESSION.where(BRANCH.c.id == SESSION.c.current_branch_id)),
}
"""The queries for a branch of a session by its name or id, and for the current one."""
_SELECT_BRANCHES = CompiledStatement(
    select(BRANCH).where(BRANCH.c.external_session_id == bindparam("session")).order_by(BRANCH.c.id)
)


_SELECT_NAMES = CompiledStatement(
    union_all(
        *(
            select(table.c.name, literal(use, String).label("use")).where(
                table.c.external_session_id == bindparam("session")
            )
            for use, table in (("branch", BRANCH), ("tag", TAG))
        )
    )
)


_line = select(BRANCH.c.id, BRANCH.c.parent_id).where(_this_branch).cte("line", recursive=True)
_parent = BRANCH.alias("parent")
_line = _line.union(select(_parent.c.id, _parent.c.parent_id).where(_parent.c.id == _line.c.parent_id))
_LINEAGE = CompiledStatement(select(BRANCH).where(BRANCH.c.id == _line.c.id))
_ACQUIRE_UPDATE = (
    update(BRANCH)
    .where(_this_branch, BRANCH.c.status == bindparam("idle"))
    .values(
        status=RUNNING,
        owner=bindparam("by"),
        epoch=BRANCH.c.epoch + 1,
        head_id=func.coalesce(bindparam("head", type_=BRANCH.c.head_id.type), BRANCH.c.head_id),
    )
    .returning(BRANCH)
)
_ACQUIRE = {
    False: CompiledStatement(_ACQUIRE_UPDATE),
    True: CompiledStatement(_ACQUIRE_UPDATE.values(lease_until=LEASE_END)),
}
"""The statement that acquires a branch, by whether runs have a lease."""

# The branch is not locked, because parallel calls of one turn would each hold a shared lock and block changes of the
# row. Nor is the session locked here: a statement that had to wait for the lock would show the branch as it was before.
_SELECT_HOLD = CompiledStatement(
    select(
        BRANCH.c.status,
        BRANCH.c.epoch,
        BRANCH.c.owner,
        func.coalesce(LAST_SEQ_OF_BRANCH, 0).label("world_seq"),
        NEXT_ARRIVAL_OF_BRANCH.label("next_arrival"),
        *NAME_COLUMNS,
    )
    .select_from(BRANCH_WITH_SESSION)
    .where(_this_branch)
    .with_for_update(read=True, key_share=True)  # neither the session nor its values may be deleted now
)
_SELECT_RUNNING = CompiledStatement(
    select(BRANCH.c.id, BRANCH.c.owner, BRANCH.c.lease_until).where(
        BRANCH.c.external_session_id == bindparam("session"), is_running(BRANCH)
    )
)
_LOCK = CompiledStatement(
    select(SESSION.c.id)
    .where(SESSION.c.id == bindparam("session"))
    .with_for_update(key_share=True)  # other transactions may still add rows that refer to the session
)
_SET_WORLD_SEEN = CompiledUpdate(BRANCH, "world_seen")


@functools.cache
def _release(*columns: str) -> CompiledUpdate:
    """Return the statement that releases a branch and changes more of its columns."""
    held_columns = ("status", "epoch", "owner")
    return CompiledUpdate(BRANCH, "status", "owner", "lease_until", *columns, conditions=held_columns)


_SET_STATUS = CompiledUpdate(BRANCH, "status", "owner", "lease_until")
_LOCK_META = CompiledStatement(
    select(BRANCH.c.id, BRANCH.c.meta)
    .where(_this_branch)
    .with_for_update(key_share=True)  # SQLite has one writer anyway
)
_SET_META = CompiledUpdate(BRANCH, "meta")
_touch = (
    update(SESSION)
    .where(SESSION.c.id == bindparam("session"))
    .values(updated_at=bindparam("now"))
    .returning(
        SESSION.c.meta,
        SESSION.c.id.label("session_id"),
        SESSION.c.session_name,
        SESSION.c.user_id.label("session_owner"),
        select(BRANCH.c.name).where(_this_branch).scalar_subquery().label("branch_name"),
        EPOCH,
    )
)
_tally = [select(one).select_from(BRANCH).where(_this_branch).scalar_subquery() for one in (CALLS, NEXT_BATCH)]
_TOUCH = {
    False: CompiledStatement(_touch),
    True: CompiledStatement(_touch.returning(_tally[0].label("calls"), _tally[1].label("next_batch"))),
}


class TakenOver(Conflict):
    """Another run holds the branch of a turn."""

    def __init__(self) -> None:
        super().__init__(
            "This turn was taken over: its process was assumed dead and its branch recovered. Nothing more of it is "
            "recorded or saved.",
            Next("wrap_again"),
        )


def is_simulated(branch: StoredRow) -> bool:
    """Return whether a branch is a rerun that no switch has made real, also while it runs or the switch goes on."""
    return idle_status(read_meta(branch)) == SIMULATED


def require_real(branch: StoredRow) -> None:
    """Check that a branch is not a rerun whose calls were only simulated."""
    if is_simulated(branch):
        raise Simulated(
            f"Branch {branch.name} is a rerun: what its tools returned was simulated, and nothing of it happened. "
            "Nothing was done.",
            Next("switch_run", branch=branch.name),
        )


def require_whole_rerun(branch: StoredRow) -> None:
    """Check that a branch is not a rerun that stopped before its end, whose conversation is only a part."""
    meta = read_meta(branch)
    if idle_status(meta) == SIMULATED and meta[RERUN].get("status") != DONE:
        raise Simulated(
            f"Branch {branch.name} is a rerun that did not come to its end: {meta[RERUN].get('status')}. It has "
            "only a part of the conversation, so its calls are not run. Nothing was done. Run the "
            "recorded session again."
        )


def session_has_moved() -> Conflict:
    return Conflict(
        "Another run or rollback has moved the session to another branch in the meantime. Nothing was run. Read the "
        "state again; then repeat this."
    )


def require_no_unfinished_rollback(branch: StoredRow) -> None:
    if branch.status not in (OPEN, RUNNING, SIMULATED):
        raise Conflict(
            f"Branch {branch.name} is {branch.status}: its rollback was not finished, and can be resumed.",
            Next("list_operations"),
        )
