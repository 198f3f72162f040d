"""Concurrent writers in threads, on an event loop and in processes lose and mix up no data, and see no lock errors."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import processes
import pytest
from echo_graph import HOW, echoing, said, talk, texts, whole
from saver_checkpoints import on

import agentgit
from agentgit import SQLModelSaver


def ids(states):
    """Return the ids of the checkpoints of a history."""
    return [state.config["configurable"]["checkpoint_id"] for state in states]


@pytest.mark.long
async def test_threads_and_an_event_loop_share_one_saver(database):
    """One saver serves eight threads and six tasks of an event loop at once; every conversation is whole."""
    saver = SQLModelSaver(database)
    graph, turns = echoing(saver), 3

    def in_thread(name):
        for turn in range(turns):
            graph.invoke(said(name, turn), on(name))

    async def on_loop(name):
        for turn in range(turns):
            await graph.ainvoke(said(name, turn), on(name))

    async def by_turns(name):
        for turn in range(turns):
            if turn % 2:
                await asyncio.to_thread(graph.invoke, said(name, turn), on(name))
            else:
                await graph.ainvoke(said(name, turn), on(name))

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(8) as pool:
        threads = [loop.run_in_executor(pool, in_thread, f"thread {n}") for n in range(8)]
        tasks = [on_loop(f"task {n}") for n in range(3)] + [by_turns(f"both {n}") for n in range(3)]
        await asyncio.gather(*threads, *tasks)
    names = [f"thread {n}" for n in range(8)] + [f"{kind} {n}" for kind in ("task", "both") for n in range(3)]
    fresh = echoing(SQLModelSaver(database))
    for name in names:
        assert texts(fresh.get_state(on(name)).values) == whole(name, turns)
        history = ids(fresh.get_state_history(on(name)))
        assert len(history) == 5 * turns
        assert ids([state async for state in graph.aget_state_history(on(name))]) == history


async def test_readers_see_only_stored_states_during_writes(database):
    """A reader in a thread or on the event loop sees only stored states while eight threads write."""
    saver = SQLModelSaver(database)
    graph, turns, writers = echoing(saver), 2, 8
    allowed = [whole("w", turns)[:length] for length in range(4 * turns + 1)]

    def plain(values, name):
        return [text.replace(name, "w") for text in texts(values)] if values else []

    def write(name):
        for turn in range(turns):
            graph.invoke(said(name, turn), on(name))

    def read(name):
        return [plain(state.values, name) for state in graph.get_state_history(on(name))]

    async def read_on_loop(name):
        return [plain(state.values, name) async for state in graph.aget_state_history(on(name))]

    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(writers) as pool:
        running = [loop.run_in_executor(pool, write, f"w{n}") for n in range(writers)]
        seen = []
        while not all(each.done() for each in running):
            seen += await asyncio.to_thread(read, f"w{len(seen) % writers}")
            seen += await read_on_loop(f"w{len(seen) % writers}")
        await asyncio.gather(*running)
    assert seen
    assert all(state in allowed for state in seen)


def conversation(url, how, name):
    """Open the database, and return the texts of a conversation."""
    if how == "wrap":
        with agentgit.open(url) as repo:
            return texts(repo.wrap(echoing(), session=name).get_state().values)
    with SQLModelSaver.from_conn_string(url) as saver:
        return texts(echoing(saver).get_state(on(name)).values)


def full(url):
    """Return a URL with its password."""
    return url.render_as_string(hide_password=False)


@pytest.mark.parametrize("how", HOW)
def test_eight_threads_with_separate_connections_lose_no_turn(database, how):
    """Eight threads that each opened the database write at once without a failure, and every turn is there."""
    names, url = [f"t{n}" for n in range(8)], full(database.url)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: talk(url, how, name, 3), names))
    assert [conversation(url, how, name) for name in names] == [whole(name, 3) for name in names]


def run_processes(url, turns):
    """Run turns in eight processes at once, and check that no turn was lost."""
    done = processes.run(
        "import sys; from echo_graph import main; sys.exit(main(sys.argv[1], 8, int(sys.argv[2])))", url, turns
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    names = [f"p{n}" for n in range(8)]
    found = [conversation(url, HOW[n % 2], name) for n, name in enumerate(names)]
    assert found == [whole(name, turns) for name in names]


@pytest.mark.long
def test_eight_processes_that_write_one_database_lose_no_turn(database):
    """Eight processes run turns at once without a `database is locked` error, and every turn is there."""
    run_processes(full(database.url), 3)


@pytest.mark.long
def test_eight_processes_create_one_database_file_together(tmp_path):
    """Eight processes that open a missing file create it together and lose nothing."""
    run_processes(f"sqlite:///{tmp_path / 'new.db'}", 1)


@pytest.mark.soak
def test_eight_processes_lose_no_turn_in_a_long_run(database):
    """Eight processes with 25 turns each, which is a thousand checkpoints, lose no turn."""
    run_processes(full(database.url), 25)
