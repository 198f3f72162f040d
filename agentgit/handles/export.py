"""Export of a session to a file, and of its steps (trajectories) for evaluation and training."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sqlalchemy import Connection

from agentgit.errors import Unavailable
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.sessions import ExternalSession
from agentgit.sessions.reports import OnProgress
from agentgit.store.queries.explorations import mark_of
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.threads.graph_store import GraphKey
from agentgit.store.transfer.export import ExportScope, export
from agentgit.store.transfer.import_ import check
from agentgit.store.transfer.lines import LineWriter, with_progress
from agentgit.store.transfer.records import COUNTED, FORMAT, HEADER
from agentgit.store.transfer.summary import TransferSummary
from agentgit.store.transfer.trajectory import steps
from agentgit.version import VERSION
from agentgit.workspace.snapshot_export import SnapshotExporter


class Exporter(SessionAccess):
    """Writes a session to a file, and lists its steps."""

    def export(
        self,
        path: str | Path | IO[bytes],
        branch: BranchRef,
        checkpoint: CheckpointRef | None,
        *,
        files: bool,
        progress: OnProgress | None,
    ) -> TransferSummary:
        """Write a session, a branch or a checkpoint to one file.

        Raises:
            NotFound, Conflict, Corrupt, Unavailable: As for `Session.export`.
        """
        with tempfile.TemporaryFile() as file:
            header = self._write(file, branch, checkpoint, files=files)
            whole = check(with_progress(file, progress, times=1))  # make sure that the export can be read
            file.seek(0)
            with _target(path) as target:
                shutil.copyfileobj(file, target)
        return TransferSummary.from_counts(
            self.context.read(self.find), header, whole.counts, whole.files.missing_snapshots, whole.files.left_paths
        )

    def _write(
        self, file: IO[bytes], branch: BranchRef, checkpoint: CheckpointRef | None, *, files: bool
    ) -> dict[str, Any]:
        sealer, counts = LineWriter(), Counter[str]()

        def write(record: dict[str, Any]) -> None:
            file.write(sealer.line(record))
            counts[record["record"]] += 1

        def pour(connection: Connection) -> dict[str, Any]:
            cut = self._cut(connection, branch, checkpoint)
            header = {
                "record": HEADER,
                "format": FORMAT,
                "of": cut.of,
                "place": cut.place,
                "agentgit": VERSION,
                "made_at": datetime.now(UTC).isoformat(),
            }
            write(header)
            export(self.context.store, connection, cut, write, SnapshotExporter(write).send if files else None)
            return header

        header = self.context.read(pour, one_moment=True)
        write({"record": "end", "counts": {kind: counts[kind] for kind in COUNTED}})
        return header

    def _cut(self, connection: Connection, branch: BranchRef, checkpoint: CheckpointRef | None) -> ExportScope:
        """Return the part to export: the session, one branch or one checkpoint."""
        session = self.context.store.sessions.one(connection, self.find(connection).id)
        if checkpoint is not None:
            point = self.checkpoint(connection, checkpoint, branch)
            left = self.context.store.sessions.branch(connection, point.internal_session_id)
            return ExportScope(session=session, branch=left, point=point)
        return ExportScope(session=session, branch=self.branch(connection, branch) if branch is not None else None)

    def trajectories(self, branch: BranchRef) -> Iterator[dict[str, Any]]:
        """Yield the steps of one branch, or of all branches.

        Raises:
            NotFound: There is no such branch.
        """
        session = self.context.read(self.find)
        for row in self.context.read(lambda c: self._branches(c, branch)):
            yield from self._steps(session, row)

    def _branches(self, connection: Connection, branch: BranchRef) -> list[Any]:
        if branch is not None:
            return [self.branch(connection, branch)]
        return list(self.context.store.sessions.branches(connection, self.find(connection).id))

    def _steps(self, session: ExternalSession, row: Any) -> Iterator[dict[str, Any]]:
        def look(connection: Connection) -> tuple[Any, ...]:
            points = [self.context.views.checkpoint(point) for point in self._unchanged_checkpoints(connection, row)]
            return (
                self.context.views.branch(connection, session, row),
                self.context.store.track(connection, row),
                points,
            )

        line, track, points = self.context.read(look)
        score = mark_of(row).get("score")
        for step in steps(line.conversation_history, track, points, score):
            yield {"session": session.session_name, "branch": row.name, **step}

    def _unchanged_checkpoints(self, connection: Connection, row: Any) -> Iterator[Any]:
        """Yield the checkpoints on the path whose conversation is still the beginning of the branch's conversation.

        If messages were summarized, changed or deleted since, a message count does not identify a position any more.
        """
        graphs = self.context.store.graphs
        newest = graphs.newest(connection, row.thread_id)
        now = graphs.message_hashes(connection, newest) if newest is not None else ()
        for point in self.context.lookup.path(connection, row):
            if point.graph_checkpoint_id is None:
                yield point
                continue
            at = graphs.find(connection, GraphKey(point.thread_id, "", point.graph_checkpoint_id))
            then = graphs.message_hashes(connection, at) if at is not None else ()
            if len(then) == point.message_count and now[: len(then)] == then:
                yield point


@contextmanager
def _target(path: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open the target for writing. A file appears under its name only when it is complete."""
    if not isinstance(path, (str, Path)):
        yield path
        return
    place = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as file:
            part = Path(file.name)
            try:
                yield file
                file.flush()
                part.replace(place)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{place} cannot be written: {error.strerror or error}. Name a writable file.") from error
