"""Markdown of messages as HTML that loads nothing, and links only to web and mail addresses."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict
from markupsafe import Markup, escape

from agentgit.render.text import visible

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
        """Render the start of a heading."""
        return '<p class="heading">'

    def heading_close(self, tokens: Sequence[Token], idx: int, options: OptionsDict, env: EnvType) -> str:
        """Render the end of a heading."""
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
