"""One checkpoint in full: what it is, its state, the end of its conversation, its tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, tzinfo
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.render.calls import arguments, call_rows
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.log import kind, reference
from agentgit.render.text import clean, clock, count, cut
from agentgit.sessions.history import text_of

LATEST = 20
"""How many messages and how many tool calls are shown, from the end."""


def draw_checkpoint(checkpoint: Checkpoint, *, width: int = 100) -> str:
    """Draw one checkpoint as plain text.

    Args:
        checkpoint: which; its content is read.
        width: the longest line, in terminal cells.
    """
    return plain(lines(checkpoint, width=width))


def lines(checkpoint: Checkpoint, *, width: int = 100, zone: tzinfo | None = UTC) -> list[Line]:
    """Draw one checkpoint.

    Args:
        checkpoint: which; its content is read.
        width: the longest line, in terminal cells.
        zone: the zone of the times; None is this machine's.
    """
    name = clean(checkpoint.checkpoint_name or "")
    state = [[Span(clean(str(key)), "reference"), Span(clean(repr(v)))] for key, v in checkpoint.session_state.items()]
    messages, calls = checkpoint.conversation_history, checkpoint.tool_invocations
    return [
        (Span(cut(reference(checkpoint), 40), "heading"), Span(f"  {cut(name, max(8, width - 42))}".rstrip(), "name")),
        *table(_facts(checkpoint, zone), width=width),
        *_part("state", "", table(state, width=width, indent="  ")),
        *_part(
            count(len(messages), "message"), _earlier(messages), table(_messages(messages), width=width, indent="  ")
        ),
        *_part(
            count(len(calls), "tool call"), _earlier(calls), table(call_rows(calls, LATEST), width=width, indent="  ")
        ),
    ]


def _facts(checkpoint: Checkpoint, zone: tzinfo | None) -> list[list[Span]]:
    facts: Mapping[str, Any] = checkpoint.metadata
    known = {
        "id": checkpoint.id,
        "made": " ".join([clock(checkpoint.created_at, zone, seconds=True), f"({kind(checkpoint)})"]).strip(),
        "description": facts.get("description"),
        "restore point": facts.get("restore_point"),
        "state hash": facts.get("state_hash"),
        "data": repr(facts["data"]) if facts.get("data") is not None else None,
    }
    return [[Span(key, "dim"), Span(clean(str(value)))] for key, value in known.items() if value]


def _part(heading: str, note: str, content: list[Line]) -> list[Line]:
    return [(), (Span(heading, "heading"), Span(note, "dim")), *content] if content else []


def _earlier(items: list[dict[str, Any]]) -> str:
    return f", the last {LATEST}" if len(items) > LATEST else ""


def _messages(messages: list[dict[str, Any]]) -> list[list[Span]]:
    return [[Span(clean(str(m.get("role", ""))), "reference"), Span(_said(m))] for m in messages[-LATEST:]]


def _said(message: Mapping[str, Any]) -> str:
    """Give what a message says and which tools it calls."""
    calls = ", ".join(f"{c.get('name')}({arguments(c.get('args'))})" for c in message.get("tool_calls") or [])
    return clean(" ".join(part for part in (text_of(message), calls and f"→ {calls}") if part))
