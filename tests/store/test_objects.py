"""The object store: it keeps all that is needed through kills, full disks and damage, and git can read it."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess

import processes
import pytest
import small_disks

from agentgit.errors import Corrupt, Unavailable
from agentgit.workspace import objects
from agentgit.workspace.objects import BLOB, TREE, Objects
from agentgit.workspace.trees import PLAIN_DIRECTORY, TreeEntry, Trees, encode_tree


@pytest.fixture(params=[True, False], ids=["git", "directory"])
def store(request, tmp_path) -> Objects:
    return Objects(str(tmp_path / "store"), is_repository=request.param)


def write(store, files):
    """Store a tree of files with their contents, and return its id."""
    with store.writing() as writer:
        tree = put_tree(writer, files)
        writer.named.add(tree)
    return tree


def put_tree(writer, files):
    names = {path.partition(b"/")[0] for path in files}
    entries = {}
    for name in names:
        below = {path[len(name) + 1 :]: data for path, data in files.items() if path.startswith(name + b"/")}
        if below:
            entries[name] = TreeEntry(PLAIN_DIRECTORY, put_tree(writer, below))
        else:
            entries[name] = TreeEntry(stat.S_IFREG | 0o600, writer.put(BLOB, files[name]))
    return writer.put(TREE, encode_tree(entries))


def read(store, tree):
    found = Trees(store).differences(None, tree)
    return {path: store.read(one.oid) for path, (_, one) in found.items() if not one.is_directory}


def collect(store, *trees):
    return store.collect(trees, Trees(store).reachable(trees))


FILES = {b"binary": bytes(range(256)), b"empty": b"", b"a/b/c": b"d", b"a b\n\xff": b"odd"}


def test_a_collection_keeps_what_is_needed_and_frees_the_rest(store):
    first = write(store, {b"shared": b"x", b"own": os.urandom(100_000)})
    second = write(store, {b"shared": b"x", b"new": b"n"})
    reader = Objects(store.folder, is_repository=False)
    assert collect(store, second) >= 90_000
    assert read(store, second) == read(reader, second) == {b"shared": b"x", b"new": b"n"}
    for number in range(9):
        write(store, {b"new": b"%d" % number})
    collect(store, second)
    assert len(list(os.scandir(store.pack_folder))) == 2  # one pack and its index
    with pytest.raises(Corrupt, match="missing"):
        read(store, first)


def test_a_collection_keeps_objects_that_a_kill_left_in_several_packs(store, tmp_path):
    trees = [write(store, {b"file": b"%d" % number}) for number in range(3)]
    shutil.copytree(store.pack_folder, tmp_path / "before")
    for _ in range(3):
        collect(store, *trees)
        shutil.copytree(tmp_path / "before", store.pack_folder, dirs_exist_ok=True)
    collect(store, *trees)
    assert [read(store, tree) for tree in trees] == [{b"file": b"%d" % number} for number in range(3)]


def test_contents_of_every_size_come_back(store):
    sizes = [0, 15, 16, 4095, 4096, 5000, 1 << 20, 3 << 20]
    contents = [os.urandom(999) * (size // 999) + bytes(size % 999) for size in sizes]
    contents += [os.urandom(size) for size in sizes]
    with store.writing() as writer:
        oids = [writer.put(BLOB, data) for data in contents]
    assert [store.read(oid) for oid in oids] == contents


@pytest.mark.parametrize("what", ["pack", "idx"])
def test_damage_is_found_before_contents_are_used(store, what):
    noise = os.urandom(1000)
    tree = write(store, {b"file": noise})
    (path,) = (entry.path for entry in os.scandir(store.pack_folder) if entry.name.endswith(what))
    with open(path, "r+b") as file:
        file.seek(200 if what == "pack" else 0)
        file.write(bytes(100))
    with pytest.raises(Corrupt):
        read(Objects(store.folder, is_repository=False), tree)


@pytest.mark.parametrize("left", [0, 11, 300], ids=["empty", "a part of its header", "a part of its objects"])
def test_what_a_truncated_pack_no_longer_has_is_missing(store, left):
    tree = write(store, {b"file": os.urandom(1000)})
    (path,) = (entry.path for entry in os.scandir(store.pack_folder) if entry.name.endswith(".pack"))
    os.truncate(path, left)
    again = Objects(store.folder, is_repository=False)
    with pytest.raises(Corrupt, match="missing or damaged"):
        read(again, tree)
    with again.writing() as writer:
        assert not writer.has(tree)


def test_a_collection_takes_the_whole_copy_of_an_object_and_not_the_damaged_one(store):
    noise = os.urandom(1000)
    with store.writing() as writer:
        oid = writer.put(BLOB, noise)
    (path,) = (entry.path for entry in os.scandir(store.pack_folder) if entry.name.endswith(".pack"))
    with open(path, "r+b") as file:
        file.seek(200)
        file.write(bytes(100))
    assert not store.can_read(oid)
    with store.writing(lambda _: False) as writer:
        writer.put(BLOB, noise)
        writer.put(BLOB, b"not needed")
    store.collect([], {oid})
    assert store.read(oid) == noise
    assert len(list(os.scandir(store.pack_folder))) == 2


@pytest.mark.parametrize("is_repository", [True])
def test_git_reads_the_snapshots(tmp_path, is_repository):
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    store = Objects(str(tmp_path / "store"), is_repository=is_repository)
    tree = write(store, FILES)
    write(store, {b"other": b"1"})
    collect(store, tree)

    def git(*words):
        return subprocess.run(["git", "-C", store.folder, *words], check=True, capture_output=True).stdout  # noqa: S603, S607

    git("fsck", "--full")
    assert git("for-each-ref", "--format=%(refname)").decode().split() == [f"refs/agentgit/{tree.hex()}"]
    assert git("cat-file", "blob", f"refs/agentgit/{tree.hex()}:a/b/c") == b"d"
    git("gc", "--prune=now", "--quiet")
    assert read(Objects(store.folder, is_repository=True), tree) == FILES


def die_in(folder, verb, first):
    """Start a write or a collection, and kill the process before it renames or removes its second file."""
    store, plain, seen = Objects(folder, is_repository=True), getattr(os, verb), []

    def die(*arguments):
        seen.append(arguments)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*arguments)

    setattr(objects.os, verb, die)
    if verb == "rename":
        write(store, {b"other": b"2"})
    collect(store, first)


@pytest.mark.parametrize("verb", ["rename", "unlink"])
def test_kill_9_loses_nothing_that_is_needed(tmp_path, verb):
    store = Objects(str(tmp_path / "store"), is_repository=True)
    first = write(store, FILES)
    write(store, {b"waste": os.urandom(2_000_000)})
    process = processes.forking().Process(target=die_in, args=(store.folder, verb, first))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    again = Objects(store.folder, is_repository=True)
    assert read(again, first) == FILES
    collect(again, first)
    assert read(again, first) == FILES
    assert not [entry.name for entry in os.scandir(store.pack_folder) if entry.name.startswith("tmp_")]


def test_a_full_disk_keeps_its_snapshots_and_can_be_collected():
    with small_disks.mounted("3m") as disk:
        store = Objects(str(disk / "store"), is_repository=True)
        trees = [write(store, {b"file": os.urandom(700_000)}) for _ in range(4)]
        free = os.statvfs(disk).f_bavail
        for _ in range(3):
            with pytest.raises(Unavailable, match="space"):
                write(store, {b"file": os.urandom(700_000)})
        assert os.statvfs(disk).f_bavail >= free - 2
        assert collect(store, *trees[2:]) > 600_000
        assert set(read(store, trees[3])) == {b"file"}
        write(store, {b"file": os.urandom(700_000)})
