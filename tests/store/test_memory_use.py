"""Reading checkpoints needs memory for a few conversations only, however many checkpoints there are."""

import tracemalloc

import pytest
from langchain_core.messages import HumanMessage
from process_memory import traced_memory
from saver_checkpoints import on, put

from agentgit import SQLModelSaver

MESSAGES, CHECKPOINTS = 40, 1000


@pytest.fixture
def saver(database):
    """Create a saver with a thread of many checkpoints that all have the same long conversation."""
    saver, parent = SQLModelSaver(database), None
    talk = [HumanMessage(f"message {n} " * 20, id=str(n)) for n in range(MESSAGES)]
    for n in range(CHECKPOINTS):
        changed = ["messages", "n"] if parent is None else ["n"]
        config = put(saver, "t", {"messages": talk, "n": n}, parent=parent, changed=changed)
        parent = config["configurable"]["checkpoint_id"]
    assert len(saver.get_tuple(on("t")).checkpoint["channel_values"]["messages"]) == MESSAGES  # warms the caches
    return saver


@pytest.mark.long
async def test_listing_needs_memory_for_only_a_few_conversations(saver):
    sum(1 for _ in saver.list(on("t"), limit=2))  # compiles and checks its statements
    peaks = []
    for limit in (200, None):
        with traced_memory():
            assert sum(1 for _ in saver.list(on("t"), limit=limit)) == (limit or CHECKPOINTS)
            peaks.append(tracemalloc.get_traced_memory()[1])
        with traced_memory():
            assert sum([1 async for _ in saver.alist(on("t"), limit=limit)]) == (limit or CHECKPOINTS)
            peaks.append(tracemalloc.get_traced_memory()[1])
    assert max(peaks[2:]) < 3 * min(peaks[:2])  # for five times as many checkpoints
    with traced_memory():
        saver.get_tuple(on("t"))
        assert max(peaks) < 8 * tracemalloc.get_traced_memory()[1]
