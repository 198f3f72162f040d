"""Export of a session to a file, and of its steps (trajectories) for evaluation and training."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from agentgit.errors import InvalidInput, Unavailable
from agentgit.handles.context import BranchRef, SessionAccess
from agentgit.handles.snapshot_transfer import SnapshotExporter
from agentgit.sessions import ExternalSession
from agentgit.sessions.reports import OnProgress
from agentgit.store.queries.explorations import mark_of
from agentgit.store.queries.lookup import CheckpointRef
from agentgit.store.sql.transaction import Reading
from agentgit.store.threads.graph_rows import GraphKey
from agentgit.store.transfer.export import RecordSink, Sink, export
from agentgit.store.transfer.import_check import check_export
from agentgit.store.transfer.lines import FORMAT, NAME, LineWriter, with_progress
from agentgit.store.transfer.redaction import RedactingSink, RedactText, Secrets
from agentgit.store.transfer.selection import ExportScope, Selection
from agentgit.store.transfer.summary import TransferSummary
from agentgit.store.transfer.trajectory import steps
from agentgit.version import VERSION

_SQLITE = b"SQLite format 3\0"
"""The beginning of every database of SQLite."""


class Exporter(SessionAccess):
    def export(
        self,
        path: str | Path | IO[bytes],
        branch: BranchRef,
        checkpoint: CheckpointRef | None,
        *,
        files: bool,
        progress: OnProgress | None,
        redact: bool | RedactText = False,
    ) -> TransferSummary:
        if not (isinstance(redact, bool) or callable(redact)):
            raise InvalidInput(f"redact must be True, False or a function, not {redact!r}.")
        if redact and files:
            raise InvalidInput("Files cannot be redacted. Export either with the files or with redaction.")
        with tempfile.TemporaryFile() as file:
            self._write(file, branch, checkpoint, files=files, redact=redact)
            checked = check_export(with_progress(file, progress, times=1))  # make sure that the export can be read
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0)
            with open_target(path) as target:
                shutil.copyfileobj(file, target)
        return TransferSummary.from_counts(
            self.context.read(self.load_session),
            checked.header,
            checked.counts,
            checked.files.missing_snapshots,
            checked.files.left_paths,
            digest,
        )

    def _write(
        self,
        file: IO[bytes],
        branch: BranchRef,
        checkpoint: CheckpointRef | None,
        *,
        files: bool,
        redact: bool | RedactText,
    ) -> None:
        lines = LineWriter(file)

        def write(transaction: Reading) -> None:
            scope, store = self._export_scope(transaction, branch, checkpoint), self.context.store
            selection = Selection(store, transaction, scope)
            sink: Sink = RecordSink(lines.write)
            if redact:
                secrets = Secrets(redact if callable(redact) else None)
                export(store, transaction, selection, secrets)
                sink = RedactingSink(secrets, lines.write)
            made_at = datetime.now(UTC).isoformat()
            source = {"source": f"agentgit {VERSION}", "made_at": made_at}
            lines.write({"format": NAME, "version": FORMAT, "kind": scope.kind, "reference": scope.reference, **source})
            export(store, transaction, selection, sink, SnapshotExporter(sink.record).export if files else None)

        self.context.read(write, repeatable_read=True)
        lines.end()

    def _export_scope(self, transaction: Reading, branch: BranchRef, checkpoint: CheckpointRef | None) -> ExportScope:
        """Return the part to export: the session, one branch or one checkpoint."""
        session = self.context.store.sessions.load_row(transaction, self.load_session(transaction).id)
        if checkpoint is not None:
            checkpoint_row = self.find_checkpoint(transaction, checkpoint, branch)
            checkpoint_branch = self.context.store.sessions.branch(transaction, checkpoint_row.internal_session_id)
            return ExportScope(session=session, branch=checkpoint_branch, point=checkpoint_row)
        return ExportScope(
            session=session, branch=self.find_branch(transaction, branch) if branch is not None else None
        )

    def trajectories(self, branch: BranchRef) -> Iterator[dict[str, Any]]:
        session = self.context.read(self.load_session)
        for row in self.context.read(lambda c: self._load_branches(c, branch)):
            yield from self._steps(session, row)

    def _load_branches(self, transaction: Reading, branch: BranchRef) -> list[Any]:
        if branch is not None:
            return [self.find_branch(transaction, branch)]
        return list(self.context.store.sessions.branches(transaction, self.load_session(transaction).id))

    def _steps(self, session: ExternalSession, branch_row: Any) -> Iterator[dict[str, Any]]:
        def load(transaction: Reading) -> tuple[Any, ...]:
            checkpoints = [
                self.context.read_models.checkpoint(checkpoint)
                for checkpoint in self._unchanged_checkpoints(transaction, branch_row)
            ]
            return (
                self.context.read_models.branch(transaction, session, branch_row),
                self.context.store.live_track(transaction, branch_row),
                checkpoints,
            )

        branch, track, checkpoints = self.context.read(load)
        score = mark_of(branch_row).get("score")
        for step in steps(branch.conversation_history, track, checkpoints, score):
            yield {"session": session.session_name, "branch": branch_row.name, **step}

    def _unchanged_checkpoints(self, transaction: Reading, branch_row: Any) -> Iterator[Any]:
        """Yield the checkpoints on the path whose conversation is still the beginning of the branch's conversation.

        If messages were summarized, changed or deleted since, a message count does not identify a position any more.
        """
        graphs = self.context.store.graphs
        newest = graphs.newest(transaction, branch_row.thread_id)
        current_hashes = graphs.message_hashes(transaction, newest) if newest is not None else ()
        for checkpoint in self.context.lookup.path_checkpoints(transaction, branch_row):
            if checkpoint.graph_checkpoint_id is None:
                yield checkpoint
                continue
            graph_checkpoint = graphs.find(
                transaction, GraphKey(checkpoint.thread_id, "", checkpoint.graph_checkpoint_id)
            )
            earlier_hashes = (
                graphs.message_hashes(transaction, graph_checkpoint) if graph_checkpoint is not None else ()
            )
            if (
                len(earlier_hashes) == checkpoint.message_count
                and current_hashes[: len(earlier_hashes)] == earlier_hashes
            ):
                yield checkpoint


@contextmanager
def open_target(path: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a file or a stream for writing. A file appears under its name only when it is complete."""
    if not isinstance(path, (str, Path)):
        yield path
        return
    target_path = Path(os.path.realpath(path))  # a link stays a link
    try:
        if target_path.exists() and not target_path.is_file():
            raise InvalidInput(f"{target_path} is no file that can be replaced. Open it yourself, and pass the stream.")
        _require_no_database(target_path)
        with tempfile.NamedTemporaryFile(dir=target_path.parent, prefix=f".{target_path.name}.", delete=False) as file:
            temporary_path = Path(file.name)
            try:
                yield file
                file.flush()
                temporary_path.replace(target_path)
            finally:
                temporary_path.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(
            f"{target_path} cannot be written: {error.strerror or error}. Name a writable file."
        ) from error


def _require_no_database(path: Path) -> None:
    """Check that a file that is to be replaced is no database of SQLite."""
    is_database = Path(f"{path}-wal").exists()  # it is open: to close another file on it would release its locks
    if not is_database and path.is_file():
        with path.open("rb") as file:
            is_database = file.read(len(_SQLITE)) == _SQLITE
    if is_database:
        raise InvalidInput(f"{path} is a database, which would be replaced. Name another file.")
