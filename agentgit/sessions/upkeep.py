"""What keeping a database in order found and did: what was given back, and what is damaged. Pure values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

Progress: TypeAlias = Callable[[int, int], None]
"""Is told how many things are done, and of how many."""


@dataclass(frozen=True, kw_only=True)
class Reclaimed:
    """What a collection gave back, or would.

    Args:
        checkpoints: those that went because their session keeps no more.
        steps: graph checkpoints between checkpoints.
        values: stored values that nothing refers to.
        bytes: their stored size.
        writes: pending writes whose graph checkpoint never came or is gone.
        lists: lists that were written anew because what they continued goes.
        dictionaries: dictionaries that nothing is packed with.
        snapshots: snapshots of workspaces that no checkpoint has any more.
        disk_before: the size of the database in bytes when it began.
        disk_after: the same when it was done; in a dry run as before.
        dry_run: True if nothing was done.
        problem: why the free space of the database was not given back to the file system; empty if it was.
    """

    checkpoints: int = 0
    steps: int = 0
    values: int = 0
    bytes: int = 0
    writes: int = 0
    lists: int = 0
    dictionaries: int = 0
    snapshots: int = 0
    disk_before: int = 0
    disk_after: int = 0
    dry_run: bool = False
    problem: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-like data."""
        return dict(vars(self))


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong.

    Args:
        row: the table and the key of the row.
        what: what is wrong with it, as a sentence.
        todo: what to do about it, as a sentence.
    """

    row: str
    what: str
    todo: str

    def __str__(self) -> str:
        return f"{self.row}: {self.what}. {self.todo}"


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What a check of a database found.

    Args:
        level: how deep it looked: 1 references, 2 hashes too, 3 the state of every head too.
        objects: how many rows were looked at.
        seconds: how long it took.
        findings: what is wrong, in the order in which it was found.
        more: how many findings there were beyond these.
    """

    level: int
    objects: int
    seconds: float
    findings: Sequence[Finding] = field(default_factory=tuple)
    more: int = 0

    @property
    def is_sound(self) -> bool:
        """True if nothing is wrong."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Give it as JSON-like data."""
        return {**vars(self), "is_sound": self.is_sound, "findings": [vars(one) for one in self.findings]}
