"""What was carried out of a database or into one: counts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agentgit.sessions import ExternalSession
from agentgit.store.transfer.paths import text_of

_COUNTED = {
    "branches": "branch",
    "checkpoints": "checkpoint",
    "graph_checkpoints": "state",
    "tool_calls": "call",
    "operations": "operation",
    "values": "value",
    "files": "file",
}
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
        files: how many contents of files; equal ones are one.
        snapshots: how many snapshots of a workspace.
        left_out: how many snapshots are not there though checkpoints have them, by the reason.
        left_paths: the paths that snapshots do not hold because not every system could have them, each with the
            reason; all other files of these snapshots are there.
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
    files: int = 0
    snapshots: int = 0
    left_out: Mapping[str, int] = field(default_factory=dict)
    left_paths: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_counts(
        cls,
        session: ExternalSession,
        header: Mapping[str, Any],
        counts: Mapping[str, int],
        left: Mapping[str, int],
        paths: Mapping[bytes, str],
    ) -> Carried:
        """Make it of a header, of how many records of each kind there are, and of what is left out.

        Args:
            session: the session.
            header: of the export.
            counts: how many records of each kind there are.
            left: how many snapshots are left out, by the reason.
            paths: which single paths, with the reason.
        """
        numbers = {name: counts.get(kind, 0) for name, kind in _COUNTED.items()}
        snapshots = counts.get("snapshot", 0) - sum(left.values())
        return cls(
            session=session,
            of=header["of"],
            place=header["place"],
            **numbers,
            snapshots=snapshots,
            left_out=dict(left),
            left_paths={text_of(path): why for path, why in sorted(paths.items())},
        )

    def to_dict(self) -> dict[str, Any]:
        """Give all fields as a JSON-like dict, the session by its name and id."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"session": self.session.session_name, "session_id": self.session.id}
