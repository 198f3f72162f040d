"""Verification of the world before an operation changes it, and waiting for the user's functions that do so.

The `verify` function of an effect finds out what became of an interrupted call. The `precheck` function finds out
whether a call can be undone now. No transaction is open while they run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from enum import Enum
from typing import Any

from agentgit.async_api import WAITING_LOOP
from agentgit.effects import RollbackPlan, ToolInvocation, invocation
from agentgit.effects.function_names import VALUES, name_of, printable_name
from agentgit.effects.invocation import VERIFIED, idempotency_key_set, join_errors, short_repr
from agentgit.effects.kinds import MEMORY, RECORDED_KINDS
from agentgit.effects.registry import Registry
from agentgit.errors import Conflict, InvalidInput, NotFound, Unavailable
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.rollback.memory import MemoryConflicts
from agentgit.rollback.planner import Refusals
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.values import describe_error, portable

Awaiter = Callable[[Awaitable[Any]], Any]
"""A function that waits for an awaitable and returns its result."""


def wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for an awaitable on a new event loop in a new thread, and return its result.

    The thread is needed because the caller may be on a running event loop, as every cell of a notebook is.
    """

    async def main() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, main()).result()


def awaiter_for_current_loop() -> Awaiter:
    """Return a function that waits for awaitables, on the event loop that awaits this code if there is one."""
    loop = WAITING_LOOP.get()
    if loop is None or not loop.is_running() or loop is _running_loop():
        return wait

    def wait_on_loop(awaitable: Awaitable[Any]) -> Any:
        async def main() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(main(), loop).result()

    return wait_on_loop


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def await_result(awaiter: Awaiter, result: Any) -> Any:
    """Return the result of a user's function; wait for it if it is an awaitable."""
    return awaiter(result) if inspect.isawaitable(result) else result


IN_OPERATION: ContextVar[Collection[str]] = ContextVar("agentgit_in_operation", default=())
"""The effects that calls of tools may have in a function that an operation calls on its own; none elsewhere.

A rerun that runs meanwhile does not refuse such calls.
"""


@contextmanager
def _in_operation(key: str | None, kinds: Collection[str]) -> Iterator[None]:
    token = IN_OPERATION.set(kinds)
    try:
        with idempotency_key_set(key):
            yield
    finally:
        IN_OPERATION.reset(token)


def call_in_operation(
    function: Callable[..., Any], *arguments: Any, key: str | None = None, kinds: Collection[str] = RECORDED_KINDS
) -> Any:
    """Call a user's function for an operation, about the call with this idempotency key.

    An awaitable that it returns is one of the operation, too. If it runs a recorded call again, only calls with the
    effects `kinds` may be made in it.
    """

    async def finish(awaitable: Awaitable[Any]) -> Any:
        with _in_operation(key, kinds):
            return await awaitable

    with _in_operation(key, kinds):
        result = function(*arguments)
    return finish(result) if inspect.isawaitable(result) else result


def await_answer(awaiter: Awaiter, function: Callable[..., Any], call: ToolInvocation, *args: Any) -> Any:
    """Return the answer of an `undo`, `verify` or `precheck` about a call: True, False, None, or a result.

    Anything else is refused: an empty list or a zero does not say whether something happened.
    """
    answer = await_result(awaiter, call_in_operation(function, *args, key=call.idempotency_key))
    if answer is None or answer is True or answer is False:
        return answer
    name = printable_name(name_of(function).path.partition(VALUES)[0])
    if inspect.isgenerator(answer) or inspect.isasyncgen(answer) or isinstance(answer, (map, filter)):
        raise InvalidInput(f"{name} returned a {type(answer).__name__} that has not run; consume it in the function.")
    if not _is_result(answer):
        raise InvalidInput(f"{name} returned {short_repr(answer)}; it must return True, False, None, or a result.")
    return answer


def _is_result(answer: Any) -> bool:
    try:
        return bool(answer) and type(answer).__name__ not in ("bool", "bool_")  # numpy has a True of its own
    except Exception:  # noqa: BLE001  # an array of numpy raises when it is asked
        return False


LOG = logging.getLogger("agentgit")

PlanFactory = Callable[[Reading, Refusals], RollbackPlan]
"""A function that creates a plan, given the refusals of the prechecks."""


class Verdict(Enum):
    """The results of verifying an effect, other than `VerifiedCall` and `VerifyRaised`."""

    GONE = "not there"
    UNDETERMINED = "not to be seen"
    NO_VERIFY = "nobody can look"


@dataclass(frozen=True)
class VerifiedCall:
    """The effect is in the world. `result` is what the call must have returned; None if that is unknown."""

    result: Any = None


@dataclass(frozen=True)
class VerifyRaised:
    """The effect could not be verified, because its `verify` function raised `error`."""

    error: str


class Verification:
    """Runs the `verify` and `precheck` functions of effects."""

    def __init__(self, store: Store, registry: Registry, awaiter: Awaiter) -> None:
        self.store = store
        self.registry = registry
        self.awaiter = awaiter
        self.memory_conflicts = MemoryConflicts(store, registry)

    def plan_with_prechecks(self, create_plan: PlanFactory) -> tuple[RollbackPlan, dict[int, str]]:
        """Create a plan, run the prechecks of its reversals, and plan again if a precheck refuses.

        Prechecks are the user's functions and look at the world, so no transaction is open while they run.
        """
        with self.store.database.reading() as transaction:
            plan = create_plan(transaction, {})
        answers = {
            step.invocation.id: None if step.invocation.effect == MEMORY else self._run_precheck(step.invocation)
            for step in plan.reversals
        }
        answers |= self._memory_conflicts(plan)
        refusals = {id: answer for id, answer in answers.items() if answer is not None}
        if not refusals:
            return plan, dict.fromkeys(answers, "")
        with self.store.database.reading() as transaction:
            return create_plan(transaction, refusals), {id: answer or "" for id, answer in answers.items()}

    def _memory_conflicts(self, plan: RollbackPlan) -> dict[int, str]:
        """Return why writes to memory are not undone or made again, by the id of the call."""
        call = next((one.invocation for one in plan.steps if one.invocation.effect == MEMORY), None)
        return {} if call is None else self.memory_conflicts.find_in_plan(self._session_id_of(call), plan)

    def _run_precheck(self, call: ToolInvocation) -> str | None:
        """Return why one effect cannot be undone now; None if it can."""
        session_id = self._session_id_of(call)
        try:
            precheck = self.registry.precheck(session_id, call)
        except NotFound as error:
            return error.reason
        try:
            answer = await_answer(self.awaiter, precheck, call, call) if precheck is not None else None
        except Exception as error:  # noqa: BLE001  # any error of a user's function blocks the reversal and is reported
            _warn("precheck", call, "it is not reversed")
            return f"its precheck raised {describe_error(error)}"
        if answer is None or answer is True:
            return None
        return f"its precheck refused it{'' if answer is False else f': {answer}'}"

    def _session_id_of(self, call: ToolInvocation) -> int:
        with self.store.database.reading() as transaction:
            return int(self.store.sessions.branch(transaction, call.internal_session_id).external_session_id)

    def verify_unsettled_calls(self, session_id: int) -> None:
        """Recover what dead processes held in a session, and verify the calls whose outcome is in doubt."""
        recover_all_abandoned(self.store, session_id)
        with self.store.database.reading() as transaction:
            calls = self.store.world.calls_in_effect(transaction, session_id)
        for call in calls:
            if call.status in (invocation.UNKNOWN, invocation.REVERSE_UNKNOWN, invocation.REVERSE_FAILED):
                self.verify(session_id, call)

    def verify(self, session_id: int, call: ToolInvocation) -> None:
        """Run the `verify` function of a call, and record whether the effect is in the world."""
        try:
            with self.memory_conflicts.lock(session_id, call):  # a write that goes on does not land after this
                verdict = self.run_verify(session_id, call)
        except Unavailable as unavailable:  # a write that goes on may still happen
            verdict = VerifyRaised(describe_error(unavailable))
        if isinstance(verdict, VerifyRaised) or verdict in (Verdict.UNDETERMINED, Verdict.NO_VERIFY):
            self._record_verify_error(call, verdict.error if isinstance(verdict, VerifyRaised) else None)
            return
        is_in_world = isinstance(verdict, VerifiedCall)
        if call.status == invocation.UNKNOWN:
            status, error = (
                (invocation.DONE, None) if is_in_world else (invocation.FAILED, "verified: it did not happen")
            )
        else:
            status, error = (invocation.REVERSE_FAILED, VERIFIED) if is_in_world else (invocation.REVERSED, None)
        if status == call.status:
            self.store.database.write(lambda c: self.store.journal.set_error_message(c, call, error))
            return
        result = verdict.result if isinstance(verdict, VerifiedCall) and call.status == invocation.UNKNOWN else None
        try:
            self.store.database.write(
                lambda c: self.store.journal.move(c, call.id, status, error=error, result=result), durable=True
            )
        except Conflict:
            return  # somebody else has decided meanwhile, and the journal has that decision

    def _record_verify_error(self, call: ToolInvocation, verify_error: str | None) -> None:
        """Record what the `verify` function of a call raised, or remove an earlier error if it did not raise."""
        error = join_errors(call.own_error, verify_error)
        if error != call.error_message:
            self.store.database.write(lambda c: self.store.journal.set_error_message(c, call, error))

    def run_verify(self, session_id: int, call: ToolInvocation) -> VerifiedCall | Verdict | VerifyRaised:
        """Run the `verify` function of a call, and return whether the effect is in the world."""
        if call.id in self.registry.running_calls:
            return Verdict.UNDETERMINED
        try:
            verify = self.registry.verify(session_id, call)
        except NotFound as error:
            LOG.info("Call %s of %r is not verified: %s.", call.id, call.tool_name, error)
            return Verdict.UNDETERMINED
        if verify is None:
            return Verdict.NO_VERIFY
        try:
            answer = await_answer(self.awaiter, verify, call, call)
        except Exception as error:  # noqa: BLE001  # the outcome stays unknown, and a person decides
            _warn("verify", call, "its outcome stays unknown")
            return VerifyRaised(describe_error(error))
        if answer is None:
            return Verdict.UNDETERMINED
        return Verdict.GONE if answer is False else VerifiedCall(None if answer is True else portable(answer))


def _warn(role: str, call: ToolInvocation, consequence: str) -> None:
    """Log the error of a user's function, with its traceback."""
    LOG.warning("The %s of %r raised for call %s: %s.", role, call.tool_name, call.id, consequence, exc_info=True)
