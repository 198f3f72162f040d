"""Words, queries and snippets of the search, without a database."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit.checkpoints import search_words
from agentgit.checkpoints.search_words import Query, make_snippet, normalize_nfc, parse_query
from agentgit.store.search.index import ts_vector
from agentgit.store.search.query import fts_query, ts_query

TEXTS = st.text(alphabet=st.characters(codec=None), max_size=60)
"""Texts of any code points, including lone surrogates and NUL."""


def found(text):
    return [word.text for word in search_words.words(normalize_nfc(text))]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Order TWO chairs!", ["order", "two", "chairs"]),
        ("create_order(item='chair')", ["create", "order", "item", "chair"]),
        ("Café Straße", ["cafe", "strasse"]),
        ("cafe\u0301", ["cafe"]),
        ("\uff46\uff55\uff4c\uff4c \ufb01", ["full", "fi"]),
        ("日本語のテ", ["日", "本", "語", "の", "テ"]),
        ("한국어 문서", ["한국어", "문서"]),
        ("ok 👍🏽 🇩🇪", ["ok", "👍", "🏽", "🇩", "🇪"]),
        ("a\0b\ud800c", ["a", "b", "c"]),
        ("' \" * NEAR( ) : ^ - +", ["near"]),
        ("", []),
        ("x" * 500, ["x" * search_words.MAX_WORD_LENGTH]),
    ],
)
def test_words_are_folded_and_punctuation_is_dropped(text, expected):
    """Case, accents and width do not count, CJK and emoji are split, and punctuation is dropped."""
    assert found(text) == expected


@given(TEXTS | st.text(alphabet=st.characters(codec="ascii"), max_size=200))
def test_a_text_is_indexed_by_the_words_that_a_search_splits(text):
    """The index gets the same words of a text as a search, also by the shorter way for ASCII texts."""
    assert search_words.folded_words(search_words.normalize_nfc(text)) == found(text)


@given(TEXTS)
def test_words_contain_no_database_syntax(text):
    """The words of any text have no ASCII punctuation, NUL or surrogate, and can be written as UTF-8."""
    for word in found(text):
        word.encode()
        assert word
        assert len(word) <= search_words.MAX_WORD_LENGTH
        assert all(c.isalnum() for c in word if c.isascii())
        assert "§" not in word
    assert ts_vector(found(text)).count("'") == 2 * len(set(found(text)))


@given(TEXTS, TEXTS, TEXTS)
def test_a_text_is_found_by_any_part_between_spaces(before, text, after):
    whole = f"{before} {text} {after}"
    if not text.strip():
        return
    wanted, inside = parse_query(text), found(whole)
    for term in wanted.terms:
        assert any(tuple(inside[n : n + len(term)]) == term for n in range(len(inside)))
    shown = make_snippet(whole, wanted)
    assert bool(shown.marks) == bool(wanted.terms)
    for start, end in shown.marks:
        assert 0 <= start < end <= len(shown.text)


@given(TEXTS)
def test_a_query_contains_only_quoted_words(text):
    """No part of a query becomes an operator; outside the quotes there are only agentgit's operators."""
    if not text.strip():
        return
    wanted = parse_query(text)
    for named in (True, False):
        fts, ts = (write("§s1", wanted, named=named) for write in (fts_query, ts_query))
        for written, quote in ((fts, '"'), (ts, "'")):
            assert set("".join(written.split(quote)[::2])) <= set("() ANDNOT<->&!")


def test_a_snippet_is_short_and_marks_each_match():
    text = "lorem ipsum\n" * 100 + "we order TWO\tchairs, two chairs\n" + "dolor sit " * 100
    shown = make_snippet(text, parse_query("two_chairs we"))
    assert len(shown.text) < search_words.BEFORE + search_words.AFTER + 25
    assert "\n" not in shown.text
    assert [shown.text[a:b] for a, b in shown.marks] == ["we", "TWO chairs", "two chairs"]
    assert shown.text[0] == shown.text[-1] == "…"
    assert make_snippet("nothing here", Query((("x",),))).marks == ()


def test_a_text_has_a_limited_number_of_words():
    """Only the first words of a huge text count, so that one message cannot fill the index."""
    assert len(found("word " * 50_000)) == search_words.MAX_WORDS
    assert sum(map(len, found(" ".join(f"{n:060}" for n in range(9_000))))) <= search_words.MAX_CHARACTERS + 64
