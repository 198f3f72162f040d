"""Words and snippets: the pure part of search (row W9)."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit import InvalidInput
from agentgit.checkpoints import search_words
from agentgit.checkpoints.search_words import Query, composed, query, snippet
from agentgit.store.search.index import vector
from agentgit.store.search.query import fts_query, ts_query

TEXTS = st.text(alphabet=st.characters(codec=None), max_size=60)
"""Any code points, lone surrogates and NUL among them."""


def found(text):
    return [word.text for word in search_words.words(composed(text))]


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
        ("x" * 500, ["x" * search_words.LONGEST_WORD]),
    ],
)
def test_w9_words_are_folded_and_signs_are_none(text, expected):
    """W9: case, accents and width do not count, CJK and emoji are found piece by piece, and signs are nothing."""
    assert found(text) == expected


@given(TEXTS)
def test_w9_no_word_means_anything_to_a_database(text):
    """W9: whatever a text holds, its words have no ASCII sign, no NUL, no surrogate, and can be written as UTF-8."""
    for word in found(text):
        word.encode()
        assert word
        assert len(word) <= search_words.LONGEST_WORD
        assert all(c.isalnum() for c in word if c.isascii())
        assert "§" not in word
    assert vector(found(text)).count("'") == 2 * len(set(found(text)))


@given(TEXTS, TEXTS, TEXTS)
def test_w9_a_text_is_found_by_any_piece_of_it_that_stands_alone(before, text, after):
    """W9: what stands between spaces in a text is found there by itself, and the snippet marks it."""
    whole = f"{before} {text} {after}"
    if not text.strip():
        return
    wanted, inside = query(text), found(whole)
    for term in wanted.terms:
        assert any(tuple(inside[n : n + len(term)]) == term for n in range(len(inside)))
    shown = snippet(whole, wanted)
    assert bool(shown.marks) == bool(wanted.terms)
    for start, end in shown.marks:
        assert 0 <= start < end <= len(shown.text)


@given(TEXTS)
def test_w9_queries_are_only_quoted_words(text):
    """W9: nothing of a query is an operator: outside of the quotes stand only ours."""
    if not text.strip():
        return
    wanted = query(text)
    for named in (True, False):
        fts, ts = (write(["§s1"], wanted, named=named) for write in (fts_query, ts_query))
        for written, quote in ((fts, '"'), (ts, "'")):
            assert set("".join(written.split(quote)[::2])) <= set("() ANDNOT<->&!")


@pytest.mark.parametrize("bad", ["", "  ", "\n\t", None, 7, "x" * 1001])
def test_w9_what_is_nothing_to_search_for_is_refused(bad):
    """Bad input: an empty or endless query is a typed error."""
    with pytest.raises(InvalidInput):
        query(bad)


def test_w9_a_snippet_is_short_and_marks_what_was_found():
    """W9: of a long text the piece around the first find is shown, on one line, with each find marked."""
    text = "lorem ipsum\n" * 100 + "we order TWO\tchairs, two chairs\n" + "dolor sit " * 100
    shown = snippet(text, query("two_chairs we"))
    assert len(shown.text) < search_words.BEFORE + search_words.AFTER + 25
    assert "\n" not in shown.text
    assert [shown.text[a:b] for a, b in shown.marks] == ["we", "TWO chairs", "two chairs"]
    assert shown.text[0] == shown.text[-1] == "…"
    assert snippet("nothing here", Query((("x",),))).marks == ()


def test_w9_a_text_has_a_limited_number_of_words():
    """W9: of a huge text the first words count, so that one message fills no index."""
    assert len(found("word " * 50_000)) == search_words.MOST_WORDS
    assert sum(map(len, found(" ".join(f"{n:060}" for n in range(9_000))))) <= search_words.MOST_CHARACTERS + 64


@given(st.text(max_size=40))
def test_w9_how_a_letter_is_composed_does_not_count(text):
    """W9: a text is found however its accents are written."""
    assert found(unicodedata.normalize("NFD", text)) == found(unicodedata.normalize("NFC", text))
