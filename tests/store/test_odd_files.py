"""An odd file stops no save, restore or undo of other files, and the error names its path and the reason."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import nullcontext

import faults
import pytest
from file_trees import picture
from workspace_fixtures import kind, left_out, unsaved, work, workspace

from agentgit import Corrupt, Unavailable, Workspace
from agentgit.workspace import disk, scan

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


FCHMOD = os.fchmod


def refuse_folders(descriptor, mode):
    """Refuse to change the mode of a directory."""
    if stat.S_ISDIR(os.fstat(descriptor).st_mode):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
    FCHMOD(descriptor, mode)


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


def test_items_in_the_way_are_moved_to_a_place_in_the_workspace(workspace, work):
    change = in_the_way(work)
    first, was = workspace.save(), picture(work)
    change()
    moved = picture(work / "a")
    done = workspace.restore(first.id)
    assert {path: one for path, one in picture(work).items() if not path.startswith(b".agentgit-aside")} == was
    assert unsaved(workspace) == ()
    places = dict(done.moved_aside)
    assert sorted(places) == ["a/inner/deep/link", "a/inner/pipe", "a/inner/text"]
    top = places["a/inner/text"].removesuffix("inner/text")
    assert picture(top) == moved
    assert stat.S_ISFIFO(os.lstat(places["a/inner/pipe"]).st_mode)


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
            patch.setattr(disk.os, "fchmod", refuse_folders)
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
    told = pytest.raises(Unavailable, match=r"^8 paths were not .* 0: No space .* 1: No space .* and 3 more")
    with faults.full_for({b"%d" % number for number in range(9)} - {b"3"}), told:
        workspace.restore(first.id)
    assert sorted(path.read_text() for path in work.iterdir()) == ["one"] + ["two"] * 8


def test_a_file_with_damaged_contents_does_not_stop_other_files(work, tmp_path, kind):
    workspace, noise = Workspace(work, tmp_path / "store", environment=kind), os.urandom(1000)
    for name in "abc":
        (work / name).write_text(f"one {name}")
    (work / "b").write_bytes(noise)  # which cannot be compressed
    first = workspace.save()
    for name in "abc":
        (work / name).write_text("two")
    (pack,) = (tmp_path / "store").rglob("*.pack")
    pack.write_bytes(pack.read_bytes().replace(noise, bytes(1000)))
    with pytest.raises(Corrupt, match=r"The contents of b .* are lost"):
        workspace.restore(first.id)
    assert [(work / name).read_text() for name in "abc"] == ["one a", "two", "one c"]


@pytest.mark.parametrize("call", ["open", "stat", "open a directory"])
def test_a_save_leaves_out_and_names_an_unreadable_path(workspace, work, monkeypatch, call):
    for name in ("a", "z"):
        (work / name).write_text("one")
    if call == "open a directory":
        (work / "odd").mkdir()
    else:
        (work / "odd").write_text("one")
    call = call.partition(" ")[0]
    with monkeypatch.context() as patch:
        patch.setattr(scan.os, call, refusing(getattr(os, call), b"odd"))
        assert workspace.save().files_changed == ("a", "z")
    assert dict(left_out(workspace))["odd"] == os.strerror(errno.EIO)
    assert (work / "odd").exists()


def test_a_failing_file_does_not_stop_an_undo_of_other_files(work, tmp_path):
    for name in "abc":
        (work / name).write_text("one")
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        stack.snapshot("three", list("abc"))
        for name in "abc":
            (work / name).write_text("two")
        with faults.full_for({b"b"}), pytest.raises(Unavailable, match=r"^b: "):
            stack.undo()
        assert [(work / name).read_text() for name in "abc"] == ["one", "two", "one"]
        assert stack.undo()[0].restored == ("b",)
        assert [(work / name).read_text() for name in "abc"] == ["one"] * 3


def test_a_mount_point_does_not_stop_a_restore(workspace, work, monkeypatch):
    first = workspace.save()
    (work / "m").mkdir(0o700)
    (work / "m" / "a").write_text("a")
    (work / "o").write_text("o")
    monkeypatch.setattr(disk.os, "rmdir", refusing(os.rmdir, b"m", errno.EBUSY))
    done = workspace.restore(first.id)
    assert (done.deleted, done.deleted_directories) == (("m/a", "o"), ())
    assert (work / "m").is_dir()


def _flip(pack):
    data = bytearray(pack.read_bytes())
    data[-30] ^= 1  # in its last object, before the checksum of 20 bytes
    pack.write_bytes(data)


def _truncate(pack):
    os.truncate(pack, pack.stat().st_size - 30)


def _delete(pack):
    pack.unlink()


@pytest.mark.parametrize("damage", [_flip, _truncate, _delete])
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_collection_keeps_each_whole_snapshot_beside_one_with_a_damaged_tree(work, tmp_path, kind, damage, which):
    """That of the current files is stored again."""
    workspace, packs, saved = Workspace(work, tmp_path / "store", environment=kind), [], []
    (work / "waste").write_bytes(os.urandom(2_000_000))
    waste = workspace.save()
    (work / "waste").unlink()
    (work / "folder").mkdir()
    known = set((tmp_path / "store").rglob("*.pack"))
    for number in range(3):
        (work / "folder" / "file").write_text(str(number))
        saved.append((workspace.save(), picture(work)))
        packs += set((tmp_path / "store").rglob("*.pack")) - {*known, *packs}
    damage(packs[which])
    workspace = Workspace(work, tmp_path / "store", environment=kind)
    workspace.delete(waste.id)
    assert workspace.gc() > 1_000_000
    for number, (snapshot, was) in enumerate(saved):
        if number == which < 2:
            for use in (workspace.restore, workspace.plan_restore, workspace.diff):
                with pytest.raises(Corrupt, match=f"snapshot {snapshot.id} are lost"):
                    use(snapshot.id)
        else:
            workspace.restore(snapshot.id)
            assert picture(work) == was
    workspace.save()
    assert workspace.diff().diff_content == ""
