"""Garbage collection of stored values deletes unused values and keeps used ones, also beside writers."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base.id import uuid6
from saver_checkpoints import BLOB, blob_bytes, count, on, put, values

from agentgit import SQLModelSaver
from agentgit.store.maintenance.gc import Collected
from agentgit.store.objects.packing import CHUNK_BYTES
from agentgit.store.sql.tables import GRAPH_WRITE


def talk(saver, thread, turns, *, start=()):
    """Store a conversation with one checkpoint for each message, and return the last config and the messages."""
    messages, config = list(start), None
    for n in range(len(messages), turns):
        messages = [*messages, HumanMessage(f"{n} in {thread} " * 20, id=str(n))]
        parent = config["configurable"]["checkpoint_id"] if config else None
        config = put(saver, thread, {"messages": messages, "n": n}, parent=parent, version=n + 1)
    return config, messages


def test_gc_frees_the_space_of_a_deleted_thread(saver):
    _, kept = talk(saver, "kept", 10)
    before = blob_bytes(saver.database)
    talk(saver, "gone", 10)
    saver.delete_thread("gone")
    counted = saver.gc(dry_run=True)
    assert counted.values > 10
    assert saver.gc() == counted
    assert blob_bytes(saver.database) == before
    assert values(SQLModelSaver(saver.database), on("kept"))["messages"] == kept
    assert saver.gc() == Collected(0, 0, 0, 0)


def test_gc_keeps_values_shared_with_a_copied_thread(saver):
    config, messages = talk(saver, "t", 30)
    with_writes = on("t", checkpoint_ns="", checkpoint_id=config["configurable"]["checkpoint_id"])
    saver.put_writes(with_writes, [("messages", [HumanMessage("pending", id="p")]), ("n", 7)], "task")
    saver.copy_thread("t", "copy")
    saver.prune(["copy"])
    saver.delete_thread("t")
    collected = saver.gc()
    assert collected.values >= 29
    assert collected.lists == 1, "the one list that is left continued one that is gone"
    found = SQLModelSaver(saver.database).get_tuple(on("copy"))
    assert found.checkpoint["channel_values"]["messages"] == messages
    assert [write[1:] for write in found.pending_writes] == [("messages", [HumanMessage("pending", id="p")]), ("n", 7)]


def test_a_collected_value_can_be_stored_again(saver):
    """A saver stores a value again after gc removed it, although it remembers the value."""
    _, messages = talk(saver, "t", 5)
    saver.delete_thread("t")
    saver.gc()
    assert count(saver.database, BLOB) == 0
    talk(saver, "again", 6, start=messages)
    assert values(SQLModelSaver(saver.database), on("again"))["messages"][:5] == messages


def test_gc_keeps_the_parts_of_a_record(saver):
    saved = {"messages": [HumanMessage(str(n), id=str(n)) for n in range(20)], "note": "x"}
    first = put(saver, "t", {"__previous__": {**saved, "messages": saved["messages"][:-1]}})
    put(saver, "t", {"__previous__": saved}, parent=first["configurable"]["checkpoint_id"], version=2)
    assert saver.gc().values == 0
    saver.prune(["t"])
    assert saver.gc().lists == 1
    assert values(SQLModelSaver(saver.database), on("t")) == {"__previous__": saved}


def test_gc_removes_writes_without_a_checkpoint_only_when_old(saver):
    """A write that waits for its checkpoint is kept for an hour, and then collected with its value."""
    saver.put_writes(on("t", checkpoint_ns="", checkpoint_id=str(uuid6())), [("a", "young")], "task")
    old = "1ef00000-0000-6000-8000-000000000000"
    saver.put_writes(on("t", checkpoint_ns="", checkpoint_id=old), [("a", "old")], "task")
    collected = saver.gc()
    assert (collected.writes, collected.values) == (1, 1)
    assert count(saver.database, GRAPH_WRITE) == 1


@pytest.mark.long
def test_gc_beside_concurrent_writers_removes_nothing_they_need(saver):
    large = os.urandom(2 * CHUNK_BYTES)

    def work(n):
        mine = SQLModelSaver(saver.database)
        for round in range(3):
            _, messages = talk(mine, f"{n}-{round}", 8)
            put(mine, f"large {n}-{round}", {"a": large})
            mine.prune([f"{n}-{round}"])
            if round:
                mine.delete_thread(f"{n}-{round - 1}")
                mine.delete_thread(f"large {n}-{round - 1}")
            assert mine.gc().bytes >= 0
        return messages

    with ThreadPoolExecutor(4) as pool:
        expected = list(pool.map(work, range(4)))
    saver.gc()
    fresh = SQLModelSaver(saver.database)
    assert [values(fresh, on(f"{n}-2"))["messages"] for n in range(4)] == expected
    assert [values(fresh, on(f"large {n}-2")) for n in range(4)] == [{"a": large}] * 4


def test_gc_with_shrink_makes_the_file_smaller(tmp_path):
    with SQLModelSaver.from_conn_string(tmp_path / "a.db") as saver:
        put(saver, "big", {"a": [str(uuid6()) for _ in range(40_000)]})
        put(saver, "small", {"a": 1})
        before = sum(file.stat().st_size for file in tmp_path.iterdir())
        saver.delete_thread("big")
        saver.gc(shrink=True)
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) < before / 3
        assert values(saver, on("small")) == {"a": 1}


async def test_gc_runs_on_an_event_loop(saver):
    await saver.aput_writes(on("t", checkpoint_ns="", checkpoint_id="x"), [("a", 1)], "task")
    assert (await saver.agc(shrink=True)).writes == 1
