"""Changes to the files of a workspace by a rollback or a switch: part of its plan and of its report. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from agentgit.values import shown

WRITE, DELETE, ASIDE, CONFLICT, MISSING, LEFT = "write", "delete", "aside", "conflict", "missing", "left"
"""A path gets the content it had; goes, because it was made since; is moved aside, because no snapshot has it and it
stands in the way; was changed by somebody else since the last turn; is gone, and cannot be restored because
the snapshot left it out; is left as it is, because the snapshot left it out, though it changed or came since."""

OVERWRITTEN = "overwritten"
"""Somebody else's changes at a path were replaced or deleted by force; a safety snapshot has them."""

IMPORTED = "imported"
"""The setting of files that marks an import whose workspace nobody has looked at since."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """The change to one path.

    Args:
        action: `write`, `delete`, `aside`, `conflict`, `missing`, `left` or `overwritten`.
        path: Relative to the workspace.
        why: The reason, as a sentence; empty where the action says it.
    """

    action: str
    path: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.action} {shown(self.path)}" + (f": {shown(self.why)}" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """The changes to the files of a workspace.

    Args:
        workspace: Its directory.
        snapshot: The snapshot that the files are restored to.
        changes: The change to each path that differs.
        safety: The snapshot of what was there before; empty in a plan.
        problem: Why the files could not be restored; empty if they were, or in a plan can be.
        everything: True if an environment of the user's own was restored as a whole; it does not list files.
    """

    workspace: str
    snapshot: str
    changes: list[FileChange] = field(default_factory=list)
    safety: str = ""
    problem: str = ""
    everything: bool = False

    @property
    def is_needed(self) -> bool:
        """True if bringing the files back does, or would do, anything: what is missing stays so."""
        return bool(self.problem) or any(change.action not in (MISSING, LEFT) for change in self.changes)

    @property
    def conflicts(self) -> list[str]:
        """The paths that somebody else has changed since the last turn."""
        return [change.path for change in self.changes if change.action == CONFLICT]

    @property
    def summary(self) -> str:
        """A sentence that counts them."""
        counted = {action: sum(c.action == action for c in self.changes) for action in _SAID}
        said = ", ".join(f"{_files(n)} {_SAID[action]}" for action, n in counted.items() if n)
        if self.everything:
            said = ", ".join(["all restored by the environment", *([said] if said else [])])
        return f"Files: {self.problem or said or 'unchanged'}."

    def __str__(self) -> str:
        return "\n".join([*(f"  {change}" for change in self.changes), self.summary])

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON-like data, which `from_dict` reads again."""
        return {**vars(self), "changes": [vars(change) for change in self.changes]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave, also after a way through JSON."""
        return cls(**{**data, "changes": [FileChange(**change) for change in data["changes"]]})


_SAID = {
    WRITE: "restored",
    DELETE: "deleted",
    ASIDE: "moved aside",
    CONFLICT: "changed by somebody else",
    MISSING: "missing",
    LEFT: "left unchanged",
    OVERWRITTEN: "overwritten (changed by somebody else)",
}


@dataclass(frozen=True, kw_only=True)
class FilesAt:
    """The files of a workspace at one moment.

    Args:
        snapshot: The id of the snapshot in the store of its workspace.
        settings: The settings that open that workspace again, JSON-like.
    """

    snapshot: str
    settings: Mapping[str, Any]

    @property
    def is_imported(self) -> bool:
        """True if an import brought the snapshot, and the files were never so in that workspace."""
        return bool(self.settings.get(IMPORTED))

    def brought(self) -> FilesAt:
        """Return the same files, which are in the workspace now."""
        settings = {name: value for name, value in self.settings.items() if name != IMPORTED}
        return FilesAt(snapshot=self.snapshot, settings=settings)


class Keeper(Protocol):
    """A workspace as rollbacks use it: it takes snapshots of a session's files and restores them."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that open it again in another process, JSON-like."""

    @property
    def is_automatic(self) -> bool:
        """True if snapshots are taken without being asked for."""

    def take(self, why: str) -> FilesAt:
        """Take a snapshot; the last one, if nothing has changed since."""

    def before(self, tool_name: str, args: Mapping[str, Any]) -> None:
        """Keep what a tool call is about to change."""

    def plan(self, at: FilesAt, known: FilesAt | None = None) -> FileChanges:
        """Return what `bring` would do; what is not as in `known` was changed by somebody else.

        Args:
            at: The files to come to.
            known: Those that the session left; None is the newest snapshot, whoever took it.
        """

    def expect(self, at: FilesAt) -> None:
        """Check that `bring` can be done.

        Raises:
            AgentGitError: The snapshot or the directory is gone.
        """

    def bring(self, at: FilesAt, known: FilesAt | None = None) -> FileChanges:
        """Bring the files back, with a safety snapshot first; twice does no harm.

        Args:
            at: The files to come to.
            known: Those that the session left: what is not as in them, and is replaced or deleted, is named.
        """

    def diff(self, a: FilesAt, b: FilesAt) -> Mapping[str, Any]:
        """Compare two snapshots; the fields of a `Diff` of checkpoints, by their names."""

    def release(self, at: FilesAt) -> None:
        """Let a snapshot go when its time comes; nothing needs it any more."""

    def collect(self) -> None:
        """Free the space of what no snapshot has any more."""


def _files(n: int) -> str:
    return f"{n} file{'' if n == 1 else 's'}"
