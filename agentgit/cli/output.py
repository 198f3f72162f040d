"""Output of the commands: lines in colours for a terminal, plain text for everything else, JSON for programs."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO

import typer

from agentgit.errors import AgentGitError, InvalidInput
from agentgit.next_steps import Face
from agentgit.render.html import escape
from agentgit.render.records import record
from agentgit.render.text import clean, place, visible
from agentgit.render.view import ASCII, Medium, Span, View
from agentgit.values import TableList, portable

if TYPE_CHECKING:
    from agentgit.agents.agent import RollbackAgent
    from agentgit.effects import RollbackReport
    from agentgit.handles.session import Session
    from agentgit.repository import Repository
    from agentgit.sessions import InternalSession
    from agentgit.sessions.reports import OnProgress


class Host(Protocol):
    """A program that runs commands: a notebook or a chat."""

    face: Face
    """Whose words are shown."""
    yes: bool
    """True if nobody is to be asked."""

    def repository(self) -> Repository:
        """Return the repository for commands that name no database."""

    def session(self, *, changes: bool) -> tuple[Session, str] | None:
        """Return the session and branch for commands that name none; None if there is no such session."""

    def show(self, value: Any, view: View) -> None:
        """Show a result: its value, or the view of it if there is none."""

    def ask(self, question: str) -> bool:
        """Ask a yes-or-no question."""

    def agents(self) -> list[RollbackAgent]:
        """Return the agents that follow the commands."""

    def move(self, agent: RollbackAgent, branch: InternalSession) -> None:
        """Continue on another branch with an agent that follows the commands."""


HOST: ContextVar[Host | None] = ContextVar("agentgit_host", default=None)
"""The program that runs the commands; None for a terminal."""

REPORT: ContextVar[RollbackReport | None] = ContextVar("agentgit_report", default=None)
"""What the running command has done, which the agents of its host follow."""


MERGED: ContextVar[int | None] = ContextVar("agentgit_merged", default=None)
"""The id of the branch whose head the running command has moved, which the agents of its host on it follow."""

VARIABLES = ("AGENTGIT_PAGER", "PAGER")
"""The environment variables that name the pager; the first that is set counts. An empty one turns it off."""

LESS_OPTIONS = "FRX"
"""The options of `less`, if $LESS does not set them: leave if all fits, show colours, keep the screen."""


def find_pager() -> list[str]:
    """Return the command of the pager; an empty list if there is none."""
    command = next((os.environ[name] for name in VARIABLES if name in os.environ), "less")
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    return words if words and words != ["cat"] and shutil.which(words[0]) else []


def _is_paged(text: str) -> bool:
    """Show a text in the pager, if it is longer than the terminal; return whether it was shown."""
    command = find_pager() if sys.stdout.isatty() and sys.stdin.isatty() else []
    if not command or text.count("\n") < shutil.get_terminal_size().lines:
        return False
    environment = {"LESS": LESS_OPTIONS, "LV": "-c", **os.environ}
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603  # the user's own pager
    except OSError:
        return False
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the user has left the pager early
        process.communicate(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    while process.poll() is None:
        with suppress(KeyboardInterrupt):  # Ctrl-C is a key of the pager
            process.wait()
    return True


COLOURS = {
    "heading": "bold",
    "reference": "yellow",
    "name": "bold magenta",
    "head": "bold cyan",
    "dim": "dim",
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "bad": "bold red",
}
"""The terminal style for each span style of `agentgit.render`."""


class Settings(NamedTuple):
    """Settings for the display of results."""

    dates: str = "auto"
    has_pager: bool = True


SETTINGS: ContextVar[Settings] = ContextVar("agentgit_output", default=Settings())  # noqa: B039  # the default is immutable


JSON: ContextVar[bool] = ContextVar("agentgit_json", default=False)
"""Whether results, and errors, are written as JSON."""


def as_json() -> bool:
    return JSON.get()


def medium() -> Medium:
    """Return how to show views: as wide as the terminal, at least 40 cells, or 100 if that is unknown.

    By default, times are relative to now in a terminal, and exact in a pipe or a file.
    """
    dates, host = SETTINGS.get().dates, HOST.get()
    is_relative = dates == "relative" or (dates == "auto" and sys.stdout.isatty())
    width = max(40, shutil.get_terminal_size((100, 24)).columns)
    return Medium(width, datetime.now(UTC) if is_relative else None, "cli" if host is None else host.face)


def emit(data: Callable[[], Any], view: Callable[[], View], value: Any = None) -> None:
    """Write one result, as JSON or as text. A notebook shows the value itself, if there is one."""
    if as_json():
        _write(sys.stdout, dump(data(), indent=2))
    elif (host := HOST.get()) is not None:
        host.show(value, view())
    else:
        text = _rendered(view())
        if not (SETTINGS.get().has_pager and _is_paged(text)):
            sys.stdout.write(text)


def emit_list(values: Sequence[Any], view: Callable[[Any], View], to_data: Callable[[Any], Any] = record) -> None:
    """Write a list of values; a notebook shows it as a table, if it is one. See `emit`."""
    value = values if isinstance(values, TableList) else None
    emit(lambda: [to_data(one) for one in values], lambda: view(values), value)


def dump(data: Any, indent: int | None = None) -> str:
    """Return a value as JSON in pure ASCII, which contains no control codes and which every encoding can represent."""
    return json.dumps(portable(data), indent=indent).replace("\x7f", "\\u007f")


def emit_at(session: Session, branch: str | None, data: Callable[[], Any], view: Callable[[], View]) -> None:
    """Write the result of a change, which begins with the session and the branch that have changed; see `emit`."""
    name = session.reference
    emit(
        lambda: {"session_name": name, **({"branch": branch} if branch else {}), **data()},
        lambda: [(Span(place(name, branch), "dim"),), *view()],
    )


def line(data: Callable[[], Any], text: str) -> None:
    """Write a result whose text form is one line; see `emit`."""
    emit(data, lambda: [(Span(text),)])


def page(title: str, content: str) -> None:
    """Write an HTML page in pure ASCII, so that its encoding does not matter."""
    text = f"<!doctype html>\n<title>{escape(title)}</title>\n{content}"
    _write(sys.stdout, text.encode("ascii", "xmlcharrefreplace").decode("ascii"))


def show(view: View, face: Face | None = None) -> None:
    """Write a view to standard output, in colour where that is supported."""
    sys.stdout.write(_rendered(view, face))


def _rendered(view: View, face: Face | None = None) -> str:
    here = medium() if face is None else replace(medium(), face=face)
    if not _supports_colours(sys.stdout):
        return f"{encodable(here.text(view), sys.stdout)}\n"
    from rich.console import Console
    from rich.text import Text

    written = io.StringIO()
    console = Console(file=written, force_terminal=True, highlight=False, markup=False, emoji=False)
    for line in here.lines(view):
        # Text objects are never parsed as markup, whatever they contain.
        text = Text.assemble(*((encodable(span.text, sys.stdout), COLOURS.get(span.style, "")) for span in line))
        console.print(text, soft_wrap=True)
    return written.getvalue()


def say(text: str) -> None:
    show([(Span(visible(line)),) for line in text.splitlines() or [""]])


def stream(text: str) -> None:
    sys.stdout.write(encodable(visible(text), sys.stdout))
    flush()


def flush() -> None:
    sys.stdout.flush()


def print_notice(text: str) -> None:
    """Write a status line to standard error, so that standard output contains only the result."""
    _write(sys.stderr, text)


def ask(question: str) -> bool:
    """Ask a yes-or-no question on standard error; the end of the input counts as no."""
    host = HOST.get()
    return host.ask(question) if host is not None else ask_here(question)


def ask_here(question: str) -> bool:
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def confirm(question: str, show: Callable[[], None] | None = None, *, yes: bool) -> None:
    """Ask for confirmation, unless it was given; without a yes, end the command with exit code 1."""
    host = HOST.get()
    if yes or (host is not None and host.yes):
        return
    if as_json():
        raise InvalidInput("--json cannot ask for confirmation. Add --yes to confirm.")
    if show is not None:
        show()
    if not ask(question):
        if host is not None:
            raise InvalidInput("Nothing was done, because the answer is not yes.")
        print_notice("Nothing was done.")
        raise typer.Exit(1)


def fail(error: AgentGitError) -> int:
    message = clean(error.worded("cli"))
    data: dict[str, Any] = {"error": type(error).__name__, "message": message, "exit_code": error.exit_code}
    data["next"] = [step.to_dict() for step in error.next]
    _write(sys.stderr, dump(data) if as_json() else f"error: {message}")
    return error.exit_code


def parse_json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{option} is not valid JSON: {error}.") from error


def _supports_colours(stream: TextIO) -> bool:
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def _write(stream: TextIO, text: str) -> None:
    stream.write(encodable(text, stream) + "\n")


def encodable(text: str, stream: TextIO) -> str:
    """Convert text to what a stream's encoding can represent.

    If necessary, agentgit's own drawing characters become ASCII, and other characters are escaped.
    """
    encoding = stream.encoding or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(ASCII).encode(encoding, "backslashreplace").decode(encoding)
    return text


@contextmanager
def bar(description: str) -> Iterator[OnProgress | None]:
    """Show a progress bar in a terminal; yield the function that updates it, or None."""
    if as_json() or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(description, total=None)
        step: Callable[[int, int], None] = lambda done, total: progress.update(task, completed=done, total=total)  # noqa: E731
        yield step
