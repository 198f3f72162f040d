"""The registry of this process's functions that undo, verify and repeat recorded calls."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Protocol
from weakref import WeakSet

from agentgit.effects.declarations import ALL
from agentgit.effects.effects import (
    IDEMPOTENT,
    IRREVERSIBLE,
    REVERSIBLE,
    ROLES,
    UNDECLARED,
    CheckFunction,
    Effect,
    Undo,
)
from agentgit.effects.files import WorkspaceAdapter
from agentgit.effects.function_names import FunctionName, is_different, possible_change, printable_name
from agentgit.effects.invocation import IMPORTED_REASON, REVERSE_FAILED, REVERSE_UNKNOWN, UNKNOWN, ToolInvocation
from agentgit.effects.memory import Memory, is_memory_write, redoer, undoer, verifier
from agentgit.effects.served_sessions import (
    NO_DECLARATIONS,
    Declarations,
    DeclaredFunction,
    HostRuns,
    ServedSession,
    ServedSessions,
    ToolEffectPairs,
    ToolRunner,
    effect_identity,
)
from agentgit.errors import NotFound

ALL_SESSIONS = 0
"""The session id that means all sessions."""

ROLE_NAMES = {"undo": "undo function", "verify": "verify", "precheck": "precheck"}

GRAPH_NAME = "graph"
"""The key in the metadata of a session for the name of the served graph that created it."""

DECLARE_HINT = "wrap the graph again, or trust the module that declares it"


class ServedGraph(Protocol):
    """A graph that serves any session of a repository."""

    @property
    def tool_effects(self) -> ToolEffectPairs:
        """The effects of its tools."""

    @property
    def user_id(self) -> int:
        """The id of the user whose sessions it serves."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def memory(self) -> Memory | None:
        """Its store; None if it has none."""

    def declare_tools(self, session_id: int, memory: Memory | None) -> None:
        """Declare its tools, and a store, for a session."""

    def attach(self, session_id: int) -> None:
        """Make its tools, its memory and agents of it available to a session."""


class Registry:
    """The functions that this process has declared for acting on recorded calls.

    They are declared for the tools of one session when a graph is wrapped, or for all sessions by modules that the
    operator trusts or by the repository's defaults. A record has only the name of a function. The name selects one of
    the functions that are declared here for that tool; it is never imported.

    If a later declaration omits a function, the earlier one is kept for the calls that were made under it. Decorators
    on tools with the same name elsewhere in the process are ignored: undoing a payment with the function of another
    shop's `pay` would do harm and report the payment as undone.
    """

    def __init__(self, defaults: Mapping[str, Effect] | None = None) -> None:
        self.sessions = ServedSessions()
        self._graphs: WeakSet[ServedGraph] = WeakSet()
        self.graph_of_all: ServedGraph | None = None
        """The graph that runs each session that no other one runs here; None if there is none."""
        self.host_runs = HostRuns()
        """The runs of hosts that have not ended."""
        self.running_calls: dict[int, int] = {}
        """The branches of the calls that run in threads of this process, by the ids of the calls. A thread goes on
        after its turn was cancelled."""
        self._for_all = NO_DECLARATIONS
        self.memory_of_all: Memory | None = None
        """The store that is the long-term memory of each session that has no other one here; None if none is known."""
        self._deferred: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self.declare(ALL_SESSIONS, (defaults or {}).items())

    def before_fork(self) -> None:
        """Do nothing: there is no connection to close."""

    def after_fork(self) -> None:
        """Replace the locks in a child process, because a thread of the parent may have held them."""
        self._lock, self.sessions.lock = threading.RLock(), threading.RLock()

    def defer(self, declare: Callable[[], None]) -> None:
        """Defer the declarations of a module that is still being executed, until they are first needed."""
        self._deferred.append(declare)

    def declare(
        self, session_id: int, effects: ToolEffectPairs, runners: Mapping[str, ToolRunner | str] | None = None
    ) -> None:
        """Register the functions of tools. Import paths are imported now, not when a plan is made."""
        if session_id != ALL_SESSIONS:
            self.sessions.declare(session_id, effects, runners or {})
            return
        with self._lock:
            self._for_all = self._for_all.extended(effects, runners or {})

    def serve(self, graph: ServedGraph) -> None:
        """Remember a graph that serves any session of its user, for as long as it exists."""
        with self._lock:
            self._graphs.add(graph)

    def declare_served_tools(self, session_id: int, user_id: int, name: object) -> None:
        """Declare the tools of the served graph that created a session, if no graph has run it in this process.

        If there is a graph of all sessions, it is attached instead, unless another graph created the session.

        A graph is left out if another one of the same name has a different tool of the same name: it is not known which
        of them ran. For the same reason no store is attached if those graphs have different ones.
        """
        common = self.graph_of_all
        if common is not None and name in (None, common.name) and not self.session(session_id).agent_factories:
            common.attach(session_id)
        if name is None or self.sessions.declarations(session_id) is not NO_DECLARATIONS:
            return
        with self._lock:
            graphs = [one for one in self._graphs if (one.user_id, one.name) == (user_id, name)]
        namesakes = defaultdict[str, set[Hashable]](set)
        for graph in graphs:
            for tool_name, effect in graph.tool_effects:
                namesakes[tool_name].add(effect_identity(effect))
        memories = [graph.memory for graph in graphs if graph.memory is not None]
        memory = memories[0] if memories and all(one is memories[0] for one in memories) else None
        for graph in graphs:
            if all(len(namesakes[tool_name]) == 1 for tool_name, _ in graph.tool_effects):
                graph.declare_tools(session_id, memory)

    def session(self, session_id: int) -> ServedSession:
        """Return what this process holds for a session. It is kept only for as long as the caller refers to it."""
        return self.sessions.session(session_id)

    def workspace(self, session_id: int) -> WorkspaceAdapter | None:
        """Return the workspace that holds a session's files; None if none is attached here."""
        return self.session(session_id).workspace

    def memory(self, session_id: int) -> Memory:
        """Return the store that is a session's long-term memory."""
        self._run_deferred()
        memory = self.sessions.declarations(session_id).memory or self.memory_of_all
        if memory is None:
            raise NotFound(
                "the store that it wrote to is not attached here; wrap the graph with its store again, or trust the "
                "module that has the store"
            )
        return memory

    def undo(self, session_id: int, call: ToolInvocation) -> Undo:
        """Return the function that undoes one recorded call."""
        if call.is_imported:
            raise NotFound(IMPORTED_REASON)
        if is_memory_write(call):
            return undoer(self.memory(session_id))
        undo = self._find_function("undo", session_id, call)
        if undo is None:
            raise NotFound(f"no undo function for {printable_name(call.tool_name)} is declared here; {DECLARE_HINT}")
        return undo

    def verify(self, session_id: int, call: ToolInvocation) -> CheckFunction | None:
        """Return the function that checks whether a recorded call happened; None if it has none."""
        if is_memory_write(call) and not call.is_imported:
            return verifier(self.memory(session_id))
        return self._find_function("verify", session_id, call)

    def precheck(self, session_id: int, call: ToolInvocation) -> CheckFunction | None:
        """Return the function that checks whether a recorded call can be undone now; None if it has none."""
        return self._find_function("precheck", session_id, call)

    def failed_on(self, session_id: int, call: ToolInvocation) -> tuple[type[Exception], ...]:
        """Return the exceptions with which the tool of a recorded call reports that it did nothing."""
        effect = self._find_effect(session_id, call.tool_name)
        return effect.failed_on if effect is not None else ()

    def runner(self, session_id: int, call: ToolInvocation) -> ToolRunner:
        """Return the function that runs a recorded call again."""
        if is_memory_write(call):
            return redoer(self.memory(session_id))
        self._run_deferred()
        runners = (declared.runners.get(name) for declared, name in self._places(session_id, call.tool_name)[:2])
        runner = next((one for one in runners if one is not None), None)
        if runner is None:
            raise NotFound(
                f"the tool {printable_name(call.tool_name)} is unknown; wrap a graph that has it in a ToolNode, "
                "or trust its module (MODULE:NAME if a function returns it)"
            )
        if isinstance(runner, str):
            raise NotFound(runner)
        if call.undo is not None and self._candidates(session_id, call.tool_name, "undo"):
            self._find_recorded("undo", session_id, call)  # a tool with a different undo function is a different tool
        return runner

    def rerun_obstacle(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot run again here; None if it can."""
        try:
            self.runner(session_id, call)
        except NotFound as error:
            return str(error)
        return None

    def rerun_prohibition(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why the declarations forbid a second run of a recorded call; None if they allow it."""
        if is_memory_write(call):
            return None  # `*` stands for the user's tools
        declared = self._find_effect(session_id, call.tool_name)
        if call.effect == UNDECLARED:
            return "its effect was not declared when it was called, so that of a second run is unknown"
        if call.effect == IRREVERSIBLE or (declared is not None and declared.kind == IRREVERSIBLE):
            return "its tool is irreversible, and must not run a second time"
        # A reversible or idempotent call records an identity only if its tool is declared with once=True.
        was_declared_once = call.identity is not None and call.effect in (REVERSIBLE, IDEMPOTENT)
        if was_declared_once or (declared is not None and declared.once):
            return "its tool is declared to run only once"
        return None

    def undo_obstacle(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot be undone here; None if it can."""
        try:
            self.undo(session_id, call)
        except NotFound as error:
            return str(error) if call.is_imported else f"cannot be reversed here: {error}"
        return None

    def remark(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return what a plan should mention about the functions of a call besides obstacles; None for nothing."""
        remarks = [self._remark(role, session_id, call) for role in ROLES if not call.is_imported]
        return "; ".join(remark for remark in remarks if remark is not None) or None

    def _remark(self, role: str, session_id: int, call: ToolInvocation) -> str | None:
        recorded = getattr(call, role)
        if recorded is None:
            return None
        try:
            declared = self._find_recorded(role, session_id, call)
        except NotFound as error:  # other roles report the error when their function is used
            is_verify_needed = role == "verify" and call.status in (UNKNOWN, REVERSE_UNKNOWN, REVERSE_FAILED)
            return str(error) if is_verify_needed else None
        return possible_change(FunctionName.read(recorded), declared.name)

    # -- lookup of declarations

    def _find_function(self, role: str, session_id: int, call: ToolInvocation) -> Undo | None:
        if call.is_imported:  # a function of this program would inspect another world than the call's
            return None
        if getattr(call, role) is not None:
            return _require_imported(self._find_recorded(role, session_id, call))
        candidates = self._candidates(session_id, call.tool_name, role)
        return _require_imported(candidates[0]) if candidates else None  # the call recorded no name that could differ

    def _find_recorded(self, role: str, session_id: int, call: ToolInvocation) -> DeclaredFunction:
        """Return the declared function whose name a call recorded."""
        recorded, candidates = (
            FunctionName.read(getattr(call, role)),
            self._candidates(session_id, call.tool_name, role),
        )
        if declared := next(
            (candidate for candidate in candidates if not is_different(recorded, candidate.name)), None
        ):
            return declared
        if not candidates:
            raise NotFound(f"its {ROLE_NAMES[role]} {printable_name(recorded)} is not declared here; {DECLARE_HINT}")
        raise NotFound(
            f"its {ROLE_NAMES[role]} was {printable_name(recorded)} at the call, and "
            f"{printable_name(candidates[0].name)} is declared here "
            "instead; declare the recorded one again"
        )

    def _candidates(self, session_id: int, tool_name: str, role: str) -> list[DeclaredFunction]:
        """List the functions that are declared for a tool in a role, the most specific and newest declaration first."""
        self._run_deferred()
        return [
            function
            for declared, name in self._places(session_id, tool_name)
            for function in reversed(declared.functions.get((name, role), {}).values())
        ]

    def _find_effect(self, session_id: int, tool_name: str) -> Effect | None:
        """Return the most specific declared effect of a tool; None if there is none."""
        self._run_deferred()
        effects = (declared.effects.get(name) for declared, name in self._places(session_id, tool_name))
        return next((effect for effect in effects if effect is not None), None)

    def _run_deferred(self) -> None:
        with self._lock:  # a second thread waits until all are declared
            while self._deferred:
                self._deferred[0]()
                self._deferred.pop(0)

    def _places(self, session_id: int, tool_name: str) -> tuple[tuple[Declarations, str], ...]:
        """Return the declarations, and the names in them, that may apply to a tool, the most specific first."""
        declared = self.sessions.declarations(session_id)
        return (declared, tool_name), (self._for_all, tool_name), (self._for_all, ALL)


def _require_imported(declared: DeclaredFunction) -> Undo:
    if isinstance(declared.function, str):
        raise NotFound(declared.function)
    return declared.function
