"""Content-addressed values: a session stores equal values once, and a list that grows stores only its new items.

Values belong to a session, and no other session refers to them. Threads that belong to no session own their values by
family: a thread and its copies (`family_of`). The number of the session or the family is the owner of a value.

A leaf is a type and bytes. Its hash is SHA-256 over the type, NUL and the bytes. A large leaf is stored in chunks
(`agentgit.store.objects.packing`); its hash stays the same.

A list is the hashes of its items. Its hash is SHA-256 over `list`, NUL and those hashes, whatever its encoding. It is
stored either in full, or as "the first k items of that earlier list, then these". When such a chain reaches
max(64, n / 8) links, the next list is stored in full, so that reading stays fast and storage linear.

A record is a leaf of type `record`: names, each with the hash of a leaf or a list.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias, TypeVar

import orjson
from sqlalchemy import bindparam, case, cast, func, null, or_, select
from sqlalchemy.dialects import postgresql, sqlite

from agentgit.errors import Corrupt
from agentgit.next_steps import Next
from agentgit.store.objects.lru import LRUCache
from agentgit.store.objects.packing import (
    CHUNK,
    CHUNK_BYTES,
    CHUNKED,
    CHUNKS_AT_ONCE,
    HASH_BYTES,
    RAW,
    Chunk,
    Compression,
    Data,
    cut,
    split_hashes,
    unpacked,
)
from agentgit.store.sql.batch import slices
from agentgit.store.sql.compiled_statement import CompiledStatement
from agentgit.store.sql.encryption import PlainBytes
from agentgit.store.sql.rows import insert_missing, rows_with
from agentgit.store.sql.tables import BLOB, LIST, SESSION
from agentgit.store.sql.transaction import Reading, Writing
from agentgit.values import from_json, to_json

RECORD = "record"
"""The type of a leaf that maps names to hashes; see `pack`."""

MIN_CHAIN_LIMIT = 64
CACHED_BYTES = 32 * 2**20
CACHED_ITEMS = 1_000_000
ORJSON_BUFFER_BYTES = 4096

FULL, APPENDED = b"\0", b"\1"
_link_struct = struct.Struct(">32sII")
"""The header of an appended list: the hash of the earlier list, its number of kept items, and the chain's length."""

_count_struct = struct.Struct(">I")
Row: TypeAlias = dict[str, Any]
T = TypeVar("T")


class Leaf(NamedTuple):
    """A stored value: its hash, its type and its uncompressed bytes."""

    hash: bytes
    type: str
    data: bytes


class Items(NamedTuple):
    """A list: the hashes of its items, and the number of links in its stored form."""

    hashes: tuple[bytes, ...]
    depth: int


def leaf(type_: str, data: bytes) -> Leaf:
    digest = sha256(b"%b\0" % type_.encode())
    digest.update(data)  # separate from the type, so that a large value is not copied
    return Leaf(digest.digest(), type_, trim(data))


def trim(data: bytes) -> bytes:
    """Return bytes that take no more memory than their length. orjson leaves a buffer of 4 KiB to each short result."""
    return bytes(memoryview(data)) if len(data) < ORJSON_BUFFER_BYTES else data


def list_hash(hashes: Iterable[bytes]) -> bytes:
    """Return the hash of a list, given the hashes of its items (32 bytes each)."""
    return sha256(b"list\0" + b"".join(hashes)).digest()


EMPTY = list_hash([])


def compact(value: Any) -> bytes:
    """Serialize a value to JSON: quickly if it is plain, more slowly if it has lone surrogates or other objects."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return to_json(value)


def pack(hashes_by_name: Mapping[str, bytes]) -> bytes:
    """Serialize names with their hashes, in order: the number of names, the hashes, then the names as JSON."""
    return _count_struct.pack(len(hashes_by_name)) + b"".join(hashes_by_name.values()) + compact(list(hashes_by_name))


def unpack(data: bytes) -> dict[str, bytes]:
    try:
        (count,) = _count_struct.unpack_from(data)
        end = _count_struct.size + count * HASH_BYTES
        names: list[str] = from_json(data[end:])
        return dict(zip(names, split_hashes(data[_count_struct.size : end]), strict=True))
    except (struct.error, ValueError, TypeError) as error:
        raise ValueError("these bytes are not names with hashes") from error


@dataclass
class NewValues:
    """Values that a transaction collects, to insert them with one statement."""

    rows: dict[bytes, Leaf | Chunk | Row] = field(default_factory=dict)
    leaves: dict[bytes, Leaf] = field(default_factory=dict)
    lists: dict[bytes, Items] = field(default_factory=dict)


@contextmanager
def readable(transaction: Reading, values_by_owner: Mapping[int, NewValues]) -> Iterator[None]:
    """Let readers on a connection find new values in the block, before they are inserted."""
    transaction.new_values = values_by_owner
    try:
        yield
    finally:
        transaction.new_values = {}


_NOTHING_NEW = NewValues()

FAMILY_LOCKS = 64
"""The number of rows that writers to families lock on a server. Each is for the families of one remainder.

They are empty lists, which the first migration adds. Nothing refers to them, and nothing deletes them."""


def restore_family_locks(transaction: Writing) -> None:
    """Add the rows that writers to families lock, where they are missing; without them, nobody waits."""
    empty = {"hash": EMPTY, "type": LIST, "codec": RAW, "size": 0, "data": PlainBytes(b"\0")}
    rows = [{"external_session_id": -number, **empty} for number in range(1, FAMILY_LOCKS + 1)]
    _INSERT.run(transaction, *rows)


def family_of(thread: str) -> int:
    """Return the owner of the values of a thread that belongs to no session and is no copy: a negative number."""
    digest = sha256(thread.encode(errors="surrogatepass")).digest()
    return -1 - FAMILY_LOCKS - int.from_bytes(digest[:8], "big") % (2**53 - 1 - FAMILY_LOCKS)


class BlobStore:
    def __init__(self, compression: str = "auto", chunk_bytes: int = CHUNK_BYTES) -> None:
        self.chunk_bytes = chunk_bytes
        self.compression = Compression(compression)
        # Both caches map an owner and a hash to the value, which never changes. They do not tell whether the value is
        # still stored.
        self.leaves: LRUCache[bytes, Leaf] = LRUCache(CACHED_BYTES, lambda value: len(value.data) + 256)
        self.lists: LRUCache[bytes, Items] = LRUCache(CACHED_ITEMS, lambda items: len(items.hashes) + 16)

    def of(self, session_id: int) -> Blobs:
        return Blobs(self, session_id)


class Blobs:
    """The values of one session, or of a family of threads."""

    def __init__(self, store: BlobStore, session_id: int) -> None:
        self.store = store
        self.session_id = session_id
        self._cache_prefix = session_id.to_bytes(8, "big", signed=True)

    def protect(self, transaction: Writing) -> None:
        """Keep the values from being collected until the transaction ends.

        Each writer calls it, or locks the session in another way, before it reads what is stored. No-op on SQLite,
        which has only one writer.
        """
        self._lock_row(transaction, _PROTECT)

    def lock(self, transaction: Writing) -> None:
        """Wait for the writers of the session, and lock out others until the transaction ends. No-op on SQLite."""
        self._lock_row(transaction, _LOCK)

    def _lock_row(self, transaction: Writing, statements: Mapping[bool, CompiledStatement]) -> None:
        is_session = self.session_id > 0
        if not transaction.is_sqlite:
            lock_owner = self.session_id if is_session else -1 - self.session_id % FAMILY_LOCKS
            statements[is_session].run(transaction, {"session": lock_owner})

    def _parameters(self, **more: Any) -> dict[str, Any]:
        return {"session": self.session_id, **more}

    def _cache_keys(self, hashes: Iterable[bytes]) -> list[bytes]:
        prefix = self._cache_prefix
        return [prefix + key for key in hashes]

    def _find_cached(self, cache: LRUCache[bytes, T], hashes: Collection[bytes]) -> dict[bytes, T]:
        values = zip(hashes, cache.lookup(self._cache_keys(hashes)), strict=True)
        return {key: value for key, value in values if value is not None}

    def _cache(self, cache: LRUCache[bytes, T], values: Iterable[tuple[bytes, T]]) -> None:
        prefix = self._cache_prefix
        cache.add((prefix + key, value) for key, value in values)

    def _new_values(self, transaction: Reading) -> NewValues:
        new_values: NewValues = transaction.new_values.get(self.session_id, _NOTHING_NEW)
        return new_values

    def encode(
        self,
        transaction: Reading,
        leaves: Iterable[Leaf],
        lists: Iterable[tuple[bytes, tuple[bytes, ...], bytes | None]],
        new_values: NewValues,
    ) -> None:
        """Collect the values that are not stored yet, small ones to be stored by one statement."""
        leaves_by_hash = {value.hash: value for value in leaves}
        large_hashes = {key for key, value in leaves_by_hash.items() if len(value.data) > self.store.chunk_bytes}
        new_values.rows.update((key, leaves_by_hash[key]) for key in leaves_by_hash.keys() - large_hashes)
        if large_hashes:
            new_values.rows.update(self._split_large(transaction, [leaves_by_hash[key] for key in large_hashes]))
        items_by_hash: dict[bytes, Items] = {}
        for key, hashes, base in lists:
            if key != base:
                depth, data = self._encode_list(transaction, hashes, base)
                items_by_hash[key] = Items(hashes, depth)
                new_values.rows[key] = self._row_values(key, LIST, RAW, len(hashes), PlainBytes(data))
        new_values.leaves.update(leaves_by_hash)
        new_values.lists.update(items_by_hash)
        self._cache(self.store.leaves, leaves_by_hash.items())
        self._cache(self.store.lists, items_by_hash.items())

    def _split_large(self, transaction: Reading, large: Sequence[Leaf]) -> dict[bytes, Chunk | Row]:
        """Split large values into chunks. Look up stored ones first, because packing them again would take long."""
        stored_hashes = self._find_stored(transaction, [value.hash for value in large])
        rows: dict[bytes, Chunk | Row] = {}
        for value in large:
            if value.hash not in stored_hashes:
                chunks = list(cut(value.data, self.store.chunk_bytes))
                chunk_hashes = b"".join([chunk.hash for chunk in chunks])
                rows.update((chunk.hash, chunk) for chunk in chunks)
                rows[value.hash] = self._row_values(value.hash, value.type, CHUNKED, len(value.data), chunk_hashes)
        for key in self._find_stored(transaction, list(rows)):
            del rows[key]
        return rows

    def _find_stored(self, transaction: Reading, hashes: Sequence[bytes]) -> set[bytes]:
        query = select(BLOB.c.hash).where(BLOB.c.external_session_id == self.session_id)
        return {row.hash for row in rows_with(transaction, query, BLOB.c.hash, hashes)}

    def insert(self, transaction: Writing, new_values: NewValues) -> None:
        """Pack and store what `encode` collected, in batches that take no more memory than a few chunks."""
        rows = new_values.rows
        batch: list[Row] = []
        size = 0
        # Ordered by hash, so that two writers on PostgreSQL wait for each other instead of deadlocking.
        for key in sorted(rows):
            value = rows[key]
            if not isinstance(value, dict):
                codec, data = self.store.compression.pack(value.data)
                value = self._row_values(value.hash, value.type, codec, len(value.data), data)
            batch.append(value)
            size += len(batch[-1]["data"])
            if size > CHUNKS_AT_ONCE * CHUNK_BYTES:
                _INSERT.run(transaction, *batch)
                batch, size = [], 0
        if batch:
            _INSERT.run(transaction, *batch)

    def _row_values(self, key: bytes, type_: str, codec: int, size: int, data: Data) -> Row:
        return {
            "external_session_id": self.session_id,
            "hash": key,
            "type": type_,
            "codec": codec,
            "size": size,
            "data": data,
        }

    def _encode_list(self, transaction: Reading, hashes: tuple[bytes, ...], base: bytes | None) -> tuple[int, bytes]:
        base_items = self._find_list(transaction, base)
        kept_count = shared_prefix(base_items.hashes, hashes)
        depth = base_items.depth + 1
        short_chain = depth < max(MIN_CHAIN_LIMIT, len(hashes) // 8)
        if base is not None and short_chain and kept_count * HASH_BYTES > _link_struct.size:
            return depth, pack_list(base, kept_count, hashes[kept_count:], depth)
        return 0, pack_list(None, 0, hashes)

    def count_shared(self, transaction: Reading, item_hashes: tuple[bytes, ...], base: bytes | None) -> int:
        """Return the number of leading items that a list shares with a stored list; these need not be stored."""
        return shared_prefix(self._find_list(transaction, base).hashes, item_hashes)

    def get_many(self, transaction: Reading, hashes: Iterable[bytes]) -> dict[bytes, Leaf]:
        """Read values and verify each against its hash. A list has no bytes here; `item_hashes` reads it."""
        unique_hashes = set(hashes)
        values, new_values = self._find_cached(self.store.leaves, unique_hashes), self._new_values(transaction)
        values |= {key: new_values.leaves[key] for key in unique_hashes & new_values.leaves.keys()}
        lists = self._find_cached(self.store.lists, unique_hashes - values.keys()).keys() | new_values.lists.keys()
        values |= {key: Leaf(key, LIST, b"") for key in lists & unique_hashes}
        for part in slices(list(unique_hashes - values.keys())):
            rows = transaction.execute(_SELECT_BY_HASH, self._parameters(hashes=part)).all()
            loaded = [self.checked(transaction, *row) for row in rows]
            self._cache(self.store.leaves, ((value.hash, value) for value in loaded if value.type != LIST))
            values.update((value.hash, value) for value in loaded)
        if len(values) != len(unique_hashes):
            raise self.damaged(next(iter(unique_hashes - values.keys())), "is missing")
        return values

    def leaves(self, transaction: Reading, hashes: Sequence[bytes]) -> list[Leaf]:
        """Read values in the order of the hashes. Like `get_many`, but faster for values in the cache."""
        cached = self.store.leaves.lookup(self._cache_keys(hashes))
        hits = [value for value in cached if value is not None]
        if len(hits) == len(cached):
            return hits
        loaded = self.get_many(transaction, [key for key, value in zip(hashes, cached, strict=True) if value is None])
        return [value or loaded[key] for key, value in zip(hashes, cached, strict=True)]

    def checked(self, transaction: Reading, key: bytes, type_: str, codec: int, data: bytes) -> Leaf:
        """Unpack a row and verify it. A list is returned without bytes, as in `get_many`."""
        if type_ == LIST:
            return Leaf(key, LIST, b"")
        if isinstance(data, PlainBytes):
            raise self.damaged(key, "is not encrypted, although this database is")
        try:
            if codec == CHUNKED and type_ != CHUNK:
                value = leaf(type_, self._read_chunked(transaction, key, data))
            else:
                value = leaf(type_, unpacked(codec, data))
        except ValueError as error:
            raise self.damaged(key, f"cannot be unpacked ({error})") from error
        if value.hash != key:
            raise self.damaged(key, "does not match its bytes")
        return value

    def _read_chunked(self, transaction: Reading, large_key: bytes, joined_hashes: bytes) -> bytes:
        chunk_hashes, buffer = split_hashes(joined_hashes), BytesIO()
        for part in slices(chunk_hashes, CHUNKS_AT_ONCE):
            parameters = self._parameters(hashes=part)
            rows = {row.hash: row for row in transaction.execute(_SELECT_BY_HASH, parameters)}
            for key in part:
                if key not in rows or rows[key].type != CHUNK:
                    raise self.damaged(key, f"is missing, and the value {large_key.hex()} needs it")
                buffer.write(self.checked(transaction, *rows[key]).data)
        return buffer.getvalue()

    def item_hashes(self, transaction: Reading, key: bytes) -> tuple[bytes, ...]:
        """Read the hashes of a list's items in order, and verify them against the hash of the list."""
        hashes = self._find_list(transaction, key).hashes
        if not hashes and key != EMPTY:
            raise self.damaged(key, "is missing")
        return hashes

    def _find_list(self, transaction: Reading, key: bytes | None) -> Items:
        """Read a list. Return an empty one if no list with this hash is stored."""
        if key is None:
            return Items((), 0)
        known = self.store.lists.get(self._cache_prefix + key) or self._new_values(transaction).lists.get(key)
        if known is not None:
            return known
        links = list(self._read_chain(transaction, key))
        hashes: list[bytes] = []
        for kept_count, new_hashes in reversed(links):
            del hashes[kept_count:]
            hashes.extend(split_hashes(new_hashes))
        if links and list_hash(hashes) != key:
            raise self.damaged(key, "does not match its items")
        items = Items(tuple(hashes), max(0, len(links) - 1))
        if links:
            self._cache(self.store.lists, [(key, items)])
        return items

    def _read_chain(self, transaction: Reading, key: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the number of kept items and the hashes of the new items of each link, down to a full list."""
        rows = {row.hash: row.data for row in _CHAIN.all(transaction, self._parameters(hash=key))}
        while (data := rows.pop(key, None)) is not None:
            link = link_of(data)
            if link is None:
                yield 0, data[1:]
                return
            key = link.base
            yield link.kept_count, link.new_hashes

    # -- copies

    def copy_from(self, transaction: Reading, source: Blobs, hashes: Iterable[bytes]) -> None:
        """Copy values of another session, with all values that they refer to, as they are stored."""
        needed = source.find_parts(transaction, hashes)
        for part in slices(sorted(needed)):
            transaction.execute(
                _COPY[transaction.dialect.name], self._parameters(source=source.session_id, hashes=part)
            )

    def find_parts(self, transaction: Reading, hashes: Iterable[bytes]) -> set[bytes]:
        """Return the hashes of values and of all values that they refer to: parts, items, earlier lists and chunks."""
        found: set[bytes] = set()
        unread = set(hashes)
        while unread:
            found |= unread
            referenced: set[bytes] = set()
            for part in slices(list(unread)):
                for key, type_, codec, data in transaction.execute(_REFERENCES, self._parameters(hashes=part)):
                    unread.discard(key)
                    if type_ == LIST:  # each earlier list is read once, however many lists continue it
                        earlier = base_hash(data)
                        referenced.update(own_items(data) if earlier is None else [earlier, *own_items(data)])
                    elif codec == CHUNKED:
                        referenced.update(split_hashes(data))
                    elif type_ == RECORD:
                        referenced.update(unpack(self.checked(transaction, key, type_, codec, data).data).values())
            if unread:
                raise self.damaged(next(iter(unread)), "is missing")
            unread = referenced - found
        return found

    def damaged(self, key: bytes, problem: str) -> Corrupt:
        """Create the exception for a damaged value. `problem` completes "The value … in table blob"."""
        return Corrupt(
            f"The value {key.hex()} in table blob {problem}.",
            Next("fsck"),
            row=f"blob {self.session_id}/{key.hex()}",
            problem=problem,
        )


def shared_prefix(first: Sequence[bytes], second: Sequence[bytes]) -> int:
    """Return the number of leading items that two lists have in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:  # by far the most common case, and the comparison runs in C
        return shorter
    return next(i for i in range(shorter) if first[i] != second[i])


def base_hash(data: bytes) -> bytes | None:
    """Return the hash of the list that a stored list continues; None if it is stored in full."""
    return None if data[:1] == FULL else data[1 : 1 + HASH_BYTES]


class ListLink(NamedTuple):
    """The earlier list that a list continues, the number of its items that are kept, and the hashes of the others."""

    base: bytes
    kept_count: int
    new_hashes: bytes


def pack_list(base: bytes | None, kept_count: int, new_hashes: Iterable[bytes], depth: int = 0) -> bytes:
    """Return a list as it is stored: in full, or the first items of an earlier one and then others."""
    link = FULL if base is None else APPENDED + _link_struct.pack(base, kept_count, depth)
    return link + b"".join(new_hashes)


def own_items(data: bytes) -> list[bytes]:
    """Return the hashes of the items that a stored list adds to the list that it continues."""
    link = link_of(data)
    return split_hashes(link.new_hashes if link is not None else data[1:])


def link_of(data: bytes) -> ListLink | None:
    """Parse the link from a stored list to an earlier one; None if it is stored in full or its bytes are not a link."""
    if data[:1] != APPENDED or len(data) < 1 + _link_struct.size or (len(data) - 1 - _link_struct.size) % HASH_BYTES:
        return None
    base, kept_count, _ = _link_struct.unpack_from(data, 1)
    return ListLink(base, kept_count, data[1 + _link_struct.size :])


_INSERT = insert_missing(BLOB)
_is_of_session = BLOB.c.external_session_id == bindparam("session")
_is_any_blob = (_is_of_session, BLOB.c.hash.in_(bindparam("hashes", expanding=True)))
_SELECT_BY_HASH = select(BLOB.c.hash, BLOB.c.type, BLOB.c.codec, BLOB.c.data).where(*_is_any_blob)
_has_references = or_(BLOB.c.type == LIST, BLOB.c.type == RECORD, BLOB.c.codec == CHUNKED)
_REFERENCES = select(
    BLOB.c.hash, BLOB.c.type, BLOB.c.codec, case((_has_references, BLOB.c.data), else_=null()).label("data")
).where(*_is_any_blob)
_LOCKED_ROWS = {
    True: select(SESSION.c.id).where(SESSION.c.id == bindparam("session")),
    False: select(BLOB.c.size).where(_is_of_session, BLOB.c.hash == EMPTY),
}
"""The row that is locked for the values of a session (True), and of a family of threads (False)."""
_PROTECT = {
    kind: CompiledStatement(row.with_for_update(read=True, key_share=True)) for kind, row in _LOCKED_ROWS.items()
}
_LOCK = {kind: CompiledStatement(row.with_for_update()) for kind, row in _LOCKED_ROWS.items()}


def _copy_query(dialect: Any) -> Any:
    """Build the statement that copies rows of one session to another, where they are missing."""
    session = cast(bindparam("session"), BLOB.c.external_session_id.type)
    source = select(*(session if c.name == "external_session_id" else c for c in BLOB.c)).where(
        BLOB.c.external_session_id == bindparam("source"), BLOB.c.hash.in_(bindparam("hashes", expanding=True))
    )
    return dialect.insert(BLOB).from_select([c.name for c in BLOB.c], source).on_conflict_do_nothing()


_COPY = {"sqlite": _copy_query(sqlite), "postgresql": _copy_query(postgresql)}


def _chain_query() -> Any:
    """Build the query that reads a whole chain of lists at once; a chain can have hundreds of links."""
    is_first = (_is_of_session, BLOB.c.hash == bindparam("hash"), BLOB.c.type == LIST)
    chain = select(BLOB.c.hash, BLOB.c.data).where(*is_first).cte("chain", recursive=True)
    earlier = BLOB.alias("earlier")
    step = select(earlier.c.hash, earlier.c.data).where(
        earlier.c.external_session_id == bindparam("session"),
        earlier.c.hash == func.substr(chain.c.data, 2, HASH_BYTES),
        func.substr(chain.c.data, 1, 1) == bindparam("appended", APPENDED),
        earlier.c.type == LIST,
    )
    return select(chain.union(step))  # not UNION ALL, so that the query ends if a damaged chain has a cycle


_CHAIN = CompiledStatement(_chain_query())
