"""What a reference means in one database: sessions, branches and checkpoints by name, id or place."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import dropwhile, takewhile
from typing import Any

from sqlalchemy import Connection

from agentgit.checkpoints import Checkpoint, refs
from agentgit.checkpoints.finding import Filter
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.history import from_stored
from agentgit.store.log import of_path
from agentgit.store.sessions import CHECKPOINT, SESSION, Found, Segment
from agentgit.store.store import Store

ID_LIMIT = 2**53

ANSWERS = ("assistant", "tool")
"""Who speaks between two inputs of a user."""


def is_id(value: object) -> bool:
    """Tell whether something can be the id of anything; a database refuses others in words of its own."""
    return isinstance(value, int) and 0 <= value < ID_LIMIT


Place = Checkpoint | str | int
"""How a user may name a checkpoint."""


class Lookup:
    """Finds what one user may see.

    Args:
        store: where.
        user_id: who looks; what belongs to others is not found.
    """

    def __init__(self, store: Store, user_id: int) -> None:
        self.store = store
        self.user_id = user_id

    # -- sessions

    def session(self, connection: Connection, ref: ExternalSession | str | int | None) -> ExternalSession:
        """Find a session by its name or id; None is the one that moved last.

        Raises:
            NotFound: there is none; near names are told.
            Ambiguous: one session has that name and another one that id.
        """
        sessions = self.store.sessions
        if isinstance(ref, ExternalSession):
            ref = ref.id
        if ref is None:
            found = sessions.sessions(connection, self.user_id, limit=1)
            if not found:
                raise NotFound(
                    "There is no session yet. Make one with repo.wrap(graph, session=...), or: agentgit demo"
                )
            return found[0]
        found = sessions.find(connection, self.user_id, ref)
        if not found:
            names = sessions.names(connection, self.user_id)
            raise NotFound(
                f"There is no session {ref!r} here. List them: repo.sessions(), or agentgit sessions.",
                near=refs.near(str(ref), names),
            )
        if len(found) > 1:
            raise Ambiguous(f"{ref!r} is the name of one session and the id of another.", candidates=_ids(found))
        return found[0]

    def sessions(self, connection: Connection) -> list[ExternalSession]:
        """List the sessions, the one that moved last first."""
        return self.store.sessions.sessions(connection, self.user_id)

    # -- branches

    def branch(
        self, connection: Connection, session: ExternalSession, ref: InternalSession | str | int | None
    ) -> Found:
        """Find a branch by its name or id; None is the current one.

        Raises:
            NotFound: the session has no such branch; near names are told.
        """
        rows = self.store.sessions.branches(connection, session.id)
        if ref is None:
            return next(row for row in rows if row.id == session.current_internal_session_id)
        wanted = ref.id if isinstance(ref, InternalSession) else ref
        for row in rows:
            if wanted in (row.name, row.id):
                return row
        raise NotFound(
            f"Session {session.session_name} has no branch {wanted!r}. List them: branches(), or agentgit branches.",
            near=refs.near(str(wanted), [row.name for row in rows]),
        )

    # -- checkpoints

    def path(self, connection: Connection, branch: Found) -> list[Found]:
        """List the checkpoints from the root of the session to the head of a branch."""
        return list(self.store.checkpoints.on_path(connection, self.store.sessions.lineage(connection, branch)))

    def checkpoint(self, connection: Connection, session: ExternalSession, branch: Found, place: Place) -> Found:
        """Find the checkpoint that a reference means, seen from a branch.

        Args:
            connection: any.
            session: where to look.
            branch: what `HEAD` is on, and whose path is preferred.
            place: a Checkpoint, its id, a tag, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.

        Raises:
            NotFound: nothing is called so; near names are told.
            Ambiguous: several things are, and none of them is on the branch's path.
            InvalidInput: it is a checkpoint of another session.
        """
        if isinstance(place, Checkpoint):
            if place.id is None:
                raise NotFound("This Checkpoint is not stored; agent.checkpoint() makes one that is.")
            place = place.id
        if isinstance(place, int):
            return self._by_id(connection, session, place)
        if not isinstance(place, str):
            raise InvalidInput(f"{place!r} names no checkpoint; give a Checkpoint, its id or its name.")
        reference = refs.parse(place)
        found = None
        if reference.base != refs.HEAD:  # which always means the place, whatever a checkpoint may be called
            found = self._by_tag(connection, session, place) or self._by_name(connection, session, branch, place)
        found = found or self._by_place(connection, session, branch, reference)
        if found is None and reference.id is not None:
            return self._by_id(connection, session, reference.id)
        if found is None:
            raise NotFound(
                f"Session {session.session_name} has no checkpoint {place!r}. List them: agentgit log.",
                near=refs.near(place, self._names(connection, session)),
            )
        return found

    def restore_point(self, connection: Connection, session: ExternalSession, branch: Found, place: Place) -> Found:
        """Find the checkpoint that was made before a user's message, by the id of the message; or as `checkpoint` does.

        A Checkpoint or its id may be of another session of the same user.

        Raises:
            NotFound: there is none; near ids are told.
        """
        if not isinstance(place, str):
            id = place.id if isinstance(place, Checkpoint) else place
            owner = self.owner_of(connection, id) if isinstance(id, int) else None
            return self.checkpoint(connection, owner or session, branch, place)
        branches = [row.id for row in self.store.sessions.branches(connection, session.id)]
        points = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_(branches), CHECKPOINT.c.restore_point.is_not(None)
        )
        found = [row for row in points if row.restore_point == place]
        if found := found or self._said_together(connection, branch, place, points):
            return found[-1]
        try:
            return self.checkpoint(connection, session, branch, place)
        except NotFound as error:
            raise NotFound(
                f"Session {session.session_name} has no restore point {place!r}. Each message of a user is one, with "
                "auto_checkpoint='turn' or 'tool'; any checkpoint is one too. List them: agentgit log.",
                near=refs.near(place, [row.restore_point for row in points]),
            ) from error

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
        self, connection: Connection, session: ExternalSession, branch: Found, place: Place
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
            owner = self.store.sessions.sessions(connection, self.user_id, SESSION.c.id == row.external_session_id)
            if owner:
                raise InvalidInput(
                    f"Checkpoint {checkpoint_id} belongs to session {owner[0].session_name}, not to "
                    f"{session.session_name}. Wrap that session to go there."
                )
        raise NotFound(f"Session {session.session_name} has no checkpoint {checkpoint_id}. List them: agentgit log.")

    def owner_of(self, connection: Connection, checkpoint_id: int) -> ExternalSession | None:
        """Tell which of the user's sessions a checkpoint belongs to."""
        if not is_id(checkpoint_id):
            return None
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == checkpoint_id):
            found = self.store.sessions.sessions(connection, self.user_id, SESSION.c.id == row.external_session_id)
            return found[0] if found else None
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
        """Give the checkpoints on the path of a branch, with those that its branches left from."""
        lineage = self.store.sessions.lineage(connection, branch)
        on_path = {row.id for row in self.store.checkpoints.on_path(connection, lineage)}
        return on_path | {segment.branch.branch_point_id for segment in lineage}

    def _by_place(
        self, connection: Connection, session: ExternalSession, branch: Found, reference: refs.Reference
    ) -> Found | None:
        """Find a checkpoint by its place on a branch; None if the reference names no branch."""
        rows = self.store.sessions.branches(connection, session.id)
        on = branch if reference.base == refs.HEAD else next((r for r in rows if r.name == reference.base), None)
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
        self, connection: Connection, reference: refs.Reference, path: list[Segment], before: str, after: str = ""
    ) -> Found:
        """Say that a place is not there, and how many there are."""
        count = self.store.log.count(connection, of_path(path), Filter(), None)
        raise NotFound(
            f"{reference.text!r} names nothing: {before} {count} checkpoints{after}. List them with repo.log(), or: "
            "agentgit log"
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
    return tuple(f"{one.session_name} (id {one.id})" for one in found)
