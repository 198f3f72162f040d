"""The table of an exploration: a line for each leaf, the highest score first."""

from __future__ import annotations

from agentgit.render.lines import Line, Span, plain, table
from agentgit.render.text import clean, count
from agentgit.sessions.exploration import DONE, Exploration


def draw(exploration: Exploration, *, width: int = 100) -> str:
    """Draw an exploration as plain text.

    Args:
        exploration: The exploration to draw.
        width: The longest line, in terminal cells.

    Example:
        >>> from agentgit.sessions.exploration import ExploredBranch
        >>> leaf = ExploredBranch(id=7, name="explore/1", choices=(1,), answer="two chairs", score=1.0)
        >>> print(draw(Exploration(name="explore", branch="main", branches=[leaf])))
        explore, from main: 1 turn, 1 leaf
          explore/1  score 1  two chairs
    """
    return plain(lines(exploration, width=width))


def lines(exploration: Exploration, *, width: int = 100) -> list[Line]:
    """Draw an exploration.

    Args:
        exploration: The exploration to draw.
        width: The longest line, in terminal cells.
    """
    leaves, tokens = len(exploration.leaves), exploration.tokens
    told = [count(len(exploration.branches), "turn"), f"{leaves} {'leaf' if leaves == 1 else 'leaves'}"]
    told += [count(tokens, "token")] if tokens is not None else []
    head = f"{clean(exploration.name)}, from {clean(exploration.branch)}: {', '.join(told)}"
    rows = [
        [
            Span(clean(row["branch"]), "reference"),
            Span(f"score {row['score']:g}" if row["score"] is not None else ""),
            Span(count(row["tokens"], "token") if row["tokens"] is not None else "", "dim"),
            Span(count(len(row["tool_calls"]), "call") if row["tool_calls"] else "", "dim"),
            Span("" if row["status"] == DONE else row["status"], "bad"),
            Span(clean(row["error"] or row["answer"] or "")),
        ]
        for row in exploration.compare()
    ]
    made = [(Span(head, "heading"),), *table(rows, width=width, indent="  ")]
    if undeclared := exploration.undeclared:
        made.append((Span(f"  not declared, so not taken back: {clean(', '.join(undeclared))}", "bad"),))
    return made
