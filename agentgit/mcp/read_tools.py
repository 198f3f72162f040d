"""The read-only tools: lists, trees, diffs, search, and plans."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from agentgit.errors import InvalidInput
from agentgit.next_steps import NAMED_PLACE, NOWHERE
from agentgit.render.records import record
from agentgit.render.view import Medium, Span, View
from agentgit.render.views import checkpoints, conversation, diff, lists, tree
from agentgit.render.views.rollback import outcome

if TYPE_CHECKING:
    from agentgit.effects import RollbackPlan
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

MEDIUM = Medium(width=120, zone=None, face="mcp")
"""How answers show views."""

LINES = 400
"""The maximum number of lines in an answer."""

LISTED_SESSIONS = 5
"""The number of sessions that an error lists."""

SessionName = Annotated[
    str | None,
    Field(description="The name or id of a session. By default, the session that was updated most recently."),
]
NameFilter = Annotated[str | None, Field(description="Only list sessions whose name contains this text.")]
ChangedSession = Annotated[
    str | None,
    Field(description="The name or id of the session. Needed if there are several sessions."),
]
Branch = Annotated[str | None, Field(description="The name of a branch. By default, the current branch.")]
CheckpointParameter = Annotated[
    str,
    Field(
        description="A checkpoint: its name, its id, a tag, a branch, a position like main#7, main~1, HEAD or HEAD~1, "
        "or message:<id>, the point before the user's message with this id."
    ),
]
NewBranch = Annotated[str, Field(description="The name of the branch to switch to.")]
Auto = Annotated[
    bool | None,
    Field(description="True to list only automatic checkpoints, false to list only those that someone requested."),
]
AllCheckpoints = Annotated[bool, Field(description="True to show each checkpoint on its own line.")]
AllBranches = Annotated[bool, Field(description="True to search all branches of the session.")]
SearchText = Annotated[str, Field(description="The words to look for. A text must contain all of them.")]
Patch = Annotated[bool, Field(description="True to include the line-by-line differences of the files.")]
Limit = Annotated[int, Field(description="The maximum number of results.", ge=1, le=200)]
After = Annotated[
    str | None, Field(description="The value of `next` in the previous answer. The list continues after it.")
]
Tools = Annotated[
    str,
    Field(
        description="What to do with the effects of later tool calls. reverse: undo them. reversible: undo only "
        "reversible ones. keep: keep them. require_clean: fail if there are any."
    ),
]
Files = Annotated[
    bool | Literal["overwrite"],
    Field(
        description="False if the rollback must not change the files of the workspace; overwrite to also restore files "
        "that somebody else has changed, whose versions a snapshot keeps."
    ),
]
Conversation = Annotated[bool, Field(description="False to undo only effects and files, without a new branch.")]
Force = Annotated[
    bool, Field(description="True to continue and keep effects that cannot be undone. The server must allow it.")
]


@dataclass(frozen=True)
class ToolAnswer:
    """The answer of a tool."""

    view: View
    data: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The answer as text, truncated after `LINES` lines."""
        lines = MEDIUM.lines(self.view)
        hidden_count = len(lines) - LINES
        notice = f"\n… and {hidden_count} more lines; ask for less" if hidden_count > 0 else ""
        return MEDIUM.text(lines[:LINES]) + notice


class ReadTools:
    """The tools that change nothing."""

    def __init__(self, repo: Repository, session: Session | None) -> None:
        self.repo = repo
        self.bound_session = session

    def find_session(self, session: str | int | None, branch: str | None = None) -> Session:
        """Return the session that a tool call is about; the commands that its answer proposes name the branch, too."""
        found = self.bound_session if self.bound_session is not None else self.repo.session(session)
        NAMED_PLACE.set(NOWHERE.at(found, branch))
        return found

    def find_changed_session(self, session: str | None, branch: str | None = None) -> Session:
        """Return the session that a tool call changes, or plans to change."""
        if self.bound_session is not None or session is not None:
            return self.find_session(session, branch)
        sessions = self.repo.sessions(LISTED_SESSIONS + 1)
        if len(sessions) > 1:
            names = ", ".join(repr(one.reference) for one in sessions[:LISTED_SESSIONS])
            rest = " and more" if len(sessions) > LISTED_SESSIONS else ""
            raise InvalidInput(f"There are several sessions, so pass session, one of: {names}{rest}.")
        return self.find_session(sessions[0].id if sessions else None, branch)

    def sessions(self, limit: Limit = 20, *, name: NameFilter = None) -> ToolAnswer:
        """List the sessions. The session that was updated most recently is first."""
        sessions = self.repo.sessions(limit, name=name)
        return ToolAnswer(
            lists.sessions(sessions),
            {"sessions": [record(session) for session in sessions]},
        )

    def list_checkpoints(
        self,
        *,
        session: SessionName = None,
        branch: Branch = None,
        auto: Auto = None,
        limit: Limit = 20,
        after: After = None,
    ) -> ToolAnswer:
        """List the checkpoints of a branch, newest first. The conversation can go back to each of them."""
        log = self.find_session(session, branch).log(branch=branch, auto=auto)
        page = log.page(limit, after=after)
        more = [(Span(f"more: after={page.next}", "dim"),)] if page.next else []
        return ToolAnswer(
            [*checkpoints.log(page.items[::-1], log.questions if after is None else ()), *more],
            {"checkpoints": [record(checkpoint) for checkpoint in page], "next": page.next},
        )

    def get_checkpoint_info(
        self, checkpoint: CheckpointParameter, *, session: SessionName = None, branch: Branch = None
    ) -> ToolAnswer:
        """Show one checkpoint: the last messages before it, the state, and the tool calls."""
        target = self.find_session(session, branch).get_checkpoint(checkpoint, branch=branch)
        return ToolAnswer(checkpoints.checkpoint(target), record(target))

    def tool_track(self, *, session: SessionName = None, branch: Branch = None, limit: Limit = 50) -> ToolAnswer:
        """List the tool calls of a branch, oldest first, with the effect, status and result of each."""
        calls = self.find_session(session, branch).tool_track(branch=branch)[-limit:]
        return ToolAnswer(conversation.calls(calls))

    def branches(self, *, session: SessionName = None) -> ToolAnswer:
        """List the branches of a session. A * marks the current branch."""
        handle = self.find_session(session)
        branches = handle.branches()
        return ToolAnswer(
            lists.branches(branches, handle.tree()),
            {"branches": [record(branch) for branch in branches]},
        )

    def tree(self, *, session: SessionName = None, all: AllCheckpoints = False) -> ToolAnswer:
        """Draw the tree of a session's branches."""
        return ToolAnswer(tree.tree(self.find_session(session).tree(), every=all))

    def diff(
        self,
        a: CheckpointParameter,
        b: CheckpointParameter = "HEAD",
        *,
        session: SessionName = None,
        patch: Patch = False,
    ) -> ToolAnswer:
        """Compare two checkpoints: their state, messages, tool calls and files."""
        difference = self.find_session(session).diff(a, b)
        return ToolAnswer([*diff.differences(difference), *(diff.patch(difference.diff_content) if patch else ())])

    def search(
        self,
        text: SearchText,
        *,
        session: SessionName = None,
        branch: Branch = None,
        all_branches: AllBranches = False,
        limit: Limit = 20,
        after: After = None,
    ) -> ToolAnswer:
        """Find checkpoints by their names, and messages and tool calls by their words. Names are listed first."""
        hits = self.find_session(session, branch).search(
            text, branch=branch, all_branches=all_branches, limit=limit, after=after
        )
        return ToolAnswer(checkpoints.hits(hits), hits.to_dict())

    def operations(self, *, session: SessionName = None, limit: Limit = 20) -> ToolAnswer:
        """List rollbacks, switches and forks, newest first, with the status of each."""
        handle = self.find_session(session)
        operations, names = handle.operations()[:limit], {one.id: one.name for one in handle.branches()}
        return ToolAnswer(
            lists.operations(operations, names),
            {"operations": [record(one) for one in operations]},
        )

    # -- plans

    def plan_rollback(
        self,
        checkpoint: CheckpointParameter,
        *,
        session: ChangedSession = None,
        branch: Branch = None,
        tools: Tools = "reverse",
        files: Files = True,
        conversation: Conversation = True,
        force: Force = False,
    ) -> ToolAnswer:
        """Show what a rollback would undo and what it cannot undo. Nothing is changed.

        If nothing blocks the rollback, the answer has its `identity`. Pass it to rollback_to_checkpoint as `plan`.
        """
        handle = self.find_changed_session(session, branch)
        options: dict[str, Any] = {"tools": tools, "files": files, "conversation": conversation}
        return _plan_answer(handle.plan_rollback(checkpoint, branch=branch, **options), force=force)

    def plan_switch(self, branch: NewBranch, *, session: ChangedSession = None, force: Force = False) -> ToolAnswer:
        """Show which tool calls a switch to another branch would undo and run again. Nothing is changed.

        If nothing blocks the switch, the answer has its `identity`. Pass it to switch as `plan`, with sync=world.
        """
        return _plan_answer(self.find_changed_session(session).plan_switch(branch), force=force)


def to_confirm(plan: RollbackPlan) -> str:
    """Return the line that says how to confirm a plan."""
    return f"To do exactly this: plan={plan.identity}"


def _plan_answer(plan: RollbackPlan, *, force: bool) -> ToolAnswer:
    """Return the answer for a plan, with its identity if nothing blocks it."""
    effective_plan = plan.forced() if force else plan
    data, view = effective_plan.to_dict(), list(outcome(effective_plan))
    del data["replayed"]
    if effective_plan.is_admissible:
        view.append((Span(to_confirm(plan)),))
    else:
        del data["identity"]
    return ToolAnswer(view, data)
