"""The Checkpoint: one saved point of a branch, as a plain value without IO."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from reprlib import repr as short_repr
from typing import Any, ClassVar, Protocol

from agentgit.errors import InvalidInput
from agentgit.values import COUNT, FLAG, OBJECT, TIME, Deferred, Displayable, TableList, count


class HasState(Protocol):
    """The attributes of a session that `Checkpoint.from_internal_session` needs."""

    id: int | None
    session_state: dict[str, Any]
    conversation_history: list[dict[str, Any]]


@dataclass(repr=False)
class Checkpoint(Displayable, Deferred):
    """An immutable saved point of a branch: its state, its conversation and its tool invocations.

    Args:
        id: The id in the database, below 2^53; None before the checkpoint is stored.
        internal_session_id: The id of its branch.
        checkpoint_name: The name that a user gave it; None for most automatic checkpoints.
        session_state: The values of the graph's state, without the messages.
        conversation_history: Messages as dicts with `role`, `content`, `id`, `tool_calls`, `tool_call_id`.
        is_auto: True if agentgit made it automatically.
        created_at: The time of creation, aware UTC.
        metadata: Counts, position and other facts, JSON-like.
        user_id: The id of the user who made it.
        tool_invocations: The tool track up to this point, as dicts, oldest first.

    Example:
        >>> before = Checkpoint(checkpoint_name="before payment", session_state={"cart": ["chair"]})
        >>> Checkpoint.from_dict(before.to_dict()) == before
        True
    """

    CONTENT: ClassVar[tuple[str, ...]] = ("session_state", "conversation_history", "tool_invocations")

    id: int | None = None
    internal_session_id: int = 0
    checkpoint_name: str | None = None
    session_state: dict[str, Any] = field(default_factory=dict)
    conversation_history: list[dict[str, Any]] = field(default_factory=list)
    is_auto: bool = False
    created_at: datetime | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    user_id: int | None = None
    tool_invocations: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return exactly the ten fields as a dict, `created_at` in ISO form or None.

        Example:
            >>> sorted(Checkpoint().to_dict())[:3]
            ['checkpoint_name', 'conversation_history', 'created_at']
        """
        data = {f.name: copy.deepcopy(getattr(self, f.name)) for f in fields(self)}
        data["created_at"] = self.created_at.isoformat() if self.created_at else None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Checkpoint:
        """Create a checkpoint from any subset of the ten fields; the inverse of `to_dict`.

        None stands for the default of a field. A newer version of agentgit may write more fields than these ten; they
        are ignored if all ten are there. In a dict with fewer, another key is a mistake.

        Args:
            data: Field names to values; `created_at` may be ISO text, a datetime or None.

        Raises:
            InvalidInput: `data` is not a dict, a key is not a field, or a value has the wrong type.

        Example:
            >>> newer = {**Checkpoint(checkpoint_name="start").to_dict(), "metadata": None, "colour": "red"}
            >>> Checkpoint.from_dict(newer) == Checkpoint(checkpoint_name="start")
            True
        """
        if not isinstance(data, Mapping):
            raise InvalidInput(f"A checkpoint is a dict of its fields, not {short_repr(data)}.")
        field_names = {f.name for f in fields(cls)}
        unknown = sorted(str(key) for key in data if key not in field_names)
        if unknown and not field_names <= set(data):
            raise InvalidInput(
                f"A checkpoint has no field {', '.join(name[:40] for name in unknown[:5])}; it has "
                f"{', '.join(sorted(field_names))}."
            )
        given = {name: data[name] for name in field_names if data.get(name) is not None}
        _check_types(given)
        try:
            values: dict[str, Any] = copy.deepcopy(given)
        except RecursionError as error:
            raise InvalidInput("A checkpoint is nested too deeply.") from error
        created_at = values.get("created_at")
        if isinstance(created_at, str):
            try:
                values["created_at"] = datetime.fromisoformat(created_at)
            except ValueError as error:
                raise InvalidInput(f"created_at {short_repr(created_at)} is not an ISO 8601 time.") from error
        return cls(**values)

    @classmethod
    def from_internal_session(
        cls,
        internal_session: HasState,
        checkpoint_name: str | None = None,
        is_auto: bool = False,
        user_id: int | None = None,
        tool_invocations: list[dict[str, Any]] | None = None,
    ) -> Checkpoint:
        """Create a checkpoint with deep copies of a branch's state and history, which later changes do not affect.

        Args:
            internal_session: The branch to copy.
            checkpoint_name: The name, or None.
            is_auto: True if no user requested it.
            user_id: The id of the user who makes it.
            tool_invocations: The tool track so far, oldest first.
        """
        invocations = copy.deepcopy(tool_invocations) if tool_invocations else []
        return cls(
            internal_session_id=internal_session.id or 0,
            checkpoint_name=checkpoint_name,
            session_state=copy.deepcopy(internal_session.session_state),
            conversation_history=copy.deepcopy(internal_session.conversation_history),
            is_auto=is_auto,
            created_at=datetime.now(UTC),
            metadata={"tool_track_position": len(invocations)},
            user_id=user_id,
            tool_invocations=invocations,
        )

    def get_summary(self) -> str:
        """Describe the checkpoint in one line: name, Auto or Manual, time, number of messages and of tool calls.

        Example:
            >>> Checkpoint(checkpoint_name="start").get_summary()
            'start (Manual) - no time - 0 messages, 0 tool calls'
        """
        return self._describe("Auto" if self.is_auto else "Manual")

    def __repr__(self) -> str:
        # Leave out the conversation: it may be long, and it may not have been fetched.
        reference = self.metadata.get("reference", "")
        return f"<Checkpoint {self.id} {reference}: {self._describe(self.kind)}>"

    @property
    def kind(self) -> str:
        """Why the checkpoint was made, in the word that a log shows: `before` or `after` a turn, `named`, …."""
        return str(self.metadata.get("kind") or ("auto" if self.is_auto else "named"))

    def _describe(self, kind: str) -> str:
        time = self.created_at.strftime("%Y-%m-%d %H:%M:%S") if self.created_at else "no time"
        messages = self._count("message_count", "conversation_history")
        calls = self._count("tool_track_position", "tool_invocations")
        counts = f"{count(messages, 'message')}, {count(calls, 'tool call')}"
        return f"{self.checkpoint_name or 'Unnamed'} ({kind}) - {time} - {counts}"

    def _count(self, key: str, content: str) -> int:
        """Return the length of a large field: the recorded length if the field itself was not fetched."""
        fetched = self.__dict__.get(content)
        return len(fetched) if fetched is not None else int(self.metadata.get(key, 0))

    def get_tool_track_position(self) -> int:
        """Return the number of tool invocations on the path to this point, 0 if it is not recorded."""
        return int(self.metadata.get("tool_track_position", 0))

    def has_tool_invocations(self) -> bool:
        """Return whether any tool was called on the path to this point."""
        return self._count("tool_track_position", "tool_invocations") > 0


_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "id": ((int,), "a whole number"),
    "internal_session_id": ((int,), "a whole number"),
    "checkpoint_name": ((str,), "a string"),
    "session_state": ((dict,), "a dict"),
    "conversation_history": ((list,), "a list of dicts"),
    "is_auto": ((bool,), "True or False"),
    "created_at": ((str, datetime), "a time"),
    "metadata": ((dict,), "a dict"),
    "user_id": ((int,), "a whole number"),
    "tool_invocations": ((list,), "a list of dicts"),
}
"""The types of each field of a checkpoint, and their description."""


def _check_types(values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        types, description = _TYPES[name]
        is_valid = isinstance(value, types) and (bool in types or not isinstance(value, bool))
        if isinstance(value, list):
            is_valid = is_valid and all(isinstance(item, dict) for item in value)
        if not is_valid:
            raise InvalidInput(f"{name} must be {description}, not {short_repr(value)}.")


class Checkpoints(TableList[Checkpoint]):
    """Checkpoints in order; a notebook shows them as a table.

    In a frame, the columns have the names of the fields and of the entries of `metadata`. States and messages are not
    loaded.
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "reference": OBJECT,
        "branch": OBJECT,
        "number": COUNT,
        "kind": OBJECT,
        "checkpoint_name": OBJECT,
        "description": OBJECT,
        "tags": OBJECT,
        "is_auto": FLAG,
        "created_at": TIME,
        "message_count": COUNT,
        "tool_track_position": COUNT,
        "data": OBJECT,
        "id": COUNT,
    }

    questions: Sequence[Any] = ()
    """What the graph asks at the head of their branch."""

    def _records(self) -> Iterable[Any]:
        return map(record_of, self)


def record_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the entries of a checkpoint's metadata and its small fields as one dict."""
    return {
        "tags": [],
        **checkpoint.metadata,
        "checkpoint_name": checkpoint.checkpoint_name,
        "is_auto": checkpoint.is_auto,
        "created_at": checkpoint.created_at,
        "id": checkpoint.id,
    }
