"""Conversations: who said what, the long ones folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentgit.render import html
from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import clean, count, cut, visible
from agentgit.render.views.calls import arguments
from agentgit.sessions.messages import text_of

LATEST = 20
"""The number of messages that are shown, from the end."""

_TITLE_CELLS, _LONGEST = 100, 20_000
"""The cells of a message's title, and the most characters of a message that a page shows."""


def draw(messages: Sequence[Mapping[str, Any]], *, width: int = 100) -> str:
    """Draw a conversation as plain text, one line for each message.

    Args:
        messages: The messages as agentgit shows them, oldest first.
        width: The longest line, in terminal cells.

    Example:
        >>> print(draw([{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hi"}]))
        user       hello
        assistant  hi
    """
    return plain(lines(messages, width=width)) or "no messages yet"


def lines(messages: Sequence[Mapping[str, Any]], *, width: int = 100, indent: str = "") -> list[Line]:
    """Draw a conversation, the last messages of a long one.

    Args:
        messages: The messages as agentgit shows them, oldest first.
        width: The longest line, in terminal cells.
        indent: The beginning of each line.
    """
    rows = [[Span(clean(str(m.get("role", ""))), "reference"), Span(said(m))] for m in messages[-LATEST:]]
    return table(rows, width=width, indent=indent)


def said(message: Mapping[str, Any]) -> str:
    """Return what a message says and which tools it calls, on one line."""
    return clean(" ".join(part for part in (text_of(message), _called(message)) if part))


def _called(message: Mapping[str, Any]) -> str:
    calls = ", ".join(f"{c.get('name')}({arguments(c.get('args'))})" for c in message.get("tool_calls") or [])
    return calls and f"→ {calls}"


def page(messages: Sequence[Mapping[str, Any]]) -> str:
    """Draw a conversation as HTML: a short message as it is, a long one folded.

    Args:
        messages: The messages as agentgit shows them, oldest first.
    """
    if not messages:
        return "<p>no messages yet</p>"
    rows = [[html.styled(Span(clean(str(m.get("role", ""))), "reference")), _message(m)] for m in messages[-LATEST:]]
    earlier = len(messages) - len(rows)
    more = f"<p>{count(earlier, 'earlier message')} not shown</p>" if earlier else ""
    return f"<div>{more}{html.table(['', 'says'], rows)}</div>"


def _message(message: Mapping[str, Any]) -> str:
    line = said(message)
    title = cut(line, _TITLE_CELLS)
    whole = visible(text_of(message)[:_LONGEST])
    if title == line and "\n" not in whole.strip():
        return html.room(html.escape(line), len(line))
    text = "\n".join(filter(None, (whole, _called(message) and clean(_called(message)))))
    content = html.pre(((Span(one),) for one in text.split("\n")), wrapped=True)
    return html.room(html.fold(html.escape(title), content), len(line))
