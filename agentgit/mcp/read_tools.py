"""The tools that only look: lists, trees, diffs, search, and plans with the codes that confirm them.

The codes that a plan gives: who shows one has seen exactly what would be done, and nothing has changed since. A code
is a hash of the plan, and of the newest operation of the session: once it was used, it names what was done, and never
lets the same be done a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from agentgit.errors import Conflict
from agentgit.render import records
from agentgit.render import show as shows
from agentgit.render.text import Line, Span, plain
from agentgit.render.views import conversation
from agentgit.render.views import diff as diffs
from agentgit.render.views import log as logs
from agentgit.render.views import rollback as rollbacks
from agentgit.render.views import tree as trees
from agentgit.render.views.lists import branch_lines, session_lines
from agentgit.values import to_json

if TYPE_CHECKING:
    from agentgit.effects import RollbackPlan
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.sessions.operation import Operation

PREFIX = "mcp-"
"""The beginning of the request id of an operation that was confirmed here."""


def code_of_rollback(
    repo: Repository, session: Session, branch: str | None, plan: RollbackPlan, *, force: bool, **how: Any
) -> str:
    """Return the code of a rollback.

    Args:
        repo: The repository of the session.
        session: The session of the branch.
        branch: The one that is left; None is the current one.
        plan: The plan to confirm.
        force: True if what cannot be undone is kept.
        how: The other options that were asked for.
    """
    return _code(repo, session, plan, session.branch(branch).id, force, how)


def code_of_switch(repo: Repository, session: Session, branch: str, plan: RollbackPlan, *, force: bool) -> str:
    """Return the code of a switch that brings the world along; the arguments are those of `of_rollback`."""
    return _code(repo, session, plan, session.branch(branch).id, force, {})


def _code(
    repo: Repository, session: Session, plan: RollbackPlan, branch_id: int, force: bool, how: dict[str, Any]
) -> str:
    files = plan.files.to_dict() if plan.files is not None else None
    newest = [operation.id for operation in session.operations()[:1]]
    seen = [session.id, branch_id, plan.kind, plan.checkpoint_id, plan.as_request(), files, force, how, newest]
    return sha256(to_json(seen)).hexdigest()[:16]


def done_before(repo: Repository, session: Session, code: str) -> Operation | None:
    """Find the operation that a code has led to already; None if it has not."""
    return next((one for one in session.operations() if one.request_id == PREFIX + code), None)


def require_code(code: str, now: str, plan: RollbackPlan) -> None:
    """Check that a code belongs to the plan as it is now.

    Raises:
        Conflict: It does not.
    """
    if code != now:
        raise Conflict(f"Nothing was changed: confirm={code!r} is for another plan. Check the current plan: {plan}")


WIDTH = 120
"""Cells of a line of text; a model reads no pictures."""

LINES = 400
"""The most lines of an answer."""

SessionName = Annotated[
    str | None, Field(description="A session's name or id. By default the most recently updated one.")
]
Part = Annotated[str | None, Field(description="Only sessions whose name contains this.")]
Branch = Annotated[str | None, Field(description="A branch's name. By default the current one.")]
Place = Annotated[
    str, Field(description="A checkpoint: its name or id, a tag, or a place like main#7, main~1, HEAD, HEAD~1.")
]
Limit = Annotated[int, Field(description="The maximum number of results.", ge=1, le=200)]
After = Annotated[str | None, Field(description="The `next` of the previous answer, to continue after it.")]
Tools = Annotated[
    str,
    Field(description="reverse: undo later effects of tools. keep: keep them. require_clean: refuse if there are any."),
]
Files = Annotated[bool, Field(description="False to keep the files of the workspace as they are.")]
Conversation = Annotated[bool, Field(description="False to roll back only effects and files, without a new branch.")]
Force = Annotated[bool, Field(description="True to keep effects that cannot be undone; the server must allow it.")]


@dataclass(frozen=True)
class ToolAnswer:
    """The answer of a tool.

    Args:
        lines: The lines for a person.
        data: The data for a program, JSON-like.
    """

    lines: Sequence[Line]
    data: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The lines as text, cut where they are too many."""
        rest = len(self.lines) - LINES
        cut = f"\n… and {rest} more lines; ask for less" if rest > 0 else ""
        return plain(self.lines[:LINES]) + cut


class ReadTools:
    """The tools that change nothing.

    Args:
        repo: Bound to one user.
        session: The only session that is shown; None for all of the user's.
    """

    def __init__(self, repo: Repository, session: Session | None) -> None:
        self.repo = repo
        self.bound = session

    def of(self, session: str | None) -> Session:
        """Find the session that a call is about."""
        return self.bound if self.bound is not None else self.repo.session(session)

    def list_sessions(self, name: Part = None, limit: Limit = 20) -> ToolAnswer:
        """List the sessions, the one that moved last first."""
        found = self.repo.sessions(limit, name=name)
        return ToolAnswer(
            session_lines(found, width=WIDTH, zone=None) or _nothing("no sessions"),
            {"sessions": [records.of_session(one) for one in found]},
        )

    def list_checkpoints(
        self,
        session: SessionName = None,
        branch: Branch = None,
        named_only: bool = False,
        limit: Limit = 20,
        after: After = None,
    ) -> ToolAnswer:
        """List the saved points of a branch, the newest first: where a conversation can be gone back to."""
        asked = self.of(session).log(branch=branch, auto=False if named_only else None)
        page = asked.page(limit, after=after)
        lines = logs.lines(page.items[::-1], width=WIDTH, zone=None) or _nothing("no checkpoints")
        more = [(Span(f"more: after={page.next}", "dim"),)] if page.next else []
        return ToolAnswer(
            [*lines, *more], {"checkpoints": [records.of_checkpoint(one) for one in page], "next": page.next}
        )

    def get_checkpoint_info(self, checkpoint: Place, session: SessionName = None, branch: Branch = None) -> ToolAnswer:
        """Show one saved point: what was said last until there, the state, and which tools were called."""
        found = self.of(session).get_checkpoint(checkpoint, branch=branch)
        return ToolAnswer(shows.lines(found, width=WIDTH, zone=None), records.of_checkpoint(found))

    def list_tool_calls(self, session: SessionName = None, branch: Branch = None, limit: Limit = 50) -> ToolAnswer:
        """List what tools did along a branch: the effect, whether it stands in the world, and what came of it."""
        found = self.of(session).tool_track(branch=branch)[-limit:]
        return ToolAnswer(conversation.call_lines(found, width=WIDTH) or _nothing("no tool calls"))

    def list_branches(self, session: SessionName = None) -> ToolAnswer:
        """List the branches of a session, with a * before the one that it continues on."""
        of = self.of(session)
        found = of.branches()
        return ToolAnswer(
            branch_lines(found, of.tree(), width=WIDTH, zone=None),
            {"branches": [records.of_branch(one) for one in found]},
        )

    def show_tree(self, session: SessionName = None, every: bool = False) -> ToolAnswer:
        """Draw the branches of a session, each where it left; with `every`, each checkpoint on a line of its own."""
        return ToolAnswer(trees.lines(self.of(session).tree(), width=WIDTH, every=every, zone=None))

    def diff_checkpoints(
        self, a: Place, b: Place = "HEAD", session: SessionName = None, patch: bool = False
    ) -> ToolAnswer:
        """Compare two places: state, messages, tool calls, files; with `patch`, also how the files differ."""
        found = self.of(session).diff(a, b)
        return ToolAnswer([*diffs.lines(found, width=WIDTH), *(diffs.patch(found.diff_content) if patch else ())])

    def search(
        self,
        text: str,
        session: SessionName = None,
        branch: Branch = None,
        all_branches: bool = False,
        limit: Limit = 20,
        after: After = None,
    ) -> ToolAnswer:
        """Find messages, tool calls and named points by their words: names first, then the newest."""
        found = self.of(session).search(text, branch=branch, all_branches=all_branches, limit=limit, after=after)
        return ToolAnswer(logs.hit_lines(found, width=WIDTH, zone=None), found.to_dict())

    def list_operations(self, session: SessionName = None, limit: Limit = 20) -> ToolAnswer:
        """List rollbacks, switches and forks, the newest first, and which of them stopped half way."""
        of = self.of(session)
        found, names = of.operations()[:limit], {one.id: one.name for one in of.branches()}
        return ToolAnswer(
            rollbacks.operation_lines(found, names, width=WIDTH, zone=None) or _nothing("no operations"),
            {"operations": [records.of_operation(one) for one in found]},
        )

    # -- plans

    def plan_rollback(
        self,
        checkpoint: Place,
        session: SessionName = None,
        branch: Branch = None,
        tools: Tools = "reverse",
        files: Files = True,
        conversation: Conversation = True,
        force: Force = False,
    ) -> ToolAnswer:
        """Return what going back would undo and what it cannot undo; nothing is done. Its `confirm` lets it be done."""
        of = self.of(session)
        how: dict[str, Any] = {"tools": tools, "files": files, "conversation": conversation}
        plan = of.plan_rollback(checkpoint, branch=branch, **how)
        return _planned(plan, code_of_rollback(self.repo, of, branch, plan, force=force, **how), force=force)

    def plan_switch(self, branch: str, session: SessionName = None, force: Force = False) -> ToolAnswer:
        """Return what bringing the world to another branch would undo and do again; nothing is done."""
        of = self.of(session)
        plan = of.plan_switch(branch)
        return _planned(plan, code_of_switch(self.repo, of, branch, plan, force=force), force=force)


def _planned(plan: RollbackPlan, code: str, *, force: bool) -> ToolAnswer:
    """Show a plan, with the code that lets it be done if nothing stands in the way."""
    meant = plan.forced() if force else plan
    data = {name: value for name, value in meant.to_dict().items() if name != "replayed"}
    if meant.is_admissible:
        return ToolAnswer(
            [*rollbacks.lines(meant, width=WIDTH), (Span(f"To do exactly this: confirm={code}"),)],
            {**data, "confirm": code},
        )
    return ToolAnswer(rollbacks.lines(meant, width=WIDTH), data)


def _nothing(text: str) -> list[Line]:
    return [(Span(text),)]
