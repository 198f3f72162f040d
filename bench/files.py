"""The time to take and to restore snapshots of a directory, beside git's plumbing."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from agentgit import Workspace
from bench.measure import Table, compared, interleaved, rotated, rows
from bench.stage import Stage

GIT, OURS, DIRECTORY = "git add, write-tree", "Workspace, git", "Workspace, directory"

LARGE, SMALL = 20_000, 200
"""The bytes of a file in each directory; 5,000 large ones make 100 MB."""

EDITED = 10
"""The number of files that change between two snapshots."""

SETTLED = 0.05
"""The seconds after which a file's times show whether it has changed; before, all contenders read it again."""

NOTE = (
    "Milliseconds for a directory of files of 20 KB, and one of 200 bytes, a tenth of them random. A restore brings\n"
    "back 10 files, after a snapshot of what stands there. git runs with an index of its own, and in several threads."
)


class Git:
    """Plain git with a separate index, as a simple script uses it."""

    def __init__(self, work: Path, folder: Path) -> None:
        isolated = {"GIT_DIR": str(folder), "GIT_WORK_TREE": str(work), "GIT_CONFIG_GLOBAL": os.devnull}
        self._work, self._environment = work, os.environ | isolated | {"GIT_CONFIG_NOSYSTEM": "1"}
        self._run("init", "--quiet")

    def save(self) -> str:
        self._run("add", "-A")
        return self._run("write-tree").strip()

    def restore(self, id: str) -> None:
        self.save()
        self._run("read-tree", "-u", "--reset", id)

    def _run(self, *arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self._work, env=self._environment, check=True, stdout=subprocess.PIPE)  # noqa: S603
        return done.stdout.decode("utf-8", "replace")


class Ours:
    """A `Workspace`."""

    def __init__(self, work: Path, folder: Path, environment: str) -> None:
        self._workspace = Workspace(work, folder, environment=environment)

    def save(self) -> str:
        return self._workspace.save().id

    def restore(self, id: str) -> object:
        return self._workspace.restore(id)


def measure(stage: Stage) -> list[Table]:
    """Time the contenders side by side."""
    made: list[list[str]] = []
    rounds = max(2, stage.scale.rounds // 4)
    for count, size in zip(stage.scale.files, (LARGE, SMALL), strict=True):
        with stage.folder() as folder:
            work = folder / "work"
            make(work, count, size)
            contenders: dict[str, Git | Ours] = {GIT: Git(work, folder / "plain")}
            contenders |= {name: Ours(work, folder / name, name.split()[-1]) for name in (OURS, DIRECTORY)}
            time.sleep(SETTLED)
            saves: dict[str, Callable[[], object]] = {name: one.save for name, one in contenders.items()}
            cases = {"first": interleaved(saves, 1, _spent)}
            time.sleep(SETTLED)
            interleaved(saves, 1, _spent)
            cases |= {"no change": interleaved(saves, rounds, _spent), **_changed(contenders, work, rounds)}
            for case, spent in cases.items():
                took, used = ({name: [one[n] for one in spent[name]] for name in spent} for n in (0, 1))
                made += rows(f"{count:,} files, {case}", compared(took, GIT), compared(used, GIT))
    return [Table("Snapshots of files", NOTE, ("time", f"x {GIT}", "CPU", "x of it"), made)]


def make(work: Path, count: int, size: int) -> None:
    """Make a directory of files with text or random bytes, the same each time."""
    chance = random.Random(7)  # noqa: S311  # nothing secret
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(3000)]
    for number in range(count):
        place = _path(work, number)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = b" ".join(chance.choices(words, k=size // 6))[:size]
        place.write_bytes(chance.randbytes(size) if number % 10 == 0 else text)


def _path(work: Path, number: int) -> Path:
    return work / f"p{number % 50}" / f"q{number % 7}" / f"{number}.txt"


def _spent(run: Callable[[], object]) -> tuple[tuple[float, float], object]:
    """Run a function; return its seconds with its CPU seconds, of git too, and its value."""
    start, began = time.perf_counter(), _cpu_time()
    value = run()
    return (time.perf_counter() - start, _cpu_time() - began), value


def _cpu_time() -> float:
    git = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + git.ru_utime + git.ru_stime


def _changed(contenders: dict[str, Git | Ours], work: Path, rounds: int) -> dict[str, dict[str, list[Any]]]:
    saved: dict[str, list[Any]] = {name: [] for name in contenders}
    restored: dict[str, list[Any]] = {name: [] for name in contenders}
    for number in range(rounds):
        for name in rotated(list(contenders), number):
            one = contenders[name]
            before = one.save()
            _edit(work, number)
            saved[name].append(_spent(one.save)[0])
            _edit(work, number)
            restored[name].append(_spent(partial(one.restore, before))[0])
            time.sleep(SETTLED)
    return {f"{EDITED} changed": saved, f"restore {EDITED}": restored}


def _edit(work: Path, number: int) -> None:
    for file in range(EDITED):
        with _path(work, file).open("ab") as opened:
            opened.write(b"%d" % number)
    time.sleep(SETTLED)
