"""Graphs with a DeltaChannel on a saver alone, without sessions: what is stored of them, and what is shown."""

import backend
import faults
import pytest
from delta_graphs import chat, delta, said
from puts import on
from sqlalchemy import delete

from agentgit import SQLModelSaver

DURABILITIES = ("sync", "async", "exit")


@pytest.fixture
def saver(database):
    """A saver on each kind of database."""
    return SQLModelSaver(database)


def shown(saver, thread):
    """What is shown of the newest graph checkpoint of a thread."""
    with saver.database.reading() as connection:
        head = saver.store.head(connection, thread)
        state, messages = saver.store.read_state(connection, thread, head.checkpoint_id)
    return head.message_count, head.state_hash, [message["data"]["id"] for message in messages], state


@pytest.mark.parametrize("durability", DURABILITIES)
def test_the_saver_alone_knows_a_conversation(saver, durability):
    """Without the graph, writes that are messages are a conversation; other writes are in the hash and left out."""
    spread = chat(delta(100), saver, full=100)
    hashes = set()
    for turn in range(4):
        spread.invoke(said(f"q{turn}", f"h{turn}"), on("t"), durability=durability)
        count, state_hash, ids, state = shown(saver, "t")
        hashes.add(state_hash)
        assert (count, ids) == (2 * turn + 2, [one.id for one in spread.get_state(on("t")).values["messages"]])
        assert state == {}
    assert len(hashes) == 4


def test_pruned_copied_and_collected(saver):
    """Copying, pruning, forking and collecting keep what is shown, and what LangGraph rebuilds."""
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


def test_what_was_stored_before_goes_on(saver):
    """A thread of an earlier release, which stored nothing but the writes, is right from the next step on."""
    graph = chat(delta(100), saver)
    with faults.of_an_earlier_release():
        for turn in range(3):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
        assert shown(saver, "t")[0] == 0
    graph.invoke(said("q", "h"), on("t"))
    assert shown(saver, "t")[0] == 8


def test_a_way_back_that_is_cut(saver):
    """Where writes that a value was made of are gone, nothing is made up: it is left out."""
    graph = chat(delta(100), saver)
    with faults.of_an_earlier_release():
        for turn in range(2):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
    oldest = [*saver.list(on("t"))][-1].config["configurable"]["checkpoint_id"]
    rows = backend.table("graph_checkpoint")
    saver.database.write(lambda c: c.execute(delete(rows).where(rows.c.checkpoint_id == oldest)))
    graph.invoke(said("q", "h"), on("t"))
    assert shown(saver, "t")[::2] == (0, [])
