"""Resolution of references in one database: sessions, branches and checkpoints by name, id or place."""

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
from agentgit.store.records.sessions import Found, Segment
from agentgit.store.sql.ids import is_id
from agentgit.store.sql.tables import CHECKPOINT
from agentgit.store.store import Store

ANSWERS = ("assistant", "tool")
"""The roles that speak between two inputs of a user."""


CheckpointRef = Checkpoint | str | int
"""The forms in which a user may name a checkpoint."""


class Lookup:
    """Finds what one principal may see, and refuses what it may not do. Who names anything goes through here.

    Args:
        store: The store of the tenant.
        principal: The one who looks. What belongs to others, and is not shared with them, is not found.
    """

    def __init__(self, store: Store, principal: Principal) -> None:
        self.store = store
        self.principal = principal
        self.user_id = principal.user.id
        self._own: set[int] = set()

    # -- who may

    def check_valid(self, connection: Connection) -> None:
        """Check that the principal's access still holds; for whoever opened the database itself, nothing is checked.

        Raises:
            NotAllowed: The access was revoked or has ended, or its user is disabled.
        """
        if self.principal.since is not None and not self.store.users.is_valid(connection, self.principal):
            raise self.refusal(
                "This credential has expired or was revoked. Log in again, or ask an admin for a new key.", why="ended"
            )

    def require_scope(self, connection: Connection, scope: str) -> None:
        """Check that the principal's access still holds and covers a scope.

        Raises:
            NotAllowed: The access no longer holds, or does not cover the scope.
        """
        self.check_valid(connection)
        if scope not in self.principal.scopes:
            raise self._narrow(scope, None)

    def require_admin(self, connection: Connection, verb: str) -> None:
        """Check that the principal is an admin, for a verb that concerns everybody.

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
        """Check that the principal may do something with a session now; for the session's owner, nothing is read.

        Args:
            connection: The connection of the transaction that does it.
            session_id: The session.
            needs: The role that is required.

        Raises:
            NotFound: The principal does not see the session.
            NotAllowed: The principal sees the session, but may not do this.
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
        """Find whose a session is that was admitted; of one's own nothing is read."""
        if session_id in self._own:
            return self.user_id
        return self.store.visible.owner(connection, session_id) or self.user_id

    def is_free(self, session_id: int) -> bool:
        """Return whether nothing need be asked of a session: it is known as their own, and nobody can shut them out."""
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
        """Make the failure of a refusal, which the audit trail is told when its transaction is over."""

        def told(connection: Connection) -> None:
            if session_id is not None:
                self.store.sessions.keep(connection, session_id)
            note(
                connection, self.store.tenant_id, "access.denied", session_id=session_id, user_id=self.user_id, **facts
            )

        return NotAllowed(text, told=told)

    # -- sessions

    def session(
        self, connection: Connection, ref: ExternalSession | str | int | None, needs: Role = VIEWER
    ) -> ExternalSession:
        """Find a session by its name or id; None is the one of their own that moved last, else a shared one.

        Args:
            connection: Any open connection.
            ref: Others' sessions are called like `alice/support-42`, or by their name alone if that is no own one's.
            needs: The role that it takes to do what is about to be done.

        Raises:
            NotFound: There is none; near names are told.
            Ambiguous: It is the name of several, or the name of one and the id of another.
            NotAllowed: They see it, and may not do that.
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
            near=references.near(str(ref), self.store.visible.references(connection, self.user_id)),
        )

    def sees(self, connection: Connection, session_id: int) -> ExternalSession | None:
        """Find a session by its id; None if they do not see it."""
        return self.store.visible.by_id(connection, self.user_id, session_id)

    # -- branches

    def branch(
        self, connection: Connection, session: ExternalSession, ref: InternalSession | str | int | None
    ) -> Found:
        """Find a branch by its name or id; None is the current one.

        Raises:
            NotFound: The session has no such branch; near names are told.
        """
        rows = self.store.sessions.branches(connection, session.id)
        if ref is None and not rows:  # it was erased since the session was looked up
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
            near=references.near(str(wanted), [row.name for row in rows]),
        )

    # -- checkpoints

    def path(self, connection: Connection, branch: Found) -> list[Found]:
        """List the checkpoints from the root of the session to the head of a branch."""
        return list(self.store.checkpoints.on_path(connection, self.store.sessions.lineage(connection, branch)))

    def checkpoint(
        self, connection: Connection, session: ExternalSession, branch: Found, place: CheckpointRef
    ) -> Found:
        """Find the checkpoint that a reference means, seen from a branch.

        Args:
            connection: Any open connection.
            session: The session to look in.
            branch: The branch that `HEAD` is on. Its path is preferred.
            place: A Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`; or
                `message:ID`, or the id alone where nothing else is called so: the checkpoint before that message of a
                user.

        Raises:
            NotFound: Nothing is called so; near names are told.
            Ambiguous: Several things are, and none of them is on the branch's path.
            InvalidInput: It is a checkpoint of another session.
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
        if reference.base != references.HEAD:  # which always means the place, whatever a checkpoint may be called
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
                near=references.near(place, self._names(connection, session)),
            )
        return found

    def restore_point(
        self, connection: Connection, session: ExternalSession, branch: Found, place: CheckpointRef
    ) -> Found:
        """Find the checkpoint that was made before a user's message, by the id of the message; or as `checkpoint` does.

        A Checkpoint or its id may be of another session that they may begin an own one from.

        Raises:
            NotFound: There is none; near ids are told.
            NotAllowed: It is of a session of which they are only viewer.
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
        self, connection: Connection, session: ExternalSession, branch: Found, message_id: str
    ) -> Found | None:
        """Find the checkpoint before a user's message: the newest on the path, else the newest elsewhere."""
        points = self._restore_points(connection, session)
        found = [row for row in points if row.restore_point == message_id]
        if not found:
            found = self._said_together(connection, branch, message_id, points)
        behind = self._behind(connection, branch) if len(found) > 1 else set()
        on_path = [row for row in found if row.id in behind]
        return next(reversed(on_path or found), None)

    def _restore_points(self, connection: Connection, session: ExternalSession) -> Sequence[Found]:
        branches = [row.id for row in self.store.sessions.branches(connection, session.id)]
        return self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_(branches), CHECKPOINT.c.restore_point.is_not(None)
        )

    def _no_message(self, connection: Connection, session: ExternalSession, place: str) -> NotFound:
        """Make the failure of finding no restore point; near message ids are in it."""
        ids = [row.restore_point for row in self._restore_points(connection, session)]
        return NotFound(
            f"Session {session.session_name} has no restore point {place!r}. Every user message is one with "
            "auto_checkpoint='turn' or 'tool', and so is every checkpoint. List them: agentgit log.",
            near=references.near(place.removeprefix(references.MESSAGE), ids),
        )

    def _said_together(
        self, connection: Connection, branch: Found, message_id: str, points: Sequence[Found]
    ) -> list[Found]:
        """Find the restore point of an input with several messages by one of those before the last."""
        head = self.store.graphs.head(connection, branch.thread_id)
        if head is None:
            return []
        said = map(from_stored, self.store.graphs.messages(connection, branch.thread_id, head.checkpoint_id))
        behind = dropwhile(lambda message: message["id"] != message_id, said)
        together = {message["id"] for message in takewhile(lambda message: message["role"] not in ANSWERS, behind)}
        return [row for row in points if row.restore_point in together][:1]

    def target(
        self, connection: Connection, session: ExternalSession, branch: Found, place: CheckpointRef
    ) -> tuple[Found, str]:
        """Find the checkpoint to go back to, as `checkpoint` does, and how a person calls it."""
        found = self.checkpoint(connection, session, branch, place)
        reference = f"{found.branch_name}#{found.number}"
        return found, f"{found.name} ({reference})" if found.name else reference

    def _by_id(self, connection: Connection, session: ExternalSession, checkpoint_id: int) -> Found:
        exists = is_id(checkpoint_id)
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == checkpoint_id) if exists else ():
            if row.external_session_id == session.id:
                return row
            owner = self.sees(connection, row.external_session_id)
            if owner is not None:
                raise InvalidInput(
                    f"Checkpoint {checkpoint_id} belongs to session {owner.reference}, not to "
                    f"{session.session_name}. Open that session to use it."
                )
        raise NotFound(f"Session {session.session_name} has no checkpoint {checkpoint_id}. List them: agentgit log.")

    def owner_of(self, connection: Connection, place: CheckpointRef) -> ExternalSession | None:
        """Return which session that they see a Checkpoint or its id belongs to; a name alone says it of none."""
        id = place.id if isinstance(place, Checkpoint) else place
        if not is_id(id):
            return None
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == id):
            return self.sees(connection, row.external_session_id)
        return None

    def _by_tag(self, connection: Connection, session: ExternalSession, name: str) -> Found | None:
        tag = self.store.tags.find(connection, session.id, name)
        return self._by_id(connection, session, tag.checkpoint_id) if tag is not None else None

    def _by_name(self, connection: Connection, session: ExternalSession, branch: Found, name: str) -> Found | None:
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

    def _behind(self, connection: Connection, branch: Found) -> set[int]:
        """Return the checkpoints on the path of a branch, with those that its branches left from."""
        lineage = self.store.sessions.lineage(connection, branch)
        on_path = {row.id for row in self.store.checkpoints.on_path(connection, lineage)}
        return on_path | {segment.branch.branch_point_id for segment in lineage}

    def _by_place(
        self, connection: Connection, session: ExternalSession, branch: Found, reference: references.Reference
    ) -> Found | None:
        """Find a checkpoint by its place on a branch; None if the reference names no branch."""
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
    ) -> Found:
        """Raise `NotFound` for a place that does not exist, and state how many checkpoints there are."""
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
