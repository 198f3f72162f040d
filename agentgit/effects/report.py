"""The report of a rollback or a switch: what was reversed, replayed, kept, and what failed, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from agentgit.effects.files import FileChanges
from agentgit.effects.invocation import ToolInvocation
from agentgit.effects.plan import FORK, ROLLBACK, SWITCH, WORLD_ONLY
from agentgit.errors import InvalidInput
from agentgit.next_steps import Next, Reason
from agentgit.values import PrintableDrawing, count, quote_name

GROUPS = ("reversed", "redone", "drifted", "answered", "replayed", "kept", "gone", "failed", "remaining")
"""The possible outcomes of the steps of a plan and of the calls of the track."""

DONE = "done"


@dataclass(frozen=True, kw_only=True)
class ReportItem:
    """The outcome for one invocation.

    Args:
        invocation: The call.
        reason: The reason, as a sentence.
    """

    invocation: ToolInvocation
    reason: str

    def __str__(self) -> str:
        return f"{self.invocation}: {self.reason}"

    def to_dict(self) -> dict[str, Any]:
        """Return the item as JSON-like data."""
        return {"invocation": self.invocation.to_dict(), **Reason.of(self.reason).to_dict("reason")}


@dataclass(frozen=True, kw_only=True)
class RollbackReport(PrintableDrawing):
    """The result of a rollback or a switch. `str()` renders it as text; a notebook shows it as a table.

    Args:
        operation_id: The id of the operation, for `repo.resume`; 0 if nothing was to be done and none was recorded.
        status: `done`, or `partial` if a reversal failed or was not tried.
        checkpoint_id: The id of the checkpoint that it went back to.
        branch: The name of the branch that it led to.
        kind: `rollback`, `switch`, `fork` or `world_only`.
        session_name: The name by which the user refers to the session, like `support-42` or `alice/support-42`.
        reversed: Effects that were reversed, in the order of their reversal.
        redone: Calls whose tool ran again, each as its new run.
        drifted: Redone calls that returned a different result than before.
        answered: Calls that should have run again but did not; the new branch has their recorded results.
        replayed: Invocations at the beginning of the new branch's track, taken unchanged from the record.
        kept: Effects that stay in the world.
        gone: Effects that the conversation mentions but that had been reversed before.
        failed: Reversals that raised.
        remaining: Steps that were not tried, because an earlier one failed or returned a different result.
        files: The changes to the files; None if there is no workspace or its files were to be left alone.
    """

    operation_id: int
    status: str
    checkpoint_id: int
    branch: str
    kind: str = ROLLBACK
    session_name: str = ""
    reversed: list[ReportItem] = field(default_factory=list)
    redone: list[ReportItem] = field(default_factory=list)
    drifted: list[ReportItem] = field(default_factory=list)
    answered: list[ReportItem] = field(default_factory=list)
    replayed: list[ReportItem] = field(default_factory=list)
    kept: list[ReportItem] = field(default_factory=list)
    gone: list[ReportItem] = field(default_factory=list)
    failed: list[ReportItem] = field(default_factory=list)
    remaining: list[ReportItem] = field(default_factory=list)
    files: FileChanges | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON-like data, which `from_dict` reads."""
        groups = {group: [item.to_dict() for item in items] for group, items in self.groups().items()}
        return vars(self) | groups | {"files": self.files.to_dict() if self.files else None}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Create a report from the data that `to_dict` returned, also after a round trip through JSON.

        Raises:
            InvalidInput: The data is not a report.

        Example:
            >>> report = RollbackReport(operation_id=1, status="done", checkpoint_id=2, branch="main-2")
            >>> RollbackReport.from_dict(report.to_dict()) == report
            True
        """
        try:
            groups: dict[str, Any] = {group: [_item_from_dict(item) for item in data[group]] for group in GROUPS}
            files = FileChanges.from_dict(data["files"]) if data["files"] else None
            return cls(**{one.name: data[one.name] for one in fields(cls)} | groups | {"files": files})
        except (KeyError, TypeError) as error:
            raise InvalidInput(f"Not a report: {error}. Pass what to_dict() returned.") from error

    def groups(self) -> dict[str, list[ReportItem]]:
        """Return the items by outcome, in the order of `GROUPS`."""
        return {group: getattr(self, group) for group in GROUPS}

    @property
    def heading(self) -> str:
        """A sentence that names the operation, its status, its session and its branch."""
        calls = count(len(self.replayed) + len(self.answered), "tool call")
        session = f"session {quote_name(self.session_name)}, " if self.session_name else ""
        place = f"{session}branch {quote_name(self.branch)}"
        if self.kind == SWITCH:
            return f"Switch {self.status}: {place}."
        if self.kind == WORLD_ONLY:
            return f"Rollback of the world {self.status}: {place} is unchanged."
        return f"{self.kind.capitalize()} {self.status}: {place}, {calls} replayed from the record."

    @property
    def summary(self) -> Reason:
        """A sentence that counts the effects by outcome, with the next step if the operation is not done."""
        items = self.groups()
        counts = [f"{len(items[group])} {word}" for group, word in _WORDING.items() if items[group]]
        is_unchanged = self.kind in (SWITCH, FORK) and not (self.files and self.files.changed)
        empty_text = "The world is unchanged" if is_unchanged else "There was nothing to reverse"
        files = [self.files.summary] if self.files else []
        text = " ".join([f"{', '.join(counts) or empty_text}.", *(one.message for one in files)])
        resume = [] if self.status == DONE else [Next("resume", operation=self.operation_id)]
        return Reason(text, *dict.fromkeys([*(step for one in files for step in one.next), *resume]))


_WORDING = {group: group for group in GROUPS if group != "replayed"} | {
    "remaining": "not tried",
    "answered": "answered from the record",
}
"""The wording for each group; the heading covers replayed calls."""


def _item_from_dict(data: Mapping[str, Any]) -> ReportItem:
    return ReportItem(invocation=ToolInvocation.from_dict(data["invocation"]), reason=Reason.from_dict(data, "reason"))
