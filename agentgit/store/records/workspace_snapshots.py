"""References to workspace snapshots. The database does not hold the files themselves."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from sqlalchemy import Select, bindparam, delete, exists, func, literal, select, true

from agentgit.effects import ToolInvocation
from agentgit.effects.files import CRASH, PERSON, RESTORE, STORED, TURN, UNKNOWN, SnapshotRef
from agentgit.effects.kinds import MEMORY
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.ids import new_id
from agentgit.store.sql.rows import insert_rows, rows_with
from agentgit.store.sql.tables import CHECKPOINT, WORKSPACE_SNAPSHOT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import as_object, to_json


class SnapshotReferences:
    def record(self, transaction: Writing, branch: StoredRow, snapshot_ref: SnapshotRef, changed_by: str = TURN) -> int:
        """Return the row of a branch's files: the newest of the session if it is the same, else a new one."""
        last = self.newest_of_session(transaction, branch.external_session_id)
        is_state = last is not None and (last.changed_by not in (CRASH, STORED) or last.changed_by == changed_by)
        if last is not None and is_state and last.internal_session_id == branch.id:
            last_ref = snapshot_ref_from_row(last)
            if (last_ref.snapshot, last_ref.is_imported) == (snapshot_ref.snapshot, snapshot_ref.is_imported):
                return int(last.id)
        return self.add(transaction, branch.external_session_id, branch.id, snapshot_ref, changed_by)

    def add(
        self,
        transaction: Writing,
        session_id: int,
        branch_id: int,
        snapshot_ref: SnapshotRef,
        changed_by: str = TURN,
    ) -> int:
        """Record the files of a branch as a new row, and return the id of the row."""
        row_id = new_id()
        row = {
            "id": row_id,
            "external_session_id": session_id,
            "internal_session_id": branch_id,
            "snapshot": snapshot_ref.snapshot,
            "settings": to_json(snapshot_ref.settings),
            "changed_by": changed_by,
            "created_at": datetime.now(UTC),
        }
        insert_rows(transaction, WORKSPACE_SNAPSHOT, row)
        return row_id

    def record_crash(self, transaction: Writing, session_id: int) -> None:
        """Record that nobody will know who changed the files of a session from now on until they are recorded again."""
        last = self.newest_of_session(transaction, session_id)
        if last is not None and last.changed_by != CRASH:
            row = last._asdict() | {"id": new_id(), "changed_by": CRASH, "created_at": datetime.now(UTC)}
            insert_rows(transaction, WORKSPACE_SNAPSHOT, row)

    def since(self, transaction: Reading, session_id: int, ref: SnapshotRef) -> list[StoredRow]:
        """Read what the directory of a session had since it had the files of a reference, oldest first.

        If it had them only later, it is read from then on. If it never had them, it is read from the last files on that
        it took over from the same stored history, such as an import; without such files, all of it. Files that it did
        not have are left out.
        """
        c = WORKSPACE_SNAPSHOT.c
        in_directory = (c.external_session_id == session_id, c.changed_by != STORED)
        newest, oldest = (select(one(c.id)).where(*in_directory) for one in (func.max, func.min))
        is_then = c.id <= ref.row if ref.row is not None else true()
        stored = self._stored(session_id)
        has_history = literal(ref.snapshot).in_(stored) & c.snapshot.in_(stored)
        starts = (
            newest.where(c.snapshot == ref.snapshot, is_then),
            oldest.where(c.snapshot == ref.snapshot),
            newest.where(has_history),
            oldest,
        )
        start = func.coalesce(*(one.scalar_subquery() for one in starts))
        query = select(WORKSPACE_SNAPSHOT).where(*in_directory, c.id >= start).order_by(c.id)
        return [*transaction.execute(query).all()]

    def are_stored(self, transaction: Reading, session_id: int, *snapshots: str) -> bool:
        """Return whether a session has all of these snapshots from elsewhere, in one history."""
        stored = transaction.execute(self._stored(session_id).where(WORKSPACE_SNAPSHOT.c.snapshot.in_(snapshots)))
        return {*stored.scalars()} == {*snapshots}

    def _stored(self, session_id: int) -> Select[str]:
        c = WORKSPACE_SNAPSHOT.c
        return select(c.snapshot).where(c.external_session_id == session_id, c.changed_by == STORED)

    def find(self, transaction: Reading, snapshot_id: int) -> SnapshotRef | None:
        rows = self.load_rows(transaction, [snapshot_id])
        return snapshot_ref_from_row(rows[0]) if rows else None

    def of_checkpoint(self, transaction: Reading, checkpoint: StoredRow) -> SnapshotRef | None:
        row_id = checkpoint.workspace_snapshot_id
        return self.find(transaction, row_id) if row_id is not None else None

    def newest_of_session(self, transaction: Reading, session_id: int) -> StoredRow | None:
        return _NEWEST_OF_SESSION.first(transaction, {"session": session_id})

    def newest_of_branch(self, transaction: Reading, branch: StoredRow) -> StoredRow | None:
        query = select(WORKSPACE_SNAPSHOT).where(*self._in_branch(branch)).order_by(WORKSPACE_SNAPSHOT.c.id.desc())
        return transaction.execute(query.limit(1)).first()

    def found_by(self, transaction: Reading, branch: StoredRow, calls: Iterable[ToolInvocation]) -> int | None:
        """Return the row of the files that calls of a branch found; None if they change no files."""
        ids = [call.id for call in calls if not call.effect.is_neutral and call.effect != MEMORY]
        if not ids:
            return None
        is_before = WORKSPACE_SNAPSHOT.c.id < min(ids)
        newest = select(func.max(WORKSPACE_SNAPSHOT.c.id)).where(*self._in_branch(branch), is_before)
        return transaction.execute(newest).scalar()

    def without_others(self, transaction: Reading, session_id: int) -> dict[int, str]:
        """Return, for each row of a session, the snapshot whose files differ only by what others have changed since.

        Rows with the same snapshot here do not differ by what a turn did.
        """
        c = WORKSPACE_SNAPSHOT.c
        query = select(c.id, c.internal_session_id, c.snapshot, c.changed_by).where(c.external_session_id == session_id)
        snapshots, known, newest = dict[int, str](), dict[str, str](), dict[int, Any]()
        for row in transaction.execute(query.order_by(c.id)):
            last = newest.get(row.internal_session_id)
            # A restore that leaves what others have changed has two rows: what it restored, and what is there.
            is_left = last is not None and last.changed_by == STORED and row.changed_by in (RESTORE, UNKNOWN)
            same = last if is_left or row.changed_by == PERSON else None
            snapshots[row.id] = snapshots[same.id] if same is not None else known.get(row.snapshot, row.snapshot)
            known.setdefault(row.snapshot, snapshots[row.id])
            newest[row.internal_session_id] = row
        return snapshots

    def load_rows(self, transaction: Reading, ids: Iterable[int]) -> list[StoredRow]:
        """Read several rows, oldest first; deleted rows are left out."""
        id = WORKSPACE_SNAPSHOT.c.id
        return rows_with(transaction, select(WORKSPACE_SNAPSHOT).order_by(id), id, ids)

    def exclusive_to(self, transaction: Reading, sessions: Select[int]) -> list[SnapshotRef]:
        other = WORKSPACE_SNAPSHOT.alias("other")
        is_used_elsewhere = exists().where(
            other.c.snapshot == WORKSPACE_SNAPSHOT.c.snapshot, other.c.external_session_id.not_in(sessions)
        )
        query = select(WORKSPACE_SNAPSHOT).where(
            WORKSPACE_SNAPSHOT.c.external_session_id.in_(sessions), ~is_used_elsewhere
        )
        rows = transaction.execute(query).all()
        return list({(row.snapshot, row.settings): snapshot_ref_from_row(row) for row in rows}.values())

    def in_use(self, transaction: Reading, snapshots: Collection[str]) -> set[str]:
        snapshot = WORKSPACE_SNAPSHOT.c.snapshot
        return {row.snapshot for row in rows_with(transaction, select(snapshot), snapshot, snapshots)}

    def find_unused(
        self, transaction: Reading, deleted_checkpoints: Container[int] = ()
    ) -> list[tuple[int, SnapshotRef]]:
        """List the rows that can be deleted, each with its snapshot.

        These are the rows that no checkpoint refers to, that are not the newest of their branch, whose snapshot no
        other row uses, and that do not tell what others changed after a row with a checkpoint.
        """
        later, other = WORKSPACE_SNAPSHOT.alias("later"), WORKSPACE_SNAPSHOT.alias("other")
        has_later_row = exists().where(
            later.c.internal_session_id == WORKSPACE_SNAPSHOT.c.internal_session_id,
            later.c.id > WORKSPACE_SNAPSHOT.c.id,
        )
        is_used_elsewhere = exists().where(
            other.c.snapshot == WORKSPACE_SNAPSHOT.c.snapshot, other.c.id != WORKSPACE_SNAPSHOT.c.id
        )
        checkpoint_query = select(CHECKPOINT.c.id, CHECKPOINT.c.workspace_snapshot_id).where(
            CHECKPOINT.c.workspace_snapshot_id.is_not(None)
        )
        used_ids = {
            row.workspace_snapshot_id
            for row in transaction.execute(checkpoint_query)
            if row.id not in deleted_checkpoints
        }
        used_ids |= self._at_changes_of_others(transaction, used_ids)
        query = select(WORKSPACE_SNAPSHOT).where(has_later_row, ~is_used_elsewhere)
        return [
            (row.id, snapshot_ref_from_row(row)) for row in transaction.execute(query).all() if row.id not in used_ids
        ]

    def _at_changes_of_others(self, transaction: Reading, used_ids: Collection[int]) -> set[int]:
        """Return the rows at which it changes who changes the files, if a rollback could go back to an older row."""
        c = WORKSPACE_SNAPSHOT.c
        query = select(c.external_session_id, c.id, c.changed_by).where(c.changed_by != STORED)
        rows = transaction.execute(query.order_by(c.external_session_id, c.id)).all()
        needed_ids, reachable_session = set[int](), None
        for row, following in pairwise(rows):
            reachable_session = row.external_session_id if row.id in used_ids else reachable_session
            if reachable_session == following.external_session_id and row.changed_by != following.changed_by:
                needed_ids.add(row.id)
        return needed_ids

    def delete(self, transaction: Writing, ids: Sequence[int]) -> None:
        for part in slices(ids):
            is_used = exists().where(CHECKPOINT.c.workspace_snapshot_id == WORKSPACE_SNAPSHOT.c.id)  # by now
            transaction.execute(delete(WORKSPACE_SNAPSHOT).where(WORKSPACE_SNAPSHOT.c.id.in_(part), ~is_used))

    def _in_branch(self, branch: StoredRow) -> tuple[Any, ...]:
        c = WORKSPACE_SNAPSHOT.c
        in_session = c.external_session_id == branch.external_session_id  # for the index
        return in_session, c.internal_session_id == branch.id


_NEWEST_OF_SESSION = CompiledStatement(
    select(WORKSPACE_SNAPSHOT)
    .where(WORKSPACE_SNAPSHOT.c.external_session_id == bindparam("session"))
    .order_by(WORKSPACE_SNAPSHOT.c.id.desc())
    .limit(1)
)


def snapshot_ref_from_row(row: StoredRow) -> SnapshotRef:
    return SnapshotRef(snapshot=row.snapshot, settings=as_object(row.settings), row=row.id)
