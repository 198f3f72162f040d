"""The time to check and to collect a database, and the cost of a retention in a turn."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import agentgit
from agentgit.checkpoints import Retention
from agentgit.repository import Repository
from bench.graphs import build, text
from bench.measure import Line, Subject, interleaved, lines, timed
from bench.stage import Stage

NOTE = (
    "On SQLite, conversations of 2 KB turns. A check in microseconds of CPU for each object, which is a row: 10 are\n"
    "100,000 objects in a second of CPU. `git fsck --full` is on as many objects of the same texts: blobs, trees and\n"
    "commits in one pack. A dry run and a collection of what half of the conversations and the steps between leave,\n"
    "and a turn of a session that keeps everything, and of one that thins itself out, are in milliseconds."
)

SPEED, SPACE, TURN = "check", "collection", "a turn"
EVERYTHING, THINNED = "keeps everything", "keeps the last 20"
GIT = "git fsck --full"


def measure(stage: Stage) -> Subject:
    """Time checks, turns and collections."""
    turns, rounds = stage.scale.turns[0], stage.scale.looks
    with agentgit.open(stage.where / "upkeep.db") as repo:
        for number in range(20):
            _talk(repo, f"s{number}", turns)
        found = _speeds(repo, rounds, stage.where / "upkeep.git")
        found += _turns(repo, rounds * 5)
        for number in range(10):
            repo.session(f"s{number}").retention.clear()
        times = {
            "dry run": [timed(lambda: repo.maintenance.gc(dry_run=True))[0]],
            "maintenance.gc": [timed(repo.maintenance.gc)[0]],
        }
    return Subject("Time to keep a database in order", NOTE, [*found, *lines(SPACE, times, ["dry run"])])


def _talk(repo: Repository, session: str, turns: int) -> None:
    agent = repo.wrap(build(1024), session)
    for number in range(turns):
        agent.run(text(number, 1024))


def _speeds(repo: Repository, rounds: int, folder: Path) -> list[Line]:
    """Time checks at each level and with git, in CPU seconds per object."""
    objects = repo.maintenance.fsck(1).objects
    git = _git(folder, objects)
    times: dict[str, list[float]] = {GIT: [], "level 1": [], "level 2": [], "level 3": []}
    for _ in range(max(3, rounds)):
        for level in (1, 2, 3):
            times[f"level {level}"].append(_cpu(lambda level=level: repo.maintenance.fsck(level)) / objects)  # type: ignore[misc]  # mypy cannot infer it
        times[GIT].append(_cpu(lambda: _run(folder, "fsck", "--full", "--no-progress")) / git)
    return lines(f"{SPEED}, {objects:,} objects", times, [GIT], unit="us", scale=1e6)


def _cpu(run: Callable[[], object]) -> float:
    """Return the CPU seconds of a function, with those of the programs that it starts."""
    before = os.times()
    run()
    after = os.times()
    return sum(after[:4]) - sum(before[:4])


def _git(folder: Path, objects: int) -> int:
    """Make a git repository with about as many objects, three for each text, and return their number."""
    folder.mkdir()
    _run(folder, "init", "--quiet", "--bare")
    story = bytearray()
    for n in range(objects // 3):
        words = text(n, 1024).encode()
        story += b"blob\nmark :%d\ndata %d\n%b\n" % (n + 1, len(words), words)
        story += b"commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 2\nhm\nM 644 :%d f\n" % (n, n + 1)
    _run(folder, "fast-import", "--quiet", given=bytes(story))
    return objects // 3 * 3


def _run(folder: Path, *words: str, given: bytes = b"") -> None:
    command = ["git", "-C", str(folder), *words]
    subprocess.run(command, input=given, check=True, capture_output=True)  # noqa: S603  # written here


def _turns(repo: Repository, rounds: int) -> list[Line]:
    agents = {name: repo.wrap(build(1024), name) for name in (EVERYTHING, THINNED)}
    repo.session(THINNED).retention.set(Retention())
    runs = {name: lambda agent=agent: agent.run(text(1, 1024)) for name, agent in agents.items()}  # type: ignore[misc]  # mypy cannot infer it
    return lines(TURN, interleaved(runs, max(60, rounds)), [EVERYTHING])
