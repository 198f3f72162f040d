"""The tree that the branches of a session form, from columns alone: it never looks into a state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from agentgit.values import Drawn


@dataclass(frozen=True, kw_only=True)
class Point:
    """A checkpoint as the tree and the log know it.

    Args:
        id: The checkpoint.
        number: Its place on its branch, from 1.
        name: The name a person gave it, or None.
        kind: `before` a turn, `after` a turn, after `tools`, `branch` (where a branch begins) or `named`.
        is_auto: True if agentgit made it by itself.
        created_at: The time at which it was made, aware UTC.
        position: The number of tool invocations before it.
        message_count: The number of messages of its conversation.
        title: One short line about what happened there.
        effects: How many calls since the checkpoint before it have which mark (`agentgit.effects.call_marks`), as they
            stand now; what only read, or was answered from a record, has none.
        tags: The names that people gave to it, each unique in the session.
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
    """A branch in the tree, with its points (oldest first) and the branches that leave from it.

    Args:
        id: The internal session.
        name: Unique in the session.
        status: `open`, `running`, `replaying` or `partial`.
        is_current: True if the session continues on it.
        parent_id: The branch it left from.
        branch_point_id: The checkpoint where it left.
        points: Its checkpoints.
        effects: As those of a point, of the calls since its newest checkpoint.
        children: Branches that leave from it, in the order they were made.
    """

    id: int
    name: str
    status: str = "open"
    is_current: bool = False
    parent_id: int | None = None
    branch_point_id: int | None = None
    points: list[Point] = field(default_factory=list)
    effects: Mapping[str, int] = field(default_factory=dict)
    children: list[Branch] = field(default_factory=list)


@dataclass(kw_only=True)
class Tree(Drawn):
    """The branches of one session, from the root. `str` draws it.

    Args:
        session_name: The name of the session.
        roots: The branches without a parent; there is one, `main`.
    """

    session_name: str
    roots: list[Branch]

    @classmethod
    def grow(cls, session_name: str, branches: Iterable[Branch]) -> Tree:
        """Hang each branch under its parent.

        Args:
            session_name: The name of the session.
            branches: In the order they were made, without children.

        Example:
            >>> tree = Tree.grow("s", [Branch(id=1, name="main"), Branch(id=2, name="b", parent_id=1)])
            >>> [branch.name for branch in tree.walk()]
            ['main', 'b']
        """
        known: dict[int, Branch] = {}
        roots: list[Branch] = []
        for branch in branches:
            known[branch.id] = branch
            parent = known.get(branch.parent_id) if branch.parent_id is not None else None
            (parent.children if parent else roots).append(branch)
        return cls(session_name=session_name, roots=roots)

    def walk(self) -> Iterable[Branch]:
        """Visit every branch, parents before their children."""
        stack = list(reversed(self.roots))
        while stack:
            branch = stack.pop()
            yield branch
            stack.extend(reversed(branch.children))
