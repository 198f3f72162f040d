"""File changes of a rollback or a switch, as its plan and its report list them. Pure values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from agentgit.next_steps import Reason
from agentgit.values import count, escape_path

WRITE, DELETE, ASIDE, CONFLICT = "write", "delete", "aside", "conflict"
MISSING, LEFT, OUTSIDE = "missing", "left", "outside"
"""The actions for a path.

- `write`: the path gets its earlier content back.
- `delete`: the path is deleted, because it was created since.
- `aside`: the path is moved aside, because no snapshot has it and it is in the way.
- `conflict`: a turn changed the path since then, and so did somebody else while no turn ran.
- `missing`: the path is gone and cannot be restored, because the snapshot left it out.
- `left`: the path changed since, but is left as it is: somebody else changed it, or the snapshot left it out.
- `outside`: a later tool call named the path, which is not in the workspace and is left as it is.
"""

OVERWRITTEN = "overwritten"
"""The action for a conflict where the other's version was replaced or deleted; a safety snapshot has it."""

TURN, RESTORE, PERSON, UNKNOWN, CRASH, STORED = CHANGED_BY = ("turn", "restore", "person", "unknown", "crash", "stored")
"""Who changed the files between two recorded states of a directory.

- `turn`: a turn of the session.
- `restore`: a rollback or a switch of the session, which brought back earlier files.
- `person`: somebody else, because no turn of the session ran.
- `unknown`: both may have.
- `crash`: nobody; a turn died after this state, so that it is not known who changed what follows.
- `stored`: nobody; the files of a checkpoint, which the directory did not have at that time.
"""

NOT_RESTORED = "not restored: "
"""The beginning of the sentence on files that cannot be restored, and stay because that is forced."""

IMPORTED = "imported"
"""The settings key that marks imported files that have never been in this workspace."""


@dataclass(frozen=True, kw_only=True)
class FileChange:
    """The change to one path."""

    action: str
    path: str
    why: str = ""

    def __str__(self) -> str:
        return f"{self.action} {escape_path(self.path)}" + (f": {escape_path(self.why)}" if self.why else "")


@dataclass(frozen=True, kw_only=True)
class FileChanges:
    """The changes to the files of a workspace."""

    workspace: str
    snapshot: str
    changes: list[FileChange] = field(default_factory=list)
    safety: str = ""
    problem: str = ""
    everything: bool = False
    unseen: list[str] = field(default_factory=list)  # sentences on excluded directories, which are left as they are
    replaced_versions: str = ""
    """In a plan, a hash of the contents that are to be replaced or deleted: newer ones are not confirmed."""
    now: str = ""
    """The snapshot after a restore that left files as they were."""

    @property
    def is_needed(self) -> bool:
        """True if something would change, or cannot; `missing`, `left` and `outside` do not change."""
        return bool(self.problem or self.everything or self.changed)

    @property
    def changed(self) -> set[str]:
        """The paths that change, or are in conflict."""
        return {one.path for one in self.changes if one.action not in (MISSING, LEFT, OUTSIDE)}

    @property
    def is_restorable(self) -> bool:
        """True if nothing prevents a restore: no problem, and no conflict that is not forced."""
        return not (self.problem or self.conflicts)

    def forced(self) -> Self:
        """Return the changes that `force=True` makes: files in conflict, or that cannot be restored, stay."""
        changes = [replace(one, action=LEFT) if one.action == CONFLICT else one for one in self.changes]
        stays = [f"{NOT_RESTORED}{Reason.of(self.problem).message.removesuffix('.')}"] if self.problem else []
        return replace(self, changes=changes, problem="", unseen=[*self.unseen, *stays])

    @property
    def conflicts(self) -> list[str]:
        """The paths that both a turn and somebody else have changed."""
        return [change.path for change in self.changes if change.action == CONFLICT]

    @property
    def not_restored(self) -> str:
        """Why nothing can be restored, also if it is forced; empty if something can."""
        stays = (one.removeprefix(NOT_RESTORED) for one in self.unseen if one.startswith(NOT_RESTORED))
        return Reason.of(self.problem).message.removesuffix(".") or next(stays, "")

    @property
    def summary(self) -> Reason:
        """A sentence that counts the changes by action, with the next steps if nothing can be restored."""
        counts = {action: sum(c.action == action for c in self.changes) for action in _WORDING}
        groups = ["all to be restored by the environment"] if self.everything else []
        text = ", ".join([*groups, *(f"{count(n, 'file')} {_WORDING[action]}" for action, n in counts.items() if n)])
        problem = Reason.of(self.problem)
        text = problem.message.removesuffix(".") or (text.replace("to be ", "") if self.safety else text)
        text = "; ".join([text or ("nothing to change" if self.unseen else "unchanged"), *self.unseen])
        return Reason(f"Files: {text}.", *problem.next)

    def __str__(self) -> str:
        return "\n".join([*(f"  {change}" for change in self.changes), self.summary])

    def to_dict(self) -> dict[str, Any]:
        """Return the changes as JSON-like data, which `from_dict` reads."""
        changes = [vars(change) for change in self.changes]
        return {**vars(self), "changes": changes, **Reason.of(self.problem).to_dict("problem")}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create the changes from the data that `to_dict` returned, also after a round trip through JSON."""
        known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
        changes = [FileChange(**change) for change in data["changes"]]
        return cls(**known | {"changes": changes, "problem": Reason.from_dict(data, "problem")})


_WORDING = {
    WRITE: "to be restored",
    DELETE: "to be deleted",
    ASIDE: "to be moved aside",
    CONFLICT: "in conflict with a change by somebody else",
    MISSING: "missing",
    LEFT: "left unchanged",
    OUTSIDE: "outside the workspace, left unchanged",
    OVERWRITTEN: "to be overwritten (changed by somebody else)",
}


@dataclass(frozen=True, kw_only=True)
class SnapshotRef:
    """The files of a workspace at one moment."""

    snapshot: str
    settings: Mapping[str, Any]
    row: int | None = None  # the directory may have had the same files at other moments

    @property
    def is_imported(self) -> bool:
        """True if the snapshot was imported and its files have never been in this workspace."""
        return bool(self.settings.get(IMPORTED))

    def without_import_mark(self) -> SnapshotRef:
        """Return the same files without the import mark, once they are in the workspace."""
        return replace(self, settings={name: value for name, value in self.settings.items() if name != IMPORTED})
