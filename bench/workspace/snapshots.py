"""The time to take, to restore and to compare snapshots of a directory, with workspaces, git and copies."""

from __future__ import annotations

import filecmp
import io
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from dulwich import porcelain
from dulwich.repo import Repo

from agentgit import Workspace
from bench.measure import Line, Subject, lines, rotated, timed
from bench.stage import Stage

GIT, DULWICH, COPIES = "git add, write-tree", "dulwich", "copies"

OURS, DIRECTORY = "Workspace, git", "Workspace, directory"

LARGE = 20_000
"""The bytes of a file; 5,000 files make 100 MB."""

SMALL = 200
"""The bytes of a file in the directory of 50,000 files."""

EDITED = 10
"""The number of files that change between two snapshots."""

SETTLED = 0.05
"""The seconds after which a file's times show whether it has changed; before, all contenders read it again."""

NOTE = (
    "Milliseconds for a directory of files of 20 KB (of 200 bytes where there are 50,000), a tenth of them random.\n"
    "A restore brings back 10 files; all but the copies take a snapshot of what stands there first."
)


class Contender(Protocol):
    """A tool that takes snapshots of one directory."""

    def save(self) -> str: ...

    def restore(self, id: str) -> object: ...

    def diff(self, a: str, b: str) -> object: ...


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

    def diff(self, a: str, b: str) -> str:
        return self._run("diff-tree", "-r", "-p", a, b)

    def _run(self, *arguments: str) -> str:
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self._work, env=self._environment, check=True, stdout=subprocess.PIPE)  # noqa: S603
        return done.stdout.decode("utf-8", "replace")


class Dulwich:
    """Dulwich, git's formats in Python, with a separate index."""

    def __init__(self, work: Path, folder: Path) -> None:
        folder.mkdir()
        with Repo.init_bare(folder) as bare:
            config = bare.get_config()
            config.set((b"core",), b"bare", False)
            config.write_to_path()
        self._repo = Repo(controldir=str(folder), worktree=str(work))

    def save(self) -> str:
        porcelain.add(self._repo)
        return self._repo.open_index().commit(self._repo.object_store).decode()

    def restore(self, id: str) -> None:
        self.save()
        self._repo.get_worktree().reset_index(id.encode())

    def diff(self, a: str, b: str) -> bytes:
        out = io.BytesIO()
        porcelain.diff_tree(self._repo, a.encode(), b.encode(), out)
        return out.getvalue()


class Copies:
    """A copy of the whole directory each time."""

    def __init__(self, work: Path, folder: Path) -> None:
        self._work, self._folder, self._count = work, folder, 0

    def save(self) -> str:
        self._count += 1
        shutil.copytree(self._work, self._folder / str(self._count), symlinks=True)
        if self._count > 3:
            shutil.rmtree(self._folder / str(self._count - 3))
        return str(self._count)

    def restore(self, id: str) -> None:
        shutil.rmtree(self._work)
        shutil.copytree(self._folder / id, self._work, symlinks=True)

    def diff(self, a: str, b: str) -> list[str]:
        return _different(filecmp.dircmp(self._folder / a, self._folder / b))


class Ours:
    """A `Workspace`."""

    def __init__(self, work: Path, folder: Path, environment: str) -> None:
        self._workspace = Workspace(work, folder, environment=environment)

    def save(self) -> str:
        return self._workspace.save().id

    def restore(self, id: str) -> object:
        return self._workspace.restore(id)

    def diff(self, a: str, b: str) -> object:
        return self._workspace.diff(a, b)


def measure(stage: Stage) -> Subject:
    """Time the contenders side by side."""
    found: list[Line] = []
    quick = stage.scale.saver.puts < 10
    rounds, files, many = (2, 200, 500) if quick else (7, 5_000, 50_000)
    for count, size in ((files, LARGE), (many, SMALL)):
        folder = stage.where / f"snapshots-{count}"
        work = folder / "work"
        make(work, count, size)
        contenders = _contenders(work, folder, everything=count == files)
        time.sleep(SETTLED)
        first = {name: [timed(one.save)[0]] for name, one in contenders.items()}
        found += lines(f"{count:,} files, first", first, [GIT])
        time.sleep(SETTLED)
        found += lines(f"{count:,} files, no change", _unchanged(contenders, rounds), [GIT])
        if count == files:
            for case, times in _changed(contenders, work, rounds).items():
                found += lines(f"{count:,} files, {case}", times, [GIT])
        shutil.rmtree(folder)
    return Subject("Files: snapshots", NOTE, found)


def make(work: Path, count: int, size: int) -> None:
    """Make a directory of files with text or random bytes, the same each time."""
    chance = random.Random(7)  # noqa: S311 - nothing secret
    words = [bytes(chance.choices(b"abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 9))) for _ in range(3000)]
    for number in range(count):
        place = path_of(work, number)
        place.parent.mkdir(parents=True, exist_ok=True)
        text = b" ".join(chance.choices(words, k=size // 6))[:size]
        place.write_bytes(chance.randbytes(size) if number % 10 == 0 else text)


def path_of(work: Path, number: int) -> Path:
    """Return the path of a file."""
    return work / f"p{number % 50}" / f"q{number % 7}" / f"{number}.txt"


def _contenders(work: Path, folder: Path, *, everything: bool) -> dict[str, Contender]:
    found: dict[str, Contender] = {GIT: Git(work, folder / "plain")}
    if everything:
        found[DULWICH] = Dulwich(work, folder / "dulwich")
        found[COPIES] = Copies(work, folder / "copies")
    found[OURS] = Ours(work, folder / "git", "git")
    found[DIRECTORY] = Ours(work, folder / "directory", "directory")
    return found


def _unchanged(contenders: dict[str, Contender], rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for one in contenders.values():
        one.save()
    for number in range(rounds):
        for name in rotated(list(contenders), number):
            times[name].append(timed(contenders[name].save)[0])
    return times


def _changed(contenders: dict[str, Contender], work: Path, rounds: int) -> dict[str, dict[str, list[float]]]:
    cases = (f"{EDITED} changed", f"restore {EDITED}", "diff")
    times: dict[str, dict[str, list[float]]] = {case: {name: [] for name in contenders} for case in cases}

    def take(case: int, name: str, run: Callable[[], object]) -> object:
        took, value = timed(run)
        times[cases[case]][name].append(took)
        return value

    for number in range(rounds):
        for name in rotated(list(contenders), number):
            one = contenders[name]
            before = one.save()
            _edit(work, number)
            after = str(take(0, name, one.save))
            take(2, name, lambda one=one, a=before, b=after: one.diff(a, b))  # type: ignore[misc]
            _edit(work, number)
            take(1, name, lambda one=one, id=before: one.restore(id))  # type: ignore[misc]
            time.sleep(SETTLED)
    return times


def _edit(work: Path, number: int) -> None:
    for file in range(EDITED):
        with path_of(work, file).open("ab") as opened:
            opened.write(b"%d" % number)
    time.sleep(SETTLED)


def _different(found: filecmp.dircmp[str]) -> list[str]:
    return [*found.diff_files, *found.left_only, *found.right_only] + [
        name for one in found.subdirs.values() for name in _different(one)
    ]
