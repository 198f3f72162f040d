"""Templates: checkpoints from which a new session starts."""

from __future__ import annotations

from sqlalchemy import select

from agentgit.errors import Conflict, NotFound
from agentgit.sessions.session import IMPORTED
from agentgit.store.records import recorded_calls
from agentgit.store.records.checkpoints import CheckpointState, Label
from agentgit.store.records.json_columns import read_meta
from agentgit.store.records.sessions import StoredRow, require_real
from agentgit.store.sql.rows import update_rows
from agentgit.store.sql.tables import BRANCH, CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.store.threads.fork import CopiedState

TEMPLATE = "template"
"""The key in the metadata of a branch that holds the template from which it started."""

ERASED_REFERENCE = "an erased session"
"""The text that replaces the reference of an erased template."""


def create_session(
    store: Store,
    transaction: Writing,
    user_id: int,
    name: str,
    checkpoint: StoredRow,
    reference: str,
    *,
    copy_calls: bool = False,
) -> int:
    """Create a session, with a world of its own, whose first branch starts with the state of a checkpoint."""
    # An erasure of the template's session runs before this, or after it and then sees the new session.
    store.sessions.lock(transaction, checkpoint.external_session_id)
    store.checkpoints.require_exists(transaction, checkpoint, reference)
    require_real(store.sessions.branch(transaction, checkpoint.internal_session_id))
    is_imported = store.sessions.is_imported(transaction, checkpoint.external_session_id)
    session_id = store.sessions.create(transaction, user_id, name, metadata={IMPORTED: True} if is_imported else {})
    (branch,) = store.sessions.branches(transaction, session_id)
    copied = CopiedState()
    if checkpoint.graph_checkpoint_id is not None:
        copied = store.graphs.fork(
            transaction, checkpoint.thread_id, checkpoint.graph_checkpoint_id, branch.thread_id, checkpoint.pending
        )
    store.require_state(branch, copied.state_hash, checkpoint.state_hash)
    store.sessions.merge_metadata(
        transaction, branch.id, {TEMPLATE: {"checkpoint": checkpoint.id, "reference": reference}}
    )
    if copy_calls:
        source_branch = store.sessions.branch(transaction, checkpoint.internal_session_id)
        recorded_calls.copy_track(transaction, branch, store.track(transaction, source_branch, checkpoint.position))
    state = CheckpointState(
        graph_checkpoint_id=checkpoint.graph_checkpoint_id,
        state_hash=checkpoint.state_hash,
        position=checkpoint.position if copy_calls else 0,
        message_count=checkpoint.message_count,
        pending=copied.pending,
    )
    store.checkpoints.add(
        transaction, branch.id, state, Label(kind="branch", user_id=user_id, description=f"from {reference}")
    )
    return session_id


def require_same(
    store: Store, transaction: Reading, session_id: int, name: str, checkpoint: StoredRow, reference: str
) -> None:
    """Check that a session started from this checkpoint; the template of an imported one is known by its text alone."""
    branches = store.sessions.branches(transaction, session_id)
    if not branches:
        raise NotFound(f"Session {name!r} has been deleted. Try again to create it.")
    template = read_meta(branches[0]).get(TEMPLATE)
    is_same = template is not None and (
        template["checkpoint"] == checkpoint.id
        or (template["checkpoint"] is None and template["reference"] == reference)
    )
    if not is_same:
        origin = f"from {template['reference']}" if template is not None else "without a template"
        raise Conflict(
            f"Session {name!r} already exists and was created {origin}, not from {reference}. Choose another "
            "name, or omit the template to continue that session."
        )


def erase_references(store: Store, transaction: Writing, session_id: int) -> None:
    """Remove the name of a session that is being erased from the sessions that started from its checkpoints."""
    is_erased = BRANCH.c.external_session_id == session_id
    with_branch = CHECKPOINT.join(BRANCH, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    checkpoint_ids = set(
        transaction.execute(select(CHECKPOINT.c.id).select_from(with_branch).where(is_erased)).scalars()
    )
    for row in transaction.execute(select(BRANCH.c.id, BRANCH.c.meta).where(BRANCH.c.parent_id.is_(None), ~is_erased)):
        template = read_meta(row).get(TEMPLATE) if TEMPLATE.encode() in row.meta else None
        if template is not None and template["checkpoint"] in checkpoint_ids:
            store.sessions.merge_metadata(transaction, row.id, {TEMPLATE: {**template, "reference": ERASED_REFERENCE}})
            update_rows(
                transaction,
                CHECKPOINT,
                CHECKPOINT.c.internal_session_id == row.id,
                CHECKPOINT.c.number == 1,
                description=f"from {ERASED_REFERENCE}",
            )


def is_fresh(store: Store, transaction: Reading, session_id: int) -> bool:
    """Return whether a session is still at its first checkpoint and has no workspace snapshot yet."""
    has_files = store.snapshots.newest_of_session(transaction, session_id) is not None
    return not has_files and _only_checkpoint(store, transaction, session_id) is not None


def require_calls_pending(store: Store, transaction: Reading, session_id: int, checkpoint: StoredRow) -> StoredRow:
    """Return the first checkpoint of a session whose copied calls have yet to run in its own world."""
    first_checkpoint = _only_checkpoint(store, transaction, session_id)
    if first_checkpoint is None or first_checkpoint.position != checkpoint.position:
        raise Conflict(
            "This session was created from the template without replaying its calls, and is not changed now. "
            "Choose another name, or omit replay to continue this session."
        )
    return first_checkpoint


def _only_checkpoint(store: Store, transaction: Reading, session_id: int) -> StoredRow | None:
    first, *others = store.sessions.branches(transaction, session_id)
    head = store.checkpoints.load(transaction, first.head_id)
    return head if head.number == 1 and not others else None


def attach_files(store: Store, transaction: Writing, session_id: int) -> None:
    """Attach the restored files to the first checkpoint of a session, so that a rollback can restore them again."""
    branch = store.sessions.branches(transaction, session_id)[0]
    snapshot_row = store.snapshots.newest_of_branch(transaction, branch)
    if snapshot_row is not None:
        has_none = CHECKPOINT.c.id == branch.head_id, CHECKPOINT.c.workspace_snapshot_id.is_(None)
        update_rows(transaction, CHECKPOINT, *has_none, workspace_snapshot_id=snapshot_row.id)
