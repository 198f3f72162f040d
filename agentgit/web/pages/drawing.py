"""Rendering of pages: the templates, and the functions that they may call. Text from a database is made harmless.

Two walls: what a template shows is escaped (Jinja's autoescape), and characters that reorder, hide or break a page are
written out first (`render.text.visible`). A template has no filter that takes either away.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

import agentgit
from agentgit.auth.principal import widest
from agentgit.render.text import Line, clean, clock, count, visible
from agentgit.render.views.conversation import arguments
from agentgit.sessions.messages import text_of
from agentgit.values import portable
from agentgit.web.security import mark_of

LONGEST = 20_000
"""The most characters of one text that a page shows."""


def harmless(value: Any) -> Any:
    """Make what a template shows harmless; what a template itself made stays as it is."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def cut(text: str, longest: int = LONGEST) -> str:
    """Shorten a text, and say so.

    Example:
        >>> cut("abcdef", 3)
        'abc… (3 more characters)'
    """
    rest = len(text) - longest
    return text if rest <= 0 else f"{text[:longest]}… ({rest:,} more characters)"


def pretty(value: Any) -> str:
    """Write JSON-like data for people."""
    return cut(json.dumps(portable(value), indent=2, ensure_ascii=False))


def brief(value: Any, longest: int = 120) -> str:
    """Write JSON-like data on one short line."""
    text = value if isinstance(value, str) else json.dumps(portable(value), ensure_ascii=False)
    return clean(text if len(text) <= longest else f"{text[:longest]}…")


def when(moment: datetime | str | None) -> Markup:
    """Write a time as an element that browsers and screen readers know."""
    if moment is None:
        return Markup("")
    at = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return Markup('<time datetime="{}">{}</time>').format(at.astimezone(UTC).isoformat(), f"{clock(at)} UTC")


def spans(lines: list[Line]) -> Markup:
    """Write lines of the render room, each span with the class of its style."""
    return Markup("\n").join(
        Markup("").join(
            Markup('<span class="s-{}">{}</span>').format(span.style, harmless(span.text)) if span.style else span.text
            for span in line
        )
        for line in lines
    )


def marked(text: str, marks: Any) -> Markup:
    """Write a snippet with what was found in it."""
    parts, at = list[str](), 0
    for start, end in marks:
        parts += [escape(harmless(text[at:start])), Markup("<mark>{}</mark>").format(harmless(text[start:end]))]
        at = end
    return Markup("").join([*parts, harmless(text[at:])])


def query(**values: Any) -> str:
    """Write the query of an address, without what is not given."""
    return urlencode({name: value for name, value in values.items() if value is not None}, errors="replace")


@cache
def templates() -> Environment:
    """Return the templates, read once."""
    found = Environment(
        loader=PackageLoader("agentgit.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=harmless,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.globals |= {"count": count, "query": query, "version": agentgit.__version__}
    found.filters |= {
        "arguments": arguments,
        "brief": brief,
        "cut": cut,
        "marked": marked,
        "pretty": pretty,
        "said": text_of,
        "spans": spans,
        "when": when,
        "widest": widest,
    }
    return found


def draw(
    request: Request, name: str, context: Mapping[str, Any], *, status: int = 200, fresh: str | None = None
) -> HTMLResponse:
    """Write a page.

    Args:
        request: The request for the page.
        name: The template, without its ending.
        context: The values that it shows.
        status: The HTTP status.
        fresh: A new cookie of somebody who is not in.
    """
    shared = {"root": request.scope.get("root_path", ""), "path": request.url.path, "csrf": mark_of(request, fresh)}
    text = templates().get_template(f"{name}.html").render({"visitor": None, **shared, **context})
    return HTMLResponse(text, status)
