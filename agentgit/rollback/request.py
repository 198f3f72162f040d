"""Requests for a rollback, or for a switch to another branch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agentgit.effects.files import FilesAt
from agentgit.effects.plan import EXECUTE, RECORD, REPLAY_MODES, ROLLBACK, TOOLS_MODES, WORLD_ONLY
from agentgit.errors import InvalidInput
from agentgit.store.records.sessions import Found

ON_ERROR = ("stop", "continue")
"""The ways to treat an undo function or a tool that raises, or a tool that runs again and returns something else."""

SYNC_MODES = ("world", "note", "ignore")
"""The ways a switch treats a world that another branch has changed."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A rollback that somebody asks for.

    Args:
        user_id: The id of the user who asks.
        source_id: The branch that is left.
        target: The row of the checkpoint to go to.
        label: The name that the user gave for it.
        tools: One of `TOOLS_MODES`.
        files: True to bring the files of a workspace back to the target's; or which ones to bring back instead.
        conversation: False to move only the world, and stay on the branch.
        replay: One of `REPLAY_MODES`.
        name: The name of the new branch; None for a free one.
        force: True to keep what stands in the way.
        on_error: One of `ON_ERROR`.
        on_drift: One of `ON_ERROR`.
        request_id: The caller's own name for this rollback, unique in the session.

    Raises:
        InvalidInput: One of these means nothing, or they contradict each other.
    """

    user_id: int
    source_id: int
    target: Found
    label: str
    tools: str = "reverse"
    files: bool | FilesAt = True
    conversation: bool = True
    replay: str = RECORD
    name: str | None = None
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "stop"
    request_id: str | None = None

    def __post_init__(self) -> None:
        expect("tools", self.tools, TOOLS_MODES)
        expect("replay", self.replay, REPLAY_MODES)
        expect("on_error", self.on_error, ON_ERROR)
        expect("on_drift", self.on_drift, ON_ERROR)
        if self.request_id is not None and not _fits(self.request_id):
            raise InvalidInput(f"request_id must be a printable string of 1 to 64 characters, not {self.request_id!r}.")
        if not self.conversation:
            self._require_world_only()
        if self.replay == EXECUTE and self.tools == "keep":
            raise InvalidInput(
                "replay='execute' reverses the calls of the path and then makes them again; with tools='keep' they "
                "would happen twice. Leave tools out. For a fresh world, start a new session: "
                "repo.wrap(graph, 'NEW NAME', template='SESSION@CHECKPOINT', replay='execute')."
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
        """The kind of its plan."""
        return ROLLBACK if self.conversation else WORLD_ONLY


@dataclass(frozen=True, kw_only=True)
class SwitchRequest:
    """A switch to a branch that brings branch and world together.

    Args:
        user_id: The id of the user who asks for it.
        source_id: The branch that is left.
        branch: The row of the branch to continue on.
        sync: One of `SYNC_MODES`.
        force: True to keep what cannot be reversed, and to bring back files that others have changed.
        on_error: One of `ON_ERROR`.
        on_drift: One of `ON_ERROR`.
        current: False to leave the session on the branch where it is.

    Raises:
        InvalidInput: One of these means nothing.
    """

    user_id: int
    source_id: int
    branch: Found
    sync: str
    force: bool = False
    on_error: str = "stop"
    on_drift: str = "continue"
    current: bool = True

    def __post_init__(self) -> None:
        expect("sync", self.sync, SYNC_MODES)
        expect("on_error", self.on_error, ON_ERROR)
        expect("on_drift", self.on_drift, ON_ERROR)


def expect(name: str, value: Any, modes: tuple[str, ...]) -> None:
    """Check that an argument is one of several words.

    Raises:
        InvalidInput: It is not.
    """
    if value not in modes:
        raise InvalidInput(f"{name} must be {', '.join(map(repr, modes[:-1]))} or {modes[-1]!r}, not {value!r}.")


def _fits(request_id: Any) -> bool:
    return isinstance(request_id, str) and 0 < len(request_id) <= 64 and request_id.isprintable()
