"""The commands for checkpoints and branches.

These are checkpoint, annotate, fork, rename, undo, redo, recover and explore.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output, references
from agentgit.cli.completion import complete_checkpoint
from agentgit.cli.options import (
    COMMAND_PATH,
    GROUP,
    Changed,
    Effects,
    Folder,
    Graph,
    SessionToContinue,
    Target,
    Trust,
    Yes,
    import_from_here,
    import_function,
    repository,
    usage,
)
from agentgit.cli.rollback import Force, OverwriteFiles, files_option, print_rollback, run_confirmed, show_plan_on_error
from agentgit.cli.rollback import NoFiles as RestoreNoFiles
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.next_steps import Next, Reason
from agentgit.render.records import record
from agentgit.render.text import clean, place
from agentgit.render.view import Span
from agentgit.render.views import lists
from agentgit.render.views.checkpoints import log
from agentgit.render.views.tree import exploration as show_exploration
from agentgit.sessions.session import RUNNING
from agentgit.values import count, quote_name

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.session import Session
    from agentgit.sessions import InternalSession

app = typer.Typer(**GROUP)

NoFiles = Annotated[bool, typer.Option("--no-files", help="Leave out the files of the workspace.")]


# -- checkpoints


@app.command(cls=usage("[SESSION[@BRANCH]]", "NAME"))
def create(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION[@BRANCH]] NAME",
            help="The name of the checkpoint; names may repeat. And its session, if there are several.",
        ),
    ],
    description: Annotated[str | None, typer.Option(metavar="TEXT", help="A description of the checkpoint.")] = None,
    no_files: NoFiles = False,
) -> None:
    """Create a checkpoint with a name at the head of a branch."""
    with repository() as repo:
        session, branch, name = references.parse_changed_at(repo, words, "NAME")
        checkpoint = session.checkpoint(name, branch=branch, description=description, files=not no_files)
        _print_checkpoint(session, checkpoint)


@app.command(cls=usage("[SESSION[@BRANCH]]", "[REF]"))
def delete(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION[@BRANCH]] [REF]",
            autocompletion=complete_checkpoint,
            help="The checkpoint; or with --auto or --all, a session or one of its branches.",
        ),
    ] = None,
    auto: Annotated[bool, typer.Option("--auto", help="Delete the automatic checkpoints but the newest.")] = False,
    keep: Annotated[int, typer.Option("--keep", metavar="N", min=0, help="How many --auto keeps.")] = 5,
    every: Annotated[bool, typer.Option("--all", help="Delete all, named ones included.")] = False,
    yes: Yes = False,
) -> None:
    """Delete checkpoints that nothing needs; the conversation and the tool track stay."""
    if len(words or ()) > 2 - (auto or every) or (not words and not (auto or every)) or (auto and every):
        raise InvalidInput(f"Name a checkpoint: {COMMAND_PATH.get()} [SESSION] REF. Or write --auto, or --all.")
    with repository() as repo:
        if auto or every:
            session, branch = references.parse_changed(repo, words[0] if words else None)
            _delete_many(session, branch, None if every else keep, yes=yes)
            return
        session, branch, ref = references.parse_changed_at(repo, words or [], "REF")
        checkpoint = session.get_checkpoint(ref, branch=branch)
        label = f"{clean(checkpoint.metadata['reference'])} of {place(session.reference)}"
        output.confirm(f"Delete {label}?", yes=yes)
        deleted = session.delete_checkpoint(checkpoint)
        data = {"session_name": session.reference, **record(deleted)}
        output.line(lambda: data, f"{label} is deleted")


def _delete_many(session: Session, branch: str | None, keep: int | None, *, yes: bool) -> None:
    """Delete the automatic checkpoints of a branch but the newest; or if none are to be kept, all checkpoints."""
    if keep is not None:
        branch = session.branch(branch).name
        number = session.cleanup_auto_checkpoints(branch=branch, keep=keep)
    else:
        branch = session.branch(branch).name if branch is not None else None
        output.confirm(f"Delete all checkpoints of {place(session.reference, branch)} that nothing needs?", yes=yes)
        number = len(session.retention.clear(branch=branch).gone)
    text = f"{count(number, 'checkpoint')} deleted"
    output.emit_at(session, branch, lambda: {"deleted": number}, lambda: [(Span(text),)])


def annotate(
    target: Target,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="The new name; names may repeat. '' removes it.")
    ] = None,
    description: Annotated[
        str | None, typer.Option("--description", metavar="TEXT", help="The new description; '' removes it.")
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="JSON", help="The new data, for programs; null removes it.")
    ] = None,
) -> None:
    if name is None and description is None and data is None:
        raise InvalidInput("There is nothing to change. Add --name NAME, --description TEXT or --data JSON.")
    with repository() as repo:
        session, branch, ref = references.parse_changed_at(repo, target, "REF")
        checkpoint = session.annotate(
            ref,
            branch=branch,
            name=... if name is None else name or None,
            description=... if description is None else description or None,
            data=... if data is None else output.parse_json(data, "--data"),
        )
        _print_checkpoint(session, checkpoint)


def _print_checkpoint(session: Session, checkpoint: Checkpoint) -> None:
    output.emit_at(
        session,
        checkpoint.metadata["branch"],
        lambda: record(checkpoint),
        lambda: log([checkpoint]),
    )


# -- branches


def fork(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[SESSION[@BRANCH]] [REF]",
            autocompletion=complete_checkpoint,
            help="The checkpoint to fork from; by default the head of the branch.",
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the new branch.")] = None,
    new_session: Annotated[
        str | None,
        typer.Option("--session", metavar="NEW", help="Create a session instead, with a world of its own."),
    ] = None,
    no_files: NoFiles = False,
) -> None:
    with repository() as repo:
        session, branch, ref = references.parse_changed_optional(repo, list(words or ()))
        if new_session is not None:
            template = session.get_checkpoint(ref or "HEAD", branch=branch)
            info = repo.session(new_session, create=True, template=template).info
            output.emit(lambda: record(info), lambda: lists.sessions([info]))
            return
        report = session.fork(ref, branch=branch, name=name, files=not no_files)
        _print_branch(session, session.branch(report.branch))


def rename(
    words: Annotated[
        list[str], typer.Argument(metavar="[SESSION[@BRANCH]] NAME", help="The session or branch, and its new name.")
    ],
) -> None:
    with repository() as repo:
        session, branch, name = references.parse_changed_at(repo, words, "NAME")
        if branch is not None:
            _print_branch(session, session.rename_branch(branch, name))
            return
        old_name, renamed = session.reference, session.rename(name)
        text = f"{place(old_name)} is now called {clean(quote_name(renamed.session_name))}"
        output.line(lambda: record(renamed), text)


def _print_branch(session: Session, branch: InternalSession) -> None:
    tree = session.tree()
    output.emit_at(
        session,
        None,
        lambda: record(branch),
        lambda: lists.branches([branch], tree),
    )


# -- undo and redo


def undo(
    session_ref: Changed = None,
    steps: Annotated[
        int, typer.Option("--steps", "-n", metavar="N", min=1, help="The number of turns to go back.")
    ] = 1,
    no_files: RestoreNoFiles = False,
    overwrite_files: OverwriteFiles = False,
    force: Force = False,
    yes: Yes = False,
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo, show_plan_on_error():
        session, branch = references.parse_changed(repo, session_ref)
        files = files_option(no_files, overwrite_files)
        plan = session.plan_undo(steps, branch=branch, files=files)
        run = partial(session.undo, steps, branch=branch, files=files, force=force)
        print_rollback(run_confirmed(plan, run, "Undo in", yes=yes, force=force))


def redo(
    session_ref: Changed = None,
    force: Force = False,
    yes: Yes = False,
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo, show_plan_on_error():
        session, branch = references.parse_changed(repo, session_ref)
        plan, run = session.plan_redo(branch=branch), partial(session.redo, branch=branch, force=force)
        print_rollback(run_confirmed(plan, run, "Redo in", yes=yes, force=force))


# -- recovery and exploration


def recover(
    session_ref: Changed = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Recover the branch even if its process still runs on this machine, for example because it hangs.",
        ),
    ] = False,
) -> None:
    with repository() as repo:
        session, branch_name = references.parse_changed(repo, session_ref)
        branch = session.branch(branch_name)
        running = [one for one in session.operations() if one.status == RUNNING]
        is_running = branch.status == RUNNING or any(one.internal_session_id == branch.id for one in running)
        recovered = session.recover(branch=branch, force=force)
        if not is_running:
            label = place(session.reference, branch.name)
            output.print_notice(f"Nothing to recover: no turn and no rollback is unfinished in {label}.")
            for one in running:
                reason = Reason(
                    f"{one.kind} {one.id} of another branch is unfinished", Next("resume", operation=one.id)
                )
                output.print_notice(reason.worded(output.medium().face))
        _print_branch(session, recovered)


DEFAULT_CHOICES = 2
"""The default number of times that each step is run."""


def explore(
    graph: Graph,
    session: SessionToContinue = None,
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
            "--parallel",
            metavar="N",
            min=0,
            help="The number of turns that run at the same time, if no tool changes the world.",
        ),
    ] = 0,
    effects: Effects = None,
    workspace: Folder = None,
) -> None:
    planned_steps, planned_choices = _steps_and_choices(step, choices, choice, steps)
    import_from_here()
    with repository(create=True) as repo, show_plan_on_error():
        agent = references.wrap_graph(repo, graph, session, effects=effects, workspace=workspace)
        try:
            exploration = agent.explore(
                planned_steps,
                planned_choices,
                score=import_function(score, "takes a leaf and returns a number"),
                parallel=parallel,
                name=name,
            )
        except AgentGitError as error:
            for error_note in getattr(error, "__notes__", ()):
                output.print_notice(
                    clean(Reason.of(error_note).worded(output.medium().face))
                )  # says how to read the results so far
            raise
        output.emit_at(
            agent.session,
            None,
            exploration.to_dict,
            lambda: show_exploration(exploration),
        )


def _steps_and_choices(
    step: list[str] | None, choices: int | None, choice: list[str] | None, steps: int | None
) -> tuple[list[str] | int, int | list[str]]:
    """Return the steps and the choices, as `RollbackAgent.explore` takes them."""
    if step and not choice and steps is None:
        return step, choices or DEFAULT_CHOICES
    if choice and not step and choices is None:
        return steps or 1, choice
    raise InvalidInput(
        "Give the message of each step, and how often to run it: --step TEXT --choices 3. Or give the possible "
        "messages of a step: --choice TEXT --choice TEXT."
    )
