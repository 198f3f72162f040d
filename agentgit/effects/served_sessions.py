"""The resources of the sessions that this process serves: declared functions, workspaces and wrapped graphs.

A session has them for as long as an agent or a handle of it exists, or the registry keeps them.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from weakref import WeakKeyDictionary

from agentgit.effects.declarations import Declaration
from agentgit.effects.memory import Memory

K = TypeVar("K")
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Declarations:
    """The declarations for the tools of a session, and its store. Never modified, so sessions can share them."""

    groups: dict[str, dict[Hashable, tuple[Declaration, ...]]] = field(default_factory=dict)
    """By the name of the tool, and by the key of declarations between which a recorded call cannot choose."""
    memory: Memory | None = None

    @classmethod
    def of(cls, declared: Iterable[Declaration], memory: Memory | None = None) -> Self:
        """Return the declarations of one graph or module."""
        groups = defaultdict[str, dict[Hashable, tuple[Declaration, ...]]](dict)
        for one in declared:
            groups[one.tool_name][one.key] = (*groups[one.tool_name].get(one.key, ()), one)
        return cls(groups, memory)

    def extended(self, newer: Declarations) -> Declarations:
        """Return these declarations with newer ones; those of tools that do something else are kept."""
        if self in (NO_DECLARATIONS, newer):
            return newer
        groups = dict(self.groups)
        for name, by_key in newer.groups.items():
            earlier = groups.get(name, {})
            groups[name] = {key: earlier[key] for key in earlier if key not in by_key}
            for key, group in by_key.items():
                others = [one for one in earlier.get(key, ()) if not any(map(one.is_like, group))]
                groups[name][key] = (*others[-1:], *group)
        return Declarations(groups, newer.memory or self.memory)


NO_DECLARATIONS = Declarations()


class ServedSession:
    """The resources of one session in this process. Its agents and handles refer to it."""

    def __init__(self) -> None:
        self.declarations = NO_DECLARATIONS
        self.workspace: Any = None
        """The `rollback.WorkspaceAdapter` of the session's files; None if none is attached here."""
        self.moved_to: int | None = None
        """The branch to which a rollback or switch in this process has moved the session; None if none has."""
        self.agent_factories: WeakKeyDictionary[Any, Callable[[Any, int], Any]] = WeakKeyDictionary()
        """For each context that has wrapped a graph for the session, a function that returns an agent.

        It takes the context and the id of the branch."""


def add_recent(recent: OrderedDict[K, T], key: K, value: T, limit: int) -> None:
    recent[key] = value
    recent.move_to_end(key)
    while len(recent) > limit:
        recent.popitem(last=False)
