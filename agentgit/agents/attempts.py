"""The calls of one turn as LangGraph may run them once more: a node that is retried runs all of its calls again."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from langgraph.errors import ParentCommand

from agentgit.agents.refusals import broken_off, unswallowed
from agentgit.store.journal import Intent


@dataclass(frozen=True)
class Answer:
    """What is returned instead of running a tool; perhaps only when another run of the same call has ended.

    Args:
        future: gives it as the tool returned it, or raises what the tool raised.
    """

    future: Future[Any]

    @classmethod
    def of(cls, value: Any) -> Answer:
        """Make the answer that is known already."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future)

    def wait(self) -> Any:
        """Give it when it is there."""
        return self.future.result()

    async def come(self) -> Any:
        """Give it when it is there, without blocking the event loop."""
        return await asyncio.wrap_future(self.future)


class Attempt:
    """A call of this turn that runs or has ended.

    Args:
        intent: what is recorded of it.
    """

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # whoever waits for it and is cancelled must not cancel it
        self._was_broken_off = False
        self.is_unsure = False
        """True if it raised, and its tool could not see whether it happened all the same."""

    @property
    def answer(self) -> Answer:
        """What a second run of the call gets."""
        return Answer(self._future)

    def is_over(self, *, is_harmless: bool) -> bool:
        """Tell whether the call may be made again: it failed; or it was broken off, and that does no harm."""
        error = self._future.exception() if self._future.done() else None
        failed = error is not None and not isinstance(error, ParentCommand)  # by that a tool hands over
        return failed and (is_harmless or not self._was_broken_off)

    def end(self, value: Any) -> None:
        """Note what the tool returned."""
        if not self._future.done():
            self._future.set_result(value)

    def fail(self, error: BaseException, invocation_id: int | None = None) -> None:
        """Note what was raised; if that is no error of the tool, the call was broken off, nobody knows where."""
        if self._future.done():
            return
        self._was_broken_off = not isinstance(error, Exception)
        self._future.set_exception(
            unswallowed(broken_off(self.intent, invocation_id)) if self._was_broken_off else error
        )
