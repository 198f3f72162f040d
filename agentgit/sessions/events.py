"""Events, their kinds, and places in the feed of events. Pure values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from agentgit.errors import InvalidInput

KINDS: Mapping[str, str] = {
    "session.created": "a session was created",
    "session.renamed": "a session was renamed",
    "branch.renamed": "a branch was renamed",
    "session.imported": "a session was imported or updated from an export or a LangGraph thread",
    "turn.done": "a turn ended",
    "turn.waiting": "a turn ended with a question that a person must answer",
    "turn.failed": "a turn raised, or was interrupted",
    "turn.abandoned": "a turn was ended because its process died",
    "checkpoint.created": "a checkpoint was created",
    "checkpoint.annotated": "the name, description or data of a checkpoint was changed",
    "checkpoint.deleted": "checkpoints were deleted, by a person or by retention",
    "call.done": "a call of a tool that is not read-only succeeded",
    "call.failed": "a call of such a tool failed",
    "call.unknown": "it is unknown whether a call of such a tool took effect",
    "call.reversed": "a call was reversed",
    "call.reverse_failed": "the undo of a call raised",
    "call.reverse_unknown": "it is unknown whether a call was reversed",
    "call.resolved": "a person recorded the outcome of a call",
    "rollback.begun": "a rollback was started",
    "rollback.done": "a rollback was completed",
    "rollback.incomplete": "a rollback did not finish",
    "rollback.resumed": "a rollback was resumed",
    "switch.begun": "a switch that changes the world was started",
    "switch.done": "a session continues on another branch, with or without its world",
    "switch.incomplete": "a switch did not finish",
    "switch.resumed": "a switch was resumed",
    "fork.done": "a branch was created without changing the world",
    "rerun.done": "a rerun of a recorded branch ended; its calls were simulated",
    "merge.done": "a branch was merged into another one",
    "cherry_pick.done": "the changes of a checkpoint were copied to a branch",
    "tag.created": "a checkpoint was tagged",
    "tag.deleted": "a tag was removed",
    "retention.changed": "the retention of a session was changed",
    "session.shared": "a user was given a role in a session",
    "session.unshared": "a user's roles in a session were removed",
    "link.made": "a link for joining a session was created",
    "link.used": "a user joined a session with a link",
    "link.revoked": "a link was revoked, with the roles of everyone who joined with it",
    "user.added": "a user was added",
    "user.disabled": "a user was disabled",
    "user.enabled": "a user was enabled again",
    "key.created": "an API key or a sign-in link was created",
    "key.revoked": "an API key was revoked",
    "access.denied": "an action was refused for lack of permission",
    "gc.done": "unused space was freed",
    "keys.rotated": "values were encrypted again, or decrypted",
    "session.erased": "a session was erased, with its events",
    "user.erased": "a user was erased, with all their sessions",
    "feed.restarted": "the database is on another server, which numbers its transactions anew",
}
"""The kinds of events, each with its meaning."""

_CURSOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,18})\.([0-9]{1,18})")


class Cursor(NamedTuple):
    """A place in the feed of events, behind everything that is not greater.

    Example:
        >>> str(Cursor.parse("0.17.4"))
        '0.17.4'
    """

    epoch: int
    """The number of times that the transactions of the server were numbered anew: after restores into another one."""
    ordinal: int
    """On PostgreSQL the number of the transaction; on SQLite that of the event."""
    event_id: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.ordinal}.{self.event_id}"

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Read a cursor as `str` has written it."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise InvalidInput(f"{text[:60]!r} is not the cursor of an event.")
        return cls(*map(int, match.groups()))


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event: something that happened, recorded in the transaction that did it.

    Args:
        id: The id.
        kind: The kind, like `checkpoint.created`; `agentgit.sessions.events.KINDS` lists all of them.
        session_id: The session; None if the event belongs to none.
        session_name: The name of the session at that time.
        branch_id: The branch; None if the event concerns none.
        branch_name: The name of the branch at that time.
        owner_id: The id of the session's owner.
        user_id: The id of the user who caused it; None is agentgit itself.
        created_at: The time of the event, aware UTC.
        detail: Further details, JSON-like: ids, names and counts, never the text of messages.
        cursor: The place in the feed, to store and to give to `events.list(after=...)` later; None for an event that a
            callback receives, which is called before the feed has reached it.
    """

    id: int
    kind: str
    session_id: int | None
    session_name: str | None
    branch_id: int | None
    branch_name: str | None
    owner_id: int | None
    user_id: int | None
    created_at: datetime
    detail: dict[str, Any] = field(default_factory=dict)
    cursor: str | None = field(default=None, compare=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-like data."""
        return {**vars(self), "created_at": self.created_at.isoformat()}


def match_kinds(patterns: str | Sequence[str]) -> frozenset[str]:
    """Return the kinds of events that match patterns.

    Example:
        >>> sorted(match_kinds("tag.*"))
        ['tag.created', 'tag.deleted']
    """
    kinds: set[str] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = {kind for kind in KINDS if isinstance(pattern, str) and fnmatchcase(kind, pattern)}
        if not matches:
            from difflib import get_close_matches

            similar = get_close_matches(str(pattern), KINDS, 3)
            hint = f" Did you mean {', '.join(similar)}?" if similar else ""
            raise InvalidInput(f"There is no kind of event {pattern!r}. Give one like checkpoint.created, or *.{hint}")
        kinds |= matches
    return frozenset(kinds)
