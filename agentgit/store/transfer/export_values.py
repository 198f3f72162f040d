"""Values on their way into an export: each once, before what names it; lists as what they add to a list before them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sqlalchemy import Connection

from agentgit.errors import InvalidInput
from agentgit.store.objects.blobs import RECORD, Blobs, Leaf, shared_prefix, unpack
from agentgit.store.objects.plain_values import READERS
from agentgit.store.sql.batch import slices
from agentgit.store.sql.tables import LIST
from agentgit.store.transfer.lines import with_contents

Write = Callable[[dict[str, Any]], None]
"""Writes one record."""

RECENT = 8
"""The number of recent lists that a list may refer to. Whoever reads the file keeps as many in memory."""

SHORT = 8
"""Items; a list that has no more is always written whole, and none leans on it. So the messages that each step wrote do
not come between a conversation and the next, longer one."""

LARGEST = 2**30
"""Bytes of one value; a larger one is not carried."""

AT_ONCE = 64
"""Values in memory at a time."""


class RecentLists:
    """The lists that were written or read last, which the next one may lean on."""

    def __init__(self) -> None:
        self._lists: dict[bytes, tuple[bytes, ...]] = {}

    def add(self, key: bytes, items: tuple[bytes, ...]) -> None:
        """Remember a list, unless it is short, and forget the oldest one."""
        if len(items) <= SHORT:
            return
        self._lists[key] = items
        if len(self._lists) > RECENT:
            del self._lists[next(iter(self._lists))]

    def get(self, key: bytes) -> tuple[bytes, ...] | None:
        """Return the items of a list; None if it is not among them."""
        return self._lists.get(key)

    def like(self, items: tuple[bytes, ...]) -> tuple[bytes | None, int]:
        """Find the list that has most items in common with this one at the front, and how many."""
        best: tuple[bytes | None, int] = None, 0
        for key, known in reversed(self._lists.items()):
            kept = shared_prefix(known, items)
            if kept > best[1]:
                best = key, kept
            if 2 * best[1] > len(items):
                break
        return best


class ValueWriter:
    """Writes the values of one export.

    Args:
        blobs: The store of the values.
        connection: Any open connection.
        write: The function that writes one record.
    """

    def __init__(self, blobs: Blobs, connection: Connection, write: Write) -> None:
        self.blobs = blobs
        self.connection = connection
        self.write = write
        self._done: set[bytes] = set()
        self._recent = RecentLists()

    def put(self, hashes: Iterable[bytes]) -> None:
        """Write the values that were not written before, with all that they are made of.

        Raises:
            Corrupt: One is missing, or does not match its hash.
            InvalidInput: One is too large.
        """
        fresh = [key for key in dict.fromkeys(hashes) if key not in self._done]
        for part in slices(fresh, AT_ONCE):
            found = self.blobs.get_many(self.connection, part)
            for key in part:
                if key not in self._done:  # another one of these may have needed it
                    self._one(found[key])

    def _one(self, value: Leaf) -> None:
        if value.type == LIST:
            self._list(value.hash)
        else:
            if value.type == RECORD:
                self.put(unpack(value.data).values())
            self._leaf(value)
        self._done.add(value.hash)

    def _list(self, key: bytes) -> None:
        items = self.blobs.item_hashes(self.connection, key)
        base, kept = self._recent.like(items)
        self.put(items[kept:])
        self.write(
            {
                "record": "list",
                "id": key.hex(),
                "base": base.hex() if base is not None else None,
                "keep": kept,
                "items": [item.hex() for item in items[kept:]],
            }
        )
        self._recent.add(key, items)

    def _leaf(self, value: Leaf) -> None:
        if len(value.data) > LARGEST:
            raise InvalidInput(f"The value {value.hash.hex()} has {len(value.data)} bytes, and cannot be exported.")
        record = {"record": "value", "id": value.hash.hex(), "type": value.type}
        for part in with_contents(record, value.data, is_text=value.type in READERS):
            self.write(part)
