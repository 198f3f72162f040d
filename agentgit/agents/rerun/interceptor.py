"""The interceptor of a rerun: no call reaches its tool, unless the tool only reads or changes the state.

The calls of tools in threads that its nodes start belong to the rerun, too.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from langgraph.cache.base import BaseCache
from langgraph.cache.memory import InMemoryCache

from agentgit.agents.rerun.answers import Answers
from agentgit.agents.rerun.recording import RecordedIds
from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.calls import AdmittedCall, RequestedCall
from agentgit.agents.turn.fence_errors import UNREACHABLE
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.agents.turn.tool_hook import rerun_config, with_rerun_config, wrap_once
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import SIMULATED
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import PromptChanged, RerunDiverged


class RerunSimulation:
    """The stand-in for the world in the turns of a rerun."""

    def __init__(self, answers: Answers, ids: RecordedIds) -> None:
        self._answers, self._ids = answers, ids
        self.cache: BaseCache[Any] = InMemoryCache()
        """The cache of nodes and tasks, which is empty at first."""

    def create_interceptor(self, turn: RunningTurn) -> CallInterceptor:
        """Create the interceptor of a turn."""
        return RerunInterceptor(turn, self._answers)

    def wrap_channel(self, channel: Any) -> Any:
        """Return a channel of the graph as the rerun uses it."""
        return self._ids.wrap_channel(channel)


class RerunInterceptor(CallInterceptor):
    """Answers the calls of one turn of a rerun."""

    is_simulated = True
    result_statuses = CallInterceptor.result_statuses | {SIMULATED}

    def __init__(self, turn: RunningTurn, answers: Answers) -> None:
        super().__init__(turn)
        self._answers = answers

    def authorize(self, request: RequestedCall) -> AdmittedCall:
        """Answer a call, or admit it if it changes nothing outside the rerun."""
        self._answers.require_running()
        try:
            return super().authorize(request)
        except RerunDiverged as error:
            self._answers.stop(error)
            raise

    def authorize_model(self) -> None:
        """Admit a call of a model."""
        self._answers.require_running()

    def on_model_error(self, error: BaseException) -> None:
        """Stop the rerun if a recorded model was asked something else."""
        if isinstance(error, PromptChanged):
            self._answers.stop(error)

    def _admit(self, request: RequestedCall) -> AdmittedCall:
        if request.intent.tool_name in MEMORY_TOOLS:  # the store of a rerun keeps its writes to itself
            return AdmittedCall(request.intent, None, is_simulated=True)
        if not request.is_reachable:
            raise RerunDiverged(
                f"A rerun cannot answer a call of {request.intent.tool_name}, so nothing of it was run. {UNREACHABLE}."
            )
        answer = self._answers.answer(request)
        if answer is None:
            return super()._admit(request)
        return AdmittedCall(request.intent, None, answer, is_simulated=True)

    def _load_earlier_calls(self, request: RequestedCall) -> list[ToolInvocation]:
        # A recorded error is the end of an attempt: the next one has its own record.
        return [call for call in super()._load_earlier_calls(request) if call.error_message is None]


_is_starting_worker: ContextVar[bool] = ContextVar("is_starting_worker", default=False)
"""True while a pool starts a thread, which may run the work of others later."""


def follow_threads() -> None:
    """Wrap the two methods that start work in a thread, unless they are already wrapped.

    A new thread has no context, so LangChain does not know which turn a call in it belongs to. Outside a rerun they
    behave as before.
    """
    wrap_once(threading.Thread, "start", _wrap_start)
    wrap_once(ThreadPoolExecutor, "submit", _wrap_submit)


def _wrap_start(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def start(self: threading.Thread) -> None:
        config = rerun_config()
        if config is not None and not _is_starting_worker.get():
            self.run = with_rerun_config(config, self.run)  # type: ignore[method-assign]
        original(self)

    return start


def _wrap_submit(original: Callable[..., Future[Any]]) -> Callable[..., Future[Any]]:
    @functools.wraps(original)
    def submit(self: ThreadPoolExecutor, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        config = rerun_config()
        if config is None:
            return original(self, fn, *args, **kwargs)
        token = _is_starting_worker.set(True)
        try:
            return original(self, with_rerun_config(config, fn), *args, **kwargs)
        finally:
            _is_starting_worker.reset(token)

    return submit
