"""How quickly a database is checked and collected, and what a retention costs a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import agentgit
from agentgit.checkpoints import Retention
from agentgit.repository import Repository
from agentgit.sessions.upkeep import Checked
from bench.graphs import build, text
from bench.measure import Line, Subject, interleaved, lines, timed
from bench.stage import Stage

NOTE = (
    "On SQLite, conversations of 2 KB turns. A check in objects (rows) a second, of which levels 1 and 2 are to do\n"
    "100,000; a dry run and a collection of what half of the conversations and the steps between checkpoints leave;\n"
    "and a turn of a session that keeps everything, and of one that thins itself out."
)

SPEED, SPACE, TURN = "check", "collection", "a turn"
EVERYTHING, THINNED = "keeps everything", "keeps the last 20"


def measure(stage: Stage) -> Subject:
    """Measure all three."""
    turns, rounds = stage.scale.turns[0], stage.scale.looks
    with agentgit.open(stage.where / "upkeep.db") as repo:
        for number in range(20):
            _talk(repo, f"s{number}", turns)
        found = _speeds(repo, rounds)
        found += _turns(repo, rounds * 5)
        for number in range(10):
            repo.clear(f"s{number}")
        times = {"dry run": [timed(lambda: repo.gc(dry_run=True))[0]], "repo.gc": [timed(repo.gc)[0]]}
    return Subject("Time to keep a database in order", NOTE, [*found, *lines(SPACE, times, ["dry run"])])


def _talk(repo: Repository, session: str, turns: int) -> None:
    agent = repo.wrap(build(1024), session)
    for number in range(turns):
        agent.run(text(number, 1024))


def _speeds(repo: Repository, rounds: int) -> list[Line]:
    """Check at each level; give objects a second."""
    checks: Mapping[str, Sequence[Checked]] = {
        f"level {level}": [repo.fsck(level) for _ in range(rounds)] for level in (1, 2, 3)
    }
    speeds = {name: [one.objects / one.seconds for one in found] for name, found in checks.items()}
    objects = checks["level 1"][0].objects
    return lines(f"{SPEED}, {objects:,} objects", speeds, [], unit="a second", scale=1.0)


def _turns(repo: Repository, rounds: int) -> list[Line]:
    agents = {name: repo.wrap(build(1024), name) for name in (EVERYTHING, THINNED)}
    repo.set_retention(Retention(), THINNED)
    runs = {name: lambda agent=agent: agent.run(text(1, 1024)) for name, agent in agents.items()}  # type: ignore[misc]  # mypy cannot infer it
    return lines(TURN, interleaved(runs, max(60, rounds)), [EVERYTHING])
