"""Paths that a snapshot left out, in a plan and a report: what is missing, and what stays as it is."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from agentgit.workspace.scan.excluded import ExcludedPaths, Left, compare
from agentgit.workspace.scan.index import Skipped, within
from agentgit.workspace.trees import TreeChange

Pairs = tuple[tuple[str, str], ...]
"""Paths, each with the reason."""


class Named(NamedTuple):
    """The paths that a snapshot left out, as a plan or a report names them.

    Args:
        missing: Paths that existed when the snapshot was taken, and that cannot be restored.
        left: Paths that stay as they are, although they changed or came since.
    """

    missing: Pairs
    left: Pairs


def of_left_out(
    then: Left,
    now: Left,
    root: bytes,
    *,
    has: Collection[bytes],
    among: Callable[[bytes], bool],
) -> Named:
    """Compare what a snapshot left out with what stands in the workspace.

    Args:
        then: The paths that the snapshot left out.
        now: The paths that are left out now.
        root: The workspace.
        has: The paths at which the snapshot has something else than what stands now.
        among: The test for paths that are asked about.
    """
    found = compare(then, now, root)
    missing = {path: f"left out of the snapshot ({why})" for path, why in found.missing.items() if among(path)}
    left = {path: f"changed since; left out of the snapshot ({why})" for path, why in found.changed.items()}
    left |= {path: f"came since; left out ({why})" for path, why in found.new.items() if not _holds(has, path)}
    return Named(_pairs(missing), _pairs({path: why for path, why in left.items() if among(path)}))


def in_the_way(now: Mapping[bytes, ExcludedPaths | Skipped], changes: Mapping[bytes, TreeChange]) -> Iterator[bytes]:
    """Iterate over what is left out now and stands where a restore puts something else: it is moved aside.

    Args:
        now: The paths that are left out now.
        changes: The changes that a restore makes.
    """
    files = {path for path, (_, after) in changes.items() if after is not None and not after.is_directory}
    folders = {path for path, (_, after) in changes.items() if after is not None and after.is_directory}
    folders.update(os.path.dirname(path) for path in files)
    for path in list(folders):
        while path := os.path.dirname(path):
            folders.add(path)
    for path, one in now.items():
        mode = one.mode if isinstance(one, ExcludedPaths) else one.stamp[4]
        if within(path, files) is not None or (path in folders and not stat.S_ISDIR(mode)):
            yield path


def is_among(paths: tuple[bytes, ...] | None, path: bytes) -> bool:
    """Return whether a path is one of some, or below one; None is all."""
    return paths is None or any(not one or path == one or path.startswith(one + b"/") for one in paths)


def _holds(paths: Collection[bytes], path: bytes) -> bool:
    """Return whether a path is among some, or one of them is below it."""
    return any(one == path or one.startswith(path + b"/") for one in paths)


def _pairs(found: Mapping[bytes, str]) -> Pairs:
    return tuple((os.fsdecode(path), found[path]) for path in sorted(found))
