"""Events of the audit trail, and the hash that chains them. Pure values."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from typing import Any

import orjson

from agentgit.errors import InvalidInput
from agentgit.sessions.reports import Finding

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
    "user.changed": "a password was set",
    "user.disabled": "a user was disabled",
    "user.enabled": "a user was enabled again",
    "key.created": "an API key was created",
    "key.revoked": "an API key was revoked",
    "tokens.revoked": "all logins and tokens of one user, or of all users, were revoked",
    "login.done": "a user logged in",
    "login.failed": "a login failed",
    "access.denied": "an action was refused for lack of permission",
    "gc.done": "unused space was freed",
    "keys.rotated": "values were encrypted again, or decrypted",
    "session.erased": "a session was erased, with its audit trail",
    "user.erased": "a user was erased, with all their sessions",
}
"""The kinds of events, each with its meaning."""

NO_SESSION = 0
"""The session id of events that belong to no session."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """One event of the audit trail.

    Args:
        id: The id; a later event of the same session has a greater one.
        kind: The kind, like `checkpoint.created`; `agentgit.sessions.events.KINDS` lists all of them.
        number: The position in the trail of its session, from 1, without gaps.
        session_id: The session; None if the event belongs to none.
        session_name: The name of the session at that time.
        branch_id: The branch; None if the event concerns none.
        branch_name: The name of the branch at that time.
        owner_id: The id of the session's owner.
        user_id: The id of the user who caused it; None is agentgit itself.
        created_at: The time of the event, aware UTC.
        detail: Further details, JSON-like: ids, names and counts, never the text of messages.
        hash: The SHA-256 of the event and of the hash of the event before it, in hex.
    """

    id: int
    kind: str
    number: int
    session_id: int | None
    session_name: str | None
    branch_id: int | None
    branch_name: str | None
    owner_id: int | None
    user_id: int | None
    created_at: datetime
    detail: dict[str, Any] = field(default_factory=dict)
    hash: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the event as JSON-like data."""
        return {**vars(self), "created_at": self.created_at.isoformat()}


@dataclass(frozen=True, kw_only=True)
class Tip:
    """The last event of a trail. A copy that is kept elsewhere shows later whether the trail was cut or rewritten.

    Args:
        session_id: The session of the trail; 0 for the events that belong to no session.
        number: The number of events in the trail.
        hash: The hash of the last event, in hex.
    """

    session_id: int
    number: int
    hash: str


@dataclass(frozen=True, kw_only=True)
class Verified:
    """The result of verifying the audit trail.

    Args:
        events: The number of events that were checked.
        tips: The last event of each trail.
        findings: The problems that were found.
        erased: The sessions that were erased, with their trails.
    """

    events: int
    tips: Sequence[Tip]
    findings: Sequence[Finding] = ()
    erased: Sequence[int] = ()

    @property
    def is_sound(self) -> bool:
        """True if no problem was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON-like data."""
        return {
            "events": self.events,
            "is_sound": self.is_sound,
            "tips": [vars(tip) for tip in self.tips],
            "findings": [vars(finding) for finding in self.findings],
            "erased": list(self.erased),
        }


def tips_of(text: str) -> list[Tip]:
    """Parse saved tips, as `agentgit audit tips` writes them, or events: one JSON object per line, or one JSON array.

    Args:
        text: Any number of lines; empty lines are skipped.

    Raises:
        InvalidInput: A line is not a tip.

    Example:
        >>> tips_of('{"session_id": 7, "number": 2, "hash": "ab"}')
        [Tip(session_id=7, number=2, hash='ab')]
    """
    tips: list[Tip] = []
    for number, line in enumerate([text] if text.lstrip().startswith("[") else text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            parsed = orjson.loads(line)
            tips += [
                Tip(session_id=tip["session_id"] or NO_SESSION, number=int(tip["number"]), hash=str(tip["hash"]))
                for tip in (parsed if parsed and isinstance(parsed, list) else [parsed])
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"Line {number} is not a tip of an audit trail. Give whole lines, as they were written."
            ) from error
    return tips


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


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def hash_event(previous_hash: bytes, columns: Sequence[int | str | None], created_at: datetime, detail: bytes) -> bytes:
    """Return the hash of an event."""
    microseconds = (created_at - _EPOCH) // timedelta(microseconds=1)
    return hashlib.sha256(previous_hash + orjson.dumps([*columns, microseconds]) + detail).digest()


def hash_row(previous_hash: bytes, row: Mapping[str, Any]) -> bytes:
    """Return the hash that a row must have if the row before it has the hash `previous_hash`."""
    return hash_event(previous_hash, [row[name] for name in _HASHED_COLUMNS], row["created_at"], row["detail"])


_HASHED_COLUMNS = (
    "tenant_id",
    "external_session_id",
    "seq",
    "id",
    "internal_session_id",
    "owner_id",
    "user_id",
    "kind",
)
