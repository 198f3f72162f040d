"""The commands that move sessions between databases: export and import."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentgit.cli import output, references
from agentgit.cli.options import (
    COMMAND_PATH,
    GLOBAL_OPTIONS,
    address,
    import_function,
    repository,
)
from agentgit.cli.output import bar
from agentgit.errors import InvalidInput
from agentgit.render.view import plain
from agentgit.render.views.maintenance import imported, transferred

if TYPE_CHECKING:
    from agentgit.checkpoints import Checkpoint
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.store.transfer.summary import TransferSummary

PIPE = "-"
"""The file that stands for standard output, or for standard input."""


def export(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[SESSION[@BRANCH] [REF]] FILE", help="What to export, and the file; - is standard output."
        ),
    ],
    files: Annotated[bool, typer.Option("--files", help="Include the files of the workspace.")] = False,
    redact: Annotated[
        bool, typer.Option("--redact", help="Replace the values of names that look like secrets, wherever they occur.")
    ] = False,
    redact_with: Annotated[
        str | None,
        typer.Option(
            "--redact-with",
            metavar="MODULE:NAME",
            help="A function that takes a text and returns it without secrets; with --redact.",
        ),
    ] = None,
    as_test: Annotated[
        bool, typer.Option("--as-test", help="Export one branch as a test for pytest; implies --redact.")
    ] = False,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="Write trajectories for training: a line for each AI message.")
    ] = False,
) -> None:
    *selection, file = words
    with repository() as repo, bar("exporting") as progress:
        if not selection and references.is_session(repo, file):
            raise InvalidInput(f"{file} is a session; name the file too: {COMMAND_PATH.get()} {file} FILE")
        session, branch, checkpoint = _parse_target(repo, selection)
        if trajectories:
            _write_trajectories(session.trajectories(branch=branch), file)
            return
        target = sys.stdout.buffer if file == PIPE else file
        if as_test and branch is None and checkpoint is None:
            branch = session.branch().name
        summary = session.export(
            target,
            branch=branch,
            checkpoint=checkpoint,
            files=files,
            redact=import_function(redact_with, "takes a text and returns it") or redact or as_test,
            progress=progress,
        )
    _print_summary("exported", summary, piped=file == PIPE)


Name = Annotated[str | None, typer.Option("--session", metavar="NAME", help="The name of the new session.")]
Folder = Annotated[
    str | None,
    typer.Option(
        "--workspace",
        metavar="FOLDER",
        help="The folder for the exported files; without it, they are left out.",
    ),
]


def import_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A file from `agentgit export`, or a JSON array of checkpoints; - is standard input. "
            "With --langgraph, the path or URL of the database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.",
        ),
    ],
    session: Name = None,
    workspace: Folder = None,
    langgraph: Annotated[
        bool,
        typer.Option("--langgraph", help="Import the threads of a LangGraph saver; run it again to add what is new."),
    ] = False,
    thread: Annotated[
        list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; repeatable.")
    ] = None,
    session_prefix: Annotated[
        str, typer.Option("--session-prefix", metavar="TEXT", help="The text before the thread id in a session's name.")
    ] = "",
    as_threads: Annotated[
        bool, typer.Option("--as-threads", help="Import them as threads of SQLModelSaver, not as sessions.")
    ] = False,
) -> None:
    if not langgraph:
        if thread or session_prefix or as_threads:
            raise InvalidInput("--thread, --session-prefix and --as-threads are for threads of LangGraph: --langgraph")
        _import_file(source, session, workspace)
        return

    with repository(create=True) as repo, bar("importing") as show:
        report = repo.import_langgraph(
            source,
            thread,
            None if show is None else lambda progress: show(progress.number, progress.threads),
            session_prefix=session_prefix,
            as_threads=as_threads,
            on_error="continue",
        )
    output.emit(report.to_dict, lambda: imported(report))
    for failure in report.failed:
        raise typer.Exit(failure.error.exit_code if failure.error else 1)  # the exit code of the first failed thread


def _import_file(file: str, session: str | None, workspace: str | None) -> None:
    from agentgit.repository import open

    source = sys.stdin.buffer if file == PIPE else file
    with (
        open(address(), user=GLOBAL_OPTIONS.get().user) as repo,
        bar("importing") as progress,
    ):
        summary = repo.import_(source, session=session, workspace=workspace, progress=progress)
    _print_summary("imported", summary)


def _write_trajectories(steps: Iterator[Any], file: str) -> None:
    lines = (f"{json.dumps(step)}\n" for step in steps)
    if file == PIPE:
        sys.stdout.writelines(lines)
    else:
        Path(file).write_text("".join(lines), encoding="ascii")


def _parse_target(repo: Repository, words: list[str]) -> tuple[Session, str | None, Checkpoint | None]:
    """Parse `[SESSION[@BRANCH] [REF]]`."""
    if len(words) > 2:
        raise InvalidInput(
            f"{' '.join(words)}: write at most a session, a reference and a file; put quotes around a name."
        )
    session, branch = references.parse_session(repo, words[0] if words else None, shows_session=True)
    if len(words) < 2:
        return session, branch, None
    return session, branch, session.get_checkpoint(words[1], branch=branch)


def _print_summary(verb: str, summary: TransferSummary, *, piped: bool = False) -> None:
    if piped:
        output.print_notice(plain(transferred(verb, summary)))
        return
    data: dict[str, Any] = summary.to_dict()
    output.emit(lambda: data, lambda: transferred(verb, summary))
