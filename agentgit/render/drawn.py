"""Values that draw themselves where they are shown."""

from __future__ import annotations

from dataclasses import dataclass

from agentgit.render.tree import draw
from agentgit.sessions.tree import Tree


@dataclass(kw_only=True)
class DrawnTree(Tree):
    """A tree whose text is its picture."""

    def __str__(self) -> str:
        return draw(self)
