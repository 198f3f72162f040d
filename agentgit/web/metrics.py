"""Metrics for the operator of a server: counters in the Prometheus text format, and the access log."""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import accumulate
from typing import Any

from starlette.types import Scope

from agentgit.render.text import clean

ACCESS_LOG = logging.getLogger("agentgit.access")
"""The access log: one line for each request, at level INFO."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds of the histogram of durations, in seconds: the defaults of Prometheus' own client libraries."""

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

USER_KEY = "agentgit.user"
"""The key of the user's id in the scope of a request. It is set once the user is authenticated."""


class Metrics:
    """The metrics of one application. They contain no name, address or text from a request.

    Example:
        >>> metrics = Metrics()
        >>> metrics.observe("/sessions/{session_id}", "GET", 200, 0.02)
        >>> text = metrics.text({})
        >>> 'agentgit_requests_total{route="/sessions/{session_id}",method="GET",status="200"} 1' in text
        True
    """

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._durations: dict[str, list[int]] = {}
        self._seconds: dict[str, float] = {}
        self._failures: Counter[str] = Counter(refused=0, throttled=0)
        self._lock = threading.Lock()

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Count a request."""
        with self._lock:
            self._requests[route, method if method in METHODS else "other", status] += 1
            self._durations.setdefault(route, [0] * (len(BUCKETS) + 1))[bisect_left(BUCKETS, seconds)] += 1
            self._seconds[route] = self._seconds.get(route, 0.0) + seconds

    def count_failed_login(self, *, throttled: bool) -> None:
        """Count a failed login."""
        with self._lock:
            self._failures["throttled" if throttled else "refused"] += 1

    def text(self, gauges: Mapping[str, int]) -> str:
        """Return all metrics in the Prometheus text format."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines(gauges))

    def _lines(self, gauges: Mapping[str, int]) -> Iterator[str]:
        yield "# TYPE agentgit_requests_total counter"
        for (route, method, status), n in sorted(self._requests.items()):
            yield f'agentgit_requests_total{{route="{route}",method="{method}",status="{status}"}} {n}'
        yield "# TYPE agentgit_request_duration_seconds histogram"
        for route, counts in sorted(self._durations.items()):
            for bound, n in zip((*BUCKETS, "+Inf"), accumulate(counts), strict=True):
                yield f'agentgit_request_duration_seconds_bucket{{route="{route}",le="{bound}"}} {n}'
            yield f'agentgit_request_duration_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'agentgit_request_duration_seconds_count{{route="{route}"}} {sum(counts)}'
        yield "# TYPE agentgit_login_failures_total counter"
        for reason, n in sorted(self._failures.items()):
            yield f'agentgit_login_failures_total{{reason="{reason}"}} {n}'
        for name, value in gauges.items():
            yield f"# TYPE agentgit_{name} gauge"
            yield f"agentgit_{name} {value}"


def route_of(scope: Scope, root: str) -> str:
    """Return the path of the route that answered a request, with the names of its parameters; `/*` if none did."""
    mounted = scope.get("root_path", "").removeprefix(root)
    return f"{mounted}{getattr(scope.get('route'), 'path', '/*')}"


def log_access(scope: Scope, route: str, method: str, status: int, seconds: float) -> None:
    """Log a request: time, client address, method, route, status, milliseconds, and the id of the user."""
    if ACCESS_LOG.isEnabledFor(logging.INFO):
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        client: Any = scope.get("client") or ("-",)
        fields = (now, client[0], method, route, status, round(seconds * 1000), scope.get(USER_KEY, "-"))
        ACCESS_LOG.info("%s", " ".join(clean(str(word)).replace(" ", "_") or "-" for word in fields))
