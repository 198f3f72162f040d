"""The two sides of a merge, with their values and messages, and the bases that both are compared with.

The merge bases are the newest checkpoints in the history of both sides. The data of a merge checkpoint records what was
merged. The history of a branch is therefore not a line: it includes the merged branch and everything merged into that
branch before. If two branches merged each other, or both merged the same two other branches, there may be several
bases, none of which is in the history of another.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from langgraph.channels.base import BaseChannel
from langgraph.pregel import Pregel
from sqlalchemy import Connection, and_, or_

from agentgit.langgraph_internals import channels_from_checkpoint
from agentgit.saver.config import config_of
from agentgit.saver.saver import SQLModelSaver
from agentgit.sessions.messages import from_stored
from agentgit.store.objects.content import Content
from agentgit.store.objects.plain_values import show
from agentgit.store.queries.comparison import CheckpointComparer
from agentgit.store.records.checkpoints import merge_source_id
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, LIST
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import conversation_channel, is_shown
from agentgit.store.threads.graph_store import GraphKey


class Side:
    """The state at a graph checkpoint."""

    def __init__(
        self, saver: SQLModelSaver, graph: Pregel[Any, Any, Any, Any], thread: str, checkpoint_id: str | None
    ) -> None:
        self.saver = saver
        self.graph = graph
        self.graph_key = GraphKey(thread, "", checkpoint_id) if checkpoint_id is not None else None

    @functools.cached_property
    def _graph_checkpoint(self) -> Any:
        if self.graph_key is None:
            return None
        with self.saver.database.reading() as connection:
            return self.saver.store.find(connection, self.graph_key)

    @property
    def hashes(self) -> Mapping[str, bytes]:
        """The hash of each value, without LangGraph's internal channels."""
        return (
            {name: key for name, key in self._graph_checkpoint.values.items() if is_shown(name)}
            if self._graph_checkpoint
            else {}
        )

    @property
    def _content(self) -> Content:
        return self.saver.store.content(self._graph_checkpoint.session_id)

    @functools.cached_property
    def conversation_channel(self) -> str | None:
        """The channel that holds the conversation as a list of messages; None if there is none."""
        name = conversation_channel(self._graph_checkpoint.header["counts"]) if self._graph_checkpoint else None
        if name is None:
            return None
        with self.saver.database.reading() as connection:
            key = self.hashes[name]
            leaf = self._content.blobs.get_many(connection, [key])[key]
        return name if leaf.type == LIST else None

    @functools.cached_property
    def message_hashes(self) -> Sequence[bytes]:
        """The hash of each message, oldest first."""
        if self.conversation_channel is None:
            return ()
        with self.saver.database.reading() as connection:
            return self.saver.store.message_hashes(connection, self._graph_checkpoint)

    def messages(self, positions: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return the shown form of the messages at these positions, or of all."""
        keys = self.message_hashes if positions is None else [self.message_hashes[position] for position in positions]
        if not keys:
            return []
        with self.saver.database.reading() as connection:
            stored = self.saver.store.messages_of(connection, self._graph_checkpoint.session_id, keys)
            return [from_stored(message) for message in stored]

    def shown_value(self, name: str) -> Any:
        """Return the shown form of one value; None if there is none."""
        key = self.hashes.get(name)
        if key is None:
            return None
        with self.saver.database.reading() as connection:
            return show(self._content.get(connection, [key])[key])

    @functools.cached_property
    def _channels(self) -> Mapping[str, BaseChannel[Any, Any, Any]]:
        checkpoint_tuple = self.saver.get_tuple(config_of(self.graph_key)) if self.graph_key is not None else None
        if checkpoint_tuple is None:
            return {}
        channels, _ = channels_from_checkpoint(
            self.graph.channels, checkpoint_tuple.checkpoint, saver=self.saver, config=checkpoint_tuple.config
        )
        return channels

    def live_value(self, name: str) -> Any:
        """Return one value as the live object that the graph uses; None if there is none."""
        channel = self._channels.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def value_after(self, name: str, write: Any) -> Any:
        """Return the value that a channel would have after one more write, without changing it."""
        channel = self._channels[name].from_checkpoint(copy(self.live_value(name)))
        channel.update([write])
        return channel.get()


Ancestry = dict[int, int]
"""The history of a checkpoint: the id of each branch in it, with the number of the last checkpoint included."""


class MergeBaseFinder:
    """Finds the bases of a merge."""

    def __init__(self, store: Store) -> None:
        self.checkpoints = store.checkpoints
        self.comparer = CheckpointComparer(store)

    def find(self, connection: Connection, ours: StoredRow, theirs: StoredRow) -> list[StoredRow]:
        """Find the newest checkpoints in the history of both, newest first; none if they are of two sessions."""
        our_history, their_history = (self._load_history(connection, row) for row in (ours, theirs))
        common = [
            and_(
                CHECKPOINT.c.internal_session_id == branch,
                CHECKPOINT.c.number == min(our_history[branch], their_history[branch]),
            )
            for branch in our_history.keys() & their_history.keys()
        ]
        rows = self.checkpoints.find(connection, or_(*common)) if common else []
        # The first checkpoint of a branch repeats the older one that it was forked from, which is common as well.
        return self._newest(connection, [row for row in rows if row.kind != "branch"] or rows)

    def _newest(self, connection: Connection, rows: Sequence[StoredRow]) -> list[StoredRow]:
        """Return the checkpoints that are not in the history of another one."""
        newest: list[StoredRow] = []
        covered: Ancestry = {}
        for row in sorted(rows, key=lambda row: -row.id):
            if row.number > covered.get(row.internal_session_id, 0):
                newest.append(row)
                for branch, number in self._load_history(connection, row).items():
                    covered[branch] = max(number, covered.get(branch, 0))
        return newest

    def _load_history(self, connection: Connection, row: StoredRow) -> Ancestry:
        """Return the history of a checkpoint: its own path, and everything merged into it."""
        history: Ancestry = {}
        pending = [row]
        while pending:
            checkpoint = pending.pop()
            for branch, number in self.comparer.last_numbers(connection, checkpoint).items():
                history[branch] = max(number, history.get(branch, 0))
            merged = self._merged_checkpoints(
                connection, self.comparer.find_with_data(connection, checkpoint), checkpoint.external_session_id
            )
            pending += [one for one in merged if one.number > history.get(one.internal_session_id, 0)]
        return history

    def _merged_checkpoints(
        self, connection: Connection, rows_with_data: Sequence[StoredRow], session_id: int
    ) -> Sequence[StoredRow]:
        """Read the checkpoints that were merged; those deleted since are ignored."""
        ids = {source for row in rows_with_data if (source := merge_source_id(row.data)) is not None}
        rows = self.checkpoints.find(connection, CHECKPOINT.c.id.in_(ids)) if ids else []
        return [row for row in rows if row.external_session_id == session_id]
