"""A plain saver on a database with sessions neither lists nor touches the threads of sessions."""

import asyncio

import backend
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from saver_checkpoints import on
from scripted import obeying
from sqlalchemy import select

from agentgit import InvalidInput, SQLModelSaver
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE


def own_graph(saver):
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [("ai", "mine")]})
    return builder.add_edge(START, "answer").compile(checkpointer=saver)


@pytest.fixture
def repo(lived_through):

    def live(repo):
        agent = obeying(repo, session="secret")
        agent.run("add chair")
        agent.rollback("main#1").run("add table")

    return lived_through(live)


@pytest.fixture
def saver(repo):
    saver = SQLModelSaver(backend.database(repo))
    own_graph(saver).invoke({"messages": [("user", "hi")]}, on("own", run_id="own-run"))
    return saver


def stored(repo):
    with backend.reading(repo) as transaction:
        return [
            transaction.execute(select(table).order_by(*table.primary_key)).all()
            for table in (GRAPH_CHECKPOINT, GRAPH_WRITE)
        ]


def threads(repo):
    return [branch.langgraph_session_id for branch in repo.session("secret").branches()]


def test_only_a_saver_with_sessions_enabled_sees_their_threads(repo, saver):
    async def listed():
        return [one async for one in saver.alist(None)]

    for found in (list(saver.list(None)), list(saver.list(None, filter={})), asyncio.run(listed())):
        assert {one.config["configurable"]["thread_id"] for one in found} == {"own"}
    assert len(list(saver.list(None, limit=1))) == 1
    everything = backend.saver(repo)
    named = {one.config["configurable"]["thread_id"] for one in everything.list(None)}
    assert named == {"own", *threads(repo)}
    for thread in threads(repo):
        assert everything.get_tuple(on(thread)).checkpoint["channel_values"]["messages"]


@pytest.mark.parametrize(
    "touch",
    [
        lambda saver, thread: saver.get_tuple(on(thread)),
        lambda saver, thread: list(saver.list(on(thread))),
        lambda saver, thread: saver.get_delta_channel_history(config=on(thread), channels=["messages"]),
        lambda saver, thread: saver.copy_thread(thread, "copy"),
        lambda saver, thread: saver.copy_thread("own", thread),
        lambda saver, thread: saver.delete_thread(thread),
        lambda saver, thread: saver.prune(["own", thread], strategy="delete"),
        lambda saver, thread: saver.prune(["own", thread]),
        lambda saver, thread: saver.put_writes(on(thread, checkpoint_id="x"), [("messages", 1)], "task"),
        lambda saver, thread: own_graph(saver).invoke({"messages": [("user", "hi")]}, on(thread)),
        lambda saver, thread: own_graph(saver).get_state(on(thread)),
        lambda saver, thread: own_graph(saver).update_state(on(thread), {"messages": [("user", "hi")]}),
        lambda saver, thread: asyncio.run(saver.aget_tuple(on(thread))),
    ],
)
def test_a_plain_saver_refuses_every_verb_on_a_session_thread(repo, saver, touch):
    before = stored(repo)
    for thread in (*threads(repo), "agentgit-1"):
        with pytest.raises(InvalidInput, match=r"belongs to a session.*sessions=True"):
            touch(saver, thread)
    assert stored(repo) == before
    assert repo.maintenance.fsck(level=3).findings == ()


def test_delete_for_runs_keeps_runs_of_sessions(repo, saver):
    before = stored(repo)[0]
    runs = {row.run_id for row in before} - {None}
    assert "own-run" in runs
    saver.delete_for_runs([*runs])
    after = stored(repo)[0]
    assert [row for row in after if row.thread_id != "own"] == [row for row in before if row.thread_id != "own"]
    assert not any(row.run_id in runs for row in after if row.thread_id == "own")
