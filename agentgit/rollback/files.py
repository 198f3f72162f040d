"""Planning and restoring the files of a session's workspace in rollbacks and switches."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any, NamedTuple

from sqlalchemy import Select

from agentgit.checkpoints import Checkpoint
from agentgit.effects import RollbackPlan
from agentgit.effects.files import (
    CONFLICT,
    CRASH,
    LEFT,
    OUTSIDE,
    OVERWRITTEN,
    PERSON,
    RESTORE,
    STORED,
    TURN,
    UNKNOWN,
    FileChange,
    FileChanges,
    SnapshotRef,
)
from agentgit.effects.invocation import REVERSED
from agentgit.effects.plan import KEEP, REVERSE
from agentgit.effects.registry import Registry
from agentgit.errors import AgentGitError, Conflict, Corrupt, NotFound, Unavailable, WorkspaceChanged
from agentgit.next_steps import Next, Reason
from agentgit.rollback.file_history import BLOCKED_WHY, OTHERS, STOPPED, UNHELD_WHY, FileHistory, FileState
from agentgit.rollback.request import NONE_RESTORED, NOT_ALL_RESTORED, Request, SwitchRequest
from agentgit.rollback.workspace_adapter import WorkspaceAdapter, describe_problem, reopen
from agentgit.store.records.json_columns import read_report, read_request
from agentgit.store.records.sessions import StoredRow
from agentgit.store.records.workspace_snapshots import snapshot_ref_from_row
from agentgit.store.sql.transaction import Writing
from agentgit.store.store import Store
from agentgit.values import escape_path
from agentgit.workspace.api import Workspace
from agentgit.workspace.values import some


class FoundFiles(NamedTuple):
    """The files that an operation found, and the newest row of its session at that time."""

    newest_id: int | None
    snapshot: SnapshotRef


class RollbackFiles:
    """Plans changes to the workspace files of sessions, and restores the files."""

    def __init__(self, store: Store, registry: Registry) -> None:
        self.store = store
        self.registry = registry

    def of_checkpoint(self, target: StoredRow) -> SnapshotRef | None:
        """Return the files at a checkpoint; None if it has none."""
        with self.store.database.reading() as transaction:
            return self.store.snapshots.of_checkpoint(transaction, target)

    def take_snapshot(self, session_id: int, reason: str) -> SnapshotRef | None:
        """Take a snapshot of the current files of a session; None if it has no files here."""
        with self.store.database.reading() as transaction:
            row = self.store.snapshots.newest_of_session(transaction, session_id)
        snapshot = snapshot_ref_from_row(row) if row is not None else None
        return (
            None
            if snapshot is None or snapshot.is_imported
            else self._adapter(session_id, snapshot).take_snapshot(reason)
        )

    def workspace(self, session_id: int) -> Workspace:
        """Return the workspace of a session, opened again if it is not attached in this process."""
        adapter: WorkspaceAdapter | None = self.registry.session(session_id).workspace
        if adapter is None:
            with self.store.database.reading() as transaction:
                row = self.store.snapshots.newest_of_session(transaction, session_id)
            if row is None:
                raise NotFound("This session has no workspace.", Next("keep_files"))
            adapter = reopen(snapshot_ref_from_row(row).settings)
        workspace: Workspace = adapter.workspace
        return workspace

    def of_branch(self, branch: StoredRow) -> SnapshotRef | None:
        """Return the files that were last recorded for a branch; None if it has none."""
        with self.store.database.reading() as transaction:
            row = self.store.snapshots.newest_of_branch(transaction, branch)
        return snapshot_ref_from_row(row) if row is not None else None

    def add_to_plan(
        self, plan: RollbackPlan, session_id: int, snapshot: SnapshotRef | None, files: FileChanges | None
    ) -> RollbackPlan:
        """Add the planned changes to the files to a plan."""
        if snapshot is None or files is None:
            return plan
        return replace(plan, files=replace(files, changes=[*files.changes, *self._outside(session_id, snapshot, plan)]))

    def _outside(self, session_id: int, snapshot: SnapshotRef, plan: RollbackPlan) -> list[FileChange]:
        """List the paths outside of the workspace that the calls which a plan keeps have named."""
        try:
            adapter = self._adapter(session_id, snapshot)
        except AgentGitError:  # the plan says that the files cannot be restored
            return []
        tools: dict[str, str] = {}
        for call in (step.invocation for step in plan.steps if step.action == KEEP):
            for path in adapter.outside(call.tool_name, call.effect, call.args):
                tools.setdefault(path, call.tool_name)
        return [FileChange(action=OUTSIDE, path=path, why=f"{tool} named it") for path, tool in sorted(tools.items())]

    def plan(
        self, session_id: int, snapshot: SnapshotRef | None, *, overwrites: bool = False, has_begun: bool = False
    ) -> FileChanges | None:
        """Return what restoring the files would do, without doing anything; None if they are left alone."""
        if snapshot is None:
            return None
        try:
            return self._plan(session_id, snapshot, overwrites=overwrites, has_begun=has_begun)
        except AgentGitError as error:
            return failed_restore(snapshot, error)

    def require_no_half_restore(self, session_id: int) -> None:
        """Check that no operation has stopped while it restored files: only its resumption knows what is whose."""
        with self.store.database.reading() as transaction:
            newest = self.store.snapshots.newest_of_session(transaction, session_id)
            is_crash = newest is not None and newest.changed_by == CRASH
            for row in self.store.operations.stopped(transaction, session_id) if is_crash else ():
                report, request = read_report(row), read_request(row)
                undone = [one["invocation"] for one in request["steps"] if one["action"] == REVERSE]
                calls = self.store.journal.invocations(transaction, undone).values()
                is_later = request["on_error"] != "stop" or all(call.status == REVERSED for call in calls)
                if request.get("files") is not None and (report.get("files") or (report.get("died") and is_later)):
                    text = f"Operation {row.id} may have stopped while it restored files."
                    raise Conflict(text, Next("resume", operation=row.id))

    def _plan(self, session_id: int, snapshot: SnapshotRef, *, has_begun: bool = False, **options: Any) -> FileChanges:
        if not has_begun:
            self.require_no_half_restore(session_id)
        adapter = self._adapter(session_id, snapshot)
        return adapter.plan(snapshot, self._history(session_id, snapshot, adapter, has_begun=has_begun, **options))

    def plan_changed_since(self, row: StoredRow, *, force: bool) -> FileChanges | None:
        """Return what an operation would do to files that turns or other operations have changed since it began.

        None if there are none; with `force`, also if the files cannot be restored, because it then leaves them. Files
        in conflict stay as they are.
        """
        request = read_request(row)
        if request.get("files") is None:
            return None
        known = SnapshotRef(**(request["files_known"] or {"snapshot": "", "settings": {}}))
        with self.store.database.reading() as transaction:
            rows = self.store.snapshots.since(transaction, row.external_session_id, known)
        earlier = [known.snapshot, *(one.snapshot for one in rows)]
        if all(one.changed_by == PERSON or one.snapshot == before for before, one in zip(earlier, rows, strict=False)):
            return None
        snapshot, overwrites = SnapshotRef(**request["files"]), bool(request["overwrites"])
        changes = self.plan(row.external_session_id, snapshot, overwrites=overwrites, has_begun=True)
        if changes is None or (force and changes.problem):
            return None
        return changes if changes.problem else changes.forced()

    def of_others(self, branch: StoredRow, changes: FileChanges) -> list[str]:
        """Return the paths that a plan changes although turns of other branches have written them."""
        session_id = branch.external_session_id
        with self.store.database.reading() as transaction:
            newest = self.store.snapshots.newest_of_session(transaction, session_id)
            path = [one.branch.id for one in self.store.sessions.lineage(transaction, branch)]
        if newest is None:
            return []
        snapshot = replace(snapshot_ref_from_row(newest), snapshot=changes.snapshot, row=None)
        own = dict(zip_longest(path, path[1:]))
        theirs = self._plan(session_id, snapshot, overwrites=False, own=own)
        kept = {one.path for one in theirs.changes if one.action in (LEFT, CONFLICT)}
        persons = {one.path for one in changes.changes if one.action in (CONFLICT, OVERWRITTEN)}
        return sorted(changes.changed & (kept - persons))

    def _history(
        self,
        session_id: int,
        snapshot: SnapshotRef,
        adapter: WorkspaceAdapter,
        *,
        overwrites: bool,
        has_begun: bool = False,
        own: Mapping[int, int | None] | None = None,
    ) -> FileHistory:
        """Return who changed the files since a snapshot; once an operation has begun, its own steps may have, too.

        With `own` branches, each with the id after which its rows are others', others' turns count as somebody else's.
        """
        with self.store.database.reading() as transaction:
            rows = self.store.snapshots.since(transaction, session_id, snapshot)
            first = rows[0].snapshot if rows else snapshot.snapshot
            is_history = first != snapshot.snapshot and self.store.snapshots.are_stored(
                transaction, session_id, snapshot.snapshot, first
            )
            is_running = bool(self.store.sessions.query_running(transaction, session_id).all())
            operations = self.store.operations.all(transaction, session_id)

        def restored(row: StoredRow) -> FileState:
            """Return the state that an operation left, as it has reported: others may have changed files meanwhile."""
            own = [one for one in operations if one.id < row.id and one.internal_session_id == row.internal_session_id]
            ends = {one.ended_at: one.report for one in own if one.ended_at and one.ended_at >= row.created_at}
            report = FileChanges.from_dict(files) if ends and (files := ends[min(ends)].get("files")) else None
            left = {os.fsencode(one.path) for one in report.changes if one.action == LEFT} if report else ()
            return FileState(row.snapshot, RESTORE, report.snapshot if report else "", frozenset(left))

        def after_crash(number: int) -> str:
            """Return who may have changed the files after a row that tells of a crash, before the next turn."""
            begin, crash = (rows[number - 1].id if number else 0), rows[number]
            during = [one for one in operations if begin < one.id < crash.id]
            is_stop = any(one.ended_at is None or one.ended_at >= crash.created_at for one in during)
            return STOPPED if is_stop and not is_running else UNKNOWN

        states = [FileState(snapshot.snapshot, TURN)]
        if first != snapshot.snapshot:  # the directory never had it
            states.append(FileState(first, TURN if is_history else UNKNOWN))
        for number, (earlier, row) in enumerate(pairwise(rows)):
            changed_by = TURN if row.changed_by == CRASH else row.changed_by  # a crash is a row without changes
            if own is not None and changed_by in (TURN, RESTORE):
                end = own.get(row.internal_session_id, 0)
                changed_by = changed_by if end is None or row.id < end else OTHERS
            if earlier.changed_by == CRASH and changed_by != RESTORE:  # which an operation resumed to its end
                changed_by = after_crash(number) if changed_by == PERSON else UNKNOWN
            states.append(restored(row) if changed_by == RESTORE else FileState(row.snapshot, changed_by))
        for row in rows:
            adapter.fetch_own(snapshot_ref_from_row(row))
        if rows and rows[-1].changed_by == CRASH:
            changed_since = after_crash(len(rows) - 1)
        else:
            changed_since = UNKNOWN if has_begun or not rows else TURN if is_running else PERSON
        return FileHistory(states, changed_since, overwrites=overwrites, has_begun=has_begun)

    def require_safe_restore(
        self, session_id: int, snapshot: SnapshotRef | None, request: Request | SwitchRequest
    ) -> FileChanges | None:
        """Check that the files can be restored and, unless forced, that nothing is in conflict; return the changes."""
        if snapshot is None:
            return None
        changes: FileChanges | None = None
        try:
            changes = self._plan(session_id, snapshot, overwrites=request.overwrites_files)
            if changes.problem:
                problem = Reason.of(changes.problem)
                raise Unavailable(problem.message, *problem.next)
        except AgentGitError as error:
            if request.force and not request.is_of_files and not isinstance(error, Conflict):
                return changes or failed_restore(snapshot, error)  # what cannot be restored stays as it is
            text = f"Nothing was done. The files cannot be restored: {error.message.rstrip('.')}."
            next = () if isinstance(error, Corrupt) else error.next
            raise Unavailable(text, *next, *request.without_files) from error
        if changes.conflicts and not request.force:
            whys = {one.path: one.why for one in changes.changes if one.action == CONFLICT}
            is_only_blocked = all(why == BLOCKED_WHY for why in whys.values())
            both, unheld = (
                some([escape_path(path) for path, why in whys.items() if (why == UNHELD_WHY) == is_unheld])
                for is_unheld in (False, True)
            )
            causes = [f"both a turn and somebody else have changed {both} (or a turn that was killed has)"] * bool(both)
            causes += [f"something that no snapshot holds is in the place of {unheld}"] * bool(unheld)
            raise WorkspaceChanged(
                f"Nothing was done. In {changes.workspace}, {'; '.join(causes)}.",
                *request.over_conflicts[: 1 if is_only_blocked else None],
            )
        return changes

    def take_found(
        self, session_id: int, snapshot: SnapshotRef | None, changes: FileChanges | None
    ) -> FoundFiles | None:
        """Take a snapshot of the files as an operation that will restore some finds them."""
        if snapshot is None:
            return None
        with self.store.database.reading() as transaction:
            newest = self.store.snapshots.newest_of_session(transaction, session_id)
        try:
            adapter = self._adapter(session_id, snapshot)
            found = adapter.take_snapshot("before a rollback") if not adapter.is_custom else None
        except AgentGitError:
            if changes is None or not changes.problem:
                raise
            return None  # nothing can be restored, either
        return FoundFiles(newest and newest.id, found) if found is not None else None

    def restore(self, row: StoredRow) -> FileChanges | None:
        """Restore the files that an operation leads to; None if it leaves them alone. Idempotent."""
        request, session_id = read_request(row), row.external_session_id
        if request.get("files") is None:
            return None
        snapshot, overwrites = SnapshotRef(**request["files"]), bool(request.get("overwrites"))
        try:
            if request.get("files_left"):
                raise Unavailable(request["files_left"])
            adapter = self._adapter(session_id, snapshot)
            history = self._history(session_id, snapshot, adapter, overwrites=overwrites, has_begun=True)
            result = adapter.restore(snapshot, history, request["files_known"]["snapshot"], str(row.id))
        except (AgentGitError, OSError) as error:
            result = failed_restore(snapshot, error)
        if result.problem and not result.changed:
            result = replace(result, problem=Reason.of(result.problem).within("no file was restored: "))
        outside = [FileChange(**change) for change in request.get("files_outside", ())]
        return replace(result, changes=[*result.changes, *outside])

    def diff(self, a: Checkpoint, b: Checkpoint) -> dict[str, Any]:
        """Compare the files of two checkpoints; return the fields of a `Diff` by name, or `{}` if one has no files."""
        snapshot_ids = [checkpoint.metadata.get("workspace_snapshot") for checkpoint in (a, b)]
        with self.store.database.reading() as transaction:
            snapshots = [
                self.store.snapshots.find(transaction, snapshot_id)
                for snapshot_id in snapshot_ids
                if snapshot_id is not None
            ]
        first, second = snapshots if len(snapshots) == 2 else (None, None)
        if first is None or second is None or first.snapshot == second.snapshot:
            return {}
        try:
            return dict(reopen(second.settings).diff(first, second))
        except AgentGitError as error:
            return {"diff_content": f"The files cannot be compared: {error}\n"}

    def release_unused(self, *, collect: bool = False) -> int:
        """Release the snapshots that no checkpoint and no branch needs, if their workspace is available."""
        with self.store.database.reading() as transaction:
            unused = self.store.snapshots.find_unused(transaction)
        released, adapters = dict[int, SnapshotRef](), dict[str, WorkspaceAdapter]()
        for row_id, snapshot in unused:
            storage = str(snapshot.settings.get("storage"))
            try:
                adapters[storage] = adapters.get(storage) or reopen(snapshot.settings)
                adapters[storage].release(snapshot)
            except AgentGitError:
                continue  # its workspace is elsewhere, and releases it there
            released[row_id] = snapshot
        if released:
            self.store.database.write(lambda c: self.store.snapshots.delete(c, list(released)))
            self.repin(released.values())
        for adapter in adapters.values() if collect else ():
            adapter.collect()
        return len(released)

    def repin(self, released: Collection[SnapshotRef]) -> None:
        """Hold released snapshots again that a row still uses: a row added meanwhile, or one of another user."""
        with self.store.database.reading() as transaction:
            used_ids = self.store.snapshots.in_use(transaction, [snapshot.snapshot for snapshot in released])
        for snapshot in released:
            if snapshot.snapshot in used_ids:
                reopen(snapshot.settings).hold(snapshot)

    def release_all(self, sessions: Select[int]) -> tuple[list[SnapshotRef], list[str]]:
        """Release the snapshots that only these sessions use."""
        with self.store.database.reading() as transaction:
            snapshots = self.store.snapshots.exclusive_to(transaction, sessions)
        released, problems, adapters = list[SnapshotRef](), list[str](), dict[str, WorkspaceAdapter]()
        for snapshot in snapshots:
            storage = str(snapshot.settings.get("storage"))
            try:
                adapters[storage] = adapters.get(storage) or reopen(snapshot.settings)
                adapters[storage].release(snapshot)
                released.append(snapshot)
            except AgentGitError as error:
                problems.append(f"The snapshot {snapshot.snapshot} of its files stays in {storage}: {error}")
        for adapter in adapters.values():
            adapter.collect()
        return released, problems

    def request_fields(
        self,
        transaction: Writing,
        session_id: int,
        snapshot: SnapshotRef | None,
        plan: RollbackPlan,
        found: FoundFiles | None,
        *,
        overwrites: bool,
    ) -> dict[str, Any]:
        """Return what an operation records: the files to restore (None to leave them alone) and those that it found."""
        row = self.store.snapshots.newest_of_session(transaction, session_id)
        if found is not None and found.newest_id != (row and row.id):
            raise Conflict("The session was used in the meantime. Nothing was done.")
        if found is not None and row is not None:
            branch = self.store.sessions.branch(transaction, row.internal_session_id)
            self.store.snapshots.record(transaction, branch, found.snapshot, PERSON)
            row = self.store.snapshots.newest_of_session(transaction, session_id)
        known = snapshot_ref_from_row(row) if row is not None else found and found.snapshot
        outside = self._outside(session_id, snapshot, plan) if snapshot is not None else []
        return {
            "files_outside": [vars(change) for change in outside],
            "files": vars(snapshot) if snapshot is not None else None,
            "overwrites": overwrites,
            "files_known": known and vars(known),
        }

    def snapshots_after(self, row: StoredRow, changes: FileChanges | None) -> list[tuple[SnapshotRef, str]]:
        """Return the files of an operation's branch when the operation ends, each with who changed them.

        If some files stayed as they were, these are the files that were restored, and then those in the directory.
        """
        request = read_request(row)
        known = request.get("files_known")
        if changes is None or (changes.problem and not changes.now):
            return [(SnapshotRef(**known), RESTORE)] if known is not None else []
        restored = SnapshotRef(**request["files"]).without_import_mark()
        if not changes.now:
            return [(restored, RESTORE)]
        settings = self._adapter(row.external_session_id, SnapshotRef(**request["files"])).settings
        now = SnapshotRef(snapshot=changes.now, settings=settings), RESTORE
        return [now] if changes.problem else [(restored, STORED), now]

    def _adapter(self, session_id: int, snapshot: SnapshotRef) -> WorkspaceAdapter:
        """Return the attached workspace of a session; if none is attached here, the workspace of the files."""
        return self.registry.session(session_id).workspace or reopen(snapshot.settings)


def why_not_restored(changes: FileChanges | None) -> str | None:
    """Return why the changes of calls to files stay; None if the files can be restored, or are not to be."""
    if changes is None or not changes.problem:
        return None
    return NOT_ALL_RESTORED if changes.changed else NONE_RESTORED


def failed_restore(snapshot: SnapshotRef, error: Exception) -> FileChanges:
    """Return the result for files that cannot be restored."""
    workspace = str(snapshot.settings.get("workspace"))
    return FileChanges(workspace=workspace, snapshot=snapshot.snapshot, problem=describe_problem(error))
