"""Import of a session from a file that `Session.export` has written."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from agentgit.auth.principal import WRITE
from agentgit.effects.files import IMPORTED, FilesAt
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.context import Context
from agentgit.handles.templates import require_name
from agentgit.rollback.workspace_adapter import attached
from agentgit.sessions.reports import OnProgress
from agentgit.store.transfer.file_trees import NOT_WANTED
from agentgit.store.transfer.import_ import Import, check
from agentgit.store.transfer.lines import watched
from agentgit.store.transfer.summary import Carried
from agentgit.workspace.api import Workspace
from agentgit.workspace.snapshot_import import Incoming

IN_MEMORY = 2**22
"""Bytes of an export that is read from a pipe; more of it goes into a temporary file."""


class Importer:
    """Makes sessions of exports.

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
    ) -> Carried:
        """Make a session of a file.

        Raises:
            NotFound, InvalidInput, Corrupt, Conflict, Unavailable: As `Repository.import_`.
        """
        if session is not None:
            require_name(session)
        require_files(workspace)
        self.context.read(lambda c: self.context.lookup.require_scope(c, WRITE))
        with _source(path) as found, Incoming() as files:
            file = watched(found, progress, times=2)
            with _told(path):
                whole = check(file, files if workspace is not None else None)
            reader = Import(self.context.store, self.context.user.id, file, session)
            if workspace is None or not whole.counts["tree"]:
                session_id = reader.run(whole)
            else:
                session_id = self._with_files(workspace, files, lambda found: reader.run(whole, found))
        made = self.context.read(lambda c: self.context.lookup.session(c, session_id))
        left = Counter(whole.files.left)
        if workspace is None and (more := whole.counts["snapshot"] - left.total()):
            left[NOT_WANTED] = more
        paths = whole.files.left_paths if workspace is not None else {}
        return Carried.of_counts(made, whole.header, whole.counts, left, paths)

    def _with_files(
        self, workspace: str | Path | Workspace, files: Incoming, store: Callable[[Mapping[int, FilesAt]], int]
    ) -> int:
        """Put files into a workspace, then store what names them; if that fails, they go again."""
        database = self.context.store.database
        keeper = attached(workspace, holder=str(self.context.store.tenant_id), without=database.files)
        made = files.put_into(keeper.workspace, keeper.holder)
        settings = {**keeper.settings, IMPORTED: True}
        try:
            return store({tree: FilesAt(snapshot=snapshot, settings=settings) for tree, snapshot in made.items()})
        except BaseException:
            files.remove(keeper.workspace)
            raise


def require_files(workspace: str | Path | Workspace | None) -> None:
    """Check that files can be put into a workspace, if one was named, before anything is read.

    Raises:
        InvalidInput: The workspace has an environment of its user's own.
    """
    if isinstance(workspace, Workspace) and not workspace.settings["environment"]:
        raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')


@contextmanager
def _told(path: str | Path | IO[bytes]) -> Iterator[None]:
    """Name the file in the error if reading fails on the way."""
    try:
        yield
    except OSError as error:
        name = path if isinstance(path, (str, Path)) else "The stream"
        raise Unavailable(f"{name} cannot be read: {error.strerror or error}. Nothing was imported.") from error


@contextmanager
def _source(path: str | Path | IO[bytes]) -> Iterator[IO[bytes]]:
    """Open a source that can be read twice if needed."""
    if isinstance(path, (str, Path)):
        try:
            file = Path(path).open("rb")  # noqa: SIM115  # it is closed below; only opening it is translated
        except OSError as error:
            raise NotFound(
                f"{path} cannot be read: {error.strerror}. Name a file that `export` has written."
            ) from error
        with file, _again(file) as found:
            yield found
        return
    with _again(path, always=True) as found:
        yield found


@contextmanager
def _again(file: IO[bytes], *, always: bool = False) -> Iterator[IO[bytes]]:
    """Open a source that can be read more than once: a pipe, even one with a name, is copied first."""
    if not always and file.seekable():
        yield file
        return
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
        shutil.copyfileobj(file, spool)
        yield spool
