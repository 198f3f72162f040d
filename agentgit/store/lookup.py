"""What a reference means in one database: sessions, branches and checkpoints by name, id or place."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from agentgit.checkpoints import Checkpoint, refs
from agentgit.errors import Ambiguous, InvalidInput, NotFound
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.store.sessions import CHECKPOINT, SESSION, Found
from agentgit.store.store import Store

ID_LIMIT = 2**53

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
            place: a Checkpoint, its id, its name, `branch`, `branch#7`, `branch~2`, `HEAD`, `HEAD~1`.

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
            found = self._by_name(connection, session, branch, place)
        found = found or self._by_place(connection, session, branch, reference)
        if found is None and reference.id is not None:
            return self._by_id(connection, session, reference.id)
        if found is None:
            raise NotFound(
                f"Session {session.session_name} has no checkpoint {place!r}. List them: agentgit log.",
                near=refs.near(place, self._names(connection, session)),
            )
        return found

    def _by_id(self, connection: Connection, session: ExternalSession, checkpoint_id: int) -> Found:
        exists = 0 <= checkpoint_id < ID_LIMIT
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
        if not 0 <= checkpoint_id < ID_LIMIT:
            return None
        for row in self.store.checkpoints.find(connection, CHECKPOINT.c.id == checkpoint_id):
            found = self.store.sessions.sessions(connection, self.user_id, SESSION.c.id == row.external_session_id)
            return found[0] if found else None
        return None

    def _by_name(self, connection: Connection, session: ExternalSession, branch: Found, name: str) -> Found | None:
        """Find a checkpoint by its name: the newest on the path, else the only one elsewhere."""
        sessions = self.store.sessions
        branches = [row.id for row in sessions.branches(connection, session.id)]
        named = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_(branches), CHECKPOINT.c.name == name
        )
        if not named:
            return None
        ids = {row.id for row in self.path(connection, branch)} if len(named) > 1 else set()
        on_path = [row for row in named if row.id in ids]
        if on_path or len(named) == 1:
            return (on_path or named)[-1]
        raise Ambiguous(
            f"{name!r} is the name of {len(named)} checkpoints, none of them on branch {branch.name}.",
            candidates=tuple(f"{row.branch_name}#{row.number}" for row in named),
        )

    def _by_place(
        self, connection: Connection, session: ExternalSession, branch: Found, reference: refs.Reference
    ) -> Found | None:
        """Find a checkpoint by its place on a branch; None if the reference names no branch."""
        rows = self.store.sessions.branches(connection, session.id)
        on = branch if reference.base == refs.HEAD else next((r for r in rows if r.name == reference.base), None)
        if on is None:
            return None
        path = self.path(connection, on)
        if reference.number is not None:
            own = [row for row in path if row.internal_session_id == on.id and row.number == reference.number]
            count = sum(row.internal_session_id == on.id for row in path)
            return _expect(own[0] if own else None, reference, f"branch {on.name} has {count} checkpoints")
        at = path[-1 - reference.back] if reference.back < len(path) else None
        return _expect(at, reference, f"there are {len(path)} checkpoints on the path of {on.name}")

    def _names(self, connection: Connection, session: ExternalSession) -> list[str]:
        sessions = self.store.sessions
        rows = sessions.branches(connection, session.id)
        named = self.store.checkpoints.find(
            connection, CHECKPOINT.c.internal_session_id.in_([r.id for r in rows]), CHECKPOINT.c.name.is_not(None)
        )
        return [row.name for row in (*rows, *named)]


def _expect(found: Found | None, reference: refs.Reference, why: str) -> Found:
    if found is None:
        raise NotFound(f"{reference.text!r} names nothing: {why}. List them with checkpoints(), or: agentgit log")
    return found


def _ids(found: list[Any]) -> tuple[str, ...]:
    return tuple(f"{one.session_name} (id {one.id})" for one in found)
