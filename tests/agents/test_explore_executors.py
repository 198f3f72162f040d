"""Explorations whose turns run in other processes, of an executor of Python or of Dask."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

import dask
import distributed
import processes
import pytest
from explored_graphs import acting, broken, chat, entries, failing, folder, forgetful, leaving, leaving_later, mortal
from scripted import scripted, tool_node_graph

import agentgit
from agentgit import InvalidInput, Unavailable


@contextmanager
def process_pool(size=2):
    with ProcessPoolExecutor(size, mp_context=processes.forking()) as pool:
        yield pool


@contextmanager
def dask_pool():
    options = {"distributed.worker.multiprocessing-method": "forkserver", "distributed.comm.timeouts.connect": "60s"}
    with (
        dask.config.set(options),
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client.get_executor()


def agent_on(repo, **how):
    return repo.wrap(chat("", 0, "main"), "s", **how)


def words(found) -> list[tuple[str, str, str | None]]:
    return [(branch.name, branch.status, branch.answer) for branch in found.branches]


def said(leaf) -> list[str]:
    return [message["content"] for message in leaf.messages]


@pytest.mark.long
def test_an_exploration_runs_in_the_processes_of_an_executor(repo, tmp_path):
    agent, ledger = agent_on(repo), tmp_path / "ledger"
    agent.run("hello")
    here = agent.explore(["a", "b", "c"], 2, name="here")
    with process_pool() as executor:
        found = agent.explore(
            ["a", "b", "c"], 2, executor=executor, factory=partial(chat, str(ledger), 0.01),
            score=lambda leaf: leaf.choices[-1], name="there",
        )  # fmt: skip
    assert [(name.replace("there", "here"), *rest) for name, *rest in words(found)] == words(here)
    assert [said(leaf) for leaf in found.leaves] == [said(leaf) for leaf in here.leaves]
    assert [leaf.score for leaf in found.leaves] == [1, 2] * 4
    where = [line.split() for line in entries(ledger).elements()]
    assert sorted(branch for branch, _ in where) == sorted(branch.name for branch in found.branches)
    assert str(os.getpid()) not in {process for _, process in where}
    assert len({process for _, process in where}) == 2
    assert (agent.branch.is_current, agent.run("on")) == (True, "did on")


@pytest.mark.long
def test_the_branch_of_a_killed_process_is_resumed(repo, tmp_path):
    ledger = tmp_path / "ledger"
    agent, steps, factory = agent_on(repo), ["a", "die", "b"], partial(mortal, str(ledger))
    # With one process, because the pool ends the others, too, perhaps before their last step is written.
    with process_pool(1) as executor, pytest.raises(Unavailable, match="process was killed") as lost:
        agent.explore(steps, 2, executor=executor, factory=factory)
    assert "name='explore'" in lost.value.__notes__[0]
    with process_pool() as executor:
        found = agent.explore(steps, 2, executor=executor, factory=factory, name="explore")
    check_nothing_twice(found, ledger)


@pytest.mark.long
def test_dask_gives_the_branch_of_a_killed_process_to_another_one(repo, tmp_path):
    ledger = tmp_path / "ledger"
    with dask_pool() as executor:
        found = agent_on(repo).explore(["a", "die", "b"], 2, executor=executor, factory=partial(mortal, str(ledger)))
    check_nothing_twice(found, ledger)


def check_nothing_twice(found, ledger) -> None:
    assert {branch.status for branch in found.branches} == {"done"}
    assert len(found.branches) == 2 + 4 + 8
    steps = {1: "a", 2: "die", 3: "b"}
    wanted = [f"note {branch.name} {steps[len(branch.choices)]}" for branch in found.branches]
    wanted += [f"answer {branch.name}" for branch in found.branches]
    done = entries(ledger)
    assert done.pop("killed") == 1
    assert done == dict.fromkeys(wanted, 1)


@pytest.mark.long
def test_each_branch_can_have_a_world_of_its_own(repo, tmp_path):
    (tmp_path / "explore").mkdir()
    (tmp_path / "explore" / "notes").write_text("-")
    with process_pool() as executor:
        found = agent_on(repo).explore(2, ["a", "b"], executor=executor, factory=partial(folder, str(tmp_path)))
    assert [leaf.answer for leaf in found.leaves] == ["-aa", "-ab", "-ba", "-bb"]
    assert (tmp_path / "explore" / "notes").read_text() == "-"


@pytest.mark.long
async def test_aexplore_scores_on_the_callers_loop(repo, tmp_path):
    loop, ticks = asyncio.get_running_loop(), []

    async def tick():
        while True:
            ticks.append(await asyncio.sleep(0.01))

    async def score(leaf) -> float:
        assert asyncio.get_running_loop() is loop
        return leaf.choices[0]

    ticking = asyncio.ensure_future(tick())
    with process_pool() as executor:
        found = await agent_on(repo).aexplore(
            ["a"], 2, score=score, executor=executor, factory=partial(chat, str(tmp_path / "ledger"), 0.2)
        )
    ticking.cancel()
    assert [leaf.score for leaf in found.leaves] == [1, 2]
    assert len(ticks) > 5


@pytest.mark.long
def test_a_turn_that_raises_in_a_process_is_a_failed_leaf(repo):
    with process_pool() as executor:
        found = agent_on(repo).explore(1, ["fail", "go"], executor=executor, factory=failing)
    assert words(found) == [("explore/1", "failed", None), ("explore/2", "done", "fine")]
    assert found.leaves[0].error == "Odd: no answer"


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        (acting, "change the world: send"),
        (broken, "OSError: no such model"),
        (leaving, "SystemExit: 0"),
        (leaving_later, "SystemExit: 0"),
        (forgetful, "has no messages"),
        (str, "str is not a LangGraph graph"),
    ],
)
def test_a_graph_that_cannot_run_there_ends_the_exploration(repo, tmp_path, factory, why):
    """It ends with the reason before the graph runs, also for `sys.exit()` in a node; the right factory continues."""
    agent, chats = agent_on(repo), partial(chat, str(tmp_path / "ledger"), 0)
    with ThreadPoolExecutor(1) as executor:
        with pytest.raises(Unavailable, match=why):
            agent.explore(["a"], 1, executor=executor, factory=factory)
        found = agent.explore(["a"], 1, executor=executor, factory=chats, name="explore")
    assert words(found) == [("explore/1", "done", "did a")]
    assert said(found.leaves[0]) == ["a", "did a"]


def test_threads_of_this_process_are_an_executor_too(repo, tmp_path):
    """Any executor of Python serves, also one with threads, and `parallel` limits what is sent ahead."""
    with ThreadPoolExecutor(2) as executor:
        found = agent_on(repo).explore(
            ["a", "b"], 2, parallel=1, executor=executor, factory=partial(chat, str(tmp_path / "ledger"), 0)
        )
    assert [leaf.answer for leaf in found.leaves] == ["did b"] * 4


def test_what_cannot_run_in_other_processes_is_refused_before_a_branch_is_created(repo):
    """Wrong arguments, values that cannot be pickled, and tools that change the world."""
    agent, chats, lock = agent_on(repo), partial(chat, "", 0), {"lock": (n for n in ())}
    with ThreadPoolExecutor(1) as executor:
        for changed, why in [
            ({"executor": None}, "executor must be a concurrent.futures.Executor"),
            ({"executor": "dask"}, "not 'dask'"),
            ({"factory": None}, "None is not a function"),
            ({"factory": lambda branch: None}, "factory cannot be sent"),
            ({"parallel": -1}, "0 or more"),
            ({"config": {"configurable": lock}}, "The config cannot be sent"),
            ({"steps": ["a", {"messages": [], **lock}]}, "The input of a step cannot be sent"),
        ]:
            with pytest.raises(InvalidInput, match=why):
                agent.explore(**{"steps": ["a"], "choices": 1, "executor": executor, "factory": chats} | changed)
        sending = repo.wrap(tool_node_graph(scripted("hi"), []), "s", effects={"send": "irreversible"},
                            check_effects=False)  # fmt: skip
        with pytest.raises(InvalidInput, match="change the world: send"):
            sending.explore(["a"], 1, executor=executor, factory=chats)
    with pytest.raises(Unavailable, match=r"shut down.*Continue with a new executor") as refused:
        agent.explore(["a"], 1, executor=executor, factory=chats)
    assert not hasattr(refused.value, "__notes__")
    assert len(agent.session.branches()) == 1


@pytest.mark.parametrize("name", ["sqlite:///my notes.db", "my?notes#.db"])
def test_the_workers_open_the_file_that_was_opened(tmp_path, monkeypatch, name):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with agentgit.open(name) as repo, ThreadPoolExecutor(1) as executor:
        monkeypatch.chdir("elsewhere")
        found = agent_on(repo).explore(["a"], 1, executor=executor, factory=partial(chat, str(tmp_path / "ledger"), 0))
        assert found.leaves[0].answer == "did a"
    assert len(list(tmp_path.rglob("*.db"))) == 1
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_database_in_memory_is_refused():
    with agentgit.open(":memory:") as repo, ThreadPoolExecutor(1) as executor:
        agent = agent_on(repo)
        with pytest.raises(InvalidInput, match="in memory"):
            agent.explore(["a"], 1, executor=executor, factory=partial(chat, "", 0))
        assert len(agent.session.branches()) == 1
