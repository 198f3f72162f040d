"""The calls of one turn as LangGraph may run them once more: a node that is retried runs all of its calls again."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from langgraph.errors import ParentCommand

from agentgit.agents.turn.fence_errors import broken_off, unswallowed
from agentgit.store.records.journal import Intent


@dataclass(frozen=True)
class InflightResult:
    """A result that is returned instead of running a tool, perhaps only after another run of the same call ends.

    Args:
        future: Yields the value that the tool returned, or raises what the tool raised.
    """

    future: Future[Any]

    @classmethod
    def of(cls, value: Any) -> InflightResult:
        """Make the answer that is known already."""
        future: Future[Any] = Future()
        future.set_result(value)
        return cls(future)

    def wait(self) -> Any:
        """Wait for the result and return it."""
        return self.future.result()

    async def come(self) -> Any:
        """Wait for the result without blocking the event loop, and return it."""
        return await asyncio.wrap_future(self.future)


class Attempt:
    """A call of this turn that runs or has ended.

    Args:
        intent: The record of it.
    """

    def __init__(self, intent: Intent) -> None:
        self.intent = intent
        self._future: Future[Any] = Future()
        self._future.set_running_or_notify_cancel()  # whoever waits for it and is cancelled must not cancel it
        self._was_broken_off = False
        self.is_unsure = False
        """True if it raised, and its tool could not see whether it happened all the same."""
        self.used: dict[str, Any] | None = None
        """The numbers of its task that it has used up; see `Questions.skip`."""

    @property
    def answer(self) -> InflightResult:
        """The result that a second run of the call receives."""
        return InflightResult(self._future)

    @property
    def has_failed(self) -> bool:
        """True if it raised or was broken off: the next equal call is another attempt at the same."""
        error = self._future.exception() if self._future.done() else None
        return error is not None and not isinstance(error, ParentCommand)  # by that a tool hands over

    def is_over(self, *, is_harmless: bool) -> bool:
        """Return whether the call may be made again: it failed; or it was broken off, and that does no harm."""
        return self.has_failed and (is_harmless or not self._was_broken_off)

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


@dataclass
class Slot:
    """One call among those of one run of a task.

    Args:
        name: The name that tells it from the others, the same each time that the task runs.
        identity: The value that it shares with its repetitions.
        keys: The idempotency keys that it has, or had when it was made.
        attempt: The newest attempt at it.
    """

    name: str
    identity: str
    keys: set[str] = field(default_factory=set)
    attempt: Attempt | None = None

    @property
    def is_free(self) -> bool:
        """True if the next equal call is this one again."""
        return self.attempt is not None and self.attempt.has_failed


class Slots:
    """The calls of one run of a task, in their order.

    LangGraph's ids of calls are not enough: a node's own code has none, or makes new ones each time; and middleware may
    make a call several times under one id. So equal calls are counted. Who comes again after an error is the same call.
    """

    def __init__(self) -> None:
        self.all: list[Slot] = []

    def take(self, call_id: str | None, identity: str) -> Slot:
        """Assign a call to its slot, and return that.

        Args:
            call_id: Its id in the AI message that asked for it; None if none did.
            identity: The value that it shares with its repetitions.
        """
        equal = [slot for slot in self.all if slot.identity == identity]
        slot = next((slot for slot in equal if slot.is_free), None)
        if slot is None:
            slot = Slot(self._name(call_id, identity, len(equal)), identity)
            self.all.append(slot)
        return slot

    def _name(self, call_id: str | None, identity: str, number: int) -> str:
        if call_id is None:
            return f"#{identity}#{number}"
        if not self.all:
            return call_id  # what was asked for; what comes then is middleware's doing
        if self.all[0].identity == identity:
            return f"{call_id}#{number}"
        return f"{call_id}#{identity}#{number}"
