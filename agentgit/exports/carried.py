"""What was carried out of a database or into one: counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentgit.sessions import ExternalSession

_COUNTED = {
    "branches": "branch", "checkpoints": "checkpoint", "graph_checkpoints": "state", "tool_calls": "call",
    "operations": "operation", "values": "value",
}  # fmt: skip
"""The records that each field counts."""


@dataclass(frozen=True, kw_only=True)
class Carried:
    """What an export holds, or what an import has made.

    Args:
        session: the session that it was made of, or that was made of it.
        of: `session`, `branch` or `checkpoint`.
        place: the branch or the checkpoint, like `main` or `main#3`; None for a whole session.
        branches: how many branches.
        checkpoints: how many checkpoints.
        graph_checkpoints: how many of LangGraph's own.
        tool_calls: how many tool invocations.
        operations: how many rollbacks, switches and forks, as history.
        values: how many messages and other values.
    """

    session: ExternalSession
    of: str
    place: str | None
    branches: int
    checkpoints: int
    graph_checkpoints: int
    tool_calls: int
    operations: int
    values: int

    @classmethod
    def of_counts(cls, session: ExternalSession, header: Mapping[str, Any], counts: Mapping[str, int]) -> Carried:
        """Make it of a header and of how many records of each kind there are."""
        numbers = {name: counts.get(kind, 0) for name, kind in _COUNTED.items()}
        return cls(session=session, of=header["of"], place=header["place"], **numbers)

    def to_dict(self) -> dict[str, Any]:
        """Give all fields as a JSON-like dict, the session by its name and id."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        return found | {"session": self.session.session_name, "session_id": self.session.id}
