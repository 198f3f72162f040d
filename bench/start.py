"""The time to import agentgit."""

from __future__ import annotations

import subprocess
import sys

from bench.measure import Subject, lines
from bench.stage import Stage

LANGGRAPH = "import langgraph.graph"

IMPORTS = (
    LANGGRAPH,
    "import sqlmodel",
    "import agentgit",
    "import agentgit; agentgit.open",
    "import agentgit; agentgit.RollbackAgent",
)

NOTE = (
    "Milliseconds in a new process, of the import alone. What needs SQL or LangGraph is imported when it is first used."
)


def measure(stage: Stage) -> Subject:
    """Time the imports, each in new processes."""
    times: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for number in range(stage.scale.starts + 1):
        for statement in IMPORTS:
            took = _import(statement)
            if number > 0:  # the first round reads the files from the disk
                times[statement].append(took)
    return Subject("Time to import", NOTE, lines("", times, [LANGGRAPH]))


def _import(statement: str) -> float:
    code = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # written in this file
    return float(done.stdout)
