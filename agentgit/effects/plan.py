"""The plan of a rollback or a switch: the action for each effect, and its reason. Pure: nothing is executed here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

from agentgit.effects import invocation
from agentgit.effects.files import FileChanges
from agentgit.effects.function_names import SEVERAL
from agentgit.effects.invocation import IMPORTED_REASON, NEVER_RUNS_REASON, ToolInvocation, how_to_resolve
from agentgit.effects.kinds import COMPENSABLE, IDEMPOTENT, IRREVERSIBLE, MEMORY, STATE, UNDECLARED, WORKSPACE
from agentgit.effects.memory import MemoryWrite
from agentgit.errors import InvalidInput
from agentgit.values import PrintableDrawing, count, escape_path, quote_name

REVERSE = "reverse"
KEEP = "keep"
BLOCK = "block"
GONE = "gone"
REDO = "redo"
ANSWER = "answer"

TOOLS_MODES = ("reverse", "reversible", "keep", "require_clean")
"""How a rollback treats effects: reverse them all; reverse the reversible ones and keep the others; leave the world
alone; or refuse if any would have to be reversed."""

RECORD, EXECUTE = "record", "execute"
REPLAY_MODES = (RECORD, REDO, EXECUTE)
"""How a new branch gets its tool track: from the record; with reversed calls run again; with all calls run again."""

ROLLBACK, SWITCH, FORK, WORLD_ONLY = "rollback", "switch", "fork", "world_only"
"""The kinds of plans and reports: a rollback, a switch, a fork, a rollback of the world without the conversation."""

NOT_RERUN_REASON = "it was reversed later, and its tool does not run again"

RERUN_REASON = "its tool runs again for the new branch"

ANSWERED_REASONS = {
    STATE: "it changed only the state of the graph, which is restored",
    WORKSPACE: "it changed only files of the workspace, which are restored from a snapshot, not made again",
}
"""The reasons why a call is answered from the record instead of running again, by its effect."""

MAX_NAMED_TOOLS = 3
"""The maximum number of blocking tools that a summary names."""

UNDECLARED_REASON = (
    "its effect was not declared when it was called, so it can only be undone by hand; "
    "a declaration applies to later calls only"
)
"""The reason why an undeclared call is kept."""

PAUSED_REASON = "its tool asked a person and waits; what it did before it asked stays"
"""The reason why a call that waits for an answer is kept."""


class Stays(str):
    """A reason that blocks nothing: the effect stays as it is, or is not had again, and the other steps are done."""


ReasonFunction = Callable[[ToolInvocation], str | None]
"""A function that returns why an action on an invocation is impossible; None if it is possible."""


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """The planned action for one effect.

    Args:
        action: `reverse`, `redo` (the tool runs again), `keep`, `block` (it can be neither reversed nor silently kept),
            `gone` (the conversation mentions it, but it has been reversed since), or `answer` (the tool does not run
            again; the new branch gets the recorded result, and the effect stays in the world).
        invocation: The call that had the effect.
        why: The reason, as a sentence.
        otherwise: The action that `force=True` takes for a blocked step: `keep`; `gone` if the tool would have to run
            again and cannot; `answer` if the effect is still in the world and the call is answered from the record.
    """

    action: str
    invocation: ToolInvocation
    why: str
    otherwise: str = KEEP

    def __str__(self) -> str:
        return f"{self.action} {self.invocation}: {self.why}"


@dataclass(frozen=True, kw_only=True)
class RollbackPlan(PrintableDrawing):
    """The steps of a rollback or a switch, in order: reversals newest first, then repeated calls oldest first.

    `str()` renders it as text; a notebook shows it as a table.

    Args:
        checkpoint_id: The id of the checkpoint to go back to; for a switch, the branch's head, or 0 if it has none.
        target: The display name of that checkpoint.
        position: The number of tool invocations before that checkpoint.
        kind: `rollback`, `switch` or `world_only`.
        session_name: The name by which the user refers to the session, like `support-42` or `alice/support-42`.
        branch: The name of the branch that is left; for a switch, of the branch to switch to.
        replayed: The invocations that the branch's track begins with.
        steps: The planned action for each effect.
        files: The planned changes to the files; None if there is no workspace or its files are to be left alone.
    """

    checkpoint_id: int
    target: str
    position: int
    kind: str = ROLLBACK
    session_name: str = ""
    branch: str = ""
    replayed: list[ToolInvocation] = field(default_factory=list)
    steps: list[PlanStep] = field(default_factory=list)
    files: FileChanges | None = None

    @property
    def reversals(self) -> list[PlanStep]:
        """The steps that would run an undo function, in execution order."""
        return [step for step in self.steps if step.action == REVERSE]

    @property
    def redos(self) -> list[PlanStep]:
        """The steps that would run a tool again, in execution order."""
        return [step for step in self.steps if step.action == REDO]

    @property
    def changes_world(self) -> bool:
        """True if anything would be reversed, run again or restored, or if a step is blocked."""
        return bool(self.reversals or self.redos or self.blockers or (self.files and self.files.changes))

    @property
    def kept(self) -> list[PlanStep]:
        """The steps that would leave an effect in the world."""
        return [step for step in self.steps if step.action == KEEP]

    @property
    def answered(self) -> list[PlanStep]:
        """The steps whose tool does not run again, because the call is answered from the record."""
        return [step for step in self.steps if step.action == ANSWER]

    @property
    def blockers(self) -> list[PlanStep]:
        """The blocked steps. `force=True` keeps their effects, or answers the calls from the record."""
        return [step for step in self.steps if step.action == BLOCK]

    @property
    def is_admissible(self) -> bool:
        """True if no step is blocked."""
        return not self.blockers

    @property
    def is_forcible(self) -> bool:
        """True if `force=True` can carry out the plan: no simulated call is blocked."""
        return self.forced().is_admissible

    def forced(self) -> RollbackPlan:
        """Return the plan that `force=True` carries out: each blocked step takes its `otherwise` action.

        A simulated call stays blocked, because it would be taken for done.
        """
        return replace(self, steps=[_force_step(step) for step in self.steps])

    @property
    def heading(self) -> str:
        """A sentence that says what is planned, in which session and from which branch."""
        calls = count(self.position, "tool call")
        session = f" of session {quote_name(self.session_name)}" if self.session_name else ""
        place = f"{session}, branch {quote_name(self.branch)}," if session and self.branch else session
        return {
            ROLLBACK: f"Rollback{place} to {self.target}: a new branch that begins with {calls}.",
            SWITCH: f"Switch{session} to {self.target}: the world is brought to the state after its {calls}.",
            WORLD_ONLY: f"Rollback of the world{place} to {self.target}: the conversation is unchanged.",
        }[self.kind]

    @property
    def blocking_reasons(self) -> str:
        """Why the plan is blocked: the calls that block it, those with the same reason together."""
        calls: dict[str, list[str]] = {}
        for step in self.blockers:
            calls.setdefault(str(step.why), []).append(str(step.invocation))
        reasons = zip(calls.values(), hint_once(calls), strict=True)
        return "; ".join(f"{', '.join(blocked)}: {why}" for blocked, why in reasons)

    @property
    def steps_with_reasons(self) -> list[tuple[PlanStep, str]]:
        """Each step with its reason as people read it: a hint that several calls share stands once."""
        return list(zip(self.steps, hint_once(step.why for step in self.steps), strict=True))

    @property
    def summary(self) -> str:
        """A sentence that counts the steps."""
        return self._effect_summary + (f" {self.files.summary}" if self.files else "")

    @property
    def _effect_summary(self) -> str:
        if not self.steps:
            return "There is nothing to reverse."
        if self.is_admissible:
            return f"{_count_steps(self.steps)}; no blockers."
        if not self.is_forcible:
            return f"{_describe_blockers(self.blockers)}. Nothing was changed. A simulated call cannot be skipped."
        with_force = _count_steps(self.forced().steps)
        return f"{_describe_blockers(self.blockers)}. Nothing was changed. With force: {with_force}."

    def without(self, known: Collection[int]) -> RollbackPlan:
        """Return the plan without the steps for these invocations."""
        return replace(self, steps=[step for step in self.steps if step.invocation.id not in known])

    def as_request(self) -> list[dict[str, Any]]:
        """Return the steps in the form in which an operation stores them."""
        return [{"action": s.action, "why": s.why, "invocation": s.invocation.id} for s in self.steps]

    def conflict_ids(self) -> list[int]:
        """Return the ids of the calls that stay only because the world has changed, so that nobody accepts them."""
        return [s.invocation.id for s in self.steps if s.action == KEEP and isinstance(s.why, Stays)]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-like data, which `from_dict` reads."""
        return vars(self) | {
            "is_admissible": self.is_admissible,
            "steps": [{**vars(step), "invocation": step.invocation.to_dict()} for step in self.steps],
            "replayed": [call.to_dict() for call in self.replayed],
            "files": self.files.to_dict() if self.files else None,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a plan from the data that `to_dict` returned, also after a round trip through JSON.

        Raises:
            InvalidInput: The data is not a plan.

        Example:
            >>> plan = RollbackPlan(checkpoint_id=1, target="main#1", position=0)
            >>> RollbackPlan.from_dict(plan.to_dict()) == plan
            True
        """
        try:
            steps = [PlanStep(**{**s, "invocation": ToolInvocation.from_dict(s["invocation"])}) for s in data["steps"]]
            replayed = [ToolInvocation.from_dict(call) for call in data["replayed"]]
            files = FileChanges.from_dict(data["files"]) if data["files"] else None
            nested = {"steps": steps, "replayed": replayed, "files": files}
            return cls(**{one.name: data[one.name] for one in fields(cls)} | nested)
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"Not a plan: {error}. Pass what to_dict() returned.") from error


_WORDING = {
    REVERSE: ("will be reversed", "will be reversed"),
    REDO: ("runs again", "run again"),
    KEEP: ("stays", "stay"),
    GONE: ("is gone", "are gone"),
    ANSWER: ("is answered from the record", "are answered from the record"),
}
"""The wording for one effect and for several."""


def hint_once(reasons: Iterable[str]) -> list[str]:
    """Return the reasons; a hint to name a module, which many calls can share, stands only in the first one."""
    shown: set[str] = set()
    shortened = []
    for why in map(str, reasons):
        reason, _, hint = why.partition("; ")
        shortened.append(reason if hint in shown else why)
        if hint.startswith("wrap "):
            shown.add(hint)
    return shortened


def _count_steps(steps: list[PlanStep]) -> str:
    counts = {action: sum(step.action == action for step in steps) for action in _WORDING}
    return ", ".join(f"{n} {_WORDING[action][n > 1]}" for action, n in counts.items() if n)


def _describe_blockers(steps: list[PlanStep]) -> str:
    tools = list(dict.fromkeys(escape_path(step.invocation.tool_name) for step in steps))
    rest = f" and {len(tools) - MAX_NAMED_TOOLS} more" if len(tools) > MAX_NAMED_TOOLS else ""
    return f"Blocked by {count(len(steps), 'call')} ({', '.join(tools[:MAX_NAMED_TOOLS])}{rest})"


def _force_step(step: PlanStep) -> PlanStep:
    """Replace the action of a blocked step by its `otherwise` action, unless its call is simulated."""
    if step.action != BLOCK or step.invocation.status == invocation.SIMULATED:
        return step
    return replace(step, action=step.otherwise, why=f"forced: {step.why}")


@dataclass(frozen=True, kw_only=True)
class Knowledge:
    """What this process knows about calls."""

    undo_obstacle: ReasonFunction
    redo_obstacle: ReasonFunction = lambda call: None
    kept_files: ReasonFunction = lambda call: None
    """Returns why the files that a call changed stay as they are; None if they are restored."""
    remark: ReasonFunction = lambda call: None
    """Returns what a plan should mention about the functions of a call; None for nothing."""
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
        if call.first_id in accepted_ids and not call.is_imported and call.id not in reversals
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
    """Add the remark about the functions that this step calls, or would have to call."""
    needs_functions = step.action in (REVERSE, BLOCK) or step.invocation.status == invocation.UNKNOWN
    text = remark(step.invocation) if needs_functions else None
    return step if text is None else replace(step, why=f"{step.why}; {text}")


def _plan_path(
    track: Sequence[PastCall], plan_call: Callable[[ToolInvocation], PlanStep | None]
) -> tuple[dict[int, PlanStep | None], list[PlanStep]]:
    """Plan the calls on the path that run again."""
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
        reason = obstacle or answered_reason or RERUN_REASON
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
    """Return what two calls have in common if one would do what the other has done."""
    place = call.enclosing if SEVERAL in (call.tool_path or "") else None
    return call.identity, call.tool_path, place


def _plan_redo(call: ToolInvocation, redo_obstacle: ReasonFunction) -> PlanStep:
    """Plan to run a reversed or simulated call, unless it was imported and so happened in another world."""
    was_simulated = call.status == invocation.SIMULATED
    if call.is_imported:
        action, reason = (BLOCK, NEVER_RUNS_REASON) if was_simulated else (GONE, IMPORTED_REASON)
        return PlanStep(action=action, invocation=call, why=reason)
    obstacle = _uncertainty(call) or redo_obstacle(call)
    action = REDO if obstacle is None else GONE if isinstance(obstacle, Stays) else BLOCK
    reason = "it was simulated, and runs now" if was_simulated else "it was reversed, and runs again"
    return PlanStep(action=action, invocation=call, why=obstacle or reason, otherwise=GONE)


def _uncertainty(call: ToolInvocation) -> str | None:
    """Return why it is unknown whether the effect of a call is still in the world; None if it is known."""
    if call.status in (invocation.REVERSING, invocation.REVERSE_UNKNOWN):
        return f"it is unknown whether it has been reversed since; {how_to_resolve(call.id)}"
    if call.status == invocation.UNKNOWN and call.kind == invocation.REDO:
        return f"it is unknown whether it ran again; {how_to_resolve(call.id)}"
    return None


def _plan_call(call: ToolInvocation, knowledge: Knowledge, tools: str) -> PlanStep | None:
    if call.effect.is_neutral:
        return None
    if call.status == invocation.PAUSED:
        return PlanStep(action=KEEP, invocation=call, why=PAUSED_REASON)
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
        reason += f"; its tool started {call.runs} times to ask a person, so what it does before asking ran each time"
    if tools == "keep" and action != KEEP:
        return PlanStep(action=KEEP, invocation=call, why="the world is left alone, as requested")
    is_reversible = action == REVERSE and call.effect != COMPENSABLE
    if tools == "reversible" and action != KEEP and not is_reversible and call.status != invocation.INTENDED:
        return PlanStep(action=KEEP, invocation=call, why=f"only reversible effects are reversed; {reason}")
    if tools == "require_clean" and action == REVERSE:
        return PlanStep(
            action=BLOCK, invocation=call, why="it would have to be reversed, but a clean world is required"
        )
    return PlanStep(action=action, invocation=call, why=reason)


def _decide_unknown(call: ToolInvocation) -> tuple[str, str]:
    if call.effect == IDEMPOTENT:
        ending = call.failure if call.ended_with_error else "was interrupted"
        return KEEP, f"it {ending}, and calling it again is harmless"
    if not call.ended_with_error:
        return (
            BLOCK,
            f"it is unknown whether it happened: it was interrupted; {how_to_resolve(call.id)}",
        )
    reason = f"it {call.failure}, but may have happened"
    if call.may_be_repeated:
        return KEEP, f"{reason}; if it did, resolve call {call.id} as happened to have it reversed"
    return BLOCK, f"{reason}; {how_to_resolve(call.id)}"


def _decide(call: ToolInvocation, knowledge: Knowledge) -> tuple[str, str]:
    if call.is_imported:
        return KEEP, IMPORTED_REASON
    if call.kind == invocation.UNOWNED:
        calls = count(call.args.get(invocation.TIMES, 1), "time")
        return KEEP, f"it was called {calls} in threads that no turn owns: not recorded, check by hand"
    if call.effect == UNDECLARED:
        return KEEP, UNDECLARED_REASON
    if call.status == invocation.FAILED:
        return KEEP, f"it failed ({call.error_message}), so there is no result to reverse"
    if call.status == invocation.INTENDED:
        return BLOCK, "it is running now; wait until it ends"
    if call.status == invocation.UNKNOWN and not knowledge.undoes_unknown(call):
        return _decide_unknown(call)
    if call.status == invocation.REVERSING:
        return BLOCK, "a rollback is reversing it, or died doing so; see session.operations()"
    if call.status == invocation.REVERSE_UNKNOWN and not knowledge.undoes_unknown(call):
        return BLOCK, f"it is unknown whether an earlier rollback reversed it; {how_to_resolve(call.id)}"
    if call.effect == IRREVERSIBLE:
        return BLOCK, "it cannot be undone"
    if call.effect == IDEMPOTENT:
        return KEEP, "it has no undo function; calling it again is harmless"
    if (obstacle := knowledge.undo_obstacle(call)) is not None:
        return KEEP if isinstance(obstacle, Stays) else BLOCK, obstacle
    if call.effect == MEMORY:
        reason = MemoryWrite.of(call).undo_reason
    else:
        reason = "its undo compensates for it" if call.effect == COMPENSABLE else "its undo reverses it"
    return REVERSE, f"{reason}{_undo_note(call)}"


def _undo_note(call: ToolInvocation) -> str:
    """Return what a person must know before the undo of a call runs."""
    if call.status == invocation.UNKNOWN:
        return "; it is unknown whether it happened, and its undo is declared to be safe then"
    if call.undo_may_have_acted:
        return "; again: its undo raised, it may have happened"
    return "; an earlier attempt failed" if call.status == invocation.REVERSE_FAILED else ""
