"""The resources of the sessions that this process serves: declared functions, workspaces and wrapped graphs.

A session has all of it for as long as an agent or a handle of it exists. Afterwards the process keeps a bounded part:
everything for the last `RECENT_SESSIONS` sessions, and the declarations for the last `DECLARED_SESSIONS`. Sessions with
the same tools, effects and store share their declarations, of which the last `RECENT_DECLARATIONS` different ones are
kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

from agentgit.effects.declarations import Declaration
from agentgit.effects.memory import Memory

K = TypeVar("K")
T = TypeVar("T")

RECENT_SESSIONS = 64
"""The number of sessions without an agent or a handle whose graph and workspace are kept. A workspace keeps a file
open."""

DECLARED_SESSIONS = 50_000
"""The number of sessions without an agent or a handle whose declarations are kept. Each takes about 150 bytes."""

RECENT_RUNS = 10_000
"""The number of runs of hosts that are remembered until they end."""

RECENT_DECLARATIONS = 1_000
"""The number of different declarations that are kept. They differ if each session has its own tools or functions."""


@dataclass(frozen=True, eq=False)
class Declarations:
    """The declarations for the tools of a session, and its store. Never modified, so sessions can share them."""

    groups: dict[str, dict[Hashable, tuple[Declaration, ...]]] = field(default_factory=dict)
    """By the name of the tool, and by the key of declarations between which a recorded call cannot choose."""
    memory: Memory | None = None

    def extended(self, declared: Iterable[Declaration], memory: Memory | None = None) -> Declarations:
        """Return these declarations with newer ones. Those that the newer ones do not replace are kept."""
        newer = defaultdict[str, dict[Hashable, tuple[Declaration, ...]]](dict)
        for one in declared:
            newer[one.tool_name][one.key] = (*newer[one.tool_name].get(one.key, ()), one)
        groups = dict(self.groups)
        for name, by_key in newer.items():
            earlier = groups.get(name, {})
            groups[name] = {key: earlier[key] for key in earlier if key not in by_key} | by_key
        return Declarations(groups, memory or self.memory)

    def identity(self) -> Hashable:
        """Return a key that is equal for declarations of the same objects."""
        by_key = self.groups.values()
        return tuple(one.identity for groups in by_key for group in groups.values() for one in group), id(self.memory)


NO_DECLARATIONS = Declarations()


class ServedSession:
    """The resources of one session in this process.

    Its agents and handles refer to it, and it ends with the last of them.
    """

    def __init__(self, declarations: Declarations) -> None:
        self.declarations = declarations
        self.workspace: Any = None
        """The `rollback.WorkspaceAdapter` of the session's files; None if none is attached here."""
        self.moved_to: int | None = None
        """The branch to which a rollback or switch in this process has moved the session; None if none has."""
        self.agent_factories: WeakKeyDictionary[Any, Callable[[Any, int], Any]] = WeakKeyDictionary()
        """For each context that has wrapped a graph for the session, a function that returns an agent.

        It takes the context and the id of the branch."""


class ServedSessions:
    """The sessions that this process serves, by their ids, and a bounded number of those that it has served."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while the sessions change. A child process gets a new one."""
        self._in_use: WeakValueDictionary[int, ServedSession] = WeakValueDictionary()
        self._recent: OrderedDict[int, ServedSession] = OrderedDict()
        self._declared: OrderedDict[int, ref[Declarations]] = OrderedDict()
        self._shared: WeakValueDictionary[Hashable, Declarations] = WeakValueDictionary()
        self._recent_declarations: OrderedDict[Declarations, None] = OrderedDict()

    def session(self, session_id: int) -> ServedSession:
        """Return what this process holds for a session. It is kept only for as long as the caller refers to it."""
        with self.lock:
            session = self._in_use.get(session_id)
            if session is None:
                session = self._in_use[session_id] = ServedSession(self.declarations(session_id))
            return session

    def keep(self, session_id: int) -> None:
        """Count a session as the most recently served one."""
        with self.lock:
            add_recent(self._recent, session_id, self.session(session_id), RECENT_SESSIONS)

    def declarations(self, session_id: int) -> Declarations:
        """Return the functions that are declared for the tools of a session."""
        if (session := self._in_use.get(session_id)) is not None:
            return session.declarations
        declared = self._declared.get(session_id)
        return (declared() if declared is not None else None) or NO_DECLARATIONS

    def renew(self, session_id: int, declarations: Declarations) -> bool:
        """Count declarations as the most recently used, if a session has exactly these; return whether it has."""
        with self.lock:
            if self.declarations(session_id) is not declarations:
                return False
            self._add_declared(session_id, declarations)
            return True

    def declare(
        self,
        session_id: int,
        declared: Iterable[Declaration],
        memory: Memory | None = None,
    ) -> Declarations:
        """Add declarations for the tools of a session and its store, and return all that it has then."""
        with self.lock:
            extended = self.declarations(session_id).extended(declared, memory)
            declarations = self._shared.setdefault(extended.identity(), extended)
            self._add_declared(session_id, declarations)
            if (session := self._in_use.get(session_id)) is not None:
                session.declarations = declarations
            return declarations

    def _add_declared(self, session_id: int, declarations: Declarations) -> None:
        add_recent(self._recent_declarations, declarations, None, RECENT_DECLARATIONS)
        add_recent(self._declared, session_id, ref(declarations), DECLARED_SESSIONS)


def add_recent(recent: OrderedDict[K, T], key: K, value: T, limit: int) -> None:
    recent[key] = value
    recent.move_to_end(key)
    while len(recent) > limit:
        recent.popitem(last=False)


class HostRun(NamedTuple):
    """A run of a host, as it began."""

    thread_id: str
    session_id: int
    branch_id: int
    epoch: int
    head_id: int | None
    start_id: int | None = None


class HostRuns(OrderedDict[str, HostRun]):
    """The runs of hosts that have not ended in this process, by their ids: those that run, and those cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.held: set[str] = set()
        """The threads in which a cancelled run is being rolled back, so that no other run may begin."""

    def begin(self, run_id: str, run: HostRun) -> None:
        """Remember a run."""
        add_recent(self, run_id, run, RECENT_RUNS)
