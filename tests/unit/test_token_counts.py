"""Token usage of models: sums, differences and counts read from headers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit.sessions.stats import UsedTokens, cost_of, subtract_usage, sum_usages
from agentgit.store.threads import token_usage

TOKENS = st.tuples(*[st.integers(0, 10**9)] * 5).map(lambda n: UsedTokens(n[0], n[1] + n[3] + n[4], *n[2:]))


COUNTS = st.dictionaries(st.text(max_size=3), TOKENS, max_size=4)


@given(COUNTS, COUNTS)
def test_token_usage_can_be_added_and_subtracted(before, after):
    """Usage adds up, and subtracting the earlier part leaves the later one."""
    together = sum_usages([before, after])
    assert subtract_usage(together, before) == {model: tokens for model, tokens in after.items() if any(tokens)}
    assert cost_of(together, {"*": (2, 3, 1)}) == pytest.approx(
        cost_of(before, {"*": (2, 3, 1)}) + cost_of(after, {"*": (2, 3, 1)})
    )


@pytest.mark.parametrize("junk", ["x", 5, {"m": 5}, {"m": "abc"}, {"m": [1, "2", None, -3, True, 9, 9]}], ids=str)
def test_bad_input_invalid_usage_in_a_header_is_read_without_error(junk):
    """Bad input: invalid usage in an imported header raises nothing and yields only counts of zero or more."""
    found = token_usage.read({"usage": junk})
    assert all(type(n) is int and n >= 0 for tokens in found.values() for n in tokens)
