"""After kill -9 at any point of a write to memory, or of its undo, memory and the journal agree."""

import signal

import backend
import memory_killed
import processes
import pytest
from memory_graphs import contents, noting, said, sqlite_store

OPERATIONS = [(verb, point) for verb, points in memory_killed.POINTS.items() for point in points]


def run_process(target, *args):
    """Run a function in another process, and return its exit code."""
    process = processes.forking().Process(target=target, args=args)
    process.start()
    process.join(120)
    return process.exitcode


@pytest.mark.each_value_once
@pytest.mark.parametrize(("verb", "point"), OPERATIONS, ids=[f"{v} {p}" for v, p in OPERATIONS])
def test_a_killed_write_or_undo_is_settled(repo, tmp_path, verb, point):
    """What is in doubt is looked up in memory, and a rollback brings the value of the point back."""
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
        code = run_process(memory_killed.main, backend.address(repo), str(path), verb, point)
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
    """Sessions in several processes read and write an item one after the other, so that no value is lost."""
    path, sessions = tmp_path / "memory.db", ["s0", "s1", "s2"]
    with sqlite_store(path) as store:
        started = [
            processes.forking().Process(
                target=memory_killed.write_often, args=(backend.address(repo), str(path), name, 6)
            )
            for name in sessions
        ]
        for process in started:
            process.start()
        for process in started:
            process.join(120)
        assert [process.exitcode for process in started] == [0] * 3
        writes = [call.args for call in backend.journal(repo)]
        befores = [one["before"]["is"] if one["before"] else "nothing" for one in writes]
        values = ["nothing", *(one["value"]["is"] for one in writes)]
        values.remove(contents(store)["food"])
        assert sorted(befores) == sorted(values)
