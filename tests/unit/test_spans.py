"""Spans without OpenTelemetry (W12)."""

from agentgit import tracing


def test_w12_without_opentelemetry_a_span_is_nothing(monkeypatch):
    """W12: if the OpenTelemetry API is not installed, `start` returns the shared span that does nothing."""
    monkeypatch.setattr(tracing, "_api", None)
    assert tracing.start("x") is tracing.NO_SPAN
