"""Tags of a session."""

from __future__ import annotations

from sqlalchemy import Connection

from agentgit.auth.roles import EDITOR
from agentgit.checkpoints import references
from agentgit.checkpoints.queries import Tag, Tags
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.sql.tables import CHECKPOINT


class Tagging(SessionAccess):
    """Adds, removes and lists the tags of a session."""

    def add(self, ref: CheckpointRef, name: str, branch: BranchRef, description: str | None) -> Tag:
        """Tag a checkpoint.

        Raises:
            InvalidInput, Conflict, NotFound, Ambiguous: As `Session.tag`.
        """
        references.place_name(name, "tag")
        if description is not None and not isinstance(description, str):
            raise InvalidInput(f"A description is a text, not {description!r}.")
        store = self.context.store

        def give(connection: Connection) -> Tag:
            point = self.checkpoint(connection, ref, branch)
            self.context.authorize(connection, self.session_id)
            store.sessions.lock(connection, self.session_id)
            if not store.checkpoints.find(connection, CHECKPOINT.c.id == point.id):
                raise NotFound(f"Checkpoint {point.branch_name}#{point.number} was deleted meanwhile.")
            if name in {row.name for row in store.sessions.branches(connection, self.session_id)}:
                raise Conflict(f"There is a branch {name}, which names the place already. Choose another name.")
            return store.tags.add(connection, point, name, description, self.context.user.id)

        return self.context.change(give)

    def remove(self, name: str) -> Tag:
        """Remove a tag, and return what it was.

        Raises:
            NotFound: The session has no such tag.
        """

        def take(connection: Connection) -> Tag:
            self.find(connection, EDITOR)
            tag = self.find_tag(connection, name)
            self.context.store.tags.remove(connection, self.session_id, name, self.context.user.id)
            return tag

        return self.context.change(take)

    def all(self) -> list[Tag]:
        """List the tags of the session, the newest first."""
        return Tags(self.context.read(lambda c: self.context.store.tags.all(c, self.find(c).id)))

    def find_tag(self, connection: Connection, name: str) -> Tag:
        """Find a tag by its name.

        Raises:
            NotFound: The session has no such tag.
        """
        tags = self.context.store.tags
        found = tags.find(connection, self.session_id, references.place_name(name, "tag"))
        if found is None:
            names = [tag.name for tag in tags.all(connection, self.session_id)]
            raise NotFound(
                f"Session {self.find(connection).session_name} has no tag {name!r}. List them: session.tags(), or "
                "agentgit tag.",
                near=references.near(name, names),
            )
        return found
