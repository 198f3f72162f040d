"""`ToolInvocation`: one call of one tool, with its identity, its status in the journal and its mark in a tree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields
from datetime import datetime
from reprlib import Repr
from typing import Any, ClassVar, Self

from agentgit.effects.kinds import IRREVERSIBLE, REVERSIBLE, UNDECLARED, WORKSPACE, Kind, kind_of
from agentgit.errors import InvalidInput, NotFound
from agentgit.values import COUNT, OBJECT, TIME, Displayable, TableList, to_json


def identity(tool_name: str, args: Mapping[str, Any], identity_args: Sequence[str] | None) -> str:
    """Return a hash that is the same for identical calls."""
    values = {name: value for name, value in args.items() if identity_args is None or name in identity_args}
    return hashlib.sha256(to_json([tool_name, _canonical(values)])).hexdigest()


def _canonical(value: Any) -> Any:
    """Sort the keys of nested dicts, and convert whole floats to integers."""
    if isinstance(value, Mapping):
        return [[key, _canonical(value[key])] for key in sorted(value)]
    if isinstance(value, list):
        return [_canonical(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a model may write the same amount as 5 or as 5.0
    return value


def call_key(branch_id: int, caller_id: str, call_id: str, tool_name: str) -> str:
    """Return the idempotency key of a call. Every attempt at the call has the same key."""
    return _digest(f"{branch_id}\0{caller_id}\0{call_id}\0{tool_name}")


def repeat_key(key: str, discriminator: str = "") -> str:
    """Return the idempotency key of a call that is made again because its effect was reversed."""
    return _digest(f"{key}\0{discriminator}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


_current_key: ContextVar[str | None] = ContextVar("agentgit_idempotency_key", default=None)


def idempotency_key() -> str:
    """Return the idempotency key of the running tool call.

    Pass it to a service that executes each request at most once per key. Every attempt at the same call has the same
    key: a retry, and the attempt after a crash. A call that was reversed and is made again has a new key.

    Example:
        >>> with idempotency_key_set("5e91f633"):
        ...     idempotency_key()
        '5e91f633'
    """
    key = _current_key.get()
    if key is None:
        raise NotFound("No recorded tool call is running here. Call this inside a tool that a wrapped graph calls.")
    return key


@contextmanager
def idempotency_key_set(key: str | None) -> Iterator[None]:
    """Set the idempotency key of the running call for the duration of the block."""
    token = _current_key.set(key)
    try:
        yield
    finally:
        _current_key.reset(token)


CALL, REPLAY, REDO, UNOWNED = CALL_KINDS = "call", "replay", "redo", "unowned"
"""The kinds of invocation: the tool was called, the call was answered from the record, the tool ran again, or it was
called in threads that no turn owns."""

TIMES = "times"
"""The argument of an unowned invocation: how often the tool was called."""

INTENDED = "intended"
PAUSED = "paused"
DONE = "done"
FAILED = "failed"
UNKNOWN = "unknown"
REVERSING = "reversing"
REVERSED = "reversed"
REVERSE_FAILED = "reverse_failed"
REVERSE_UNKNOWN = "reverse_unknown"
SIMULATED = "simulated"
"""The status of a call on a rerun that was answered without its tool: its effect never existed."""

TRANSITIONS: dict[str, frozenset[str]] = {
    INTENDED: frozenset({DONE, FAILED, PAUSED, UNKNOWN}),
    UNKNOWN: frozenset({DONE, FAILED, REVERSING, UNKNOWN}),
    DONE: frozenset({REVERSING}),
    REVERSING: frozenset({REVERSED, REVERSE_FAILED, REVERSE_UNKNOWN}),
    REVERSE_FAILED: frozenset({REVERSING, REVERSED}),
    REVERSE_UNKNOWN: frozenset({REVERSED, REVERSE_FAILED, REVERSING}),
}
"""The statuses that may follow each status. An undo ends an unknown one only if it is declared `undo_if_unknown`."""

STANDING = frozenset({INTENDED, DONE, UNKNOWN, FAILED, REVERSING, REVERSE_FAILED, REVERSE_UNKNOWN})
"""The statuses in which the call may have an effect in the world."""

DECISIONS = {
    UNKNOWN: {"happened": DONE, "did_not_happen": FAILED},
    REVERSE_UNKNOWN: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
    REVERSE_FAILED: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
}
"""The status that follows a person's decision on whether the call, or its reversal, happened."""


IMPORTED_REASON = "it was imported: it happened in another world"
"""The reason why an imported call is never reversed, verified or automatically run again."""

NEVER_RUNS_REASON = "it was imported, and what a file brings never runs"
"""The reason why a simulated call, or one on the path of `replay="execute"`, is blocked."""

NOTHING_UNDONE = "nothing was undone: "
VERIFIED = "verified: it is still there"
RESOLVED = "resolved: it did not happen"
"""How the error of a call whose reversal certainly did not happen begins."""

DIED = "its reversal was interrupted"

_VERIFY_RAISED = "its verify raised "
"""The prefix of the error of a failed `verify` in an error message."""

_TIME_FIELDS = ("started_at", "ended_at")


class _ShortRepr(Repr):
    """A `repr` that abbreviates large values."""

    def repr_str(self, x: str, level: int) -> str:
        """Return the beginning of a string; the base class returns both ends."""
        return repr(x) if len(x) <= _MAX_LENGTH else f"{x[:_MAX_LENGTH]!r}…"


_MAX_LENGTH = 40
"""The maximum number of characters of a string to show."""

short_repr = _ShortRepr().repr
"""A function that returns an abbreviated repr of a value."""


@dataclass(frozen=True, kw_only=True)
class ToolInvocation(Displayable):
    """One call of one tool.

    Args:
        id: The id in the database.
        internal_session_id: The branch whose track it is on.
        position: Its position on the track, counted from 0 at the root of the session.
        tool_name: The name of the tool.
        args: The arguments of the call, JSON-like.
        result: Its return value, JSON-like; None unless it is done or simulated, or returned an error message.
        error_message: The error that the call raised or returned, if any; and the error of its `verify`, if the
            outcome is unknown.
        status: `intended`, `paused`, `done`, `failed`, `unknown`, `reversing`, `reversed`, `reverse_failed`,
            `reverse_unknown`, or `simulated` (a rerun answered it, and its tool did not run).
        effect: The effect of the tool, as declared when it was called.
        tool_call_id: The id of the call in the AI message; None if no message requested it.
        started_at: The start time, timezone-aware UTC.
        ended_at: The end time, timezone-aware UTC; None while the call runs, or if the time is unknown.
        replay_of: The id of the recorded invocation that this one replays or runs again.
        idempotency_key: The idempotency key, the same for every attempt at this call.
        undo: The qualified name of the undo function that was declared when the tool was called, if any. It is never
            imported.
        verify: The qualified name of the function that checks whether the call happened, if any.
        precheck: The qualified name of the function that checks whether the call can be undone, if any.
        kind: `call`; `replay` if the call was answered from the record; `redo` if the tool ran again in place of an
            earlier invocation, at whose place the track shows it; `unowned` if it was called in threads that no turn
            owns, as often as the argument `times` says.
        identity: The hash by which identical calls are recognized, for tools that need it.
        made_on: For an imported call, the id that its branch had in the original session; None if the call was made
            here.
        tool_path: The qualified name of the tool's function or class. It is never imported. None if it is not known.
        enclosing: The name of the innermost tool or subgraph node in which the call was made; None in the graph itself.
        parent_id: The id of the call whose tool made this one; None if no tool did.
        runs: The number of times that the tool started. It starts again each time that it has waited for a person's
            answer, and the code before the question runs again.
    """

    id: int
    internal_session_id: int
    position: int
    tool_name: str
    args: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error_message: str | None = None
    status: str = INTENDED
    effect: Kind = UNDECLARED
    tool_call_id: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    replay_of: int | None = None
    idempotency_key: str = ""
    undo: str | None = None
    verify: str | None = None
    precheck: str | None = None
    kind: str = "call"
    identity: str | None = None
    made_on: int | None = None
    tool_path: str | None = None
    enclosing: str | None = None
    parent_id: int | None = None
    runs: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "effect", kind_of(self.effect))

    @property
    def secret_argument(self) -> str | None:
        """The name of an argument that contains a secret, which is not stored; None if there is none."""
        return next((name for name, value in self.args.items() if b'"**********"' in to_json(value)), None)

    @property
    def is_imported(self) -> bool:
        """True if the call was imported: its effect is not in the world of this session."""
        return self.made_on is not None

    @property
    def ended_with_error(self) -> bool:
        """True if the call raised or returned an error, and may have acted. False for an interrupted one."""
        return self.status == UNKNOWN and self.ended_at is not None

    @property
    def failure(self) -> str:
        """The error with which the call ended, as the end of a sentence about it."""
        return f"{'raised' if self.result is None else 'returned the error'} {self.error_message}"

    @property
    def may_be_repeated(self) -> bool:
        """True if the call ended with an error and is reversible. It then blocks nothing, whether or not it acted."""
        return self.ended_with_error and self.effect == REVERSIBLE

    @property
    def undo_may_have_acted(self) -> bool:
        """True if the undo of the call failed, and nothing proves that it did nothing."""
        is_proven = (self.error_message or "").startswith((NOTHING_UNDONE, VERIFIED, RESOLVED))
        return self.status == REVERSE_UNKNOWN or (self.status == REVERSE_FAILED and not is_proven)

    @property
    def first_id(self) -> int:
        """The id of the call that this one runs again; for any other call, its own id."""
        return self.id if self.replay_of is None or self.kind != REDO else self.replay_of

    @property
    def verify_raised(self) -> str | None:
        """The error of the call's `verify`, as in the error message; None if there is none."""
        _, prefix, verify_error = (self.error_message or "").partition(_VERIFY_RAISED)
        return prefix + verify_error or None

    @property
    def own_error(self) -> str | None:
        """The error of the call or its undo, without the error of its `verify`; None if there is none."""
        return (self.error_message or "").partition(_VERIFY_RAISED)[0].removesuffix("; ") or None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, with times in ISO 8601 format."""
        times = {name: getattr(self, name) for name in _TIME_FIELDS}
        return vars(self) | {name: time.isoformat() if time else None for name, time in times.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create an invocation from the data that `to_dict` returned, also after a round trip through JSON.

        Keys that a newer version of agentgit has added are ignored.

        Raises:
            InvalidInput: The data is not an invocation.
        """
        required = [one.name for one in fields(cls) if one.default is MISSING and one.default_factory is MISSING]
        if missing := [name for name in required if name not in data]:
            raise InvalidInput(f"Not a tool invocation: it has no {', '.join(missing)}. Pass what to_dict() returned.")
        try:
            known = {one.name: data[one.name] for one in fields(cls) if one.name in data}
            times = {name: datetime.fromisoformat(data[name]) if data.get(name) else None for name in _TIME_FIELDS}
            return cls(**{**known, **times})
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"Not a tool invocation: {error}. Pass what to_dict() returned.") from error

    def __str__(self) -> str:
        return call_text(self.tool_name, self.args)


def call_text(tool_name: str, args: Mapping[str, Any]) -> str:
    """Return a call as a line of Python, with abbreviated arguments."""
    return f"{tool_name}({', '.join(f'{key}={short_repr(value)}' for key, value in args.items())})"


def join_errors(error: str | None, verify_error: str | None) -> str | None:
    """Combine the error of a call and the error of its `verify` into one message."""
    return "; ".join(filter(None, [error, _VERIFY_RAISED + verify_error if verify_error else None])) or None


class ToolTrack(TableList[ToolInvocation]):
    """A list of tool calls in order. A notebook shows it as a table."""

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "position": COUNT,
        "tool_name": OBJECT,
        "args": OBJECT,
        "result": OBJECT,
        "effect": OBJECT,
        "status": OBJECT,
        "error_message": OBJECT,
        "kind": OBJECT,
        "started_at": TIME,
        "ended_at": TIME,
        "runs": COUNT,
        "id": COUNT,
        "replay_of": COUNT,
        "tool_call_id": OBJECT,
    }


MARKS = ("running", "done", "irreversible", "reversed", "failed", "unknown")
"""The marks of a call, in display order."""

_MARK_OF_STATUS = {
    INTENDED: "running",
    REVERSING: "running",
    DONE: "done",
    REVERSED: "reversed",
    FAILED: "failed",
    UNKNOWN: "unknown",
    REVERSE_FAILED: "unknown",
    REVERSE_UNKNOWN: "unknown",
}


def mark(effect: str, status: str) -> str | None:
    """Return the mark that a call gets in a tree; None if it gets none."""
    if kind_of(effect).is_neutral or effect == WORKSPACE:
        return None
    status_mark = _MARK_OF_STATUS.get(status)
    return IRREVERSIBLE if status_mark == "done" and effect == IRREVERSIBLE else status_mark
