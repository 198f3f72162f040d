"""Import of sessions from files that `Session.export` wrote, and from plain checkpoints."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from agentgit.auth.principal import WRITE
from agentgit.checkpoints import Checkpoint
from agentgit.effects.files import IMPORTED, SnapshotRef
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.handles.snapshot_transfer import SnapshotImporter
from agentgit.handles.templates import require_name
from agentgit.rollback.workspace_adapter import attach_workspace
from agentgit.sessions.reports import OnProgress
from agentgit.store.audit.trail import record_event
from agentgit.store.sql.transaction import Writing
from agentgit.store.transfer.file_trees import NO_WORKSPACE
from agentgit.store.transfer.import_ import choose_name, import_session, require_sound
from agentgit.store.transfer.import_check import SESSION, check_export
from agentgit.store.transfer.lines import with_progress
from agentgit.store.transfer.plain_checkpoints import PlainSession, parse_checkpoints
from agentgit.store.transfer.summary import TransferSummary
from agentgit.workspace.api import Workspace

IN_MEMORY = 2**22
"""The number of bytes of a piped export that are kept in memory; a larger export goes into a temporary file."""


DEFAULT_NAME = "imported"
"""The name of a session of plain checkpoints, if none is chosen; it is numbered if it is taken."""

_BEGINNING_BYTES = 4096
"""The number of bytes that show whether a file is an export or plain JSON."""

ImportSource = str | Path | IO[bytes] | Sequence[Checkpoint]
"""A file that `export` wrote, JSON of checkpoints, or the checkpoints themselves."""


class Importer:
    def __init__(self, context: Context) -> None:
        self.context = context

    def import_(
        self,
        path: ImportSource,
        session: str | None,
        workspace: str | Path | Workspace | None,
        progress: OnProgress | None,
    ) -> TransferSummary:
        if session is not None:
            require_name(session)
        require_file_support(workspace)
        self.context.read(lambda c: self.context.lookup.require_scope(c, WRITE))
        if isinstance(path, Sequence) and not isinstance(path, str):
            return self._import_checkpoints(path, session)
        with ExitStack() as stack:
            stream = stack.enter_context(_open_source(path))
            with _convert_read_errors(path):
                stream.seek(0)
                is_plain = stream.read(_BEGINNING_BYTES).removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
                stream.seek(0)
                if is_plain:
                    return self._import_checkpoints(parse_checkpoints(stream), session)
            return self._import_export(path, stream, session, workspace, progress, stack)

    def _import_checkpoints(self, checkpoints: Sequence[Any], name: str | None) -> TransferSummary:
        store, user_id = self.context.store, self.context.user.id

        def work(transaction: Writing) -> PlainSession:
            chosen = choose_name(transaction, store, user_id, name, DEFAULT_NAME)
            created = PlainSession(transaction, store, user_id, chosen)
            created.add_all(checkpoints)
            require_sound(transaction, store, created.id)
            details = {"checkpoints": created.counts["checkpoint"], "calls": created.counts["tool_invocation"]}
            record_event(transaction, "session.imported", session_id=created.id, user_id=user_id, **details)
            return created

        created = store.database.write(work, durable=True)
        imported_session = self.context.read(lambda c: self.context.lookup.session(c, created.id))
        return TransferSummary.from_counts(
            imported_session, {"kind": SESSION, "reference": None}, created.counts, {}, {}
        )

    def _import_export(
        self,
        path: str | Path | IO[bytes],
        stream: IO[bytes],
        session: str | None,
        workspace: str | Path | Workspace | None,
        progress: OnProgress | None,
        stack: ExitStack,
    ) -> TransferSummary:
        files = stack.enter_context(SnapshotImporter())
        file = with_progress(stream, progress, times=2)
        with _convert_read_errors(path):
            checker = check_export(file, files if workspace is not None else None)
        store, user_id = self.context.store, self.context.user.id

        def write_rows(found: Mapping[int, SnapshotRef]) -> int:
            return store.database.write(
                lambda c: import_session(c, store, user_id, file, session, checker, found), durable=True
            )

        if workspace is None or not checker.counts["folder"]:
            session_id = write_rows({})
        else:
            session_id = self._store_with_files(workspace, files, write_rows)
        imported_session = self.context.read(lambda c: self.context.lookup.session(c, session_id))
        omitted_snapshots = Counter(checker.files.missing_snapshots)
        if workspace is None and (unwanted_count := checker.counts["workspace_snapshot"] - omitted_snapshots.total()):
            omitted_snapshots[NO_WORKSPACE] = unwanted_count
        omitted_paths = checker.files.left_paths if workspace is not None else {}
        return TransferSummary.from_counts(
            imported_session, checker.header, checker.counts, omitted_snapshots, omitted_paths
        )

    def _store_with_files(
        self,
        workspace: str | Path | Workspace,
        files: SnapshotImporter,
        write_rows: Callable[[Mapping[int, SnapshotRef]], int],
    ) -> int:
        """Put files into a workspace, then store the rows that refer to them; if that fails, remove the files."""
        database = self.context.store.database
        holder = self.context.read(self.context.store.users.database_id)
        adapter = attach_workspace(workspace, holder=holder, excluded_paths=database.files)
        snapshots = files.store_into(adapter.workspace, adapter.holder)
        settings = {**adapter.settings, IMPORTED: True}
        try:
            return write_rows(
                {tree: SnapshotRef(snapshot=snapshot, settings=settings) for tree, snapshot in snapshots.items()}
            )
        except BaseException:
            adapter.engine.catalog.set({}, removed=snapshots.values())
            raise


def require_file_support(workspace: str | Path | Workspace | None) -> None:
    """Check that a workspace, if one is given, can receive files. Call this before reading the export."""
    if isinstance(workspace, Workspace) and not workspace.settings["environment"]:
        raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')


@contextmanager
def _convert_read_errors(path: ImportSource) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        name = path if isinstance(path, (str, Path)) else "The stream"
        raise Unavailable(f"{name} cannot be read: {error.strerror or error}. Nothing was imported.") from error


@contextmanager
def _open_source(path: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a source so that it can be read twice."""
    if isinstance(path, (str, Path)):
        try:
            file = Path(path).open("rb")  # noqa: SIM115  # closed below; only errors of opening are translated
        except OSError as error:
            raise NotFound(
                f"{path} cannot be read: {error.strerror}. Name a file that an export has written."
            ) from error
        with file, _make_rereadable(file) as stream:
            yield stream
        return
    if not isinstance(path.read(0), bytes):
        raise InvalidInput("This file is open as text. Open it in binary mode.")
    with _make_rereadable(path, always=True) as stream:
        yield stream


@contextmanager
def _make_rereadable(file: IO[bytes], *, always: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file that can be read more than once. A pipe, even a named one, is copied first."""
    if not always and file.seekable():
        yield file
        return
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
        shutil.copyfileobj(file, spool)
        yield spool
