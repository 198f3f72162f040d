"""One checkpoint in full: its metadata, state, latest messages and latest tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC
from typing import Any

from agentgit.checkpoints import Checkpoint
from agentgit.errors import AgentGitError
from agentgit.render import html
from agentgit.render.text import Line, Span, Zone, clean, cut, format_time, plain, table
from agentgit.render.views import conversation as said
from agentgit.render.views.conversation import LATEST, call_rows
from agentgit.render.views.log import kind, reference
from agentgit.values import count


def draw_checkpoint(checkpoint: Checkpoint, *, width: int = 100) -> str:
    """Draw one checkpoint as plain text."""
    return plain(lines(checkpoint, width=width))


def lines(checkpoint: Checkpoint, *, width: int = 100, zone: Zone = UTC) -> list[Line]:
    """Draw one checkpoint."""
    name = clean(checkpoint.checkpoint_name or "")
    state = [[Span(clean(str(key)), "reference"), Span(clean(repr(v)))] for key, v in checkpoint.session_state.items()]
    messages, calls = checkpoint.conversation_history, checkpoint.tool_invocations
    return [
        (Span(cut(reference(checkpoint), 40), "heading"), Span(f"  {cut(name, max(8, width - 42))}".rstrip(), "name")),
        *table(_facts(checkpoint, zone), width=width),
        *_section("state", "", table(state, width=width, indent="  ")),
        *_section(
            count(len(messages), "message"),
            _latest_hint(messages),
            said.message_lines(messages, width=width, indent="  "),
        ),
        *_section(
            count(len(calls), "tool call"),
            _latest_hint(calls),
            table(call_rows(calls, LATEST), width=width, indent="  "),
        ),
    ]


def _facts(checkpoint: Checkpoint, zone: Zone) -> list[list[Span]]:
    metadata: Mapping[str, Any] = checkpoint.metadata
    values = {
        "id": checkpoint.id,
        "made": " ".join([format_time(checkpoint.created_at, zone, seconds=True), f"({kind(checkpoint)})"]).strip(),
        "description": metadata.get("description"),
        "restore point": metadata.get("restore_point"),
        "state hash": metadata.get("state_hash"),
        "data": repr(metadata["data"]) if metadata.get("data") is not None else None,
    }
    return [[Span(key, "dim"), Span(clean(str(value)))] for key, value in values.items() if value]


def _section(heading: str, subtitle: str, content: list[Line]) -> list[Line]:
    return [(), (Span(heading, "heading"), Span(subtitle, "dim")), *content] if content else []


def _latest_hint(items: list[dict[str, Any]]) -> str:
    return f", the last {LATEST}" if len(items) > LATEST else ""


# -- HTML


def page(checkpoint: Checkpoint) -> str:
    """Draw one checkpoint as HTML, with its state, conversation and calls collapsed."""
    name = clean(checkpoint.checkpoint_name or "")
    heading = f"<p><b>{html.escape(reference(checkpoint))}</b> {html.styled(Span(name, 'name'))}</p>"
    facts = html.table(["", ""], [[html.styled(span) for span in row] for row in _facts(checkpoint, UTC)])
    try:
        content = _content(checkpoint)
    except AgentGitError as error:
        content = f"<p>{html.styled(Span(clean(str(error)), 'bad'))}</p>"
    return f"<div>{heading}{facts}{content}</div>"


def _content(checkpoint: Checkpoint) -> str:
    state, messages, calls = checkpoint.session_state, checkpoint.conversation_history, checkpoint.tool_invocations
    values = [[html.escape(str(key)), html.code(repr(value)[:_MAX_VALUE_LENGTH])] for key, value in state.items()]
    call_cells = [
        [*map(html.styled, facts), html.wrapping_cell(html.styled(call_span), len(call_span.text))]
        for *facts, call_span in call_rows(calls, LATEST)
    ]
    return "".join(
        [
            html.fold("state", html.table(["", "value"], values)) if values else "",
            html.fold(count(len(messages), "message"), said.message_page(messages)) if messages else "",
            html.fold(f"{count(len(calls), 'tool call')}{_latest_hint(calls)}", html.table([""] * 5, call_cells))
            if calls
            else "",
        ]
    )


_MAX_VALUE_LENGTH = 2_000
"""The maximum number of characters of a value on a page."""
