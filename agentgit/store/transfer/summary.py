"""Counts of the objects that were exported or imported."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from agentgit.sessions import ExternalSession
from agentgit.store.transfer.paths import text_of

_KINDS_BY_FIELD = {
    "branches": "internal_session",
    "checkpoints": "checkpoint",
    "graph_checkpoints": "graph_checkpoint",
    "tool_calls": "tool_invocation",
    "operations": "operation",
    "values": "value",
    "files": "file",
}
"""The kind of record that each field counts."""


@dataclass(frozen=True, kw_only=True)
class TransferSummary:
    """The contents of an export, or the result of an import.

    Args:
        session: The exported session, or the session that the import created.
        of: The kind of object that was exported: `session`, `branch` or `checkpoint`.
        place: The branch or the checkpoint, such as `main` or `main#3`; None for a whole session.
        branches: The number of branches.
        checkpoints: The number of checkpoints.
        graph_checkpoints: The number of LangGraph's own checkpoints.
        tool_calls: The number of tool invocations.
        operations: The number of rollbacks, switches and forks in the history.
        values: The number of messages and other values.
        files: The number of different file contents.
        snapshots: The number of workspace snapshots.
        left_out: The number of snapshots that could not be included, by reason.
        left_paths: The paths that were left out of snapshots, for example because they are not valid on every
            operating system, each with the reason. All other files of these snapshots are included.
        sha256: The SHA-256 of the exported file, in hex; None for an import.
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
    sha256: str | None = None

    @classmethod
    def from_counts(
        cls,
        session: ExternalSession,
        header: Mapping[str, Any],
        counts: Mapping[str, int],
        left: Mapping[str, int],
        paths: Mapping[bytes, str],
        digest: str | None = None,
    ) -> TransferSummary:
        """Create a summary from the header of an export and the number of its records of each kind."""
        field_counts = {name: counts.get(kind, 0) for name, kind in _KINDS_BY_FIELD.items()}
        snapshots = counts.get("workspace_snapshot", 0) - sum(left.values())
        return cls(
            session=session,
            of=header["kind"],
            place=header["reference"],
            **field_counts,
            snapshots=snapshots,
            left_out=dict(left),
            left_paths={text_of(path): reason for path, reason in sorted(paths.items())},
            sha256=digest,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, with the name and the id of the session."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return values | {"session": self.session.session_name, "session_id": self.session.id}
