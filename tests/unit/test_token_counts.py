"""Token usage of models: sums and costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentgit.sessions.stats import UsedTokens, cost_of, sum_usages

TOKENS = st.tuples(*[st.integers(0, 10**9)] * 5).map(lambda n: UsedTokens(n[0], n[1] + n[3] + n[4], *n[2:]))


COUNTS = st.dictionaries(st.text(max_size=3), TOKENS, max_size=4)


@given(COUNTS, COUNTS)
def test_token_usage_adds_up(before, after):
    """The cost of two usages together is the sum of their costs."""
    together = sum_usages([before, after])
    assert cost_of(together, {"*": (2, 3, 1)}) == pytest.approx(
        cost_of(before, {"*": (2, 3, 1)}) + cost_of(after, {"*": (2, 3, 1)})
    )
