"""The callback handler of a turn: it records its model calls, and where its tasks and the requests of calls are."""

from __future__ import annotations

import itertools
import logging
import sys
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler, BaseCallbackManager
from langchain_core.messages import BaseMessage

from agentgit.agents.model_calls import ModelCalls
from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.calls import Calls
from agentgit.agents.turn.fence_errors import as_bubble_up, unreachable_error
from agentgit.agents.turn.requests import Batch
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.errors import AgentGitError


def _is_worth_a_warning(record: logging.LogRecord) -> bool:
    """Return False for an error with which the recorder refuses a call, because the caller of the graph receives it."""
    is_ours = isinstance(record.args, tuple) and record.args[:1] == (Recorder.__name__,)
    return not (is_ours and isinstance(sys.exc_info()[1], AgentGitError))


# LangChain warns of every error in a callback, also if it raises it.
logging.getLogger("langchain_core.callbacks.manager").addFilter(_is_worth_a_warning)


class Recorder(BaseCallbackHandler):
    """Records the model calls of one turn, and leads each call of a tool to the turn."""

    raise_error = True  # a call that cannot be recorded must not run
    run_inline = True  # else the thread and the context in which a graph begins would not be known

    def __init__(self, turn: RunningTurn, owner: str, next_batch: int, unfinished: Batch | None = None) -> None:
        self.turn = turn
        simulation = turn.context.settings.simulation
        self.interceptor: CallInterceptor = (simulation.create_interceptor if simulation else CallInterceptor)(turn)
        self.calls = Calls(turn, owner, self.interceptor, next_batch, unfinished)
        self.model_calls = ModelCalls(lambda: turn.context.saver.codec)

    def on_chat_model_start(
        self,
        serialized: Any,
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        invocation_params: Any = None,
        **_: Any,
    ) -> None:
        self.interceptor.authorize_model()
        is_in_tool = self.calls.enclosing_call(parent_run_id) is not None
        self.model_calls.begin(run_id, messages[0], invocation_params, is_in_tool=is_in_tool)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self.model_calls.discard(run_id)
        self.interceptor.on_model_error(error)

    def on_llm_end(self, response: Any, *, run_id: UUID, **_: Any) -> None:
        self.model_calls.end(run_id, response)
        for generation in itertools.chain.from_iterable(response.generations):
            self.calls.requests.add(getattr(generation, "message", None))

    def on_chain_start(
        self,
        serialized: Any,
        inputs: Any,
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        name: str | None = None,
        **_: Any,
    ) -> None:
        self.calls.scopes.begin(run_id, parent_run_id, metadata, (name, *(tags or ())), inputs)
        self.calls.requests.receive(inputs)

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        self.calls.scopes.end(run_id)

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        self.calls.scopes.end(run_id)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **kwargs: Any) -> None:
        if run_id not in self.calls.by_run:
            name = (serialized or {}).get("name") or kwargs.get("name")
            raise as_bubble_up(unreachable_error(str(name)))


def find_recorder(callbacks: Any) -> Recorder | None:
    """Return the recorder among callbacks; None if they belong to no turn."""
    handlers = callbacks.handlers if isinstance(callbacks, BaseCallbackManager) else callbacks or ()
    return next((handler for handler in handlers if isinstance(handler, Recorder)), None)
