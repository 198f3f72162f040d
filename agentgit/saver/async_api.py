"""The saver's async methods. Each runs its sync twin in a thread of the database, without blocking the event loop."""

from __future__ import annotations

from collections.abc import AsyncIterator, Generator, Mapping, Sequence
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

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See `get_tuple`."""
        return await self.database.run(self.get_tuple, config)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See `get_delta_channel_history`."""
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
        while (checkpoint_tuple := await self.database.run(next, tuples, None)) is not None:
            yield checkpoint_tuple

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See `put`."""
        if self.turn is not None and not self.turn.writes_on_put:
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
        await self.database.run(self.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """See `delete_for_runs`."""
        await self.database.run(self.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """See `copy_thread`."""
        await self.database.run(self.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """See `prune`."""
        await self.database.run(self.prune, thread_ids, strategy=strategy)

    async def agc(self, *, dry_run: bool = False, shrink: bool = False, imports: bool = False) -> Collected:
        """See `gc`."""
        return await self.database.run(self.gc, dry_run=dry_run, shrink=shrink, imports=imports)
