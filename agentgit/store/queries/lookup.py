"""Resolution of references: finds sessions, branches and checkpoints by name, id or position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any

from agentgit.auth import Principal
from agentgit.auth.principal import ADMIN, OWNER, SCOPE_OF_ROLE, VIEWER, Role, allows, widest
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.queries import Filter
from agentgit.errors import Ambiguous, InvalidInput, NotAllowed, NotFound
from agentgit.next_steps import Next
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.messages import from_stored
from agentgit.store.audit.trail import record_event
from agentgit.store.objects.lru import LRUCache
from agentgit.store.queries.graph_points import GraphPoint
from agentgit.store.records.log import parts_of_path
from agentgit.store.records.sessions import Segment, StoredRow
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.tables import BRANCH, CHECKPOINT
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.store.store import Store
from agentgit.values import count

ANSWER_ROLES = ("assistant", "tool")
"""The roles of the messages between two inputs of a user."""


CheckpointRef = Checkpoint | str | int
"""The ways in which a user can refer to a checkpoint."""

MAX_OWN_SESSIONS = 10_000
"""The maximum number of sessions that a principal is remembered to own. The role in any other is read each time."""


class Lookup:
    """Resolves references for one principal and checks its permissions. Every reference is resolved here."""

    def __init__(self, store: Store, principal: Principal) -> None:
        self.store = store
        self.principal = principal
        self.user_id = principal.user.id
        self._own: LRUCache[int, bool] = LRUCache(MAX_OWN_SESSIONS)

    # -- permissions

    def check_valid(self, transaction: Reading) -> None:
        """Check that the principal's access is still valid. No-op for a user who opened the database itself."""
        if not self.principal.is_operator and not self.store.users.is_valid(transaction, self.principal):
            raise self.refusal(
                "This credential has expired or was revoked. Create another key, or ask an admin for a sign-in link.",
                why="ended",
            )

    def require_scope(self, transaction: Reading, scope: str) -> None:
        self.check_valid(transaction)
        if scope not in self.principal.scopes:
            raise self._scope_refusal(scope, None)

    def require_admin(self, transaction: Reading, verb: str) -> None:
        """Check that the principal is an admin, for an operation that affects all users."""
        self.require_scope(transaction, ADMIN)
        if not self.principal.user.is_admin:
            raise self.refusal(
                f"This needs an admin, as it affects all users. You are {self.principal.user.name}; ask an admin.",
                needs="admin",
                verb=verb,
            )

    def require_role(self, transaction: Reading, session_id: int, required_role: Role = VIEWER) -> None:
        """Check that the principal has a role in a session. For a session known to be its own, the role is not read."""
        self.check_valid(transaction)
        if self._own.get(session_id):
            return self._expect(OWNER, required_role, session_id)
        role, is_own = self.store.visible_sessions.role(transaction, self.user_id, session_id)
        if role is None:
            raise self._missing_session(transaction, session_id)
        if is_own:
            self._own.add([(session_id, True)])
        return self._expect(role, required_role, session_id)

    def needs_no_check(self, session_id: int) -> bool:
        """Return whether a session needs no check: it is the principal's own, and its access cannot be revoked."""
        return self.principal.is_operator and self._own.get(session_id) is not None

    def _expect(self, role: Role, required_role: Role, session_id: int) -> None:
        if SCOPE_OF_ROLE[required_role] not in self.principal.scopes:
            raise self._scope_refusal(SCOPE_OF_ROLE[required_role], session_id)
        if not allows(role, required_role):
            raise self.refusal(
                f"Your role in this session is {role}, but this needs {required_role}.",
                Next("share", user=self.principal.user.name, role=required_role),
                session_id=session_id,
                role=role,
                needs=required_role,
            )

    def _scope_refusal(self, scope: str, session_id: int | None) -> NotAllowed:
        return self.refusal(
            f"This key has the scope {widest(self.principal.scopes)!r}; this needs {scope!r}. Create a key with it.",
            session_id=session_id,
            needs=scope,
        )

    def refusal(self, text: str, *next: Next, session_id: int | None = None, **facts: Any) -> NotAllowed:
        """Create a `NotAllowed` that is recorded in the audit trail after the refused transaction has ended."""

        def write_audit(transaction: Writing) -> None:
            if session_id is not None:
                self.store.graphs.blobs.of(session_id).protect(transaction)
            record_event(transaction, "access.denied", session_id=session_id, user_id=self.user_id, **facts)

        return NotAllowed(text, *next, write_audit=write_audit)

    # -- sessions

    def session(
        self, transaction: Reading, ref: ExternalSession | str | int | None, required_role: Role = VIEWER
    ) -> ExternalSession:
        self.check_valid(transaction)
        session = self._find_session(transaction, ref)
        if session.is_own:
            self._own.add([(session.id, True)])
        self._expect(session.role, required_role, session.id)
        return session

    def _find_session(self, transaction: Reading, ref: ExternalSession | str | int | None) -> ExternalSession:
        visible = self.store.visible_sessions
        if isinstance(ref, ExternalSession):
            session = visible.find_by_id(transaction, self.user_id, ref.id)
            matches = [session] if session is not None else []
            ref = ref.id
        elif ref is None:
            matches = visible.own(transaction, self.user_id, limit=1) or visible.shared(
                transaction, self.user_id, limit=1
            )
            if not matches:
                raise NotFound("There is no session yet.", Next("create_session"))
        else:
            matches = visible.find(transaction, self.user_id, ref)
        if not matches:
            raise self._missing_session(transaction, ref)
        if len(matches) > 1:
            names = tuple(f"{session.reference} (id {session.id})" for session in matches)
            raise Ambiguous(f"{ref!r} matches several sessions.", candidates=names)
        return matches[0]

    def _missing_session(self, transaction: Reading, ref: str | int | None) -> NotFound:
        return NotFound(
            f"There is no session {ref!r} here.",
            Next("list_sessions"),
            near=references.similar_names(str(ref), self.store.visible_sessions.references(transaction, self.user_id)),
        )

    def find_visible(self, transaction: Reading, session_id: int) -> ExternalSession | None:
        return self.store.visible_sessions.find_by_id(transaction, self.user_id, session_id)

    # -- branches

    def branch(self, transaction: Reading, session_id: int, ref: InternalSession | str | int | None) -> StoredRow:
        """Find a branch by name or id; None is the current branch."""
        name_or_id = ref.id if isinstance(ref, InternalSession) else ref
        row = self.store.sessions.find_branch(transaction, session_id, name_or_id)
        if row is not None:
            return row
        if ref is None:  # the session has been erased since it was looked up
            raise self._missing_session(transaction, session_id)
        raise NotFound(
            f"Session {self._name_of(transaction, session_id)} has no branch {name_or_id!r}.",
            Next("list_branches"),
            near=references.similar_names(
                str(name_or_id), [row.name for row in self.store.sessions.branches(transaction, session_id)]
            ),
        )

    def _name_of(self, transaction: Reading, session_id: int) -> str:
        return str(self.store.sessions.load_row(transaction, session_id).session_name)

    # -- checkpoints

    def path_checkpoints(self, transaction: Reading, branch: StoredRow) -> list[StoredRow]:
        return list(self.store.checkpoints.on_path(transaction, self.store.sessions.lineage(transaction, branch)))

    def checkpoint(self, transaction: Reading, branch: StoredRow, ref: CheckpointRef) -> StoredRow:
        """Resolve a reference to a checkpoint, relative to a branch."""
        if isinstance(ref, Checkpoint):
            if ref.id is None:
                raise NotFound("This Checkpoint is not stored. Name one that is.")
            ref = ref.id
        if isinstance(ref, int):
            return self._find_by_id(transaction, branch.external_session_id, ref)
        if not isinstance(ref, str):
            raise InvalidInput(f"{ref!r} does not name a checkpoint. Pass a Checkpoint, its id or its name.")
        reference = references.parse(ref)
        row = None
        if reference.base != references.HEAD:  # `HEAD` is always a position, even if a checkpoint has that name
            tag = self.store.tags.find(transaction, branch.external_session_id, ref)
            row = self.store.checkpoints.load(transaction, tag.checkpoint_id) if tag is not None else None
            row = row or self._find_by_name(transaction, branch, ref)
        row = row or self._find_by_position(transaction, branch, reference)
        if row is None and reference.id is not None:
            try:
                return self._find_by_id(transaction, branch.external_session_id, reference.id)
            except NotFound:
                if (row := self._find_by_message(transaction, branch, ref)) is None:
                    raise
        row = row or self._find_by_message(transaction, branch, ref.removeprefix(references.MESSAGE_PREFIX))
        if row is None and ref.startswith(references.MESSAGE_PREFIX):
            raise self._missing_restore_point(transaction, branch, ref)
        if row is None:
            raise NotFound(
                f"Session {self._name_of(transaction, branch.external_session_id)} has no checkpoint {ref!r}.",
                Next("list_checkpoints"),
                near=references.similar_names(ref, self._reference_names(transaction, branch)),
            )
        return row

    def restore_point(self, transaction: Reading, branch: StoredRow, ref: CheckpointRef) -> StoredRow:
        """Find the checkpoint before a user message by the message id; other references resolve as in `checkpoint`."""
        if not isinstance(ref, str):
            other_session = self.session_of(transaction, ref)
            if other_session is not None and other_session.id != branch.external_session_id:
                branch = self.branch(transaction, other_session.id, None)
            return self.checkpoint(transaction, branch, ref)
        if row := self._find_by_message(transaction, branch, ref.removeprefix(references.MESSAGE_PREFIX)):
            return row
        try:
            return self.checkpoint(transaction, branch, ref)
        except NotFound as error:
            raise self._missing_restore_point(transaction, branch, ref) from error

    def _find_by_message(self, transaction: Reading, branch: StoredRow, message_id: str) -> StoredRow | None:
        """Find the checkpoint before a user message: the newest on the path, else the newest elsewhere."""
        restore_points = self._find_checkpoints(transaction, branch, CHECKPOINT.c.restore_point.is_not(None))
        matches = [row for row in restore_points if row.restore_point == message_id]
        if not matches:
            matches = self._find_by_input_message(transaction, branch, message_id, restore_points)
        return next(reversed(self._on_path(transaction, branch, matches) or matches), None)

    def _find_checkpoints(self, transaction: Reading, branch: StoredRow, condition: Any) -> Sequence[StoredRow]:
        in_session = BRANCH.c.external_session_id == branch.external_session_id
        return self.store.checkpoints.find(transaction, in_session, condition)

    def _missing_restore_point(self, transaction: Reading, branch: StoredRow, ref: str) -> NotFound:
        rows = self._find_checkpoints(transaction, branch, CHECKPOINT.c.restore_point.is_not(None))
        ids = [row.restore_point for row in rows]
        name = self._name_of(transaction, branch.external_session_id)
        return NotFound(
            f"Session {name} has no restore point {ref!r}. Every checkpoint is one, and "
            "every user message if auto_checkpoint is 'turn' or 'tool'.",
            Next("list_checkpoints"),
            near=references.similar_names(ref.removeprefix(references.MESSAGE_PREFIX), ids),
        )

    def _find_by_input_message(
        self, transaction: Reading, branch: StoredRow, message_id: str, restore_points: Sequence[StoredRow]
    ) -> list[StoredRow]:
        """Find the restore point of an input with several messages by the id of one that is not the last."""
        newest = self.store.graphs.newest(transaction, branch.thread_id)
        if newest is None:
            return []
        messages = map(from_stored, self.store.graphs.messages(transaction, newest))
        from_message = dropwhile(lambda message: message["id"] != message_id, messages)
        input_ids = {
            message["id"] for message in takewhile(lambda message: message["role"] not in ANSWER_ROLES, from_message)
        }
        return [row for row in restore_points if row.restore_point in input_ids][:1]

    def target(self, transaction: Reading, branch: StoredRow, ref: CheckpointRef | GraphPoint) -> tuple[StoredRow, str]:
        """Resolve a reference as `checkpoint` does, or a point. Return the checkpoint and its display name."""
        if isinstance(ref, GraphPoint):
            return ref.require_target(), f"{ref.branch.name} at {ref.place.checkpoint_id}"
        row = self.checkpoint(transaction, branch, ref)
        reference = f"{row.branch_name}#{row.number}"
        return row, f"{row.name} ({reference})" if row.name else reference

    def _find_by_id(self, transaction: Reading, session_id: int, checkpoint_id: int) -> StoredRow:
        row = self.store.checkpoints.find_one(transaction, checkpoint_id) if is_id(checkpoint_id) else None
        if row is not None and row.external_session_id == session_id:
            return row
        name = self._name_of(transaction, session_id)
        if row is not None and (other := self.find_visible(transaction, row.external_session_id)) is not None:
            raise InvalidInput(
                f"Checkpoint {checkpoint_id} belongs to session {other.reference}, not to {name}. Open that session "
                "to use it."
            )
        raise NotFound(f"Session {name} has no checkpoint {checkpoint_id}.", Next("list_checkpoints"))

    def session_of(self, transaction: Reading, ref: CheckpointRef) -> ExternalSession | None:
        """Return the session of a Checkpoint or checkpoint id; None if the principal cannot see it, or for a name."""
        id = ref.id if isinstance(ref, Checkpoint) else ref
        if not (isinstance(id, int) and is_id(id)):
            return None
        row = self.store.checkpoints.find_one(transaction, id)
        return self.find_visible(transaction, row.external_session_id) if row is not None else None

    def _find_by_name(self, transaction: Reading, branch: StoredRow, name: str) -> StoredRow | None:
        """Find a checkpoint by its name: the newest on the path, else the only one elsewhere."""
        matches = self._find_checkpoints(transaction, branch, CHECKPOINT.c.name == name)
        nearest = self._on_path(transaction, branch, matches)
        if nearest or not matches:
            return next(reversed(nearest), None)
        raise Ambiguous(
            f"{name!r} is the name of {len(matches)} checkpoints, none of them on branch {branch.name}.",
            candidates=tuple(f"{row.branch_name}#{row.number}" for row in matches),
        )

    def _on_path(self, transaction: Reading, branch: StoredRow, rows: Sequence[StoredRow]) -> Sequence[StoredRow]:
        """Return those of several checkpoints that are on the path of a branch, including the branch points."""
        if len(rows) < 2:
            return rows
        lineage = self.store.sessions.lineage(transaction, branch)
        ids = {row.id for row in self.store.checkpoints.on_path(transaction, lineage)}
        ids |= {segment.branch.branch_point_id for segment in lineage}
        return [row for row in rows if row.id in ids]

    def _find_by_position(
        self, transaction: Reading, branch: StoredRow, reference: references.Reference
    ) -> StoredRow | None:
        """Find a checkpoint by its position on a branch; None if the reference names no branch."""
        start_branch: StoredRow | None = branch
        if reference.base != references.HEAD:
            start_branch = self.store.sessions.find_branch(transaction, branch.external_session_id, reference.base)
        if start_branch is None:
            return None
        lineage = self.store.sessions.lineage(transaction, start_branch)
        if reference.number is not None:
            on_branch = CHECKPOINT.c.internal_session_id == start_branch.id
            matches = self.store.checkpoints.find(transaction, on_branch, CHECKPOINT.c.number == reference.number)
            return (
                matches[0] if matches else self._raise_missing(transaction, reference, start_branch.name, lineage[-1:])
            )
        row = self.store.log.find_ancestor(transaction, lineage, reference.back)
        return row or self._raise_missing(transaction, reference, start_branch.name, lineage)

    def _raise_missing(
        self,
        transaction: Reading,
        reference: references.Reference,
        branch: str,
        path: list[Segment],
    ) -> StoredRow:
        """Raise `NotFound` for a position that does not exist, with the number of existing checkpoints."""
        existing = count(self.store.log.count(transaction, parts_of_path(path), Filter(), None), "checkpoint")
        is_on_branch = reference.number is not None
        found = f"branch {branch} has {existing}" if is_on_branch else f"there are {existing} on the path of {branch}"
        raise NotFound(f"{reference.text!r} does not exist: {found}.", Next("list_checkpoints", branch=branch))

    def _reference_names(self, transaction: Reading, branch: StoredRow) -> list[str]:
        branches = self.store.sessions.branches(transaction, branch.external_session_id)
        named_checkpoints = self._find_checkpoints(transaction, branch, CHECKPOINT.c.name.is_not(None))
        tags = self.store.tags.all(transaction, branch.external_session_id)
        return [*(row.name for row in (*branches, *named_checkpoints)), *(tag.name for tag in tags)]
