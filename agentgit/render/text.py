"""Text that a terminal shows as it is: escaped, measured, cut and wrapped; and times."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from typing import Any, TypeAlias

from agentgit.values import JOINERS, UNSAFE_CATEGORIES, portable, quote_name

_MAX_LENGTH = 4_000
"""The number of characters that `clean` keeps of a text."""

_ZERO_WIDTH_CATEGORIES = ("Mn", "Me", "Cf")
"""The Unicode categories whose characters take no cell."""


def clean(text: str) -> str:
    """Put a text on one line, and escape control and direction characters that a terminal would obey."""
    return visible(" ".join(text[:_MAX_LENGTH].split()))


def waiting_text(questions: Sequence[Any]) -> str:
    """Return that a branch waits for an answer, and to what; an empty text if it asks nothing."""
    texts = [one if isinstance(one, str) else json.dumps(portable(one), ensure_ascii=False) for one in questions]
    return f"waits for an answer: {clean(', '.join(texts))}" if texts else ""


def visible(text: str) -> str:
    """Escape control and direction characters that a terminal would obey, but keep spaces and line ends."""
    return text if text.isprintable() else "".join(map(_visible_character, text))


def xml_text(text: str) -> str:
    """Escape the characters that XML does not allow, and those that control a terminal or reorder its text."""
    return _NOT_IN_XML.sub(lambda match: repr(match[0])[1:-1], text)


_NOT_IN_XML = re.compile(
    "[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def _visible_character(c: str) -> str:
    if c in " \t\n" or c in JOINERS or unicodedata.category(c) not in UNSAFE_CATEGORIES:
        return c
    return repr(c)[1:-1]


def place(session_name: str, branch: str | None = None) -> str:
    """Return the words that name a session and one of its branches."""
    session = f"session {clean(quote_name(session_name))}"
    return session if branch is None else f"{session}, branch {clean(quote_name(branch))}"


def cells(text: str) -> int:
    """Return the width of a clean text in terminal cells; wide characters (UAX #11) take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_cells_of_character, text))


def _cells_of_character(c: str) -> int:
    if unicodedata.category(c) in _ZERO_WIDTH_CATEGORIES:
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Shorten a clean text to a number of cells, ending with `…` if something was cut."""
    # The length is limited too, because one letter can carry any number of marks that take no cell.
    if len(text) <= 4 * width and cells(text) <= width:
        return text
    used = 0
    for i, c in enumerate(text):
        used += _cells_of_character(c)
        if used > width - 1 or i >= 4 * width:
            return text[:i].rstrip() + "…"
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break a clean text into lines of at most `width` cells, between words where possible."""
    lines = [""]
    for word in text.split():
        for piece in _split_word(word, width):
            joined = f"{lines[-1]} {piece}".lstrip()
            if cells(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _split_word(word: str, width: int) -> list[str]:
    """Break a word into pieces that fit on a line."""
    pieces, used = [""], 0
    for c in word:
        used += _cells_of_character(c)
        if used > width:
            pieces.append("")
            used = _cells_of_character(c)
        pieces[-1] += c
    return pieces


Zone: TypeAlias = tzinfo | datetime | None
"""How to show times: in a time zone, in the local one (None), or as the distance from a time, which is now."""


def format_time(moment: datetime | None, zone: Zone = UTC, *, seconds: bool = False) -> str:
    """Format a time for people."""
    if moment is None:
        return ""
    if isinstance(zone, datetime):
        if not seconds and moment <= zone:
            return distance((zone - moment).total_seconds())
        zone = None
    return moment.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def distance(seconds: float) -> str:
    """Return how long ago something was, in the largest whole unit."""
    for size, unit in ((86_400, "day"), (3_600, "hour"), (60, "min")):
        number = int(seconds // size)
        if number >= 1:
            return f"{number} {unit}{'s' if number > 1 and unit != 'min' else ''} ago"
    return "just now"
