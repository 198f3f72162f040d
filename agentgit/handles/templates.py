"""Creation of a session from a checkpoint of another session, its template."""

from __future__ import annotations

from collections.abc import Callable

from agentgit.auth.principal import VIEWER, WRITE
from agentgit.effects.plan import EXECUTE
from agentgit.errors import InvalidInput, NotFound, RollbackBlocked, WorkspaceChanged
from agentgit.handles.context import Context
from agentgit.handles.rollbacks import Rollbacks
from agentgit.next_steps import Next
from agentgit.rollback import Request
from agentgit.sessions import ExternalSession
from agentgit.sessions.session import DONE
from agentgit.store.queries import templates
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import SESSION
from agentgit.store.sql.transaction import Reading, Writing

TEMPLATE_REQUEST_ID = "template"
"""The request id of the operation that runs a template's calls in the world of a session created from it."""


LONGEST_NAME = 200
"""The most characters of the name of a session."""


class SessionFactory:
    def __init__(self, context: Context) -> None:
        self.context = context

    def ensure(
        self,
        name: str,
        template: CheckpointRef | None,
        *,
        run: Callable[[int], None] | None = None,
        force: bool = False,
    ) -> ExternalSession:
        """Return the session with that name, or create it with its first branch, `main`."""
        require_name(name)

        def find_or_create(transaction: Writing) -> ExternalSession:
            sessions = self._find_by_name(transaction, name)
            if template is not None:
                checkpoint = self._find_template(transaction, template)
                if sessions:
                    templates.require_same(self.context.store, transaction, sessions[0].id, name, *checkpoint)
                else:
                    self.context.lookup.require_scope(transaction, WRITE)
                    session_id = templates.create_session(
                        self.context.store,
                        transaction,
                        self.context.user.id,
                        name,
                        *checkpoint,
                        copy_calls=run is not None,
                    )
                    if run is not None:
                        run(session_id)
                        if not force:
                            self._require_runnable(transaction, session_id)
            elif not sessions:
                self.context.lookup.require_scope(transaction, WRITE)
                session_id = self.context.store.sessions.create(transaction, self.context.user.id, name)
            return sessions[0] if sessions else self.context.lookup.session(transaction, session_id)

        return self.context.change(find_or_create)

    def _find_by_name(self, transaction: Reading, name: str) -> list[ExternalSession]:
        """Find the session with that name: the user's own, or another user's by its full name."""
        own_sessions = self.context.store.visible_sessions.own(
            transaction, self.context.user.id, SESSION.c.session_name == name, limit=1
        )
        owner = self.context.store.users.find_by_name(transaction, name.partition("/")[0]) if "/" in name else None
        if not own_sessions and owner is not None and owner.id != self.context.user.id:
            return [self.context.lookup.session(transaction, name)]
        return [self.context.lookup.session(transaction, session) for session in own_sessions]

    def _find_template(self, transaction: Reading, ref: CheckpointRef) -> tuple[StoredRow, str]:
        """Find the checkpoint of a template, and its display name.

        A string names a session, or a checkpoint in it: `support-42`, `support-42@main#3`.
        """
        if not isinstance(ref, str):
            row, session = self._find_checkpoint(transaction, ref, None)
        else:
            try:
                row, session = self._find_checkpoint(transaction, "HEAD", ref)
            except NotFound:  # only now, because the name of a session may contain an @
                name, _, checkpoint = ref.rpartition("@")
                if not (name and checkpoint):
                    raise
                row, session = self._find_checkpoint(transaction, checkpoint, name)
        return row, f"{session.reference}@{row.branch_name}#{row.number}"

    def restore_files(self, template: CheckpointRef, session: ExternalSession) -> None:
        """Restore the files of a template in the workspace of a session that has not continued yet."""

        def load(transaction: Reading) -> int | None:
            row, _ = self._find_template(transaction, template)
            is_needed = row.workspace_snapshot_id is not None and templates.is_fresh(
                self.context.store, transaction, session.id
            )
            return row.id if is_needed else None

        if (checkpoint_id := self.context.read(load)) is None:
            return
        try:
            rollbacks = Rollbacks(self.context, session.id)
            rollbacks.rewind(rollbacks.rewind_request(checkpoint_id, None))
        except WorkspaceChanged as error:
            raise WorkspaceChanged(
                "The directory is not empty. Nothing in it was changed, and no template file was restored. Give an "
                "empty directory.",
                Next("rewind_files", checkpoint=checkpoint_id),
            ) from error
        self.context.change(lambda c: templates.attach_files(self.context.store, c, session.id))

    def run_calls(self, template: CheckpointRef, session: ExternalSession, *, force: bool) -> None:
        """Run the calls of a template in the world of a session created from it.

        They run only once, even if this is called again. If an earlier attempt is incomplete, it is resumed.
        """

        def load(transaction: Reading) -> tuple[StoredRow | None, StoredRow | None]:
            operation = self.context.store.operations.find_by_request_id(transaction, session.id, TEMPLATE_REQUEST_ID)
            if operation is not None:
                return operation, None
            checkpoint, _ = self._find_template(transaction, template)
            return None, templates.require_calls_pending(self.context.store, transaction, session.id, checkpoint)

        operation, first_checkpoint = self.context.read(load)
        if operation is not None and operation.status != DONE:
            self.context.engine().resume(operation.id, force=force)
        if first_checkpoint is not None:
            self.context.engine().run(self._run_request(first_checkpoint, force=force))

    def _require_runnable(self, transaction: Reading, session_id: int) -> None:
        (branch,) = self.context.store.sessions.branches(transaction, session_id)
        first_checkpoint = self.context.store.checkpoints.load(transaction, branch.head_id)
        planner = self.context.engine().planner
        plan = planner.plan_request(transaction, self._run_request(first_checkpoint, force=False))
        if not plan.is_admissible:
            raise RollbackBlocked(
                f"Nothing was done, and no session was created. {plan.blocking_reasons}.",
                *plan.next,
                Next("force_template"),
                plan=planner.add_names(transaction, plan, branch.id),
            )

    def _run_request(self, first_checkpoint: StoredRow, *, force: bool) -> Request:
        return Request(
            user_id=self.context.user.id,
            source_id=first_checkpoint.internal_session_id,
            target=first_checkpoint,
            label="the template",
            replay=EXECUTE,
            on_drift="continue",
            force=force,
            request_id=TEMPLATE_REQUEST_ID,
        )

    def _find_checkpoint(
        self, transaction: Reading, ref: CheckpointRef, session_name: str | None
    ) -> tuple[StoredRow, ExternalSession]:
        """Find the row of a template and its session. The id of a checkpoint determines its session."""
        lookup = self.context.lookup
        owning_session = lookup.session_of(transaction, ref) if session_name is None else None
        session = lookup.session(transaction, owning_session or session_name, VIEWER)
        return lookup.checkpoint(transaction, lookup.branch(transaction, session.id, None), ref), session


def require_name(name: str) -> None:
    if not isinstance(name, str) or not name.strip() or len(name) > LONGEST_NAME:
        raise InvalidInput(f"A session needs a name of 1 to {LONGEST_NAME} characters, not {name!r}.")
