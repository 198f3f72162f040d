"""Content-addressed values: what was stored once is never stored again, and lists cost what was appended to them.

A leaf is a type and bytes; its hash is SHA-256 over type, NUL, bytes. A list is its items' hashes; its hash is SHA-256
over `list`, NUL, those hashes, whatever its encoding. It is stored either in full, or as "the first k items of that
earlier list, then these". A full one is written again when such a chain grows to max(64, n / 8) links, so that reading
stays quick and storage linear. A record is a leaf of type `record`: names, each with the hash of a leaf or a list.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.errors import Corrupt
from agentgit.store.compression import RAW, Compression, unpacked
from agentgit.store.prepared import Prepared
from agentgit.store.recent import Recent
from agentgit.store.tables import BlobRow
from agentgit.values import from_json, to_json

LIST = "list"
"""The type of a list of hashes; no leaf may have it."""

RECORD = "record"
"""The type of a leaf that is names with hashes, see `pack`."""

HASH_BYTES = 32
CHUNK = 500
"""Parameters in one IN list; SQLite allows 999 in old builds."""

SHORTEST_CHAIN = 64
CACHED_BYTES = 32 * 2**20
CACHED_ITEMS = 1_000_000

FULL, APPENDED = b"\0", b"\1"
_link = struct.Struct(">32sII")
"""An appended list's head: the earlier list's hash, how many of its items are kept, and the links below it."""

_count = struct.Struct(">I")
BLOB = BlobRow.__table__  # type: ignore[attr-defined]  # SQLModel gives each table class its table


class Leaf(NamedTuple):
    """One value as it is stored: its hash, its type and its uncompressed bytes."""

    hash: bytes
    type: str
    data: bytes


class Items(NamedTuple):
    """A list as its items' hashes, and how many links its stored form has."""

    hashes: tuple[bytes, ...]
    depth: int


def leaf(type_: str, data: bytes) -> Leaf:
    """Name a value by its hash.

    Args:
        type_: how the bytes are to be read, at most 32 characters.
        data: the bytes, uncompressed.

    Example:
        >>> leaf("json", b"1").hash.hex()[:16]
        '5e91f633c6540a74'
    """
    return Leaf(sha256(b"%b\0%b" % (type_.encode(), data)).digest(), type_, data)


def list_hash(hashes: Iterable[bytes]) -> bytes:
    """Name a list by the hashes of its items, 32 bytes each.

    Example:
        >>> list_hash([]) == sha256(b"list" + bytes(1)).digest()
        True
    """
    return sha256(b"list\0" + b"".join(hashes)).digest()


EMPTY = list_hash([])


def compact(value: Any) -> bytes:
    """Write our own rows' JSON: quickly where it is plain, and with lone surrogates and foreign objects all the same.

    Example:
        >>> compact({"a": 1}), compact([chr(0xD800)])
        (b'{"a":1}', b'["\\\\ud800"]')
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return _compact_slowly(value)


def _compact_slowly(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except TypeError:
        return to_json(value)


def pack(named: Mapping[str, bytes]) -> bytes:
    """Write names with a hash each, in their order: how many, the hashes, the names as JSON.

    Example:
        >>> unpack(pack({"a": bytes(32)})) == {"a": bytes(32)}
        True
    """
    return _count.pack(len(named)) + b"".join(named.values()) + compact(list(named))


def unpack(data: bytes) -> dict[str, bytes]:
    """Read what `pack` wrote.

    Raises:
        ValueError: it is something else.
    """
    try:
        (count,) = _count.unpack_from(data)
        end = _count.size + count * HASH_BYTES
        names: list[str] = from_json(data[end:])
        return dict(zip(names, _cut(data[_count.size : end]), strict=True))
    except (struct.error, ValueError, TypeError) as error:
        raise ValueError("these bytes are no names with hashes") from error


def _cut(data: bytes) -> list[bytes]:
    return [data[i : i + HASH_BYTES] for i in range(0, len(data), HASH_BYTES)]


class Blobs:
    """The values of one tenant.

    Args:
        tenant_id: whose; no other tenant's value is ever read or reused.
        compression: how new values are packed, see `agentgit.store.compression`; all kinds are read.
    """

    def __init__(self, tenant_id: int, compression: str = "zlib") -> None:
        self.tenant_id = tenant_id
        self._compression = Compression(compression)
        # Both caches hold what a hash stands for, which cannot change; they never say what is stored.
        self._leaves: Recent[Leaf] = Recent(CACHED_BYTES, lambda value: len(value.data) + 256)
        self._lists: Recent[Items] = Recent(CACHED_ITEMS, lambda items: len(items.hashes) + 16)

    def put_many(
        self,
        connection: Connection,
        leaves: Iterable[Leaf],
        lists: Iterable[tuple[bytes, tuple[bytes, ...], bytes | None]] = (),
    ) -> None:
        """Store values that may be stored already, in one statement.

        Args:
            connection: in a transaction that writes.
            leaves: what to store; equal ones are stored once.
            lists: each list's hash, its items' hashes, and the hash of a stored value or None; if that value is a
                list, this one probably continues it.

        Raises:
            Corrupt: such an earlier list does not match its hash.
        """
        fresh = {value.hash: value for value in leaves}
        rows = {key: self._row(value) for key, value in fresh.items()}
        known: dict[bytes, Items] = {}
        for key, hashes, base in lists:
            if key != base:
                depth, data = self._encode(connection, hashes, base)
                known[key] = Items(hashes, depth)
                rows[key] = self._values(key, LIST, RAW, len(hashes), data)
        if rows:
            # In the order of their hashes, so that two writers on PostgreSQL wait for each other and do not deadlock.
            _INSERT.run(connection, *(rows[key] for key in sorted(rows)))
        self._leaves.add(fresh.items())
        self._lists.add(known.items())

    def _row(self, value: Leaf) -> dict[str, Any]:
        codec, data = self._compression.pack(value.data)
        return self._values(value.hash, value.type, codec, len(value.data), data)

    def _values(self, key: bytes, type_: str, codec: int, size: int, data: bytes) -> dict[str, Any]:
        return {"tenant_id": self.tenant_id, "hash": key, "type": type_, "codec": codec, "size": size, "data": data}

    def put_list(self, connection: Connection, item_hashes: Sequence[bytes], base: bytes | None = None) -> bytes:
        """Store one list of values that are stored, and give its hash; see `put_many`."""
        key = list_hash(item_hashes)
        self.put_many(connection, (), [(key, tuple(item_hashes), base)])
        return key

    def _encode(self, connection: Connection, hashes: tuple[bytes, ...], base: bytes | None) -> tuple[int, bytes]:
        earlier = self._find_list(connection, base)
        kept = shared_prefix(earlier.hashes, hashes)
        depth = earlier.depth + 1
        short_chain = depth < max(SHORTEST_CHAIN, len(hashes) // 8)
        if base is not None and short_chain and kept * HASH_BYTES > _link.size:
            return depth, APPENDED + _link.pack(base, kept, depth) + b"".join(hashes[kept:])
        return 0, FULL + b"".join(hashes)

    def kept(self, connection: Connection, item_hashes: tuple[bytes, ...], base: bytes | None) -> int:
        """Tell how many items at the front a list shares with a stored one, and so need no storing."""
        return shared_prefix(self._find_list(connection, base).hashes, item_hashes)

    def get_many(self, connection: Connection, hashes: Iterable[bytes]) -> dict[bytes, Leaf]:
        """Read values, each checked against its hash.

        A list comes back with type `list` and no bytes; `item_hashes` reads it.

        Args:
            connection: any.
            hashes: which, 32 bytes each.

        Raises:
            Corrupt: a row is missing or does not match its hash.
        """
        wanted = set(hashes)
        found = self._leaves.find(wanted)
        found.update((key, Leaf(key, LIST, b"")) for key in self._lists.find(wanted - found.keys()))
        missing = list(wanted - found.keys())
        for start in range(0, len(missing), CHUNK):
            part = missing[start : start + CHUNK]
            rows = connection.execute(_BY_HASH, {"tenant": self.tenant_id, "hashes": part}).all()
            read = [self._checked(*row) for row in rows]
            self._leaves.add((value.hash, value) for value in read if value.type != LIST)
            found.update((value.hash, value) for value in read)
        if len(found) != len(wanted):
            raise _corrupt(next(iter(wanted - found.keys())), "is missing")
        return found

    @staticmethod
    def _checked(key: bytes, type_: str, codec: int, data: bytes) -> Leaf:
        if type_ == LIST:
            return Leaf(key, LIST, b"")
        try:
            value = leaf(type_, unpacked(codec, data))
        except ValueError as error:
            raise _corrupt(key, f"cannot be unpacked ({error})") from error
        if value.hash != key:
            raise _corrupt(key, "does not match its bytes")
        return value

    def item_hashes(self, connection: Connection, key: bytes) -> tuple[bytes, ...]:
        """Read a list's items' hashes in order, checked against the list's hash.

        Raises:
            Corrupt: a row of its chain is missing or does not match.
        """
        return self._read_list(connection, key).hashes

    def _read_list(self, connection: Connection, key: bytes) -> Items:
        items = self._find_list(connection, key)
        if not items.hashes and key != EMPTY:
            raise _corrupt(key, "is missing")
        return items

    def _find_list(self, connection: Connection, key: bytes | None) -> Items:
        """Read a list; what is no stored list is an empty one."""
        known = self._lists.get(key) if key is not None else Items((), 0)
        if known is not None or key is None:
            return known or Items((), 0)
        links = list(self._chain(connection, key))
        hashes: list[bytes] = []
        for kept, own in reversed(links):
            del hashes[kept:]
            hashes.extend(_cut(own))
        if links and list_hash(hashes) != key:
            raise _corrupt(key, "does not match its items")
        items = Items(tuple(hashes), max(0, len(links) - 1))
        if links:
            self._lists.add([(key, items)])
        return items

    def _chain(self, connection: Connection, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield each link's count of kept items and own items' hashes, from this list down to a full one."""
        rows = {row.hash: row.data for row in _CHAIN.all(connection, {"tenant": self.tenant_id, "hash": key})}
        while (data := rows.pop(key, None)) is not None:
            if data[:1] == FULL:
                yield 0, data[1:]
                return
            key, kept, _ = _link.unpack_from(data, 1)
            yield kept, data[1 + _link.size :]

    def closure(self, connection: Connection, hashes: Iterable[bytes]) -> set[bytes]:
        """Find all values that these need to be readable: themselves, what they hold, and the lists they continue.

        Args:
            connection: any.
            hashes: of leaves, lists and records.
        """
        reached: set[bytes] = set()
        waiting = set(hashes)
        while waiting:
            reached |= waiting
            part = [waiting.pop() for _ in range(min(CHUNK, len(waiting)))]
            rows = connection.execute(_BRANCHING, {"tenant": self.tenant_id, "hashes": part}).all()
            waiting.update({needed for row in rows for needed in _needed(*row)} - reached)
        return reached


def shared_prefix(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Count the items that two lists have in common at the front.

    Example:
        >>> shared_prefix([b"a", b"b"], [b"a", b"c"])
        1
    """
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:  # by far the most common, and it compares in C
        return shorter
    return next(i for i in range(shorter) if one[i] != other[i])


def continued(data: bytes) -> bytes | None:
    """Tell which list a stored list continues; None if it stands alone.

    Args:
        data: its stored bytes, or only the first 33 of them.
    """
    return None if data[:1] == FULL else data[1 : 1 + HASH_BYTES]


def _needed(type_: str, codec: int, data: bytes) -> list[bytes]:
    """List what one stored list or record refers to: what it holds, and the list that it continues."""
    if type_ == RECORD:
        return list(unpack(unpacked(codec, data)).values())
    if data[:1] == FULL:
        return _cut(data[1:])
    return [*_cut(data[1 + _link.size :]), data[1 : 1 + HASH_BYTES]]


def _corrupt(key: bytes, what: str) -> Corrupt:
    return Corrupt(
        f"The value {key.hex()} in table blob {what}. Run: agentgit fsck; then restore the database from a copy.",
        row=f"blob {key.hex()}",
    )


_INSERT = Prepared({
    "sqlite": sqlite.insert(BLOB).on_conflict_do_nothing(),
    "postgresql": postgresql.insert(BLOB).on_conflict_do_nothing(),
})  # fmt: skip
_one = (BLOB.c.tenant_id == bindparam("tenant"), BLOB.c.hash == bindparam("hash"))
_several = (BLOB.c.tenant_id == bindparam("tenant"), BLOB.c.hash.in_(bindparam("hashes", expanding=True)))
_BY_HASH = select(BLOB.c.hash, BLOB.c.type, BLOB.c.codec, BLOB.c.data).where(*_several)
_BRANCHING = select(BLOB.c.type, BLOB.c.codec, BLOB.c.data).where(*_several, BLOB.c.type.in_((LIST, RECORD)))


def _chain_query() -> Any:
    """Follow "continues that list" in one statement: a chain can have hundreds of links."""
    chain = select(BLOB.c.hash, BLOB.c.data).where(*_one, BLOB.c.type == LIST).cte("chain", recursive=True)
    earlier = BLOB.alias("earlier")
    step = select(earlier.c.hash, earlier.c.data).where(
        earlier.c.tenant_id == bindparam("tenant"),
        earlier.c.hash == func.substr(chain.c.data, 2, HASH_BYTES),
        func.substr(chain.c.data, 1, 1) == bindparam("appended", APPENDED),
        earlier.c.type == LIST,
    )
    return select(chain.union(step))  # not UNION ALL: a damaged chain that loops must end


_CHAIN = Prepared(_chain_query())
