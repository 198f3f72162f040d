"""`agentgit merge` and `cherry-pick`: what is good in one branch comes to another; your graph's reducers write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.options import AsJson, Where, import_from_here, repository, usage
from agentgit.errors import InvalidInput, MergeConflict, NotFound
from agentgit.render import records
from agentgit.render.views import diff as merges
from agentgit.render.views import log as logs

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.merge import Choice, MergePlan
    from agentgit.handles.session import Session
    from agentgit.repository import Repository

Graph = Annotated[
    str, typer.Argument(metavar="MODULE:GRAPH", help="Your compiled graph, or the function that makes it.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="Of the checkpoint that is made.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show only what would come.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(cls=usage("MODULE:GRAPH", "[SESSION[@BRANCH]]", "PLACE"))(merge)
    app.command("cherry-pick", cls=usage("MODULE:GRAPH", "[SESSION[@BRANCH]]", "[PLACE]"))(cherry_pick)


def merge(
    graph: Graph,
    words: Annotated[
        list[str], typer.Argument(metavar="[SESSION[@BRANCH]] PLACE", help="Where to, and the branch that comes.")
    ],
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            "--resolve", metavar="[KEY=]SIDE", help="ours or theirs, for all conflicts or one; several may be given."
        ),
    ] = None,
    name: Name = None,
    dry_run: DryRun = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Bring what another branch did to a branch: messages and values. No tool runs."""
    choices = _choices(resolve or ())
    with repository(db) as repo:
        session, branch, place = references.last(repo, words)
        _wrap(repo, graph, session)
        plan = session.plan_merge(place, into=branch, resolve=choices)
        try:
            made = None if dry_run else session.agent(branch).merge(place, resolve=choices, name=name)
        except MergeConflict as error:
            _tell(as_json, error.plan, None)
            raise
        _tell(as_json, plan, made)


def _choices(written: Sequence[str]) -> dict[str, Choice]:
    """Read what was said about conflicts.

    Example:
        >>> _choices(["ours", "note=theirs"])
        {'*': 'ours', 'note': 'theirs'}
    """
    parts = (text.rpartition("=") for text in written)
    return {key if equals else "*": side for key, equals, side in parts}


def cherry_pick(
    graph: Graph,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SESSION[@BRANCH]] [PLACE]", help="Where to, and the checkpoint whose messages come."),
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option("--message", metavar="ID", help="This message instead; several may be given."),
    ] = None,
    call: Annotated[
        int | None, typer.Option("--call", metavar="INVOCATION", help="This tool call instead, with its result.")
    ] = None,
    name: Name = None,
    dry_run: DryRun = False,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Bring chosen messages to a branch: what a checkpoint added, messages by id, or a tool call. No tool runs."""
    given = list(words or ())
    with repository(db) as repo:
        session, branch, find = _meant(repo, given, messages, call)
        _wrap(repo, graph, session)
        what = find()
        plan = session.plan_cherry_pick(what, onto=branch)
        made = None if dry_run else session.agent(branch).cherry_pick(what, name=name)
        _tell(as_json, plan, made)


def _meant(
    repo: Repository, words: list[str], messages: list[str] | None, call: int | None
) -> tuple[Session, str | None, Callable[[], Any]]:
    """Return where something is to come, and what.

    Raises:
        InvalidInput: There is more than one thing, or none.
    """
    if sum((bool(messages), call is not None)) + (len(words) > 1) > 1:
        raise InvalidInput("Pick one thing: a place, or --message, or --call.")
    if not messages and call is None:
        if not words:
            raise InvalidInput("Say what is to come: a place like retry#3, or --message ID, or --call INVOCATION.")
        session, branch, place = references.last(repo, words)
        return session, branch, lambda: place
    session, branch = references.path(repo, words[0] if words else None)
    if call is None:
        return session, branch, lambda: messages or []
    return session, branch, lambda: _call(repo, session, call)


def _call(repo: Repository, session: Session, invocation: int) -> Any:
    for branch in session.branches():
        for one in session.tool_track(branch=branch):
            if one.id == invocation:
                return one
    raise NotFound(f"Session {session.name} has no tool call {invocation}. See: agentgit track --json")


def _wrap(repo: Repository, graph: str, session: Session) -> None:
    """Make the graph known whose reducers write what comes."""
    from agentgit.agents import user_modules  # takes a second, because it needs LangGraph

    import_from_here()
    repo.wrap(user_modules.graph_in(graph), session.reference)


def _tell(as_json: bool, plan: MergePlan, made: Checkpoint | None) -> None:
    """Write what comes, and the checkpoint that was made."""
    output.emit(
        as_json,
        lambda: {"plan": plan.to_dict(), "checkpoint": records.of_checkpoint(made) if made is not None else None},
        lambda width: [
            *merges.merge_lines(plan, width=width),
            *(logs.lines([made], width=width, zone=None) if made is not None and not plan.is_empty else []),
        ],
    )
