"""Spans where nobody wants any (W12)."""

from agentgit import tracing


def test_w12_without_opentelemetry_a_span_is_nothing(monkeypatch):
    """W12: where its API is not installed, no span is made: all share one that does nothing."""
    monkeypatch.setattr(tracing, "_api", None)
    assert tracing.start("x") is tracing.NO_SPAN
