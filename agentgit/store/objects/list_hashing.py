"""Many stored lists at once, each hashed by going on from the one that it continues: it costs what was appended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from sqlalchemy import Connection

from agentgit.errors import Corrupt
from agentgit.store.objects.blobs import FULL, Blobs, continued, link_of
from agentgit.store.objects.chunks import HASH_BYTES


class Walked(NamedTuple):
    """A stored list.

    Args:
        key: The hash of the list.
        items: The hashes of its items one behind the other, without those that a list before it has.
        wrong: What is wrong with it; empty if it matches its hash.
    """

    key: bytes
    items: bytes
    wrong: str = ""


def walk(connection: Connection, blobs: Blobs, stored: Mapping[bytes, bytes]) -> Iterator[Walked]:
    """Hash lists, each after the one that it continues.

    Args:
        connection: Any open connection.
        blobs: The values of the tenant.
        stored: The lists as they are stored, by their hashes; what they continue may be another one.
    """
    after: dict[bytes | None, list[bytes]] = defaultdict(list)
    for key, data in stored.items():
        base = continued(data)
        after[base if base in stored else None].append(key)
    stack: list[tuple[bytes, Any, int]] = [(key, None, 0) for key in after.pop(None, ())]
    while stack:
        key, state, count = stack.pop()
        found, state, count = _hashed(connection, blobs, key, stored[key], state, count)
        yield found
        stack.extend((later, state, count) for later in after.pop(key, ()))
    for keys in after.values():
        for key in keys:
            yield Walked(key, b"", "the lists that it continues never end in one that stands alone")


def _hashed(
    connection: Connection, blobs: Blobs, key: bytes, data: bytes, state: Any, count: int
) -> tuple[Walked, Any, int]:
    """Hash a list; give the hash as it can be gone on with, and how many items it has."""
    link = link_of(data)
    if link is not None and state is not None and link.kept == count:
        made, items = state.copy(), link.own
        made.update(items)
    elif data[:1] == FULL:
        items, count = data[1:], 0
        made = sha256(b"list\0" + items)
    else:
        try:
            items, count = b"".join(blobs.item_hashes(connection, key)), 0
        except Corrupt:
            return Walked(key, b"", "it does not match its items"), None, 0
        made = sha256(b"list\0" + items)
    wrong = "" if made.digest() == key else "it does not match its items"
    return Walked(key, items, wrong), made, count + len(items) // HASH_BYTES
