"""The interceptor of a rerun: no call reaches its tool, unless the tool only reads or changes the state."""

from __future__ import annotations

from typing import Any

from agentgit.agents.rerun.answers import Answers
from agentgit.agents.turn.call_interceptor import CallInterceptor
from agentgit.agents.turn.calls import Call
from agentgit.agents.turn.running_turn import RunningTurn
from agentgit.effects import ToolInvocation
from agentgit.effects.invocation import SIMULATED
from agentgit.effects.memory import MEMORY_TOOLS
from agentgit.errors import PromptChanged, RerunDiverged


class RerunInterceptor(CallInterceptor):
    """Answers the calls of one turn of a rerun."""

    is_simulated = True
    result_statuses = CallInterceptor.result_statuses | {SIMULATED}

    def __init__(self, turn: RunningTurn, answers: Answers) -> None:
        super().__init__(turn)
        self._answers = answers

    def authorize(self, call: Call) -> None:
        """Answer a call, or admit it if it changes nothing outside the rerun."""
        self._answers.require_running()
        try:
            super().authorize(call)
        except RerunDiverged as error:
            self._answers.stop(error)
            raise

    def authorize_model(self) -> None:
        self._answers.require_running()

    def on_model_error(self, error: BaseException) -> None:
        """Stop the rerun if a recorded model was asked something else."""
        if isinstance(error, PromptChanged):
            self._answers.stop(error)

    def _admit(self, call: Call) -> None:
        if call.intent.tool_name in MEMORY_TOOLS:  # the store of a rerun keeps its writes to itself
            call.is_simulated = True
            return
        call.answer = self._answers.answer(call)
        if call.answer is None:
            super()._admit(call)
        else:
            call.is_simulated = True

    def _load_earlier_calls(self, *place: Any) -> list[ToolInvocation]:
        # A recorded error is the end of an attempt: the next one has its own record.
        return [one for one in super()._load_earlier_calls(*place) if one.error_message is None]
