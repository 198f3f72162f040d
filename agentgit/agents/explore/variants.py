"""The inputs and configs that an exploration passes to the graph: one of each for every step and choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig

from agentgit.agents import inputs
from agentgit.errors import InvalidInput

Steps = int | str | Sequence[Any]
"""The steps of an exploration: a list of inputs, or only the number of steps."""

Choices = int | Sequence[Any]
"""The choices at each step: a list of them, or only their number."""


@dataclass(frozen=True)
class Variant:
    """One variant of a step."""

    graph_input: Any
    config: RunnableConfig

    @property
    def value(self) -> Any:
        """The input for one run, with copies of its messages, because LangGraph sets ids on the message objects."""
        messages = self.graph_input.get(inputs.MESSAGES) if isinstance(self.graph_input, Mapping) else None
        if not isinstance(messages, list):
            return self.graph_input
        return {
            **self.graph_input,
            inputs.MESSAGES: [m.model_copy() if isinstance(m, BaseMessage) else m for m in messages],
        }


def plan_variants(steps: Steps, choices: Choices) -> list[list[Variant]]:
    """Return the variants of each step of an exploration."""
    choice_list = _choice_list(choices)
    if isinstance(steps, int) and not isinstance(steps, bool):
        if steps < 1 or isinstance(choices, int):
            raise InvalidInput(
                f"explore({steps!r}, {choices!r}) has no inputs. Give the input of each step, as in "
                "explore(['order two chairs', 'pay'], 2); or the number of steps and the inputs to try, as in "
                "explore(2, ['be brief', 'be thorough'])."
            )
        return [[_numbered_variant(number, choice) for choice in choice_list] for number in range(1, steps + 1)]
    step_inputs = [steps] if isinstance(steps, str) else steps
    if not isinstance(step_inputs, Sequence) or not step_inputs:
        raise InvalidInput(f"steps must be a list with the input of each step, or their number, not {steps!r}.")
    return [[_variant_of(step, choice) for choice in choice_list] for step in step_inputs]


def _choice_list(choices: Choices) -> Sequence[Any]:
    if isinstance(choices, int) and not isinstance(choices, bool) and choices > 0:
        return [None] * choices
    if isinstance(choices, Sequence) and not isinstance(choices, str) and choices:
        return choices
    raise InvalidInput(f"choices must be a list of choices, or their number at each step, not {choices!r}.")


def _numbered_variant(number: int, choice: Any) -> Variant:
    return Variant(_as_graph_input(choice(number) if callable(choice) else choice), {})


def _variant_of(step: Any, choice: Any) -> Variant:
    if callable(choice):
        return Variant(_as_graph_input(choice(step)), {})
    if not _is_config(choice):
        raise InvalidInput(
            f"{choice!r} is not a choice; give a config like {{'configurable': ...}}, or a function that returns "
            "the input of the step. To choose between inputs, give the number of steps: explore(2, ['a', 'b'])."
        )
    return Variant(_as_graph_input(step), choice or {})


def _is_config(choice: object) -> TypeGuard[RunnableConfig | None]:
    return choice is None or isinstance(choice, Mapping)


def _as_graph_input(step: Any) -> Any:
    return {inputs.MESSAGES: [("user", step)]} if isinstance(step, str) else step
