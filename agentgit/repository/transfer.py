"""Import of sessions from files that `Session.export` wrote."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentgit.auth.principal import WRITE
from agentgit.effects.files import IMPORTED, SnapshotRef
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.handles.templates import require_name
from agentgit.rollback.workspace_adapter import attached
from agentgit.sessions.reports import OnProgress
from agentgit.store.transfer.file_trees import NOT_WANTED
from agentgit.store.transfer.import_ import Import, check
from agentgit.store.transfer.lines import with_progress
from agentgit.store.transfer.summary import TransferSummary
from agentgit.workspace.api import Workspace
from agentgit.workspace.snapshot_import import SnapshotImporter

IN_MEMORY = 2**22
"""The number of bytes of a piped export that are kept in memory; a larger export goes into a temporary file."""


class Importer:
    """Creates sessions from exports.

    Args:
        context: The store and the principal.
    """

    def __init__(self, context: Context) -> None:
        self.context = context

    def import_(
        self,
        path: str | Path | IO[bytes],
        session: str | None,
        workspace: str | Path | Workspace | None,
        progress: OnProgress | None,
    ) -> TransferSummary:
        """Create a session from an export.

        Args:
            path: The file, or a binary stream.
            session: The name of the new session; None for a name like that in the export.
            workspace: The workspace that receives the files; None leaves the files out.
            progress: A callback that receives the number of bytes read and the total; the file is read twice.

        Raises:
            NotFound, InvalidInput, Corrupt, Conflict, Unavailable: See `Repository.import_`.
        """
        if session is not None:
            require_name(session)
        require_files(workspace)
        self.context.read(lambda c: self.context.lookup.require_scope(c, WRITE))
        with _source(path) as found, SnapshotImporter() as files:
            file = with_progress(found, progress, times=2)
            with _convert_read_errors(path):
                whole = check(file, files if workspace is not None else None)
            reader = Import(self.context.store, self.context.user.id, file, session)
            if workspace is None or not whole.counts["tree"]:
                session_id = reader.run(whole)
            else:
                session_id = self._with_files(workspace, files, lambda found: reader.run(whole, found))
        made = self.context.read(lambda c: self.context.lookup.session(c, session_id))
        left = Counter(whole.files.missing_snapshots)
        if workspace is None and (more := whole.counts["snapshot"] - left.total()):
            left[NOT_WANTED] = more
        paths = whole.files.left_paths if workspace is not None else {}
        return TransferSummary.from_counts(made, whole.header, whole.counts, left, paths)

    def _with_files(
        self,
        workspace: str | Path | Workspace,
        files: SnapshotImporter,
        store: Callable[[Mapping[int, SnapshotRef]], int],
    ) -> int:
        """Put files into a workspace, then store the rows that refer to them; if that fails, remove the files."""
        database = self.context.store.database
        keeper = attached(workspace, holder=str(self.context.store.tenant_id), without=database.files)
        made = files.put_into(keeper.workspace, keeper.holder)
        settings = {**keeper.settings, IMPORTED: True}
        try:
            return store({tree: SnapshotRef(snapshot=snapshot, settings=settings) for tree, snapshot in made.items()})
        except BaseException:
            files.remove(keeper.workspace)
            raise


def require_files(workspace: str | Path | Workspace | None) -> None:
    """Check that a workspace, if one is given, can receive files. Call this before reading the export.

    Raises:
        InvalidInput: The workspace has a custom environment.
    """
    if isinstance(workspace, Workspace) and not workspace.settings["environment"]:
        raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')


@contextmanager
def _convert_read_errors(path: str | Path | IO[bytes]) -> Iterator[None]:
    """Convert errors of reading into `Unavailable`, with the name of the file."""
    try:
        yield
    except OSError as error:
        name = path if isinstance(path, (str, Path)) else "The stream"
        raise Unavailable(f"{name} cannot be read: {error.strerror or error}. Nothing was imported.") from error


@contextmanager
def _source(path: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a source so that it can be read twice."""
    if isinstance(path, (str, Path)):
        try:
            file = Path(path).open("rb")  # noqa: SIM115  # closed below; only errors of opening are translated
        except OSError as error:
            raise NotFound(
                f"{path} cannot be read: {error.strerror}. Name a file that `export` has written."
            ) from error
        with file, _rereadable(file) as found:
            yield found
        return
    with _rereadable(path, always=True) as found:
        yield found


@contextmanager
def _rereadable(file: IO[bytes], *, always: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file that can be read more than once. A pipe, even a named one, is copied first."""
    if not always and file.seekable():
        yield file
        return
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
        shutil.copyfileobj(file, spool)
        yield spool
