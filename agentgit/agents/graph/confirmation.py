"""The question to a person before a run acts on the world: LangGraph's interrupt, with the plan as its value."""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.constants import START
from langgraph.errors import GraphInterrupt
from langgraph.types import Command, Interrupt

from agentgit.agents.branch_context import Graph
from agentgit.effects import RollbackPlan
from agentgit.effects.kinds import COMPENSABLE, MEMORY
from agentgit.effects.plan import REDO, REVERSE, PlanStep
from agentgit.langgraph_internals import CONFIG_KEY_TASK_ID, RunnableCallable
from agentgit.next_steps import Reason
from agentgit.render.view import Medium
from agentgit.render.views import rollback as rollbacks

KEY = "confirm"
"""The key in the metadata of a branch."""

TYPE = "agentgit.rollback"
"""The `type` of the value of the interrupt."""

CONSENT = frozenset({"approve", "accept", "yes"})
"""The words that consent, besides True."""


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """The consent that a branch needs before its world is brought in line with it."""

    previous: int
    plan: Mapping[str, Any] | None = None


def read(meta: Mapping[str, Any]) -> Confirmation | None:
    """Return the consent that a branch needs, from its metadata."""
    match meta.get(KEY):
        case {"previous": int(previous), "plan": dict() | None as plan}:
            return Confirmation(previous=previous, plan=plan)
    return None


def entry(asked: Confirmation | None) -> Mapping[str, Any]:
    """Return the entry for the metadata of a branch, which removes the one that it has if nothing is asked any more."""
    return {KEY: None if asked is None else {**vars(asked)}}


def needs_consent(step: PlanStep) -> bool:
    """Return whether a step only makes an effect good, or has an effect again."""
    if step.invocation.effect == MEMORY:
        return False
    return step.action == REDO or (step.action == REVERSE and step.invocation.effect == COMPENSABLE)


def describe(plan: RollbackPlan) -> dict[str, Any]:
    steps = [
        {
            "action": step.action,
            "call": str(step.invocation.id),
            "tool": step.invocation.tool_name,
            "args": step.invocation.args,
            "effect": step.invocation.effect,
            "reason": Reason.of(step.why).worded("graph"),
        }
        for step in plan.steps
    ]
    resume = "true continues, anything else cancels"
    return {
        "type": TYPE,
        "message": Medium(face="graph").text(rollbacks.outcome(plan)),
        "identity": plan.identity,
        "steps": steps,
        "resume": resume,
    }


def is_question(value: Any) -> bool:
    return isinstance(value, Mapping) and value.get("type") == TYPE


def is_resume(input: Any) -> bool:
    """Return whether the input of a run answers an interrupt."""
    return isinstance(input, Command) and input.resume is not None


def without_answer(input: Any) -> Any:
    """Return the input of a run without its answer, which belongs to no question of that run."""
    if not is_resume(input):
        return input
    rest = replace(input, resume=None)
    return rest if rest.update is not None or rest.goto else None


_INTERRUPT_ID = re.compile("[0-9a-f]{32}")


def question_id(plan: Mapping[str, Any]) -> str:
    """Return the id of the interrupt that asks about a plan: another one for another plan, unlike LangGraph's own."""
    return sha256(str(plan.get("identity")).encode()).hexdigest()[:32]


def _named_answer(input: Command[Any]) -> tuple[str | None, Any]:
    """Return the id of the interrupt that an answer names, None if it names none, and the answer."""
    answer = input.resume
    if isinstance(answer, Mapping) and len(answer) == 1 and _INTERRUPT_ID.fullmatch(next(iter(answer))):
        return next(iter(answer.items()))
    return None, answer


def is_of_another(input: Command[Any], plan: Mapping[str, Any]) -> bool:
    """Return whether an answer names another question than that about a plan, such as one that was asked before."""
    return _named_answer(input)[0] not in (None, question_id(plan))


def is_consent(input: Command[Any]) -> bool:
    """Return whether an answer consents: True, or an approval as LangChain's human-in-the-loop middleware has it."""
    _, answer = _named_answer(input)
    if isinstance(answer, Mapping):
        answer = answer.get("decisions", answer)
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, Mapping):
        answer = answer.get("type")
    return answer is True or (isinstance(answer, str) and answer in CONSENT)


def asking_copy(graph: Graph, asked: Confirmation) -> Graph:
    """Copy a graph so that the first task of a run asks before it begins. The other tasks of its step wait with it."""
    question = _Question(asked.plan or {})
    nodes = {
        name: node.copy({"bound": question.before(node.bound)}) for name, node in graph.nodes.items() if name != START
    }
    return graph.copy({"nodes": {**graph.nodes, **nodes}})


class _Question:
    """Asks in the first task of a run."""

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value, self._lock = value, threading.Lock()
        self._task: str | None = None

    def before(self, bound: Any) -> RunnableCallable:
        """Return a runnable that asks, then runs another one. LangGraph gives its context only to a node's first."""

        def run(input: Any, config: RunnableConfig) -> Any:
            self._ask(config)
            return bound.invoke(input, config)

        async def arun(input: Any, config: RunnableConfig) -> Any:
            self._ask(config)
            return await bound.ainvoke(input, config)

        return RunnableCallable(run, arun, name=getattr(bound, "name", None), trace=False)

    def _ask(self, config: RunnableConfig) -> None:
        task = config["configurable"][CONFIG_KEY_TASK_ID]
        with self._lock:
            self._task = self._task or task
        if task != self._task:
            raise GraphInterrupt(())
        raise GraphInterrupt((Interrupt(dict(self._value), id=question_id(self._value)),))
