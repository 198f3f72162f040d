"""A rollback that overwrites files in conflict reports which ones, and which snapshot has the versions of others."""

from __future__ import annotations

import signal
import zlib
from pathlib import Path

import backend
import faults
import processes
import pytest
from file_tools import desk, home
from stubborn_tools import Next

from agentgit import Conflict, RollbackIncomplete, Unavailable, Workspace, WorkspaceChanged

__all__ = ["desk", "home"]  # fixtures that the tests use


@pytest.fixture
def agent(repo, desk):
    """Create an agent that wrote files around a checkpoint, then edit, create and delete one file as a person."""
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt one; write b.txt one; write d.txt one")
    agent.checkpoint("before")
    agent.run("write a.txt two; write b.txt two; write d.txt two")
    (desk.root / "a.txt").write_text("mine")
    (desk.root / "c.txt").write_text("mine too")
    (desk.root / "d.txt").unlink()
    return agent


def overwritten(report):
    return {one.path: one.why for one in report.files.changes if one.action == "overwritten"}


def actions(report):
    return {one.path: one.action for one in report.files.changes}


def test_files_a_rollback_reports_each_overwritten_file(agent, desk):
    """Only a file that a turn changed, too, is overwritten; if a person deleted it, it comes back."""
    with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
        agent.rollback("before")
    report = agent.rollback("before", files="overwrite").report
    assert desk.files == {"a.txt": "one", "b.txt": "one", "c.txt": "mine too", "d.txt": "one"}
    assert overwritten(report) == {"a.txt": f"snapshot {report.files.safety} has the other's version"}
    assert "1 file overwritten (changed by somebody else)" in report.files.summary
    assert "overwritten" in report._repr_mimebundle_()["text/plain"]
    Workspace(desk.root).restore(report.files.safety, paths=["a.txt"])
    assert desk.files["a.txt"] == "mine"


def test_files_a_version_whose_stored_contents_are_damaged_is_stored_again_before_it_is_overwritten(agent, desk):
    """The stored contents may be those of an earlier snapshot, which nobody has read since."""
    agent.checkpoint("mine")
    for pack in Path(Workspace(desk.root).storage_dir).rglob("*.pack"):
        data = pack.read_bytes()
        at = data.find(packed(b"mine"))
        if at >= 0:
            pack.write_bytes(data[: at + 3] + bytes([data[at + 3] ^ 1]) + data[at + 4 :])
    report = agent.rollback("before", files="overwrite").report
    assert desk.files["a.txt"] == "one"
    Workspace(desk.root).restore(report.files.safety, paths=["a.txt"])
    assert desk.files["a.txt"] == "mine"


def packed(text):
    return zlib.compress(text, 1)


def test_files_a_redo_brings_back_what_a_rollback_has_overwritten(agent, desk):
    before = agent.rollback("before", files="overwrite")
    before.redo()
    assert desk.files == {"a.txt": "mine", "b.txt": "two", "c.txt": "mine too"}


def test_files_a_rollback_that_overwrites_nothing_reports_nothing(agent, desk):
    agent.run("write e.txt five")
    before = agent.rollback("before", force=True)
    assert overwritten(before.report) == {}
    assert desk.files == {"a.txt": "mine", "b.txt": "one", "c.txt": "mine too", "d.txt": "one"}
    assert overwritten(before.redo().report) == {}


def test_files_a_rollback_that_was_finished_without_all_files_takes_none_of_its_own_for_a_persons(agent, repo, desk):
    with faults.full_for({b"b.txt"}):
        with pytest.raises(RollbackIncomplete) as stopped:
            agent.rollback("before", files="overwrite")
        report = repo.resume(stopped.value.operation, force=True)
    assert (report.status, report.branch) == ("done", "main-2")
    assert actions(report) == {"a.txt": "overwritten", "c.txt": "left", "d.txt": "write"}
    plan = repo.wrap(desk.graph(), "s", workspace=desk.root, check_effects=False).plan_switch("main").files
    assert {one.path: one.action for one in plan.changes} == {"a.txt": "write", "d.txt": "delete"}


KILLED = """
import sys
import agentgit, faults, points
from file_tools import Desk
url, root, point = sys.argv[1:]
repo = agentgit.open(url)
desk = Desk(__import__("pathlib").Path(root))
agent = repo.wrap(desk.graph(), "s", workspace=root, effects=desk.world.effects(), check_effects=False)
at = {
    "before the restore": (points.REPLACE_FILE,),
    "in the restore": (points.REPLACE_FILE,),  # the second time, when one file is back, and another one is not
    "after the restore": (points.PUBLISH_OPERATION,),
}
with faults.killed(*at[point], time=2 if point == "in the restore" else 1):
    agent.rollback("before", files="overwrite")
"""


def test_files_a_restore_that_failed_half_way_reports_what_it_did_and_so_does_its_end(agent, repo, desk):
    told = pytest.raises(RollbackIncomplete, match=r"No space left .*again\. The previous")
    with faults.full_for({b"b.txt"}), told as stopped:
        agent.rollback("before", files="overwrite")
    assert desk.files == {"a.txt": "one", "b.txt": "two", "c.txt": "mine too", "d.txt": "one"}
    half, did = stopped.value.report, {"a.txt": "overwritten", "c.txt": "left", "d.txt": "write"}
    assert actions(half) == did
    report = repo.resume(stopped.value.operation)
    assert desk.files == {"a.txt": "one", "b.txt": "one", "c.txt": "mine too", "d.txt": "one"}
    assert actions(report) == did | {"b.txt": "write"}
    assert overwritten(report) == {"a.txt": f"snapshot {half.files.safety} has the other's version"}
    assert overwritten(half) == overwritten(report)
    assert report.files.safety == half.files.safety
    Workspace(desk.root).restore(report.files.safety)
    assert desk.files == {"a.txt": "mine", "b.txt": "two", "c.txt": "mine too"}


def test_files_what_somebody_changes_before_a_rollback_is_resumed_stays(agent, repo, desk):
    """Nobody has confirmed to overwrite it, and the version that the first attempt has overwritten is still named."""
    with faults.full_for({b"b.txt"}), pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("before", files="overwrite")
    for name in "ab":
        (desk.root / f"{name}.txt").write_text("late")
    report = repo.resume(stopped.value.operation)
    assert desk.files == {"a.txt": "late", "b.txt": "late", "c.txt": "mine too", "d.txt": "one"}
    assert actions(report) == {"a.txt": "conflict", "b.txt": "conflict", "c.txt": "left", "d.txt": "write"}
    (why,) = [one.why for one in report.files.changes if one.path == "a.txt"]
    assert why.endswith(f"; snapshot {report.files.safety} has the other's version")
    Workspace(desk.root).restore(report.files.safety, paths=["a.txt"])
    assert desk.files["a.txt"] == "mine"


def test_files_nothing_goes_on_over_half_restored_files_but_the_rollback_itself(agent, repo, desk):
    """What is whose in the directory only the stopped operation knows."""
    with faults.full_for({b"b.txt"}), pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("before", files="overwrite")
    step = Next("resume", operation=stopped.value.operation)
    with pytest.raises(Conflict, match="stopped while it restored files") as refused:
        agent.run("write e.txt later")
    assert refused.value.next == (step,)
    with pytest.raises(Unavailable, match="stopped while it restored files") as refused:
        agent.rollback("before")
    assert step in refused.value.next
    assert not agent.plan_rollback("before").is_admissible
    report = repo.resume(stopped.value.operation)
    assert actions(report) == {"a.txt": "overwritten", "b.txt": "write", "c.txt": "left", "d.txt": "write"}


def test_files_a_resumed_rollback_takes_nothing_of_its_own_for_a_persons(repo, desk):
    """Its redo brings back the files that it left."""
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt one; write b.txt one")
    agent.checkpoint("before")
    agent.run("write a.txt two; write b.txt two; write new.txt two")
    with faults.full_for({b"b.txt"}), pytest.raises(RollbackIncomplete) as stopped:
        agent.rollback("before")
    repo.resume(stopped.value.operation)
    assert desk.files == {"a.txt": "one", "b.txt": "one"}
    agent.session.agent().redo()
    assert desk.files == {"a.txt": "two", "b.txt": "two", "new.txt": "two"}


@pytest.mark.parametrize("point", ["in the restore", "before the restore", "after the restore"])
def test_files_a_rollback_killed_around_its_restore_is_finished_once(agent, repo, desk, point):
    said = agent.history()
    died = processes.run(KILLED, backend.address(repo), desk.root, point)
    assert died.returncode == -signal.SIGKILL, died.stderr
    assert agent.history() == said
    (stopped,) = [one for one in repo.session("s").operations() if one.status != "done"]
    report = repo.resume(stopped)
    assert (report.status, report.branch, repo.session("s").branch().name) == ("done", "main-2", "main-2")
    assert desk.files == {"a.txt": "one", "b.txt": "one", "c.txt": "mine too", "d.txt": "one"}
    repo.wrap(desk.graph(), "s", workspace=desk.root, check_effects=False).run("write e.txt on")
    assert actions(report) == {"a.txt": "overwritten", "b.txt": "write", "c.txt": "left", "d.txt": "write"}
    assert overwritten(report) == {"a.txt": f"snapshot {report.files.safety} has the other's version"}
    left = {one.path: one.why for one in report.files.changes if one.action == "left"}
    assert left == {"c.txt": "somebody else changed it while no turn ran"}
    Workspace(desk.root).restore(report.files.safety)
    assert desk.files == {"a.txt": "mine", "b.txt": "two", "c.txt": "mine too"}
