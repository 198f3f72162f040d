"""The commands that show sessions, branches and checkpoints: sessions, status, branches, tree, tool-track, show."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output, references
from agentgit.cli.completion import complete_checkpoint
from agentgit.cli.options import (
    Limit,
    OfBranch,
    Session,
    repository,
)
from agentgit.effects import ToolInvocation
from agentgit.render.records import record
from agentgit.render.views import checkpoints, conversation, lists
from agentgit.render.views import tree as trees
from agentgit.sessions.folded_tree import fold
from agentgit.sessions.session import DONE

if TYPE_CHECKING:
    from agentgit.handles.session import Session as SessionHandle

DEFAULT_BRANCH_LIMIT = 40
"""The number of branches that `tree` shows by default."""


def sessions(limit: Limit = None) -> None:
    with repository() as repo:
        output.emit_list(repo.sessions(limit), lists.sessions)


def status(
    session_ref: OfBranch = None,
    operations: Annotated[
        bool, typer.Option("--operations", help="List all rollbacks, switches and forks instead, newest first.")
    ] = False,
    limit: Limit = None,
) -> None:
    with repository() as repo:
        session, branch_name = references.parse_session(repo, session_ref, shows_session=True)
        if operations:
            _print_operations(session, limit)
            return
        branch = session.branch(branch_name)
        head = session.get_checkpoint("HEAD", branch=branch) if branch.checkpoint_count else None
        unfinished = [operation for operation in session.operations() if operation.status != DONE]
        output.emit(
            lambda: {
                "session": record(session.info),
                "branch": record(branch),
                "head": record(head) if head is not None else None,
                "stopped": [record(operation) for operation in unfinished],
            },
            lambda: [*lists.status(session.info, branch, head), *map(lists.unfinished, unfinished)],
        )


def _print_operations(session: SessionHandle, limit: int | None) -> None:
    history, names = session.operations()[:limit], {branch.id: branch.name for branch in session.branches()}
    output.emit_list(history, lambda shown: lists.operations(shown, names))


def branches(session: Session = None, limit: Limit = None) -> None:
    with repository() as repo:
        handle = references.read_session(repo, session)
        output.emit_list(handle.branches()[-(limit or 0) :], lambda shown: lists.branches(shown, handle.tree()))


def tree(
    session: Session = None,
    every: Annotated[bool, typer.Option("--all", help="Show each checkpoint on its own line.")] = False,
    limit: Annotated[
        int,
        typer.Option(
            "--limit",
            "-n",
            metavar="N",
            min=0,
            help="The number of branches to show: those on the way to HEAD, then the newest; 0 means all.",
        ),
    ] = DEFAULT_BRANCH_LIMIT,
    branch: Annotated[
        str | None,
        typer.Option("--branch", metavar="NAME", help="Show only the way to this branch, and what leaves from it."),
    ] = None,
    times: Annotated[bool, typer.Option("--times", help="Show when each checkpoint was created.")] = False,
) -> None:
    with repository() as repo:
        handle = references.default_session(repo, session)
        session_tree = handle.tree()
        branch_id = handle.branch(branch).id if branch is not None else None
        folded = fold(session_tree, limit=limit or None, branch=branch_id)
        output.emit(
            lambda: record(session_tree if branch is None else folded.tree),
            lambda: trees.tree(folded, every=every, times=times),
            session_tree if branch is None else folded.tree,
        )


def tool_track(
    session_ref: OfBranch = None,
    limit: Limit = None,
) -> None:
    with repository() as repo:
        session, branch = references.parse_session(repo, session_ref)
        invocations = session.tool_track(branch=branch)[-(limit or 0) :]
        output.emit_list(invocations, partial(conversation.calls, latest=len(invocations)), ToolInvocation.to_dict)


def show(
    first: Annotated[
        str | None,
        typer.Argument(
            metavar="SESSION",
            autocompletion=complete_checkpoint,
            help="The name or id of a session; by default the most recently updated one.",
        ),
    ] = None,
    second: Annotated[
        str | None,
        typer.Argument(
            metavar="REF",
            autocompletion=complete_checkpoint,
            help="A checkpoint, like main#7, HEAD~1, a name or an id; by default HEAD.",
        ),
    ] = None,
) -> None:
    with repository() as repo:
        checkpoint = references.checkpoint(repo, first, second)
        output.emit(checkpoint.to_dict, lambda: checkpoints.checkpoint(checkpoint), checkpoint)
