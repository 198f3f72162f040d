"""The pager: a result that is longer than the terminal is shown page by page, as git does."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import TextIO

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


@contextmanager
def paging(stream: TextIO, *, is_wanted: bool) -> Iterator[None]:
    """Show what the block writes to standard output in the pager, if it is longer than the terminal."""
    command = find_pager() if is_wanted and stream.isatty() and sys.stdin.isatty() else []
    if not command:
        yield
        return
    written = _Terminal(stream.encoding or "utf-8")
    try:
        with redirect_stdout(written):
            yield
    finally:
        text = written.text()
        if text.count("\n") < shutil.get_terminal_size().lines or not _show(command, text, written.encoding):
            stream.write(text)
            stream.flush()


class _Terminal(io.TextIOWrapper):
    """Collects text that is written as if to a terminal, in its colours."""

    def __init__(self, encoding: str) -> None:
        self._bytes = io.BytesIO()
        super().__init__(self._bytes, encoding, newline="", write_through=True)

    def isatty(self) -> bool:
        return True

    def text(self) -> str:
        """Return what was written."""
        return self._bytes.getvalue().decode(self.encoding)


def _show(command: list[str], text: str, encoding: str) -> bool:
    """Show a text in the pager until the user leaves it; return whether the pager could be started."""
    environment = {"LESS": LESS_OPTIONS, "LV": "-c", **os.environ}
    try:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)  # noqa: S603  # the user's own pager
    except OSError:
        return False
    with suppress(BrokenPipeError, KeyboardInterrupt):  # the user has left the pager early
        process.communicate(text.encode(encoding, "replace"))
    while process.poll() is None:
        with suppress(KeyboardInterrupt):  # Ctrl-C is a key of the pager
            process.wait()
    return True
