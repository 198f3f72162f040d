"""What a snapshot records of a `.git` directory, which it leaves out: HEAD, branches, tags, stash, and some stamps."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress

from agentgit.values import count, escape_path

HEAD, STASH, BRANCHES, REFS = "HEAD", "stash", "ref: refs/heads/", (b"heads", b"tags")
STAMPED = ("config", "hooks", "reftable")
"""What is recorded by its time of change only."""


def git_state(folder: bytes) -> str:
    """Return the state of a `.git` directory as JSON. What cannot be read is not in it."""
    state = {HEAD: _read(folder, b"HEAD").strip().removeprefix(BRANCHES)}
    for line in _read(folder, b"packed-refs").splitlines():
        oid, _space, ref = line.partition(" ")
        if ref.startswith(("refs/heads/", "refs/tags/")) and not line.startswith(("#", "^")):
            state[ref] = oid[:12]
    for kind in REFS:
        for parent, _folders, files in os.walk(os.path.join(folder, b"refs", kind)):
            for file in files:
                path = os.path.relpath(os.path.join(parent, file), folder)
                if not file.endswith(b".lock"):
                    state[os.fsdecode(path)] = _read(folder, path).strip()[:12]
    state[STASH] = str(_read(folder, b"logs/refs/stash").count("\n"))
    for name in STAMPED:
        with suppress(OSError):
            state[name] = str(os.lstat(os.path.join(folder, os.fsencode(name))).st_mtime_ns)
    return json.dumps(state, sort_keys=True)


def git_moves(before: str, after: str) -> Iterator[str]:
    """Yield how two states differ, a few words for each."""
    old, new = json.loads(before), json.loads(after)
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        name = escape_path(key.removeprefix("refs/heads/").replace("refs/tags/", "tag ", 1))
        if was == now:
            continue
        if key in STAMPED:
            yield f"{name} changed"
        elif key == STASH:
            yield f"{count(int(now), 'stash')} instead of {was}"
        elif was is None or now is None:
            yield f"{name} {'deleted' if now is None else 'created'}"
        else:
            yield f"{name} moved from {_short(was)} to {_short(now)}"


def _short(target: str) -> str:
    is_commit = len(target) >= 12 and not target.strip("0123456789abcdef")
    return target[:7] if is_commit else escape_path(target)


def _read(folder: bytes, name: bytes) -> str:
    try:
        with open(os.open(os.path.join(folder, name), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            return file.read().decode("utf-8", "backslashreplace")
    except OSError:
        return ""
