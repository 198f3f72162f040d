"""Values that a workspace returns, and the protocol of a custom environment."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Protocol, runtime_checkable

from agentgit.values import escape_path


@runtime_checkable
class Environment(Protocol):
    """Takes and restores snapshots of some state: a directory, a container, or an object of yours."""

    def checkpoint(self) -> str:
        """Take a snapshot of the state, and return its id."""
        ...

    def restore(self, id: str, /) -> Any:
        """Restore the snapshot with this id."""
        ...


EVERYTHING = "everything that the environment keeps (it does not list files)"
"""The text that describes a restore by a custom environment."""

UNDO = "undo"
"""The kind of a snapshot that belongs to the undo stack."""


def escape_surrogates(text: str) -> str:
    r"""Return a text that can be stored and printed. A surrogate, as in some file names, is escaped, as in `\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode()


MAX_NAMED = 5
"""The number of texts that one sentence lists."""


def some(texts: Sequence[str], separator: str = ", ") -> str:
    """Join texts; of more than five, only the first ones, with the number of the others."""
    omitted = len(texts) - MAX_NAMED
    return separator.join(texts[:MAX_NAMED]) + (f"{separator}and {omitted} more" if omitted > 0 else "")


class JsonLike:
    """A dataclass whose fields are JSON-like, but for tuples and times."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON-like values."""
        fields: dict[str, Any] = json.loads(json.dumps(vars(self), default=datetime.isoformat))
        return fields


def _text(groups: Mapping[str, Iterable[Any]], notes: Iterable[str] = (), empty: str = "") -> str:
    """Return a line for each path, alone or with a reason, under the label of its group, then the notes."""
    pairs = [(label, one, "") if isinstance(one, str) else (label, *one) for label in groups for one in groups[label]]
    lines = [f"{label:<9} {escape_path(path)}{f' ({why})' if why else ''}" for label, path, why in pairs]
    return "\n".join([*(lines or [empty]), *(f"note:     {one}" for one in notes)])


@dataclass(frozen=True)
class Options:
    """The options with which a workspace was opened. `environment` is empty for one of the user."""

    workspace: str
    storage: str
    environment: str
    auto_checkpoint: bool
    max_checkpoints: int | None
    exclude_patterns: tuple[str, ...]
    max_file_size: int


MAX_LISTED = 1000
"""The maximum number of changed paths that a snapshot lists."""


@dataclass(frozen=True)
class FileCheckpoint(JsonLike):
    """A snapshot of the files of a workspace.

    Args:
        id: The id for `restore`, `diff`, `get` and `delete`, which also accept any unique prefix of it.
        name: The name that the user gave it, or None. Names need not be unique.
        message: The user's description of it.
        timestamp: The time at which it was taken, in UTC.
        files_changed: The paths that differ from the snapshot saved or restored before, the first 1,000; of an entry
            of the undo stack, its paths.
        change_count: The number of these paths.
        skipped: The paths that it leaves out, each with the reason.
        metadata: The metadata that the user gave it.
        kind: `manual`, `auto` (before a tool or at a checkpoint), `safety` (before a restore) or `undo`.
        pinned: True if it is kept regardless of the number of newer snapshots.
    """

    id: str
    name: str | None
    message: str
    timestamp: datetime
    files_changed: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "manual"
    pinned: bool = False
    change_count: int = 0
    skipped: tuple[tuple[str, str], ...] = ()

    def with_left_out(self, changed: Collection[bytes], left_out: Mapping[bytes, Any]) -> FileCheckpoint:
        """Return the same snapshot with the paths that changed and those that it leaves out, as the engine has them."""
        listed = tuple(os.fsdecode(path) for path in sorted(changed)[:MAX_LISTED])
        skipped = tuple((os.fsdecode(path), left_out[path].why) for path in sorted(left_out))
        return replace(self, files_changed=listed, change_count=len(changed), skipped=skipped)

    @property
    def description(self) -> str:
        """The same as `message`."""
        return self.message

    @property
    def time(self) -> str:
        """The local time at which the snapshot was taken, as `2030-01-31 13:59:00`."""
        return self.timestamp.astimezone().strftime("%Y-%m-%d %H:%M:%S")

    def __str__(self) -> str:
        text = escape_path(" ".join(part for part in (self.name, self.message) if part))
        return f"{self.id}  {self.time}  {self.kind:<6}  {self.change_count:>5} changed  {text}".rstrip()


@dataclass(frozen=True)
class WorkspaceDiff(JsonLike):
    """The differences between two snapshots. A renamed file counts as one deleted and one added.

    Args:
        from_id: The id of the first snapshot; None for nothing.
        to_id: The id of the second snapshot; None for the workspace as it is now.
        added_files: The paths of the added files, sorted.
        modified_files: The paths of files whose contents, kind or permission bits differ, sorted.
        deleted_files: The paths of the deleted files, sorted.
        diff_content: A unified diff. Binary and large files, and those that a snapshot left out, are only named.
    """

    from_id: str | None
    to_id: str | None
    added_files: tuple[str, ...] = ()
    modified_files: tuple[str, ...] = ()
    deleted_files: tuple[str, ...] = ()
    diff_content: str = ""

    def __bool__(self) -> bool:
        return bool(self.added_files or self.modified_files or self.deleted_files)

    def __str__(self) -> str:
        groups = {"added:": self.added_files, "modified:": self.modified_files, "deleted:": self.deleted_files}
        return _text(groups, empty="no difference")


@dataclass(frozen=True)
class Restored(JsonLike):
    """The result of a restore; of `plan_restore`, what the result would be now.

    Args:
        id: The id of the snapshot.
        safety: The id of the safety snapshot, which has the files as they were before; None in a plan.
        restored: Paths of files and links that were written.
        deleted: Paths of files and links that were deleted.
        created_directories: Paths of directories that were created; none in a plan.
        deleted_directories: Paths of directories that were deleted; none in a plan.
        moved_aside: Items in no snapshot that were in the way: the path, and the new path or, in a plan, its directory.
        conflicts: Paths that stay although the snapshot has another version, each with the reason.
        missing: Paths that the snapshot left out and that are gone, each with the reason.
        left: Paths that stay because the snapshot left them out or others changed them, each with the reason.
        changed: Paths that changed since they were last saved or restored; only in a plan.
        impossible: Paths that the restore could not write or delete, each with the reason; only in a plan.
        replaced_versions: A hash of the contents that the restore would replace or delete; only in a plan.
        everything: True if a custom environment was restored, which does not list files.
        unseen: Sentences on excluded directories: what moved in a `.git`, which others changed, how many there are.
        name: The name of the snapshot; None if it has none.
        message: The description of the snapshot.
        time_str: The local time at which the snapshot was taken, as `2030-01-31 13:59:00`.
    """

    id: str
    safety: str | None = None
    restored: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    created_directories: tuple[str, ...] = ()
    deleted_directories: tuple[str, ...] = ()
    moved_aside: tuple[tuple[str, str], ...] = ()
    conflicts: tuple[tuple[str, str], ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    left: tuple[tuple[str, str], ...] = ()
    changed: tuple[str, ...] = ()
    impossible: tuple[tuple[str, str], ...] = ()
    replaced_versions: str = ""
    everything: bool = False
    unseen: tuple[str, ...] = ()
    name: str | None = None
    message: str = ""
    time_str: str = ""

    @property
    def is_done(self) -> bool:
        """False in a plan."""
        return self.everything or self.safety is not None

    def __str__(self) -> str:
        ed = "d" if self.is_done else ""
        groups: dict[str, Iterable[Any]] = {
            "impossible:": self.impossible,
            f"restore{ed}:": [EVERYTHING] if self.everything else self.restored,
            f"delete{ed}:": self.deleted + self.deleted_directories,
            f"create{ed}:": self.created_directories,
            f"move{ed}:": [f"{path} -> {destination}" for path, destination in self.moved_aside],
            "conflict:": self.conflicts,
            "missing:": self.missing,
            "left:": self.left,
        }
        return _text(groups, self.unseen, "nothing to restore")
