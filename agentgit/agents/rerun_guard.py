"""The guard of reruns: while one runs, no tool runs outside a turn, and later none in a thread that began during it.

A rerun answers the calls that lead to its recorder. A node can also call a tool where LangChain does not know its turn,
as in a thread of its own. Nothing tells such a call from one of other code, so both are refused.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from agentgit.agents.tools.late_threads import ThreadsDuring
from agentgit.errors import OutsideRerun
from agentgit.rollback.verification import IN_OPERATION
from agentgit.store.sql.process import count_active_owners

NEXT_STEP = (
    "If a node made the call, make it in the context of the node: start the thread with "
    "contextvars.copy_context().run, or use asyncio.to_thread."
)


class _Rerun(NamedTuple):
    name: str
    stop: Callable[[OutsideRerun], None]
    threads: ThreadsDuring


_running: list[_Rerun] = []
_ended: list[_Rerun] = []
"""The reruns of which threads are still alive."""

_lock = threading.Lock()


@contextmanager
def guarding(name: str, stop: Callable[[OutsideRerun], None]) -> Iterator[None]:
    """Refuse calls outside turns while the block runs a rerun, and stop the rerun at the first one."""
    rerun = _Rerun(name, stop, ThreadsDuring())
    with _lock:
        has_turns = count_active_owners() > len(_running)  # a rerun does one piece of work at a time
        _running.append(rerun)
    try:
        if has_turns:
            warnings.warn(
                f"Turns or rollbacks run in this process. Until the rerun {name} ends, a tool that is called outside "
                "them is refused. Run it in a process of its own, as agentgit rerun does.",
                stacklevel=5,
            )
        yield
    finally:
        with _lock:
            _running.remove(rerun)
            rerun.threads.end()
            _ended[:] = [one for one in (*_ended, rerun) if one.threads.are_alive]


def require_outside_reruns(action: str) -> None:
    """Check that an action on the world outside every turn cannot come from a rerun."""
    if IN_OPERATION.get() or not (_running or _ended):
        return
    with _lock:
        names = ", ".join(rerun.name for rerun in _running)
        problem = f"{action} was called outside a turn while the rerun {names} ran, so it was not run. {NEXT_STEP}"
        for rerun in _running:
            rerun.stop(OutsideRerun(problem))
        reasons = [reason for rerun in _ended if (reason := _reason_to_refuse(rerun)) is not None]
    if names:
        raise OutsideRerun(f"{problem} Any other code can call it when the rerun has ended.")
    if reasons:
        raise OutsideRerun(
            f"{action} was called outside a turn, in a thread that {reasons[0]}; so it was not run. {NEXT_STEP} Any "
            "other code can call it in a thread that is older than the rerun."
        )


def _reason_to_refuse(rerun: _Rerun) -> str | None:
    thread = threading.current_thread()
    origin = rerun.threads.origin_of(thread)
    if origin is thread:
        return f"began during the rerun {rerun.name}, which has ended"
    return f"{origin.name} may have started, which began during the rerun {rerun.name}" if origin is not None else None
