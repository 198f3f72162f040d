"""Processes for the tests that kill one or need another one: forked from one that has everything imported.

Each is a process of its own, with nothing of this one open; but it need not import LangGraph, which takes a second.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PATHS = [str(TESTS.parent), *(str(room) for room in sorted(TESTS.iterdir()) if room.is_dir()), *sys.path]
"""Where a process finds modules, besides its folder."""

PRELOADED = [
    "agentgit.cli", "carrying", "crowd", "dying", "echoes", "faults", "hypothesis", "pytest", "scripted", "settled",
]  # fmt: skip
STREAMS = ("in", "out", "err")


@functools.cache
def forking() -> Any:
    """Give what makes processes; the one that they are forked from is started."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))  # Python before 3.11.9 forgets it
        forkserver.ensure_running()
    return made


@dataclass(frozen=True)
class Done:
    """How a process ended, and what it wrote."""

    returncode: int
    stdout: str
    stderr: str


class Started:
    """A process that runs a script.

    Args:
        code: the script.
        words: its arguments.
        cwd: its folder; None for this one's.
        say: what it reads from standard input.
        environment: what is different from the environment here.
    """

    def __init__(
        self, code: str, *words: object, cwd: str | Path | None = None, say: str = "", **environment: str
    ) -> None:
        self.folder = tempfile.TemporaryDirectory()
        streams = [str(Path(self.folder.name, name)) for name in STREAMS]
        Path(streams[0]).write_text(say, "utf-8")
        given = ([code, *map(str, words)], str(cwd or Path.cwd()), os.environ | environment, streams)
        self.process = forking().Process(target=_run, args=given)
        self.process.start()

    def wait(self, timeout: float = 300) -> Done:
        """Wait until it ends."""
        self.process.join(timeout)
        code = self.process.exitcode
        assert code is not None, "it does not end"
        out, err = (Path(self.folder.name, name).read_text("utf-8") for name in STREAMS[1:])
        self.folder.cleanup()
        return Done(code, out, err)


def run(code: str, *words: object, timeout: float = 300, **how: Any) -> Done:
    """Run a script in another process, to its end in so many seconds; the other arguments are those of `Started`."""
    return Started(code, *words, **how).wait(timeout)


def agentgit(*words: object, **how: Any) -> Done:
    """Run a command of agentgit in another process."""
    return run("from agentgit.cli import main; main()", *words, **how)


def shown_on(terminal: int) -> bytes:
    """Give all that processes which have ended wrote to a terminal, whose other end is closed here; and close it."""
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as ours, suppress(OSError):  # Linux says so that there is no more
        while part := ours.read(100_000):  # a read gives four kilobytes at most, and a slow process shows more
            parts.append(part)
    return b"".join(parts)


def _run(code_and_words: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> None:
    """Be what `python -c` is, in a process that was forked a moment ago."""
    for number, name in enumerate(streams):
        file = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115  # multiprocessing has closed it
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    code, *words = code_and_words
    sys.argv, sys.path = ["-c", *words], ["", *PATHS]
    exec(compile(code, "-c", "exec"), {"__name__": "__main__"})  # noqa: S102  # our own code
