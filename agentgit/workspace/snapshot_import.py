"""Reads snapshots from an export: buffers them while the export is checked, then writes them to a workspace's storage.

The buffers are unnamed temporary files, which the system removes when the process ends. The directory of the workspace
is not changed.
"""

from __future__ import annotations

import json
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, NamedTuple, Self

from agentgit.errors import Unavailable
from agentgit.store.transfer.file_trees import TreeItem
from agentgit.workspace.api import Workspace
from agentgit.workspace.base import StoredTree
from agentgit.workspace.scan.excluded import ExcludedPath, ExcludedRecord
from agentgit.workspace.trees import TreeEntry, TreeWrite, digest


class _BufferedFile(NamedTuple):
    """The offset of a file's contents in the buffer, and their size, both in bytes."""

    start: int
    size: int


class SnapshotImporter:
    """A buffer for the files of one export. A context manager; see `agentgit.store.transfer.file_trees.FileSink`."""

    def __init__(self) -> None:
        self._contents = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        self._changes = tempfile.TemporaryFile()  # noqa: SIM115  # as above
        self._files: dict[bytes, _BufferedFile] = {}
        self._contents_size = 0
        self._open_tree: list[Any] | None = None
        self._stored_ids: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with closing(self._contents), closing(self._changes):
            self._files.clear()

    def data(self, part: bytes) -> None:
        """Store a part of the contents of a file."""
        with _converting_errors():
            self._contents.write(part)

    def file(self, id: bytes, size: int) -> None:
        """Combine the parts since the last file into one file."""
        self._files[id] = _BufferedFile(self._contents_size, size)
        self._contents_size += size

    def tree(self, id: int, base: int | None) -> None:
        """Begin a tree, to which the following changes belong."""
        self._flush_open_tree()
        self._open_tree = [id, base, {}]

    def left(self, path: bytes, why: str | None) -> None:
        """Record the reason why the tree leaves out a path; None if it no longer does."""
        assert self._open_tree is not None  # noqa: S101  # the checker ensures that a tree was begun and has no changes yet
        self._open_tree[2][path.decode("latin-1")] = why

    def change(self, path: bytes, item: TreeItem | None) -> None:
        """Add or replace the item at a path; None removes it."""
        self._flush_open_tree()
        values = (path, *(item[1:] if item is not None else (None, None)))
        encoded = [part.decode("latin-1") if part is not None else None for part in values]
        self._write_line([*encoded, item.mode if item is not None else None])

    def _flush_open_tree(self) -> None:
        if self._open_tree is not None:
            self._write_line(self._open_tree)
        self._open_tree = None

    def _write_line(self, values: list[Any]) -> None:
        with _converting_errors():
            self._changes.write(json.dumps(values).encode() + b"\n")

    # -- into a workspace

    def store_into(self, workspace: Workspace, holder: str) -> dict[int, str]:
        """Store all trees as snapshots, and return the id of each by the number of its tree. All succeed, or none."""
        ids = workspace.store_trees(self._trees(), holder)
        self._stored_ids = list(ids.values())
        return ids

    def remove(self, workspace: Workspace) -> None:
        """Remove the stored snapshots from a workspace after a failed import."""
        workspace.discard(self._stored_ids)
        self._stored_ids = []

    def _trees(self) -> Iterator[StoredTree]:
        """Yield the buffered trees. Consume the changes of each tree before the next one."""
        self._flush_open_tree()
        with _converting_errors():
            self._contents.flush()
            self._changes.seek(0)
        lines = map(json.loads, self._changes)
        tree_line = next(lines, None)
        excluded: dict[bytes, ExcludedPath] = {}
        while tree_line is not None:
            next_tree: list[Any] = []
            number, base, changed_reasons = tree_line
            excluded = _update_excluded(excluded if base is not None else {}, changed_reasons)
            yield StoredTree(number, base, self._tree_writes(lines, next_tree), excluded)
            tree_line = next_tree[0] if next_tree else None

    def _tree_writes(self, lines: Iterator[list[Any]], next_tree: list[Any]) -> Iterator[TreeWrite]:
        for values in lines:
            if len(values) == 3:
                next_tree.append(values)
                return
            path, file, link, mode = values
            yield self._tree_write(path.encode("latin-1"), file, link, mode)

    def _tree_write(self, path: bytes, file: str | None, link: str | None, mode: int | None) -> TreeWrite:
        if mode is None:
            return TreeWrite(path, None)
        if link is not None:
            target = link.encode("latin-1")
            return TreeWrite(path, TreeEntry(stat.S_IFLNK | 0o777, digest(target)), target)
        if file is None:
            return TreeWrite(path, TreeEntry(stat.S_IFDIR | mode))
        data = self._read_file(file.encode("latin-1"))
        return TreeWrite(path, TreeEntry(stat.S_IFREG | mode, digest(data)), data)

    def _read_file(self, id: bytes) -> bytes:
        buffered = self._files[id]
        self._contents.seek(buffered.start)
        return self._contents.read(buffered.size)


def _update_excluded(
    base_excluded: ExcludedRecord, changed_reasons: Mapping[str, str | None]
) -> dict[bytes, ExcludedPath]:
    """Return the paths that a tree leaves out, from those of its base. An export does not contain their status."""
    reasons = {path.encode("latin-1"): why for path, why in changed_reasons.items()}
    unchanged = {path: excluded for path, excluded in base_excluded.items() if path not in reasons}
    return unchanged | {path: ExcludedPath(why, 0, 0, 0) for path, why in reasons.items() if why is not None}


@contextmanager
def _converting_errors() -> Iterator[None]:
    """Convert an operating-system error into one that explains how to make space for the buffers."""
    try:
        yield
    except OSError as error:
        raise Unavailable(
            f"The files of the export cannot be stored in {tempfile.gettempdir()}: {error.strerror}. Free some space "
            "there, or set $TMPDIR to another folder, then import again."
        ) from error
