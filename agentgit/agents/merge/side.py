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
from agentgit.store.objects.plain_values import show
from agentgit.store.queries.comparison import CheckpointComparer
from agentgit.store.records.checkpoints import merged_by
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, LIST
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import conversation, is_shown
from agentgit.store.threads.graph_store import GraphKey


class Side:
    """The state at a graph checkpoint.

    Args:
        saver: The saver that reads the state.
        graph: The graph that defines the channels.
        thread: The thread of the graph checkpoint.
        checkpoint_id: The id of the graph checkpoint; None for the empty state before the first.
    """

    def __init__(
        self, saver: SQLModelSaver, graph: Pregel[Any, Any, Any, Any], thread: str, checkpoint_id: str | None
    ) -> None:
        self.saver = saver
        self.graph = graph
        self.place = GraphKey(thread, "", checkpoint_id) if checkpoint_id is not None else None

    @functools.cached_property
    def _at(self) -> Any:
        if self.place is None:
            return None
        with self.saver.database.reading() as connection:
            return self.saver.store.find(connection, self.place)

    @property
    def hashes(self) -> Mapping[str, bytes]:
        """The hash of each value, without LangGraph's internal channels."""
        return {name: key for name, key in self._at.values.items() if is_shown(name)} if self._at else {}

    @functools.cached_property
    def conversation(self) -> str | None:
        """The channel that holds the conversation as a list of messages; None if there is none."""
        name = conversation(self._at.header["counts"]) if self._at else None
        if name is None:
            return None
        with self.saver.database.reading() as connection:
            key = self.hashes[name]
            leaf = self.saver.store.content.blobs.get_many(connection, [key])[key]
        return name if leaf.type == LIST else None

    @functools.cached_property
    def message_hashes(self) -> Sequence[bytes]:
        """The hash of each message, oldest first."""
        if self.conversation is None:
            return ()
        with self.saver.database.reading() as connection:
            return self.saver.store.message_hashes(connection, self._at)

    def messages(self, places: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return the shown form of the messages at these positions, or of all."""
        keys = self.message_hashes if places is None else [self.message_hashes[place] for place in places]
        with self.saver.database.reading() as connection:
            return [from_stored(message) for message in self.saver.store.messages_of(connection, keys)]

    def shown(self, name: str) -> Any:
        """Return the shown form of one value; None if there is none."""
        key = self.hashes.get(name)
        if key is None:
            return None
        with self.saver.database.reading() as connection:
            return show(self.saver.store.content.get(connection, [key])[key])

    @functools.cached_property
    def _channels(self) -> Mapping[str, BaseChannel[Any, Any, Any]]:
        found = self.saver.get_tuple(config_of(self.place)) if self.place is not None else None
        if found is None:
            return {}
        channels, _ = channels_from_checkpoint(
            self.graph.channels, found.checkpoint, saver=self.saver, config=found.config
        )
        return channels

    def live(self, name: str) -> Any:
        """Return one value as the live object that the graph uses; None if there is none."""
        channel = self._channels.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def after(self, name: str, write: Any) -> Any:
        """Return the value that a channel would have after one more write, without changing it."""
        channel = self._channels[name].from_checkpoint(copy(self.live(name)))
        channel.update([write])
        return channel.get()


Ancestry = dict[int, int]
"""The history of a checkpoint: the id of each branch in it, with the number of the last checkpoint included."""


class Bases:
    """Finds the bases of a merge.

    Args:
        store: The store of the database.
    """

    def __init__(self, store: Store) -> None:
        self.checkpoints = store.checkpoints
        self.comparing = CheckpointComparer(store)

    def find(self, connection: Connection, ours: StoredRow, theirs: StoredRow) -> list[StoredRow]:
        """Find the newest checkpoints in the history of both, newest first; none if they are of two sessions.

        Args:
            connection: An open connection; the transaction may be read-only.
            ours: The row of one side.
            theirs: The row of the other.
        """
        one, other = (self._behind(connection, row) for row in (ours, theirs))
        common = [
            and_(CHECKPOINT.c.internal_session_id == branch, CHECKPOINT.c.number == min(one[branch], other[branch]))
            for branch in one.keys() & other.keys()
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
                for branch, number in self._behind(connection, row).items():
                    covered[branch] = max(number, covered.get(branch, 0))
        return newest

    def _behind(self, connection: Connection, row: StoredRow) -> Ancestry:
        """Return the history of a checkpoint: its own path, and everything merged into it."""
        behind: Ancestry = {}
        todo = [row]
        while todo:
            at = todo.pop()
            for branch, number in self.comparing.ends(connection, at).items():
                behind[branch] = max(number, behind.get(branch, 0))
            merged = self._merged(connection, self.comparing.find_with_data(connection, at), at.external_session_id)
            todo += [one for one in merged if one.number > behind.get(one.internal_session_id, 0)]
        return behind

    def _merged(self, connection: Connection, noted: Sequence[StoredRow], session_id: int) -> Sequence[StoredRow]:
        """Read the checkpoints that were merged; those deleted since are ignored."""
        ids = {source for row in noted if (source := merged_by(row.data)) is not None}
        rows = self.checkpoints.find(connection, CHECKPOINT.c.id.in_(ids)) if ids else []
        return [row for row in rows if row.external_session_id == session_id]
