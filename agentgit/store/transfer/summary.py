"""Counts and progress of an export or an import."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import IO, Any

from agentgit.sessions import ExternalSession
from agentgit.sessions.reports import OnProgress
from agentgit.store.transfer.paths import text_of
from agentgit.store.transfer.records import LineReader

STEP = 2**20
"""The number of bytes that are read between two reports of progress."""


class _Watched:
    """A file whose reader tells how far it is; each time it begins anew.

    Args:
        file: The file, which is read line by line.
        progress: The function that gets the progress.
        times: The number of times that it will be read.
    """

    def __init__(self, file: IO[bytes], progress: OnProgress, times: int) -> None:
        self._file = file
        self._progress = progress
        self._size, self._times, self._begun = file.seek(0, io.SEEK_END), times, 0
        self._done = self._told = 0

    def seek(self, offset: int) -> int:
        # The last time may begin again, in a transaction that runs again.
        self._begun = min(self._begun + 1, self._times)
        self._done = self._told = (self._begun - 1) * self._size + offset
        return self._file.seek(offset)

    def readline(self, size: int) -> bytes:
        line = self._file.readline(size)
        self._done += len(line)
        if self._done - self._told >= STEP or not line:
            self._told = self._done
            self._progress(self._done, self._times * self._size)
        return line


def watched(file: IO[bytes], progress: OnProgress | None, *, times: int) -> LineReader:
    """Report the progress of reading a file `times` times; without a function to report to, return the file."""
    return _Watched(file, progress, times) if progress is not None else file


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
    """The contents of an export, or the result of an import.

    Args:
        session: The session that was exported, or that the import made.
        of: `session`, `branch` or `checkpoint`.
        place: The branch or the checkpoint, like `main` or `main#3`; None for a whole session.
        branches: The number of branches.
        checkpoints: The number of checkpoints.
        graph_checkpoints: The number of LangGraph's own checkpoints.
        tool_calls: The number of tool invocations.
        operations: The number of rollbacks, switches and forks, as history.
        values: The number of messages and other values.
        files: The number of contents of files; equal ones count once.
        snapshots: The number of snapshots of a workspace.
        left_out: The number of snapshots that are missing though checkpoints have them, by the reason.
        left_paths: The paths that snapshots do not hold because not every system could have them, each with the reason;
            all other files of these snapshots are there.
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
            session: The session.
            header: The header of the export.
            counts: The number of records of each kind.
            left: The number of snapshots that are left out, by the reason.
            paths: The single paths that are left out, with the reason.
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
        """Return all fields as a JSON-like dict, with the name and the id of the session."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return found | {"session": self.session.session_name, "session_id": self.session.id}
