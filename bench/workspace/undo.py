"""The time to save known files before a call modifies them, and to undo that call."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from agentgit import UndoStack
from bench.measure import Line, Subject, lines, rotated, timed
from bench.stage import Stage

SIZE = 20_000
"""The bytes of a file."""

FILES = (1, 10)
"""The numbers of files that a call modifies."""

COPY, GIT, OURS, UNDO = "copy, and wait for the disk", "git hash-object -w", "UndoStack.snapshot", "UndoStack.undo"

NOTE = (
    "Milliseconds to keep files of 20 KB whose paths are known, with new contents each time, before a tool call\n"
    "modifies them; and to undo that call, with what stands before it kept for redo."
)


def measure(stage: Stage) -> Subject:
    """Time the contenders side by side."""
    found: list[Line] = []
    for count in FILES:
        folder = stage.where / f"undo-{count}"
        with closing(_Case(folder, count)) as case:
            times = _times(case, stage.scale.saver.puts)
        found += lines(f"{count} file{'s' if count > 1 else ''}", times, [COPY, GIT])
    return Subject("Files: the undo stack", NOTE, found)


def _times(case: _Case, rounds: int) -> dict[str, list[float]]:
    runs = case.runs()
    times: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds):
        for name in rotated(list(runs), number):
            if name == UNDO:
                case.keep()
            case.change()
            times[name].append(timed(runs[name])[0])
    return times


class _Case:
    """Some files, and the stores that save them."""

    def __init__(self, folder: Path, count: int) -> None:
        self._work, self._copies, self._git = folder / "work", folder / "copies", folder / "git"
        for made in (self._work, self._copies):
            made.mkdir(parents=True)
        subprocess.run(["git", "init", "--bare", "--quiet", self._git], check=True)  # noqa: S603, S607
        self._names = [f"file-{number}" for number in range(count)]
        self._stack = UndoStack(self._work, folder / "store")

    def runs(self) -> dict[str, Callable[[], object]]:
        return {COPY: self._copy, GIT: self._hash, OURS: self.keep, UNDO: self._stack.undo}

    def close(self) -> None:
        self._stack.close()

    def change(self) -> None:
        for name in self._names:
            (self._work / name).write_bytes(os.urandom(SIZE))

    def _copy(self) -> None:
        for name in self._names:
            with (self._copies / name).open("wb") as file:
                file.write((self._work / name).read_bytes())
                file.flush()
                os.fsync(file.fileno())

    def _hash(self) -> None:
        command = ["git", f"--git-dir={self._git}", "hash-object", "-w", "--no-filters", *self._names]
        subprocess.run(command, cwd=self._work, check=True, stdout=subprocess.DEVNULL)  # noqa: S603

    def keep(self) -> None:
        self._stack.snapshot("edit", self._names)
