"""The words by which texts are searched, the same on every database. Texts and queries never contain operators.

A word is a run of letters and digits, folded: case, accents and width are ignored. Each character of a script without
spaces (Chinese, Japanese, Thai, ...) and each pictograph (emoji) is a separate word, so that any part of such a text
can be found. Words that are adjacent in a query, like `create_order` or `日本`, must be adjacent in the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agentgit.errors import InvalidInput

MOST_WORDS = 10_000
"""The maximum number of searchable words of one text; PostgreSQL stores positions up to 16,383."""

MOST_CHARACTERS = 200_000
"""The maximum number of characters of these words; PostgreSQL stores up to a megabyte."""

LONGEST_WORD = 64
"""The number of characters of a word that are compared; the rest is ignored."""

LONGEST_QUERY = 1_000
"""The maximum number of characters of a query."""

BEFORE, AFTER = 40, 120
"""The number of characters that a snippet shows before the start of the match, and from there on."""

_ALONE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
_PICTURES = "\u2190-\u2bff\U0001f000-\U0001faff"
_WORD = re.compile(rf"(?=[^\W_])[{_ALONE}]|[{_PICTURES}]|[^\W_{_ALONE}]+")


class Word(NamedTuple):
    """One folded word of a text and its position."""

    text: str
    start: int
    end: int


def words(text: str) -> Iterator[Word]:
    """Yield the words of a text, up to `MOST_WORDS` and `MOST_CHARACTERS`.

    Args:
        text: The text in composed form; see `composed`.

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
    """Return a text in Unicode form NFC: each letter and its accents are one character if such a character exists."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _folded(word: str) -> str:
    if word.isascii():
        return word[:LONGEST_WORD].lower()
    apart = unicodedata.normalize("NFKD", word[:LONGEST_WORD])
    kept = unicodedata.normalize("NFC", "".join(c for c in apart if not unicodedata.combining(c))).casefold()
    # A character may decompose into ASCII punctuation, which a database could take for an operator.
    return "".join(c for c in kept if not c.isascii() or c.isalnum())[:LONGEST_WORD]


@dataclass(frozen=True)
class Query:
    """A search query: a text must contain all of its terms, each as adjacent words.

    Args:
        terms: The words of each term.
    """

    terms: tuple[tuple[str, ...], ...]


def query(text: str) -> Query:
    """Parse a search text literally: quotes, operators and the like have no meaning.

    Raises:
        InvalidInput: The text is empty or too long.

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
    """An excerpt of a text on one line, and the positions of the matches in it as pairs of start and end."""

    text: str
    marks: tuple[tuple[int, int], ...]


def snippet(text: str, wanted: Query) -> Snippet:
    """Return the excerpt of a text around the first match.

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
    # Each whitespace character becomes one space, so that the marks still fit.
    shown = lead + "".join(" " if c.isspace() else c for c in whole[start:end]) + tail
    return Snippet(shown, tuple((a + shift, b + shift) for a, b in found if a >= start and b <= end))


def _spots(inside: Sequence[Word], term: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield the positions where the words of a term are adjacent."""
    for n, word in enumerate(inside):
        if word.text == term[0] and tuple(w.text for w in inside[n : n + len(term)]) == term:
            yield word.start, inside[n + len(term) - 1].end


def _at_space(text: str, at: int, until: int) -> int:
    """Move a position to the start of the next word, unless that is far away."""
    if at in (0, len(text)) or text[at - 1].isspace():
        return at
    nearest = min(until, at + 20)
    return next((n + 1 for n in range(at, nearest) if text[n].isspace()), at)
