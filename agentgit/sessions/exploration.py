"""An exploration: the same steps gone in several ways, each on a branch of its own, and what came of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentgit.errors import NotFound

if TYPE_CHECKING:
    from agentgit.effects import ToolInvocation
from agentgit.values import Drawn

BEGUN, DONE, WAITING, FAILED = "begun", "done", "waiting", "failed"
"""The states of the turn of an explored branch."""


@dataclass(frozen=True, kw_only=True)
class ExploredBranch:
    """One way that was gone: a branch, and what was said and called since the exploration began.

    Args:
        id: The branch.
        name: Its name, like `explore/2/1`: the second choice at the first step, the first one at the second.
        choices: The same as numbers, from 1.
        status: `done`; `waiting` for a person's answer; `failed`; or `begun` if it was broken off.
        answer: The text of the last answer; None if there is none.
        messages: The messages since the exploration began, as `history()` returns them.
        tool_calls: The tool calls since then.
        tokens: The tokens that the models counted since then; None if they do not count.
        score: The result of `score`; None without it.
        error: The exception that the turn raised, if it failed.
    """

    id: int
    name: str
    choices: tuple[int, ...]
    status: str = DONE
    answer: str | None = None
    messages: list[dict[str, Any]] = field(default_factory=list)
    tool_calls: list[ToolInvocation] = field(default_factory=list)
    tokens: int | None = None
    score: float | None = None
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        return {**vars(self), "choices": list(self.choices), "tool_calls": [call.to_dict() for call in self.tool_calls]}


@dataclass(frozen=True, kw_only=True)
class Exploration(Drawn):
    """The results of an exploration. Its text is a table of the leaves.

    Args:
        name: The prefix of the names of its branches.
        branch: The name of the branch that it began on.
        branches: All branches that were made, each before those that go on from it. Each ran one turn.
        tokens: The tokens that the models counted in all these turns; None if they do not count.
        undeclared: The undeclared tools that were called: what they did was not taken back.

    Example:
        >>> tried = [ExploredBranch(id=n, name=f"explore/{n}", choices=(n,), score=n / 2) for n in (1, 2)]
        >>> Exploration(name="explore", branch="main", branches=tried).best.name
        'explore/2'
    """

    name: str
    branch: str
    branches: list[ExploredBranch] = field(default_factory=list)
    tokens: int | None = None
    undeclared: list[str] = field(default_factory=list)

    @property
    def leaves(self) -> list[ExploredBranch]:
        """The branches that no other one goes on from."""
        parents = {branch.choices[:-1] for branch in self.branches}
        return [branch for branch in self.branches if branch.choices not in parents]

    @property
    def best(self) -> ExploredBranch:
        """The leaf with the highest score; of equals the first.

        Raises:
            NotFound: None has a score.
        """
        scored = [leaf for leaf in self.leaves if leaf.score is not None]
        if not scored:
            raise NotFound(
                "No leaf of this exploration has a score. Give explore(score=...), or choose one of its leaves."
            )
        return max(scored, key=lambda leaf: leaf.score or 0.0)

    def compare(self) -> list[dict[str, Any]]:
        """Return the leaves as the rows of a table, the highest score first."""
        return [
            {
                "branch": leaf.name,
                "choices": list(leaf.choices),
                "status": leaf.status,
                "score": leaf.score,
                "tokens": leaf.tokens,
                "messages": len(leaf.messages),
                "tool_calls": [str(call) for call in leaf.tool_calls],
                "answer": leaf.answer,
                "error": leaf.error,
            }
            for leaf in _best_first(self.leaves)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        return {**vars(self), "branches": [branch.to_dict() for branch in self.branches]}


def _best_first(leaves: Iterable[ExploredBranch]) -> list[ExploredBranch]:
    return sorted(leaves, key=lambda leaf: (leaf.score is None, -(leaf.score or 0.0)))
