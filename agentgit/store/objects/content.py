"""Content-addressed values in three shapes: one leaf, a list of leaves, or a record of named leaves and lists."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeAlias

from agentgit.errors import Corrupt
from agentgit.store.objects.blobs import (
    FULL,
    RECORD,
    Blobs,
    BlobStore,
    Leaf,
    NewValues,
    base_hash,
    leaf,
    link_of,
    list_hash,
    pack,
    unpack,
)
from agentgit.store.objects.packing import HASH_BYTES
from agentgit.store.sql.tables import LIST
from agentgit.store.sql.transaction import Reading, Writing


class VerifiedList(NamedTuple):
    key: bytes
    items: bytes
    problem: str = ""


def verify_lists(transaction: Reading, blobs: Blobs, stored: Mapping[bytes, bytes]) -> Iterator[VerifiedList]:
    """Verify lists, each after the list that it continues."""
    continuations: dict[bytes | None, list[bytes]] = defaultdict(list)
    for key, data in stored.items():
        base = base_hash(data)
        continuations[base if base in stored else None].append(key)
    stack: list[tuple[bytes, Any, int]] = [(key, None, 0) for key in continuations.pop(None, ())]
    while stack:
        key, state, count = stack.pop()
        verified_list, state, count = _verify_list(transaction, blobs, key, stored[key], state, count)
        yield verified_list
        stack.extend((next_key, state, count) for next_key in continuations.pop(key, ()))
    for keys in continuations.values():
        for key in keys:
            yield VerifiedList(key, b"", "the lists that it continues have no first one")


def _verify_list(
    transaction: Reading, blobs: Blobs, key: bytes, data: bytes, state: Any, count: int
) -> tuple[VerifiedList, Any, int]:
    """Verify a list. Return it with its hash state, which a longer list can continue, and its number of items."""
    link = link_of(data)
    if link is not None and state is not None and link.kept_count == count:
        hasher, items = state.copy(), link.new_hashes
        hasher.update(items)
    elif data[:1] == FULL:
        items, count = data[1:], 0
        hasher = sha256(b"list\0" + items)
    else:
        try:
            items, count = b"".join(blobs.item_hashes(transaction, key)), 0
        except Corrupt:
            return VerifiedList(key, b"", "it does not match its items"), None, 0
        hasher = sha256(b"list\0" + items)
    problem = "" if hasher.digest() == key else "it does not match its items"
    return VerifiedList(key, items, problem), hasher, count + len(items) // HASH_BYTES


Part: TypeAlias = Leaf | list[Leaf]
Body: TypeAlias = Part | dict[str, Part]


class Encoded(NamedTuple):
    """A value in its stored shape, with the number of its messages if it is a conversation."""

    body: Body
    messages: int | None = None


def read_values(transaction: Reading, blobs: BlobStore, keys: Iterable[tuple[int, bytes]]) -> dict[bytes, Body]:
    """Read values that may belong to several sessions, and verify each against its hash."""
    hashes_by_session: dict[int, set[bytes]] = defaultdict(set)
    for session_id, key in keys:
        hashes_by_session[session_id].add(key)
    bodies: dict[bytes, Body] = {}
    for session_id, hashes in hashes_by_session.items():
        bodies.update(Content(blobs.of(session_id)).get(transaction, hashes))
    return bodies


class Content:
    """The values of one session, or of a family of threads."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs

    def put(self, transaction: Writing, values: Sequence[tuple[Body, bytes | None]]) -> list[bytes]:
        new_values = NewValues()
        hashes = self.encode(transaction, values, new_values)
        self.blobs.insert(transaction, new_values)
        return hashes

    def encode(
        self, transaction: Reading, values: Sequence[tuple[Body, bytes | None]], new_values: NewValues
    ) -> list[bytes]:
        """Return the hash of each value, and collect what has to be stored."""
        leaves: list[Leaf] = []
        lists: list[tuple[bytes, tuple[bytes, ...], bytes | None]] = []

        def collect(part: Part, base: bytes | None) -> bytes:
            if isinstance(part, Leaf):
                leaves.append(part)
                return part.hash
            hashes = tuple([item.hash for item in part])
            leaves.extend(part[self.blobs.count_shared(transaction, hashes, base) :])
            key = list_hash(hashes)
            lists.append((key, hashes, base))
            return key

        value_hashes: list[bytes] = []
        for body, base in values:
            if isinstance(body, dict):
                bases = self._record_hashes(transaction, base)
                hashes_by_name = {name: collect(part, bases.get(name)) for name, part in body.items()}
                body = leaf(RECORD, pack(hashes_by_name))
            value_hashes.append(collect(body, base))
        self.blobs.encode(transaction, leaves, lists, new_values)
        return value_hashes

    def _record_hashes(self, transaction: Reading, key: bytes | None) -> dict[str, bytes]:
        """Return the names and hashes of a stored record; empty if the value is not a record."""
        if key is None:
            return {}
        value = self.blobs.get_many(transaction, [key])[key]
        return unpack(value.data) if value.type == RECORD else {}

    def get(self, transaction: Reading, hashes: Iterable[bytes]) -> dict[bytes, Body]:
        """Read values and verify each against its hash."""
        top_values = self.blobs.get_many(transaction, hashes)
        records = {key: unpack(top.data) for key, top in top_values.items() if top.type == RECORD}
        inner_hashes = {part for named in records.values() for part in named.values()} - top_values.keys()
        all_values = {**top_values, **self.blobs.get_many(transaction, inner_hashes)}
        parts: dict[bytes, Part] = {
            key: self.blobs.leaves(transaction, self.blobs.item_hashes(transaction, key))
            if value.type == LIST
            else value
            for key, value in all_values.items()
        }
        return {
            key: {name: parts[part_hash] for name, part_hash in records[key].items()} if key in records else parts[key]
            for key in top_values
        }

    def item_hashes(self, transaction: Reading, key: bytes) -> tuple[bytes, ...]:
        """Return the hashes of the items of a list, or of the list `messages` of a record."""
        messages_hash = self._record_hashes(transaction, key).get("messages")
        return self.blobs.item_hashes(transaction, key if messages_hash is None else messages_hash)
