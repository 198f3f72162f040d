"""Comparison of two snapshots, with a unified diff."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from agentgit.values import escape_path
from agentgit.workspace.left_out import Chosen, LeftOutPaths, compare_left_out, containing_path, is_selected
from agentgit.workspace.objects import Objects
from agentgit.workspace.trees import Changes, TreeChange, is_leaf
from agentgit.workspace.values import WorkspaceDiff

BINARY_CHECK_BYTES = 8000
"""The number of bytes at the start of a file that are searched for a zero byte, which marks it as binary; as in git."""

MAX_SHOWN = 8 << 20
"""The size in bytes up to which files are compared line by line."""


def compare(
    old: LeftOutPaths, new: LeftOutPaths, changes: Changes, root: bytes | None, selected: Chosen, objects: Objects
) -> WorkspaceDiff:
    """Compare two snapshots, from what each left out; `root` is the workspace if the new one is its current files."""
    missing, changed, new_paths = groups = compare_left_out(old, new, root)
    lines: list[str] = []
    added, modified, deleted = set[bytes](), set[bytes](), set[bytes]()
    for path, change in sorted(changes.items()):
        before, after = (one if is_leaf(one) else None for one in change)
        left_out = old if change.before is None else new if change.after is None else {}
        if (ancestor := containing_path(path, left_out)) is not None:  # whether it changed is not known
            missing.pop(ancestor, None)
            new_paths.pop(ancestor, None)
            changed[ancestor] = left_out[ancestor].why
        elif before or after:
            (modified if before and after else added if after else deleted).add(path)
            lines.extend(_diff_lines(path, TreeChange(before, after), objects))
    for paths, group in zip((deleted, modified, added), groups, strict=True):
        paths.update(path for path in group if is_selected(selected, path))
    reasons = {path: why for group in groups for path, why in group.items() if is_selected(selected, path)}
    lines += [f"{escape_path(path)} is not compared: left out ({reasons[path]})\n" for path in sorted(reasons)]
    return WorkspaceDiff(None, None, decode_paths(added), decode_paths(modified), decode_paths(deleted), "".join(lines))


def decode_paths(paths: Iterable[Any]) -> tuple[Any, ...]:
    """Return paths, or pairs of a path and a text, sorted and decoded."""
    return tuple(tuple(map(os.fsdecode, x)) if isinstance(x, tuple) else os.fsdecode(x) for x in sorted({*paths}))


def _diff_lines(path: bytes, change: TreeChange, objects: Objects) -> Iterator[str]:
    before, after = change
    name = escape_path(path)
    names = (f"a/{name}" if before else "/dev/null", f"b/{name}" if after else "/dev/null")
    if before and after and before.mode != after.mode:
        yield f"mode of {name}: {stat.filemode(before.mode)} -> {stat.filemode(after.mode)}\n"
        if before.oid == after.oid:
            return
    old_data = objects.read(before.oid) if before else b""
    new_data = objects.read(after.oid) if after else b""
    if old_data == new_data:
        if not (before and after):
            yield f"empty file {name} {'added' if after else 'deleted'}\n"
    elif max(len(old_data), len(new_data)) > MAX_SHOWN:
        yield f"Files {names[0]} and {names[1]} differ; too large to show\n"
    elif b"\0" in old_data[:BINARY_CHECK_BYTES] or b"\0" in new_data[:BINARY_CHECK_BYTES]:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
    else:
        for line in difflib.unified_diff(_split_lines(old_data), _split_lines(new_data), *names):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _split_lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != "\n" else lines[:-1]
