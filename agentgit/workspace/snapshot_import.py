"""Snapshots on their way out of an export: kept aside while the export is checked, then put into a workspace's storage.

What is kept aside is in files without a name: they are gone with the process, however it ends. The directory of the
workspace is not touched.
"""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, Self

from agentgit.errors import InvalidInput, Unavailable
from agentgit.store.transfer.file_trees import TreeItem
from agentgit.workspace.api import AUTO, Workspace
from agentgit.workspace.engines.files import Files
from agentgit.workspace.scan.excluded import ExcludedPaths, Left
from agentgit.workspace.trees import TreeEntry, WrittenTree, digest


class _Kept(NamedTuple):
    """The place of a file's contents, and their size in bytes."""

    start: int
    size: int


class Incoming:
    """The files of one export; see `agentgit.store.transfer.file_trees.Keeps`. A context manager."""

    def __init__(self) -> None:
        self._contents = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._changes = tempfile.TemporaryFile()  # noqa: SIM115  # as above
        self._kept: dict[bytes, _Kept] = {}
        self._end = 0
        self._tree: list[Any] | None = None
        self._put: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._contents), closing(self._changes):
            self._kept.clear()

    def data(self, part: bytes) -> None:
        """Keep a part of the contents of a file."""
        with _told():
            self._contents.write(part)

    def file(self, id: bytes, size: int) -> None:
        """Take note that the parts since the last file are one, whose contents have this hash."""
        self._kept[id] = _Kept(self._end, size)
        self._end += size

    def tree(self, id: int, base: int | None) -> None:
        """Begin a tree: that of another number, or an empty one, with the changes that come."""
        self._note_tree()
        self._tree = [id, base, {}]

    def left(self, path: bytes, why: str | None) -> None:
        """Take note that the tree leaves out what stands at a path, and why; None if it does not any more."""
        assert self._tree is not None  # noqa: S101  # it was checked that a tree came, and no change of it
        self._tree[2][path.decode("latin-1")] = why

    def change(self, path: bytes, item: TreeItem | None) -> None:
        """Put something at a path, or take away what stands there."""
        self._note_tree()
        parts = (path, *(item[1:] if item is not None else (None, None)))
        shown = [part.decode("latin-1") if part is not None else None for part in parts]
        self._note([*shown, item.mode if item is not None else None])

    def _note_tree(self) -> None:
        if self._tree is not None:
            self._note(self._tree)
        self._tree = None

    def _note(self, values: list[Any]) -> None:
        with _told():
            self._changes.write(json.dumps(values).encode() + b"\n")

    # -- into a workspace

    def put_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots; give the id of each. If one fails there is none.

        Args:
            workspace: The workspace.
            holder: The holder that needs them.

        Raises:
            InvalidInput: Its environment is its user's own.
            Unavailable: It cannot be written.
        """
        with workspace._working():
            engine = workspace._engine
            if not isinstance(engine, Files):
                raise InvalidInput('Files are imported into a workspace with "git" or "directory" only.')
            made: dict[int, str] = {}
            keys: dict[int, str] = {}
            left: dict[bytes, ExcludedPaths] = {}
            try:
                for id, base, changed, changes in self._trees():
                    left = _following(left if base is not None else {}, changed)
                    new = workspace._new("imported", AUTO)
                    keys[id] = engine.put(new, keys[base] if base is not None else None, changes, left)
                    made[id] = new.id
                    self._put.append(new.id)
                    workspace._catalog.hold(new.id, holder)
            except BaseException:
                self.remove(workspace)
                raise
        return made

    def remove(self, workspace: Workspace) -> None:
        """Remove what was put into a workspace: the import failed."""
        workspace._catalog.remove(self._put)
        self._put = []

    def _trees(self) -> Iterator[tuple[int, int | None, Mapping[str, str | None], Iterator[WrittenTree]]]:
        """Read the trees back; the changes of each are to be read before the next one."""
        self._note_tree()
        with _told():
            self._contents.flush()
            self._changes.seek(0)
        lines = map(json.loads, self._changes)
        head = next(lines, None)
        while head is not None:
            following: list[Any] = []
            yield *head, self._of_tree(lines, following)
            head = following[0] if following else None

    def _of_tree(self, lines: Iterator[list[Any]], following: list[Any]) -> Iterator[WrittenTree]:
        for values in lines:
            if len(values) == 3:
                following.append(values)
                return
            path, file, link, mode = values
            yield self._written(path.encode("latin-1"), file, link, mode)

    def _written(self, path: bytes, file: str | None, link: str | None, mode: int | None) -> WrittenTree:
        if mode is None:
            return WrittenTree(path, None)
        if link is not None:
            target = link.encode("latin-1")
            return WrittenTree(path, TreeEntry(stat.S_IFLNK | 0o777, digest(target)), target)
        if file is None:
            return WrittenTree(path, TreeEntry(stat.S_IFDIR | mode))
        data = self._read(file.encode("latin-1"))
        return WrittenTree(path, TreeEntry(stat.S_IFREG | mode, digest(data)), data)

    def _read(self, id: bytes) -> bytes:
        kept = self._kept[id]
        self._contents.seek(kept.start)
        return self._contents.read(kept.size)


def _following(left: Left, changed: Mapping[str, str | None]) -> dict[bytes, ExcludedPaths]:
    """Return what a tree leaves out: what the one before does, with changes. How it looked did not travel."""
    named = {path.encode("latin-1"): why for path, why in changed.items()}
    kept = {path: one for path, one in left.items() if path not in named}
    return kept | {path: ExcludedPaths(why, 0, 0, 0) for path, why in named.items() if why is not None}


@contextmanager
def _told() -> Iterator[None]:
    """Convert an operating-system error into advice for files that cannot be kept aside.

    Raises:
        Unavailable: The operating system reported an error.
    """
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"The files of the export cannot be stored in {tempfile.gettempdir()}: {error.strerror}. Free some space "
            "there, or set $TMPDIR to another folder, then import again."
        ) from error
