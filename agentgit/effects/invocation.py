"""The ToolInvocation: one call of one tool, its identity, its status in the journal, and its mark in a tree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from datetime import datetime
from reprlib import Repr
from typing import Any, Self

from agentgit.effects.effects import IRREVERSIBLE, READ_ONLY, REVERSIBLE
from agentgit.errors import InvalidInput, NotFound
from agentgit.values import Listed, Shown, to_json


def identity(tool_name: str, args: Mapping[str, Any], identity_args: Sequence[str] | None) -> str:
    """Hash what makes a call the same as another one.

    Args:
        tool_name: The name of the tool.
        args: The arguments of the call, JSON-like; 5 and 5.0 are the same.
        identity_args: The names of the arguments that count; None for all. One that is missing counts as missing.

    Example:
        >>> one = identity("pay", {"to": "Ann", "euros": 5, "reference": "a1"}, ["to", "euros"])
        >>> one == identity("pay", {"euros": 5, "reference": "b2", "to": "Ann"}, ["to", "euros"])
        True
    """
    counted = {name: value for name, value in args.items() if identity_args is None or name in identity_args}
    return hashlib.sha256(to_json([tool_name, _sorted(counted)])).hexdigest()


def _sorted(value: Any) -> Any:
    """Bring the keys of dicts, however deep, into one order, and whole numbers into one form."""
    if isinstance(value, Mapping):
        return [[key, _sorted(value[key])] for key in sorted(value)]
    if isinstance(value, list):
        return [_sorted(item) for item in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)  # a model writes the same amount now so, now so
    return value


def call_key(branch_id: int, place: str, call: str, tool_name: str) -> str:
    """Make the idempotency key of a call: every attempt at it has the same.

    Args:
        branch_id: The branch that makes it.
        place: The AI message that asked for it, or the task that makes it.
        call: Its id there; models may use the same one in another place.
        tool_name: The name of the tool.
    """
    return _digest(f"{branch_id}\0{place}\0{call}\0{tool_name}")


def key_after(key: str, what: str = "") -> str:
    """Make the idempotency key of a call that is made once more, because its effect was taken back.

    Args:
        key: The key before it.
        what: The part that makes it another one, if several come after that one.
    """
    return _digest(f"{key}\0{what}")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]


_key: ContextVar[str | None] = ContextVar("agentgit_idempotency_key", default=None)


def idempotency_key() -> str:
    """Return the idempotency key of the tool call that is running, for a service that makes a call with it only once.

    Every attempt at the same call has the same key: a retry, and the attempt after a crash. A call that was reversed
    and is made again has another one.

    Raises:
        NotFound: No recorded call is running here.

    Example:
        >>> with running("5e91f633"):
        ...     idempotency_key()
        '5e91f633'
    """
    key = _key.get()
    if key is None:
        raise NotFound("No recorded tool call is running here. Call this inside a tool that a wrapped graph calls.")
    return key


@contextmanager
def running(key: str | None) -> Iterator[None]:
    """Mark a call as the running one until the block ends."""
    token = _key.set(key)
    try:
        yield
    finally:
        _key.reset(token)


CALL, REPLAY, REDO = "call", "replay", "redo"
"""Why there is an invocation: the tool was called, the record answered for it, or it ran again for an earlier one."""

INTENDED = "intended"
PAUSED = "paused"
DONE = "done"
FAILED = "failed"
UNKNOWN = "unknown"
REVERSING = "reversing"
REVERSED = "reversed"
REVERSE_FAILED = "reverse_failed"
REVERSE_UNKNOWN = "reverse_unknown"

MOVES: dict[str, frozenset[str]] = {
    INTENDED: frozenset({DONE, FAILED, PAUSED, UNKNOWN}),
    UNKNOWN: frozenset({DONE, FAILED}),
    DONE: frozenset({REVERSING}),
    REVERSING: frozenset({REVERSED, REVERSE_FAILED, REVERSE_UNKNOWN}),
    REVERSE_FAILED: frozenset({REVERSING, REVERSED}),
    REVERSE_UNKNOWN: frozenset({REVERSED, REVERSE_FAILED}),
}
"""The states that may follow each state. Out of `unknown` leads only the call's own late end or a person's word."""

STANDING = frozenset({INTENDED, DONE, UNKNOWN, FAILED, REVERSING, REVERSE_FAILED, REVERSE_UNKNOWN})
"""The statuses in which something of the call may be in the world."""

DECISIONS = {
    UNKNOWN: {"happened": DONE, "did_not_happen": FAILED},
    REVERSE_UNKNOWN: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
    REVERSE_FAILED: {"happened": REVERSED, "did_not_happen": REVERSE_FAILED},
}
"""The state that follows when a person says that the call, or its reversal, happened or did not."""


ELSEWHERE = "it was imported: it happened in another world"
"""Why nothing is done about an imported call: not reversed, not looked for, not made again by itself."""

_VERIFY_RAISED = "its verify raised "
"""Begins what an error message says of a look at the world that failed."""

_TIMES = ("started_at", "ended_at")


class _Short(Repr):
    """Names a value in a few words, however much it holds."""

    def repr_str(self, x: str, level: int) -> str:
        """Return the beginning of a text; the base gives both ends."""
        return repr(x) if len(x) <= _LONGEST else f"{x[:_LONGEST]!r}…"


_LONGEST = 40
"""The number of characters that stand for a text."""

brief = _Short().repr
"""A function that returns the repr of a value in a few words."""


@dataclass(frozen=True, kw_only=True)
class ToolInvocation(Shown):
    """One call of one tool.

    Args:
        id: The identity in the database.
        internal_session_id: The branch whose track it is on.
        position: Its place on the track from the root of the session, from 0.
        tool_name: The name of the tool.
        args: The arguments of the call, JSON-like.
        result: Its return value, JSON-like; None unless it is done.
        error_message: The text of what it raised, if it did; and of what its `verify` raised, if the outcome is open.
        status: `intended`, `paused`, `done`, `failed`, `unknown`, `reversing`, `reversed`, `reverse_failed` or
            `reverse_unknown`.
        effect: The effect of the tool, as declared when it was called.
        tool_call_id: The id of the call in the AI message; None if no message asked for it.
        started_at: Aware UTC.
        ended_at: Aware UTC; None while it runs, and where it was never learned.
        replay_of: The recorded invocation that this one stands for on another branch.
        idempotency_key: The same for every attempt at this call.
        undo: The qualified name of its undo function as declared at the call, if it has one. It is never imported.
        verify: The qualified name of the function that looks whether it happened, if it has one.
        precheck: The qualified name of the function that looks whether it can be undone, if it has one.
        kind: `call`; `replay` if the tool did not run because the record had the answer; `redo` if it ran again in
            place of an earlier invocation, which is not on the track a second time.
        identity: The hash of what makes two calls the same, for tools of which that matters.
        made_on: The branch that made it, by its id in the session that it was imported from; None if it was made here.
        runs: How often its tool has begun: once more each time that it waited for a person's answer. What it does
            before a question, it does each time.
    """

    id: int
    internal_session_id: int
    position: int
    tool_name: str
    args: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error_message: str | None = None
    status: str = INTENDED
    effect: str = "undeclared"
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
    runs: int = 1

    @property
    def is_imported(self) -> bool:
        """True if it was made elsewhere: what it did is not in the world of this session."""
        return self.made_on is not None

    @property
    def has_raised(self) -> bool:
        """True if it raised and may have acted before; False also for one that was broken off, which never ended."""
        return self.status == UNKNOWN and self.ended_at is not None

    @property
    def may_be_repeated(self) -> bool:
        """True if it raised and is reversible: then it blocks nothing, whether or not it acted."""
        return self.has_raised and self.effect == REVERSIBLE

    @property
    def first_id(self) -> int:
        """The id of the call that this one repeats, if it ran again; else its own."""
        return self.id if self.replay_of is None or self.kind != REDO else self.replay_of

    @property
    def verify_raised(self) -> str | None:
        """The error that its `verify` raised, as in the error message; None if it raised none."""
        _, mark, said = (self.error_message or "").partition(_VERIFY_RAISED)
        return mark + said or None

    @property
    def own_error(self) -> str | None:
        """The error that the call or its undo raised: the error message without the error of its `verify`."""
        return (self.error_message or "").partition(_VERIFY_RAISED)[0].removesuffix("; ") or None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as a JSON-like dict, times in ISO form."""
        data = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in _TIMES:
            data[name] = data[name].isoformat() if data[name] else None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Read what `to_dict` gave, also after a way through JSON.

        Raises:
            InvalidInput: It is something else.
        """
        try:
            times = {name: datetime.fromisoformat(data[name]) if data.get(name) else None for name in _TIMES}
            return cls(**{**data, **times})
        except (TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"Not a tool invocation: {error}. Pass what to_dict() returned.") from error

    def __str__(self) -> str:
        args = ", ".join(f"{key}={brief(value)}" for key, value in self.args.items())
        return f"{self.tool_name}({args})"


def and_verify(error: str | None, raised: str | None) -> str | None:
    """Write into one error message what a call raised, and what its `verify` raised.

    Args:
        error: The error of the call or its undo; None if it raised nothing.
        raised: The error of the `verify`; None if it did not raise.

    Example:
        >>> and_verify("TimeoutError: late", "KeyError: 'id'")
        "TimeoutError: late; its verify raised KeyError: 'id'"
    """
    return "; ".join(filter(None, [error, _VERIFY_RAISED + raised if raised else None])) or None


class ToolTrack(Listed[ToolInvocation]):
    """Tool calls in order, which a notebook shows as a table."""


MARKS = ("running", "done", "irreversible", "reversed", "failed", "unknown")
"""The marks of a call, in the order to show them."""

_OF_STATUS = {
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
    """Return the mark of a call; None if it is nothing that somebody would want to see in a tree.

    Args:
        effect: The effect of the tool on the outside world.
        status: The call's, in the journal.

    Example:
        >>> mark("reversible", "done"), mark("irreversible", "done"), mark("read_only", "done")
        ('done', 'irreversible', None)
    """
    if effect == READ_ONLY:
        return None
    found = _OF_STATUS.get(status)
    return IRREVERSIBLE if found == "done" and effect == IRREVERSIBLE else found
