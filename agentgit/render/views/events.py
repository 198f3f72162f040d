"""Events, as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from typing import Any

from agentgit.render.text import Line, Span, Zone, clean, format_time, table
from agentgit.sessions.events import Event

_BAD_ENDINGS = ("failed", "incomplete", "unknown", "abandoned")
"""The endings of the kinds of events that need attention."""

_INTERNAL_KEYS = ("checkpoint", "operation", "source", "invocation", "made", "ran", "checkpoints")
"""The keys of the details that are for programs only."""

_USER_KEYS = ("user", "of", "member")
"""The keys of the details whose value is the id of a user."""


def event_lines(
    events: Sequence[Event], *, width: int = 100, zone: Zone = UTC, user_names: Mapping[int, str] | None = None
) -> list[Line]:
    """List events, one line each."""
    if user_names is None:
        return table([_row(event, zone) for event in events], width=width)
    rows = []
    for event in events:
        names = {key: user_names.get(event.detail[key], event.detail[key]) for key in _USER_KEYS if key in event.detail}
        time, kind, location, summary = _row(replace(event, detail={**event.detail, **names}), zone)
        user_name = user_names.get(event.user_id, str(event.user_id)) if event.user_id is not None else ""
        rows.append([time, kind, Span(clean(user_name), "name"), location, summary])
    return table(rows, width=width)


def _row(event: Event, zone: Zone) -> list[Span]:
    location = "@".join(clean(name) for name in (event.session_name, event.branch_name) if name is not None)
    return [
        Span(format_time(event.created_at, zone), "dim"),
        Span(event.kind, "bad" if event.kind.endswith(_BAD_ENDINGS) else "heading"),
        Span(location, "reference"),
        Span(summarize(event)),
    ]


def summarize(event: Event) -> str:
    """Summarize an event in a few words.

    Example:
        >>> from datetime import UTC, datetime
        >>> at = datetime(2026, 11, 21, tzinfo=UTC)
        >>> of = {"session_id": 1, "session_name": "s", "branch_id": 1, "branch_name": "main"}
        >>> of |= {"owner_id": 1, "user_id": 1, "detail": {"number": 3, "name": "before payment", "checkpoint": 7}}
        >>> summarize(Event(id=1, kind="checkpoint.created", created_at=at, **of))
        'main#3 before payment'
    """
    detail = dict(event.detail)
    words = [clean(str(detail.pop(key))) for key in ("tool", "effect", "name") if detail.get(key) is not None]
    if event.kind in ("checkpoint.created", "checkpoint.annotated"):
        words.insert(0, f"{clean(event.branch_name or '')}#{detail.pop('number')}")
    words += [f"{clean(key)} {_format_value(value)}" for key, value in detail.items() if key not in _INTERNAL_KEYS]
    return " ".join(words)


def _format_value(value: Any) -> str:
    return clean(", ".join(map(str, value)) if isinstance(value, list) else str(value))
