"""An odd file stops no save, restore or undo of other files, and the error names its path and the reason."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from contextlib import closing, nullcontext

import faults
import pytest
from file_trees import listening, picture
from workspace_fixtures import kind, work, workspace

from agentgit import Corrupt, Unavailable, UndoStack, Workspace
from agentgit.workspace.disk import atomic_file, move_aside
from agentgit.workspace.scan import scan

__all__ = ["kind", "work", "workspace"]  # the fixtures


def refusing(plain, name, number=errno.EIO, *, beneath=False):
    """Return a function that raises an OSError for one file name, and otherwise calls the original function.

    Args:
        beneath: True to raise only for calls relative to an open directory.
    """

    def call(*arguments, **named):
        if (not beneath or "dir_fd" in named) and any(
            isinstance(one, bytes | str) and os.path.basename(os.fsencode(one)) == name for one in arguments
        ):
            raise OSError(number, os.strerror(number), name)
        return plain(*arguments, **named)

    return call


@pytest.fixture
def other_file_system(monkeypatch):
    """Make renames from the workspace to the storage fail, as if they were on different file systems."""
    plain = os.rename

    def rename(source, target, *, src_dir_fd=None, dst_dir_fd=None):
        if dst_dir_fd is None and src_dir_fd is not None:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
        plain(source, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)

    monkeypatch.setattr(move_aside.os, "rename", rename)


def in_the_way(work):
    """Write files, and return a function that replaces one by a directory of ignored files and changes another."""
    (work / "a").write_text("file")
    (work / ".gitignore").write_text("inner\n")
    (work / "b").write_text("b")

    def change():
        (work / "a").unlink()
        (work / "a" / "inner" / "deep").mkdir(parents=True)
        (work / "a" / "inner" / "text").write_text("text")
        (work / "a" / "inner" / "text").chmod(0o640)
        (work / "a" / "inner" / "deep" / "link").symlink_to("../text")
        os.mkfifo(work / "a" / "inner" / "pipe", 0o620)
        (work / "b").write_text("changed")

    return change


def test_a_named_pipe_is_moved_aside_to_another_file_system(workspace, work, other_file_system):
    change = in_the_way(work)
    first, was = workspace.save(), picture(work)
    change()
    moved = picture(work / "a")
    done = workspace.restore(first.id)
    assert picture(work) == was
    places = dict(done.moved_aside)
    assert sorted(places) == ["a/inner/deep/link", "a/inner/pipe", "a/inner/text"]
    top = places["a/inner/text"].removesuffix("inner/text")
    assert picture(top) == moved
    assert stat.S_ISFIFO(os.lstat(places["a/inner/pipe"]).st_mode)


def test_an_unmovable_path_is_named_and_the_rest_is_restored(workspace, work, other_file_system):
    change = in_the_way(work)
    first = workspace.save()
    change()
    listening("a/inner/deep/socket")(work)
    was = picture(work / "a")
    with pytest.raises(Unavailable, match=r"^a/inner/deep/socket: a socket is in the way, and cannot be moved") as told:
        workspace.restore(first.id)
    assert "None" not in str(told.value)
    assert picture(work / "a") == was
    assert (work / "b").read_text() == "b"
    (work / "a" / "inner" / "deep" / "socket").unlink()
    assert workspace.restore(first.id).restored == ("a",)
    assert (work / "a").read_text() == "file"


def test_a_file_written_during_a_move_aside_is_not_lost(workspace, work, other_file_system, monkeypatch):
    change = in_the_way(work)
    first = workspace.save()
    change()
    plain = move_aside._copy_file

    def copy(*how):
        plain(*how)
        (work / "a").mkdir(exist_ok=True)
        (work / "a" / "inner").mkdir(exist_ok=True)
        (work / "a" / "inner" / "text").write_text("later")

    monkeypatch.setattr(move_aside, "_copy_file", copy)
    done = workspace.restore(first.id)
    assert done.conflicts == (("a", "changed during the restore"),)
    assert (work / "a" / "inner" / "text").read_text() == "later"
    assert dict(done.moved_aside)["a/inner/text"]


@pytest.mark.parametrize("refused", ["put", "delete", "folder", "mode"])
def test_a_failing_path_does_not_stop_other_paths(workspace, work, monkeypatch, refused):
    for name in "abc":
        (work / name).write_text("one")
    (work / "folder").mkdir(0o700)
    first, was = workspace.save(), picture(work)
    for name in "abc":
        (work / name).write_text("two")
    (work / "new").write_text("new")
    (work / "newer").write_text("new")
    (work / "folder").rmdir() if refused == "folder" else (work / "folder").chmod(0o755)
    changed = picture(work)
    odd = {"put": "a", "delete": "new", "folder": "folder", "mode": "folder"}[refused]
    full = faults.full_for({odd.encode()}) if refused in ("put", "delete") else nullcontext()
    with full, monkeypatch.context() as patch:
        if refused == "folder":
            patch.setattr(os, "mkdir", refusing(os.mkdir, b"folder", beneath=True))
        elif refused == "mode":
            patch.setattr(os, "open", refusing(os.open, b"folder", errno.EACCES, beneath=True))
        with pytest.raises(Unavailable, match=f"^{odd}: "):
            workspace.restore(first.id)
    now = picture(work)
    for path, looks in was.items():
        assert path == odd.encode() or now[path] == looks
    assert set(now) - set(was) <= {odd.encode()}
    workspace.restore(next(one.id for one in workspace.list() if one.kind == "safety"))
    assert picture(work) == changed
    workspace.restore(first.id)
    assert picture(work) == was


def test_several_failures_are_reported_in_one_error(workspace, work):
    for number in range(9):
        (work / str(number)).write_text("one")
    first = workspace.save()
    for number in range(9):
        (work / str(number)).write_text("two")
    told = pytest.raises(Unavailable, match=r"^8 paths were not .* 0: No space .* 1: No space .* And 3 more")
    with faults.full_for({b"%d" % number for number in range(9)} - {b"3"}), told:
        workspace.restore(first.id)
    assert sorted(path.read_text() for path in work.iterdir()) == ["one"] + ["two"] * 8


def test_a_file_with_damaged_contents_does_not_stop_other_files(work, tmp_path):
    workspace = Workspace(work, tmp_path / "store", environment="directory")
    for name in "abc":
        (work / name).write_text(f"one {name}")
    first = workspace.save()
    for name in "abc":
        (work / name).write_text("two")
    (copy,) = (tmp_path / "store").rglob("files/b")
    copy.chmod(0o600)
    copy.write_text("damaged")
    with pytest.raises(Corrupt, match="files/b was modified"):
        workspace.restore(first.id)
    assert [(work / name).read_text() for name in "abc"] == ["one a", "two", "one c"]


@pytest.mark.parametrize("call", ["open", "lstat", "scandir"])
def test_a_save_leaves_out_and_names_an_unreadable_path(workspace, work, monkeypatch, call):
    for name in ("a", "z"):
        (work / name).write_text("one")
    if call == "scandir":
        (work / "odd").mkdir()
    else:
        (work / "odd").write_text("one")
    monkeypatch.setattr(scan.os, call, refusing(getattr(os, call), b"odd"))
    assert workspace.save().files_changed == ("a", "z")
    assert dict(workspace.skipped())["odd"] == os.strerror(errno.EIO)
    assert (work / "odd").exists()


def test_a_failing_file_does_not_stop_an_undo_of_other_files(work, tmp_path):
    for name in "abc":
        (work / name).write_text("one")
    with closing(UndoStack(work, tmp_path / "store")) as stack:
        stack.snapshot("three", list("abc"))
        for name in "abc":
            (work / name).write_text("two")
        with faults.full_for({b"b"}), pytest.raises(Unavailable, match=r"^b: "):
            stack.undo()
        assert [(work / name).read_text() for name in "abc"] == ["one", "two", "one"]
        assert stack.undo().restored == ("b",)
        assert [(work / name).read_text() for name in "abc"] == ["one"] * 3


def test_a_mount_point_does_not_stop_a_restore(workspace, work, monkeypatch):
    first = workspace.save()
    (work / "m").mkdir(0o700)
    (work / "m" / "a").write_text("a")
    (work / "o").write_text("o")
    monkeypatch.setattr(atomic_file.os, "rmdir", refusing(os.rmdir, b"m", errno.EBUSY))
    done = workspace.restore(first.id)
    assert (done.deleted, done.deleted_directories) == (("m/a", "o"), ())
    assert (work / "m").is_dir()


def test_a_save_that_git_cannot_write_reports_the_reason(work, tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        f"""#!/bin/sh
        case "$*" in *fast-import*)
            echo "fatal: write error: Out of diskspace" >&2
            echo "fast-import: dumping crash report to elsewhere" >&2
            exit 128;;
        esac
        exec {shutil.which("git")} "$@"
        """
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    (work / "a").write_text("a")
    with pytest.raises(Unavailable, match="Out of diskspace"):
        Workspace(work, tmp_path / "store").save()
