"""The question to a person before a run acts on the world: LangGraph's interrupt, with the plan as its value."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, interrupt

from agentgit.agents.branch_context import Graph
from agentgit.effects import RollbackPlan
from agentgit.effects.effects import COMPENSABLE
from agentgit.effects.plan import REDO, REVERSE, PlanStep
from agentgit.langgraph_internals import RunnableCallable, RunnableSeq

KEY = "confirm"
"""The key in the metadata of a branch."""

TYPE = "agentgit.rollback"
"""The `type` of the value of the interrupt."""

CONSENT = frozenset({"approve", "accept", "yes"})
"""The words that consent, besides True."""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The consent that a branch needs before its world is brought in line with it.

    Args:
        previous: The branch to return to without consent.
        plan: The value of the interrupt; None if nothing was asked yet.
        is_given: True if a person has consented.
        task: The id of the task that asked.
    """

    previous: int
    plan: Mapping[str, Any] | None = None
    is_given: bool = False
    task: str | None = None

    def given(self, task: str) -> Self:
        """Return this with the consent that a task has got."""
        return replace(self, is_given=True, task=task)


def read(meta: Mapping[str, Any]) -> Confirmation | None:
    """Return the consent that a branch needs, from its metadata."""
    match meta.get(KEY):
        case {
            "previous": int(previous),
            "plan": dict() | None as plan,
            "is_given": bool(is_given),
            "task": str() | None as task,
        }:
            return Confirmation(previous=previous, plan=plan, is_given=is_given, task=task)
    return None


def entry(asked: Confirmation | None) -> Mapping[str, Any]:
    """Return the entry for the metadata of a branch; None removes it."""
    return {KEY: None if asked is None else {**vars(asked)}}


def needs_consent(step: PlanStep) -> bool:
    """Return whether a step only makes an effect good, or has an effect again."""
    return step.action == REDO or (step.action == REVERSE and step.invocation.effect == COMPENSABLE)


def describe(plan: RollbackPlan) -> dict[str, Any]:
    """Return the value of the interrupt for a plan."""
    steps = [
        {
            "action": step.action,
            "tool": step.invocation.tool_name,
            "args": step.invocation.args,
            "effect": step.invocation.effect,
            "reason": step.why,
        }
        for step in plan.steps
    ]
    return {"type": TYPE, "message": str(plan), "steps": steps, "resume": "true continues, anything else cancels"}


def is_resume(input: Any) -> bool:
    """Return whether the input of a run answers an interrupt."""
    return isinstance(input, Command) and input.resume is not None


_INTERRUPT_ID = re.compile("[0-9a-f]{32}")


def is_consent(input: Command[Any]) -> bool:
    """Return whether an answer consents: True, or an approval as LangChain's human-in-the-loop middleware has it."""
    answer = input.resume
    if isinstance(answer, Mapping) and len(answer) == 1 and _INTERRUPT_ID.fullmatch(next(iter(answer))):
        answer = next(iter(answer.values()))
    if isinstance(answer, Mapping):
        answer = answer.get("decisions", answer)
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, Mapping):
        answer = answer.get("type")
    return answer is True or (isinstance(answer, str) and answer in CONSENT)


def asking_copy(graph: Graph, asked: Confirmation) -> Graph:
    """Copy a graph so that the first task of a run asks before it begins. The other tasks of its step wait with it.

    Args:
        graph: The graph; it is not modified.
        asked: What to ask, or a consent, which the task that asked must find when it runs again.
    """
    question = _Question(asked)
    nodes = {
        name: node.copy({"bound": RunnableSeq(RunnableCallable(question.ask, trace=False), node.bound)})
        for name, node in graph.nodes.items()
        if name != START
    }
    return graph.copy({"nodes": {**graph.nodes, **nodes}})


class _Question:
    """Asks in the first task of a run.

    Args:
        asked: What to ask, or a consent.
    """

    def __init__(self, asked: Confirmation) -> None:
        self._asked, self._lock = asked, threading.Lock()
        self._task: str | None = asked.task

    def ask(self, input: Any, config: RunnableConfig) -> Any:
        """Ask, and return the input of the node."""
        task = config["configurable"]["checkpoint_ns"].rpartition(":")[2]
        with self._lock:
            self._task = self._task or task
        if task == self._task:
            interrupt(dict(self._asked.plan or {}))
        elif not self._asked.is_given:
            raise GraphInterrupt(())
        return input
