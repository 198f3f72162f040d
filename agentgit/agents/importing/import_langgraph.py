"""The import of the threads of a saver or of its database, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from sqlalchemy import URL

from agentgit.agents.importing.plain_thread import PlainThreadImport
from agentgit.agents.importing.readers import Source, open_database, source_of
from agentgit.agents.importing.thread import OnStep, ThreadImport
from agentgit.errors import AgentGitError, InvalidInput
from agentgit.handles.context import Context
from agentgit.sessions.reports import FAILED, ImportReport, Progress, ThreadReport

OnProgress = Callable[[Progress], None]


def import_langgraph(
    context: Context,
    saver_or_url: Any,
    *,
    threads: Sequence[str] | None,
    progress: OnProgress | None,
    session_prefix: str,
    as_threads: bool,
    on_error: str,
) -> ImportReport:
    """Import threads; see `Repository.import_langgraph`."""
    if on_error not in ("stop", "continue"):
        raise InvalidInput(f"on_error must be 'stop' or 'continue', not {on_error!r}.")
    if isinstance(threads, str):
        raise InvalidInput(f"threads must be a list of thread ids; write [{threads!r}].")
    if as_threads and session_prefix:
        raise InvalidInput("A prefix names sessions, but threads were to stay threads. Choose one of the two.")
    reports: list[ThreadReport] = []
    with _open_source(saver_or_url) as source:
        thread_ids = [str(thread) for thread in threads] if threads is not None else source.threads()
        for number, thread in enumerate(thread_ids, 1):
            on_step = _begin_progress(progress, thread, number, len(thread_ids))
            name = None if as_threads else session_prefix + thread
            try:
                if name is None:
                    reports.append(PlainThreadImport(context.store, source, thread, on_step).run())
                else:
                    reports.append(ThreadImport(context, source, thread, name, on_step).run())
            except AgentGitError as error:
                if on_error == "stop":
                    raise
                reports.append(ThreadReport(thread_id=thread, session_name=name, status=FAILED, error=error))
    return ImportReport(reports)


def _begin_progress(progress: OnProgress | None, thread_id: str, number: int, thread_count: int) -> OnStep:
    """Return a function that reports the progress of one thread, and report that its import begins."""

    def report_step(done: int, total: int) -> None:
        if progress is not None:
            progress(Progress(thread_id=thread_id, number=number, threads=thread_count, done=done, total=total))

    report_step(0, 0)
    return report_step


def _open_source(saver_or_url: Any) -> Source:
    if isinstance(saver_or_url, BaseCheckpointSaver):
        return source_of(saver_or_url)
    if isinstance(saver_or_url, (str, Path, URL)):
        return open_database(saver_or_url)
    raise InvalidInput(f"{type(saver_or_url).__name__} is not a saver; give a LangGraph checkpointer, a path or a URL.")


def import_thread(context: Context, graph: Any, session: str, thread_id: str) -> ThreadReport:
    """Import one thread of the saver that a graph was compiled with; see `Repository.wrap`."""
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        raise InvalidInput(
            f"thread_id={thread_id!r} names a thread of the graph's own saver, but the graph was compiled without one. "
            "Compile it with that saver: graph.compile(checkpointer=…), or leave thread_id out."
        )
    with source_of(graph.checkpointer) as source:
        return ThreadImport(context, source, str(thread_id), session, channels=graph.channels).run()
