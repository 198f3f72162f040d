"""A trained dictionary: short values get shorter, and every saver reads them (W13)."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import AIMessage
from puts import BLOB, blob_bytes, count, on, put, values
from sqlalchemy import delete, func, insert, select, update

import agentgit
from agentgit.agents.saver import SQLModelSaver
from agentgit.errors import Corrupt, InvalidInput
from agentgit.store.compression import ZSTD_DICTIONARY, train
from agentgit.store.tables import DictionaryRow, TenantRow

DICTIONARY = DictionaryRow.__table__


def talk(saver, thread, begin=0, count=400):
    """Store a conversation as models make them; give its messages."""
    messages = [
        AIMessage(
            f"Order {n * 7919} of {n % 13} chairs is on its way to customer {n * 31}.", id=f"run-{n}-0",
            response_metadata={"model_name": "a-model-2025", "finish_reason": "stop", "logprobs": None},
            usage_metadata={"input_tokens": n, "output_tokens": n % 50, "total_tokens": n + n % 50},
        )
        for n in range(begin, begin + count)
    ]  # fmt: skip
    put(saver, thread, {"messages": messages})
    return messages


@pytest.fixture
def saver(database):
    """A saver that packs with zstd, on a database that has one conversation."""
    saver = SQLModelSaver(database, compression="zstd")
    talk(saver, "first")
    return saver


def codecs(database):
    """How many values are packed in which way."""
    with database.reading() as connection:
        return dict(connection.execute(select(BLOB.c.codec, func.count()).group_by(BLOB.c.codec)).all())


def test_w13_short_values_get_shorter(saver):
    """W13: after training, messages take less than half of what they took, at once and in a saver opened later."""
    before = blob_bytes(saver.database)
    made = saver.train_dictionary()
    assert made.samples >= 400
    for number, writer in enumerate((saver, SQLModelSaver(saver.database, compression="zstd")), 1):
        start = blob_bytes(saver.database)
        messages = talk(writer, f"more {number}", begin=1000 * number)
        assert blob_bytes(saver.database) - start < before / 2
        assert values(SQLModelSaver(saver.database), on(f"more {number}"))["messages"] == messages
    assert codecs(saver.database)[ZSTD_DICTIONARY] >= 800


def test_a_saver_that_was_open_reads_what_a_new_dictionary_packs(saver):
    """A dictionary that one has not seen is looked for when a value needs it, also a second one, whatever one packs."""
    others = [SQLModelSaver(saver.database, compression=kind) for kind in ("zstd", "none")]
    for other in others:
        assert len(values(other, on("first"))["messages"]) == 400
    for number in (1, 2):
        saver.train_dictionary()
        messages = talk(saver, f"more {number}", begin=1000 * number)
        for other in others:
            assert values(other, on(f"more {number}"))["messages"] == messages
    assert len(values(SQLModelSaver(saver.database), on("more 1"))["messages"]) == 400


def test_training_twice_from_the_same_values_changes_nothing(saver):
    """The same values give the same dictionary, which is stored once."""
    made = saver.train_dictionary()
    assert saver.train_dictionary() == made
    assert count(saver.database, DICTIONARY) == 1
    messages = talk(saver, "more", begin=1000)
    assert values(SQLModelSaver(saver.database), on("more"))["messages"] == messages


def test_only_zstd_takes_the_dictionary(saver):
    """A dictionary changes nothing for who packs with something else."""
    saver.train_dictionary()
    talk(SQLModelSaver(saver.database, compression="none"), "plain", begin=1000)
    assert ZSTD_DICTIONARY not in codecs(saver.database)


def test_many_threads_may_pack_and_unpack(saver):
    """Compressors are not shared by threads: what eight of them store at once reads back."""
    saver.train_dictionary()

    def work(n):
        messages = talk(saver, f"t{n}", begin=1000 * n, count=50)
        return messages == values(SQLModelSaver(saver.database), on(f"t{n}"))["messages"]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(1, 17)))


@pytest.mark.parametrize("damage", ["gone", "changed", "another id"])
def test_a_damaged_dictionary_is_named(saver, damage):
    """A value whose dictionary is gone is Corrupt and named; a dictionary that was changed is named itself."""
    made = saver.train_dictionary()
    talk(saver, "more", begin=1000)
    change = {
        "gone": delete(DICTIONARY),
        "changed": update(DICTIONARY).values(data=b"damaged"),
        "another id": update(DICTIONARY).values(id=1),
    }
    saver.database.write(lambda connection: connection.execute(change[damage]))
    with pytest.raises(Corrupt, match=f"dictionary {made.id} is missing|table dictionary") as caught:
        values(SQLModelSaver(saver.database), on("more"))
    assert caught.value.row.startswith("dictionary" if damage == "changed" else "blob")
    if damage != "gone":
        with pytest.raises(Corrupt, match="table dictionary"):
            put(SQLModelSaver(saver.database, compression="zstd"), "new", {"a": "x" * 100})


def test_a_dictionary_belongs_to_its_tenant(saver):
    """No tenant packs with what was made from another one's messages."""
    saver.train_dictionary()
    facts = {"id": 5, "name": "other", "created_at": func.now()}
    saver.database.write(lambda connection: connection.execute(insert(TenantRow.__table__).values(facts)))
    other = SQLModelSaver(saver.database, tenant_id=5, compression="zstd")
    messages = talk(other, "first", begin=1000)
    assert ZSTD_DICTIONARY not in codecs(saver.database)
    assert values(other, on("first"))["messages"] == messages


def test_a_collection_keeps_the_dictionary(saver):
    """What was packed with a dictionary is read after its thread was copied, the source deleted, and a collection."""
    saver.train_dictionary()
    messages = talk(saver, "more", begin=1000)
    saver.copy_thread("more", "copy")
    saver.delete_thread("more")
    saver.gc()
    assert values(SQLModelSaver(saver.database), on("copy"))["messages"] == messages


def test_bad_input_too_little_to_train_from(database):
    """Bad input: without messages there is nothing to train from, and nothing is stored."""
    saver = SQLModelSaver(database, compression="zstd")
    talk(saver, "t", count=90)
    with pytest.raises(InvalidInput, match="a dictionary needs 100"):
        saver.train_dictionary()
    talk(saver, "u", begin=1000, count=90)
    assert ZSTD_DICTIONARY not in codecs(database)


def test_bad_input_values_that_nothing_can_be_learned_from():
    """Bad input: values that zstd makes no dictionary of are refused with its reason."""
    with pytest.raises(InvalidInput, match="Try again with more"):
        train([b""] * 200, 1000)


async def test_an_event_loop_can_train(saver):
    """The async twin does the same."""
    assert (await saver.atrain_dictionary()).samples >= 400


def test_a_repository_packs_and_trains_too(database):
    """`agentgit.open` takes the compression for its sessions, and trains from them."""
    with agentgit.open(database.url, compression="zstd") as repo:
        store = repo.store
        talk(SQLModelSaver(database, tenant_id=store.tenant_id, graphs=store.graphs), "t")
        made = repo.train_dictionary()
        assert made.bytes > 1000
        talk(SQLModelSaver(database, tenant_id=store.tenant_id, graphs=store.graphs), "u", begin=1000)
    assert codecs(database)[ZSTD_DICTIONARY] >= 400
    with pytest.raises(InvalidInput, match="'zstd', 'zlib' or 'none'"):
        agentgit.open(database.url, compression="rar")
