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

MAX_WORDS = 10_000
"""The maximum number of searchable words of one text; PostgreSQL stores positions up to 16,383."""

MAX_CHARACTERS = 200_000
"""The maximum number of characters of these words; PostgreSQL stores up to a megabyte."""

MAX_WORD_LENGTH = 64
"""The number of characters of a word that are compared; the rest is ignored."""

MAX_QUERY_LENGTH = 1_000
"""The maximum number of characters of a query."""

BEFORE, AFTER = 40, 120
"""The number of characters that a snippet shows before the start of the match, and from there on."""

_SINGLE_CHARACTERS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u312f\u3190-\u9fff\uf900-\ufaff\U00020000-\U0003fffd"
)
_PICTOGRAPHS = "\u2190-\u2bff\U0001f000-\U0001faff"
_WORD = re.compile(rf"(?=[^\W_])[{_SINGLE_CHARACTERS}]|[{_PICTOGRAPHS}]|[^\W_{_SINGLE_CHARACTERS}]+")
_ASCII_WORD = re.compile("[a-z0-9]+")


class Word(NamedTuple):
    """One folded word of a text and its position."""

    text: str
    start: int
    end: int


def words(text: str) -> Iterator[Word]:
    """Yield the words of a text, up to `MAX_WORDS` and `MAX_CHARACTERS`.

    Example:
        >>> [word.text for word in words("Café_order: 2x 日本!")]
        ['cafe', 'order', '2x', '日', '本']
    """
    count = size = 0
    for match in _WORD.finditer(text):
        folded = _fold_word(match[0])
        if folded:
            yield Word(folded, match.start(), match.end())
            count, size = count + 1, size + len(folded)
        if count >= MAX_WORDS or size >= MAX_CHARACTERS:
            return


def folded_words(text: str) -> list[str]:
    """Return the words of a text as `words` does, without their positions.

    Example:
        >>> folded_words("Café_order: 2x 日本!"), folded_words("Two CHAIRS")
        (['cafe', 'order', '2x', '日', '本'], ['two', 'chairs'])
    """
    if text.isascii() and len(text) <= MAX_WORDS:  # most texts, in a fifth of the time
        return [word[:MAX_WORD_LENGTH] for word in _ASCII_WORD.findall(text.lower())]
    return [word.text for word in words(text)]


def normalize_nfc(text: str) -> str:
    """Return a text in Unicode form NFC: each letter and its accents are one character if such a character exists."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)


def _fold_word(word: str) -> str:
    if word.isascii():
        return word[:MAX_WORD_LENGTH].lower()
    decomposed = unicodedata.normalize("NFKD", word[:MAX_WORD_LENGTH])
    letters = unicodedata.normalize("NFC", "".join(c for c in decomposed if not unicodedata.combining(c))).casefold()
    # A character may decompose into ASCII punctuation, which a database could take for an operator.
    return "".join(c for c in letters if not c.isascii() or c.isalnum())[:MAX_WORD_LENGTH]


@dataclass(frozen=True)
class Query:
    """A search query: a text must contain all of its terms, each as adjacent words."""

    terms: tuple[tuple[str, ...], ...]


def parse_query(text: str) -> Query:
    """Parse a search text literally: quotes, operators and the like have no meaning.

    Example:
        >>> parse_query('create_order AND "chair').terms
        (('create', 'order'), ('and',), ('chair',))
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidInput(f"{text!r} contains no word to search for. Give one or more words.")
    if len(text) > MAX_QUERY_LENGTH:
        raise InvalidInput(f"A search takes up to {MAX_QUERY_LENGTH:,} characters, not {len(text):,}.")
    terms = (tuple(word.text for word in words(part)) for part in normalize_nfc(text).split())
    return Query(tuple(dict.fromkeys(term for term in terms if term)))


class Snippet(NamedTuple):
    """An excerpt of a text on one line, and the positions of the matches in it as pairs of start and end."""

    text: str
    marks: tuple[tuple[int, int], ...]


def make_snippet(text: str, query: Query) -> Snippet:
    """Return the excerpt of a text around the first match.

    Example:
        >>> make_snippet("We order two chairs.", parse_query("two chairs"))
        Snippet(text='We order two chairs.', marks=((9, 12), (13, 19)))
    """
    normalized = normalize_nfc(text)
    text_words = list(words(normalized))
    spans = sorted(span for term in query.terms for span in _match_spans(text_words, term))
    first_start = spans[0][0] if spans else 0
    start, end = max(0, first_start - BEFORE), min(len(normalized), first_start + AFTER)
    start, end = _snap_to_word(normalized, start, first_start), _snap_to_word(normalized, end, len(normalized))
    lead, tail = "…" if start else "", "…" if end < len(normalized) else ""
    offset = len(lead) - start
    # Each whitespace character becomes one space, so that the marks still fit.
    excerpt = lead + "".join(" " if c.isspace() else c for c in normalized[start:end]) + tail
    return Snippet(excerpt, tuple((a + offset, b + offset) for a, b in spans if a >= start and b <= end))


def _match_spans(text_words: Sequence[Word], term: tuple[str, ...]) -> Iterator[tuple[int, int]]:
    """Yield the positions where the words of a term are adjacent."""
    for n, word in enumerate(text_words):
        if word.text == term[0] and tuple(w.text for w in text_words[n : n + len(term)]) == term:
            yield word.start, text_words[n + len(term) - 1].end


def _snap_to_word(text: str, position: int, limit: int) -> int:
    """Move a position to the start of the next word, unless that is far away."""
    if position in (0, len(text)) or text[position - 1].isspace():
        return position
    last = min(limit, position + 20)
    return next((n + 1 for n in range(position, last) if text[n].isspace()), position)
