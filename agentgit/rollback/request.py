"""Requests for a rollback, or for a switch to another branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgit.effects.files import SnapshotRef
from agentgit.effects.plan import EXECUTE, RECORD, REPLAY_MODES, ROLLBACK, TOOLS_MODES, WORLD_ONLY
from agentgit.errors import InvalidInput
from agentgit.store.records.sessions import StoredRow

ON_ERROR = ("stop", "continue")
"""What to do when an undo function or a tool raises, or a tool that runs again returns something different."""

SYNC_MODES = ("world", "note", "ignore")
"""How a switch handles a world that another branch has changed: reconcile it, note the changes, or ignore them."""

AS_REQUESTED = "the files of the workspace are left as they are, as requested"
"""Why files stay if the user does not want them restored."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A request for a rollback.

    Args:
        user_id: The id of the user who asks for it.
        source_id: The branch that is left.
        target: The row of the checkpoint to go to.
        label: The user's name for the checkpoint.
        tools: One of `TOOLS_MODES`.
        files: True to restore the target's files of the workspace, False to leave the files alone, or the files to
            restore instead.
        why_files_stay: With `files=False`, the reason that the report gives.
        conversation: False to roll back only the world and the files, and stay on the branch.
        replay: One of `REPLAY_MODES`.
        name: The name of the new branch; None for a free one.
        force: True to keep effects that cannot be reversed, and to restore files that others have changed.
        on_error: One of `ON_ERROR`, for an undo function or a tool that raises.
        on_drift: One of `ON_ERROR`, for a tool that runs again and returns something different.
        request_id: An idempotency key of the caller, unique in the session.
        epoch: The number of runs that have taken the branch that is left; None if it does not matter.
        only_from_current: True to refuse if the branch that is left is no longer the session's current branch.

    Raises:
        InvalidInput: An argument is not valid, or arguments contradict each other.
    """

    user_id: int
    source_id: int
    target: StoredRow
    label: str
    tools: str = "reverse"
    files: bool | SnapshotRef = True
    conversation: bool = True
    replay: str = RECORD
    name: str | None = None
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "stop"
    request_id: str | None = None
    epoch: int | None = None
    only_from_current: bool = False
    why_files_stay: str = AS_REQUESTED

    def __post_init__(self) -> None:
        require_one_of("tools", self.tools, TOOLS_MODES)
        require_one_of("replay", self.replay, REPLAY_MODES)
        require_one_of("on_error", self.on_error, ON_ERROR)
        require_one_of("on_drift", self.on_drift, ON_ERROR)
        require_request_id(self.request_id)
        if not self.conversation:
            self._require_world_only()
        if self.replay == EXECUTE and self.tools in ("keep", "reversible"):
            raise InvalidInput(
                "replay='execute' reverses the calls of the path and then makes them again; with "
                f"tools={self.tools!r}, effects that stay would happen twice. Leave tools out. For a fresh world, "
                "start a new session with this checkpoint as its template."
            )

    def _require_world_only(self) -> None:
        if self.tools == "keep" and not self.files:
            raise InvalidInput(
                "Nothing would be rolled back: conversation, tools and files are all off. Leave one of them on."
            )
        if self.name is not None or self.replay == EXECUTE:
            raise InvalidInput("conversation=False makes no new branch, so it takes no name and no replay='execute'.")

    @property
    def kind(self) -> str:
        """The kind of the plan."""
        return ROLLBACK if self.conversation else WORLD_ONLY


@dataclass(frozen=True, kw_only=True)
class SwitchRequest:
    """A request for a switch to another branch that reconciles the branch with the world.

    Args:
        user_id: The id of the user who asks for it.
        source_id: The branch that is left.
        branch: The row of the branch to continue on.
        sync: One of `SYNC_MODES`.
        force: True to keep effects that cannot be reversed, and to restore files that others have changed.
        on_error: One of `ON_ERROR`, for an undo function or a tool that raises.
        on_drift: One of `ON_ERROR`, for a tool that runs again and returns something different.
        current: False to keep the session's current branch.
        only_from_current: True to refuse if the session has moved to a third branch.

    Raises:
        InvalidInput: An argument is not valid.
    """

    user_id: int
    source_id: int
    branch: StoredRow
    sync: str
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "continue"
    current: bool = True
    only_from_current: bool = False

    def __post_init__(self) -> None:
        require_one_of("sync", self.sync, SYNC_MODES)
        require_one_of("on_error", self.on_error, ON_ERROR)
        require_one_of("on_drift", self.on_drift, ON_ERROR)


def require_one_of(name: str, value: Any, modes: tuple[str, ...]) -> None:
    """Check that an argument is one of several allowed values.

    Raises:
        InvalidInput: It is not.
    """
    if value not in modes:
        raise InvalidInput(f"{name} must be {', '.join(map(repr, modes[:-1]))} or {modes[-1]!r}, not {value!r}.")


def require_request_id(request_id: Any) -> None:
    """Check that a value can be the id of a request.

    Args:
        request_id: The value; None for no id.

    Raises:
        InvalidInput: It cannot.
    """
    if request_id is None or (isinstance(request_id, str) and 0 < len(request_id) <= 64 and request_id.isprintable()):
        return
    raise InvalidInput(f"request_id must be a printable string of 1 to 64 characters, not {request_id!r}.")
