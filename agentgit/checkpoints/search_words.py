"""Words: what a text is found by, the same on every database. Nothing in a text or a query is ever an operator.

A word is a run of letters and digits, folded: without case, accents and width. A character of a script that writes no
spaces (Chinese, Japanese, Thai, ...) and a picture (emoji) is a word of its own, so that any part of such a text is
found. What stands together in a query, like `create_order` or `日本`, is found where its words stand together.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentgit.errors import InvalidInput

MOST_WORDS = 10_000
"""The most words of one text that a search finds; PostgreSQL counts places up to 16,383."""

MOST_CHARACTERS = 200_000
"""The most characters of these words; PostgreSQL keeps a megabyte of them."""

LONGEST_WORD = 64
"""The number of characters of a word that count."""

LONGEST_QUERY = 1_000
"""The most characters of a query."""

BEFORE, AFTER = 40, 120
"""The number of characters that a snippet shows before the match, and from its start on."""

_ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"
_WORD = re.compile(rf"(?=[^\W_])[{_ALONE}]|[{_PICTURES}]|[^\W_{_ALONE}]+")


class Word(NamedTuple):
    """One word of a text, folded, and where it stands."""

    text: str
    start: int
    end: int


def words(text: str) -> Iterator[Word]:
    """Return the first words of a text.

    Args:
        text: The text in composed form, see `composed`.

    Example:
        >>> [word.text for word in words("Café_order: 2x 日本!")]
        ['cafe', 'order', '2x', '日', '本']
    """
    count = size = 0
    for match in _WORD.finditer(text):
        folded = _folded(match[0])
        if folded:
            yield Word(folded, match.start(), match.end())
            count, size = count + 1, size + len(folded)
        if count >= MOST_WORDS or size >= MOST_CHARACTERS:
            return


def composed(text: str) -> str:
    """Return a text with each letter and its accents as one character, where there is one."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _folded(word: str) -> str:
    if word.isascii():
        return word[:LONGEST_WORD].lower()
    apart = unicodedata.normalize("NFKD", word[:LONGEST_WORD])
    kept = unicodedata.normalize("NFC", "".join(c for c in apart if not unicodedata.combining(c))).casefold()
    # Whatever a character comes apart into: what is ASCII and no letter or digit means something to a database.
    return "".join(c for c in kept if not c.isascii() or c.isalnum())[:LONGEST_WORD]


@dataclass(frozen=True)
class Query:
    """A search query: all of its terms must be in a text, each as words that stand together.

    Args:
        terms: The words of each term.
    """

    terms: tuple[tuple[str, ...], ...]


def query(text: str) -> Query:
    """Read what a person looks for, literally: quotes, operators and the like are no words, and nothing else either.

    Raises:
        InvalidInput: It is empty or too long.

    Example:
        >>> query('create_order AND "chair').terms
        (('create', 'order'), ('and',), ('chair',))
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{text!r} has nothing to search for; give one or more words.")
    if len(text) > LONGEST_QUERY:
        raise InvalidInput(f"A search takes up to {LONGEST_QUERY:,} characters, not {len(text):,}.")
    found = (tuple(word.text for word in words(part)) for part in composed(text).split())
    return Query(tuple(dict.fromkeys(term for term in found if term)))


class Snippet(NamedTuple):
    """A piece of a text on one line, and where in it something was found, as pairs of start and end."""

    text: str
    marks: tuple[tuple[int, int], ...]


def snippet(text: str, wanted: Query) -> Snippet:
    """Cut out the piece of a text where something was found.

    Example:
        >>> snippet("We order two chairs.", query("two chairs"))
        Snippet(text='We order two chairs.', marks=((9, 12), (13, 19)))
    """
    whole = composed(text)
    inside = list(words(whole))
    found = sorted(spot for term in wanted.terms for spot in _spots(inside, term))
    first = found[0][0] if found else 0
    start, end = max(0, first - BEFORE), min(len(whole), first + AFTER)
    start, end = _at_space(whole, start, first), _at_space(whole, end, len(whole))
    lead, tail = "…" if start else "", "…" if end < len(whole) else ""
    shift = len(lead) - start
    # Each space stays one character, so that the marks still fit.
    shown = lead + "".join(" " if c.isspace() else c for c in whole[start:end]) + tail
    return Snippet(shown, tuple((a + shift, b + shift) for a, b in found if a >= start and b <= end))


def _spots(inside: Sequence[Word], term: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Find where the words of a term stand together."""
    for n, word in enumerate(inside):
        if word.text == term[0] and tuple(w.text for w in inside[n : n + len(term)]) == term:
            yield word.start, inside[n + len(term) - 1].end


def _at_space(text: str, at: int, until: int) -> int:
    """Move to the beginning of the next word, unless that is far."""
    if at in (0, len(text)) or text[at - 1].isspace():
        return at
    nearest = min(until, at + 20)
    return next((n + 1 for n in range(at, nearest) if text[n].isspace()), at)
