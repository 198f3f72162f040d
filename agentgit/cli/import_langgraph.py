"""`agentgit import-langgraph`: import the threads of LangGraph's own savers as sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from agentgit.cli import output
from agentgit.cli.options import AsJson, Where, repository

if TYPE_CHECKING:
    from agentgit.sessions.imports import Progress

STEP = 200
"""The number of graph checkpoints of a long thread between two lines of progress, where there is no terminal."""


def import_langgraph(
    source: Annotated[
        str, typer.Argument(metavar="PATH|URL", help="The database of SqliteSaver, AsyncSqliteSaver or PostgresSaver.")
    ],
    thread: Annotated[
        list[str] | None, typer.Option("--thread", metavar="ID", help="Only this thread; repeatable.")
    ] = None,
    session_prefix: Annotated[
        str, typer.Option("--session-prefix", metavar="TEXT", help="The text before the thread id in a session's name.")
    ] = "",
    db: Where = None,
    as_json: AsJson = False,
) -> None:
    """Import the threads of a LangGraph saver as sessions; run it again to add what is new."""
    from agentgit.render.views import imports

    with repository(db, create=True) as repo, _progress(as_json) as progress:
        report = repo.import_langgraph(source, thread, progress, session_prefix=session_prefix, on_error="continue")
    output.emit(as_json, report.to_dict, lambda _: imports.lines(report))
    for one in report.failed:
        raise typer.Exit(one.error.exit_code if one.error else 1)  # that of the first one that failed


@contextmanager
def _progress(as_json: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Show the progress: a bar in a terminal, lines elsewhere, nothing with --json."""
    if as_json:
        yield None
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        from rich.console import Console
        from rich.markup import escape
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        from agentgit.render.text import clean

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=None)

            def step(now: Progress) -> None:
                what = f"{now.number}/{now.threads} {escape(clean(now.thread_id))}"
                bar.update(task, description=what, completed=now.done, total=now.total or None)

            yield step


class _Lines:
    """Says which thread is read, and of a long one how far it is."""

    def __init__(self) -> None:
        self._said = 0

    def __call__(self, now: Progress) -> None:
        from agentgit.render.text import clean

        if not now.total:
            self._said = 0
            output.note(f"{now.number} of {now.threads}: {clean(now.thread_id)}")
        elif now.done - self._said >= STEP and now.done < now.total:
            self._said = now.done
            output.note(f"  {now.done} of {now.total} graph checkpoints")
