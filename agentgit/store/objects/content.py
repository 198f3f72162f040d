"""Values in three shapes, stored by content: one leaf, a list of leaves, or a record of named leaves and lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from sqlalchemy import Connection

from agentgit.store.objects.blobs import RECORD, Blobs, Leaf, leaf, list_hash, pack, unpack
from agentgit.store.sql.tables import LIST

Part: TypeAlias = Leaf | list[Leaf]
Body: TypeAlias = Part | dict[str, Part]


class Encoded(NamedTuple):
    """A value in the shape in which it is stored, and the number of its messages if it is a conversation."""

    body: Body
    messages: int | None = None


class Content:
    """The values of one tenant.

    Args:
        tenant_id: The tenant.
        compression: The compression of new values.
    """

    def __init__(self, tenant_id: int, compression: str = "zstd") -> None:
        self.blobs = Blobs(tenant_id, compression)

    def put(self, connection: Connection, values: Sequence[tuple[Body, bytes | None]]) -> list[bytes]:
        """Store values, and give the hash of each.

        Args:
            connection: A connection in a transaction that writes.
            values: The values, each with the hash of a stored value that it may continue, or None.
        """
        leaves: list[Leaf] = []
        lists: list[tuple[bytes, tuple[bytes, ...], bytes | None]] = []

        def collect(part: Part, base: bytes | None) -> bytes:
            if isinstance(part, Leaf):
                leaves.append(part)
                return part.hash
            hashes = tuple([item.hash for item in part])
            leaves.extend(part[self.blobs.kept(connection, hashes, base) :])
            key = list_hash(hashes)
            lists.append((key, hashes, base))
            return key

        found: list[bytes] = []
        for body, base in values:
            if isinstance(body, dict):
                bases = self._parts(connection, base)
                named = {name: collect(part, bases.get(name)) for name, part in body.items()}
                body = leaf(RECORD, pack(named))
            found.append(collect(body, base))
        self.blobs.put_many(connection, leaves, lists)
        return found

    def _parts(self, connection: Connection, key: bytes | None) -> dict[str, bytes]:
        """Read what a stored record is made of; what is no record has no parts."""
        if key is None:
            return {}
        value = self.blobs.get_many(connection, [key])[key]
        return unpack(value.data) if value.type == RECORD else {}

    def get(self, connection: Connection, hashes: Iterable[bytes]) -> dict[bytes, Body]:
        """Read values, each checked against its hash.

        Args:
            connection: Any open connection.
            hashes: The hashes of the values. Equal ones are read once.

        Raises:
            Corrupt: A row is missing or does not match its hash.
        """
        tops = self.blobs.get_many(connection, hashes)
        records = {key: unpack(top.data) for key, top in tops.items() if top.type == RECORD}
        inner = {part for named in records.values() for part in named.values()} - tops.keys()
        found = {**tops, **self.blobs.get_many(connection, inner)}
        parts: dict[bytes, Part] = {
            key: self.blobs.leaves(connection, self.blobs.item_hashes(connection, key)) if value.type == LIST else value
            for key, value in found.items()
        }
        return {
            key: {name: parts[held] for name, held in records[key].items()} if key in records else parts[key]
            for key in tops
        }

    def items(self, connection: Connection, key: bytes) -> tuple[bytes, ...]:
        """Read the items' hashes of a list, or of the list `messages` of a record.

        Raises:
            Corrupt: A row is missing or does not match its hash.
        """
        held = self._parts(connection, key).get("messages")
        return self.blobs.item_hashes(connection, key if held is None else held)
