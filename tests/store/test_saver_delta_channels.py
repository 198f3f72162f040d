"""Graphs with a DeltaChannel on a saver without sessions: the values that are stored and shown."""

import backend
import faults
import pytest
from delta_graphs import chat, delta, said
from saver_checkpoints import on
from sqlalchemy import delete

from agentgit import SQLModelSaver

DURABILITIES = ("sync", "async", "exit")


def shown(saver, thread):
    """Return the message count, state hash, message ids and state of a thread's newest graph checkpoint."""
    with saver.database.reading() as connection:
        head = saver.store.head(connection, thread)
        state, messages = saver.store.read_state(connection, thread, head.checkpoint_id)
    return head.message_count, head.state_hash, [message["data"]["id"] for message in messages], state


@pytest.mark.parametrize("durability", DURABILITIES)
def test_the_saver_alone_recognises_a_conversation(saver, durability):
    """Without the graph, message writes form a conversation; other writes count in the hash but are not shown."""
    spread = chat(delta(100), saver, full=100)
    hashes = set()
    for turn in range(4):
        spread.invoke(said(f"q{turn}", f"h{turn}"), on("t"), durability=durability)
        count, state_hash, ids, state = shown(saver, "t")
        hashes.add(state_hash)
        assert (count, ids) == (2 * turn + 2, [one.id for one in spread.get_state(on("t")).values["messages"]])
        assert state == {}
    assert len(hashes) == 4


def test_threads_stay_equal_after_copy_prune_fork_and_gc(saver):
    """Copying, pruning, forking and collecting keep the shown values and what LangGraph rebuilds."""
    graph = chat(delta(100), saver)
    for turn in range(4):
        graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
    before, values = shown(saver, "t"), graph.get_state(on("t")).values
    saver.copy_thread("t", "copy")
    newest = graph.get_state(on("t")).config["configurable"]["checkpoint_id"]
    saver.database.write(lambda connection: saver.store.fork(connection, "t", newest, "fork"))
    saver.prune(["t"])
    saver.gc()
    fresh = SQLModelSaver(saver.database)
    again = chat(delta(100), fresh)
    for thread in ("t", "copy", "fork"):
        assert shown(fresh, thread) == before
        assert again.get_state(on(thread)).values == values
        again.invoke(said("more", "more"), on(thread))
        assert shown(fresh, thread)[0] == 10
        assert shown(fresh, thread)[2] == [one.id for one in again.get_state(on(thread)).values["messages"]]


def test_a_thread_of_an_earlier_release_is_correct_after_one_step(saver):
    """A thread of an earlier release, which stored only the writes, is correct from the next step on."""
    graph = chat(delta(100), saver)
    with faults.of_an_earlier_release():
        for turn in range(3):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
        assert shown(saver, "t")[0] == 0
    graph.invoke(said("q", "h"), on("t"))
    assert shown(saver, "t")[0] == 8


def test_a_value_with_missing_writes_is_left_out(saver):
    """A value whose writes are gone is left out instead of being invented."""
    graph = chat(delta(100), saver)
    with faults.of_an_earlier_release():
        for turn in range(2):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
    oldest = [*saver.list(on("t"))][-1].config["configurable"]["checkpoint_id"]
    rows = backend.table("graph_checkpoint")
    saver.database.write(lambda c: c.execute(delete(rows).where(rows.c.checkpoint_id == oldest)))
    graph.invoke(said("q", "h"), on("t"))
    assert shown(saver, "t")[::2] == (0, [])
