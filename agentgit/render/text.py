"""Text from a database, made fit for one line of a terminal: harmless, measured, cut."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, tzinfo

from agentgit.values import JOINERS, OBEYED

_LONGEST = 4_000
"""The number of characters of a text that are looked at; no line is longer."""

_NO_WIDTH = ("Mn", "Me", "Cf")
"""The Unicode categories that take no cell of their own."""


def clean(text: str) -> str:
    r"""Put a text on one line and write out what a terminal would obey: escapes, controls, marks of direction.

    Args:
        text: Any text.

    Example:
        >>> print(clean("two\nlines and \x1b[31mred"))
        two lines and \x1b[31mred
    """
    return visible(" ".join(text[:_LONGEST].split()))


def visible(text: str) -> str:
    """Write out what a terminal would obey, and keep all spaces and ends of lines as they are.

    Args:
        text: Any text.
    """
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(c: str) -> str:
    if c in " \t\n" or c in JOINERS or unicodedata.category(c) not in OBEYED:
        return c
    return repr(c)[1:-1]


def cells(text: str) -> int:
    """Measure a clean text in terminal cells; wide characters (UAX #11) take two, combining ones none.

    Example:
        >>> cells("abc"), cells("日本")
        (3, 4)
    """
    return len(text) if text.isascii() else sum(map(_cell, text))


def _cell(c: str) -> int:
    if unicodedata.category(c) in _NO_WIDTH:
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def cut(text: str, width: int) -> str:
    """Shorten a clean text to a number of cells, with `…` where something is missing.

    Args:
        text: A clean text.
        width: The cells there are, at least 1.

    Example:
        >>> cut("order two chairs", 9), cut("日本語", 4)
        ('order tw…', '日…')
    """
    # Marks that take no cell could be piled up without end on one letter.
    if len(text) <= 4 * width and cells(text) <= width:
        return text
    used = 0
    for i, c in enumerate(text):
        used += _cell(c)
        if used > width - 1 or i >= 4 * width:
            return text[:i].rstrip() + "…"
    return text


def wrap(text: str, width: int) -> list[str]:
    """Break a clean text into lines of a number of cells, between words where that is possible.

    Args:
        text: A clean text.
        width: The cells there are, at least 2.

    Example:
        >>> wrap("its undo takes it back", 12)
        ['its undo', 'takes it', 'back']
    """
    lines = [""]
    for word in text.split():
        for piece in _pieces(word, width):
            joined = f"{lines[-1]} {piece}".lstrip()
            if cells(joined) <= width:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def _pieces(word: str, width: int) -> list[str]:
    """Break a word that is longer than a line."""
    pieces, used = [""], 0
    for c in word:
        used += _cell(c)
        if used > width:
            pieces.append("")
            used = _cell(c)
        pieces[-1] += c
    return pieces


def pad(text: str, width: int) -> str:
    """Fill a clean text with spaces up to a number of cells."""
    return text + " " * (width - cells(text))


def clock(when: datetime | None, zone: tzinfo | None = UTC, *, seconds: bool = False) -> str:
    """Write a time for people.

    Args:
        when: An aware time, or None.
        zone: The zone to show it in; None is this machine's.
        seconds: True to show them too.

    Example:
        >>> clock(datetime(2026, 1, 2, 3, 4, tzinfo=UTC))
        '2026-01-02 03:04'
    """
    if when is None:
        return ""
    return when.astimezone(zone).strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def count(n: int, noun: str) -> str:
    """Count things.

    Example:
        >>> count(1, "branch"), count(2, "branch"), count(0, "call")
        ('1 branch', '2 branches', '0 calls')
    """
    ending = "" if n == 1 else "es" if noun.endswith("ch") else "s"
    return f"{n} {noun}{ending}"
