"""The metrics of the server."""

import re

from agentgit.web.metrics import Metrics


def test_duration_buckets_are_cumulative():
    """Each bucket counts all requests up to and including its bound."""
    metrics = Metrics()
    for seconds in (0.001, 0.005, 0.006, 7, 4_000):
        metrics.observe("/x", "GET", 200, seconds)
    found = re.findall(r'le="([^"]+)"\} (\d+)', metrics.text({}))
    assert dict(found) == {
        "0.005": "2", "0.01": "3", "0.025": "3", "0.05": "3", "0.1": "3", "0.25": "3", "0.5": "3", "1.0": "3",
        "2.5": "3", "5.0": "3", "10.0": "4", "+Inf": "5",
    }  # fmt: skip
