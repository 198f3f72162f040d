"""Values packed in different ways live in one database."""

import pytest
from puts import BLOB, blob_bytes, on, put, values
from sqlalchemy import select, update

from agentgit import SQLModelSaver
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.objects.packing import RAW, ZLIB, ZSTD

TEXT = "the same words again and again, " * 100


def test_kinds_may_be_mixed(database):
    """What was packed in one way is read by a saver that packs in another, and each row says which it is."""
    for kind in ("zlib", "zstd", "none"):
        put(SQLModelSaver(database, compression=kind), kind, {"a": TEXT + kind})
    with database.reading() as connection:
        assert set(connection.execute(select(BLOB.c.codec)).scalars()) == {RAW, ZLIB, ZSTD}
    for kind in ("zlib", "zstd", "none"):
        assert values(SQLModelSaver(database, compression="none"), on(kind)) == {"a": TEXT + kind}


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_compression_saves_space(database, kind):
    """A text with repetitions takes a tenth of its size; short values are left as they are."""
    put(SQLModelSaver(database, compression=kind), "t", {"a": TEXT, "b": "short"})
    assert blob_bytes(database) < len(TEXT) / 10


@pytest.mark.parametrize("kind", ["zlib", "zstd"])
def test_a_damaged_packed_value_is_named(database, kind):
    """Bytes that cannot be unpacked are corrupt, whatever packed them."""
    put(SQLModelSaver(database, compression=kind), "t", {"a": TEXT})
    database.write(lambda c: c.execute(update(BLOB).where(BLOB.c.size > 100).values(data=b"damaged")))
    with pytest.raises(Corrupt, match="cannot be unpacked"):
        values(SQLModelSaver(database), on("t"))


def test_bad_input_names_of_compressions(database):
    """Bad input: an unknown compression is refused at once."""
    with pytest.raises(InvalidInput, match="'zstd', 'zlib' or 'none'"):
        SQLModelSaver(database, compression="rar")
