"""Rendering of pages: the templates and their filters. Text from a database is made harmless.

Two layers do this. `render.text.visible` escapes characters that reorder, hide or break text. Then Jinja's autoescape
escapes HTML. No filter lets a template bypass either of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse

import agentgit
from agentgit.auth.principal import widest
from agentgit.effects.invocation import MARKS
from agentgit.next_steps import NAMED_PLACE, NamedPlace, Reason
from agentgit.render.layout import KINDS
from agentgit.render.svg import mark_svg
from agentgit.render.text import clean, distance, format_time, visible, waiting_text
from agentgit.render.view import Span
from agentgit.render.views.conversation import arguments
from agentgit.sessions.messages import text_of
from agentgit.values import count, portable
from agentgit.web.pages.turns import outcome_of
from agentgit.web.security import FORM_COOKIE, csrf_token, new_form_cookie, set_cookie

_LINK = re.compile(r"(https?://|mailto:)", re.IGNORECASE)
"""The beginning of an address that a message may link to. An address without a scheme would lead to this server."""

MAX_GROWTH = 20
"""A text whose HTML is more than so many times as long is shown as it is."""


class _Renderer(RendererHTML):
    """Renders images as links, and headings as paragraphs, because the page has headings of its own."""

    def image(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render an image as its text and a link to it, so that a page loads nothing from elsewhere."""
        url = str(tokens[idx].attrGet("src") or "")
        text = escape(self.renderInlineAsText(tokens[idx].children or [], options, env) or "image")
        if not _LINK.match(url):
            return str(text)
        return str(Markup('<a href="{}" rel="noopener noreferrer nofollow">{}</a>').format(url, Markup(text)))  # noqa: S704  # escaped above

    def link_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render a link that tells the other site nothing."""
        tokens[idx].attrSet("rel", "noopener noreferrer nofollow")
        return self.renderToken(tokens, idx, options, env)

    def heading_open(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return '<p class="heading">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        return "</p>\n"


@cache
def _parser() -> MarkdownIt:
    options: Any = {"html": False, "linkify": False, "breaks": True}
    parser = MarkdownIt("commonmark", options, renderer_cls=_Renderer).enable(["table", "strikethrough"])
    parser.disable("reference")  # a few words could name a long address thousands of times
    parser.validateLink = lambda url: is_link(url)  # type: ignore[method-assign]  # the documented way
    return parser


def is_link(address: str) -> bool:
    """Return whether a message may link to an address.

    Example:
        >>> is_link("https://a.example"), is_link("javascript:alert(1)"), is_link("/users")
        (True, False, False)
    """
    return _LINK.match(address) is not None


def markdown(text: str) -> Markup:
    """Render Markdown as HTML.

    Example:
        >>> print(markdown("**two** <b>[x](javascript:alert(1))</b>"), end="")
        <p><strong>two</strong> &lt;b&gt;[x](javascript:alert(1))&lt;/b&gt;</p>
    """
    rendered = _parser().render(text)
    if len(rendered) > MAX_GROWTH * (len(text) + MAX_GROWTH):  # as of a table with many columns and empty rows
        return Markup("<pre>{}</pre>").format(visible(text))
    # An entity such as &#x202e; becomes a character only in the output, so the output is what is made visible.
    return Markup(visible(rendered))  # noqa: S704  # the renderer escapes all text


MAX_TEXT_LENGTH = 20_000
"""The maximum number of characters of one text on a page."""


def escape_output(value: Any) -> Any:
    """Escape control and direction characters in the output of a template, except in markup. None becomes empty."""
    if value is None:
        return ""
    return visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def exact(value: Any) -> Markup:
    """Return a text for a field of a form, which sends it back as it is: escaped, but with all its characters.

    None becomes empty.
    """
    return escape("" if value is None else str(value))


def cut(text: str, longest: int = MAX_TEXT_LENGTH) -> str:
    """Shorten a text, and append the number of characters that were cut.

    Example:
        >>> cut("abcdef", 3)
        'abc… (3 more characters)'
    """
    hidden_count = len(text) - longest
    return text if hidden_count <= 0 else f"{text[:longest]}… ({hidden_count:,} more characters)"


def pretty(value: Any) -> str:
    return cut(json.dumps(portable(value), indent=2, ensure_ascii=False))


def brief(value: Any, longest: int = 120) -> str:
    text = value if isinstance(value, str) else json.dumps(portable(value), ensure_ascii=False)
    return clean(text if len(text) <= longest else f"{text[:longest]}…")


def when(moment: datetime | str | None) -> Markup:
    """Format a time in UTC as a `time` element."""
    if moment is None:
        return Markup("")
    time = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    return Markup('<time datetime="{}">{}</time>').format(time.astimezone(UTC).isoformat(), f"{format_time(time)} UTC")


def ago(moment: datetime | str | None) -> Markup:
    """Format a time as its distance from now, with the exact time as the title."""
    if moment is None:
        return Markup("")
    time = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    exact = f"{format_time(time, seconds=True)} UTC"
    return Markup('<time datetime="{}" title="{}" data-ago>{}</time>').format(
        time.astimezone(UTC).isoformat(), exact, distance((datetime.now(UTC) - time).total_seconds())
    )


def duration(seconds: float) -> str:
    """Format a duration.

    Example:
        >>> duration(0.041), duration(3.27), duration(95)
        ('41 ms', '3.3 s', '1 min 35 s')
    """
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60):,} min {int(seconds % 60)} s"


def effect_marks(counts: Mapping[str, int]) -> Markup:
    """Render the marks of calls, each with its number if there are several."""
    return Markup("").join(
        Markup('<span class="effect-mark">{}{}</span>').format(
            Markup(mark_svg(mark, counts[mark])),  # noqa: S704  # it contains no text from a database
            counts[mark] if counts[mark] > 1 else "",
        )
        for mark in MARKS
        if counts.get(mark)
    )


def spans(lines: list[tuple[Span, ...]]) -> Markup:
    """Render lines of styled spans, each span with the CSS class of its style."""
    return Markup("\n").join(
        Markup("").join(
            Markup('<span class="s-{}">{}</span>').format(span.style, escape_output(span.text))
            if span.style
            else span.text
            for span in line
        )
        for line in lines
    )


def highlight_matches(text: str, marks: Any) -> Markup:
    """Render a search snippet with its matches highlighted."""
    parts, position = list[str](), 0
    for start, end in marks:
        parts += [
            escape(escape_output(text[position:start])),
            Markup("<mark>{}</mark>").format(escape_output(text[start:end])),
        ]
        position = end
    return Markup("").join([*parts, escape_output(text[position:])])


def query(**values: Any) -> str:
    """Return the query string of the given values, without those that are None."""
    return urlencode({name: value for name, value in values.items() if value is not None}, doseq=True, errors="replace")


@cache
def templates() -> Environment:
    """Return the template environment, which is created once."""
    environment = Environment(
        loader=PackageLoader("agentgit.web"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=escape_output,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {
        "count": count,
        "query": query,
        "is_link": is_link,
        "kinds": KINDS,
        "new_id": lambda: uuid4().hex,
        "version": agentgit.__version__,
        "waiting_text": waiting_text,
    }
    environment.filters |= {
        "arguments": arguments,
        "brief": brief,
        "ago": ago,
        "effect_marks": effect_marks,
        "exact": exact,
        "cut": cut,
        "duration": duration,
        "markdown": markdown,
        "marked": highlight_matches,
        "outcome": outcome_of,
        "pretty": pretty,
        "said": text_of,
        "spans": spans,
        "when": when,
        "widest": widest,
        "worded": lambda text: Reason.of(text).worded("page"),
    }
    return environment


def render_page(request: Request, template: str, context: Mapping[str, Any], *, status: int = 200) -> HTMLResponse:
    """Render a page, with a cookie for its forms if the browser has none."""
    form_cookie = new_form_cookie(request)
    shared_context = {
        "root": request.scope.get("root_path", ""),
        "path": request.url.path,
        "csrf": csrf_token(request, form_cookie),
    }
    if (session := context.get("session")) is not None:
        branch = context.get("branch") if template != "switch" else None  # which goes to the branch that it names
        # Its id, because another user may run the command.
        NAMED_PLACE.set(NamedPlace(str(session.id), getattr(branch, "name", branch) or ""))
    content = templates().get_template(f"{template}.html").render({"visitor": None, **shared_context, **context})
    page = HTMLResponse(content, status)
    if form_cookie is not None:
        set_cookie(request, page, FORM_COOKIE, form_cookie)
    return page
