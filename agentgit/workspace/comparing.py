"""How two sets of files differ, as text."""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterator, Mapping

from agentgit.workspace.trees import Change, Entry
from agentgit.workspace.values import WorkspaceDiff, plain

LOOKED_AT = 8000
"""How many bytes of a file are searched for a zero byte, which text has not; as git does."""

Contents = Mapping[bytes, bytes]


def compared(
    from_id: str | None, to_id: str | None, changes: Mapping[bytes, Change], old: Contents, new: Contents
) -> WorkspaceDiff:
    """Tell how two snapshots differ.

    Args:
        from_id: of the first.
        to_id: of the second.
        changes: by path.
        old: the contents of files and links in the first, by path.
        new: those in the second.
    """
    added: list[str] = []
    modified: list[str] = []
    deleted: list[str] = []
    text: list[str] = []
    for path, (before, after) in sorted(changes.items()):
        was, now = _leaf(before), _leaf(after)
        if not was and not now:
            continue
        (modified if was and now else added if now else deleted).append(os.fsdecode(path))
        text.extend(_shown(plain(os.fsdecode(path)), was, now, old.get(path, b""), new.get(path, b"")))
    return WorkspaceDiff(from_id, to_id, tuple(added), tuple(modified), tuple(deleted), "".join(text))


def _leaf(entry: Entry | None) -> Entry | None:
    return None if entry is None or entry.is_directory else entry


def _shown(path: str, was: Entry | None, now: Entry | None, old: bytes, new: bytes) -> Iterator[str]:
    names = (f"a/{path}" if was else "/dev/null", f"b/{path}" if now else "/dev/null")
    if was and now and was.mode != now.mode:
        yield f"mode of {path}: {stat.filemode(was.mode)} -> {stat.filemode(now.mode)}\n"
    if old == new:
        if not (was and now):
            yield f"empty file {path} {'added' if now else 'deleted'}\n"
        return
    if b"\0" in old[:LOOKED_AT] or b"\0" in new[:LOOKED_AT]:
        yield f"Binary files {names[0]} and {names[1]} differ\n"
        return
    for line in difflib.unified_diff(_lines(old), _lines(new), *names):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes) -> list[str]:
    text = data.decode("utf-8", "replace")
    lines = [line + "\n" for line in text.split("\n")]
    return [*lines[:-1], lines[-1][:-1]] if lines[-1] != "\n" else lines[:-1]
