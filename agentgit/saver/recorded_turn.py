"""The interface of a turn for its saver."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from langgraph.checkpoint.base import CheckpointTuple

from agentgit.store.threads.graph_rows import GraphCheckpoint, GraphKey, NewCheckpoint, NewWrites


class RecordedTurn(Protocol):
    """The part of a turn that a saver uses."""

    @property
    def owner(self) -> str:
        """The owner of the branch while the turn runs, which no other turn has."""

    @property
    def writes_on_put(self) -> bool:
        """True if `put` writes to the database, so that it may take time."""

    @property
    def goes_on(self) -> bool:
        """True if the graph goes on with what waits, and acts."""

    def saving(self, graph_key: GraphKey) -> AbstractContextManager[None]:
        """Record that the block saves a graph checkpoint or fails to."""

    def put(self, new: NewCheckpoint) -> bool:
        """Take over a graph checkpoint. Return False if the saver must store it, because it is not one of the turn."""

    def put_writes(self, new: NewWrites) -> bool:
        """Take over the writes of a task. Return False if the saver must store them."""

    def known_head(self, graph_key: GraphKey) -> GraphCheckpoint | None:
        """Return the newest graph checkpoint if the turn knows it and nothing was written on top of it."""

    def on_read(self, thread: str, ns: str, checkpoint: GraphCheckpoint | None) -> None:
        """Record that the graph looked for a checkpoint, and which one it found."""

    def with_answers(self, found: CheckpointTuple, channel: str | None) -> CheckpointTuple:
        """Return the state of a subgraph that begins, with answers to the calls left open in its conversation."""

    def flush(self) -> None:
        """Write what waits, if anything."""
