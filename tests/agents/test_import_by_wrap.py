"""Import by `wrap(thread_id=...)`: a thread of the graph's own saver continues in a session."""

import pytest
from foreign_threads import on, postgres_origin, said, shop, sqlite_origin
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from scripted import World

from agentgit import Conflict, InvalidInput, NotFound, SQLModelSaver


def test_a_thread_of_the_graphs_saver_continues_in_a_session(repo, tmp_path):
    """The agent continues the conversation, and the graph and its saver stay unchanged."""
    world, origin = World(), sqlite_origin(tmp_path)
    origin.talk(shop(world), "t", "order a chair")
    with origin.saver() as saver:
        graph = shop(world)(saver)
        agent = repo.wrap(graph, "s", thread_id="t", effects=world.effects())
        assert agent.run("and a table") == "It is ordered (7 messages)."
        assert graph.checkpointer is saver
        assert len(graph.get_state(on("t")).values["messages"]) == 4
    retry = agent.rollback("main#2")
    assert world.items == ["chair"]
    assert len(retry.history()) == 4


def test_wrapping_again_imports_only_new_turns(repo):
    """Wrapping again adds new turns of the source thread, or keeps the turns made in the session."""
    world, saver = World(), InMemorySaver()
    graph = shop(world)(saver)
    graph.invoke(said("hello"), on("t"))
    assert len(repo.wrap(graph, "s", thread_id="t").history()) == 2
    graph.invoke(said("hello"), on("t"))
    agent = repo.wrap(graph, "s", thread_id="t")
    assert len(agent.history()) == 4
    agent.run("hello")
    assert len(repo.wrap(graph, "s", thread_id="t").history()) == 6
    assert len(repo.sessions()) == 1


def test_another_sqlmodelsaver_is_imported_like_any_saver(repo, tmp_path):
    """A thread of an SQLModelSaver in another database is imported like any other."""
    with SQLModelSaver.from_conn_string(tmp_path / "elsewhere.db") as saver:
        graph = shop(World())(saver)
        graph.invoke(said("hello"), on("t"))
        assert repo.wrap(graph, "s", thread_id="t").run("hello") == "Hello."


async def _talk_and_wrap(repo, saver, wrap):
    graph = shop(World())(saver)
    await graph.ainvoke(said("hello"), on("t"))
    agent = await wrap(graph)
    await agent.ainvoke(said("hello"))
    assert len(agent.history()) == 4
    await graph.ainvoke(said("hello"), on("t"))  # the saver still works in its own loop


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_async_saver_is_read_on_and_off_its_loop(repo, tmp_path, in_thread):
    """AsyncSqliteSaver is read while its loop is blocked, and through its loop from another thread."""

    async def wrap(graph):
        if in_thread:
            return await repo.awrap(graph, "s", thread_id="t")
        return repo.wrap(graph, "s", thread_id="t")

    async with AsyncSqliteSaver.from_conn_string(str(tmp_path / "langgraph.db")) as saver:
        await _talk_and_wrap(repo, saver, wrap)


@pytest.mark.parametrize("in_thread", [False, True])
async def test_an_async_postgres_saver_is_read_on_and_off_its_loop(repo, postgres_url, in_thread):
    """AsyncPostgresSaver on one connection is read while its loop is blocked, and through its loop from another
    thread.
    """

    async def wrap(graph):
        if in_thread:
            return await repo.awrap(graph, "s", thread_id="t")
        return repo.wrap(graph, "s", thread_id="t")

    with postgres_origin(postgres_url) as origin:
        async with AsyncPostgresSaver.from_conn_string(origin.url) as saver:
            await saver.setup()
            await _talk_and_wrap(repo, saver, wrap)


async def test_a_connection_pool_is_read_only_through_its_loop(repo, postgres_url):
    """AsyncPostgresSaver on a pool is refused while its loop is blocked, and read by awrap."""
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    with postgres_origin(postgres_url) as origin:
        kwargs = {"autocommit": True, "row_factory": dict_row}
        async with AsyncConnectionPool(origin.url, min_size=1, max_size=2, kwargs=kwargs, open=False) as pool:
            saver = AsyncPostgresSaver(pool)
            await saver.setup()
            with pytest.raises(InvalidInput, match=r"repo\.awrap"):
                repo.wrap(shop(World())(saver), "s", thread_id="t")
            await _talk_and_wrap(repo, saver, lambda graph: repo.awrap(graph, "s", thread_id="t"))


def test_wrong_threads_are_refused(repo):
    """A missing saver, an unknown thread and a session with other content are refused."""
    saver = InMemorySaver()
    graph = shop(World())(saver)
    graph.invoke(said("hello"), on("t"))
    with pytest.raises(InvalidInput, match="compiled without one"):
        repo.wrap(shop(World())(None), "s", thread_id="t")
    with pytest.raises(NotFound, match="'u'"):
        repo.wrap(graph, "s", thread_id="u")
    assert repo.sessions() == []
    repo.wrap(graph, "s").run("hello")
    with pytest.raises(Conflict, match="'s' already exists"):
        repo.wrap(graph, "s", thread_id="t")
