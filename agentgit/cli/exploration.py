"""The commands `explore` and `promote`: try alternatives, and continue with one of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import chat, output
from agentgit.cli.options import AsJson, Trust, Where, import_from_here, places_too, repository, usage
from agentgit.cli.rollback import Force, OnError, Yes, carried, switch
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.render.views import exploration as explorations

if TYPE_CHECKING:
    from agentgit.sessions.exploration import ExploredBranch

WAYS = 2
"""The default number of times that each step is run."""


def add_to(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command()(explore)
    app.command(cls=usage("[SESSION]", "BRANCH"))(promote)


def explore(
    graph: chat.Graph,
    session: chat.Continued = None,
    step: Annotated[
        list[str] | None, typer.Option("--step", metavar="TEXT", help="The message of a step; repeat it for each step.")
    ] = None,
    choices: Annotated[
        int | None, typer.Option("--choices", metavar="N", min=1, help="How often to run each --step; by default 2.")
    ] = None,
    choice: Annotated[
        list[str] | None, typer.Option("--choice", metavar="TEXT", help="A possible message of a step; repeatable.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", metavar="N", min=1, help="The number of steps with --choice; by default 1.")
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", metavar="MODULE:NAME", help="A function that scores a leaf; higher is better."),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="The name of the exploration; an interrupted one is continued."),
    ] = None,
    parallel: Annotated[
        int,
        typer.Option(
            "--parallel", metavar="N", min=0, help="The number of turns at once, if no tool changes the world."
        ),
    ] = 0,
    branch: chat.OnBranch = None,
    effects: chat.Effects = None,
    workspace: chat.Folder = None,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Try alternatives, each on a branch of its own, and compare the results."""
    said, ways = _laid(step, choices, choice, steps)
    import_from_here()
    with repository(db, create=True) as repo, carried(as_json):
        agent = chat.wrapped(repo, graph, session, branch=branch, effects=effects, workspace=workspace)
        try:
            found = agent.explore(said, ways, score=_judge(score) if score else None, parallel=parallel, name=name)
        except AgentGitError as error:
            for told in getattr(error, "__notes__", ()):
                output.note(told)  # where to find what was explored until then
            raise
        output.emit(as_json, found.to_dict, lambda width: explorations.lines(found, width=width))


def _laid(
    step: list[str] | None, choices: int | None, choice: list[str] | None, steps: int | None
) -> tuple[list[str] | int, int | list[str]]:
    """Return the messages of the steps, and the choices.

    Raises:
        InvalidInput: The options name none, or name them twice.
    """
    if step and not choice and steps is None:
        return step, choices or WAYS
    if choice and not step and choices is None:
        return steps or 1, choice
    raise InvalidInput(
        "Write what each step says, and how often it is gone: --step TEXT --choices 3. Or what a step may say, once "
        "for each way: --choice TEXT --choice TEXT."
    )


def _judge(path: str) -> Callable[[ExploredBranch], float]:
    """Return the function that scores leaves.

    Raises:
        InvalidInput: It is no function.
    """
    from agentgit.agents import user_modules

    judge: Callable[[ExploredBranch], float] = user_modules.value_in(path)
    if not callable(judge):
        raise InvalidInput(f"{path} cannot be called. Name a function that takes a leaf and gives a number.")
    return judge


def promote(
    target: Annotated[
        list[str],
        typer.Argument(metavar="[SESSION] BRANCH", autocompletion=places_too, help="The branch, by its name or id."),
    ],
    force: Force = False,
    yes: Yes = False,
    on_error: OnError = "stop",
    trust: Trust = None,
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Continue on an explored branch: run its tool calls again, so that the world matches it."""
    switch(target, "world", force, yes, on_error, trust, db, as_json)
