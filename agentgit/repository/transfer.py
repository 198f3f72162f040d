"""The verbs that carry sessions from one database to another, and out of them for evaluation and learning."""

from __future__ import annotations

import io
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, cast

from sqlalchemy import Connection

import agentgit
from agentgit.auth.scopes import WRITE
from agentgit.checkpoints import Checkpoint
from agentgit.effects.files import IMPORTED, FilesAt
from agentgit.errors import InvalidInput, NotFound, Unavailable
from agentgit.handles.session import BranchRef, SessionRef, Verbs
from agentgit.rollback.workspace_adapter import attached
from agentgit.sessions import ExternalSession, InternalSession
from agentgit.sessions.maintenance import Progress
from agentgit.store.queries.explorations import mark_of
from agentgit.store.threads.graph_store import GraphKey
from agentgit.store.transfer.export import Cut, export, keeping
from agentgit.store.transfer.file_trees import NOT_WANTED
from agentgit.store.transfer.import_ import Import, check
from agentgit.store.transfer.lines import Sealer
from agentgit.store.transfer.records import COUNTED, HEADER, PLAIN, WITH_FILES, WITH_PENDING
from agentgit.store.transfer.summary import Carried
from agentgit.store.transfer.trajectory import steps
from agentgit.workspace.api import Workspace
from agentgit.workspace.snapshot_export import Outgoing
from agentgit.workspace.snapshot_import import Incoming

Exported = SessionRef | InternalSession | Checkpoint
"""Things that can be exported: a session, one branch of it, or one checkpoint."""

STEP = 2**20
"""The number of bytes that are read between two reports of progress."""

IN_MEMORY = 2**22
"""Bytes of an export that is read from a pipe; more of it goes into a temporary file."""


class Carrying(Verbs):
    """Methods of a repository that export and import."""

    def export(
        self,
        ref: Exported,
        path: str | Path | BinaryIO,
        *,
        branch: BranchRef = None,
        files: bool = False,
        progress: Progress | None = None,
    ) -> Carried:
        """Write a session, a branch or a checkpoint to one file, which any agentgit reads with `import_`.

        The file is JSON lines: conversation and state at every checkpoint, the tool track, the world log, rollbacks as
        history, pending questions. A branch or a checkpoint is written as a session of one branch; what other branches
        did in its world stands on a branch `elsewhere`. Undo functions and secrets are not in it, and the files of the
        workspace only if you ask for them.

        Args:
            ref: A session, its name or id, None for the one that moved last; or an InternalSession; or a Checkpoint.
            path: The file, which is replaced in one step; or a binary stream.
            branch: One branch of that session; None for all.
            files: True to take the files along that its checkpoints have. A snapshot that cannot go along, such as the
                image of a container, is counted in `left_out`; a single path that cannot is named in `left_paths`.
            progress: Told how many bytes are checked, and of how many, when all of it is written.

        Raises:
            NotFound: There is no such session, branch or checkpoint.
            Conflict: A rollback of it is half done.
            Corrupt: Something of it is gone or damaged; nothing was written.
            Unavailable: The file cannot be written.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> repo.export("s", "s.jsonl").tool_calls
            1
            >>> repo.import_("s.jsonl").session.session_name
            's-2'
        """
        with tempfile.TemporaryFile() as file:
            header = self._write(file, ref, branch, files=files)
            whole = check(_watched(file, progress, times=1))  # what is given away can be read
            file.seek(0)
            with _target(path) as target:
                shutil.copyfileobj(file, target)
        session = self._read(lambda c: self.lookup.session(c, whole.session["id"]))
        return Carried.of_counts(session, header, whole.counts, whole.files.left, whole.files.left_paths)

    def _write(self, file: BinaryIO, ref: Exported, branch: BranchRef, *, files: bool) -> dict[str, Any]:
        sealer, counts = Sealer(), Counter[str]()

        def write(record: dict[str, Any]) -> None:
            file.write(sealer.line(record))
            counts[record["record"]] += 1

        def pour(connection: Connection) -> dict[str, Any]:
            cut = self._cut(connection, ref, branch)
            cut = replace(cut, pending=keeping(self.store, connection, cut.session.id))
            form = WITH_PENDING if cut.pending else WITH_FILES if files else PLAIN
            header = {
                "record": HEADER,
                "format": form,
                "of": cut.of,
                "place": cut.place,
                "agentgit": agentgit.__version__,
                "made_at": datetime.now(UTC).isoformat(),
            }
            write(header)
            export(self.store, connection, cut, write, Outgoing(write) if files else None)
            return header

        header = self._read(pour, one_moment=True)
        write({"record": "end", "counts": {kind: counts[kind] for kind in COUNTED[header["format"]]}})
        return header

    def _cut(self, connection: Connection, ref: Exported, branch: BranchRef) -> Cut:
        """Find what is meant."""
        if isinstance(ref, Checkpoint):
            owner = self.lookup.owner_of(connection, ref.id or 0)
            if owner is None:
                raise NotFound(f"Checkpoint {ref.id} is not here. repo.checkpoints() lists those of a branch.")
            current = self.lookup.branch(connection, owner, None)
            point = self.lookup.checkpoint(connection, owner, current, ref)
            left = self.store.sessions.branch(connection, point.internal_session_id)
            return Cut(session=self.store.sessions.one(connection, owner.id), branch=left, point=point)
        if isinstance(ref, InternalSession):
            ref, branch = ref.external_session_id, ref
        found = self.lookup.session(connection, ref)
        row = self.lookup.branch(connection, found, branch) if branch is not None else None
        return Cut(session=self.store.sessions.one(connection, found.id), branch=row)

    def import_(
        self,
        path: str | Path | BinaryIO,
        *,
        session: str | None = None,
        workspace: str | Path | Workspace | None = None,
        progress: Progress | None = None,
    ) -> Carried:
        """Make a session of what `export` wrote, with ids and threads of its own; all of it, or nothing.

        The file is held against itself first: its hashes, and all that names something else. What its calls did is in
        the world that they were made in: it is never reversed or made again from here, and plans say so. What was
        consumed there stays consumed.

        Args:
            path: The file; or a binary stream.
            session: The name for the session; None for its own name, or the next free one like it.
            workspace: The directory that its files are to belong to, or a Workspace. They go into the store of that
                workspace; the directory stays as it is until you rewind or roll back. None leaves the files out.
            progress: Told how many bytes are read, and of how many; the file is read twice. It is called inside of a
                transaction, so it may read, but not write to this database.

        Raises:
            NotFound: There is no such file.
            InvalidInput: It is no export, or a newer one; or no session can be called so; or the workspace is none, or
                has an environment of its own.
            Corrupt: A line is damaged or forged; the text says which one, and what is wrong.
            Conflict: There is a session of that name; or `progress` wrote to this database, or read one in memory.
            Unavailable: Files cannot be stored.
        """
        if session is not None:
            self.expect_name(session)
        expect_files(workspace)
        self._read(lambda c: self.lookup.expect_scope(c, WRITE))
        with _source(path) as found, Incoming() as files:
            file = _watched(found, progress, times=2)
            with _told(path):
                whole = check(file, files if workspace is not None else None)
            reader = Import(self.store, self.user.id, file, session)
            if workspace is None or not whole.counts["tree"]:
                session_id = reader.run(whole)
            else:
                session_id = self._with_files(workspace, files, lambda found: reader.run(whole, found))
        made = self._read(lambda c: self.lookup.session(c, session_id))
        left = Counter(whole.files.left)
        if workspace is None and (more := whole.counts["snapshot"] - left.total()):
            left[NOT_WANTED] = more
        paths = whole.files.left_paths if workspace is not None else {}
        return Carried.of_counts(made, whole.header, whole.counts, left, paths)

    def _with_files(
        self, workspace: str | Path | Workspace, files: Incoming, store: Callable[[Mapping[int, FilesAt]], int]
    ) -> int:
        """Put files into a workspace, then store what names them; if that fails, they go again."""
        database = self.store.database
        keeper = attached(workspace, holder=str(self.store.tenant_id), without=database.files)
        made = files.put_into(keeper.workspace, keeper.holder)
        settings = {**keeper.settings, IMPORTED: True}
        try:
            return store({tree: FilesAt(snapshot=snapshot, settings=settings) for tree, snapshot in made.items()})
        except BaseException:
            files.take_back(keeper.workspace)
            raise

    def trajectories(self, session: SessionRef = None, branch: BranchRef = None) -> Iterator[dict[str, Any]]:
        """Return the steps of branches: what the agent saw, what it did, what came of it, reward and label.

        A step is an AI message. Its reward and label come from the `data` of the checkpoints after it, its label else
        from their name; the score of an exploration is the reward of its branch's last step.

        Args:
            session: The session; None is the one that moved last.
            branch: One branch; None for all, each from the root of the session.

        Raises:
            NotFound: There is none.

        Example:
            >>> import agentgit
            >>> from agentgit.demo import EFFECTS, build
            >>> repo = agentgit.open(":memory:")
            >>> answer = repo.wrap(build("shop.db"), session="s", effects=EFFECTS).run("order two chairs")
            >>> [[result["tool"] for result in step["results"]] for step in repo.trajectories("s")]
            [['create_order'], []]
        """
        found = self._read(lambda c: self.lookup.session(c, session))
        for row in self._read(lambda c: self._branches(c, found, branch)):
            yield from self._steps(found, row)

    def _branches(self, connection: Connection, session: ExternalSession, branch: BranchRef) -> list[Any]:
        if branch is not None:
            return [self.lookup.branch(connection, session, branch)]
        return list(self.store.sessions.branches(connection, session.id))

    def _steps(self, session: ExternalSession, row: Any) -> Iterator[dict[str, Any]]:
        def look(connection: Connection) -> tuple[Any, ...]:
            points = [self.views.checkpoint(point) for point in self._still_so(connection, row)]
            return self.views.branch(connection, session, row), self.store.track(connection, row), points

        line, track, points = self._read(look)
        score = mark_of(row).get("score")
        for step in steps(line.conversation_history, track, points, score):
            yield {"session": session.session_name, "branch": row.name, **step}

    def _still_so(self, connection: Connection, row: Any) -> Iterator[Any]:
        """Return the checkpoints on the way whose conversation the branch still begins with.

        Where messages were summed up, changed or deleted since, a count of messages tells nothing of a place.
        """
        graphs = self.store.graphs
        newest = graphs.newest(connection, row.thread_id)
        now = graphs.message_hashes(connection, newest) if newest is not None else ()
        for point in self.lookup.path(connection, row):
            if point.graph_checkpoint_id is None:
                yield point
                continue
            at = graphs.find(connection, GraphKey(point.thread_id, "", point.graph_checkpoint_id))
            then = graphs.message_hashes(connection, at) if at is not None else ()
            if len(then) == point.message_count and now[: len(then)] == then:
                yield point


def expect_files(workspace: str | Path | Workspace | None) -> None:
    """Check that files can be put into a workspace, if one was named, before anything is read.

    Raises:
        InvalidInput: The workspace has an environment of its user's own.
    """
    if isinstance(workspace, Workspace) and not workspace.settings["environment"]:
        raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')


class _Watched:
    """A file whose reader tells how far it is; each time it begins anew.

    Args:
        file: The file, which is read line by line.
        progress: The function that gets the progress.
        times: The number of times that it will be read.
    """

    def __init__(self, file: BinaryIO, progress: Progress, times: int) -> None:
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


def _watched(file: BinaryIO, progress: Progress | None, *, times: int) -> BinaryIO:
    return cast(BinaryIO, _Watched(file, progress, times)) if progress is not None else file


@contextmanager
def _told(path: str | Path | BinaryIO) -> Iterator[None]:
    """Name the file in the error if reading fails on the way."""
    try:
        yield
    except OSError as error:
        name = path if isinstance(path, (str, Path)) else "The stream"
        raise Unavailable(f"{name} cannot be read: {error.strerror or error}. Nothing was imported.") from error


@contextmanager
def _target(path: str | Path | BinaryIO) -> Iterator[BinaryIO]:
    """Open the target of a write; a file appears only when it is complete."""
    if not isinstance(path, (str, Path)):
        yield path
        return
    place = Path(path)
    try:
        with tempfile.NamedTemporaryFile(dir=place.parent, prefix=f".{place.name}.", delete=False) as file:
            part = Path(file.name)
            try:
                yield file  # type: ignore[misc]  # it is a binary file
                file.flush()
                part.replace(place)
            finally:
                part.unlink(missing_ok=True)
    except OSError as error:
        raise Unavailable(f"{place} cannot be written: {error.strerror or error}. Name a file in a folder.") from error


@contextmanager
def _source(path: str | Path | BinaryIO) -> Iterator[BinaryIO]:
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
def _again(file: BinaryIO, *, always: bool = False) -> Iterator[BinaryIO]:
    """Open a source that can be read more than once: a pipe, even one with a name, is copied first."""
    if not always and file.seekable():
        yield file
        return
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as spool:
        shutil.copyfileobj(file, spool)
        yield spool  # type: ignore[misc]  # it is a binary file
