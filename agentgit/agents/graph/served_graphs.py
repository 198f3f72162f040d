"""The served graphs of a process: what they declare for sessions that none of them has run, and the runs of hosts."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Hashable, Iterable
from typing import ClassVar, NamedTuple, Self
from weakref import WeakSet

from agentgit.agents.wrap import PreparedGraph
from agentgit.effects.declarations import Declaration
from agentgit.effects.registry import Registry
from agentgit.effects.served_sessions import NO_DECLARATIONS, Declarations, add_recent
from agentgit.sessions import ExternalSession

GRAPH_NAME = "graph"
"""The key in the metadata of a session for the name of the served graph that created it."""

RECENT_RUNS = 10_000
"""The number of runs of hosts that are remembered until they end."""


class HostRun(NamedTuple):
    """A run of a host, as it began."""

    thread_id: str
    session_id: int
    branch_id: int
    epoch: int
    head_id: int | None
    start_id: int | None = None


class ServedGraphs:
    """The graphs that serve any session of their user, each for as long as it exists."""

    runs: ClassVar[OrderedDict[str, HostRun]] = OrderedDict()
    """The runs of hosts that have not ended, by their ids: those that run, and those cancelled. All repositories of
    the process share them, because a host executes a file twice: for its graph, and for its saver."""
    held: ClassVar[set[str]] = set()
    """The threads in which a cancelled run is being rolled back, so that no other run may begin."""

    def __init__(self, registry: Registry) -> None:
        self._registry, self._graphs = registry, WeakSet[PreparedGraph]()
        self.of_all: PreparedGraph | None = None
        """The graph that runs each session that no other one runs here; None if there is none."""

    @classmethod
    def of(cls, registry: Registry) -> Self:
        with registry.lock:
            registry.served_graphs = found = registry.served_graphs or cls(registry)
        return found

    def add(self, graph: PreparedGraph) -> None:
        with self._registry.lock:
            self._graphs.add(graph)

    def begin(self, run_id: str, run: HostRun) -> None:
        add_recent(self.runs, run_id, run, RECENT_RUNS)

    def declare(self, session: ExternalSession) -> None:
        """Declare the tools of the graph that created a session that none has run here, or attach the graph of all."""
        # A record cannot tell the tools and stores of two graphs of one name apart.
        name, served = session.metadata.get(GRAPH_NAME), self._registry.session(session.id)
        if self.of_all is not None and name in (None, self.of_all.name) and not served.agent_factories:
            self.of_all.attach(session.id)
        with self._registry.lock:
            graphs = [one for one in self._graphs if (one.user_id, one.name) == (session.user_id, name)]
        if not graphs or served.declarations is not NO_DECLARATIONS:
            return
        declared = [one for graph in graphs for one in graph.declarations]
        if len(graphs) > 1:
            tools = defaultdict[Hashable, list[Declaration]](list)
            for one in declared:
                tools[one.tool_name, one.tool_path, one.enclosing].append(one)
            declared = [one for group in tools.values() if _are_alike(group) for one in group]
        memories = [graph.memory for graph in graphs if graph.memory is not None]
        memory = memories[0] if memories and all(one is memories[0] for one in memories) else None
        self._registry.declare(session.id, Declarations.of(declared, memory))


def _are_alike(declarations: Iterable[Declaration]) -> bool:
    declared = [one for one in declarations if one.effect is not None]
    return all(one.key == declared[0].key and one.is_like(declared[0]) for one in declared)
