"""The registry of this process's functions that undo, verify and repeat recorded calls."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from agentgit.closures import is_defined_by_name, likeness
from agentgit.effects.declarations import ALL, Declaration, DeclaredFunction, ToolRunner
from agentgit.effects.effects import ROLES, CheckFunction, Effect, Undo
from agentgit.effects.function_names import ELSEWHERE, VALUES, FunctionName, possible_change, printable_name
from agentgit.effects.invocation import (
    IMPORTED_REASON,
    INTENDED,
    REVERSE_FAILED,
    REVERSE_UNKNOWN,
    UNKNOWN,
    ToolInvocation,
)
from agentgit.effects.kinds import COMPENSABLE, IDEMPOTENT, IRREVERSIBLE, MEMORY, REVERSIBLE, UNDECLARED, WORKSPACE
from agentgit.effects.memory import Memory, may_be_written, redo_write, undo_write
from agentgit.effects.served_sessions import NO_DECLARATIONS, Declarations, ServedSession, add_recent
from agentgit.errors import NotFound
from agentgit.next_steps import Next, Reason, join_reasons

ALL_SESSIONS = 0
"""The session id that means all sessions."""

RECENT_SESSIONS = 256
"""The number of sessions without an agent or a handle whose resources are kept. A workspace keeps a file open."""

REMEMBERED_CALLS = 1_000
"""The number of calls whose tool objects are remembered. An older call is found like one of another process."""


class Registry:
    """The functions that this process has declared for acting on recorded calls.

    They are declared for the tools of one session when a graph is wrapped, or for all sessions by modules that the
    operator trusts or by the repository's defaults. A call that this process made belongs to the declaration of the
    tool object that ran. Any other call belongs to the declarations with the name, the qualified name and the place of
    its tool that it recorded; if there are several with different functions, to none. A record has only names: they
    select what is declared here, and nothing is imported.
    """

    running_calls: ClassVar[dict[int, int]] = {}
    """The branches of the calls that run in threads of this process, by the ids of the calls. A thread goes on after
    its turn was cancelled."""

    def __init__(self, defaults: Mapping[str, Effect] | None = None) -> None:
        self.lock = threading.RLock()
        """Held while the sessions change. A child process gets a new one."""
        self._sessions: WeakValueDictionary[int, ServedSession] = WeakValueDictionary()
        self._recent: OrderedDict[int, ServedSession] = OrderedDict()
        self._all = self.session(ALL_SESSIONS)
        self.served_graphs: Any = None
        """The `ServedGraphs` of this process, which declare tools of sessions that no graph has run; None if none."""
        self.memory_of_all: Memory | None = None
        """The store that is the long-term memory of each session that has no other one here; None if none is known."""
        self._deferred: list[Callable[[], None]] = []
        self._ran: OrderedDict[int, Declaration] = OrderedDict()
        self._lock = threading.RLock()
        self.declare(ALL_SESSIONS, Declarations.of(Declaration(*one) for one in (defaults or {}).items()))

    def after_fork(self) -> None:
        """Replace the locks in a child process, because a thread of the parent may have held them."""
        self.running_calls.clear()
        self._lock, self.lock = threading.RLock(), threading.RLock()

    def defer(self, declare: Callable[[], None]) -> None:
        """Defer the declarations of a module that is still being executed, until they are first needed."""
        self._deferred.append(declare)

    def declare(self, session_id: int, declarations: Declarations) -> None:
        """Add declarations for the tools of a session and its store, and count it as the most recently served one."""
        with self.lock:
            session = self.session(session_id)
            session.declarations = session.declarations.extended(declarations)
            add_recent(self._recent, session_id, session, RECENT_SESSIONS)

    def remember(self, call_id: int, declaration: Declaration) -> None:
        """Remember the declaration of the tool object that made a call."""
        with self._lock:
            add_recent(self._ran, call_id, declaration, REMEMBERED_CALLS)

    def session(self, session_id: int) -> ServedSession:
        """Return what this process holds for a session. It is kept only for as long as the caller refers to it."""
        with self.lock:
            session = self._sessions.get(session_id)
            if session is None:
                session = self._sessions[session_id] = ServedSession()
            return session

    def _declarations(self, session_id: int) -> Declarations:
        session = self._sessions.get(session_id)
        return NO_DECLARATIONS if session is None else session.declarations

    def memory(self, session_id: int) -> Memory:
        """Return the store that is a session's long-term memory."""
        self._run_deferred()
        memory = self._declarations(session_id).memory or self.memory_of_all
        if memory is None:
            raise NotFound("the store that it wrote to is not attached here", Next("declare"))
        return memory

    def undo(self, session_id: int, call: ToolInvocation) -> Undo:
        """Return the function that undoes one recorded call."""
        if call.is_imported:
            raise NotFound(IMPORTED_REASON)
        if call.effect == MEMORY:
            return partial(undo_write, self.memory(session_id))
        undo = self._find_function("undo", session_id, call)
        if undo is None:
            raise NotFound(f"no undo function for {printable_name(call.tool_name)} is declared here", Next("declare"))
        return undo

    def verify(self, session_id: int, call: ToolInvocation) -> CheckFunction | None:
        """Return the function that checks whether a recorded call happened; None if it has none."""
        if call.effect == MEMORY and not call.is_imported:
            return partial(may_be_written, self.memory(session_id))
        return self._find_function("verify", session_id, call)

    def precheck(self, session_id: int, call: ToolInvocation) -> CheckFunction | None:
        """Return the function that checks whether a recorded call can be undone now; None if it has none."""
        return self._find_function("precheck", session_id, call)

    def failed_on(self, session_id: int, call: ToolInvocation) -> tuple[type[Exception], ...]:
        """Return the exceptions with which the tool of a recorded call reports that it did nothing."""
        effects = _first_effects(self._fitting(session_id, call))
        return effects[0].failed_on if len({one.failed_on for one in effects}) == 1 else ()

    def undoes_unknown(self, session_id: int, call: ToolInvocation) -> bool:
        """Return whether the undo of a call may run although it is unknown whether the call, or its undo, happened."""
        if not call.effect.is_undoable or call.id in self.running_calls:
            return False
        declared = self._current_effects(session_id, call)
        return bool(declared) and all(one.undo_if_unknown for one in declared)

    def runner(self, session_id: int, call: ToolInvocation) -> ToolRunner:
        """Return the function that runs a recorded call again."""
        if call.effect == MEMORY:
            return partial(redo_write, self.memory(session_id))
        tool = self._tool(session_id, call)
        if tool is None or (runner := tool.runner) is None:
            if other := self._other_tool(session_id, call):
                raise NotFound(other)
            raise NotFound(f"the tool {printable_name(call.tool_name)} is unknown", Next("declare"))
        if isinstance(runner, str):
            raise NotFound(runner)
        _require_stored_arguments(call)
        fitting = chain.from_iterable(self._fitting(session_id, call))
        if call.undo is not None and any("undo" in one.functions for one in fitting):
            self._find_recorded("undo", session_id, call)  # a tool with a different undo function is a different tool
        return runner

    def names(self, session_id: int, call: ToolInvocation) -> dict[str, str | None]:
        """Return the names to record for a call that runs again: of its tool, and of its functions by role."""
        if call.is_imported and (tool := self._tool(session_id, call)) is not None:
            return {"tool_path": tool.tool_path, **(tool.effect.paths if tool.effect else {})}
        return {name: getattr(call, name) for name in ("tool_path", *ROLES)}

    def may_be_of_other(self, session_id: int, call: ToolInvocation, declaration: Declaration) -> bool:
        """Return whether a call may be of another tool that has the qualified name and place of a declared one."""
        ran = self._declaration_of(call)
        made = [ran] if ran is not None else [one for group in self._declared_for(session_id, call) for one in group]
        return any(one.tool is not None and not one.is_like_tool(declaration) for one in made)

    def current(self, call: ToolInvocation) -> ToolInvocation:
        """Return a call as this process knows it: one that goes on after its turn was cancelled is running."""
        is_running = call.status == UNKNOWN and call.id in self.running_calls
        return replace(call, status=INTENDED) if is_running else call

    def rerun_obstacle(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot run again here; None if it can."""
        try:
            self.runner(session_id, call)
            tool = None if call.effect == MEMORY else self._tool(session_id, call)
        except NotFound as error:
            return error.reason
        return tool.argument_obstacle(call.args) if tool is not None else None

    def rerun_prohibition(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why the declarations forbid a second run of a recorded call; None if they allow it."""
        if call.effect == MEMORY:
            return None  # `*` stands for the user's tools
        groups = self._declared_for(session_id, call), self._fitting(session_id, call)
        declared = [effect for found in groups for effect in _first_effects(found)]
        if call.effect == UNDECLARED:
            if self.changed_unsaved_files(session_id, call):
                return "it changed files that are not saved, and would change them again"
            return "its effect was not declared when it was called, so that of a second run is unknown"
        if call.effect == IRREVERSIBLE or any(one.kind == IRREVERSIBLE for one in declared):
            return "its tool is irreversible, and must not run a second time"
        # A reversible or idempotent call records an identity only if its tool is declared with once=True.
        was_declared_once = call.identity is not None and call.effect in (REVERSIBLE, IDEMPOTENT)
        if was_declared_once or any(one.once for one in declared):
            return "its tool is declared to run only once"
        return None

    def changed_unsaved_files(self, session_id: int, call: ToolInvocation) -> bool:
        """Return whether a call counts as undeclared because it named files that no snapshot has."""
        workspace, declared = self.session(session_id).workspace, self._current_effects(session_id, call)
        is_of_files = call.effect == UNDECLARED and any(one.kind == WORKSPACE for one in declared)
        return is_of_files and workspace is not None and not workspace.covers(call.args)

    def undo_obstacle(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a recorded call cannot be undone here; None if it can."""
        try:
            self.undo(session_id, call)
        except NotFound as error:
            return error.reason.within("" if call.is_imported else "cannot be reversed here: ")
        is_compensable = COMPENSABLE in (call.effect, *(one.kind for one in self._current_effects(session_id, call)))
        if call.undo_may_have_acted and is_compensable and not self.undoes_unknown(session_id, call):
            text = f"its undo raised {call.error_message}, but may have happened"
            return Reason(text, Next("resolve", call=call.id))
        return None

    def remark(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return what a plan should mention about the functions of a call besides obstacles; None for nothing."""
        remarks: list[str | None] = []
        for role in ROLES:
            recorded = getattr(call, role)
            if recorded is None or call.is_imported:
                continue
            try:
                declared = self._find_recorded(role, session_id, call)
                remarks.append(possible_change(FunctionName.read(recorded), declared.name))
            except NotFound as error:  # other roles report the error when their function is used
                if role == "verify" and call.status in (UNKNOWN, REVERSE_UNKNOWN, REVERSE_FAILED):
                    remarks.append(error.reason)
        return join_reasons(remarks) or None

    # -- lookup of declarations

    def _tool(self, session_id: int, call: ToolInvocation) -> Declaration | None:
        """Return the declaration of the tool that made a call, if this process has it."""
        for group in self._fitting(session_id, call):
            tools = {one.tool_identity: one for one in group if one.runner is not None}
            if len(tools) > 1:
                raise NotFound(_undistinguishable(call))
            if tools:
                return next(iter(tools.values()))
        return None

    def _find_function(self, role: str, session_id: int, call: ToolInvocation) -> Undo | None:
        if call.is_imported:  # a function of this program would inspect another world than the call's
            return None
        has_name = getattr(call, role) is not None
        find = self._find_recorded if has_name else self._find_declared
        declared = find(role, session_id, call)
        if declared is None:
            return None
        if isinstance(declared.function, str):
            raise NotFound(declared.function)
        _require_stored_arguments(call)
        return declared.function

    def _find_recorded(self, role: str, session_id: int, call: ToolInvocation) -> DeclaredFunction:
        recorded, role_name = FunctionName.read(getattr(call, role)), "undo function" if role == "undo" else role
        if declared := self._find_declared(role, session_id, call, recorded):
            return declared
        fitting = chain.from_iterable(self._fitting(session_id, call))
        others = [one.functions[role][0] for one in fitting if role in one.functions]
        if not others:
            if other := self._other_tool(session_id, call):
                raise NotFound(other)
            raise NotFound(f"its {role_name} {printable_name(recorded)} is not declared here", Next("declare"))
        raise NotFound(
            f"its {role_name} was {printable_name(recorded)} at the call, and {printable_name(others[0].name)} "
            "is declared here instead; declare the recorded one again"
        )

    def _find_declared(
        self, role: str, session_id: int, call: ToolInvocation, recorded: FunctionName | None = None
    ) -> DeclaredFunction | None:
        """Return the most specific function that is declared for the tool of a call; None if there is none."""
        ran = self._declaration_of(call)
        own = ran.function(role, recorded) if ran is not None else None
        if own is not None and not is_defined_by_name(own.function):
            return own
        for group in self._declared_for(session_id, call):
            found = filter(None, (one.function(role, recorded) for one in group))
            functions = {likeness(one.function): one for one in found}
            if len(functions) == 1:
                return next(iter(functions.values()))
            if functions and ran is None:
                raise NotFound(_undistinguishable(call))
        path = str(call.tool_path).partition(VALUES)[0]
        for one in chain.from_iterable(self._named(session_id, call)):  # of one factory, whatever values they hold
            shared = one.function(role, recorded) if str(one.tool_path).partition(VALUES)[0] == path else None
            if shared is not None and is_defined_by_name(shared.function):
                return shared
        return own

    def _current_effects(self, session_id: int, call: ToolInvocation) -> list[Effect]:
        """Return the newest declared effects of the tool of a call; of the object that ran, if it is known."""
        groups, ran = [list(group) for group in self._declared_for(session_id, call)], self._declaration_of(call)
        if ran is not None:
            groups = [*([one for one in group if one.tool is ran.tool] for group in groups), [ran]]
        return _first_effects(groups)

    def _other_tool(self, session_id: int, call: ToolInvocation) -> str | None:
        """Return why a call is of none of the tools of its name that are declared here; None if there are none."""
        tools = [one for group in self._named(session_id, call) for one in group if one.tool_path is not None]
        others = [str(one.tool_path) for one in tools if not one.has_path(call.tool_path)]
        if not others or len(others) < len(tools):
            return None
        return (
            f"its tool was {printable_name(str(call.tool_path))} at the call, and {printable_name(others[0])} is "
            "declared here instead; declare the recorded one again"
        )

    def _run_deferred(self) -> None:
        with self._lock:  # a second thread waits until all are declared
            while self._deferred:
                self._deferred[0]()
                self._deferred.pop(0)

    def _declaration_of(self, call: ToolInvocation) -> Declaration | None:
        """Return the declaration of the tool object that made a call; None if another process made it, or long ago."""
        return self._ran.get(call.id) or self._ran.get(call.replay_of or 0)

    def _fitting(self, session_id: int, call: ToolInvocation) -> Iterator[Sequence[Declaration]]:
        """Yield the declaration of the tool object that made a call, if it is known, and those that fit the call."""
        if (ran := self._declaration_of(call)) is not None:
            yield (ran,)
        yield from self._declared_for(session_id, call)

    def _declared_for(self, session_id: int, call: ToolInvocation) -> Iterator[Sequence[Declaration]]:
        """Yield the declarations that may be of the tool of a call, the most specific and newest first.

        Those that are yielded together cannot be told apart.
        """
        named = [group for group in self._named(session_id, call) if group[0].has_path(call.tool_path)]
        tools = [group for group in named if group[0].tool_path is not None]
        there = [group for group in tools if call.tool_path is not None and group[0].enclosing == call.enclosing]
        if tools and (not there or str(call.tool_path).endswith(ELSEWHERE)):
            # Only if there is one such tool, it is the same: the node around it may have been renamed.
            there = [[one for group in there or tools for one in group]]
        yield from there
        yield from (group for group in named if group[0].tool_path is None)

    def _named(self, session_id: int, call: ToolInvocation) -> list[Sequence[Declaration]]:
        self._run_deferred()
        own, for_all = self._declarations(session_id).groups, self._all.declarations.groups
        place = f"{call.enclosing}.{call.tool_name}"
        named = [own.get(place), own.get(call.tool_name), for_all.get(place), for_all.get(call.tool_name)]
        return [group for groups in (*named, for_all.get(ALL)) for group in reversed((groups or {}).values())]


def _first_effects(groups: Iterable[Sequence[Declaration]]) -> list[Effect]:
    """Return the effects of the first group that has any: several, if it is not known which tool it was."""
    effects = ([one.effect for one in group if one.effect is not None] for group in groups)
    return next(filter(None, effects), [])


def _require_stored_arguments(call: ToolInvocation) -> None:
    if call.secret_argument is not None:
        raise NotFound(f"its argument {printable_name(call.secret_argument)} is a secret, which is not stored")


def _undistinguishable(call: ToolInvocation) -> str:
    return (
        f"several tools called {printable_name(call.tool_name)} are declared here, and the record does not say which "
        "one it was; rename one of them"
    )
