"""Tags in the database: names that people gave to checkpoints, each unique in its session."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, and_, bindparam, delete, select

from agentgit.checkpoints.queries import Tag
from agentgit.errors import Conflict
from agentgit.store.audit.trail import note
from agentgit.store.records.sessions import Found
from agentgit.store.sql import row_codes
from agentgit.store.sql.slices import slices
from agentgit.store.sql.tables import BRANCH, CHECKPOINT, TAG


class TagStore:
    """The tags of one tenant.

    Args:
        tenant_id: The tenant.
    """

    def __init__(self, tenant_id: int) -> None:
        self.tenant_id = tenant_id

    def add(self, connection: Connection, point: Found, name: str, description: str | None, user_id: int) -> Tag:
        """Add a tag to a checkpoint. No-op if the checkpoint has it already.

        Raises:
            Conflict: Another checkpoint of the session has the tag.
        """
        known = self.find(connection, point.external_session_id, name)
        if known is None:
            row = {
                "tenant_id": self.tenant_id,
                "external_session_id": point.external_session_id,
                "name": name,
                "checkpoint_id": point.id,
                "description": description,
                "user_id": user_id,
                "created_at": datetime.now(UTC),
            }
            row_codes.add(connection, TAG, row)
            note(
                connection,
                self.tenant_id,
                "tag.created",
                branch_id=point.internal_session_id,
                user_id=user_id,
                name=name,
                checkpoint=point.id,
            )
            known = self.find(connection, point.external_session_id, name)
            assert known is not None  # noqa: S101  # it was just added
        if known.checkpoint_id != point.id:
            raise Conflict(
                f"{known.reference} has the tag {name!r} already. Take it away first: session.untag({name!r}), or "
                f"agentgit tag --delete {name}"
            )
        return known

    def remove(self, connection: Connection, session_id: int, name: str, user_id: int) -> bool:
        """Take a tag away; tell whether it was there."""
        gone = connection.execute(delete(TAG).where(*self._named(session_id, name)))
        if gone.rowcount:
            note(connection, self.tenant_id, "tag.deleted", session_id=session_id, user_id=user_id, name=name)
        return bool(gone.rowcount)

    def find(self, connection: Connection, session_id: int, name: str) -> Tag | None:
        """Read one tag of a session."""
        row = row_codes.first(connection, TAG, _TAGS.where(*self._named(session_id, name)))
        return _value(row) if row is not None else None

    def all(self, connection: Connection, session_id: int) -> list[Tag]:
        """Read the tags of a session, the newest first."""
        query = _TAGS.where(TAG.c.tenant_id == self.tenant_id, TAG.c.external_session_id == session_id)
        rows = connection.execute(query.order_by(TAG.c.created_at.desc(), TAG.c.name))
        return [_value(row) for row in row_codes.authentic(connection, TAG, rows)]

    def of(self, connection: Connection, checkpoint_ids: Sequence[int]) -> dict[int, list[str]]:
        """Return the names that some checkpoints have, those that have any."""
        found: dict[int, list[str]] = {}
        for part in slices(checkpoint_ids):
            for row in connection.execute(_OF, {"tenant": self.tenant_id, "ids": part}):
                found.setdefault(row.checkpoint_id, []).append(row.name)
        return {checkpoint_id: sorted(names) for checkpoint_id, names in found.items()}

    def names(self, connection: Connection, session_id: int) -> dict[int, list[str]]:
        """Return the names that the checkpoints of a session have, those that have any."""
        found: dict[int, list[str]] = {}
        query = select(TAG.c.checkpoint_id, TAG.c.name).where(
            TAG.c.tenant_id == self.tenant_id, TAG.c.external_session_id == session_id
        )
        for row in connection.execute(query.order_by(TAG.c.name)):
            found.setdefault(row.checkpoint_id, []).append(row.name)
        return found

    def _named(self, session_id: int, name: str) -> tuple[Any, ...]:
        return TAG.c.tenant_id == self.tenant_id, TAG.c.external_session_id == session_id, TAG.c.name == name


_TAGS = select(TAG, CHECKPOINT.c.number, BRANCH.c.name.label("branch_name")).select_from(
    TAG.join(CHECKPOINT, and_(CHECKPOINT.c.tenant_id == TAG.c.tenant_id, CHECKPOINT.c.id == TAG.c.checkpoint_id)).join(
        BRANCH, and_(BRANCH.c.tenant_id == CHECKPOINT.c.tenant_id, BRANCH.c.id == CHECKPOINT.c.internal_session_id)
    )
)
_OF = select(TAG.c.checkpoint_id, TAG.c.name).where(
    TAG.c.tenant_id == bindparam("tenant"), TAG.c.checkpoint_id.in_(bindparam("ids", expanding=True))
)


def _value(row: Found) -> Tag:
    return Tag(
        name=row.name,
        checkpoint_id=row.checkpoint_id,
        reference=f"{row.branch_name}#{row.number}",
        description=row.description,
        user_id=row.user_id,
        created_at=row.created_at,
    )
