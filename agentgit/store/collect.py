"""Space back: values that nothing refers to any more are deleted, and lists stop leaning on lists that are gone.

Nothing is written beside it: on SQLite it has the write lock; on PostgreSQL it locks the tables against writers, and
each writer takes its first lock before it looks at what is stored (`FOR KEY SHARE` on a checkpoint, or an insert).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Connection, and_, bindparam, delete, exists, func, select, text, update

from agentgit.store.blobs import BLOB, CHUNK, FULL, HASH_BYTES, LIST, RECORD, Blobs, continued, unpack
from agentgit.store.graph_rows import CHECKPOINT, KEY, WRITE

UUID6_EPOCH = 0x01B21DD213814000
"""The Unix epoch in a version 6 UUID's clock: 100 ns steps since 15 October 1582."""

ON_ITS_WAY_SECONDS = 3600
"""A write whose checkpoint is not there is kept as long as this: LangGraph may store it before its checkpoint."""


class Collected(NamedTuple):
    """What a collection gave back, or would.

    Args:
        values: rows of the table blob.
        bytes: their stored size.
        writes: writes whose checkpoint never came or is gone.
        lists: lists that were written anew because what they continued goes.
    """

    values: int
    bytes: int
    writes: int
    lists: int


def collect(connection: Connection, blobs: Blobs, *, dry_run: bool) -> Collected:
    """Delete the values of a tenant that no graph checkpoint and no write refers to.

    Args:
        connection: in a transaction that writes; for a dry run any.
        blobs: the values of the tenant.
        dry_run: True to count only.
    """
    tenant_id = blobs.tenant_id
    if not dry_run and connection.dialect.name == "postgresql":
        connection.execute(text("LOCK TABLE graph_checkpoint, graph_write, blob IN EXCLUSIVE MODE"))
    lost = [key for key in _orphans(connection, tenant_id) if _is_old(key.checkpoint_id)]
    if not dry_run:
        _delete_writes(connection, tenant_id, lost)
    dropped = {tuple(key) for key in lost}
    live = set(_referenced(connection, tenant_id, dropped))
    live.update(_parts(connection, blobs, live))
    lists = _lists(connection, blobs, live)
    moved = [key for key, base in lists.items() if base is not None and base not in lists]
    for key in moved if not dry_run else ():
        _write_in_full(connection, blobs, key)
    for key in lists:
        live.update(blobs.item_hashes(connection, key))
    gone = [(row.hash, row.size) for row in _stored(connection, tenant_id) if row.hash not in live]
    if not dry_run:
        _delete_values(connection, tenant_id, [key for key, _ in gone])
    return Collected(len(gone), sum(size for _, size in gone), len(lost), len(moved))


class _Key(NamedTuple):
    thread_id: str
    ns: str
    checkpoint_id: str


def _orphans(connection: Connection, tenant_id: int) -> list[_Key]:
    owner = exists().where(*(CHECKPOINT.c[name] == WRITE.c[name] for name in KEY))
    columns = [WRITE.c[name] for name in _Key._fields]
    query = select(*columns).where(WRITE.c.tenant_id == tenant_id, ~owner).distinct()
    return [_Key(*row) for row in connection.execute(query)]


def _is_old(checkpoint_id: str) -> bool:
    """Tell whether an id was made long enough ago; one that tells no time was not made by LangGraph."""
    try:
        made = UUID(checkpoint_id)
    except ValueError:
        return True
    if made.version != 6:
        return True
    clock = (made.time_low << 28) | (made.time_mid << 12) | (made.time_hi_version & 0x0FFF)
    return (clock - UUID6_EPOCH) / 1e7 < time.time() - ON_ITS_WAY_SECONDS


def _delete_writes(connection: Connection, tenant_id: int, keys: Iterable[_Key]) -> None:
    for key in keys:
        same = (WRITE.c[name] == value for name, value in zip(_Key._fields, key, strict=True))
        connection.execute(delete(WRITE).where(WRITE.c.tenant_id == tenant_id, *same))


def _referenced(connection: Connection, tenant_id: int, dropped: set[tuple[str, ...]]) -> Iterator[bytes]:
    for (channels,) in connection.execute(select(CHECKPOINT.c.channels).where(CHECKPOINT.c.tenant_id == tenant_id)):
        yield from unpack(channels).values()
    columns = [WRITE.c[name] for name in _Key._fields]
    for row in connection.execute(select(*columns, WRITE.c.value).where(WRITE.c.tenant_id == tenant_id)):
        if tuple(row[:3]) not in dropped:
            # An interrupt has the answers that came before it behind its own value.
            yield from (row.value[i : i + HASH_BYTES] for i in range(0, len(row.value), HASH_BYTES))


def _parts(connection: Connection, blobs: Blobs, live: set[bytes]) -> Iterator[bytes]:
    of_tenant = and_(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.type == RECORD)
    records = [key for (key,) in connection.execute(select(BLOB.c.hash).where(of_tenant)) if key in live]
    for start in range(0, len(records), CHUNK):
        for value in blobs.get_many(connection, records[start : start + CHUNK]).values():
            yield from unpack(value.data).values()


def _lists(connection: Connection, blobs: Blobs, live: set[bytes]) -> dict[bytes, bytes | None]:
    """Find the lists that are in use, each with the one that it continues."""
    head = func.substr(BLOB.c.data, 1, 1 + HASH_BYTES)
    query = select(BLOB.c.hash, head).where(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.type == LIST)
    return {key: continued(data) for key, data in connection.execute(query) if key in live}


def _write_in_full(connection: Connection, blobs: Blobs, key: bytes) -> None:
    data = FULL + b"".join(blobs.item_hashes(connection, key))
    same = and_(BLOB.c.tenant_id == blobs.tenant_id, BLOB.c.hash == key)
    connection.execute(update(BLOB).where(same).values(data=data))


def _stored(connection: Connection, tenant_id: int) -> Iterable[_Stored]:
    query = select(BLOB.c.hash, func.length(BLOB.c.data)).where(BLOB.c.tenant_id == tenant_id)
    return (_Stored(*row) for row in connection.execute(query))


class _Stored(NamedTuple):
    hash: bytes
    size: int


def _delete_values(connection: Connection, tenant_id: int, keys: list[bytes]) -> None:
    statement = delete(BLOB).where(BLOB.c.tenant_id == tenant_id, BLOB.c.hash == bindparam("gone"))
    for start in range(0, len(keys), CHUNK):
        connection.execute(statement, [{"gone": key} for key in keys[start : start + CHUNK]])
