"""One side of a merge: a graph checkpoint, its values by hash, as people see them, and alive."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from langgraph.channels.base import BaseChannel
from langgraph.pregel import Pregel

from agentgit.langgraph_internals import channels_from_checkpoint
from agentgit.saver.config import config_of
from agentgit.saver.saver import SQLModelSaver
from agentgit.sessions.messages import from_stored
from agentgit.store.objects.plain_values import show
from agentgit.store.sql.tables import LIST
from agentgit.store.threads.graph_rows import conversation, is_shown
from agentgit.store.threads.graph_store import GraphKey


class Side:
    """The state at a graph checkpoint.

    Args:
        saver: The saver that reads it.
        graph: The graph whose channels it has.
        thread: The thread that has it.
        checkpoint_id: The id of the graph checkpoint; None is before the first.
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
        """The hash of each value, without LangGraph's own bookkeeping."""
        return {name: key for name, key in self._at.values.items() if is_shown(name)} if self._at else {}

    @functools.cached_property
    def conversation(self) -> str | None:
        """The channel that is the conversation, if that is a list of messages of its own."""
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
        """Show messages; those at these places, or all."""
        keys = self.message_hashes if places is None else [self.message_hashes[place] for place in places]
        with self.saver.database.reading() as connection:
            return [from_stored(message) for message in self.saver.store.messages_of(connection, keys)]

    def shown(self, name: str) -> Any:
        """Show one value; None if there is none."""
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
        """Return one value as the graph has it; None if there is none."""
        channel = self._channels.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def after(self, name: str, write: Any) -> Any:
        """Return what a value would be after one more write; it stays as it is."""
        channel = self._channels[name].from_checkpoint(copy(self.live(name)))
        channel.update([write])
        return channel.get()
