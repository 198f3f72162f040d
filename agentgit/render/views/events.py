"""Events, the state of the audit trail, and webhooks, as lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, tzinfo
from typing import Any

from agentgit.render.text import Line, Span, clean, count, format_time, table
from agentgit.render.views.maintenance import finding_lines
from agentgit.sessions.events import Event, Verified
from agentgit.sessions.webhooks import Delivered, Webhook

_BAD = ("failed", "incomplete", "unknown", "abandoned")
"""The endings of the kinds of events that need attention."""

_QUIET = ("checkpoint", "operation", "source", "invocation", "made", "ran", "webhook", "checkpoints")
"""The keys of the details that are for programs only."""

_PEOPLE = ("user", "of", "member")
"""The keys of the details whose value is the id of a user."""


def event_lines(
    events: Sequence[Event], *, width: int = 100, zone: tzinfo | None = UTC, people: Mapping[int, str] | None = None
) -> list[Line]:
    """List events, one line each.

    Args:
        events: The events, in the order to show them.
        width: The maximum width of a line, in terminal cells.
        zone: The time zone of the times; None for the local one.
        people: The names of users by id, to show who caused each event; None to leave the user out.
    """
    if people is None:
        return table([_row(event, zone) for event in events], width=width)
    rows = []
    for event in events:
        named = {key: people.get(event.detail[key], event.detail[key]) for key in _PEOPLE if key in event.detail}
        when, kind, place, what = _row(replace(event, detail={**event.detail, **named}), zone)
        who = people.get(event.user_id, str(event.user_id)) if event.user_id is not None else ""
        rows.append([when, kind, Span(clean(who), "name"), place, what])
    return table(rows, width=width)


def _row(event: Event, zone: tzinfo | None) -> list[Span]:
    place = "@".join(clean(name) for name in (event.session_name, event.branch_name) if name is not None)
    return [
        Span(format_time(event.created_at, zone), "dim"),
        Span(event.kind, "bad" if event.kind.endswith(_BAD) else "heading"),
        Span(place, "reference"),
        Span(summarize(event)),
    ]


def summarize(event: Event) -> str:
    """Summarize an event in a few words.

    Example:
        >>> from datetime import datetime
        >>> at = datetime(2026, 11, 21, tzinfo=UTC)
        >>> of = {"session_id": 1, "session_name": "s", "branch_id": 1, "branch_name": "main"}
        >>> of |= {"owner_id": 1, "user_id": 1, "detail": {"number": 3, "name": "before payment", "checkpoint": 7}}
        >>> summarize(Event(id=1, kind="checkpoint.created", number=1, created_at=at, **of))
        'main#3 before payment'
    """
    detail = dict(event.detail)
    words = [clean(str(detail.pop(key))) for key in ("tool", "effect", "name") if detail.get(key) is not None]
    if event.kind == "checkpoint.created":
        words.insert(0, f"{clean(event.branch_name or '')}#{detail.pop('number')}")
    words += [f"{clean(key)} {_short(value)}" for key, value in detail.items() if key not in _QUIET]
    return " ".join(words)


def _short(value: Any) -> str:
    return clean(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def verified_lines(found: Verified) -> list[Line]:
    """Return lines that report whether the audit trail is intact."""
    lines = finding_lines(found.findings)
    wrong = count(len(found.findings), "finding") if found.findings else "the audit trail is intact"
    looked = f"{count(found.events, 'event')} in {count(len(found.tips), 'trail')}"
    looked += f", {count(len(found.erased), 'session')} erased" if found.erased else ""
    return [*lines, (Span(f"{wrong}: {looked}", "bad" if found.findings else "heading"),)]


def webhook_lines(webhooks: Sequence[Webhook], *, width: int = 100) -> list[Line]:
    """List webhooks, one line each, with their pending and failed deliveries."""
    return table([_hook(one) for one in webhooks], width=width)


def _hook(one: Webhook) -> list[Span]:
    waits = [f"{one.pending} pending"] if one.pending else []
    waits += [f"{one.dead} given up"] if one.dead else []
    waits += [clean(one.last_error)] if one.last_error else []
    return [
        Span(str(one.id), "reference"),
        Span(clean(one.url), "name"),
        Span(clean(", ".join(one.kinds))),
        Span("; ".join(waits), "bad" if one.dead else "dim"),
    ]


def delivered_lines(found: Delivered) -> list[Line]:
    """Return a line with the number of deliveries by outcome."""
    facts = [f"{found.sent} sent"]
    facts += [f"{found.failed} failed, will be retried"] if found.failed else []
    facts += [f"{found.dead} given up"] if found.dead else []
    facts += [f"{found.waiting} waiting"] if found.waiting else []
    return [(Span("; ".join(facts), "bad" if found.dead else "heading"),)]
