"""Concurrent writers in threads, on an event loop and in processes lose and mix up no data, and see no lock errors."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import concurrent_sessions
import processes
import pytest
from echo_graph import HOW, echoing, said, talk, texts, whole
from saver_checkpoints import on

import agentgit
from agentgit import SQLModelSaver


def ids(states):
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

    loop = asyncio.get_running_loop()
    threads, tasks = [f"thread {n}" for n in range(8)], [f"task {n}" for n in range(6)]
    with ThreadPoolExecutor(8) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, in_thread, name) for name in threads), *map(on_loop, tasks))
    fresh = echoing(SQLModelSaver(database))
    for name in threads + tasks:
        assert texts(fresh.get_state(on(name)).values) == whole(name, turns)
        history = ids(fresh.get_state_history(on(name)))
        assert len(history) == 5 * turns
        assert ids([state async for state in graph.aget_state_history(on(name))]) == history


async def test_readers_see_only_stored_states_during_writes(database):
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
    if how == "wrap":
        with agentgit.open(url) as repo:
            return texts(repo.wrap(echoing(), session=name).get_state().values)
    with SQLModelSaver.from_conn_string(url) as saver:
        return texts(echoing(saver).get_state(on(name)).values)


@pytest.mark.parametrize("how", HOW)
def test_eight_threads_with_separate_connections_lose_no_turn(database, how):
    names, url = [f"t{n}" for n in range(8)], database.url.render_as_string(hide_password=False)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: talk(url, how, name, 3), names))
    assert [conversation(url, how, name) for name in names] == [whole(name, 3) for name in names]


@pytest.mark.long
@pytest.mark.parametrize("turns", [3, pytest.param(25, marks=pytest.mark.soak)])
def test_eight_processes_lose_no_turn(database, tmp_path, turns):
    """They share a database, or a file that they create together, without a `database is locked` error."""
    script = "import sys; from echo_graph import main; sys.exit(main(sys.argv[1], 8, int(sys.argv[2])))"
    names = [f"p{n}" for n in range(8)]
    for url, count in (
        (database.url.render_as_string(hide_password=False), turns),
        (f"sqlite:///{tmp_path / 'new.db'}", 1),
    ):
        done = processes.run(script, url, count)
        assert (done.returncode, done.stderr) == (0, "")
        found = [conversation(url, HOW[n % 2], name) for n, name in enumerate(names)]
        assert found == [whole(name, count) for name in names]


SCRIPT = (
    "import sys; from concurrent_sessions import main; "
    "sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3] == 'True'))"
)


SOAK = [pytest.mark.soak, pytest.mark.timeout(3000)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("turns", "kill"),
    [(5, False), (4, True), pytest.param(40, False, marks=SOAK), pytest.param(30, True, marks=SOAK)],
)
def test_eight_processes_lose_no_turn_also_when_three_are_killed(database, turns, kill):
    """A process that meets another one gets a Conflict and retries; a killed one is continued by the others at once."""
    url = database.url.render_as_string(hide_password=False)
    done = processes.run(SCRIPT, url, turns, kill, timeout=300 + 10 * turns)
    assert (done.returncode, done.stderr) == (0, "")
    with agentgit.open(database.url) as repo:
        concurrent_sessions.check(repo, turns, kill)
