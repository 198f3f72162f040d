"""Retention and erasure: the checkpoints that a session keeps, and the permanent deletion of data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from agentgit.async_api import async_twin
from agentgit.auth.principal import OWNER, VIEWER, WRITE
from agentgit.checkpoints.retention import Retention, RetentionResult, RetentionVerdict
from agentgit.effects.invocation import FAILED, UNOWNED
from agentgit.errors import Conflict, InvalidInput, Unavailable
from agentgit.handles.context import BranchRef, Context, SessionAccess
from agentgit.next_steps import Next
from agentgit.sessions.reports import Erased
from agentgit.store.audit.trail import record_event
from agentgit.store.database import Database
from agentgit.store.maintenance import erasure
from agentgit.store.maintenance import retention as retention_store
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import count

MAX_NAMED_EFFECTS = 5
"""The maximum number of effects that a refusal to erase names."""


def erase(
    context: Context,
    selection: erasure.SessionIds,
    authorize: Callable[[Reading], object],
    delete_rows: Callable[[Writing], erasure.ErasedData],
    *,
    force: bool,
) -> Erased:
    """Release file snapshots, delete rows in one transaction, and rewrite the database without the deleted data."""
    store = context.store

    def load_idle_sessions(transaction: Writing) -> list[int]:
        authorize(transaction)
        ids = list(transaction.execute(selection).scalars())
        for session_id in ids:
            erasure.require_idle(store, transaction, session_id)
        if not force:
            _require_no_effects(context, transaction, ids)
        return ids

    def delete(transaction: Writing) -> erasure.ErasedData:
        if load_idle_sessions(transaction) != session_ids:
            raise Conflict("Another session was created in the meantime. Nothing was erased; try again.")
        return delete_rows(transaction)

    session_ids = context.change(load_idle_sessions, scope=WRITE)
    # Before the rows that name the snapshots are deleted, so that an interrupted erasure can be repeated.
    files = context.engine().files
    snapshots, problems = files.release_all(selection)
    try:
        erased = context.change(delete, scope=WRITE)
    finally:
        files.repin(snapshots)  # those that were not erased, or that others need by now
    problem = wipe(store.database) if store.database.is_sqlite else WORDS_REMAIN
    return Erased(
        sessions=len(session_ids),
        rows=erased.rows,
        values=erased.values,
        bytes=erased.bytes,
        events=erased.events,
        snapshots=len(snapshots),
        left=[*problems, problem] if problem else problems,
    )


def _require_no_effects(context: Context, transaction: Reading, session_ids: Sequence[int]) -> None:
    """Refuse to erase sessions whose effects stand in the world, because nobody could undo them afterwards."""
    standing, world = list[str](), context.store.world
    for session_id in session_ids:
        session = context.store.sessions.load_row(transaction, session_id)
        for call in (*world.calls_in_effect(transaction, session_id), *world.paused_calls(transaction, session_id)):
            if (call.effect.is_lasting or call.kind == UNOWNED) and call.status != FAILED and not call.is_imported:
                is_own = session.user_id == context.user.id  # an admin need not see the arguments of others
                standing.append(f"{call if is_own else call.tool_name} of session {session.session_name!r}")
    if standing:
        raise Conflict(
            f"Nothing was erased, because afterwards nobody could undo {count(len(standing), 'effect')} in the world: "
            f"{', '.join(standing[:MAX_NAMED_EFFECTS])}{', …' if len(standing) > MAX_NAMED_EFFECTS else ''}. "
            "Roll back first.",
            Next("force_delete"),
        )


WORDS_REMAIN = "Its words leave the search index with the next gc, run by the owner of the tables."


def wipe(database: Database) -> str:
    """Remove what is left of deleted rows in the files of a database; return why that failed, or an empty string."""
    try:
        database.shrink(wipe=True)
    except Unavailable as error:
        return f"Deleted data may still be in the files of the database until its owner collects garbage: {error}"
    return ""


class SessionRetention:
    """The retention of a session, as `Session.retention`.

    Args:
        context: The store and the principal.
        session_id: The id of the session.
    """

    def __init__(self, context: Context, session_id: int) -> None:
        self._context, self._access = context, SessionAccess(context, session_id)

    def get(self) -> Retention | None:
        """Return the retention of the session; None if it keeps everything."""
        return self._context.read(
            lambda c: retention_store.read_retention(c, self._context.store, self._access.load_session(c).id)
        )

    def set(self, retention: Retention | None) -> Retention | None:
        """Set the retention of the session, and return the previous one.

        From then on, checkpoints that it does not keep are removed automatically, whenever a turn ends or a checkpoint
        is created. The conversation and the tool track are kept, and so is each checkpoint that something needs: the
        head of a branch, the point where a branch forks or begins, the target of a rollback, a checkpoint that waits
        for an answer, and the last checkpoint before an unresolved effect.

        Args:
            retention: None to keep everything from now on.

        Raises:
            InvalidInput: It is not a `Retention`.

        Example:
            >>> import agentgit
            >>> from agentgit.checkpoints import Retention
            >>> repo = agentgit.open(":memory:")
            >>> session = repo.session("support-42", create=True)
            >>> session.retention.set(Retention(max_checkpoints=30))
            >>> print(session.retention.get())
            only the first, the last 20 and the newest of each name if there are more than 50; at most 30 checkpoints
        """
        if retention is not None and not isinstance(retention, Retention):
            raise InvalidInput(f"retention must be Retention(max_checkpoints=...) or None, not {retention!r}.")

        def set_retention(transaction: Writing) -> Retention | None:
            session_id = self._access.load_session(transaction, OWNER).id
            previous = retention_store.read_retention(transaction, self._context.store, session_id)
            retention_store.write_retention(transaction, self._context.store, session_id, retention)
            record_event(
                transaction,
                "retention.changed",
                session_id=session_id,
                user_id=self._context.user.id,
                retention=retention.to_dict() if retention is not None else None,
            )
            return previous

        return self._context.change(set_retention)

    def apply(self, retention: Retention | None = None, *, dry_run: bool = False) -> RetentionResult:
        """Delete the checkpoints that the session does not keep, now; return the decision about each checkpoint.

        Args:
            retention: The retention to apply this time; None is the one of the session.
            dry_run: True to return the decisions without deleting anything.

        Raises:
            InvalidInput: The session has no retention, and none was given.
        """

        def apply_retention(transaction: Reading) -> RetentionResult:
            session = self._access.load_session(transaction, VIEWER if dry_run else OWNER)
            effective_retention = retention or retention_store.read_retention(
                transaction, self._context.store, session.id
            )
            if effective_retention is None:
                raise InvalidInput(f"Session {session.session_name} keeps everything.", Next("retain"))
            verdicts = retention_store.apply_retention(
                transaction, self._context.store, session.id, effective_retention, self._context.user.id
            )
            return RetentionResult(
                session_name=session.session_name,
                retention=effective_retention,
                verdicts=tuple(verdicts),
                dry_run=dry_run,
            )

        if dry_run:
            return self._context.read(apply_retention)
        result = self._context.change(apply_retention)
        if result.gone:
            self._context.engine().files.release_unused()
        return result

    def clear(self, *, branch: BranchRef = None) -> RetentionResult:
        """Delete all checkpoints that nothing needs, including named ones; return the decision about each checkpoint.

        What branches and tags need stays: heads, branch points, the first checkpoint of a branch, tagged checkpoints,
        and the other cases that `set` lists. The `why` of each verdict in `kept` names it.

        Args:
            branch: The branch whose own checkpoints are deleted; None for all branches.

        Example:
            >>> import agentgit
            >>> session = agentgit.open(":memory:").session("support-42", create=True)
            >>> for name in ("a", "b", "c"):
            ...     checkpoint = session.checkpoint(name)
            >>> tag = session.tag("b", "v1")
            >>> print(session.retention.clear())
            1 checkpoint deleted, 2 kept
              kept  main#2 b  it has the tag v1
              kept  main#3 c  it is the head of branch main
        """

        def delete_checkpoints(transaction: Writing) -> RetentionResult:
            session = self._access.load_session(transaction, OWNER)
            branch_id = self._context.lookup.branch(transaction, session.id, branch).id if branch is not None else None
            verdicts = retention_store.delete_unneeded(
                transaction, self._context.store, session.id, branch_id=branch_id, user_id=self._context.user.id
            )
            return RetentionResult(session_name=session.session_name, retention=None, verdicts=tuple(verdicts))

        result = self._context.change(delete_checkpoints)
        self._context.engine().files.release_unused()
        return result

    aget = async_twin(get)
    aset = async_twin(set)
    aapply = async_twin(apply)
    aclear = async_twin(clear)


def delete_unneeded(access: SessionAccess, ids: Collection[int]) -> list[RetentionVerdict]:
    """Delete those of the given checkpoints that nothing needs; return the decision about each of them."""
    context = access.context

    def delete(transaction: Writing) -> list[RetentionVerdict]:
        context.authorize(transaction, access.session_id)
        return retention_store.delete_unneeded(
            transaction, context.store, access.session_id, ids=ids, user_id=context.user.id
        )

    verdicts = context.change(delete, durable=False)
    context.engine().files.release_unused()
    return verdicts
