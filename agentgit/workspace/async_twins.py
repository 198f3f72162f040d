"""The async methods of a workspace: each does what its sync twin does, in a thread, while the event loop goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentgit.workspace.values import FileCheckpoint, Freed, Restored, RestorePlan, WorkspaceDiff

if TYPE_CHECKING:
    from agentgit.workspace.workspace import Workspace


class AsyncTwins:
    """The async half of a `Workspace`, by way of the sync half."""

    async def ainitialize(self: Workspace, *arguments: Any, **named: Any) -> bool:  # type: ignore[misc]
        """See `initialize`."""
        return await asyncio.to_thread(self.initialize, *arguments, **named)

    async def asave(self: Workspace, *arguments: Any, **named: Any) -> FileCheckpoint:  # type: ignore[misc]
        """See `save`."""
        return await asyncio.to_thread(self.save, *arguments, **named)

    async def acreate(self: Workspace, *arguments: Any, **named: Any) -> FileCheckpoint:  # type: ignore[misc]
        """See `create`."""
        return await asyncio.to_thread(self.create, *arguments, **named)

    async def acheckpoint(self: Workspace, *arguments: Any, **named: Any) -> str:  # type: ignore[misc]
        """See `checkpoint`."""
        return await asyncio.to_thread(self.checkpoint, *arguments, **named)

    async def alist(self: Workspace, *arguments: Any, **named: Any) -> list[FileCheckpoint]:  # type: ignore[misc]
        """See `list`."""
        return await asyncio.to_thread(self.list, *arguments, **named)

    async def aget(self: Workspace, *arguments: Any, **named: Any) -> FileCheckpoint | None:  # type: ignore[misc]
        """See `get`."""
        return await asyncio.to_thread(self.get, *arguments, **named)

    async def arestore(self: Workspace, *arguments: Any, **named: Any) -> Restored:  # type: ignore[misc]
        """See `restore`."""
        return await asyncio.to_thread(self.restore, *arguments, **named)

    async def aplan_restore(self: Workspace, *arguments: Any, **named: Any) -> RestorePlan:  # type: ignore[misc]
        """See `plan_restore`."""
        return await asyncio.to_thread(self.plan_restore, *arguments, **named)

    async def arewind(self: Workspace, *arguments: Any, **named: Any) -> Restored:  # type: ignore[misc]
        """See `rewind`."""
        return await asyncio.to_thread(self.rewind, *arguments, **named)

    async def aundo(self: Workspace, *arguments: Any, **named: Any) -> Restored | None:  # type: ignore[misc]
        """See `undo`."""
        return await asyncio.to_thread(self.undo, *arguments, **named)

    async def adiff(self: Workspace, *arguments: Any, **named: Any) -> WorkspaceDiff:  # type: ignore[misc]
        """See `diff`."""
        return await asyncio.to_thread(self.diff, *arguments, **named)

    async def achanged(self: Workspace, *arguments: Any, **named: Any) -> tuple[str, ...]:  # type: ignore[misc]
        """See `changed`."""
        return await asyncio.to_thread(self.changed, *arguments, **named)

    async def adelete(self: Workspace, *arguments: Any, **named: Any) -> FileCheckpoint:  # type: ignore[misc]
        """See `delete`."""
        return await asyncio.to_thread(self.delete, *arguments, **named)

    async def apin(self: Workspace, *arguments: Any, **named: Any) -> None:  # type: ignore[misc]
        """See `pin`."""
        await asyncio.to_thread(self.pin, *arguments, **named)

    async def aunpin(self: Workspace, *arguments: Any, **named: Any) -> None:  # type: ignore[misc]
        """See `unpin`."""
        await asyncio.to_thread(self.unpin, *arguments, **named)

    async def agc(self: Workspace, *arguments: Any, **named: Any) -> Freed:  # type: ignore[misc]
        """See `gc`."""
        return await asyncio.to_thread(self.gc, *arguments, **named)
