"""The plan of a rollback: what would be done about each effect, and why. Pure: nothing happens here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from agentgit.tools import effects, invocation
from agentgit.tools.invocation import ToolInvocation

REVERSE = "reverse"
KEEP = "keep"
BLOCK = "block"
GONE = "gone"

TOOLS_MODES = ("reverse", "keep", "require_clean")
"""What a rollback may do about effects: reverse them, leave the world alone, or refuse if there are any."""


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """What would be done about one effect.

    Args:
        action: `reverse`, `keep`, `block` (it can be neither reversed nor silently kept), or `gone` (the conversation
            will tell of it, and it was reversed since).
        invocation: the call that had the effect.
        why: the reason, as a sentence.
    """

    action: str
    invocation: ToolInvocation
    why: str

    def __str__(self) -> str:
        return f"{self.action:<8} {self.invocation}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class RollbackPlan:
    """What a rollback would do, newest effect first.

    Args:
        checkpoint_id: where it would go back to.
        target: how a person calls that place.
        position: how many tool invocations lie before it.
        replayed: the invocations that the new branch's track begins with.
        steps: what would be done about each later effect, newest first in world order.
    """

    checkpoint_id: int
    target: str
    position: int
    replayed: list[ToolInvocation] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)

    @property
    def reversals(self) -> list[PlanStep]:
        """The steps that would run an undo function, in the order they would run."""
        return [step for step in self.steps if step.action == REVERSE]

    @property
    def kept(self) -> list[PlanStep]:
        """The steps that would leave something in the world."""
        return [step for step in self.steps if step.action == KEEP]

    @property
    def blockers(self) -> list[PlanStep]:
        """The steps that stand in the way; `force=True` keeps them."""
        return [step for step in self.steps if step.action == BLOCK]

    @property
    def is_admissible(self) -> bool:
        """True if nothing stands in the way."""
        return not self.blockers

    def forced(self) -> RollbackPlan:
        """Give the plan in which what stands in the way is kept instead."""
        steps = [
            PlanStep(action=KEEP, invocation=s.invocation, why=f"forced: {s.why}") if s.action == BLOCK else s
            for s in self.steps
        ]
        return replace(self, steps=steps)

    def to_dict(self) -> dict[str, Any]:
        """Give the plan as JSON-like data."""
        return {
            "checkpoint_id": self.checkpoint_id,
            "target": self.target,
            "position": self.position,
            "replayed": [call.id for call in self.replayed],
            "steps": [{"action": s.action, "why": s.why, "invocation": s.invocation.to_dict()} for s in self.steps],
        }

    def __str__(self) -> str:
        head = f"Rollback to {self.target}: a new branch that begins with {_count(self.position, 'tool call')}."
        if not self.steps:
            return f"{head}\n  nothing to reverse"
        return "\n".join([head, *(f"  {step}" for step in self.steps)])


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def make_plan(
    *,
    checkpoint_id: int,
    target: str,
    position: int,
    later: Iterable[ToolInvocation],
    can_undo: Callable[[ToolInvocation], str | None],
    gone: Iterable[ToolInvocation] = (),
    accepted: Collection[int] = (),
    tools: str = "reverse",
) -> RollbackPlan:
    """Decide about every effect that stands in the world and is not on the path to the checkpoint.

    Args:
        checkpoint_id: where to go back to.
        target: how a person calls that place.
        position: how many tool invocations lie before it.
        later: the other invocations of the session that may stand in the world, newest first in world order.
        can_undo: None if the undo function of an invocation is at hand, else why not.
        gone: invocations before the checkpoint that were reversed since.
        accepted: the ids of those that an earlier rollback kept and reported.
        tools: one of `TOOLS_MODES`.
    """
    steps = [
        PlanStep(action=KEEP, invocation=call, why="an earlier rollback kept it") if call.id in accepted else step
        for call in later
        if (step := _step(call, can_undo, tools)) is not None
    ]
    why = "it was reversed since, and going back does not make it again"
    steps += [PlanStep(action=GONE, invocation=call, why=why) for call in gone]
    return RollbackPlan(checkpoint_id=checkpoint_id, target=target, position=position, steps=steps)


def _step(call: ToolInvocation, can_undo: Callable[[ToolInvocation], str | None], tools: str) -> PlanStep | None:
    if call.effect == effects.READ_ONLY or call.status not in invocation.STANDING:
        return None
    action, why = _decide(call, can_undo)
    if tools == "keep" and action != KEEP:
        return PlanStep(action=KEEP, invocation=call, why="the world is to be left alone")
    if tools == "require_clean" and action == REVERSE:
        return PlanStep(
            action=BLOCK, invocation=call, why="it would have to be reversed, and a clean world is required"
        )
    return PlanStep(action=action, invocation=call, why=why)


def _decide(call: ToolInvocation, can_undo: Callable[[ToolInvocation], str | None]) -> tuple[str, str]:
    if call.effect == effects.UNDECLARED:
        return KEEP, "nothing was declared about this tool; declare its effect and its undo function"
    if call.status == invocation.FAILED:
        return KEEP, f"it failed ({call.error_message}), so there is no result to reverse"
    if call.status == invocation.INTENDED:
        return BLOCK, "it is running now; wait for its turn to end"
    if call.status == invocation.UNKNOWN:
        return BLOCK, "it is unknown whether it happened: it was broken off; look, and tell with repo.resolve()"
    if call.status == invocation.REVERSING:
        return BLOCK, "a rollback is reversing it, or died doing so; see repo.operations() and repo.resume()"
    if call.status == invocation.REVERSE_UNKNOWN:
        return BLOCK, "it is unknown whether an earlier rollback reversed it; look, and tell with repo.resolve()"
    if call.effect == effects.IRREVERSIBLE:
        return BLOCK, "it cannot be undone"
    if call.effect == effects.IDEMPOTENT:
        return KEEP, "it has no undo function; calling it again does no harm"
    if (missing := can_undo(call)) is not None:
        return BLOCK, missing
    again = "; an earlier attempt failed" if call.status == invocation.REVERSE_FAILED else ""
    return REVERSE, (
        "its undo makes up for it" if call.effect == effects.COMPENSABLE else "its undo takes it back"
    ) + again
