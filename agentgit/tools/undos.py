"""The undo functions at hand."""

from __future__ import annotations

from agentgit.errors import InvalidInput, NotFound
from agentgit.tools.effects import Undo, declared_by_name, resolve
from agentgit.tools.invocation import ToolInvocation


class Undos:
    """The undo functions at hand: those that graphs were wrapped with here, and those that can be imported."""

    def __init__(self) -> None:
        self._declared: dict[tuple[int, str], Undo | str] = {}

    def declare(self, session_id: int, tool_name: str, undo: Undo | str) -> None:
        """Remember the undo function of a tool; it wins over the import path in the record, which may be older."""
        self._declared[session_id, tool_name] = undo

    def find(self, session_id: int, call: ToolInvocation) -> Undo:
        """Give the function that undoes one recorded call.

        Raises:
            NotFound: there is none here.
        """
        decorated = declared_by_name(call.tool_name)
        undo = self._declared.get((session_id, call.tool_name)) or call.undo or (decorated.undo if decorated else None)
        if undo is None:
            raise NotFound(
                f"its undo function is not here; wrap the graph with effects={{{call.tool_name!r}: ...}} first, or "
                "declare the undo function by an import path"
            )
        return resolve(undo) if isinstance(undo, str) else undo

    def missing(self, session_id: int, call: ToolInvocation) -> str | None:
        """Say why a recorded call cannot be undone here; None if it can."""
        try:
            self.find(session_id, call)
        except (NotFound, InvalidInput) as error:
            return str(error)
        return None
