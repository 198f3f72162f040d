"""What this process can do for a recorded call: undo it, look at it, make it again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from agentgit.errors import InvalidInput, NotFound
from agentgit.tools.declared import default
from agentgit.tools.effects import Effect, Look, Undo, resolve
from agentgit.tools.files import Keeper
from agentgit.tools.invocation import ELSEWHERE, ToolInvocation

Run = Callable[[dict[str, Any], str], Any]
"""Calls a tool with recorded arguments, on the thread of a branch; gives what it returned, or what to await for it."""


class Registry:
    """The functions at hand: those that graphs were wrapped with here, and those that can be imported.

    What was declared here of a session's tools wins over the import path in a record, which may be older; that wins
    over the defaults. What a later declaration leaves out stays as an earlier one had it, for the calls that were made
    under that one. What a decorator says of a tool of the same name elsewhere in the process says nothing: to undo a
    payment with the function of another shop's `pay` would do harm, and call it undone.

    Args:
        defaults: what the repository says of tools of which nothing else is said, by name or `*`.
    """

    def __init__(self, defaults: Mapping[str, Effect] | None = None) -> None:
        self._defaults = defaults or {}
        self._declared: dict[tuple[int, str, str], Undo | str] = {}
        self._runners: dict[tuple[int, str], Run | str] = {}
        self._keepers: dict[int, Keeper] = {}
        self._ask: Callable[[int], None] | None = None
        self._asked: set[int] = set()
        self._asking = threading.RLock()

    def offer(self, ask: Callable[[int], None]) -> None:
        """Have somebody asked for the tools of each session, once, before its calls are looked at.

        Args:
            ask: gets the external session; declares and provides what it has.
        """
        self._ask = ask

    def declare(self, session_id: int, tool_name: str, effect: Effect) -> None:
        """Remember the functions that belong to a tool of a session."""
        for role, function in effect.functions():
            self._declared[session_id, tool_name, role] = function

    def provide(self, session_id: int, tool_name: str, run: Run | str) -> None:
        """Remember how a tool of a session is called.

        Args:
            session_id: the external session.
            tool_name: which tool.
            run: calls it; or a sentence that says why it can be called only by its graph.
        """
        self._runners[session_id, tool_name] = run

    def attach(self, session_id: int, keeper: Keeper) -> None:
        """Remember which workspace a session's files are in."""
        self._keepers[session_id] = keeper

    def keeper(self, session_id: int) -> Keeper | None:
        """Give the workspace that a session's files are in; None if none was attached here."""
        return self._keepers.get(session_id)

    def undo(self, session_id: int, call: ToolInvocation) -> Undo:
        """Give the function that undoes one recorded call.

        Raises:
            NotFound: there is none here.
            InvalidInput: its import path leads to something else.
        """
        if call.is_imported:
            raise NotFound(ELSEWHERE)
        undo = self._find("undo", session_id, call)
        if undo is None:
            raise NotFound(
                f"its undo function is not here; wrap the graph with effects={{{call.tool_name!r}: ...}} first, or "
                "declare the undo function by an import path"
            )
        return undo

    def verify(self, session_id: int, call: ToolInvocation) -> Look | None:
        """Give the function that looks whether one recorded call happened; None if none was declared.

        Raises:
            NotFound, InvalidInput: its import path leads nowhere, or to something else.
        """
        return self._find("verify", session_id, call)

    def precheck(self, session_id: int, call: ToolInvocation) -> Look | None:
        """Give the function that looks whether one recorded call can be undone now; None if none was declared.

        Raises:
            NotFound, InvalidInput: its import path leads nowhere, or to something else.
        """
        return self._find("precheck", session_id, call)

    def runner(self, session_id: int, call: ToolInvocation) -> Run:
        """Give the function that makes one recorded call again.

        Raises:
            NotFound: its tool is not at hand, or can be called only by its graph.
        """
        self._expect(session_id)
        run = self._runners.get((session_id, call.tool_name))
        if run is None:
            raise NotFound(
                f"the tool {call.tool_name} is not here; first wrap a graph that has it in a ToolNode, or name its "
                "module on the command line: --import"
            )
        if isinstance(run, str):
            raise NotFound(run)
        return run

    def cannot_run(self, session_id: int, call: ToolInvocation) -> str | None:
        """Say why a recorded call cannot be made again here; None if it can."""
        try:
            self.runner(session_id, call)
        except NotFound as error:
            return str(error)
        return None

    def missing(self, session_id: int, call: ToolInvocation) -> str | None:
        """Say why a recorded call cannot be undone here; None if it can."""
        try:
            self.undo(session_id, call)
        except (NotFound, InvalidInput) as error:
            return str(error)
        return None

    def _find(self, role: str, session_id: int, call: ToolInvocation) -> Undo | None:
        if call.is_imported:  # a function that looks at the world of this program would see another one
            return None
        self._expect(session_id)
        found = self._declared.get((session_id, call.tool_name, role)) or getattr(call, role)
        found = found or getattr(default(self._defaults, call.tool_name), role, None)
        return resolve(found) if isinstance(found, str) else found

    def _expect(self, session_id: int) -> None:
        if self._ask is None or session_id in self._asked:
            return
        with self._asking:  # who comes second waits until all is there
            if session_id not in self._asked:
                self._ask(session_id)
                self._asked.add(session_id)
