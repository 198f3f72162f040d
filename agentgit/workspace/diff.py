"""Comparison of two snapshots, with a unified diff."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from typing import NamedTuple

from agentgit.values import escape_path
from agentgit.workspace.scan.excluded import Difference, ExcludedRecord, compare_excluded
from agentgit.workspace.scan.index import containing_path
from agentgit.workspace.trees import TreeChange, TreeEntry, Trees
from agentgit.workspace.values import WorkspaceDiff

BINARY_CHECK_BYTES = 8000
"""The number of bytes at the start of a file that are searched for a zero byte, which marks it as binary; as in git."""

PathContents = tuple[bytes, bytes | None]
"""A path and the contents of its file; None if they are too large to show."""


def contents_of(
    trees: Trees, key: str | None, entries: Iterable[tuple[bytes, TreeEntry]]
) -> Generator[PathContents, None, None]:
    """Yield the contents of files and links of a snapshot."""
    for path, _, data in trees.contents(key, entries) if key else ():
        yield path, data if isinstance(data, bytes) else None


class ExcludedSides(NamedTuple):
    """The paths left out on each of two sides."""

    old: ExcludedRecord
    new: ExcludedRecord
    root: bytes | None


def compare_snapshots(
    from_id: str | None,
    to_id: str | None,
    changes: Mapping[bytes, TreeChange],
    contents: tuple[Iterator[PathContents], Iterator[PathContents]],
    sides: ExcludedSides,
    is_included: Callable[[bytes], bool],
) -> WorkspaceDiff:
    """Compare two snapshots."""
    difference, uncertain = _compare_sides(changes, sides, is_included)
    added, modified, deleted = set(difference.new), set(difference.changed), set(difference.missing)
    lines: list[str] = []
    for path, change in sorted(changes.items()):
        old_entry, new_entry = _leaf_or_none(change.before), _leaf_or_none(change.after)
        if not old_entry and not new_entry:
            continue
        old_data, new_data = (
            next(side)[1] if entry and differs(change) else b""
            for entry, side in zip((old_entry, new_entry), contents, strict=True)
        )
        if path not in uncertain:
            (modified if old_entry and new_entry else added if new_entry else deleted).add(path)
            lines.extend(_diff_lines(escape_path(path), change, old_data, new_data))
    not_compared = difference.missing | difference.changed | difference.new
    lines += [
        f"{escape_path(path)} is not compared: left out ({not_compared[path]})\n" for path in sorted(not_compared)
    ]
    return WorkspaceDiff(
        from_id, to_id, _decode_paths(added), _decode_paths(modified), _decode_paths(deleted), "".join(lines)
    )


def _decode_paths(paths: Iterable[bytes]) -> tuple[str, ...]:
    return tuple(os.fsdecode(path) for path in sorted(paths))


def differs(change: TreeChange) -> bool:
    """Return whether contents differ, so that they are needed to show the change."""
    return (change.before.oid if change.before else "") != (change.after.oid if change.after else "")


def _compare_sides(
    changes: Mapping[bytes, TreeChange], sides: ExcludedSides, is_included: Callable[[bytes], bool]
) -> tuple[Difference, set[bytes]]:
    """Compare what the two sides left out; also return the changes that may not be changes.

    A path that one side contains and the other left out existed on both sides. Whether it changed is not known.
    """
    old, new = sides.old, sides.new
    difference, uncertain, reasons = compare_excluded(old, new, sides.root), set(), dict[bytes, str]()
    for path, (before, after) in changes.items():
        excluded = old if before is None else new if after is None else {}
        if (ancestor := containing_path(path, excluded)) is not None:
            uncertain.add(path)
            reasons[ancestor] = excluded[ancestor].why
    known_unchanged = {
        path for path in reasons if sides.root is not None and path in old and path not in difference.changed
    }
    reasons = {path: why for path, why in reasons.items() if path not in known_unchanged}
    filtered = [
        {path: why for path, why in group.items() if path not in reasons and is_included(path)} for group in difference
    ]
    changed = filtered[1] | {path: why for path, why in reasons.items() if is_included(path)}
    return Difference(filtered[0], changed, filtered[2]), uncertain


def _leaf_or_none(entry: TreeEntry | None) -> TreeEntry | None:
    return None if entry is None or entry.is_directory else entry


def _diff_lines(path: str, change: TreeChange, old_data: bytes | None, new_data: bytes | None) -> Iterator[str]:
    old_entry, new_entry = _leaf_or_none(change.before), _leaf_or_none(change.after)
    names = (f"a/{path}" if old_entry else "/dev/null", f"b/{path}" if new_entry else "/dev/null")
    if old_entry and new_entry and old_entry.mode != new_entry.mode:
        yield f"mode of {path}: {stat.filemode(old_entry.mode)} -> {stat.filemode(new_entry.mode)}\n"
    if old_data is None or new_data is None:
        yield f"Files {names[0]} and {names[1]} differ; too large to show\n"
        return
    if old_data == new_data:
        if not (old_entry and new_entry):
            yield f"empty file {path} {'added' if new_entry else 'deleted'}\n"
        return
    if b"\0" in old_data[:BINARY_CHECK_BYTES] or b"\0" in new_data[:BINARY_CHECK_BYTES]:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    for line in difflib.unified_diff(_split_lines(old_data), _split_lines(new_data), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _split_lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != "\n" else lines[:-1]
