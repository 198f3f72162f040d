"""The errors that agentgit raises. Each message says what to do next, and each class has an exit code.

AgentGitError                   1
├── InvalidInput                2   an argument is not valid
├── NotFound                    3   nothing visible here has that name or id
├── Ambiguous                   4   several things have that name
├── NotAllowed                  5   it exists, but this user may not do that
├── Conflict                    6   it conflicts with a concurrent change or the current state
│   ├── Fenced                 14   the same call already took effect, and is not made twice
│   ├── Simulated              18   the branch is a rerun, whose calls did not happen
│   ├── PlanChanged            16   what was confirmed is not what would be done now
│   ├── MergeConflict          15   two branches changed the same value differently
│   └── AnswerRequired         22   the graph waits for a person's answer
├── RerunDiverged              19   a rerun made a call that is not in the record
├── OutsideRerun               21   a tool is called outside a turn while a rerun runs
├── RollbackBlocked             7   an effect after that point cannot be reversed
├── RollbackIncomplete          8   a reversal failed; the rest can be resumed
├── WorldDiverged               9   another branch has changed the outside world since
├── WorkspaceChanged           10   someone else has changed the files since
├── SchemaMismatch             11   the database is older or newer than this library, or not agentgit's
├── Corrupt                    12   stored bytes do not match their hash
├── PromptChanged              20   a model is asked something else than recorded
└── Unavailable                13   the database is locked, read-only or unreachable
    └── KeyMissing             17   the database is encrypted, and the key was not given
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from html import escape
from typing import Any, ClassVar


class AgentGitError(RuntimeError):
    """The base class of all errors that agentgit raises on purpose."""

    exit_code: ClassVar[int] = 1


class _WithPlan(RuntimeError):
    """An error with the plan of what would be done."""

    def __init__(self, message: str, plan: Any) -> None:
        super().__init__(message)
        self.plan = plan

    def _repr_html_(self) -> str:
        return _render_with(self, self.plan)


class InvalidInput(AgentGitError, ValueError):
    """An argument is not valid."""

    exit_code = 2


class NotFound(AgentGitError, LookupError):
    """Nothing that this user can see has that name or id.

    Args:
        message: What was not found, and the next step.
        near: Existing names that are similar to the requested one.
    """

    exit_code = 3

    def __init__(self, message: str, *, near: tuple[str, ...] = ()) -> None:
        hint = f" Did you mean {', '.join(near)}?" if near else ""
        super().__init__(message + hint)
        self.near = near


class Ambiguous(AgentGitError, LookupError):
    """Several things have that name.

    Args:
        message: The name, and the next step.
        candidates: References that each name exactly one of them.
    """

    exit_code = 4

    def __init__(self, message: str, *, candidates: tuple[str, ...] = ()) -> None:
        hint = f" It could be {', '.join(candidates)}." if candidates else ""
        super().__init__(message + hint)
        self.candidates = candidates


class NotAllowed(AgentGitError, PermissionError):
    """The object exists, but this user may not do that with it.

    Args:
        message: The refused action, and the next step.
        write_audit: A function that writes the refusal to the audit trail, after the refused transaction has ended.
    """

    exit_code = 5

    def __init__(self, message: str, *, write_audit: Callable[[Any], None] | None = None) -> None:
        super().__init__(message)
        self.write_audit = write_audit


class Conflict(AgentGitError):
    """The action conflicts with a concurrent change, a running branch or an existing name; nothing was changed.

    Args:
        message: The conflict, and the next step.
        head: The id of the checkpoint that is the head now, if a head moved.
    """

    exit_code = 6

    def __init__(self, message: str, *, head: int | None = None) -> None:
        super().__init__(message)
        self.head = head


class Simulated(Conflict):
    """A run would go on from a rerun, whose calls were only simulated; nothing was done."""

    exit_code = 18


class AnswerRequired(Conflict):
    """The graph waits for a person's answer, so a message would drop its question, or there is no answer to return.

    Args:
        message: The questions, and the next step.
        questions: What the graph asks: the values of its interrupts.
    """

    exit_code = 22

    def __init__(self, message: str, *, questions: Sequence[Any]) -> None:
        super().__init__(message)
        self.questions = questions


class RerunDiverged(AgentGitError):
    """A rerun with `on_miss="stop"` made a call that is not in the record, or more calls than its limit allows.

    Args:
        message: The call, and the nearest recorded one.
        call: The call that has no record, as text; None if it was a question.
        nearest: The id of the recorded call that is most like it; None if the record has no call of the tool left.
    """

    exit_code = 19

    def __init__(self, message: str, *, call: str | None = None, nearest: int | None = None) -> None:
        super().__init__(message)
        self.call = call
        self.nearest = nearest
        self.report: Any = None
        """The report of the rerun up to this call."""


class OutsideRerun(AgentGitError):
    """While a rerun ran, or in a thread that began during it, a tool was called outside every turn; it did not run."""

    exit_code = 21

    report: Any = None
    """The report of the rerun up to this call, if the error has stopped it."""


class Fenced(Conflict):
    """The same call was made before and took effect, or may have; it was not made again.

    Args:
        message: The call, and the next step.
        invocation: The id of the earlier invocation, if it is known.
    """

    exit_code = 14

    def __init__(self, message: str, *, invocation: int | None = None) -> None:
        super().__init__(message)
        self.invocation = invocation


class PlanChanged(_WithPlan, Conflict):
    """The plan that was confirmed is not what would be done now; nothing was done.

    Args:
        message: What was refused, and the next step.
        plan: The `RollbackPlan` of what would be done now.
    """

    exit_code = 16


class MergeConflict(_WithPlan, Conflict):
    """Two branches changed the same values differently, and no resolution was given; nothing was changed.

    Args:
        message: The values, and the next step.
        plan: The `MergePlan` that lists them.
    """

    exit_code = 15


class RollbackBlocked(_WithPlan, AgentGitError):
    """Effects after the checkpoint cannot be reversed; nothing was done.

    Args:
        message: The effects, and the next step.
        plan: The `RollbackPlan` that lists them, each with its reason.
        nearest: The nearest checkpoint to which a rollback is possible, like `main#7`; None if there is none.
    """

    exit_code = 7

    def __init__(self, message: str, plan: Any, *, nearest: str | None = None) -> None:
        super().__init__(message, plan)
        self.nearest = nearest


class RollbackIncomplete(AgentGitError):
    """A reversal failed and the rollback stopped; `repo.resume(operation)` continues it.

    Args:
        message: The failure, and the next step.
        operation: The id of the operation that is `partial`.
        report: The `RollbackReport` of what was and was not reversed.
    """

    exit_code = 8

    def __init__(self, message: str, *, operation: int, report: Any) -> None:
        super().__init__(message)
        self.operation = operation
        self.report = report

    def _repr_html_(self) -> str:
        return _render_with(self, self.report)


class WorldDiverged(_WithPlan, AgentGitError):
    """Another branch has changed the outside world since this branch last saw it; nothing was run.

    Args:
        message: The changes, and the next step.
        plan: The plan that would bring the world to the state of this branch.
    """

    exit_code = 9


class WorkspaceChanged(AgentGitError):
    """Someone else has changed files since the last snapshot; no file was changed."""

    exit_code = 10


class SchemaMismatch(AgentGitError):
    """The database is older or newer than this library, or it is not agentgit's."""

    exit_code = 11


class Corrupt(AgentGitError):
    """Stored bytes do not match their hash, a required row is missing, or an encrypted value was changed or moved.

    Args:
        message: The row, and the next step.
        row: The table and the key of the row.
    """

    exit_code = 12

    def __init__(self, message: str, *, row: str = "") -> None:
        super().__init__(message)
        self.row = row


class PromptChanged(AgentGitError):
    """A graph asks a model something else than was recorded; `agentgit.testing.RecordedModel` raises it.

    Args:
        message: The model call and what differs, and the next step. The diff is added to it.
        part: What differs: `system prompt`, `tool`, `tool choice`, `response format`, `message`, `message order`,
            `call order` or `calls` (their number).
        name: The name of the tool or the number of the message; empty for the other parts.
        call: The number of the model call, beginning with 1.
        diff: A unified diff of what was recorded and what is asked now; empty if there is nothing to compare.
    """

    exit_code = 20

    def __init__(self, message: str, *, part: str, name: str = "", call: int = 0, diff: str = "") -> None:
        super().__init__(f"{message}\n{diff}" if diff else message)
        self.part = part
        self.name = name
        self.call = call
        self.diff = diff
        self.report: Any = None
        """The report of the rerun up to this call; None outside of a rerun."""


class Unavailable(AgentGitError):
    """The database is locked, read-only or unreachable; nothing was changed."""

    exit_code = 13


class KeyMissing(Unavailable):
    """The database is encrypted with a key that was not given; nothing was read.

    Args:
        message: The key, and where to give it.
        key_id: The name of the key.
    """

    exit_code = 17

    def __init__(self, message: str, *, key_id: str) -> None:
        super().__init__(message)
        self.key_id = key_id


class BranchMoved(UserWarning):
    """The session now continues on a different branch than an agent runs on. The agent stays on its branch."""


class UnownedCall(UserWarning):
    """A tool of a graph is called in a thread that no turn owns. It runs, and is not recorded."""


class TurnAbandoned(UserWarning):
    """A new message follows a turn whose process died before its calls were answered. The model may make them again."""


def _render_with(error: Exception, value: Any) -> str:
    """Return the HTML of an error and of its plan or report, for a notebook."""
    return f"<p><b>{type(error).__name__}</b>: {escape(str(error))}</p>{value._repr_html_()}"


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning at the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("agentgit.", "contextlib")):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)
