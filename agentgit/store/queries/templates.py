"""Templates: a new session begins as a checkpoint of another one was."""

from __future__ import annotations

from sqlalchemy import Connection, and_, select

from agentgit.errors import Conflict, NotFound
from agentgit.store.records import recorded_calls
from agentgit.store.records.checkpoints import Label, Snapshot
from agentgit.store.records.sessions import Found
from agentgit.store.sql import row_codes
from agentgit.store.sql.tables import BRANCH, CHECKPOINT
from agentgit.store.store import Store
from agentgit.values import as_object

TEMPLATE = "template"
"""The key in the metadata of a branch that holds the template that it began as."""

ERASED = "an erased session"
"""The text shown in place of a template that was erased."""


def begin(
    store: Store, connection: Connection, user_id: int, name: str, point: Found, called: str, *, calls: bool = False
) -> int:
    """Make a session whose first branch begins with the conversation and the state of a checkpoint; give its id.

    Its world is its own: what was done before is the other session's. Its tool track is empty, unless the calls come
    too; they are then calls that were made in another world.

    Args:
        store: The store of the tenant.
        connection: A connection in a transaction that writes.
        user_id: The user who owns the new session.
        name: The name of the new session.
        point: The row of the checkpoint.
        called: The name that a person uses for it, with its session.
        calls: True to bring the calls on the way to the checkpoint along, so that they can be made again.

    Raises:
        NotFound: The checkpoint was deleted meanwhile.
    """
    session_id = store.sessions.create(connection, user_id, name)
    store.sessions.lock(connection, point.external_session_id)  # who erases it comes before this, or sees this
    if not store.checkpoints.find(connection, CHECKPOINT.c.id == point.id):
        raise NotFound(f"Checkpoint {called} has been deleted. To list the others, run agentgit log.")
    (branch,) = store.sessions.branches(connection, session_id)
    if point.graph_checkpoint_id is not None:
        store.graphs.fork(connection, point.thread_id, point.graph_checkpoint_id, branch.thread_id, point.pending)
    store.sessions.note(connection, branch.id, {TEMPLATE: {"checkpoint": point.id, "reference": called}})
    if calls:
        origin = store.sessions.branch(connection, point.internal_session_id)
        recorded_calls.copy_track(connection, store.journal, branch, store.track(connection, origin, point.position))
    snapshot = Snapshot(
        graph_checkpoint_id=point.graph_checkpoint_id,
        state_hash=point.state_hash,
        position=point.position if calls else 0,
        message_count=point.message_count,
        pending=store.pending(connection, branch, point.graph_checkpoint_id),
    )
    store.checkpoints.add(
        connection, branch.id, snapshot, Label(kind="branch", user_id=user_id, description=f"from {called}")
    )
    store.verify_state(connection, branch, point.state_hash)
    return session_id


def require_same(store: Store, connection: Connection, session_id: int, name: str, point: Found, called: str) -> None:
    """Check that a session began from this checkpoint.

    For an imported session, only the text of the reference is known.

    Raises:
        Conflict: The session began otherwise.
        NotFound: The session was deleted meanwhile.
    """
    branches = store.sessions.branches(connection, session_id)
    if not branches:
        raise NotFound(f"Session {name!r} has been deleted. Try again to create it.")
    template = as_object(branches[0].meta).get(TEMPLATE)
    began_so = template is not None and (
        template["checkpoint"] == point.id or (template["checkpoint"] is None and template["reference"] == called)
    )
    if not began_so:
        began = f"from {template['reference']}" if template is not None else "without a template"
        raise Conflict(
            f"Session {name!r} already exists and was created {began}, not from {called}. Choose another "
            "name, or omit the template to continue that session."
        )


def forget(store: Store, connection: Connection, session_id: int) -> None:
    """Take what a session that is erased was called out of the words of those that began as one of its checkpoints.

    Args:
        store: The store of the tenant. Its transactions see the sessions of all users.
        connection: A connection in a transaction that writes.
        session_id: The session, whose rows are still there.
    """
    mine = (BRANCH.c.tenant_id == store.tenant_id, BRANCH.c.external_session_id == session_id)
    of_mine = CHECKPOINT.join(
        BRANCH, and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    )
    points = set(connection.execute(select(CHECKPOINT.c.id).select_from(of_mine).where(*mine)).scalars())
    roots = (BRANCH.c.tenant_id == store.tenant_id, BRANCH.c.parent_id.is_(None), ~mine[1])
    for row in connection.execute(select(BRANCH.c.id, BRANCH.c.meta).where(*roots)).all():
        template = as_object(row.meta).get(TEMPLATE) if TEMPLATE.encode() in row.meta else None
        if template is not None and template["checkpoint"] in points:
            store.sessions.note(connection, row.id, {TEMPLATE: {**template, "reference": ERASED}})
            first = (CHECKPOINT.c.tenant_id == store.tenant_id, CHECKPOINT.c.internal_session_id == row.id)
            row_codes.change(connection, CHECKPOINT, *first, CHECKPOINT.c.number == 1, description=f"from {ERASED}")


def is_fresh(store: Store, connection: Connection, session_id: int) -> bool:
    """Return whether a session stands where it began, and has seen no files yet."""
    first, *others = store.sessions.branches(connection, session_id)
    begun = store.snapshots.last(connection, session_id) is not None or bool(others)
    return not begun and store.checkpoints.one(connection, first.head_id).number == 1


def require_to_run(store: Store, connection: Connection, session_id: int, point: Found) -> Found:
    """Return the first checkpoint of a session whose calls are to be made in its own world, and were not yet.

    Raises:
        Conflict: The session went on without that.
    """
    first, *others = store.sessions.branches(connection, session_id)
    beginning = store.checkpoints.by_id(connection, first.head_id)
    if others or beginning.number != 1 or beginning.position != point.position:
        raise Conflict(
            "This session was created from the template without replaying its calls, and is not changed now. "
            "Choose another name, or omit replay to continue this session."
        )
    return beginning


def with_files(store: Store, connection: Connection, session_id: int) -> None:
    """Let the beginning of a session have the files that were just brought, so that a rollback brings them again.

    Args:
        store: The store of the tenant.
        connection: A connection in a transaction that writes.
        session_id: A session that began as a template, and has not gone on.
    """
    branch = store.sessions.branches(connection, session_id)[0]
    files = store.snapshots.of_branch(connection, branch)
    if files is not None:
        store.checkpoints.complete(connection, branch.head_id, files.id)
