"""The states that a merge compares: ours, theirs, and the bases, which are the newest checkpoints that both have.

The data of a merge's checkpoint records what was merged, so the history of a branch includes what was merged into it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from langgraph.channels.base import BaseChannel
from sqlalchemy import and_, or_

from agentgit.agents.branch_context import BranchContext
from agentgit.langgraph_internals import channels_from_checkpoint
from agentgit.saver.config import config_of
from agentgit.sessions.messages import from_stored
from agentgit.store.objects.plain_values import show
from agentgit.store.queries.comparison import CheckpointComparer
from agentgit.store.records.checkpoints import merge_source_id
from agentgit.store.records.sessions import StoredRow
from agentgit.store.sql.tables import CHECKPOINT, LIST
from agentgit.store.sql.transaction import Reading
from agentgit.store.store import Store
from agentgit.store.threads.graph_rows import GraphKey, is_shown


class Side:
    """The state at a graph checkpoint, with the hash of each value and message; None is an empty state."""

    def __init__(
        self, branch: BranchContext, transaction: Reading, thread: str = "", checkpoint_id: str | None = None
    ) -> None:
        self._branch, self._graphs, self.channels = branch, branch.store.graphs, branch.graph.channels
        self.graph_key = GraphKey(thread, "", checkpoint_id) if checkpoint_id is not None else None
        self.hashes: Mapping[str, bytes] = {}
        self.conversation_channel: str | None = None
        self.message_hashes: Sequence[bytes] = ()
        self.is_imported = False
        found = self._graphs.find(transaction, self.graph_key) if self.graph_key else None
        if found is None:
            return
        self._session_id, self.is_imported = found.session_id, found.is_imported
        self.hashes = {name: key for name, key in found.values.items() if is_shown(name)}
        name = found.conversation_channel
        if name is not None:
            key = self.hashes[name]
            if self._graphs.content(found.session_id).blobs.get_many(transaction, [key])[key].type == LIST:
                self.conversation_channel = name
                self.message_hashes = self._graphs.message_hashes(transaction, found)

    def messages(self, positions: Sequence[int] | None = None) -> list[dict[str, Any]]:
        """Return the shown form of the messages at these positions, or of all."""
        keys = self.message_hashes if positions is None else [self.message_hashes[position] for position in positions]
        if not keys:
            return []
        with self._branch.store.database.reading() as transaction:
            stored = self._graphs.messages_of(transaction, self._session_id, keys)
            return [from_stored(message) for message in stored]

    def shown_value(self, name: str) -> Any:
        """Return the shown form of one value; None if there is none."""
        key = self.hashes.get(name)
        if key is None:
            return None
        with self._branch.store.database.reading() as transaction:
            return show(self._graphs.content(self._session_id).get(transaction, [key])[key])

    @functools.cached_property
    def _values(self) -> Mapping[str, BaseChannel[Any, Any, Any]]:
        saver = self._branch.saver
        found = saver.get_tuple(config_of(self.graph_key)) if self.graph_key is not None else None
        if found is None:
            return {}
        return channels_from_checkpoint(self.channels, found.checkpoint, saver=saver, config=found.config)[0]

    def live_value(self, name: str) -> Any:
        """Return one value as the live object that the graph uses; None if there is none."""
        channel = self._values.get(name)
        return channel.get() if channel is not None and channel.is_available() else None

    def value_after(self, name: str, write: Any) -> Any:
        """Return the value that a channel would have after one more write, without changing it."""
        channel = self._values[name].from_checkpoint(copy(self.live_value(name)))
        channel.update([write])
        return channel.get()


def find_bases(store: Store, transaction: Reading, ours: StoredRow, theirs: StoredRow) -> list[StoredRow]:
    """Find the newest checkpoints in the history of both, newest first; several if each merged an older one."""
    our_history, their_history = (_load_history(store, transaction, row) for row in (ours, theirs))
    common = [
        and_(
            CHECKPOINT.c.internal_session_id == branch,
            CHECKPOINT.c.number == min(our_history[branch], their_history[branch]),
        )
        for branch in our_history.keys() & their_history.keys()
    ]
    rows = store.checkpoints.find(transaction, or_(*common)) if common else []
    # The first checkpoint of a branch repeats the older one that it was forked from, which is common as well.
    rows = [row for row in rows if row.kind != "branch"] or rows
    newest: list[StoredRow] = []
    covered: dict[int, int] = {}
    for row in sorted(rows, key=lambda row: -row.id):
        if row.number > covered.get(row.internal_session_id, 0):
            newest.append(row)
            for branch, number in _load_history(store, transaction, row).items():
                covered[branch] = max(number, covered.get(branch, 0))
    return newest


def _load_history(store: Store, transaction: Reading, row: StoredRow) -> dict[int, int]:
    """Return the last number of each branch in the history of a checkpoint: its own path, and all merged into it."""
    comparer, history, pending = CheckpointComparer(store), dict[int, int](), [row]
    while pending:
        checkpoint = pending.pop()
        for branch, number in comparer.last_numbers(transaction, checkpoint).items():
            history[branch] = max(number, history.get(branch, 0))
        ids = {merge_source_id(row.data) for row in comparer.find_with_data(transaction, checkpoint)} - {None}
        merged = store.checkpoints.find(transaction, CHECKPOINT.c.id.in_(ids)) if ids else []
        pending += [
            one
            for one in merged
            if one.external_session_id == checkpoint.external_session_id
            and one.number > history.get(one.internal_session_id, 0)
        ]
    return history
