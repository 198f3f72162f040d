"""Compression: values compressed in different ways share a database, take less space, and are checked."""

import orjson
import pytest
from saver_checkpoints import BLOB, blob_bytes, on, put, values
from sqlalchemy import select, update

from agentgit import SQLModelSaver
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.objects.packing import RAW, ZLIB, ZSTD

TEXT = "the same words again and again, " * 100


def test_compression_kinds_may_be_mixed_in_one_database(database):
    for kind in ("zlib", "zstd", "none"):
        put(SQLModelSaver(database, compression=kind), kind, {"a": TEXT + kind})
    with database.reading() as transaction:
        assert set(transaction.execute(select(BLOB.c.codec)).scalars()) == {RAW, ZLIB, ZSTD}
    for kind in ("zlib", "zstd", "none"):
        assert values(SQLModelSaver(database, compression="none"), on(kind)) == {"a": TEXT + kind}


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_compression_saves_space_and_damage_raises_corrupt(database, kind):
    put(SQLModelSaver(database, compression=kind), "t", {"a": TEXT, "b": "short"})
    assert blob_bytes(database) < len(TEXT) / 10
    database.write(lambda c: c.execute(update(BLOB).where(BLOB.c.size > 100).values(data=b"damaged")))
    with pytest.raises(Corrupt, match="cannot be unpacked"):
        values(SQLModelSaver(database), on("t"))


def test_small_json_is_stored_as_text_unless_compression_is_chosen(database):
    small, large = {"text": "again and " * 100}, {"text": "again and " * 1000}
    put(SQLModelSaver(database), "plain", {"a": small, "b": large})
    put(SQLModelSaver(database, compression="zstd"), "packed", {"a": small | {"other": 1}})
    with database.reading() as transaction:
        stored = list(transaction.execute(select(BLOB.c.codec, BLOB.c.data).where(BLOB.c.size > 512)))
    assert [orjson.loads(row.data) for row in stored if row.codec == RAW] == [small]
    assert [row.codec for row in stored if row.codec != RAW] == [ZSTD, ZSTD]


def test_bad_input_an_unknown_compression_is_refused(database):
    with pytest.raises(InvalidInput, match="'zstd', 'zlib' or 'none'"):
        SQLModelSaver(database, compression="rar")
