"""OpenTelemetry spans of turns, tool calls, checkpoints and rollbacks; nothing at all where its API is not installed.

Names follow OpenTelemetry's conventions for generative AI where there are any. No span has what a message, an argument
or a failure says: of a failure it has the class.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

_unknown = object()
_api: Any = _unknown
"""The module `opentelemetry.trace`; None if it is not there."""


class Traced:
    """A span, or nothing. A context manager that ends it.

    Args:
        span: OpenTelemetry's; None for nothing.
    """

    def __init__(self, span: Any) -> None:
        self._span = span

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.end(error)

    def set(self, **attributes: Any) -> None:
        """Set attributes of the span; an underscore in a name stands for a dot, two for an underscore."""
        if self._span is not None:
            self._span.set_attributes(_named(attributes))

    @contextmanager
    def current(self) -> Iterator[None]:
        """Let spans that begin in this block be parts of this one."""
        if self._span is None:
            yield
            return
        with _api.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def end(self, error: BaseException | None = None) -> None:
        """End it.

        Args:
            error: The exception that it ended with; a stream that was left early is no failure.
        """
        if self._span is None:
            return
        if error is not None and not isinstance(error, GeneratorExit):
            self.fail(type(error).__name__)
        self._span.end()

    def fail(self, why: str) -> None:
        """Mark the span as failed.

        Args:
            why: A word, without anything that somebody said.
        """
        if self._span is not None:
            self._span.set_attribute("error.type", why)
            self._span.set_status(_api.StatusCode.ERROR)


NOTHING = Traced(None)
"""The span that stands where spans are not wanted."""


def start(name: str, within: Traced = NOTHING, **attributes: Any) -> Traced:
    """Begin a span, as a part of the one that is current.

    Args:
        name: What is done.
        within: The one it is a part of if none is current here.
        attributes: What is known of it; None is left out. An underscore in a name stands for a dot, two for an
            underscore.
    """
    api = _trace()
    if api is None:
        return NOTHING
    context = None
    if within._span is not None and not api.get_current_span().get_span_context().is_valid:
        context = api.set_span_in_context(within._span)
    return Traced(api.get_tracer("agentgit").start_span(name, context=context, attributes=_named(attributes)))


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[Traced]:
    """Make what is done in this block a span, and current; see `start`.

    Example:
        >>> with span("agentgit.checkpoint", agentgit_checkpoint_kind="named") as traced:
        ...     traced.set(agentgit_checkpoint_number=7)
    """
    traced = start(name, **attributes)
    if traced is NOTHING:
        yield traced
        return
    with traced, traced.current():
        yield traced


def tool_span(name: str, within: Traced = NOTHING, **attributes: Any) -> Traced:
    """Begin the span of a tool call; see `start`."""
    return start(
        f"execute_tool {name}", within, gen__ai_operation_name="execute_tool", gen__ai_tool_name=name, **attributes
    )


def _trace() -> Any:
    """Find OpenTelemetry, once."""
    global _api
    if _api is _unknown:
        try:
            _api = importlib.import_module("opentelemetry.trace")
        except ModuleNotFoundError:
            _api = None
    return _api


def _named(attributes: dict[str, Any]) -> dict[str, Any]:
    """Rename attributes to what OpenTelemetry calls them."""
    return {
        name.replace("__", "\0").replace("_", ".").replace("\0", "_"): value
        for name, value in attributes.items()
        if value is not None
    }
