"""Looking at the world before it is moved, and waiting for the functions of users that do so.

Looking at the world before it is moved: what became of calls that were broken off, and what can be undone now. What
looks are the user's functions, `verify` and `precheck` of an effect. No transaction is open while they run.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from typing import Any

from sqlalchemy import Connection

from agentgit.async_api import WAITING_LOOP
from agentgit.effects import RollbackPlan, ToolInvocation, invocation
from agentgit.effects.invocation import and_verify
from agentgit.effects.registry import Registry
from agentgit.errors import Conflict, InvalidInput, NotFound
from agentgit.rollback.crash_recovery import recover_all_abandoned
from agentgit.rollback.planner import Cannot
from agentgit.store.store import Store
from agentgit.values import portable, told

Settle = Callable[[Awaitable[Any]], Any]
"""Waits for an asynchronous function."""


def wait(awaitable: Awaitable[Any]) -> Any:
    """Wait for an asynchronous function, on an event loop of its own in a thread of its own.

    The caller may stand on a running loop, as every cell of a notebook does.
    """

    async def settled() -> Any:
        return await awaitable

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, settled()).result()


def settle_here() -> Settle:
    """Return what waits for asynchronous functions: on the event loop that awaits this code, if one does."""
    loop = WAITING_LOOP.get()
    if loop is None or not loop.is_running() or loop is _running():
        return wait

    def settle(awaitable: Awaitable[Any]) -> Any:
        async def settled() -> Any:
            return await awaitable

        return asyncio.run_coroutine_threadsafe(settled(), loop).result()

    return settle


def _running() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def settled(settle: Settle, answer: Any) -> Any:
    """Wait for what a user's function gave, if it is asynchronous."""
    return settle(answer) if inspect.isawaitable(answer) else answer


def done(settle: Settle, answer: Any) -> Any:
    """Wait for what a user's function gave, and make sure that the function has run.

    Raises:
        InvalidInput: It gave a generator, a map or a filter, none of whose steps has run.
    """
    value = settled(settle, answer)
    if inspect.isgenerator(value) or inspect.isasyncgen(value) or isinstance(value, (map, filter)):
        raise InvalidInput(f"it returned a {type(value).__name__} that has not run; consume it inside the function.")
    return value


LOG = logging.getLogger("agentgit")

Planning = Callable[[Connection, Cannot], RollbackPlan]
"""Makes a plan, given what the prechecks have said."""


class Verdict(Enum):
    """The possible results of verifying an effect, other than `VerifiedCall`."""

    GONE = "not there"
    UNSEEN = "not to be seen"
    BLIND = "nobody can look"


@dataclass(frozen=True)
class VerifiedCall:
    """The effect is in the world; with what the call must have returned, if that can be seen."""

    result: Any = None


@dataclass(frozen=True)
class VerifyRaised:
    """It was not to be seen, because the function that looks raised; with what."""

    error: str


class Verification:
    """Asks the functions that look.

    Args:
        store: The store of the database.
        registry: The functions that this process has for recorded calls.
        settle: A function that waits for asynchronous functions.
    """

    def __init__(self, store: Store, registry: Registry, settle: Settle) -> None:
        self.store = store
        self.registry = registry
        self.settle = settle

    def checked(self, plan: Planning) -> tuple[RollbackPlan, dict[int, str]]:
        """Make a plan, ask the prechecks of what it would reverse, and make it again with what they say.

        They are the user's functions and look at the world, so that no transaction is open while they run.
        """
        with self.store.database.reading() as connection:
            first = plan(connection, {})
        said = {step.invocation.id: self._precheck(step.invocation) for step in first.reversals}
        cannot = {id: why for id, why in said.items() if why is not None}
        if not cannot:
            return first, dict.fromkeys(said, "")
        with self.store.database.reading() as connection:
            return plan(connection, cannot), {id: why or "" for id, why in said.items()}

    def _precheck(self, call: ToolInvocation) -> str | None:
        """Ask whether one effect can be undone now; None if it can."""
        session_id = self._session_of(call)
        try:
            check = self.registry.precheck(session_id, call)
        except NotFound as error:
            return str(error)
        try:
            said = done(self.settle, check(call)) if check is not None else None
        except Exception as error:  # noqa: BLE001  # whatever a user's function raises stands in the way, and is told
            _warn("precheck", call, "it is not reversed")
            return f"its precheck raised {told(error)}"
        if said is None or said is True:
            return None
        return f"its precheck refused it{'' if said is False else f': {said}'}"

    def _session_of(self, call: ToolInvocation) -> int:
        with self.store.database.reading() as connection:
            return int(self.store.sessions.branch(connection, call.internal_session_id).external_session_id)

    def look(self, session_id: int) -> None:
        """Take back what dead processes held, and ask the tools what became of the calls that were broken off."""
        recover_all_abandoned(self.store, session_id)
        with self.store.database.reading() as connection:
            standing = self.store.world.standing(connection, session_id)
        for call in standing:
            if call.status in (invocation.UNKNOWN, invocation.REVERSE_UNKNOWN, invocation.REVERSE_FAILED):
                self.verify(session_id, call)

    def verify(self, session_id: int, call: ToolInvocation) -> None:
        """Let the `verify` of a tool say whether its effect is in the world, and write that down."""
        seen = self.sees(session_id, call)
        if isinstance(seen, VerifyRaised) or seen in (Verdict.UNSEEN, Verdict.BLIND):
            self._note(call, seen.error if isinstance(seen, VerifyRaised) else None)
            return
        there = isinstance(seen, VerifiedCall)
        if call.status == invocation.UNKNOWN:
            status, error = (invocation.DONE, None) if there else (invocation.FAILED, "verified: it did not happen")
        else:
            status, error = (
                (invocation.REVERSE_FAILED, "verified: it is still there") if there else (invocation.REVERSED, None)
            )
        learned = seen.result if isinstance(seen, VerifiedCall) and call.status == invocation.UNKNOWN else None
        try:
            self.store.database.write(
                lambda c: self.store.journal.move(c, call.id, status, error=error, result=learned), durable=True
            )
        except Conflict:
            return  # somebody else has decided meanwhile; what the journal has now holds

    def _note(self, call: ToolInvocation, raised: str | None) -> None:
        """Write down why nobody knows what became of a call: what its `verify` raised, or that it no longer does."""
        error = and_verify(call.own_error, raised)
        if error != call.error_message:
            self.store.database.write(lambda c: self.store.journal.remark(c, call, error))

    def sees(self, session_id: int, call: ToolInvocation) -> VerifiedCall | Verdict | VerifyRaised:
        """Ask the `verify` of a tool whether the effect of a call is in the world."""
        try:
            verify = self.registry.verify(session_id, call)
        except NotFound as error:
            LOG.info("Call %s of %r is not verified: %s.", call.id, call.tool_name, error)
            return Verdict.UNSEEN
        if verify is None:
            return Verdict.BLIND
        try:
            seen = done(self.settle, verify(call))
        except Exception as error:  # noqa: BLE001  # it could not see; a person decides, as without it
            _warn("verify", call, "its outcome stays unknown")
            return VerifyRaised(told(error))
        if seen is None:
            return Verdict.UNSEEN
        return Verdict.GONE if seen is False else VerifiedCall(None if seen is True else portable(seen))


def _warn(role: str, call: ToolInvocation, so: str) -> None:
    """Log that a function of the user raised, with its traceback."""
    LOG.warning("The %s of %r raised for call %s: %s.", role, call.tool_name, call.id, so, exc_info=True)
