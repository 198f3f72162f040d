"""Sessions with many branches, made with public verbs, to try and to measure how they are shown."""

from __future__ import annotations

import random

from echo_graph import echoing

from agentgit import Repository

ASKED = ("order two chairs", "a table, please", "rather a sofa", "pay, and mail the receipt", "which lamps are there?")


def wide(repo: Repository, branches: int, name: str = "wide", *, turns: int = 4, seed: int = 7) -> None:
    """Create a session in which branches leave from the main branch and, one in four, from another branch.

    Each of the first twenty branches has a turn of its own.
    """
    rng = random.Random(seed)  # noqa: S311  # a tree to look at
    agent = repo.wrap(echoing(), name, effects={"echo": "read_only"})
    for turn in range(turns):
        agent.run(ASKED[turn % len(ASKED)])
    agent.checkpoint("before the variants")
    points = [point.id for point in agent.session.checkpoints() if point.metadata["kind"] in ("after", "named")]
    for n in range(2, branches + 1):
        fork = agent.fork(rng.choice(points), name=f"variant-{n}")
        if n <= 21:
            fork.run(rng.choice(ASKED[:3]))
        if n % 4 == 0:
            points.append(fork.head.id)


def deep(repo: Repository, branches: int, name: str = "deep") -> None:
    """Create a session in which each branch leaves from the one before, as a row of rollbacks does."""
    agent = repo.wrap(echoing(), name, effects={"echo": "read_only"})
    agent.run(ASKED[0])
    for _ in range(branches - 1):
        agent = agent.rollback("HEAD")
        if branches <= 20:
            agent.run(ASKED[2])
