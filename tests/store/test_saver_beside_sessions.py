"""A plain saver on a database with sessions neither lists nor touches the threads of sessions."""

import asyncio

import backend
import pytest
from langgraph.graph import START, MessagesState, StateGraph
from scripted import World, obedient, tool_node_graph
from sqlalchemy import select

from agentgit import InvalidInput, SQLModelSaver
from agentgit.store.sql.tables import GRAPH_CHECKPOINT, GRAPH_WRITE


def own_graph(saver):
    builder = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": [("ai", "mine")]})
    return builder.add_edge(START, "answer").compile(checkpointer=saver)


def on(thread, **more):
    return {"configurable": {"thread_id": thread, **more}}


@pytest.fixture
def repo(lived_through):
    """Open a repository with a session of two branches."""

    def live(repo):
        world = World()
        agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "secret", effects=world.effects())
        agent.run("add chair")
        agent.rollback("main#1").run("add table")

    return lived_through(live)


@pytest.fixture
def saver(repo):
    saver = SQLModelSaver(backend.database(repo), tenant_id=repo.context.store.tenant_id)
    own_graph(saver).invoke({"messages": [("user", "hi")]}, on("own", run_id="own-run"))
    return saver


def stored(repo):
    with backend.reading(repo) as connection:
        return [
            connection.execute(select(table).order_by(*table.primary_key)).all()
            for table in (GRAPH_CHECKPOINT, GRAPH_WRITE)
        ]


def threads(repo):
    return [branch.langgraph_session_id for branch in repo.session("secret").branches()]


def test_an_unfiltered_list_omits_threads_of_sessions(repo, saver):
    async def listed():
        return [one async for one in saver.alist(None)]

    for found in (list(saver.list(None)), list(saver.list(None, filter={})), asyncio.run(listed())):
        assert {one.config["configurable"]["thread_id"] for one in found} == {"own"}
    assert len(list(saver.list(None, limit=1))) == 1
    everything = SQLModelSaver(backend.database(repo), tenant_id=repo.context.store.tenant_id, sessions=True)
    named = {one.config["configurable"]["thread_id"] for one in everything.list(None)}
    assert named == {"own", *threads(repo)}


@pytest.mark.parametrize(
    "touch",
    [
        lambda saver, thread: saver.get_tuple(on(thread)),
        lambda saver, thread: saver.get(on(thread)),
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
        lambda saver, thread: asyncio.run(saver.adelete_thread(thread)),
        lambda saver, thread: asyncio.run(saver.acopy_thread(thread, "copy")),
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
    runs = {row.run_id for row in stored(repo)[0]} - {None}
    assert "own-run" in runs
    session_rows = [row for row in stored(repo)[0] if row.thread_id != "own"]
    saver.delete_for_runs([*runs])
    assert [row for row in stored(repo)[0] if row.thread_id != "own"] == session_rows
    own = [row for row in stored(repo)[0] if row.thread_id == "own"]
    assert all(row.run_id not in runs for row in own)


def test_a_saver_with_sessions_enabled_reads_session_threads(repo):
    saver = SQLModelSaver(backend.database(repo), tenant_id=repo.context.store.tenant_id, sessions=True)
    for branch in repo.session("secret").branches():
        assert saver.get_tuple(on(branch.langgraph_session_id)).checkpoint["channel_values"]["messages"]
