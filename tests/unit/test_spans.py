"""Spans without OpenTelemetry."""

from agentgit import tracing


def test_without_opentelemetry_a_span_is_nothing(monkeypatch):
    """If the OpenTelemetry API is not installed, `start` returns the shared span that does nothing."""
    monkeypatch.setattr(tracing, "_api", None)
    assert tracing.start("x") is tracing.NO_SPAN
