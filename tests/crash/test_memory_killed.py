"""After kill -9 at any point of a write to memory, or of its undo, memory and the journal agree."""

import functools
import signal
from concurrent.futures import ThreadPoolExecutor

import backend
import memory_killed
import processes
import pytest
from memory_graphs import assert_chain, contents, noting, said, sqlite_store

OPERATIONS = [(verb, point) for verb, points in memory_killed.POINTS.items() for point in points]


@pytest.mark.each_value_once
@pytest.mark.parametrize(("verb", "point"), OPERATIONS, ids=[f"{v} {p}" for v, p in OPERATIONS])
def test_a_killed_write_or_undo_is_settled(repo, tmp_path, verb, point):
    path = tmp_path / "memory.db"
    with sqlite_store(path) as store:
        agent = repo.wrap(noting(store), "a")
        agent.invoke(said("+food=pizza"))
        agent.checkpoint("before")
        agent.invoke(said("+food=pasta +pet=cat"))
        if verb == "switch":
            other = agent.rollback("before")
            other.invoke(said("+food=fish"))
            other.switch("main", "world")
        code = processes.exit_code(memory_killed.main, backend.address(repo), str(path), verb, point)
        assert code == -signal.SIGKILL
        if verb == "run":
            here = repo.wrap(noting(store), "a")
        else:
            for operation in repo.session("a").operations():
                if operation.status != "done":
                    assert repo.resume(operation).status == "done"
            here = repo.wrap(noting(store), "a", branch="main-2" if verb == "switch" else None)
            if verb == "switch":
                here = here.switch("main-2", "world")
                assert contents(store) == {"food": "fish"}
        here.rollback("before")
        assert contents(store) == {"food": "pizza"}
        unclear = {"unknown", "intended", "reversing", "reverse_unknown", "reverse_failed"}
        assert not [call for call in backend.journal(repo) if call.status in unclear]
        assert repo.maintenance.fsck(3).is_sound


def test_processes_that_write_one_item_record_a_chain(repo, tmp_path):
    path = tmp_path / "memory.db"
    with sqlite_store(path) as store:
        write = functools.partial(processes.exit_code, memory_killed.write_often, backend.address(repo), str(path))
        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(write, ["s0", "s1", "s2"], [6] * 3)) == [0] * 3
        assert_chain([call.args for call in backend.journal(repo)], contents(store)["food"])
