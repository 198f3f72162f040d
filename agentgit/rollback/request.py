"""Requests for a rollback, or for a switch to another branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypedDict

from agentgit.effects import RollbackPlan
from agentgit.effects.files import SnapshotRef
from agentgit.effects.plan import EXECUTE, RECORD, REPLAY_MODES, ROLLBACK, TOOLS_MODES, WORLD_ONLY
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next, Verb
from agentgit.store.records.sessions import StoredRow

ON_ERROR = ("stop", "continue")
"""What to do when an undo function or a tool raises, or a tool that runs again returns something different."""

SYNC_MODES = ("world", "note", "ignore")
"""How a switch handles a world that another branch has changed: reconcile it, note the changes, or ignore them."""

OVERWRITE = "overwrite"

FilesOption = bool | Literal["overwrite"]
"""Whether files are restored, or also over the versions of others that are in conflict."""

AS_REQUESTED = "the files of the workspace are left as they are, as requested"
"""Why files stay if the user does not want them restored."""

NONE_RESTORED, NOT_ALL_RESTORED = "no file of the workspace can be restored", "not all files can be restored"
"""Why files stay if they cannot be restored."""

ConfirmedPlan = RollbackPlan | str | None
"""The plan that a person confirmed, or its identity; None if nobody was asked."""


class RollbackKeywords(TypedDict, total=False):
    """The options of a rollback that its callers choose; see `Session.rollback`."""

    tools: str
    files: FilesOption
    conversation: bool
    replay: str
    name: str | None
    force: bool
    on_error: str
    on_drift: str
    request_id: str | None
    plan: ConfirmedPlan


@dataclass(frozen=True, kw_only=True)
class RollbackOptions:
    """The options of a rollback; see `Session.rollback`."""

    tools: str = "reverse"
    files: FilesOption | SnapshotRef = True
    conversation: bool = True
    replay: str = RECORD
    name: str | None = None
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "stop"
    request_id: str | None = None
    epoch: int | None = None
    only_from_current: bool = False
    why_files_stay: str | None = None
    """Why no file is restored, or not all of them; None if they are, or if the request does not want it."""
    plan: ConfirmedPlan = None


@dataclass(frozen=True, kw_only=True)
class Request(RollbackOptions):
    """A request for a rollback."""

    user_id: int
    source_id: int
    target: StoredRow
    label: str
    ref: str | int | None = None
    """The reference by which another call can name the target; None if none can."""
    overwrites_files: bool = False
    undoes: int | None = None
    """The rewind of files that this undoes."""

    def __post_init__(self) -> None:
        if not isinstance(self.files, SnapshotRef):
            require_one_of("files", self.files, (True, False, OVERWRITE))
        require_one_of("tools", self.tools, TOOLS_MODES)
        require_one_of("replay", self.replay, REPLAY_MODES)
        require_one_of("on_error", self.on_error, ON_ERROR)
        require_one_of("on_drift", self.on_drift, ON_ERROR)
        require_request_id(self.request_id)
        if not self.conversation:
            self._require_world_only()
        if self.replay == EXECUTE and self.tools in ("keep", "reversible"):
            raise InvalidInput(
                "The calls of the path are to be reversed and then made again; the effects of calls that stay "
                f"({self.tools}) would happen twice. For a fresh world, start a new session with this checkpoint as "
                "its template."
            )

    def _require_world_only(self) -> None:
        if self.is_of_files and not self.files:
            raise InvalidInput(
                "Nothing would be rolled back: conversation, tools and files are all off. Leave one of them on."
            )
        if self.name is not None or self.replay == EXECUTE:
            raise InvalidInput(
                "A rollback of the world alone makes no new branch: it takes no name, and makes no calls again."
            )

    @property
    def kind(self) -> str:
        """The kind of the plan."""
        return ROLLBACK if self.conversation else WORLD_ONLY

    @property
    def over_conflicts(self) -> list[Next]:
        """The next steps where files are in conflict."""
        if self.is_of_files or not self._has_options:
            verb: Verb = "rewind_files" if self.is_of_files else "overwrite_files"
            return [Next("force_files"), *([Next(verb, checkpoint=self.ref)] if self.ref is not None else [])]
        return [Next("force_files"), Next("add_overwrite")]

    @property
    def without_files(self) -> list[Next]:
        """The next steps where the files cannot be restored."""
        if self.is_of_files:
            return [Next("rewind_other")]
        if self._has_options:
            return [Next("add_no_files")]
        return [Next("no_files", checkpoint=self.ref)] if self.ref is not None else []

    @property
    def _has_options(self) -> bool:
        """True if another call must have these options, too, so that a next step names only what is added."""
        return (self.tools, self.conversation, self.replay) != ("reverse", True, RECORD)

    @property
    def is_of_files(self) -> bool:
        """True if files alone are restored."""
        return not self.conversation and self.tools == "keep"


@dataclass(frozen=True, kw_only=True)
class SwitchRequest:
    """A request for a switch to another branch that reconciles the branch with the world."""

    user_id: int
    source_id: int
    branch: StoredRow
    sync: str
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "continue"
    current: bool = True
    only_from_current: bool = False
    plan: ConfirmedPlan = None
    overwrites_files: ClassVar = False
    is_of_files: ClassVar = False

    def __post_init__(self) -> None:
        require_one_of("sync", self.sync, SYNC_MODES)
        if self.plan is not None and self.sync != "world":
            raise InvalidInput(
                f"A plan is of a change of the world, and nothing is changed with {self.sync!r}. Leave the plan out."
            )
        require_one_of("on_error", self.on_error, ON_ERROR)
        require_one_of("on_drift", self.on_drift, ON_ERROR)

    @property
    def over_conflicts(self) -> list[Next]:
        """The next steps where files are in conflict."""
        return [Next("force_files")]

    @property
    def without_files(self) -> list[Next]:
        """The next steps where the files cannot be restored."""
        return [Next("force_files"), Next("switch_ignore", branch=self.branch.name)]


def require_one_of(name: str, value: Any, modes: tuple[str | bool, ...]) -> None:
    """Check that an argument is one of several allowed values."""
    if value not in modes:
        raise InvalidInput(f"{name} must be {', '.join(map(repr, modes[:-1]))} or {modes[-1]!r}, not {value!r}.")


def require_request_id(request_id: Any) -> None:
    """Check that a value can be the id of a request."""
    if request_id is None or (isinstance(request_id, str) and 0 < len(request_id) <= 64 and request_id.isprintable()):
        return
    raise InvalidInput(f"request_id must be a printable string of 1 to 64 characters, not {request_id!r}.")
