"""Resolution of references: finds sessions, branches and checkpoints by name, id or position."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any

from sqlalchemy import Connection

from agentgit.auth import Principal
from agentgit.auth.principal import ADMIN, FOR_ROLE, FORKER, OWNER, VIEWER, Role, allows, widest
from agentgit.checkpoints import Checkpoint, references
from agentgit.checkpoints.queries import Filter
from agentgit.errors import Ambiguous, InvalidInput, NotAllowed, NotFound
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.messages import from_stored
from agentgit.store.audit.trail import note
from agentgit.store.records.log import of_path
from agentgit.store.records.sessions import Segment, StoredRow
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Store

ANSWERS = ("assistant", "tool")
"""The roles of the messages between two inputs of a user."""


CheckpointRef = Checkpoint | str | int
"""The ways in which a user can refer to a checkpoint."""


class Lookup:
    """Resolves references for one principal and checks its permissions. Every reference is resolved here.

    Args:
        store: The store of the tenant.
        principal: The principal. Sessions of other users that are not shared with it are not found.
    """

    def __init__(self, store: Store, principal: Principal) -> None:
        self.store = store
        self.principal = principal
        self.user_id = principal.user.id
        self._own: set[int] = set()

    # -- permissions

    def check_valid(self, connection: Connection) -> None:
        """Check that the principal's access is still valid. No-op for a user who opened the database itself.

        Raises:
            NotAllowed: The access has been revoked or has expired, or its user is disabled.
        """
        if self.principal.since is not None and not self.store.users.is_valid(connection, self.principal):
            raise self.refusal(
                "This credential has expired or was revoked. Log in again, or ask an admin for a new key.", why="ended"
            )

    def require_scope(self, connection: Connection, scope: str) -> None:
        """Check that the principal's access is still valid and has a scope.

        Raises:
            NotAllowed: The access is no longer valid, or does not have the scope.
        """
        self.check_valid(connection)
        if scope not in self.principal.scopes:
            raise self._narrow(scope, None)

    def require_admin(self, connection: Connection, verb: str) -> None:
        """Check that the principal is an admin, for an operation that affects all users.

        Raises:
            NotAllowed: The principal is not an admin.
        """
        self.require_scope(connection, ADMIN)
        if not self.principal.user.is_admin:
            raise self.refusal(
                f"{verb} needs an admin, as it affects all users. You are {self.principal.user.name}; ask an admin.",
                needs="admin",
                verb=verb,
            )

    def admit(self, connection: Connection, session_id: int, needs: Role = VIEWER) -> None:
        """Check that the principal has a role in a session. For a session known to be its own, the role is not read.

        Args:
            connection: The connection of the transaction that needs the role.
            session_id: The session.
            needs: The role that is required.

        Raises:
            NotFound: The principal cannot see the session.
            NotAllowed: The principal can see the session, but does not have the role.
        """
        self.check_valid(connection)
        if session_id in self._own:
            return self._expect(OWNER, needs, session_id)
        role, is_own = self.store.visible.role(connection, self.user_id, session_id)
        if role is None:
            raise self._missing_session(connection, session_id)
        if is_own:
            self._own.add(session_id)
        return self._expect(role, needs, session_id)

    def owner(self, connection: Connection, session_id: int) -> int:
        """Return the owner's id of a session that `admit` let pass. Nothing is read for the principal's own session."""
        if session_id in self._own:
            return self.user_id
        return self.store.visible.owner(connection, session_id) or self.user_id

    def needs_no_check(self, session_id: int) -> bool:
        """Return whether a session needs no check: it is the principal's own, and its access cannot be revoked."""
        return self.principal.since is None and session_id in self._own

    def _expect(self, role: Role, needs: Role, session_id: int) -> None:
        if FOR_ROLE[needs] not in self.principal.scopes:
            raise self._narrow(FOR_ROLE[needs], session_id)
        if not allows(role, needs):
            raise self.refusal(
                f"Your role in this session is {role}, but this needs {needs}. The owner can grant it: "
                f"session.sharing.share({self.principal.user.name!r}, role={needs!r}).",
                session_id=session_id,
                role=role,
                needs=needs,
            )

    def _narrow(self, scope: str, session_id: int | None) -> NotAllowed:
        return self.refusal(
            f"This key has the scope {widest(self.principal.scopes)!r}; this needs {scope!r}. Create a key with it.",
            session_id=session_id,
            needs=scope,
        )

    def refusal(self, text: str, *, session_id: int | None = None, **facts: Any) -> NotAllowed:
        """Create a `NotAllowed` that is recorded in the audit trail after the refused transaction has ended."""

        def told(connection: Connection) -> None:
            if session_id is not None:
                self.store.sessions.prevent_erasure(connection, session_id)
            note(
                connection, self.store.tenant_id, "access.denied", session_id=session_id, user_id=self.user_id, **facts
            )

        return NotAllowed(text, write_audit=told)

    # -- sessions

    def session(
        self, connection: Connection, ref: ExternalSession | str | int | None, needs: Role = VIEWER
    ) -> ExternalSession:
        """Find a session by name or id.

        Args:
            connection: Any open connection.
            ref: The name or id. Another user's session is `alice/support-42`, or just the name if the principal has no
                session of that name. None is the principal's most recently updated session, else the most recently
                updated shared one.
            needs: The role that is required.

        Raises:
            NotFound: There is no such session. The error lists similar names.
            Ambiguous: Several sessions match, such as the name of one and the id of another.
            NotAllowed: The principal can see the session, but does not have the role.
        """
        self.check_valid(connection)
        found = self._find(connection, ref)
        if found.is_own:
            self._own.add(found.id)
        self._expect(found.role, needs, found.id)
        return found

    def _find(self, connection: Connection, ref: ExternalSession | str | int | None) -> ExternalSession:
        visible = self.store.visible
        if isinstance(ref, ExternalSession):
            one = visible.by_id(connection, self.user_id, ref.id)
            found = [one] if one is not None else []
            ref = ref.id
        elif ref is None:
            found = visible.own(connection, self.user_id, limit=1) or visible.shared(connection, self.user_id, limit=1)
            if not found:
                raise NotFound(
                    "There is no session yet. Create one with repo.wrap(graph, session=...), or: agentgit demo"
                )
        else:
            found = visible.find(connection, self.user_id, ref)
        if not found:
            raise self._missing_session(connection, ref)
        if len(found) > 1:
            raise Ambiguous(f"{ref!r} matches several sessions.", candidates=_ids(found))
        return found[0]

    def _missing_session(self, connection: Connection, ref: str | int | None) -> NotFound:
        return NotFound(
            f"There is no session {ref!r} here. List them: repo.sessions(), or agentgit sessions.",
            near=references.similar_names(str(ref), self.store.visible.references(connection, self.user_id)),
        )

    def find_visible(self, connection: Connection, session_id: int) -> ExternalSession | None:
        """Find a session by its id; None if the principal cannot see it."""
        return self.store.visible.by_id(connection, self.user_id, session_id)

    # -- branches

    def branch(
        self, connection: Connection, session: ExternalSession, ref: InternalSession | str | int | None
    ) -> StoredRow:
        """Find a branch by name or id; None is the current branch.

        Raises:
            NotFound: The session has no such branch. The error lists similar names.
        """
        rows = self.store.sessions.branches(connection, session.id)
        if ref is None and not rows:  # the session has been erased since it was looked up
            raise self._missing_session(connection, session.reference)
        if ref is None:
            return next(row for row in rows if row.id == session.current_internal_session_id)
        wanted = ref.id if isinstance(ref, InternalSession) else ref
        for row in rows:
            if wanted in (row.name, row.id):
                return row
        raise NotFound(
            f"Session {session.session_name} has no branch {wanted!r}. List them: session.branches(), or "
            "agentgit branches.",
            near=references.similar_names(str(wanted), [row.name for row in rows]),
        )

    # -- checkpoints

    def path(self, connection: Connection, branch: StoredRow) -> list[StoredRow]:
        """List the checkpoints from the root of the session to the head of a branch."""
        return list(self.store.checkpoints.on_path(connection, self.store.sessions.lineage(connection, branch)))

    def checkpoint(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, place: CheckpointRef
    ) -> StoredRow:
        """Resolve a reference to a checkpoint, relative to a branch.

        Args:
            connection: Any open connection.
            session: The session to look in.
            branch: The branch that `HEAD` refers to. Checkpoints on its path take precedence.
            place: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`; or
                `message:ID` for the checkpoint before that user message. The message id alone also works if nothing
                else has that name.

        Raises:
            NotFound: Nothing matches. The error lists similar names.
            Ambiguous: Several checkpoints match, and none of them is on the path of the branch.
            InvalidInput: The checkpoint belongs to another session.
        """
        if isinstance(place, Checkpoint):
            if place.id is None:
                raise NotFound("This Checkpoint is not stored. Create a stored one with agent.checkpoint().")
            place = place.id
        if isinstance(place, int):
            return self._by_id(connection, session, place)
        if not isinstance(place, str):
            raise InvalidInput(f"{place!r} does not name a checkpoint. Pass a Checkpoint, its id or its name.")
        reference = references.parse(place)
        found = None
        if reference.base != references.HEAD:  # `HEAD` is always a position, even if a checkpoint has that name
            found = self._by_tag(connection, session, place) or self._by_name(connection, session, branch, place)
        found = found or self._by_place(connection, session, branch, reference)
        if found is None and reference.id is not None:
            try:
                return self._by_id(connection, session, reference.id)
            except NotFound:
                if (found := self._by_message(connection, session, branch, place)) is None:
                    raise
        found = found or self._by_message(connection, session, branch, place.removeprefix(references.MESSAGE))
        if found is None and place.startswith(references.MESSAGE):
            raise self._no_message(connection, session, place)
        if found is None:
            raise NotFound(
                f"Session {session.session_name} has no checkpoint {place!r}. List them: agentgit log.",
                near=references.similar_names(place, self._names(connection, session)),
            )
        return found

    def restore_point(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, place: CheckpointRef
    ) -> StoredRow:
        """Find the checkpoint before a user message by the message id.

        Other references resolve as in `checkpoint`. A Checkpoint or its id may belong to another session in which the
        principal is at least a forker.

        Raises:
            NotFound: There is no such checkpoint. The error lists similar ids.
            NotAllowed: The principal is only a viewer of the other session.
        """
        if not isinstance(place, str):
            owner = self.owner_of(connection, place)
            if owner is not None and owner.id != session.id:
                self._expect(owner.role, FORKER, owner.id)
            return self.checkpoint(connection, owner or session, branch, place)
        if found := self._by_message(connection, session, branch, place.removeprefix(references.MESSAGE)):
            return found
        try:
            return self.checkpoint(connection, session, branch, place)
        except NotFound as error:
            raise self._no_message(connection, session, place) from error

    def _by_message(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, message_id: str
    ) -> StoredRow | None:
        """Find the checkpoint before a user message: the newest on the path, else the newest elsewhere."""
        points = self._restore_points(connection, session)
        found = [row for row in points if row.restore_point == message_id]
        if not found:
            found = self._said_together(connection, branch, message_id, points)
        behind = self._behind(connection, branch) if len(found) > 1 else set()
        on_path = [row for row in found if row.id in behind]
        return next(reversed(on_path or found), None)

    def _restore_points(self, connection: Connection, session: ExternalSession) -> Sequence[StoredRow]:
        branches = [row.id for row in self.store.sessions.branches(connection, session.id)]
        return self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_(branches), CHECKPOINT.c.restore_point.is_not(None)
        )

    def _no_message(self, connection: Connection, session: ExternalSession, place: str) -> NotFound:
        """Create the error for a missing restore point, with similar message ids."""
        ids = [row.restore_point for row in self._restore_points(connection, session)]
        return NotFound(
            f"Session {session.session_name} has no restore point {place!r}. Every user message is one with "
            "auto_checkpoint='turn' or 'tool', and so is every checkpoint. List them: agentgit log.",
            near=references.similar_names(place.removeprefix(references.MESSAGE), ids),
        )

    def _said_together(
        self, connection: Connection, branch: StoredRow, message_id: str, points: Sequence[StoredRow]
    ) -> list[StoredRow]:
        """Find the restore point of an input with several messages by the id of one that is not the last."""
        head = self.store.graphs.head(connection, branch.thread_id)
        if head is None:
            return []
        said = map(from_stored, self.store.graphs.messages(connection, branch.thread_id, head.checkpoint_id))
        behind = dropwhile(lambda message: message["id"] != message_id, said)
        together = {message["id"] for message in takewhile(lambda message: message["role"] not in ANSWERS, behind)}
        return [row for row in points if row.restore_point in together][:1]

    def target(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, place: CheckpointRef
    ) -> tuple[StoredRow, str]:
        """Resolve a reference as `checkpoint` does. Return the checkpoint and its display name."""
        found = self.checkpoint(connection, session, branch, place)
        reference = f"{found.branch_name}#{found.number}"
        return found, f"{found.name} ({reference})" if found.name else reference

    def _by_id(self, connection: Connection, session: ExternalSession, checkpoint_id: int) -> StoredRow:
        exists = is_id(checkpoint_id)
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == checkpoint_id) if exists else ():
            if row.external_session_id == session.id:
                return row
            owner = self.find_visible(connection, row.external_session_id)
            if owner is not None:
                raise InvalidInput(
                    f"Checkpoint {checkpoint_id} belongs to session {owner.reference}, not to "
                    f"{session.session_name}. Open that session to use it."
                )
        raise NotFound(f"Session {session.session_name} has no checkpoint {checkpoint_id}. List them: agentgit log.")

    def owner_of(self, connection: Connection, place: CheckpointRef) -> ExternalSession | None:
        """Return the session of a Checkpoint or checkpoint id; None if the principal cannot see it, or for a name."""
        id = place.id if isinstance(place, Checkpoint) else place
        if not is_id(id):
            return None
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == id):
            return self.find_visible(connection, row.external_session_id)
        return None

    def _by_tag(self, connection: Connection, session: ExternalSession, name: str) -> StoredRow | None:
        tag = self.store.tags.find(connection, session.id, name)
        return self._by_id(connection, session, tag.checkpoint_id) if tag is not None else None

    def _by_name(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, name: str
    ) -> StoredRow | None:
        """Find a checkpoint by its name: the newest on the path, else the only one elsewhere."""
        sessions = self.store.sessions
        branches = [row.id for row in sessions.branches(connection, session.id)]
        named = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_(branches), CHECKPOINT.c.name == name
        )
        if not named:
            return None
        ids = self._behind(connection, branch) if len(named) > 1 else set()
        on_path = [row for row in named if row.id in ids]
        if on_path or len(named) == 1:
            return (on_path or named)[-1]
        raise Ambiguous(
            f"{name!r} is the name of {len(named)} checkpoints, none of them on branch {branch.name}.",
            candidates=tuple(f"{row.branch_name}#{row.number}" for row in named),
        )

    def _behind(self, connection: Connection, branch: StoredRow) -> set[int]:
        """Return the ids of the checkpoints on the path of a branch, including the branch points."""
        lineage = self.store.sessions.lineage(connection, branch)
        on_path = {row.id for row in self.store.checkpoints.on_path(connection, lineage)}
        return on_path | {segment.branch.branch_point_id for segment in lineage}

    def _by_place(
        self, connection: Connection, session: ExternalSession, branch: StoredRow, reference: references.Reference
    ) -> StoredRow | None:
        """Find a checkpoint by its position on a branch; None if the reference names no branch."""
        rows = self.store.sessions.branches(connection, session.id)
        on = branch if reference.base == references.HEAD else next((r for r in rows if r.name == reference.base), None)
        if on is None:
            return None
        lineage = self.store.sessions.lineage(connection, on)
        if reference.number is not None:
            here = CHECKPOINT.c.internal_session_id == on.id
            own = self.store.checkpoints.find(connection, here, CHECKPOINT.c.number == reference.number)
            return own[0] if own else self._missing(connection, reference, lineage[-1:], f"branch {on.name} has")
        at = self.store.log.back(connection, lineage, reference.back)
        return at or self._missing(connection, reference, lineage, "there are", f" on the path of {on.name}")

    def _missing(
        self, connection: Connection, reference: references.Reference, path: list[Segment], before: str, after: str = ""
    ) -> StoredRow:
        """Raise `NotFound` for a position that does not exist, with the number of existing checkpoints."""
        count = self.store.log.count(connection, of_path(path), Filter(), None)
        raise NotFound(
            f"{reference.text!r} does not exist: {before} {count} checkpoints{after}. List them with session.log(), "
            "or: agentgit log"
        )

    def _names(self, connection: Connection, session: ExternalSession) -> list[str]:
        sessions = self.store.sessions
        rows = sessions.branches(connection, session.id)
        named = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_([r.id for r in rows]), CHECKPOINT.c.name.is_not(None)
        )
        tags = self.store.tags.all(connection, session.id)
        return [*(row.name for row in (*rows, *named)), *(tag.name for tag in tags)]


def _ids(found: list[Any]) -> tuple[str, ...]:
    return tuple(f"{one.reference} (id {one.id})" for one in found)
