"""Large values are stored in chunks, share equal ones, and are read back whole or named as damaged."""

import os
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import HumanMessage
from process_memory import traced_memory
from saver_checkpoints import BLOB, blob_bytes, count, on, put, values
from sqlalchemy import delete, select, update
from test_blobs import shared

from agentgit import SQLModelSaver
from agentgit.errors import Corrupt
from agentgit.store.objects.blobs import BlobStore, family_of, leaf
from agentgit.store.objects.content import Content
from agentgit.store.objects.packing import CHUNK, CHUNK_BYTES, CHUNKED

__all__ = ["shared"]  # the fixture

SESSIONS = {"zlib": 1, "zstd": 2, "none": 3}
SIZE = 2 * 2**20
HUGE = 20 * 2**20


def chunks(database):
    with database.reading() as transaction:
        return list(transaction.execute(select(BLOB.c.hash).where(BLOB.c.type == CHUNK)).scalars())


@pytest.mark.parametrize("kind", ["zlib", "zstd", "none"])
@pytest.mark.parametrize("text", ["random", "repeated"])
def test_a_huge_value_is_stored_in_chunks(database, kind, text):
    value = os.urandom(HUGE) if text == "random" else b"again and again " * (HUGE // 16)
    put(SQLModelSaver(database, compression=kind), "t", {"a": value, "b": "small"})
    assert values(SQLModelSaver(database), on("t")) == {"a": value, "b": "small"}
    with database.reading() as transaction:
        rows = transaction.execute(select(BLOB.c.codec, BLOB.c.data)).all()
    assert max(len(row.data) for row in rows) <= CHUNK_BYTES
    assert [len(row.data) for row in rows if row.codec == CHUNKED] == [HUGE // CHUNK_BYTES * 32]


def test_a_growing_value_stores_only_its_new_chunks(saver):
    text = os.urandom(8 * CHUNK_BYTES)
    first = put(saver, "t", {"a": text})
    before = blob_bytes(saver.database)
    put(saver, "t", {"a": text + b"more"}, parent=first["configurable"]["checkpoint_id"], version=2)
    assert blob_bytes(saver.database) - before < 1000
    put(saver, "zeros", {"a": bytes(SIZE)})
    assert len(chunks(saver.database)) == 8 + 1 + 1
    assert values(SQLModelSaver(saver.database), on("zeros")) == {"a": bytes(SIZE)}


@pytest.fixture
def saver(database):
    """Create a saver without compression on an empty database."""
    return SQLModelSaver(database, compression="none")


DAMAGE = {
    "gone": delete(BLOB),
    "other bytes": update(BLOB).values(data=b"damaged"),
    "another codec": update(BLOB).values(codec=1),
    "a list of chunks": update(BLOB).values(codec=CHUNKED),
    "another type": update(BLOB).values(type="json"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_chunk_raises_corrupt_and_names_its_row(saver, damage):
    put(saver, "t", {"a": os.urandom(SIZE)})
    (key, *_) = chunks(saver.database)
    saver.database.write(lambda transaction: transaction.execute(DAMAGE[damage].where(BLOB.c.hash == key)))
    with pytest.raises(Corrupt) as caught:
        values(SQLModelSaver(saver.database), on("t"))
    assert caught.value.row == f"blob {family_of('t')}/{key.hex()}"


@pytest.mark.parametrize(
    "change",
    [lambda row: row.data[:-32], lambda row: row.data[32:64] + row.data[:32] + row.data[64:], lambda row: row.hash],
    ids=["a chunk is missing", "two are swapped", "it contains itself"],
)
def test_a_damaged_list_of_chunks_raises_corrupt(saver, change):
    put(saver, "t", {"a": os.urandom(SIZE)})
    with saver.database.reading() as transaction:
        (row,) = transaction.execute(select(BLOB).where(BLOB.c.codec == CHUNKED)).all()
    changed = update(BLOB).where(BLOB.c.hash == row.hash).values(data=change(row))
    saver.database.write(lambda transaction: transaction.execute(changed))
    with pytest.raises(Corrupt) as caught:
        values(SQLModelSaver(saver.database), on("t"))
    assert caught.value.row == f"blob {row.external_session_id}/{row.hash.hex()}"


def test_gc_keeps_chunks_shared_with_another_value(saver):
    text = os.urandom(4 * CHUNK_BYTES)
    put(saver, "gone", {"a": text + os.urandom(2 * CHUNK_BYTES)})
    saver.copy_thread("gone", "kept")
    put(saver, "kept", {"messages": [HumanMessage("x" * SIZE, id="1")], "a": text + b"end"})
    saver.prune(["kept"])
    shared = len(chunks(saver.database))
    saver.delete_thread("gone")
    counted = saver.gc(dry_run=True)
    assert saver.gc() == counted
    assert counted.values == 1 + 2
    assert counted.bytes >= 2 * CHUNK_BYTES
    assert len(chunks(saver.database)) == shared - 2
    found = values(SQLModelSaver(saver.database), on("kept"))
    assert found == {"messages": [HumanMessage("x" * SIZE, id="1")], "a": text + b"end"}
    saver.delete_thread("kept")
    saver.gc()
    assert count(saver.database, BLOB) == 0
    put(saver, "again", {"a": text})
    assert values(SQLModelSaver(saver.database), on("again")) == {"a": text}


@pytest.mark.parametrize("kind", ["zlib", "zstd", "none"])
def test_memory_use_stays_near_the_size_of_the_value(shared, kind):
    value = leaf("bytes", os.urandom(HUGE))
    with traced_memory():
        shared.write(lambda transaction: Content(BlobStore(kind).of(SESSIONS[kind])).put(transaction, [(value, None)]))
        assert tracemalloc.get_traced_memory()[1] < HUGE
        tracemalloc.reset_peak()
        with shared.reading() as transaction:
            assert BlobStore().of(SESSIONS[kind]).get_many(transaction, [value.hash])[value.hash] == value
        assert tracemalloc.get_traced_memory()[1] < 2 * HUGE


@settings(max_examples=80, deadline=None)
@given(
    values=st.lists(st.binary(max_size=60), max_size=6),
    size=st.integers(1, 9),
    kind=st.sampled_from(["zlib", "zstd", "none"]),
)
def test_chunked_values_are_read_back_unchanged(shared, values, size, kind):
    items = [leaf("bytes", value) for value in values]
    writer = Content(BlobStore(kind, chunk_bytes=size).of(1))
    keys = shared.write(lambda transaction: writer.put(transaction, [(items, None), *((item, None) for item in items)]))
    with shared.reading() as transaction:
        found = Content(BlobStore().of(1)).get(transaction, keys)
    assert [found[key] for key in keys] == [items, *items]
