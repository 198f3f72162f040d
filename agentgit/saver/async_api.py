"""The saver's async methods. Each runs its sync twin without blocking the event loop.

Steps and reads run on the loop itself where the driver can (`Database.run`). What locks a session or a thread runs in a
thread: a transaction on the loop would keep its locks while other tasks run, and one of them may wait for them with a
sync connection, as a node does that reads its own turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from agentgit.saver.recorded_turn import RecordedTurn
from agentgit.saver.thread_operations import ThreadOperations
from agentgit.store.maintenance.gc import Collected


class _Done:
    """The result of a method that has done its work, and may be awaited."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


DONE = _Done()


class AsyncSaverMethods(ThreadOperations):
    """The async half of LangGraph's `BaseCheckpointSaver`, implemented with the sync half."""

    turn: RecordedTurn | None

    async def _flush_turn(self) -> None:
        """Write what waits in the turn, before something is read. Reading would do it too, but block the loop."""
        turn = self.turn
        if turn is not None and turn.is_waiting:
            await asyncio.to_thread(turn.flush)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        await self._flush_turn()
        return await self.database.run(self.get_tuple, config)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `get_delta_channel_history`."""
        await self._flush_turn()
        return await self.database.run(self.get_delta_channel_history, config=config, channels=channels)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See `list`."""
        tuples = self.list(config, filter=filter, before=before, limit=limit)
        while (checkpoint_tuple := await self._next(tuples)) is not None:
            yield checkpoint_tuple

    async def _next(self, tuples: Iterator[CheckpointTuple]) -> CheckpointTuple | None:
        await self._flush_turn()
        return await self.database.run(next, tuples, None)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        turn = self.turn
        if turn is not None:  # its lock must not be held while the loop runs other tasks, as in `run`
            if turn.writes_on_put:
                return await asyncio.to_thread(self.put, config, checkpoint, metadata, new_versions)
            return self.put(config, checkpoint, metadata, new_versions)
        return await self.database.run(self.put, config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See `put_writes`."""
        if self.turn is not None:
            self.put_writes(config, writes, task_id, task_path)
            return
        await self.database.run(self.put_writes, config, writes, task_id, task_path)

    async def adelete_thread(self, thread_id: str) -> None:
        """See `delete_thread`."""
        await asyncio.to_thread(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`."""
        await asyncio.to_thread(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await asyncio.to_thread(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await asyncio.to_thread(self.prune, thread_ids, strategy=strategy)

    async def agc(self, *, dry_run: bool = False, shrink: bool = False, imports: bool = False) -> Collected:
        """See `gc`."""
        return await asyncio.to_thread(self.gc, dry_run=dry_run, shrink=shrink, imports=imports)
