"""After any operations on a session, a collection keeps exactly what can be reached."""

import shutil
from contextlib import suppress

import backend
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage
from langgraph.graph import MessagesState, StateGraph
from sqlalchemy import select
from test_gc import contents

import agentgit
from agentgit.checkpoints import Retention
from agentgit.store.sql.tables import BLOB, GRAPH_CHECKPOINT, GRAPH_WRITE, LIST
from agentgit.store.threads.graph_rows import parse_graph_checkpoint

DEEDS = st.lists(
    st.tuples(
        st.sampled_from(["say", "say", "name", "tag", "fork", "back", "merge", "delete", "thin", "collect", "untag"]),
        st.integers(0, 50),
    ),
    min_size=3,
    max_size=14,
)


def chat():
    graph = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [AIMessage(f"{len(state)} ok")]})
    return graph.set_entry_point("answer").compile()


def do(repo, agent, deed, number):
    """Do one operation, at an existing checkpoint if it needs one, and return the agent to continue with."""
    session = repo.session("s")
    branches = [branch.name for branch in session.branches()]
    places = sorted({point.id for name in branches for point in session.checkpoints(branch=name)})
    place = places[number % len(places)]
    with suppress(agentgit.Conflict, agentgit.NotFound, agentgit.InvalidInput):  # refused operations are skipped
        if deed == "say":
            agent.run(f"say {number}")
        elif deed == "name":
            agent.checkpoint(f"n{number % 3}", data={"n": number})
        elif deed == "tag":
            session.tag(place, f"t{number % 3}")
        elif deed == "untag":
            session.untag(f"t{number % 3}")
        elif deed == "fork":
            return agent.fork(place)
        elif deed == "back":
            return agent.rollback(place)
        elif deed == "merge":
            agent.merge(branches[number % len(branches)])
        elif deed == "delete":
            session.delete_checkpoint(place)
        elif deed == "thin":
            session.retention.apply(Retention(compress_after=1 + number % 4, keep_last=1 + number % 3))
        else:
            repo.maintenance.gc(shrink=False)
    return agent


def reachable(repo):
    """Return the hashes of all reachable values, found one by one with the functions that read them."""
    blobs, way = repo.context.store.graphs.blobs.of(repo.session().id), set()
    with backend.reading(repo) as transaction:
        for row in transaction.execute(select(GRAPH_CHECKPOINT)):
            way.update(parse_graph_checkpoint(row).values.values())
        for value in transaction.execute(select(GRAPH_WRITE.c.value)).scalars():
            way.update(value[n : n + 32] for n in range(0, len(value), 32))
        for key in list(way):
            if blobs.get_many(transaction, [key])[key].type == LIST:
                way.update(blobs.item_hashes(transaction, key))
    return way


def stored(repo):
    return set(repo.context.read(lambda c: c.execute(select(BLOB.c.hash)).scalars().all()))


@pytest.mark.long
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(deeds=DEEDS)
def test_a_collection_keeps_exactly_the_reachable_values(sqlite_template, tmp_path_factory, deeds):
    with agentgit.open(shutil.copy(sqlite_template, tmp_path_factory.mktemp("story"))) as repo:
        agent = repo.wrap(chat(), "s")
        agent.run("begin")
        for deed, number in deeds:
            agent = do(repo, agent, deed, number)
        before = contents(repo)
        would = repo.maintenance.gc(dry_run=True)
        done = repo.maintenance.gc()
        assert (would.steps, would.values, would.bytes) == (done.steps, done.values, done.bytes)
        assert contents(repo) == before
        assert stored(repo) == reachable(repo)
        assert repo.maintenance.fsck(level=3).findings == ()
        for point in [key for key in before if isinstance(key, int)][:6]:
            assert agent.fork(point).history() == before[point]["conversation_history"]
        agent.switch(agent.branch.name, sync="ignore").run("and on")
        assert repo.maintenance.fsck(level=3).findings == ()
