"""Reading of input line by line: from a prompt with a history, or from a pipe."""

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

REMEMBERED = 1000
"""The number of lines that the history keeps."""


def at_terminal() -> bool:
    """Return whether a person is there, who can be shown a prompt and asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


Offer = Callable[[str, str], list[str]]
"""A function that returns the completions of a word, from the line before it and the part that was typed."""


def lines(prompt: Callable[[], str], offer: Offer) -> Iterator[str]:
    """Read lines until there are no more. Ctrl-C at the prompt gives the line up.

    Args:
        prompt: A function that returns the text before a line; without a terminal, nothing is shown.
        offer: The function that returns the completions for Tab.
    """
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # one bad byte is no reason to stop
    if not at_terminal():
        yield from (line.rstrip("\r\n") for line in iter(sys.stdin.readline, ""))
        return
    with _history(offer):
        while True:
            try:
                yield input(output.fitting(prompt(), sys.stdout))
            except KeyboardInterrupt:
                output.say("")
            except EOFError:
                output.say("")
                return


def state_folder() -> Path:
    """Return the folder in which programs of this user keep what they remember."""
    if os.name == "nt":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "agentgit"
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "agentgit"


@contextmanager
def _history(offer: Offer) -> Iterator[None]:
    """Remember what was written, in a file that only its owner can read; and let Tab complete words."""
    try:
        import readline
    except ImportError:  # not on every system; the prompt works without
        yield
        return
    path = state_folder() / "chat_history"
    _kept(path, lambda: _read(readline, path))
    _complete(readline, offer)
    try:
        yield
    finally:
        readline.set_completer(None)
        _kept(path, lambda: _write(readline, path))


def _complete(readline: ModuleType, offer: Offer) -> None:
    def nth(word: str, n: int) -> str | None:
        """Return the n-th offer: readline asks until there are no more."""
        try:
            return [*offer(readline.get_line_buffer()[: readline.get_begidx()], word), None][n]
        except AgentGitError:  # a prompt is no place for a failure
            return None

    readline.set_completer(nth)
    readline.set_completer_delims(" \t\n")
    readline.parse_and_bind("tab: complete")


def _read(readline: ModuleType, path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.touch()
    path.chmod(0o600)
    readline.set_history_length(REMEMBERED)
    readline.read_history_file(path)


def _write(readline: ModuleType, path: Path) -> None:
    before = os.umask(0o077)  # it may be written anew
    try:
        readline.write_history_file(path)
    finally:
        os.umask(before)


def _kept(path: Path, do: Callable[[], None]) -> None:
    """Do something with the history; say so where it cannot be kept."""
    try:
        do()
    except OSError as error:
        output.note(f"The history of the chat is not kept in {path}: {error.strerror}.")
