"""The time to list the checkpoints of a long conversation."""

from __future__ import annotations

from typing import cast

from bench.contenders import OURS, SQLITE, WRAPPED, Saved, Wrapped
from bench.measure import Subject, interleaved, lines
from bench.size import long
from bench.stage import Stage

HISTORY = f"get_state_history, {SQLITE}"

NOTE = (
    "Milliseconds. session.checkpoints and session.tree read columns, and load a state when it is looked at;\n"
    "get_state_history(limit=the same number) builds every state. Turns of 2 KB."
)


def measure(stage: Stage) -> Subject:
    """Time the ways to list the checkpoints."""
    contenders = long(stage).contenders
    repo = cast(Wrapped, contenders[WRAPPED]).repo
    count = len(repo.session().checkpoints())

    def history(name: str) -> None:
        saved = cast(Saved, contenders[name])
        listed = sum(1 for _ in saved.graph.get_state_history(saved.last, limit=count))
        if listed != count:
            raise RuntimeError(f"{name} lists {listed} checkpoints and should list {count}")

    runs = {
        HISTORY: lambda: history(SQLITE),
        f"get_state_history, {OURS}": lambda: history(OURS),
        "session.checkpoints": repo.session().checkpoints,
        "str(session.tree)": lambda: str(repo.session().tree()),
    }
    times = interleaved(runs, stage.scale.looks)
    return Subject("Time to list the checkpoints", NOTE, lines(f"{count:,} checkpoints", times, [HISTORY]))
