"""Graphs with a DeltaChannel on a saver: what LangGraph rebuilds, and the values that sessions show."""

import backend
import faults
import pytest
from delta_graphs import chat, delta, said
from saver_checkpoints import on
from sqlalchemy import delete

from agentgit import SQLModelSaver


def shown(saver, thread):
    """Return the message count, state hash, message ids and state of a thread's newest graph checkpoint."""
    with saver.database.reading() as transaction:
        head = saver.store.newest(transaction, thread)
        state, messages = saver.store.read_state(transaction, thread, head.key.checkpoint_id)
    return head.message_count, head.state_hash, [message["data"]["id"] for message in messages], state


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_the_saver_alone_computes_no_values(saver, durability):
    """Without a session only the writes are stored, and LangGraph rebuilds the values from them."""
    spread = chat(delta(100), saver, full=100)
    for turn in range(4):
        spread.invoke(said(f"q{turn}", f"h{turn}"), on("t"), durability=durability)
    assert shown(saver, "t")[0] == 0
    values = spread.get_state(on("t")).values
    fresh = chat(delta(100), SQLModelSaver(saver.database), full=100)
    assert fresh.get_state(on("t")).values == values
    assert len(values["messages"]) == 8


def test_threads_stay_equal_after_copy_prune_fork_and_gc(saver):
    """Copying, pruning, forking and collecting keep what LangGraph rebuilds."""
    graph = chat(delta(100), saver)
    for turn in range(4):
        graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
    values = graph.get_state(on("t")).values
    saver.copy_thread("t", "copy")
    newest = graph.get_state(on("t")).config["configurable"]["checkpoint_id"]
    saver.database.write(lambda transaction: saver.store.fork(transaction, "t", newest, "fork"))
    saver.prune(["t"])
    saver.gc()
    fresh = SQLModelSaver(saver.database)
    again = chat(delta(100), fresh)
    for thread in ("t", "copy", "fork"):
        assert again.get_state(on(thread)).values == values
        again.invoke(said("more", "more"), on(thread))
        assert len(again.get_state(on(thread)).values["messages"]) == 10


def test_a_value_that_was_not_computed_is_correct_after_one_step(database):
    """A thread of which only the writes were stored is correct from the next step on."""
    saver = SQLModelSaver(database, sessions=True)
    graph = chat(delta(100), saver)
    with faults.without_delta_values():
        for turn in range(3):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
        assert shown(saver, "t")[0] == 0
    graph.invoke(said("q", "h"), on("t"))
    assert shown(saver, "t")[0] == 8


def test_a_value_with_missing_writes_is_not_invented(database):
    """A value whose writes are gone is shown as not computed."""
    saver = SQLModelSaver(database, sessions=True)
    graph = chat(delta(100), saver)
    with faults.without_delta_values():
        for turn in range(2):
            graph.invoke(said(f"q{turn}", f"h{turn}"), on("t"))
    oldest = [*saver.list(on("t"))][-1].config["configurable"]["checkpoint_id"]
    rows = backend.table("graph_checkpoint")
    saver.database.write(lambda c: c.execute(delete(rows).where(rows.c.checkpoint_id == oldest)))
    graph.invoke(said("q", "h"), on("t"))
    count, _, messages, state = shown(saver, "t")
    assert (count, messages, state["messages"]) == (0, [], "<not computed at this step>")
