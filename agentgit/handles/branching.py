"""Creating checkpoints, tags and branches, and recovering abandoned branches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentgit.auth.principal import EDITOR
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.queries import Tag, Tags
from agentgit.effects import RollbackReport
from agentgit.effects.files import PERSON, UNKNOWN, SnapshotRef
from agentgit.errors import AgentGitError, Conflict, InvalidInput, NotFound, Unavailable
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.handles.rollbacks import point_key
from agentgit.next_steps import Next
from agentgit.rollback.crash_recovery import mark_interrupted
from agentgit.rollback.fork import Fork
from agentgit.rollback.planner import Planner
from agentgit.rollback.request import require_request_id
from agentgit.sessions import InternalSession
from agentgit.sessions.session import RUNNING
from agentgit.store.audit.trail import record_event
from agentgit.store.maintenance import retention
from agentgit.store.queries.graph_points import BranchHead, GraphPoint
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.checkpoints import CheckpointState, Label, merge_source_id, require_text
from agentgit.store.records.sessions import StoredRow, require_no_unfinished_rollback
from agentgit.store.sql import process
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing


def recover(access: SessionAccess, branch: BranchRef, *, force: bool) -> InternalSession:
    context, store = access.context, access.context.store

    def recover_branch(transaction: Writing) -> InternalSession:
        session = access.load_session(transaction, EDITOR)
        store.graphs.blobs.of(session.id).lock(transaction)  # waits for what a run that still lives is writing
        row = context.lookup.branch(transaction, session.id, branch)
        operations = [
            o for o in store.operations.query_running(transaction, session.id).all() if o.internal_session_id == row.id
        ]
        if not force and any(map(process.is_alive_here, [row.owner, *(one.owner for one in operations)])):
            raise Conflict(
                f"Branch {row.name} is running in a process on this machine. Wait until it ends, or end that process.",
                Next("force_recover"),
            )
        store.journal.abandon(transaction, row.id, row.owner)
        store.sessions.release_abandoned(transaction, row)
        if row.status == RUNNING:
            record_event(transaction, "turn.abandoned", branch_id=row.id, user_id=context.user.id)
        for operation in operations:
            mark_interrupted(store, transaction, operation)
        return context.read_models.branch(transaction, session, store.sessions.branch(transaction, row.id))

    return context.change(recover_branch)


class Tagging(SessionAccess):
    def add(self, ref: CheckpointRef, name: str, branch: BranchRef, description: str | None) -> Tag:
        references.require_name(name, "tag")
        if description is not None and not isinstance(description, str):
            raise InvalidInput(f"description must be a string, not {description!r}.")
        store = self.context.store

        def add_tag(transaction: Writing) -> Tag:
            checkpoint = self.find_checkpoint(transaction, ref, branch)
            self.context.authorize(transaction, self.session_id)
            store.sessions.lock(transaction, self.session_id)
            if not store.checkpoints.find(transaction, CHECKPOINT.c.id == checkpoint.id):
                raise NotFound(
                    f"Checkpoint {checkpoint.branch_name}#{checkpoint.number} has been deleted in the meantime."
                )
            if name in {row.name for row in store.sessions.branches(transaction, self.session_id)}:
                raise Conflict(f"A branch is already called {name}. Choose another name.")
            return store.tags.add(transaction, checkpoint, name, description, self.context.user.id)

        return self.context.change(add_tag)

    def remove(self, name: str) -> Tag:

        def remove_tag(transaction: Writing) -> Tag:
            self.load_session(transaction, EDITOR)
            tag = self.find_tag(transaction, name)
            self.context.store.tags.remove(transaction, self.session_id, name, self.context.user.id)
            return tag

        return self.context.change(remove_tag)

    def all(self) -> Tags:
        return Tags(self.context.read(lambda c: self.context.store.tags.all(c, self.load_session(c).id)))

    def find_tag(self, transaction: Reading, name: str) -> Tag:
        tags = self.context.store.tags
        match = tags.find(transaction, self.session_id, references.require_name(name, "tag"))
        if match is None:
            names = [tag.name for tag in tags.all(transaction, self.session_id)]
            raise NotFound(
                f"Session {self.load_session(transaction).session_name} has no tag {name!r}.",
                Next("list_tags"),
                near=references.similar_names(name, names),
            )
        return match


def annotate(access: SessionAccess, ref: CheckpointRef, branch: BranchRef, changes: Mapping[str, Any]) -> Checkpoint:
    require_text(changes.get("name"), changes.get("description"))
    context, store = access.context, access.context.store

    def change_row(transaction: Writing) -> Checkpoint:
        access.load_session(transaction, EDITOR)
        store.sessions.lock(transaction, access.session_id)
        row = access.find_checkpoint(transaction, ref, branch)
        if "data" in changes and merge_source_id(row.data) is not None:
            raise Conflict(
                f"The data of {row.branch_name}#{row.number} records what was merged there, and the next merge "
                "needs it. Change its name or description."
            )
        store.checkpoints.annotate(transaction, row, context.user.id, changes)
        changed_row = store.checkpoints.load(transaction, row.id)
        store.search_index.index_annotation(transaction, changed_row)
        return context.read_models.checkpoints(transaction, [changed_row])[0]

    return context.change(change_row)


class Branching(SessionAccess):
    """Creates checkpoints and branches at the current point of a branch. The world is not changed."""

    def take_snapshot(self, reason: str) -> SnapshotRef | None:
        """Take a snapshot of the files in the session's workspace; return None if it has no workspace."""
        try:
            return self.context.engine().files.take_snapshot(self.session_id, reason)
        except AgentGitError as error:
            text = f"Nothing was done. The session's files cannot be saved: {error.message}"
            raise Unavailable(text, *error.next, Next("save_no_files")) from error

    def save(self, branch_id: int, label: Label, snapshot: SnapshotRef | None) -> Checkpoint:
        """Save the current point of a branch as a checkpoint.

        If the last turn stopped inside a batch of tool calls, the checkpoint is placed before that batch.
        """

        def save_checkpoint(transaction: Writing) -> tuple[StoredRow, int]:
            branch = self.context.store.sessions.branch(transaction, branch_id)
            self.context.authorize(transaction, branch.external_session_id)
            self.context.store.sessions.lock(transaction, branch.external_session_id)
            branch = self.context.store.recover(transaction, self.context.store.sessions.branch(transaction, branch_id))
            if branch.status == RUNNING:
                raise Conflict(f"Branch {branch.name} is running. Make the checkpoint when its turn has ended.")
            require_no_unfinished_rollback(branch)
            point = self._current_point(transaction, branch, snapshot)
            checkpoint = self.context.store.checkpoints.load(
                transaction, self.context.store.checkpoints.add(transaction, branch.id, point, label)
            )
            return checkpoint, retention.apply_if_due(transaction, self.context.store, branch.external_session_id)

        checkpoint, removed_count = self.context.store.database.write(save_checkpoint, durable=True)
        if removed_count:
            self.context.engine().files.release_unused()
        return self.context.read_models.checkpoint(checkpoint)

    def _current_point(self, transaction: Writing, branch: StoredRow, snapshot: SnapshotRef | None) -> CheckpointState:
        """Return the current point of a branch, and record which files it has."""
        point = self.context.store.head_state(transaction, branch).checkpoint_state
        if snapshot is None:
            return replace(point, workspace_snapshot_id=None)
        store = self.context.store
        is_busy = bool(store.sessions.query_running(transaction, branch.external_session_id).all())
        row_id = store.snapshots.record(transaction, branch, snapshot, UNKNOWN if is_busy else PERSON)
        return replace(point, workspace_snapshot_id=point.workspace_snapshot_id or row_id)

    def fork(
        self,
        branch: BranchRef,
        to: CheckpointRef | GraphPoint | None,
        name: str | None,
        snapshot: SnapshotRef | None,
    ) -> BranchHead:
        """Create a branch from another one, and return it; the snapshot has the files of its first point."""

        def create_fork(transaction: Writing) -> BranchHead:
            self._lock(transaction)
            return self._fork(transaction, branch, to, name, snapshot).head

        return self.context.store.database.write(create_fork, durable=True)

    def fork_once(
        self,
        branch: BranchRef,
        to: CheckpointRef | None,
        name: str | None,
        snapshot: SnapshotRef | None,
        request_id: str | None,
    ) -> RollbackReport:
        """Do what `fork` does, unless there is a fork with this request id; return its report."""
        require_request_id(request_id)

        def create_fork(transaction: Writing) -> RollbackReport:
            self._lock(transaction)
            operations = self.context.store.operations
            earlier = operations.find_by_request_id(transaction, self.session_id, request_id) if request_id else None
            if earlier is None:
                return self._fork(transaction, branch, to, name, snapshot, request_id).report()
            if earlier.kind != "fork":
                raise InvalidInput(f"request_id {request_id!r} was used for a {earlier.kind}; use another one.")
            return self.context.engine().reports.read(transaction, earlier)

        return self.context.store.database.write(create_fork, durable=True)

    def _lock(self, transaction: Writing) -> None:
        self.context.authorize(transaction, self.session_id)
        self.context.store.sessions.lock(transaction, self.session_id)

    def _fork(
        self,
        transaction: Writing,
        branch: BranchRef,
        to: CheckpointRef | GraphPoint | None,
        name: str | None,
        snapshot: SnapshotRef | None,
        request_id: str | None = None,
    ) -> Fork:
        source = self.context.lookup.branch(transaction, self.session_id, branch)
        if to is None:  # with the files as they are
            if self.context.store.recover(transaction, source) is not source:
                source = self.context.lookup.branch(transaction, self.session_id, source.id)
            target, snapshot = self._checkpoint_of(transaction, source, snapshot), None
            source = source._replace(head_id=target.id)
        else:
            target, label = self.context.lookup.target(transaction, source, to)
            if isinstance(to, GraphPoint):  # it was found before the session was locked
                self.context.store.checkpoints.require_exists(transaction, target, label)
        planner = Planner(self.context.store, self.context.registry, self.context.user.id)
        return Fork(planner, transaction, source, target).make(name, snapshot, request_id=request_id)

    def ensure_checkpoint(self, transaction: Writing, branch_id: int, snapshot: SnapshotRef | None) -> StoredRow:
        """Return a checkpoint of the current point of a branch; create one if needed.

        While the branch runs, return its head.
        """
        branch = self.context.store.recover(transaction, self.context.store.sessions.branch(transaction, branch_id))
        return self._checkpoint_of(transaction, branch, snapshot)

    def _checkpoint_of(self, transaction: Writing, branch: StoredRow, snapshot: SnapshotRef | None) -> StoredRow:
        require_no_unfinished_rollback(branch)
        head = self.context.store.checkpoints.load(transaction, branch.head_id) if branch.head_id else None
        point = self._current_point(transaction, branch, snapshot)
        if head is not None and (branch.status == RUNNING or _is_at_head(head, point)):
            return head
        label = Label(kind="after" if point.graph_checkpoint_id else "branch", user_id=self.context.user.id)
        return self.context.store.checkpoints.load(
            transaction, self.context.store.checkpoints.add(transaction, branch.id, point, label)
        )


def _is_at_head(head: StoredRow, point: CheckpointState) -> bool:
    """Return whether a branch is still at its head, with the same files."""
    is_same_point = head.graph_checkpoint_id == point.graph_checkpoint_id and point_key(head) == point_key(point)
    return is_same_point and point.workspace_snapshot_id in (None, head.workspace_snapshot_id)
