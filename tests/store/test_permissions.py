"""Files that their owner cannot read or write are saved, restored or reported, for a user without privileges."""

from __future__ import annotations

import os
import pwd
import signal
import stat
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
    import agentgit.workspace.api, agentgit.workspace.undo_stack
    from agentgit import Unavailable, Workspace
    from file_trees import picture
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


def test_files_that_their_owner_cannot_read_are_saved_compared_and_restored(as_nobody):
    """0000 files and directories that cannot be listed or searched are captured, and their modes stay."""
    as_nobody("""
        for name, mode in (("secret", 0), ("d/in", 0o644), ("e/in", 0o200), ("f/g/in", 0o400), ("write", 0o200)):
            (work / name).parent.mkdir(parents=True, exist_ok=True)
            (work / name).write_text(name)
            (work / name).chmod(mode)
        for name, mode in (("d", 0), ("e", 0o600), ("f/g", 0o100), ("f", 0o300)):
            (work / name).chmod(mode)
        first = workspace.save()
        assert (workspace.skipped(), workspace.changed()) == ((), ())
        (work / "secret").chmod(0o600)
        (work / "secret").write_text("other")
        (work / "secret").chmod(0)
        (work / "d").chmod(0o755)
        (work / "d/in").unlink()
        assert workspace.changed() == ("d/in", "secret")
        assert "+other" in workspace.diff(first.id).diff_content
        done = workspace.restore(first.id)
        assert done.restored == ("d/in", "secret"), done
        assert workspace.changed() == () and not workspace.diff(first.id)
        for name in ("secret", "d"):
            assert stat.S_IMODE(os.lstat(work / name).st_mode) == 0, name
            (work / name).chmod(0o700)
        assert ((work / "secret").read_text(), (work / "d/in").read_text()) == ("secret", "d/in")
    """)


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
        assert workspace.skipped() == (("closed", reason), ("theirs", reason)), workspace.skipped()
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


def test_a_mode_changed_by_a_killed_process_is_restored(as_nobody, place):
    """If a process is killed during a temporary change of a mode, the next use restores the mode."""
    as_nobody("""
        (work / "d").mkdir()
        (work / "d" / "in").write_text("1")
        (work / "d").chmod(0o100)
    """)
    as_nobody(
        """
        import signal
        plain = os.chmod
        def dying(path, mode, **named):
            if isinstance(path, str) and path.startswith("/proc/self/fd/"):
                plain(path, mode, **named)
                os.kill(os.getpid(), signal.SIGKILL)
            return plain(path, mode, **named)
        os.chmod = dying
        workspace.save()
        """,
        -signal.SIGKILL,
    )
    assert stat.S_IMODE(os.lstat(place / "work" / "d").st_mode) == 0o500
    as_nobody("""
        workspace.initialize()
        assert stat.S_IMODE(os.lstat(work / "d").st_mode) == 0o100
        workspace.save()
        assert stat.S_IMODE(os.lstat(work / "d").st_mode) == 0o100
    """)


def test_an_unreadable_hard_linked_file_keeps_its_mode(as_nobody):
    """An unreadable file with another hard link, maybe outside, keeps its mode and is left out."""
    as_nobody("""
        (work / "f").write_text("1")
        (work / "f").chmod(0)
        os.link(work / "f", place / "outside")
        before = os.lstat(place / "outside")
        workspace.save()
        assert workspace.skipped() == (("f", "cannot be read"),)
        assert os.lstat(place / "outside") == before
    """)


def test_inaccessible_files_are_moved_aside_to_another_file_system(as_nobody):
    """Excluded read-only directories and 0000 files that are in the way are moved with their modes."""
    as_nobody("""
        from agentgit.workspace.disk import move_aside
        import errno
        plain = os.rename
        def rename(source, target, *, src_dir_fd=None, dst_dir_fd=None):
            if dst_dir_fd is None and src_dir_fd is not None:
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            plain(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        move_aside.os.rename = rename
        (work / "d").write_text("file")
        (work / ".gitignore").write_text("mod\\n")
        first, was = workspace.save(), picture(work)
        (work / "d").unlink()
        (work / "d/mod/pkg").mkdir(parents=True)
        closed = {"d/mod/a": 0o444, "d/mod/pkg/b": 0, "d/mod/pkg": 0o555, "d/mod": 0o500, "d": 0o500}
        for name, mode in closed.items():
            (work / name).touch()
            (work / name).chmod(mode)
        done = workspace.restore(first.id)
        assert picture(work) == was
        places = dict(done.moved_aside)
        assert sorted(places) == ["d/mod/a", "d/mod/pkg/b"], places
        for name, mode in (("", 0), ("/..", 0o555), ("/../..", 0o500)):
            assert stat.S_IMODE(os.lstat(os.path.normpath(places["d/mod/pkg/b"] + name)).st_mode) == mode, name
        for _ in range(2):
            assert not workspace.restore(first.id).restored and not workspace.changed()
    """)
