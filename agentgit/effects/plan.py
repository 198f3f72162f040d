"""The plan of a rollback or a switch: the action for each effect, and its reason. Pure: nothing is executed here."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from hashlib import sha256
from typing import Any, Self

from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import ToolInvocation
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next, Reason, once
from agentgit.values import PrintableDrawing, count, escape_path, quote_name, to_json

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

MAX_NAMED_TOOLS = 3
"""The maximum number of blocking tools that a summary names."""


class Stays(Reason):
    """A reason that blocks nothing: the effect stays as it is, or is not had again, and the other steps are done."""


@dataclass(frozen=True, kw_only=True)
class PlanStep:
    """The planned action for one effect.

    Args:
        action: `reverse`, `redo` (the tool runs again), `keep`, `block` (it can be neither reversed nor silently kept),
            `gone` (the conversation mentions it, but it has been reversed since), or `answer` (the tool does not run
            again; the new branch gets the recorded result, and the effect stays in the world).
        invocation: The call that had the effect.
        why: The reason, as a sentence.
        otherwise: The action that `force=True` takes for a blocked step: `keep`; `gone` if the tool cannot run again;
            `answer` if the effect is in the world and the record answers the call; `block` if it cannot be skipped.
    """

    action: str
    invocation: ToolInvocation
    why: str
    otherwise: str = KEEP

    def __str__(self) -> str:
        return f"{self.action} {self.invocation}: {self.why}"

    def to_dict(self) -> dict[str, Any]:
        """Return the step as JSON-like data."""
        return vars(self) | {"invocation": self.invocation.to_dict(), **Reason.of(self.why).to_dict("why")}


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
        basis: What the plan was made from: the target, the options, and the state of the session.
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
    basis: dict[str, Any] = field(default_factory=dict)

    @property
    def identity(self) -> str:
        """A hash of what would be done, in which order, and of what the plan was made from; the same if forced."""
        forced = self.forced()
        steps = [(step.action, step.invocation.id, step.invocation.status) for step in forced.steps]
        files = forced.files and [
            forced.files.snapshot,
            forced.files.not_restored,
            forced.files.everything,
            forced.files.replaced_versions,
            [(change.action, change.path) for change in forced.files.changes],
        ]
        return sha256(to_json([self.kind, sorted(self.basis.items()), steps, files])).hexdigest()

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
    def blockers(self) -> list[PlanStep]:
        """The blocked steps. `force=True` keeps their effects, or answers the calls from the record."""
        return [step for step in self.steps if step.action == BLOCK]

    @property
    def is_admissible(self) -> bool:
        """True if no step is blocked, and the files can be restored."""
        return not self.blockers and (self.files is None or self.files.is_restorable)

    @property
    def is_forcible(self) -> bool:
        """True if `force=True` can carry out the plan: no simulated call is blocked."""
        return self.forced().is_admissible

    def forced(self) -> RollbackPlan:
        """Return the plan that `force=True` carries out: each blocked step takes its `otherwise` action.

        A simulated call stays blocked, because it would be taken for done. Files in conflict, or that cannot be
        restored, stay as they are.
        """
        steps = [
            step
            if step.action != BLOCK or step.otherwise == BLOCK
            else replace(step, action=step.otherwise, why=Reason.of(step.why).within("forced: "))
            for step in self.steps
        ]
        return replace(self, steps=steps, files=self.files and self.files.forced())

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
            calls.setdefault(Reason.of(step.why).message.removesuffix("."), []).append(str(step.invocation))
        reasons = [f"{', '.join(blocked)}: {why}" for why, blocked in calls.items()]
        if self.files is not None and not self.files.is_restorable:
            reasons.append(self.files.summary.removesuffix("."))
        return "; ".join(reasons)

    @property
    def next(self) -> tuple[Next, ...]:
        """The next steps of the blocked steps, each once."""
        return tuple(dict.fromkeys(one for step in self.blockers for one in Reason.of(step.why).next))

    @property
    def reasons(self) -> list[Reason]:
        """The reasons of the steps; a next step that several have stands only in the first."""
        return list(once(step.why for step in self.steps))

    @property
    def summary(self) -> Reason:
        """A sentence that counts the steps, with the next steps if the files cannot be restored."""
        if self.files is None:
            return Reason(self._effect_summary)
        blocked = "" if self.files.is_restorable else " Blocked by the files."
        files = self.files.summary
        return Reason(f"{self._effect_summary} {files.message}{blocked}", *files.next)

    @property
    def _effect_summary(self) -> str:
        if not self.steps:
            return "There is nothing to reverse."
        if not self.blockers:
            return f"{_count_steps(self.steps)}{'; no blockers' if self.is_admissible else ''}."
        if self.forced().blockers:
            return f"{_describe_blockers(self.blockers)}. Nothing was changed. A simulated call cannot be skipped."
        with_force = _count_steps(self.forced().steps)
        return f"{_describe_blockers(self.blockers)}. Nothing was changed. With force: {with_force}."

    def without(self, known: Collection[int]) -> RollbackPlan:
        """Return the plan without the steps for these invocations."""
        return replace(self, steps=[step for step in self.steps if step.invocation.id not in known])

    def as_request(self) -> list[dict[str, Any]]:
        """Return the steps in the form in which an operation stores them."""
        return [
            {"action": s.action, "invocation": s.invocation.id, **Reason.of(s.why).to_dict("why")} for s in self.steps
        ]

    def conflict_ids(self) -> list[int]:
        """Return the ids of the calls that stay although nobody asked for it, so that a later plan may reverse them."""
        return [s.invocation.id for s in self.steps if s.action == KEEP and isinstance(s.why, Stays)]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON-like data, which `from_dict` reads."""
        return vars(self) | {
            "identity": self.identity,
            "is_admissible": self.is_admissible,
            "steps": [step.to_dict() for step in self.steps],
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
            steps = [
                PlanStep(
                    action=step["action"],
                    invocation=ToolInvocation.from_dict(step["invocation"]),
                    why=Reason.from_dict(step, "why"),
                    otherwise=step["otherwise"],
                )
                for step in data["steps"]
            ]
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


def _count_steps(steps: list[PlanStep]) -> str:
    counts = {action: sum(step.action == action for step in steps) for action in _WORDING}
    return ", ".join(f"{n} {_WORDING[action][n > 1]}" for action, n in counts.items() if n)


def _describe_blockers(steps: list[PlanStep]) -> str:
    tools = list(dict.fromkeys(escape_path(step.invocation.tool_name) for step in steps))
    rest = f" and {len(tools) - MAX_NAMED_TOOLS} more" if len(tools) > MAX_NAMED_TOOLS else ""
    return f"Blocked by {count(len(steps), 'call')} ({', '.join(tools[:MAX_NAMED_TOOLS])}{rest})"
