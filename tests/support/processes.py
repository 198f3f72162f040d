"""Processes for tests, forked from a server that has imported all modules, which saves a second for LangGraph."""

from __future__ import annotations

import functools
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parents[1]
PATHS = [str(TESTS.parent), *(str(room) for room in sorted(TESTS.iterdir()) if room.is_dir()), *sys.path]
"""The import path of a process, after its own folder."""

PRELOADED = [
    "agentgit.cli", "exports", "concurrent_sessions", "killed_process", "killed_flush", "echo_graph", "faults",
    "hypothesis", "pytest", "scripted", "shop_graphs", "warm_start",
]  # fmt: skip
STREAMS = ("in", "out", "err")


@functools.cache
def forking() -> Any:
    """Start the fork server, and return the multiprocessing context."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(PRELOADED)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(PATHS))  # Python before 3.11.9 does not pass it on
        forkserver.ensure_running()
    return made


def exit_code(target: Callable[..., Any], *given: Any) -> Any:
    """Run a function in another process, and return the code with which it ends."""
    process = forking().Process(target=target, args=given)
    process.start()
    process.join(300)
    return process.exitcode


@dataclass(frozen=True)
class Done:
    """The exit code and the output of a process."""

    returncode: int
    stdout: str
    stderr: str


class Started:
    """A process that runs a script with arguments; `say` is its standard input."""

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
        self.process.join(timeout)
        code = self.process.exitcode
        assert code is not None, "it does not end"
        out, err = (Path(self.folder.name, name).read_text("utf-8") for name in STREAMS[1:])
        self.folder.cleanup()
        return Done(code, out, err)


def run(code: str, *words: object, timeout: float = 300, **how: Any) -> Done:
    """Run a script in another process until it ends or times out; the other arguments are those of `Started`."""
    return Started(code, *words, **how).wait(timeout)


def agentgit(*words: object, **how: Any) -> Done:
    return run("from agentgit.cli import main; main()", *words, **how)


def shown_on(terminal: int) -> bytes:
    """Return the output of ended processes to a terminal, and close it; its other end must be closed here."""
    parts = []
    with os.fdopen(terminal, "rb", buffering=0) as ours, suppress(OSError):  # Linux reports the end as OSError
        while part := ours.read(100_000):  # one read returns at most 4 KB
            parts.append(part)
    return b"".join(parts)


def _run(code_and_words: list[str], cwd: str, environment: dict[str, str], streams: list[str]) -> None:
    """Run a script in a new forked process, as `python -c` does."""
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
