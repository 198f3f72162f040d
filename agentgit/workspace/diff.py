"""Comparison of two snapshots, with a unified diff."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from agentgit.values import escape_path
from agentgit.workspace.scan.excluded import Difference, ExcludedRecord, compare
from agentgit.workspace.scan.index import within
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees
from agentgit.workspace.values import WorkspaceDiff

BINARY_CHECK_BYTES = 8000
"""The number of bytes at the start of a file that are searched for a zero byte, which marks it as binary; as in git."""

Read = tuple[bytes, bytes | None]
"""A path and the contents of its file; None if they are too large to show."""


def contents_of(
    trees: Trees, key: str | None, entries: Iterable[tuple[bytes, TreeEntry]]
) -> Generator[Read, None, None]:
    """Yield the contents of files and links of a snapshot.

    Args:
        trees: The store of the trees.
        key: The key of the snapshot's tree; None for no snapshot, which yields nothing.
        entries: The entries to read, by path.
    """
    for path, _, data in trees.contents(key, entries) if key else ():
        yield path, data if isinstance(data, bytes) else None


class ExcludedSides(NamedTuple):
    """The paths left out on each of two sides.

    Args:
        old: The paths left out of the first snapshot.
        new: The paths left out of the second snapshot, or of the workspace.
        root: The workspace, if the second side is its current files; otherwise None.
    """

    old: ExcludedRecord
    new: ExcludedRecord
    root: bytes | None


def compare_snapshots(
    from_id: str | None,
    to_id: str | None,
    changes: Mapping[bytes, TreeChange],
    contents: tuple[Iterator[Read], Iterator[Read]],
    sides: ExcludedSides,
    among: Callable[[bytes], bool],
) -> WorkspaceDiff:
    """Compare two snapshots.

    Args:
        from_id: The id of the first snapshot.
        to_id: The id of the second snapshot.
        changes: The changes, by path.
        contents: The contents of the files and links for which `differs` is true, sorted by path: those in the first
            snapshot, and those in the second.
        sides: The paths left out on each side.
        among: A function that returns whether a path was asked for.
    """
    left, uncertain = _left_out(changes, sides, among)
    added, modified, deleted = set(left.new), set(left.changed), set(left.missing)
    text: list[str] = []
    for path, change in sorted(changes.items()):
        was, now = _leaf(change.before), _leaf(change.after)
        if not was and not now:
            continue
        old, new = (
            next(side)[1] if one and differs(change) else b"" for one, side in zip((was, now), contents, strict=True)
        )
        if path not in uncertain:
            (modified if was and now else added if now else deleted).add(path)
            text.extend(_shown(escape_path(path), change, old, new))
    unseen = left.missing | left.changed | left.new
    text += [f"{escape_path(path)} is not compared: left out ({unseen[path]})\n" for path in sorted(unseen)]
    return WorkspaceDiff(from_id, to_id, _texts(added), _texts(modified), _texts(deleted), "".join(text))


def _texts(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(paths))


def differs(change: TreeChange) -> bool:
    """Return whether contents differ, so that they are needed to show the change."""
    return (change.before.oid if change.before else "") != (change.after.oid if change.after else "")


def _left_out(
    changes: Mapping[bytes, TreeChange], sides: ExcludedSides, among: Callable[[bytes], bool]
) -> tuple[Difference, set[bytes]]:
    """Compare what the two sides left out; also return the changes that may not be changes.

    A path that one side contains and the other left out existed on both sides. Whether it changed is not known.
    """
    old, new = sides.old, sides.new
    found, uncertain, tops = compare(old, new, sides.root), set(), dict[bytes, str]()
    for path, (before, after) in changes.items():
        left = old if before is None else new if after is None else {}
        if (top := within(path, left)) is not None:
            uncertain.add(path)
            tops[top] = left[top].why
    known = {path for path in tops if sides.root is not None and path in old and path not in found.changed}
    tops = {path: why for path, why in tops.items() if path not in known}
    parts = [{path: why for path, why in part.items() if path not in tops and among(path)} for part in found]
    changed = parts[1] | {path: why for path, why in tops.items() if among(path)}
    return Difference(parts[0], changed, parts[2]), uncertain


def _leaf(entry: TreeEntry | None) -> TreeEntry | None:
    return None if entry is None or entry.is_directory else entry


def _shown(path: str, change: TreeChange, old: bytes | None, new: bytes | None) -> Iterator[str]:
    was, now = _leaf(change.before), _leaf(change.after)
    names = (f"a/{path}" if was else "/dev/null", f"b/{path}" if now else "/dev/null")
    if was and now and was.mode != now.mode:
        yield f"mode of {path}: {stat.filemode(was.mode)} -> {stat.filemode(now.mode)}\n"
    if old is None or new is None:
        yield f"Files {names[0]} and {names[1]} differ; too large to show\n"
        return
    if old == new:
        if not (was and now):
            yield f"empty file {path} {'added' if now else 'deleted'}\n"
        return
    if b"\0" in old[:BINARY_CHECK_BYTES] or b"\0" in new[:BINARY_CHECK_BYTES]:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    for line in difflib.unified_diff(_lines(old), _lines(new), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != "\n" else lines[:-1]
