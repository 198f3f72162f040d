"""The commands that plan and run rollbacks and switches, and those that finish interrupted ones."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.completion import complete_checkpoint
from agentgit.cli.options import (
    Target,
    Trust,
    Yes,
    repository,
)
from agentgit.cli.output import HOST
from agentgit.effects import RollbackPlan, RollbackReport
from agentgit.errors import PlanChanged, RollbackBlocked, RollbackIncomplete
from agentgit.next_steps import Next
from agentgit.render.records import record
from agentgit.render.text import clean, place
from agentgit.render.view import Span
from agentgit.render.views.conversation import calls
from agentgit.render.views.rollback import file_changes
from agentgit.render.views.rollback import outcome as view_outcome

if TYPE_CHECKING:
    from agentgit.rollback.request import FilesOption  # loads the engine

Tools = Annotated[
    str,
    typer.Option(
        "--tools",
        metavar="WHAT",
        help="What to do with later effects: reverse, reversible (only reversible ones), keep, or require_clean "
        "(refuse if there are any).",
    ),
]
Replay = Annotated[
    str,
    typer.Option(
        "--replay",
        metavar="HOW",
        help="How to replay earlier calls: record (use their results), redo (run reversed ones) or execute (run all).",
    ),
]
NoFiles = Annotated[bool, typer.Option("--no-files", help="Do not restore the files of the workspace.")]
OverwriteFiles = Annotated[
    bool, typer.Option("--overwrite-files", help="Also restore files that a turn and somebody else have changed.")
]
NoConversation = Annotated[
    bool, typer.Option("--no-conversation", help="Do not roll back the conversation, and create no branch.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Keep effects that cannot be reversed or run again, and files that others have changed, too."
    ),
]
OnError = Annotated[
    str,
    typer.Option(
        "--on-error", metavar="WHAT", help="What to do when an undo or a tool fails: stop, or continue with the others."
    ),
]


# -- plan and run


def plan(
    target: Target,
    tools: Tools = "reverse",
    no_files: NoFiles = False,
    overwrite_files: OverwriteFiles = False,
    replay: Replay = "record",
    no_conversation: NoConversation = False,
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo:
        session, branch, ref = references.parse_changed_at(repo, target, "REF")
        files = files_option(no_files, overwrite_files)
        options: dict[str, Any] = {"files": files, "conversation": not no_conversation}
        options |= {"tools": tools, "replay": replay}
        print_rollback(session.plan_rollback(ref, branch=branch, **options))


def rollback(
    target: Target,
    tools: Tools = "reverse",
    no_files: NoFiles = False,
    overwrite_files: OverwriteFiles = False,
    replay: Replay = "record",
    no_conversation: NoConversation = False,
    name: Annotated[str | None, typer.Option("--name", metavar="NAME", help="The name of the new branch.")] = None,
    force: Force = False,
    yes: Yes = False,
    on_error: OnError = "stop",
    on_drift: Annotated[
        str,
        typer.Option(
            "--on-drift",
            metavar="WHAT",
            help="What to do when a call that runs again returns another result: stop or continue.",
        ),
    ] = "stop",
    request_id: Annotated[
        str | None,
        typer.Option(
            "--request-id",
            metavar="ID",
            help="Your id for this rollback; another rollback with the same id returns the same branch.",
        ),
    ] = None,
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo, show_plan_on_error():
        session, branch, ref = references.parse_changed_at(repo, target, "REF")
        files = files_option(no_files, overwrite_files)
        options: dict[str, Any] = {"files": files, "conversation": not no_conversation}
        options |= {"tools": tools, "replay": replay}
        run = partial(
            session.rollback,
            ref,
            branch=branch,
            name=name,
            force=force,
            on_error=on_error,
            on_drift=on_drift,
            request_id=request_id,
            **options,
        )
        plan = session.plan_rollback(ref, branch=branch, **options)
        print_rollback(run_confirmed(plan, run, "Roll back", yes=yes, force=force))


def rewind_files(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION[@BRANCH]] RESTORE_POINT",
            autocompletion=complete_checkpoint,
            help="The id of a user's message, or a checkpoint; and its session, if there are several.",
        ),
    ],
    overwrite_files: OverwriteFiles = False,
    force: Annotated[bool, typer.Option("--force", help="Leave files that a turn and others have changed.")] = False,
    yes: Yes = False,
) -> None:
    with repository() as repo, show_plan_on_error():
        session, branch, ref = references.parse_changed_at(repo, target, "RESTORE_POINT")
        branch_name = session.branch(branch).name
        files = files_option(False, overwrite_files)
        plan = session.plan_rewind(ref, branch=branch, files=files)
        run = partial(session.rewind_files, ref, branch=branch, files=files, force=force)
        changes = run_confirmed(plan, run, "Restore the files of", yes=yes)
        output.emit_at(session, branch_name, changes.to_dict, lambda: file_changes(changes))


def switch(
    target: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION] BRANCH",
            autocompletion=complete_checkpoint,
            help="The branch, by its name or id; and its session, if there are several.",
        ),
    ],
    sync: Annotated[
        str | None,
        typer.Option(
            "--sync",
            metavar="HOW",
            help="What to do about the world: world (change it to match the branch), note (tell the model) or ignore.",
        ),
    ] = None,
    force: Force = False,
    yes: Yes = False,
    on_error: OnError = "stop",
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo, show_plan_on_error():
        session, _, branch = references.parse_changed_at(repo, target, "BRANCH")
        run = partial(session.switch, branch, sync=sync, force=force, on_error=on_error)
        if sync == "world":
            report = run_confirmed(session.plan_switch(branch), run, "Switch to", yes=yes, force=force)
        else:
            report = run(plan=None)
        if sync is not None:
            print_rollback(report)
            return
        output.REPORT.set(report)
        current = session.branch()
        line = (Span(clean(current.name), "head"), Span(" is the current branch; the world is unchanged"))
        output.emit_at(session, None, lambda: record(current), lambda: [line])


# -- interrupted operations


def resume(
    operation: Annotated[int, typer.Argument(metavar="OPERATION", help="The id that `agentgit status` shows.")],
    force: Annotated[bool, typer.Option("--force", help="Finish without the steps that still fail.")] = False,
    yes: Yes = False,
    trust: Trust = None,
) -> None:
    with repository(trust=trust) as repo, show_plan_on_error():
        run = partial(repo.resume, repo.operation(operation), force=force)
        try:
            report = run()
        except PlanChanged as changed:
            report = run_confirmed(changed.plan, run, "Resume in", yes=yes, force=force)
        print_rollback(report)


def resolve(
    invocation: Annotated[int, typer.Argument(metavar="INVOCATION", help="The id that `agentgit tool-track` shows.")],
    outcome: Annotated[str, typer.Argument(metavar="happened|did-not-happen", help="Whether the call happened.")],
    result: Annotated[
        str | None,
        typer.Option("--result", metavar="JSON", help="The return value of the call, for its undo function."),
    ] = None,
) -> None:
    return_value = output.parse_json(result, "--result") if result is not None else None
    with repository() as repo:
        call = repo.resolve(invocation, outcome.replace("-", "_"), result=return_value)
        output.emit(call.to_dict, lambda: calls([call]))


# -- shared helpers


def files_option(no_files: bool, overwrite_files: bool) -> FilesOption:
    return "overwrite" if overwrite_files else not no_files


def run_confirmed(plan: RollbackPlan, run: Callable[..., Any], verb: str, *, yes: bool, force: bool = False) -> Any:
    """Show a plan, ask for confirmation, and run that plan; at a terminal, ask again if another one would be run.

    A blocked plan is not asked about, because it raises an error; a notebook or a chat asks only before a change.
    """
    while True:
        shown = plan.forced() if force else plan
        if shown.is_admissible and (shown.changes_world or HOST.get() is None):
            question = f"{verb} {place(plan.session_name, plan.branch)}?"
            output.confirm(question, partial(print_rollback, shown), yes=yes)
        try:
            return run(plan=plan)
        except KeyboardInterrupt:
            step = Next("list_operations").worded(output.medium().face)
            output.print_notice(f"Interrupted, perhaps half way. {step}.")
            raise
        except PlanChanged as changed:
            if yes or not sys.stdin.isatty():
                raise
            output.print_notice(clean(changed.message))
            plan = changed.plan


def print_rollback(value: RollbackPlan | RollbackReport) -> None:
    if isinstance(value, RollbackReport):
        output.REPORT.set(value)
    output.emit(value.to_dict, lambda: view_outcome(value), value)


@contextmanager
def show_plan_on_error() -> Iterator[None]:
    """Write the plan or report of an error before the error itself."""
    try:
        yield
    except (PlanChanged, RollbackBlocked) as error:
        print_rollback(error.plan)
        raise
    except RollbackIncomplete as error:
        print_rollback(error.report)
        raise
