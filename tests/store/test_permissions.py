"""Files that their owner cannot read or write are saved, restored or reported, for a user without privileges."""

from __future__ import annotations

import os
import pwd
import tempfile
import textwrap
from pathlib import Path

import processes
import pytest

NOBODY = pwd.getpwnam("nobody").pw_uid

BEGIN = f"""
    import os, sys, stat
    from pathlib import Path
    import agentgit, hypothesis
    import agentgit.workspace.api, agentgit.handles.snapshot_transfer
    from agentgit import Unavailable, Workspace
    from file_trees import picture
    from workspace_fixtures import left_out, unsaved
    place, kind = Path(sys.argv[1]), sys.argv[2]
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid({NOBODY})
        os.setuid({NOBODY})
    os.chdir(place)
    work = place / "work"
    workspace = Workspace(work, place / "store", environment=kind)
"""


@pytest.fixture
def place(tmp_path):
    """Create a directory with an empty workspace, owned by `nobody` if the tests run as root."""
    above = Path(tempfile.gettempdir())
    for folder in (above, *(one for one in (tmp_path, *tmp_path.parents) if one.is_relative_to(above))):
        if folder.stat().st_uid == os.getuid():
            folder.chmod(folder.stat().st_mode | 0o011)
    for folder in (tmp_path / "place", tmp_path / "place" / "work"):
        folder.mkdir()
        os.chown(folder, NOBODY, NOBODY) if os.geteuid() == 0 else None
    return tmp_path / "place"


@pytest.fixture(params=["git", "directory"])
def as_nobody(request, place):
    """Return a function that runs a script with a workspace of a kind, as a user who is not the superuser."""

    def run(script: str, code: int = 0) -> None:
        done = processes.run(textwrap.dedent(BEGIN) + textwrap.dedent(script), place, request.param)
        assert done.returncode == code, done.stderr

    return run


def test_unreadable_files_of_another_user_are_left_out_and_named(as_nobody, place):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    work = place / "work"
    (work / "theirs").write_text("1")
    (work / "closed").mkdir()
    (work / "closed" / "inner").write_text("1")
    (work / "theirs").chmod(0)
    (work / "closed").chmod(0)
    as_nobody("""
        (work / "a").write_text("1")
        first = workspace.save()
        reason = "cannot be read"
        assert left_out(workspace) == (("closed", reason), ("theirs", reason)), left_out(workspace)
        (work / "a").write_text("2")
        done = workspace.restore(first.id)
        assert (done.restored, done.missing, done.left) == (("a",), (), ()), done
        (work / "theirs").unlink()
        told = (("theirs", "left out of the snapshot (cannot be read)"),)
        assert workspace.plan_restore(first.id).missing == told
        assert workspace.restore(first.id).missing == told
    """)


def test_a_directory_closed_by_another_user_is_a_conflict(as_nobody, place):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    as_nobody("""
        (work / "d").mkdir()
        (work / "d" / "in").write_text("1")
        (work / "a").write_text("1")
        (place / "first").write_text(workspace.save().id)
        (work / "a").write_text("2")
    """)
    os.chown(place / "work" / "d", 0, 0)
    (place / "work" / "d").chmod(0)
    as_nobody("""
        first = (place / "first").read_text()
        done = workspace.restore(first)
        assert done.restored == ("a",), done
        assert ("d/in", "cannot be read") in done.conflicts, done
    """)
    assert (place / "work" / "d" / "in").read_text() == "1"


def test_a_file_that_a_person_made_unreadable_is_a_conflict_and_was_not_deleted(as_nobody):
    as_nobody("""
        from file_tools import Desk
        desk = Desk(work)
        os.environ["AGENTGIT_HOME"] = str(place / "home")
        repo = agentgit.open(place / "agentgit.db")
        agent = repo.wrap(desk.graph(), "s", check_effects=False, workspace=workspace)
        start = agent.run("write a.txt one") and agent.head
        agent.run("write a.txt two")
        (work / "a.txt").chmod(0)
        for plan in (agent.plan_rollback(start), agent.plan_rollback(start, files="overwrite")):
            assert "deleted" not in str(plan.files), plan.files
        plan = agent.plan_rollback(start)
        assert plan.files.conflicts == ["a.txt"], plan.files
    """)


def test_files_that_nobody_can_read_are_left_out_and_named(as_nobody):
    as_nobody("""
        for name in ("secret", "d/in", "a"):
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_text("1")
        (work / "secret").chmod(0o200)
        (work / "d").chmod(0o300)
        first = workspace.save()
        assert first.skipped == (("d", "cannot be read"), ("secret", "cannot be read")), first.skipped
        (work / "a").write_text("2")
        assert workspace.restore(first.id).restored == ("a",)
        assert (oct((work / "d").stat().st_mode), oct((work / "secret").stat().st_mode)) == ("0o40300", "0o100200")
        (work / "secret").unlink()
        assert workspace.plan_restore(first.id).missing == (("secret", "left out of the snapshot (cannot be read)"),)
    """)


def test_read_only_directories_come_back_with_their_modes(as_nobody):
    as_nobody("""
        (work / "d/e").mkdir(parents=True)
        (work / "d/e/in").write_text("1")
        (work / "d/e").chmod(0o555)
        (work / "d").chmod(0o500)
        first, was = workspace.save(), picture(work)
        for name in ("d", "d/e"):
            (work / name).chmod(0o700)
        (work / "d/e/in").unlink()
        (work / "d/e").rmdir()
        assert workspace.restore(first.id).restored == ("d/e/in",)
        assert picture(work) == was
    """)


def test_a_missing_directory_that_cannot_be_made_is_known_before_a_restore(as_nobody):
    as_nobody("""
        import shutil
        (work / "d/e/f").mkdir(parents=True)
        (work / "d/e/f/in").write_text("1")
        first = workspace.save()
        shutil.rmtree(work / "d/e")
        (work / "d").chmod(0o500)
        plan = workspace.plan_restore(first.id)
        assert {path for path, _ in plan.impossible} == {"d/e", "d/e/f", "d/e/f/in"}, plan
        assert {why for _, why in plan.impossible} == {"its directory cannot be written"}, plan
    """)


@pytest.mark.parametrize("whose", ["another user's", "read-only"])
def test_a_directory_that_cannot_be_written_is_known_before_a_restore(as_nobody, place, whose):
    if os.geteuid() != 0:
        pytest.skip("only root can give files to another user")
    as_nobody("""
        (work / "d").mkdir()
        (work / "d" / "in").write_text("1")
        (work / "a").write_text("1")
        (place / "first").write_text(workspace.save().id)
        for name in ("a", "d/in"):
            (work / name).write_text("2")
    """)
    if whose == "read-only":
        (place / "work" / "d").chmod(0o500)
    else:
        os.chown(place / "work" / "d", 0, 0)
    as_nobody("""
        first = (place / "first").read_text()
        plan = workspace.plan_restore(first)
        assert plan.impossible == (("d/in", "its directory cannot be written"),), plan
        try:
            workspace.restore(first)
        except Unavailable as error:
            assert "d/in" in str(error)
        assert ((work / "a").read_text(), (work / "d" / "in").read_text()) == ("1", "2")
    """)
