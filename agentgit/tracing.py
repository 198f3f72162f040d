"""OpenTelemetry spans for turns, tool calls, checkpoints and rollbacks. Without OpenTelemetry's API, they are no-ops.

Names follow OpenTelemetry's semantic conventions for generative AI where they exist. Spans never contain the text of
messages, arguments or errors. A failed span has the class of the exception.

Other libraries trace the runs of LangChain itself, with a span for each graph and tool. Where one of them does,
agentgit has no spans of the same things.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

SWITCH = "AGENTGIT_TRACING"
"""The environment variable that turns agentgit's spans off with `off`."""

LANGCHAIN_TRACERS = frozenset({"openinference", "opentelemetry"})
"""The packages whose callback handlers trace LangChain with OpenTelemetry."""

_NOT_LOADED = object()
_api: Any = _NOT_LOADED
"""The module `opentelemetry.trace`; None if it is not installed."""


class TracedSpan:
    """A span, or a no-op without one. As a context manager, it ends the span."""

    def __init__(self, span: Any) -> None:
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.end(error)

    def set(self, **attributes: Any) -> None:
        """Set attributes of the span. An underscore in a name becomes a dot, and two become an underscore."""
        if self._span is not None:
            self._span.set_attributes(_rename_attributes(attributes))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this span the parent of spans that start in the block."""
        if self._span is None:
            yield
            return
        with _api.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def end(self, error: BaseException | None = None) -> None:
        if self._span is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail(type(error).__name__)
        self._span.end()

    def fail(self, why: str) -> None:
        if self._span is not None:
            self._span.set_attribute("error.type", why)
            self._span.set_status(_api.StatusCode.ERROR)


NO_SPAN = TracedSpan(None)
"""The span whose methods are no-ops."""


def start(name: str, parent: TracedSpan = NO_SPAN, **attributes: Any) -> TracedSpan:
    """Start a span as a child of the current span."""
    api = _load_api()
    if api is None:
        return NO_SPAN
    context = None
    if parent._span is not None and not api.get_current_span().get_span_context().is_valid:
        context = api.set_span_in_context(parent._span)
    started = api.get_tracer("agentgit").start_span(name, context=context, attributes=_rename_attributes(attributes))
    # Without OpenTelemetry's SDK nothing is recorded, and there is no trace to continue.
    return TracedSpan(started) if started.get_span_context().is_valid else NO_SPAN


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[TracedSpan]:
    """Start a span that is current in the block and ends with it; see `start`.

    Example:
        >>> with span("agentgit.checkpoint", agentgit_checkpoint_kind="named") as traced:
        ...     traced.set(agentgit_checkpoint_number=7)
    """
    traced = start(name, **attributes)
    if traced is NO_SPAN:
        yield traced
        return
    with traced, traced.current():
        yield traced


def turn_span(agent: str, **attributes: Any) -> TracedSpan:
    """Start the span of a turn; see `start`. If LangChain is traced, the span of the graph is its child."""
    if is_langchain_traced():
        return start("agentgit.turn", **attributes)
    return start(f"invoke_agent {agent}", gen__ai_operation_name="invoke_agent", gen__ai_agent_name=agent, **attributes)


def tool_span(name: str, parent: TracedSpan = NO_SPAN, **attributes: Any) -> TracedSpan:
    """Start the span of a tool call; see `start`. If LangChain is traced, there is one already."""
    if is_langchain_traced():
        return NO_SPAN
    return start(
        f"execute_tool {name}", parent, gen__ai_operation_name="execute_tool", gen__ai_tool_name=name, **attributes
    )


def is_langchain_traced() -> bool:
    """Return whether another library traces LangChain's runs with OpenTelemetry.

    Such a library, like OpenInference's or Traceloop's, adds its callback handler to each new callback manager.
    """
    callbacks: Any = sys.modules.get("langchain_core.callbacks")
    if callbacks is None or _load_api() is None:
        return False
    handlers = callbacks.CallbackManager([]).handlers
    return any(type(handler).__module__.partition(".")[0] in LANGCHAIN_TRACERS for handler in handlers)


def _load_api() -> Any:
    """Return the module `opentelemetry.trace`, imported once; None without it, or if agentgit's spans are off."""
    global _api
    if os.environ.get(SWITCH, "").strip().lower() in ("off", "0", "false"):
        return None
    if _api is _NOT_LOADED:
        try:
            _api = importlib.import_module("opentelemetry.trace")
        except ModuleNotFoundError:
            _api = None
    return _api


def _rename_attributes(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return attributes under their OpenTelemetry names, without those that are None."""
    return {
        name.replace("__", "\0").replace("_", ".").replace("\0", "_"): value
        for name, value in attributes.items()
        if value is not None
    }
