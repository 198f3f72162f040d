"""The errors that agentgit raises. Each has a message, next steps that each face words, and an exit code."""

import sys
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, ClassVar

from agentgit.next_steps import Face, Next, Worded


class AgentGitError(Worded, RuntimeError):
    """The base class of all errors that agentgit raises on purpose.

    Args:
        message: What is wrong, with the value.
        next: What a person can do now. `str()` adds it to the message in the words of Python.
        details: The attributes of the error.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *next: Next, **details: Any) -> None:
        super().__init__(message, *next)
        vars(self).update(details)


class _WithPlan(Worded):
    """An error with the plan of what would be done."""

    plan: Any

    def _repr_html_(self) -> str:
        return _render_with(self, self.plan)


class InvalidInput(AgentGitError, ValueError):
    """An argument is not valid."""

    exit_code = 2


class NotFound(AgentGitError, LookupError):
    """Nothing that this user can see has that name or id."""

    exit_code = 3
    near: tuple[str, ...] = ()
    """Existing names that are similar to the requested one."""

    def __init__(self, message: str, *next: Next, near: tuple[str, ...] = ()) -> None:
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        super().__init__(message + hint, *next, near=near)


class Ambiguous(AgentGitError, LookupError):
    """Several things have that name."""

    exit_code = 4
    candidates: tuple[str, ...] = ()
    """References that each name exactly one of them."""

    def __init__(self, message: str, *next: Next, candidates: tuple[str, ...] = ()) -> None:
        hint = f" It could be {', '.join(candidates)}." if candidates else ""
        super().__init__(message + hint, *next, candidates=candidates)


class NotAllowed(AgentGitError, PermissionError):
    """The object exists, but this user may not do that with it."""

    exit_code = 5
    write_audit: Callable[[Any], None] | None = None
    """A function that writes the refusal to the audit trail, after the refused transaction has ended."""


class Conflict(AgentGitError):
    """The action conflicts with a concurrent change, a running branch or an existing name; nothing was changed."""

    exit_code = 6
    head: int | None = None
    """The id of the checkpoint that is the head now, if a head moved."""


class Simulated(Conflict):
    """A run would go on from a rerun, whose calls were only simulated; nothing was done."""

    exit_code = 18


class AnswerRequired(Conflict):
    """The graph waits for a person's answer, so a message would drop its question, or there is no answer to return."""

    exit_code = 22
    questions: Sequence[Any]
    """What the graph asks: the values of its interrupts."""
    interrupts: Sequence[Any]
    """Its interrupts, in the same order; `Command(resume={ID: ANSWER})` answers them by their ids."""


class RerunDiverged(AgentGitError):
    """A rerun with `on_miss="stop"` made a call that is not in the record, or more calls than its limit allows."""

    exit_code = 19
    call: str | None = None
    """The call that has no record, as text; None if it was a question."""
    nearest: int | None = None
    """The id of the recorded call that is most like it; None if the record has no call of the tool left."""
    report: Any = None
    """The report of the rerun up to this call."""


class OutsideRerun(AgentGitError):
    """While a rerun ran, or in a thread that began during it, a tool was called outside every turn; it did not run."""

    exit_code = 21
    report: Any = None
    """The report of the rerun up to this call, if the error has stopped it."""


class Fenced(Conflict):
    """The same call was made before and took effect, or may have; it was not made again."""

    exit_code = 14
    invocation: int | None = None
    """The id of the earlier invocation, if it is known."""


class PlanChanged(_WithPlan, Conflict):
    """The plan that was confirmed is not what would be done now; nothing was done. `plan` is what would be done now."""

    exit_code = 16


class MergeConflict(_WithPlan, Conflict):
    """Two branches changed the same values differently, and no resolution was given; nothing was changed.

    `plan`, a `MergePlan`, lists the values.
    """

    exit_code = 15


class RollbackBlocked(_WithPlan, AgentGitError):
    """Effects after the checkpoint cannot be reversed; nothing was done. `plan` lists them, each with its reason."""

    exit_code = 7
    nearest: str | None = None
    """The nearest checkpoint to which a rollback is possible, like `main#7`; None if there is none."""


class RollbackIncomplete(AgentGitError):
    """A reversal failed and the rollback stopped; `repo.resume(operation)` continues it."""

    exit_code = 8
    operation: int
    """The id of the operation that is `partial`."""
    report: Any
    """The `RollbackReport` of what was and was not reversed."""

    def _repr_html_(self) -> str:
        return _render_with(self, self.report)


class WorldDiverged(_WithPlan, AgentGitError):
    """Another branch has changed the outside world since this branch last saw it; nothing was run.

    `plan` would bring the world to the state of this branch.
    """

    exit_code = 9


class WorkspaceChanged(AgentGitError):
    """Someone else has changed files since the last snapshot; no file was changed."""

    exit_code = 10


class SchemaMismatch(AgentGitError):
    """The database is older or newer than this library, or it is not agentgit's."""

    exit_code = 11


class Corrupt(AgentGitError):
    """Stored bytes do not match their hash, a required row is missing, or an encrypted value was changed or moved."""

    exit_code = 12
    row: str = ""
    """The table and the key of the row."""


class PromptChanged(AgentGitError):
    """A graph asks a model something else than was recorded; `agentgit.testing.RecordedModel` raises it."""

    exit_code = 20
    part: str
    """What differs: `system prompt`, `tool`, `tool choice`, `response format`, `message`, `message order`, `call order`
    or `calls` (their number)."""
    name: str = ""
    """The name of the tool or the number of the message; empty for the other parts."""
    call: int = 0
    """The number of the model call, beginning with 1."""
    diff: str = ""
    """A unified diff of what was recorded and what is asked now; empty if there is nothing to compare."""
    report: Any = None
    """The report of the rerun up to this call; None outside of a rerun."""

    def worded(self, face: Face) -> str:
        """Return the message, the next steps in the words of a face, and the diff."""
        return "\n".join(filter(None, [super().worded(face), self.diff]))


class Unavailable(AgentGitError):
    """The database is locked, read-only or unreachable; nothing was changed."""

    exit_code = 13


class KeyMissing(Unavailable):
    """The database is encrypted with a key that was not given; nothing was read."""

    exit_code = 17
    key_id: str
    """The name of the key."""


class BranchMoved(Worded, UserWarning):
    """The session now continues on a different branch than an agent runs on. The agent stays on its branch."""


class UnownedCall(UserWarning):
    """A tool of a graph is called in a thread that no turn owns. It runs, and is not recorded."""


class TurnAbandoned(Worded, UserWarning):
    """A new message follows a turn whose process died before its calls were answered. The model may make them again."""


def _render_with(error: Exception, value: Any) -> str:
    return f"<p><b>{type(error).__name__}</b>: {escape(str(error))}</p>{value._repr_html_()}"


def warn_caller(warning: Warning) -> None:
    """Issue a warning at the line that called this package, perhaps through a method of LangGraph."""
    frame, level = sys._getframe(1), 2
    passed = ("agentgit.", "contextlib", "langchain_core.", "langgraph.")
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(passed):
        frame, level = frame.f_back, level + 1
    warnings.warn(warning, stacklevel=level)
