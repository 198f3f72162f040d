"""Content-addressed storage stores equal values once and lists as chains, and detects damage."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, func, select, update

from agentgit.errors import Corrupt
from agentgit.store.database import Database
from agentgit.store.objects.blobs import BlobStore, leaf, list_hash, pack, unpack
from agentgit.store.objects.content import Content
from agentgit.store.objects.lru import LRUCache
from agentgit.store.sql.tables import BLOB, LIST

SESSION = 5


@pytest.fixture(scope="module")
def shared(sqlite_template, tmp_path_factory):
    """Open one SQLite database for all examples of a property."""
    path = tmp_path_factory.mktemp("blobs") / "agentgit.db"
    shutil.copy(sqlite_template, path)
    database = Database(path)
    yield database
    database.close()


def values_of(session=SESSION):
    """Return the values of a session, without cached ones."""
    return BlobStore().of(session)


def leaves(values):
    return [leaf("json", value.encode()) for value in values]


def put_all(blobs, transaction, values):
    Content(blobs).put(transaction, [(value, None) for value in values])


def put_list(database, items, base=None):
    """Store a list of leaves that continues `base`, and return its hash."""
    return database.write(lambda transaction: Content(values_of()).put(transaction, [(items, base)]))[0]


def test_value_hashes_never_change():
    """The hash of a known value never changes, so that every release finds the values of earlier ones."""
    one = leaf("json", b"1")
    assert one.hash.hex() == "5e91f633c6540a74417f32e8de9147f9e2b4286a0500860ca94970ecc5c5c14b"
    assert list_hash([one.hash]).hex() == "2c4305f6b3c32fd13d682d854f15d70c930c00f1f761dd2f3f1fa5dd865bf59c"


def test_equal_values_are_stored_once_per_session(database):
    for blobs in (values_of(), values_of(), values_of(SESSION + 1)):
        database.write(lambda transaction, blobs=blobs: put_all(blobs, transaction, leaves(["a", "b", "a"])))
    with database.reading() as transaction:
        assert transaction.execute(select(func.count()).where(BLOB.c.external_session_id > 0)).scalar() == 4


edits = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.text(max_size=4), max_size=5)),
        st.tuples(st.just("replace"), st.integers(0, 99), st.text(max_size=4)),
        st.tuples(st.just("remove"), st.integers(0, 99)),
        st.tuples(st.just("reverse"), st.just(None)),
        st.tuples(st.just("clear"), st.just(None)),
    ),
    max_size=12,
)


def edited(items, edit):
    verb, *rest = edit
    if verb == "append":
        return items + rest[0]
    if verb == "reverse":
        return items[::-1]
    if verb == "clear" or not items:
        return []
    where = rest[0] % len(items)
    return items[:where] + ([rest[1]] if verb == "replace" else []) + items[where + 1 :]


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(edits)
def test_every_version_of_a_list_stays_readable(shared, edits):
    writer, versions, items, base = Content(values_of()), {}, [], None
    for edit in edits:
        items = edited(items, edit)
        body = leaves(items)
        (base,) = shared.write(lambda transaction, body=body, base=base: writer.put(transaction, [(body, base)]))
        versions[base] = body
    with shared.reading() as transaction:
        assert Content(values_of()).get(transaction, versions) == versions


def test_a_long_list_chain_is_written_in_full_at_intervals(database):
    writer, items, base = Content(values_of()), [], None
    for n in range(300):
        items = [*items, leaf("json", str(n).encode())]
        (base,) = database.write(lambda transaction, at=(items, base): writer.put(transaction, [at]))
    with database.reading() as transaction:
        assert values_of().item_hashes(transaction, base) == tuple(item.hash for item in items)
        full = select(func.count()).where(BLOB.c.size > 0, BLOB.c.type == LIST, func.substr(BLOB.c.data, 1, 1) == b"\0")
        assert 5 <= transaction.execute(full).scalar() <= 8


def test_a_list_with_an_invalid_base_is_written_in_full(database):
    one, two = leaves(["1", "2"])
    for base in (one.hash, bytes(32)):
        key = put_list(database, [one, two], base)
        with database.reading() as transaction:
            assert values_of().item_hashes(transaction, key) == (one.hash, two.hash)


def damage(database, key, **values):
    """Change or delete a stored row directly in its table."""
    change = update(BLOB).values(**values) if values else delete(BLOB)
    database.write(lambda transaction: transaction.execute(change.where(BLOB.c.hash == key)))


@pytest.mark.parametrize("values", [{"data": b"2"}, {"type": "bytes"}, {"codec": 1}, {}])
def test_a_damaged_value_raises_corrupt_and_names_its_row(database, values):
    (value,) = leaves(["1"])
    database.write(lambda transaction: put_all(values_of(), transaction, [value]))
    damage(database, value.hash, **values)
    with database.reading() as transaction, pytest.raises(Corrupt, match="agentgit fsck") as caught:
        values_of().get_many(transaction, [value.hash])
    assert caught.value.row == f"blob {SESSION}/{value.hash.hex()}"


@pytest.mark.parametrize("what", ["the list", "its base"])
@pytest.mark.parametrize("how", ["other items", "gone", "continues itself"])
def test_a_damaged_list_raises_corrupt(database, what, how):
    items = leaves(map(str, range(20)))
    base = put_list(database, items[:-1])
    key = put_list(database, items, base)
    with database.reading() as transaction:
        data = transaction.execute(select(BLOB.c.data).where(BLOB.c.hash == key)).scalar()
    values = {
        "other items": {"data": b"\0" + bytes(32)},
        "gone": {},
        "continues itself": {"data": data.replace(base, key)},
    }
    damage(database, key if what == "the list" else base, **values[how])
    with database.reading() as transaction, pytest.raises(Corrupt):
        values_of().item_hashes(transaction, key)


@given(st.dictionaries(st.text(), st.binary(min_size=32, max_size=32)))
def test_packed_names_with_hashes_are_read_back(named):
    assert unpack(pack(named)) == named
    assert list(unpack(pack(named))) == list(named)


def test_the_cache_evicts_the_least_recently_used_value():
    recent = LRUCache(80, lambda text: len(text))
    recent.add((bytes([n]), "x" * 10) for n in range(8))
    recent.get(bytes([0]))
    recent.add([(b"new", "y" * 10), (b"heavy", "z" * 11)])
    assert recent.get(bytes([0])) is not None
    assert recent.get(bytes([1])) is recent.get(b"heavy") is None
