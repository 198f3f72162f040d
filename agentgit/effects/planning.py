"""The rules of a plan: which action each effect needs, and why. Pure: nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from agentgit.effects import invocation
from agentgit.effects.function_names import SEVERAL
from agentgit.effects.invocation import IMPORTED_REASON, NEVER_RUNS_REASON, ToolInvocation
from agentgit.effects.kinds import COMPENSABLE, IDEMPOTENT, IRREVERSIBLE, MEMORY, STATE, UNDECLARED, WORKSPACE
from agentgit.effects.memory import MemoryWrite
from agentgit.effects.plan import (
    ANSWER,
    BLOCK,
    EXECUTE,
    GONE,
    KEEP,
    RECORD,
    REDO,
    REVERSE,
    ROLLBACK,
    PlanStep,
    RollbackPlan,
    Stays,
)
from agentgit.next_steps import Next, Reason, join_reasons
from agentgit.values import count

NOT_RERUN_REASON = "it is not in the world, and its tool does not run again"

ANSWERED_REASONS = {
    STATE: "it changed only the state of the graph, which is restored",
    WORKSPACE: "it changed only files of the workspace, which are restored from a snapshot, not made again",
}
"""The reasons why a call is answered from the record instead of running again, by its effect."""

ReasonFunction = Callable[[ToolInvocation], str | None]
"""A function that returns why an action on an invocation is impossible; None if it is possible."""


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """The knowledge of this process about calls."""

    undo_obstacle: ReasonFunction
    redo_obstacle: ReasonFunction = lambda call: None
    kept_files: ReasonFunction = lambda call: None
    """Returns why the files that a call changed stay as they are; None if they are restored."""
    remark: ReasonFunction = lambda call: None
    """Returns what a plan should mention about the functions of a call; None for nothing."""
    changed_unsaved_files: Callable[[ToolInvocation], bool] = lambda call: False
    """Returns whether an undeclared call is one of a `workspace` tool that named files which no snapshot has."""
    undoes_unknown: Callable[[ToolInvocation], bool] = lambda call: False
    """Returns whether the undo may run although it is unknown whether the call, or its undo, happened."""


@dataclass(frozen=True, kw_only=True)
class PastCall:
    """A call on the path to a checkpoint, as input for `replay="execute"`."""

    invocation: ToolInvocation
    effective_run: ToolInvocation | None = None
    blocked: str | None = None
    answered: str | None = None


def make_plan(
    *,
    checkpoint_id: int,
    target: str,
    position: int,
    later: Iterable[ToolInvocation],
    knowledge: Knowledge,
    gone: Iterable[ToolInvocation] = (),
    accepted_ids: Collection[int] = (),
    tools: str = "reverse",
    replay: str = RECORD,
    track: Sequence[PastCall] = (),
    kind: str = ROLLBACK,
) -> RollbackPlan:
    """Plan an action for every effect that is in the world and is not on the path to the checkpoint.

    With `execute`, also plan for the calls on the path: they are reversed with the others, and then run again.
    """

    def plan_call(call: ToolInvocation) -> PlanStep | None:
        return _plan_call(call, knowledge, tools)

    reversals, reruns = _plan_path(track, plan_call)
    steps = [
        PlanStep(action=KEEP, invocation=call, why="an earlier rollback kept it")
        if call.first_id in accepted_ids
        and call.status != invocation.FAILED  # which left nothing to keep
        and not call.is_imported
        and call.id not in reversals
        else _add_remark(step, knowledge.remark)
        for call in later
        if (step := reversals[call.id] if call.id in reversals else plan_call(call)) is not None
    ]
    if replay == EXECUTE:
        steps += reruns
    elif replay == REDO:
        steps += _plan_redos(gone, knowledge.redo_obstacle, steps)
    else:
        steps += [PlanStep(action=GONE, invocation=call, why=_uncertainty(call) or NOT_RERUN_REASON) for call in gone]
    return RollbackPlan(checkpoint_id=checkpoint_id, target=target, position=position, kind=kind, steps=steps)


def _add_remark(step: PlanStep, remark: ReasonFunction) -> PlanStep:
    needs_functions = step.action in (REVERSE, BLOCK) or step.invocation.status == invocation.UNKNOWN
    text = remark(step.invocation) if needs_functions else None
    return step if text is None else replace(step, why=join_reasons([step.why, text]))


def _plan_path(
    track: Sequence[PastCall], plan_call: Callable[[ToolInvocation], PlanStep | None]
) -> tuple[dict[int, PlanStep | None], list[PlanStep]]:
    reversals: dict[int, PlanStep | None] = {}
    reruns: list[PlanStep] = []
    for call in track:
        step = None if call.effective_run is None else plan_call(call.effective_run)
        if call.invocation.status in (invocation.FAILED, invocation.PAUSED):
            continue  # it does not run again; an effect that it may have had is planned like any other
        is_stuck = step is not None and step.action == BLOCK and call.answered is None
        obstacle = call.blocked or (step.why if step is not None and is_stuck else None)
        answered_reason = call.answered or ANSWERED_REASONS.get(call.invocation.effect)
        is_in_world = call.effective_run is not None or call.invocation.effect.is_neutral
        if call.effective_run is not None:
            is_reversed = (obstacle or answered_reason) is None and step is not None and step.action == REVERSE
            reversals[call.effective_run.id] = step if is_reversed else None
        action = BLOCK if obstacle is not None else REDO if answered_reason is None else ANSWER
        reason = obstacle or answered_reason or "its tool runs again for the new branch"
        fallback = ANSWER if is_in_world else GONE
        reruns.append(PlanStep(action=action, invocation=call.invocation, why=reason, otherwise=fallback))
    return reversals, reruns


def _plan_redos(
    calls: Iterable[ToolInvocation], redo_obstacle: ReasonFunction, steps: Iterable[PlanStep]
) -> list[PlanStep]:
    """Plan to run calls again, except for those whose equal stays in the world: each one stands for one of them."""
    standing: dict[tuple[str | None, ...], list[ToolInvocation]] = {}
    for step in steps:
        call = step.invocation
        is_in_world = call.status in invocation.STANDING - {invocation.FAILED} and not call.is_imported
        is_fenced = call.effect.leaves_trace and call.identity is not None
        if step.action in (KEEP, BLOCK) and is_fenced and is_in_world:
            standing.setdefault(_tool_and_identity(call), []).append(call)
    return [
        PlanStep(action=GONE, invocation=call, why=f"the same call stays in the world: {equals.pop()}", otherwise=GONE)
        if (equals := standing.get(_tool_and_identity(call))) and call.effect.leaves_trace and not call.is_imported
        else _plan_redo(call, redo_obstacle)
        for call in calls
    ]


def _tool_and_identity(call: ToolInvocation) -> tuple[str | None, ...]:
    place = call.enclosing if SEVERAL in (call.tool_path or "") else None
    return call.identity, call.tool_path, place


def _plan_redo(call: ToolInvocation, redo_obstacle: ReasonFunction) -> PlanStep:
    """Plan to run a reversed or simulated call, unless it was imported and so happened in another world."""
    was_simulated = call.status == invocation.SIMULATED
    if call.is_imported:
        action, reason = (BLOCK, NEVER_RUNS_REASON) if was_simulated else (GONE, IMPORTED_REASON)
        return PlanStep(action=action, invocation=call, why=reason, otherwise=BLOCK)
    obstacle = _uncertainty(call) or redo_obstacle(call)
    action = REDO if obstacle is None else GONE if isinstance(obstacle, Stays) else BLOCK
    reason = "it was simulated, and runs now" if was_simulated else "it was reversed, and runs again"
    return PlanStep(action=action, invocation=call, why=obstacle or reason, otherwise=BLOCK if was_simulated else GONE)


def _uncertainty(call: ToolInvocation) -> str | None:
    """Return why it is unknown whether the effect of a call is still in the world; None if it is known."""
    if call.status in (invocation.REVERSING, invocation.REVERSE_UNKNOWN):
        return Reason("it is unknown whether it has been reversed since", Next("resolve", call=call.id))
    if call.status == invocation.UNKNOWN and call.kind == invocation.REDO:
        return Reason("it is unknown whether it ran again", Next("resolve", call=call.id))
    return None


def _plan_call(call: ToolInvocation, knowledge: Knowledge, tools: str) -> PlanStep | None:
    if call.effect.is_neutral:
        return None
    if call.status == invocation.PAUSED:
        why = "its tool asked a person and waits; what it did before it asked stays"
        return PlanStep(action=KEEP, invocation=call, why=why)
    if call.status not in invocation.STANDING:
        return None
    if call.effect == WORKSPACE and call.status != invocation.INTENDED:
        why_kept = knowledge.kept_files(call)
        if why_kept is None:
            return None
        if call.status != invocation.FAILED and not call.is_imported:
            return PlanStep(action=KEEP, invocation=call, why=why_kept)
    action, reason = _decide(call, knowledge)
    if call.runs > 1:
        again = f"its tool started {call.runs} times to ask a person, so what it does before asking ran each time"
        reason = join_reasons([reason, again])
    is_reversible = action == REVERSE and call.effect != COMPENSABLE
    if tools == "keep" and (action != KEEP or call.status == invocation.UNKNOWN):
        action, reason = KEEP, "the world is left alone, as requested"
    elif tools == "reversible" and action != KEEP and not is_reversible and call.status != invocation.INTENDED:
        action, reason = KEEP, join_reasons(["only reversible effects are reversed", reason])
    elif tools == "require_clean" and action == REVERSE:
        action, reason = BLOCK, "it would have to be reversed, but a clean world is required"
    return PlanStep(action=action, invocation=call, why=reason)


def _decide_unknown(call: ToolInvocation) -> tuple[str, str]:
    if call.effect == IDEMPOTENT:
        ending = call.failure if call.ended_with_error else "was interrupted"
        return KEEP, f"it {ending}, and calling it again is harmless"
    if not call.ended_with_error:
        text = "it is unknown whether it happened: it was interrupted"
        return BLOCK, Reason(text, Next("resolve", call=call.id))
    reason = f"it {call.failure}, but may have happened"
    if call.may_be_repeated:
        return KEEP, Stays(reason, Next("resolve_to_reverse", call=call.id))
    return BLOCK, Reason(reason, Next("resolve", call=call.id))


def _decide(call: ToolInvocation, knowledge: Knowledge) -> tuple[str, str]:
    if call.is_imported:
        return KEEP, IMPORTED_REASON
    if call.kind == invocation.UNOWNED:
        calls = count(call.args.get(invocation.TIMES, 1), "time")
        return KEEP, f"it was called {calls} in threads that no turn owns: not recorded, check by hand"
    if call.effect == UNDECLARED:
        if knowledge.changed_unsaved_files(call):
            return KEEP, "it changed files that are not saved, so it can only be undone by hand"
        by_hand = "its effect was not declared when it was called, so it can only be undone by hand"
        return KEEP, f"{by_hand}; a declaration applies to later calls only"
    if call.status == invocation.FAILED:
        return KEEP, f"it failed ({call.error_message}), so there is no result to reverse"
    if call.status == invocation.INTENDED:
        return BLOCK, "it is running now; wait until it ends"
    if call.status == invocation.UNKNOWN and not knowledge.undoes_unknown(call):
        return _decide_unknown(call)
    if call.status == invocation.REVERSING:
        return BLOCK, Reason("a rollback is reversing it, or died doing so", Next("list_operations"))
    if call.status == invocation.REVERSE_UNKNOWN and not knowledge.undoes_unknown(call):
        reason = Reason("it is unknown whether an earlier rollback reversed it", Next("resolve", call=call.id))
        return BLOCK, reason
    if call.effect == IRREVERSIBLE:
        return BLOCK, "it cannot be undone"
    if call.effect == IDEMPOTENT:
        return KEEP, "it has no undo function; calling it again is harmless"
    if (obstacle := knowledge.undo_obstacle(call)) is not None:
        return KEEP if isinstance(obstacle, Stays) else BLOCK, obstacle
    if call.effect == MEMORY:
        why = MemoryWrite.of(call).undo_reason
    else:
        why = "its undo compensates for it" if call.effect == COMPENSABLE else "its undo reverses it"
    return REVERSE, f"{why}{_undo_note(call)}"


def _undo_note(call: ToolInvocation) -> str:
    """Return what a person must know before the undo of a call runs."""
    if call.status == invocation.UNKNOWN:
        return "; it is unknown whether it happened, and its undo is declared to be safe then"
    if call.undo_may_have_acted:
        cause = "was interrupted" if call.own_error == invocation.DIED else "raised"
        return f"; again: its undo {cause}, it may have happened"
    return "; an earlier attempt failed" if call.status == invocation.REVERSE_FAILED else ""
