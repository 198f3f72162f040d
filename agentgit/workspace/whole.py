"""The snapshots of a whole workspace that its undo stack takes: they are the stack's own, and go when it lets go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentgit.workspace.values import UNDO

if TYPE_CHECKING:
    from agentgit.workspace.workspace import Workspace


class WholeSnapshots:
    """What an undo stack needs of its workspace.

    Nothing but the stack uses these snapshots: `keep` does not give them and no restore names them as its safety
    snapshot. So they stay as long as an entry needs them, and nobody misses them after.

    Args:
        workspace: which.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def checkpoint(self) -> str:
        """Take a snapshot; give its id."""
        return self._workspace.save(kind=UNDO).id

    def restore(self, id: str) -> Any:
        """Go back to one."""
        return self._workspace.restore(id)

    def release(self, id: str) -> None:
        """Delete one, but not if somebody has pinned it meanwhile."""
        found = self._workspace.get(id)
        if found is not None and not found.pinned:
            self._workspace.delete(id)
