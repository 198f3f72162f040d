"""Hostile text, a parser of the HTML that shows it, a tool invocation to show, and expected texts."""

from html.parser import HTMLParser
from pathlib import Path

from agentgit import ToolInvocation

GOLDEN = Path(__file__).parents[1] / "golden"

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e\r\n</td><img src=x onerror='x'>" + "日本" * 40


def call(id: int, name: str, effect: str, status: str = "done", **args) -> ToolInvocation:
    return ToolInvocation(
        id=id, internal_session_id=1, position=id, tool_name=name, effect=effect, status=status, args=args
    )


TABLE_TAGS = frozenset(
    ["div", "p", "b", "pre", "table", "thead", "tbody", "tr", "th", "td", "span", "code", "details", "summary"]
)
"""The HTML elements of a table that a notebook shows."""


def golden(name: str) -> str:
    """Return an expected text, without the line end of its file."""
    return (GOLDEN / name).read_text(encoding="utf-8").rstrip("\n")


class Page(HTMLParser):
    """A parser that collects the tags, attributes and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag != "img":  # it has no end tag
            self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""
    light, dark = sorted(map(_luminance, (one, other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
