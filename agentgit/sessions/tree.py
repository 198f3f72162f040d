"""The tree of a session's branches, and the results of an exploration. Pure values; no graph state is needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar

from agentgit.errors import NotFound
from agentgit.values import COUNT, NUMBER, OBJECT, PrintableDrawing, Tabular

if TYPE_CHECKING:
    from agentgit.effects import ToolInvocation


@dataclass(frozen=True, kw_only=True)
class Point:
    """A checkpoint in the tree and in the log.

    Args:
        id: The id of the checkpoint.
        number: Its number on its branch, from 1.
        name: The name that a person gave it, or None.
        kind: `before` a turn, `after` a turn, after `tools`, `branch` (the start of a branch) or `named`.
        is_auto: True if agentgit made it automatically.
        created_at: The time of creation, aware UTC.
        position: The number of tool invocations before it.
        message_count: The number of messages in its conversation.
        title: One short line that describes it.
        effects: The number of calls since the previous checkpoint, by their current mark (see
            `agentgit.effects.invocation`). Calls that only read, or were answered from a record, have no mark.
        tags: Its tags, each unique in the session.
    """

    id: int
    number: int
    name: str | None = None
    kind: str = "named"
    is_auto: bool = False
    created_at: datetime | None = None
    position: int = 0
    message_count: int = 0
    title: str = ""
    effects: Mapping[str, int] = field(default_factory=dict)
    tags: tuple[str, ...] = ()


@dataclass(kw_only=True)
class Branch:
    """A branch in the tree, with its checkpoints (oldest first) and its child branches.

    Args:
        id: The id of the branch.
        name: The name, unique in the session.
        status: `open`, `running`, `replaying`, `partial`, or `simulated` for a rerun, also while it runs.
        is_current: True if it is the current branch of the session.
        parent_id: The id of the parent branch.
        branch_point_id: The id of the checkpoint at which it left its parent.
        points: The checkpoints of the branch.
        questions: What the graph asks at its head and nobody has answered, as JSON-like values.
        effects: The number of calls since its newest checkpoint, by their current mark; see `Point`.
        children: The branches that leave from it, in order of creation.
    """

    id: int
    name: str
    status: str = "open"
    is_current: bool = False
    parent_id: int | None = None
    branch_point_id: int | None = None
    points: list[Point] = field(default_factory=list)
    questions: list[Any] = field(default_factory=list)
    effects: Mapping[str, int] = field(default_factory=dict)
    children: list[Branch] = field(default_factory=list)


@dataclass(kw_only=True)
class Tree(PrintableDrawing):
    """The tree of a session's branches. `str(tree)` draws it.

    Args:
        session_name: The name by which the user refers to the session, like `support-42` or `alice/support-42`.
        roots: The branches without a parent. There is one, `main`.
    """

    session_name: str
    roots: list[Branch]

    @classmethod
    def grow(cls, session_name: str, branches: Iterable[Branch]) -> Tree:
        """Build the tree: put each branch below its parent.

        Args:
            session_name: The name of the session.
            branches: The branches in order of creation, without children.

        Example:
            >>> tree = Tree.grow("s", [Branch(id=1, name="main"), Branch(id=2, name="b", parent_id=1)])
            >>> [branch.name for branch in tree.walk()]
            ['main', 'b']
        """
        by_id: dict[int, Branch] = {}
        roots: list[Branch] = []
        for branch in branches:
            by_id[branch.id] = branch
            parent = by_id.get(branch.parent_id) if branch.parent_id is not None else None
            (parent.children if parent else roots).append(branch)
        return cls(session_name=session_name, roots=roots)

    def walk(self) -> Iterable[Branch]:
        """Yield every branch, parents before their children."""
        stack = list(reversed(self.roots))
        while stack:
            branch = stack.pop()
            yield branch
            stack.extend(reversed(branch.children))


BEGUN, DONE, WAITING, FAILED = "begun", "done", "waiting", "failed"
"""The statuses of an explored branch's turn."""


@dataclass(frozen=True, kw_only=True)
class ExploredBranch:
    """One branch of an exploration, with its messages and tool calls since the exploration began.

    Args:
        id: The id of the branch.
        name: Its name, like `explore/2/1`: the second choice at the first step, then the first choice at the second.
        choices: The same choices as numbers, from 1.
        status: `done`, `waiting` (for a person's answer), `failed`, or `begun` if the turn was interrupted.
        answer: The text of the last answer; None if there is none.
        messages: The messages since the exploration began, as `history()` returns them.
        tool_calls: The tool calls since then.
        tokens: The tokens that the models reported since then; None if they report none.
        score: The score that the `score` function returned; None without such a function.
        error: The error that the turn raised, if it failed.
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
class Exploration(PrintableDrawing, Tabular):
    """The results of an exploration. `str` returns a table of the leaves, and so does `to_frame`.

    Args:
        name: The prefix of the names of its branches.
        branch: The name of the branch on which it began.
        branches: All branches that were created, parents before their children. Each ran one turn.
        tokens: The tokens that the models reported in all these turns; None if they report none.
        undeclared: The undeclared tools that were called. Their effects were not reversed.

    Example:
        >>> tried = [ExploredBranch(id=n, name=f"explore/{n}", choices=(n,), score=n / 2) for n in (1, 2)]
        >>> Exploration(name="explore", branch="main", branches=tried).best.name
        'explore/2'
    """

    _COLUMNS: ClassVar[Mapping[str, str]] = {
        "branch": OBJECT,
        "choices": OBJECT,
        "status": OBJECT,
        "score": NUMBER,
        "tokens": COUNT,
        "messages": COUNT,
        "tool_calls": OBJECT,
        "answer": OBJECT,
        "error": OBJECT,
    }

    name: str
    branch: str
    branches: list[ExploredBranch] = field(default_factory=list)
    tokens: int | None = None
    undeclared: list[str] = field(default_factory=list)

    @property
    def leaves(self) -> list[ExploredBranch]:
        """The branches that no other branch continues."""
        parents = {branch.choices[:-1] for branch in self.branches}
        return [branch for branch in self.branches if branch.choices not in parents]

    @property
    def best(self) -> ExploredBranch:
        """The leaf with the highest score; the first one if several have it.

        Raises:
            NotFound: No leaf has a score.
        """
        scored = [leaf for leaf in self.leaves if leaf.score is not None]
        if not scored:
            raise NotFound(
                "No leaf of this exploration has a score. Explore with a score, or choose one of its leaves."
            )
        return max(scored, key=lambda leaf: leaf.score or 0.0)

    def _records(self) -> Iterable[Any]:
        return self.compare()

    def compare(self) -> list[dict[str, Any]]:
        """Return one dict for each leaf, the highest score first."""
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
            for leaf in _sort_by_score(self.leaves)
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as JSON-like data."""
        return {**vars(self), "branches": [branch.to_dict() for branch in self.branches]}


def _sort_by_score(leaves: Iterable[ExploredBranch]) -> list[ExploredBranch]:
    return sorted(leaves, key=lambda leaf: (leaf.score is None, -(leaf.score or 0.0)))
