"""Hard links: a restore or an undo of a file leaves other links to it unchanged."""

from __future__ import annotations

import os

import pytest
from file_tools import Desk
from file_trees import mode, picture, write
from workspace_fixtures import kind, unsaved, work, workspace

import agentgit
from agentgit import Workspace

__all__ = ["kind", "work", "workspace"]  # the fixtures


def look(path):
    found = path.stat()
    return path.read_text(), found.st_mode & 0o7777, found.st_ino


EDITS = {"write": write("a", b"two"), "mode": mode("a", 0o640), "create": write("b")}


@pytest.mark.parametrize("edit", EDITS)
def test_a_restore_never_changes_an_outside_link(workspace, work, tmp_path, edit):
    write("a", b"one")(work)
    first = workspace.save()
    EDITS[edit](work)
    os.link(work / ("b" if edit == "create" else "a"), tmp_path / "outside")
    was, second = look(tmp_path / "outside"), workspace.save()
    for one in (first, second, first):
        workspace.restore(one.id)
        assert look(tmp_path / "outside") == was


def test_hard_linked_files_are_restored_separately(workspace, work):
    (work / "a").write_text("same")
    (work / "a").chmod(0o600)
    (work / "b").write_text("same")
    (work / "b").chmod(0o644)
    was, first = picture(work), workspace.save()
    (work / "b").unlink()
    os.link(work / "a", work / "b")
    linked, second = picture(work), workspace.save()
    done = workspace.restore(first.id)
    assert (done.restored, done.conflicts) == (("b",), ())
    assert picture(work) == was
    assert unsaved(workspace) == ()
    assert str(workspace.plan_restore(first.id)) == str(workspace.restore(first.id)) == "nothing to restore"
    workspace.restore(second.id)
    assert picture(work) == linked
    (work / "b").unlink()
    os.link(work / "a", work / "b")
    (work / "a").write_text("through both")
    assert workspace.restore(second.id, paths=["a"]).restored == ("a",)
    assert ((work / "a").read_text(), (work / "b").read_text()) == ("same", "through both")


def test_a_hard_link_made_by_a_tool_is_no_conflict_in_a_rollback(repo, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    desk = Desk(tmp_path / "work")
    agent = repo.wrap(desk.graph(), "s", effects=desk.world.effects(), check_effects=False, workspace=desk.root)
    agent.run("write a.txt same; write b.txt same")
    (desk.root / "a.txt").chmod(0o600)
    agent.run("write c.txt more")
    agent.checkpoint("before")
    agent.run("shell rm b.txt && ln a.txt b.txt")
    assert (desk.root / "a.txt").stat().st_nlink == 2
    retry = agent.rollback("before", tools="keep")
    assert retry.report.files.conflicts == []
    assert [(desk.root / name).stat().st_mode & 0o777 for name in ("a.txt", "b.txt")] == [0o600, 0o644]
    assert retry.plan_rollback("HEAD").files.changes == []
    retry.run("write d.txt on")
    assert retry.rollback("before", tools="keep").report.files.conflicts == []
    assert unsaved(agentgit.Workspace(desk.root)) == ()


def test_the_undo_stack_leaves_other_links_unchanged(work, tmp_path):
    (work / "a").write_text("one")
    (work / "a").chmod(0o644)
    stack = Workspace(work, tmp_path / "store").undo_stack
    stack.snapshot("edit", ["a"])
    (work / "a").chmod(0o600)
    os.link(work / "a", work / "b")
    os.link(work / "a", tmp_path / "outside")
    was = look(tmp_path / "outside")
    assert stack.undo()[0].restored == ("a",)
    assert look(tmp_path / "outside") == look(work / "b") == was
    assert look(work / "a")[:2] == ("one", 0o644)


def test_directory_snapshots_share_no_inode_with_the_workspace(work, tmp_path):
    workspace = Workspace(work, tmp_path / "store", environment="directory")
    (work / "a").write_text("one")
    os.link(work / "a", work / "b")
    ids = [workspace.save().id, workspace.save("again").id]
    workspace.restore(ids[0])
    kept = {path.stat().st_ino for path in (tmp_path / "store").rglob("*") if path.is_file()}
    assert not kept & {path.stat().st_ino for path in work.iterdir()}
