"""The lines of a chat, from a terminal with history and completion, or from a pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from agentgit.cli import output
from agentgit.errors import AgentGitError
from agentgit.render.text import visible

HISTORY_LENGTH = 1000
"""The number of lines that the history file keeps."""


def at_terminal() -> bool:
    """Return whether standard input and output are terminals, so that a person can be prompted."""
    return sys.stdin.isatty() and sys.stdout.isatty()


Completer = Callable[[str, str], list[str]]
"""A function that returns the completions of a word, from the line before it and the part that was typed."""


def lines(prompt: Callable[[], str], completer: Completer, refill: Callable[[], str]) -> Iterator[str]:
    """Yield lines until the end of the input. Ctrl-C at the prompt discards the line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # an undecodable byte must not end the chat
    if not at_terminal():
        yield from (line.rstrip("\r\n") for line in iter(sys.stdin.readline, ""))
        return
    with _line_history(completer):
        while True:
            try:
                with _prefilled(refill()):
                    line = input(output.encodable(prompt(), sys.stdout))
                yield line
            except KeyboardInterrupt:
                output.say("")
            except EOFError:
                output.say("")
                return


@contextmanager
def _prefilled(text: str) -> Iterator[None]:
    """Put a text into the next line that is read, on one line and without control characters."""
    try:
        import readline
    except ImportError:  # some systems have no readline; the text is then only shown
        yield
        return
    line = " ".join(visible(text).split())
    readline.set_startup_hook(lambda: readline.insert_text(line))
    try:
        yield
    finally:
        readline.set_startup_hook(None)


def state_folder() -> Path:
    """Return agentgit's folder in the user's state directory."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "agentgit"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agentgit"


@contextmanager
def _line_history(completer: Completer) -> Iterator[None]:
    """Load and save the line history in a file that only its owner can read, and complete words with Tab."""
    try:
        import readline
    except ImportError:  # some systems have no readline; the prompt works without it
        yield
        return
    path = state_folder() / "chat_history"
    _try_history_file(path, lambda: _load_history(readline, path))
    _install_completer(readline, completer)
    try:
        yield
    finally:
        readline.set_completer(None)
        _try_history_file(path, lambda: _save_history(readline, path))


def _install_completer(readline: ModuleType, completer: Completer) -> None:
    def nth_completion(word: str, n: int) -> str | None:
        """Return the n-th completion; readline calls this until it returns None."""
        try:
            return [*completer(readline.get_line_buffer()[: readline.get_begidx()], word), None][n]
        except AgentGitError:  # a failed completion must not interrupt the prompt
            return None

    readline.set_completer(nth_completion)
    readline.set_completer_delims(" \t\n")
    readline.parse_and_bind("tab: complete")


def _load_history(readline: ModuleType, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o600)
    readline.set_history_length(HISTORY_LENGTH)
    readline.read_history_file(path)


def _save_history(readline: ModuleType, path: Path) -> None:
    old_umask = os.umask(0o077)  # the file may be created again, and must stay private
    try:
        readline.write_history_file(path)
    finally:
        os.umask(old_umask)


def _try_history_file(path: Path, operation: Callable[[], None]) -> None:
    """Run an operation on the history file; print a note if it fails."""
    try:
        operation()
    except OSError as error:
        output.print_notice(f"Cannot save the history of the chat in {path}: {error.strerror}.")
