"""Snapshots, in git and as copies, are complete and independent of each other, and share unchanged contents."""

from __future__ import annotations

import errno
import os
import signal
import stat

import processes
import pytest
import small_disks

from agentgit.errors import Corrupt, NotFound, Unavailable
from agentgit.workspace.engines import directory
from agentgit.workspace.engines.directory import DirectoryTrees
from agentgit.workspace.engines.git import GitTrees
from agentgit.workspace.trees import TreeEntry, Trees, TreeWrite, digest


def file(path, data, mode=0o644):
    return TreeWrite(path, TreeEntry(stat.S_IFREG | mode, digest(data)), data)


def gone(path):
    return TreeWrite(path, None)


KINDS = {"git": GitTrees, "copies": DirectoryTrees}


@pytest.fixture(params=KINDS)
def trees(request, tmp_path) -> Trees:
    return KINDS[request.param](str(tmp_path / "store"))


@pytest.fixture
def copied(tmp_path):
    """Create a storage that keeps snapshots as directories."""
    return DirectoryTrees(tmp_path / "store")


def whole(trees, key):
    """Return the entry and the contents of each file of a snapshot."""
    return {path: (entry, data) for path, entry, data in trees.contents(key, trees.tree(key).items())}


def expected(*written):
    return {one.path: (one.entry, one.data) for one in written}


FILES = (file(b"binary", bytes(range(256))), file(b"empty", b""), file(b"unreadable", b"u", 0), file(b"a/b/c", b"d"))


def test_unchanged_files_are_hard_links_to_the_earlier_snapshot(copied, tmp_path):
    copied.write("a1", None, [file(name, os.urandom(1000)) for name in (b"same", b"mode", b"changed")])
    (_, entry, data), *_ = copied.contents("a1", [(b"same", copied.tree("a1")[b"same"])])
    (_, before, text), *_ = copied.contents("a1", [(b"mode", copied.tree("a1")[b"mode"])])
    runs = TreeWrite(b"mode", before._replace(mode=stat.S_IFREG | 0o755), text)
    copied.write("b2", "a1", [file(b"changed", b"c"), TreeWrite(b"moved", entry, data), runs])
    store = tmp_path / "store"
    assert (store / "a1/files/same").samefile(store / "b2/files/same")
    assert (store / "a1/files/same").samefile(store / "b2/files/moved")
    assert (store / "a1/files/mode").samefile(store / "b2/files/mode")
    assert [copied.tree(key)[b"mode"].mode & 0o777 for key in ("a1", "b2")] == [0o644, 0o755]
    assert not (store / "a1/files/changed").samefile(store / "b2/files/changed")
    assert stat.S_IMODE((store / "b2/files/same").stat().st_mode) & 0o222 == 0


def test_collecting_deletes_snapshots_and_frees_their_space(trees):
    trees.write("a1", None, [file(b"shared", b"x"), file(b"own", os.urandom(100_000))])
    trees.write("b2", "a1", [gone(b"own"), file(b"new", b"n")])
    assert trees.collect({"b2"}) >= 100_000
    assert whole(trees, "b2") == expected(file(b"shared", b"x"), file(b"new", b"n"))
    with pytest.raises(NotFound, match="no snapshot a1"):
        trees.tree("a1")
    trees.write("c3", "b2", [gone(b"new")])
    assert trees.tree("c3").keys() == {b"shared"}


def test_an_unknown_snapshot_raises_not_found(trees):
    with pytest.raises(NotFound, match="no snapshot a1"):
        trees.write("b2", "a1", [])
    with pytest.raises(NotFound):
        trees.differences("a1", "b2")
    with pytest.raises(NotFound, match="no snapshot b2"):
        trees.tree("b2")


@pytest.mark.parametrize("damage", ["changed", "removed", "index"])
def test_a_damaged_copy_raises_corrupt(copied, tmp_path, damage):
    copied.write("a1", None, [file(b"file", b"data")])
    copy, entry = tmp_path / "store/a1/files/file", copied.tree("a1")[b"file"]
    copy.chmod(0o644)
    match damage:
        case "changed":
            copy.write_bytes(b"DATA")
        case "removed":
            copy.unlink()
        case _:
            (tmp_path / "store/a1/tree.json").write_bytes(b"[[")
    with pytest.raises(Corrupt):
        list(copied.contents("a1", [(b"file", entry)])) if damage != "index" else copied.tree("a1")


def test_a_snapshot_without_disk_space_leaves_nothing_behind(copied, tmp_path, monkeypatch):
    copied.write("a1", None, [file(b"file", b"data")])

    def full(at, data):
        raise OSError(errno.ENOSPC, "No space left on device", at)

    monkeypatch.setattr(directory, "_write", full)
    with pytest.raises(Unavailable, match="files/other: No space left on device"):
        copied.write("b2", "a1", [file(b"other", b"more")])
    assert [path.name for path in (tmp_path / "store").iterdir()] == ["a1"]


@pytest.mark.parametrize("code", [errno.EMLINK, errno.EPERM, errno.EXDEV])
def test_files_are_copied_where_hard_links_fail(copied, tmp_path, monkeypatch, code):
    copied.write("a1", None, FILES)

    def refuse(*_, **__):
        raise OSError(code, "no links")

    monkeypatch.setattr(os, "link", refuse)
    copied.write("b2", "a1", [file(b"empty", b"changed")])
    assert whole(copied, "b2")[b"binary"][1] == bytes(range(256))
    assert (tmp_path / "store/a1/files/binary").stat().st_nlink == 1


def die_in(place, verb):
    """Start a write or a collection in a child process, and kill the process in the middle."""
    trees, seen = DirectoryTrees(place), []

    def die(*args):
        seen.append(args)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)

    if verb == "write":
        directory._write = die
        trees.write("b2", "a1", [file(b"one", b"1"), file(b"two", b"2"), file(b"three", b"3")])
    plain = os.unlink
    os.unlink = lambda *args, **how: (die(), plain(*args, **how))
    trees.collect(set())


@pytest.mark.parametrize("verb", ["write", "collect"])
def test_kill_9_leaves_each_snapshot_whole_or_absent(copied, tmp_path, verb):
    copied.write("a1", None, FILES)
    process = processes.forking().Process(target=die_in, args=(tmp_path / "store", verb))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    if verb == "write":
        assert whole(copied, "a1") == expected(*FILES)
        with pytest.raises(NotFound):
            copied.tree("b2")
    copied.collect({"a1"})
    left = [path.name for path in (tmp_path / "store").iterdir()]
    assert left == (["a1"] if verb == "write" else [])


def test_collecting_clears_stale_git_locks(tmp_path):
    trees = GitTrees(str(tmp_path / "git"))
    trees.write("one", None, [])
    for name in ("packed-refs.lock", "HEAD.lock", "refs/agentgit/one.lock"):
        (tmp_path / "git" / name).touch()
    trees.collect([])
    assert not list((tmp_path / "git").rglob("*.lock"))


def test_a_half_initialized_repository_is_completed_on_use(tmp_path):
    (tmp_path / "git").mkdir()
    (tmp_path / "git/HEAD").write_text("ref: refs/heads/main\n")
    trees = GitTrees(str(tmp_path / "git"))
    trees.write("one", None, [])
    assert trees.tree("one") == {}


def test_a_missing_git_storage_raises_unavailable(tmp_path):
    trees = GitTrees(str(tmp_path / "git"))
    (tmp_path / "git").rename(tmp_path / "elsewhere")
    for use in (lambda: trees.write("one", None, []), lambda: trees.tree("one"), lambda: trees.collect([])):
        with pytest.raises(Unavailable, match="git"):
            use()


def test_a_full_disk_keeps_its_snapshots_and_can_be_collected():
    with small_disks.mounted("3m") as disk:
        trees = GitTrees(str(disk / "git"))
        for key in ("one", "two", "three", "four"):
            trees.write(key, None, [file(b"file", os.urandom(700_000))])
        free = os.statvfs(disk).f_bavail
        for _ in range(3):
            with pytest.raises(Unavailable, match="space"):
                trees.write("five", None, [file(b"file", os.urandom(700_000))])
        assert os.statvfs(disk).f_bavail >= free - 2
        assert trees.collect(["three", "four"]) > 600_000
        assert set(trees.tree("four")) == {b"file"}
        trees.write("five", None, [file(b"file", os.urandom(700_000))])
