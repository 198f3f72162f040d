"""`agentgit merge` and `cherry-pick`: copy messages and values between branches, through the graph's reducers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.options import AsJson, DatabaseOption, import_from_here, repository, usage
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
    str, typer.Argument(metavar="MODULE:GRAPH", help="Your compiled graph, or a function that returns it.")
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the new checkpoint.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(cls=usage("MODULE:GRAPH", "[SESSION[@BRANCH]]", "REF"))(merge)
    app.command("cherry-pick", cls=usage("MODULE:GRAPH", "[SESSION[@BRANCH]]", "[REF]"))(cherry_pick)


def merge(
    graph: Graph,
    words: Annotated[
        list[str],
        typer.Argument(metavar="[SESSION[@BRANCH]] REF", help="The target branch, and the branch to merge."),
    ],
    resolve: Annotated[
        list[str] | None,
        typer.Option(
            "--resolve",
            metavar="[KEY=]SIDE",
            help="The side to take, ours or theirs, for all conflicts or for one key; repeatable.",
        ),
    ] = None,
    name: Name = None,
    dry_run: DryRun = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Merge the messages and values of another branch; no tool runs."""
    choices = _choices(resolve or ())
    with repository(db) as repo:
        session, branch, ref = references.parse_changed_at(repo, words, "REF")
        _wrap_graph(repo, graph, session)
        plan = session.plan_merge(ref, into=branch, resolve=choices)
        try:
            checkpoint = None if dry_run else session.agent(branch).merge(ref, resolve=choices, name=name)
        except MergeConflict as error:
            _print_merge(as_json, error.plan, None)
            raise
        _print_merge(as_json, plan, checkpoint)


def _choices(values: Sequence[str]) -> dict[str, Choice]:
    """Parse the values of --resolve.

    Example:
        >>> _choices(["ours", "note=theirs"])
        {'*': 'ours', 'note': 'theirs'}
    """
    parts = (text.rpartition("=") for text in values)
    return {key if equals else "*": side for key, equals, side in parts}


def cherry_pick(
    graph: Graph,
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="[SESSION[@BRANCH]] [REF]", help="The target branch, and the checkpoint to pick."),
    ] = None,
    messages: Annotated[
        list[str] | None,
        typer.Option("--message", metavar="ID", help="Pick the message with this id instead; repeatable."),
    ] = None,
    call: Annotated[
        int | None, typer.Option("--call", metavar="INVOCATION", help="Pick this tool call and its result instead.")
    ] = None,
    name: Name = None,
    dry_run: DryRun = False,
    db: DatabaseOption = None,
    as_json: AsJson = False,
) -> None:
    """Copy messages to a branch: those of a checkpoint, of a tool call, or with given ids; no tool runs."""
    arguments = list(words or ())
    with repository(db) as repo:
        session, branch, load_source = _parse_target(repo, arguments, messages, call)
        _wrap_graph(repo, graph, session)
        source = load_source()
        plan = session.plan_cherry_pick(source, onto=branch)
        checkpoint = None if dry_run else session.agent(branch).cherry_pick(source, name=name)
        _print_merge(as_json, plan, checkpoint)


def _parse_target(
    repo: Repository, words: list[str], messages: list[str] | None, call: int | None
) -> tuple[Session, str | None, Callable[[], Any]]:
    """Return the target session and branch, and a function that returns what to pick."""
    if sum((bool(messages), call is not None)) + (len(words) > 1) > 1:
        raise InvalidInput("Pick one thing: a reference, or --message, or --call.")
    if not messages and call is None:
        if not words:
            raise InvalidInput("Name what to pick: a reference like retry#3, or --message ID, or --call INVOCATION.")
        session, branch, ref = references.parse_changed_at(repo, words, "REF")
        return session, branch, lambda: ref
    session, branch = references.parse_changed(repo, words[0] if words else None)
    if call is None:
        return session, branch, lambda: messages or []
    return session, branch, lambda: _find_call(repo, session, call)


def _find_call(repo: Repository, session: Session, invocation: int) -> Any:
    for branch in session.branches():
        for call in session.tool_track(branch=branch):
            if invocation in (call.id, call.first_id):
                return call
    raise NotFound(f"Session {session.name} has no tool call {invocation}. See: agentgit tool-track --json")


def _wrap_graph(repo: Repository, graph: str, session: Session) -> None:
    """Wrap the graph, whose reducers write the merged values."""
    from agentgit.agents import user_modules  # imported late, because loading LangGraph takes a second

    import_from_here()
    repo.wrap(user_modules.graph_in(graph), session.reference)


def _print_merge(as_json: bool, plan: MergePlan, checkpoint: Checkpoint | None) -> None:
    """Write the plan, and the checkpoint that was created."""
    output.emit(
        as_json,
        lambda: {
            "plan": plan.to_dict(),
            "checkpoint": records.of_checkpoint(checkpoint) if checkpoint is not None else None,
        },
        lambda width: [
            *merges.merge_lines(plan, width=width),
            *(
                logs.lines([checkpoint], width=width, zone=output.zone())
                if checkpoint is not None and not plan.is_empty
                else []
            ),
        ],
    )
