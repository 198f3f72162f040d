"""Import by `wrap(thread_id=...)`: a thread of the graph's own saver continues in a session."""

import pytest
from foreign_threads import on, open_origin, postgres_origin, said, shop, sqlite_origin
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from scripted import World

from agentgit import Conflict, InvalidInput, NotFound, SQLModelSaver


def test_a_thread_of_the_graphs_saver_continues_in_a_session(repo, tmp_path):
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
@pytest.mark.parametrize("kind", [AsyncSqliteSaver, AsyncPostgresSaver])
async def test_an_async_saver_is_read_on_and_off_its_loop(request, repo, tmp_path, kind, in_thread):
    """It is read while its loop is blocked, and through its loop from another thread."""

    async def wrap(graph):
        if in_thread:
            return await repo.awrap(graph, "s", thread_id="t")
        return repo.wrap(graph, "s", thread_id="t")

    server = lambda: request.getfixturevalue("postgres_url")  # noqa: E731  # SQLite needs none
    with open_origin(kind.__name__.removeprefix("Async"), tmp_path, server) as origin:
        async with kind.from_conn_string(origin.url) as saver:
            await saver.setup()
            await _talk_and_wrap(repo, saver, wrap)


async def test_a_connection_pool_is_read_only_through_its_loop(repo, postgres_url):
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
