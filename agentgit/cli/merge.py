"""`agentgit merge`: copies messages and values between branches, through the graph's reducers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.options import import_from_here, repository
from agentgit.errors import MergeConflict
from agentgit.render.records import record
from agentgit.render.views.checkpoints import log
from agentgit.render.views.diff import merge as show_merge

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.checkpoints.merge import MergePlan
    from agentgit.repository import Repository

Graph = Annotated[
    str, typer.Argument(metavar="MODULE:GRAPH", help="Your compiled graph, or a function that returns it.")
]
Words = Annotated[
    list[str],
    typer.Argument(metavar="[SESSION[@BRANCH]] REF", help="The target branch, and the branch or checkpoint to add."),
]
Name = Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the new checkpoint.")]
Resolve = Annotated[
    list[str] | None,
    typer.Option(
        "--resolve",
        metavar="[KEY=]SIDE",
        help="The side to take, ours or theirs, for all conflicts or for one key; repeatable.",
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan, and change nothing.")]


def merge(
    graph: Graph,
    words: Words,
    resolve: Resolve = None,
    name: Name = None,
    only: Annotated[
        bool, typer.Option("--only", help="Copy only what this one checkpoint changed, as git's cherry-pick does.")
    ] = False,
    dry_run: DryRun = False,
) -> None:
    with repository() as repo:
        agent, ref, choices = _parse(repo, graph, words, resolve)
        verb = agent.cherry_pick if only else agent.merge
        plan = verb(ref, resolve=choices, dry_run=True)
        _run(plan, lambda: verb(ref, resolve=choices, name=name), dry_run)
        if not dry_run:
            output.MERGED.set(agent.branch_id)


def _parse(
    repo: Repository, graph: str, words: list[str], resolve: Sequence[str] | None
) -> tuple[Any, str, dict[str, str]]:
    """Wrap the graph, whose reducers write the merged values; return an agent, the reference and the choices."""
    from agentgit.agents import user_modules  # imported late, because loading LangGraph takes a second

    session, branch, ref = references.parse_changed_at(repo, words, "REF")
    import_from_here()
    repo.wrap(user_modules.graph_in(graph), session.reference)
    return session.agent(branch), ref, _choices(resolve or ())


def _choices(values: Sequence[str]) -> dict[str, str]:
    """Parse the values of --resolve.

    Example:
        >>> _choices(["ours", "note=theirs"])
        {'*': 'ours', 'note': 'theirs'}
    """
    parts = (text.rpartition("=") for text in values)
    return {key if equals else "*": side for key, equals, side in parts}


def _run(plan: MergePlan, run: Callable[[], Checkpoint], dry_run: bool) -> None:
    try:
        checkpoint = None if dry_run else run()
    except MergeConflict as error:
        _print_merge(error.plan, None)
        raise
    _print_merge(plan, checkpoint)


def _print_merge(plan: MergePlan, checkpoint: Checkpoint | None) -> None:
    output.emit(
        lambda: {
            "plan": plan.to_dict(),
            "checkpoint": record(checkpoint) if checkpoint is not None else None,
        },
        lambda: [*show_merge(plan), *(log([checkpoint]) if checkpoint is not None and not plan.is_empty else [])],
    )
