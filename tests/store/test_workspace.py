"""Snapshots of a workspace: a restore returns the same bytes and loses nothing."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import sqlite3
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from file_trees import CASES, listening, picture
from workspace_fixtures import kind, left_out, unsaved, work, workspace

from agentgit import Conflict, InvalidInput, NotFound, Unavailable, Workspace
from agentgit.rollback.workspace_adapter import reopen
from agentgit.workspace import engine
from agentgit.workspace.api import engine_of
from agentgit.workspace.catalog import Catalog

__all__ = ["kind", "work", "workspace"]  # the fixtures


@pytest.mark.parametrize("case", CASES)
def test_a_restore_returns_every_path_to_its_saved_state(workspace, work, case, tmp_path, kind):
    before, change = CASES[case]
    before(work)
    first, was = workspace.save("before"), picture(work)
    change(work)
    changed = picture(work)
    assert bool(unsaved(workspace)) == bool(workspace.diff(first.id)) == (leaves(was) != leaves(changed))
    done = workspace.restore(first.id)
    assert picture(work) == was
    assert not done.conflicts
    assert not done.moved_aside
    assert not unsaved(workspace)
    workspace.restore(done.safety)
    assert picture(work) == changed
    Workspace(work, tmp_path / "store", environment=kind).restore(first.id)  # another object restores the same
    assert picture(work) == was


def leaves(found):
    """Return everything in a picture but directories."""
    return {path: looks for path, looks in found.items() if not stat.S_ISDIR(looks[0])}


def test_snapshots_can_be_saved_compared_restored_listed_read_and_deleted(workspace, work):
    assert workspace.initialize()
    (work / "a").write_text("1")
    first = workspace.save("one", metadata={"turn": 1})
    (work / "b").write_text("2")
    second = workspace.save("two | with a bar\nand a line")
    assert [one.id for one in workspace.list()] == [second.id, first.id]
    assert workspace.list(1) == [second]
    assert (first.message, first.files_changed, first.metadata) == ("one", ("a",), {"turn": 1})
    assert first.timestamp.utcoffset() is not None
    assert workspace.get(first.id[:9]) == first == workspace.get(first.id)
    assert workspace.get("nothing") is None
    assert workspace.diff(first.id, second.id).added_files == ("b",)
    assert workspace.restore(first.id).deleted == ("b",)
    assert os.listdir(work) == ["a"]
    assert workspace.restore(second.id).restored == ("b",)
    assert (work / "b").read_text() == "2"
    assert workspace.delete(first.id) == first
    assert workspace.list() == [second]
    with pytest.raises(NotFound, match="no snapshot"):
        workspace.restore(first.id)
    assert second.to_dict()["message"] == "two | with a bar\nand a line"


def test_snapshots_have_default_names_and_are_found_by_name(workspace, work):
    assert [workspace.create().name for _ in range(2)] == ["checkpoint-1", "checkpoint-2"]
    (work / "a").write_text("1")
    workspace.create("draft", "the first")
    (work / "a").write_text("2")
    second = workspace.create("draft", "the second")
    (work / "a").write_text("3")
    assert workspace.get("draft").description == "the second"
    assert second.time[:4].isdigit()
    workspace.restore("draft")
    assert (work / "a").read_text() == "2"


def test_a_restore_tells_the_name_the_description_and_the_time_of_its_snapshot(workspace, work):
    first = workspace.save("the first draft", name="draft")
    workspace.save("later")
    for done in (workspace.rewind(), workspace.restore("draft"), workspace.restore(first.id)):
        assert (done.id, done.name, done.message, done.time_str) == (first.id, "draft", "the first draft", first.time)


def test_undo_restores_the_newest_snapshot_and_rewind_earlier_ones(workspace, work):
    assert workspace.undo() is None
    for number in range(4):
        (work / "a").write_text(str(number))
        workspace.save()
    (work / "a").write_text("unsaved")
    workspace.undo()
    assert (work / "a").read_text() == "3"
    workspace.undo()
    assert (work / "a").read_text() == "3"
    workspace.rewind()
    assert (work / "a").read_text() == "2"
    workspace.rewind(2)
    assert (work / "a").read_text() == "0"
    with pytest.raises(NotFound, match="Cannot go back"):
        workspace.rewind()
    with pytest.raises(InvalidInput):
        workspace.rewind(0)


def test_a_diff_lists_added_modified_and_deleted_files(workspace, work):
    (work / "é").write_text("1\n2\n")
    (work / "gone").write_text("x")
    first = workspace.save()
    (work / "é").write_text("1\n2\n3\n")
    (work / "gone").unlink()
    (work / "binary").write_bytes(b"\0\1")
    unsaved = workspace.diff(first.id)
    second = workspace.save()
    found = workspace.diff(first.id, second.id)
    assert (found.added_files, found.modified_files, found.deleted_files) == (("binary",), ("é",), ("gone",))
    assert "+3\n" in found.diff_content
    assert "Binary files /dev/null and b/binary differ" in found.diff_content
    assert (found.from_id, found.to_id, unsaved.to_id) == (first.id, second.id, None)
    assert unsaved.diff_content == found.diff_content
    assert workspace.diff(first.id, second.id, paths=["gone"]).deleted_files == ("gone",)
    assert not workspace.diff()
    assert workspace.list() == [second, first]
    since_nothing = workspace.diff("")
    assert (since_nothing.from_id, since_nothing.added_files, since_nothing.deleted_files) == (
        None,
        ("binary", "é"),
        (),
    )
    assert "+1" in since_nothing.diff_content
    assert workspace.diff("", first.id).added_files == ("gone", "é")
    assert workspace.diff("", paths=["é"]).added_files == ("é",)


def test_a_plan_changes_nothing_and_its_restore_keeps_the_later_snapshots(workspace, work):
    (work / "a").write_text("1")
    first = workspace.save()
    (work / "a").write_text("2")
    second = workspace.save()
    (work / "a").write_text("unsaved")
    (work / "new").write_text("new")
    was = picture(work)
    plan = workspace.plan_restore(first.id)
    assert (plan.restored, plan.deleted, plan.changed) == (("a",), ("new",), ("a", "new"))
    assert picture(work) == was
    assert workspace.list() == [second, first]
    done = workspace.restore(first.id)
    assert [one.id for one in workspace.list()] == [done.safety, second.id, first.id]
    assert workspace.get(done.safety).kind == "safety"
    workspace.restore(done.safety)
    assert picture(work) == was


def test_a_restore_of_some_paths_leaves_the_others(workspace, work):
    for name in ("a", "b", "d/c"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text("1")
    first = workspace.save()
    for name in ("a", "b", "d/c"):
        (work / name).write_text("2")
    workspace.restore(first.id, paths=["a", work / "d"])
    assert [(work / name).read_text() for name in ("a", "b", "d/c")] == ["1", "2", "1"]
    assert unsaved(workspace) == ()  # a restore leaves no unsaved change
    (work / "b").write_text("a person's")
    done = workspace.restore(first.id)
    assert ((work / "b").read_text(), done.restored) == ("1", ("b",))
    workspace.restore(done.safety)
    assert (work / "b").read_text() == "a person's"
    for path in ("../outside", "/etc/passwd"):
        with pytest.raises(InvalidInput, match="outside"):
            workspace.restore(first.id, paths=[path])


def test_ignored_files_stay_and_are_moved_aside_where_they_are_in_the_way(workspace, work):
    (work / ".gitignore").write_text("*.log\nout/\n")
    (work / "d").write_text("a file")
    first = workspace.save()
    (work / "d").unlink()
    for path, text in (("d/x.log", "precious"), ("out/y", "ignored"), ("new/a", "1"), ("new/b.log", "2")):
        (work / path).parent.mkdir(exist_ok=True)
        (work / path).write_text(text)
    assert workspace.plan_restore(first.id).moved_aside == (("d/x.log", ".agentgit-aside"),)
    done = workspace.restore(first.id)
    assert (work / "d").read_text() == "a file"
    ((path, to),) = done.moved_aside
    assert path == "d/x.log"
    assert Path(to).read_text() == "precious"
    assert (work / "out" / "y").read_text() == "ignored"
    assert ("out", "excluded") in workspace.get(done.safety).skipped
    assert done.deleted == ("new/a",)
    assert (work / "new" / "b.log").read_text() == "2"


def test_ignored_and_large_files_are_left_out_unless_captured_before(work, tmp_path, kind):
    (work / "sub").mkdir()
    (work / "sub" / ".gitignore").write_text("!keep.log\n/only\n")
    (work / ".gitignore").write_text("*.log\nnode_modules/\n")
    for name in ("a.log", "sub/b.log", "sub/keep.log", "sub/only", "only", "x.tmp", "later"):
        (work / name).write_text("1")
    (work / "node_modules").mkdir()
    (work / "node_modules" / "m").write_text("1")
    (work / "grows").write_bytes(b"1" * 1000)
    (work / "large").write_bytes(b"1" * 1001)
    how = {"environment": kind, "max_file_size": 1000}
    workspace = Workspace(work, tmp_path / "store", **how, exclude_patterns=["*.tmp"])
    first = workspace.save()
    assert dict(left_out(workspace)) == {
        **dict.fromkeys(("a.log", "sub/b.log", "sub/only", "x.tmp", "node_modules"), "excluded"),
        "large": "larger than 1,000 bytes",
    }
    (work / ".gitignore").write_text("later\n")
    (work / "later").write_text("2")
    (work / "grows").write_bytes(b"2" * 2000)
    (work / "large").write_bytes(b"2" * 5)
    changed = {".gitignore", "later", "a.log", "sub/b.log", "node_modules/m", "grows", "large"}
    assert set(unsaved(workspace)) == changed
    assert set(unsaved(Workspace(work, tmp_path / "store", **how))) == {*changed, "x.tmp"}
    (work / "large").write_bytes(b"2" * 5000)
    done = workspace.restore(first.id)
    assert ((work / "later").read_text(), (work / "grows").read_bytes()) == ("1", b"1" * 1000)
    assert (work / "large").stat().st_size == 5000
    assert ("large", "larger than 1,000 bytes") in workspace.get(done.safety).skipped


def test_named_pipes_and_sockets_are_listed_and_left_as_they_are(workspace, work):
    os.mkfifo(work / "pipe")
    listening("socket")(work)
    (work / "a").write_text("1")
    before = [(work / name).lstat().st_ino for name in ("pipe", "socket")]
    first = workspace.save()
    assert left_out(workspace) == (("pipe", "a named pipe"), ("socket", "a socket"))
    (work / "a").write_text("2")
    workspace.restore(first.id)
    assert stat.S_ISFIFO((work / "pipe").lstat().st_mode)
    assert stat.S_ISSOCK((work / "socket").lstat().st_mode)
    assert [(work / name).lstat().st_ino for name in ("pipe", "socket")] == before


def test_invalid_workspaces_and_storages_are_refused(tmp_path, monkeypatch):
    home = tmp_path / "home"
    (home / "Documents").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    (tmp_path / "alias").symlink_to(home)
    for place in ("/", "/tmp", "/etc", "~", home / "Documents", tmp_path / "alias"):  # noqa: S108
        with pytest.raises(InvalidInput, match="protected"):
            Workspace(place, tmp_path / "store")
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="not a directory"):
        Workspace(tmp_path / "file")
    with pytest.raises(Unavailable, match="Not a directory"):
        Workspace(tmp_path / "file" / "below")
    work = home / "work"
    work.mkdir()
    with pytest.raises(InvalidInput, match="environment"):
        Workspace(work, tmp_path / "store", environment="svn")
    with pytest.raises(InvalidInput, match="must not contain"):
        Workspace(work, home)
    (tmp_path / "broken/catalog.db").mkdir(parents=True)
    with pytest.raises(Unavailable, match="catalog"):
        Workspace(work, tmp_path / "broken")


def test_the_storage_is_private_and_may_be_in_the_workspace(work, kind, monkeypatch, tmp_path):
    inside = Workspace(work, work / ".store", environment=kind)
    assert stat.S_IMODE((work / ".store").stat().st_mode) == 0o700
    (work / "a").write_text("1")
    first = inside.save()
    assert not unsaved(inside)
    (work / "a").write_text("2")
    inside.restore(first.id)
    assert (work / "a").read_text() == "1"
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "data"))
    assert Workspace(work).storage_dir.startswith(str(tmp_path / "data"))


def test_the_oldest_snapshots_are_deleted_and_their_space_is_freed(work, tmp_path, kind):
    workspace = Workspace(work, tmp_path / "store", environment=kind, max_checkpoints=3)
    saved = []
    for number in range(8):
        (work / "a").write_bytes(os.urandom(200_000))
        saved.append(workspace.save(str(number)))
        if number == 0:
            engine_of(workspace).catalog.hold(saved[0].id, "a session")
    assert [one.message for one in workspace.list()] == ["7", "6", "5", "0"]
    assert used(tmp_path / "store") < 5 * 200_000 + 100_000
    engine_of(workspace).catalog.release(saved[0].id, "a session")
    workspace.delete(saved[0].id)
    workspace.delete(saved[5].id)
    workspace.delete(saved[6].id)
    workspace.gc()
    assert used(tmp_path / "store") < 200_000 + 100_000
    workspace.restore(saved[7].id)


def used(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_callbacks_receive_events_and_may_fail(workspace, work):
    told = []
    for event in ("created", "restored", "deleted", "failed", "pruned"):
        workspace.on(event, lambda value, event=event: told.append((event, value)))
    workspace.on("created", lambda value: 1 / 0)
    first = workspace.save()
    done = workspace.restore(first.id)
    workspace.delete(first.id)
    with pytest.raises(NotFound) as failure:
        workspace.restore("nothing")
    assert told == [("created", first), ("restored", done), ("deleted", first), ("failed", failure.value)]
    with pytest.raises(InvalidInput, match="no event"):
        workspace.on("saved", print)


async def test_the_async_methods_match_the_sync_methods(workspace, work):
    assert await workspace.ainitialize() == workspace.initialize()
    (work / "a").write_text("1")
    first = await workspace.asave("one")
    (work / "a").write_text("2")
    assert (await workspace.adiff(first.id)).modified_files == ("a",)
    assert (await workspace.arestore(first.id)).restored == ("a",)
    assert [one.id for one in await workspace.alist()][-1] == first.id
    assert await workspace.alist() == workspace.list()
    assert await workspace.aget(first.id) == workspace.get(first.id) == first
    assert (await workspace.acreate("two")).name == "two"
    assert workspace.get(await workspace.acheckpoint()).kind == "auto"
    (work / "a").write_text("3")
    assert await workspace.aplan_restore(first.id) == workspace.plan_restore(first.id)
    assert (await workspace.arewind(1)).restored == ("a",)
    assert (work / "a").read_text() == "1"
    (work / "a").write_text("4")
    assert (await workspace.aundo()).restored == ("a",)
    assert (await workspace.adelete(first.id)).id == first.id
    assert workspace.get(first.id) is None
    assert type(await workspace.agc()) is type(workspace.gc())
    assert len(await workspace.aclear()) == len(workspace.list()) + 5
    assert {name for name in dir(Workspace) if hasattr(Workspace, f"a{name}")} == {
        *("initialize", "save", "create", "checkpoint", "list", "get", "restore", "plan_restore", "rewind", "undo"),
        *("diff", "delete", "clear", "gc"),
    }


def test_a_snapshot_lists_the_first_thousand_paths_that_it_changed(workspace, work):
    (work / "b").write_text("1")
    (work / "dir").mkdir()
    (work / "dir" / "\udcff\n").write_text("1")
    first = workspace.save()
    assert first.files_changed == ("b", "dir/\udcff\n")
    (work / "a").write_text("2")
    (work / "b").unlink()
    second = workspace.save()
    assert (second.files_changed, second.change_count) == (("a", "b"), 2)
    assert workspace.save().files_changed == ()
    assert workspace.get(first.id) == first
    assert second.to_dict()["files_changed"] == ["a", "b"]
    for n in range(1002):
        (work / f"{n:04}").write_text("")
    many = workspace.save()
    assert (len(many.files_changed), many.change_count) == (1000, 1002)
    assert workspace.get(many.id) == many


def test_clear_deletes_what_nothing_needs(workspace, work):
    pruned = []
    workspace.on("pruned", pruned.extend)
    (work / "a").write_text("1")
    pinned = workspace.save("pinned")
    engine_of(workspace).catalog.hold(pinned.id, "a session")
    (work / "a").write_text("2")
    others = [workspace.save(str(n)) for n in range(3)]
    workspace.undo_stack.snapshot("bash")
    (work / "a").write_text("3")
    removed = workspace.clear()
    assert {one.id for one in removed} == {one.id for one in others} == {one.id for one in pruned}
    assert (work / "a").read_text() == "3"
    assert workspace.restore(pinned.id).restored == ("a",)
    assert workspace.undo_stack.undo()[0].message == "bash"
    assert (work / "a").read_text() == "2"
    engine_of(workspace).catalog.release(pinned.id, "a session")
    assert workspace.clear()
    assert workspace.list() == []
    assert workspace.clear() == ()


def test_a_full_storage_fails_a_snapshot_and_leaves_nothing_half(workspace, work):
    (work / "d").mkdir()
    (work / "d" / "large").write_bytes(os.urandom(1 << 20))
    (work / "z").write_text("1")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
        with pytest.raises(Unavailable, match=r"objects/pack: File too large"):
            workspace.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert workspace.list() == []
    saved, was = workspace.save(), picture(work)
    assert saved.skipped == ()
    shutil.rmtree(work / "d")
    (work / "z").unlink()
    workspace.restore(saved.id)
    assert picture(work) == was


def test_a_directory_that_a_directory_was_left_out_of_is_captured_anew(workspace, work, monkeypatch):
    """What was found below a directory before it failed is not taken for stored."""
    (work / "d" / "e").mkdir(parents=True)
    (work / "d" / "e" / "a").write_text("1")
    workspace.save()
    (work / "d" / "e" / "a").write_text("22")
    plain = os.scandir

    def failing(descriptor):
        if os.fstat(descriptor).st_ino == (work / "d").stat().st_ino:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return plain(descriptor)

    (work / "d" / "new").write_text("1")
    monkeypatch.setattr(os, "scandir", failing)
    assert [path for path, _ in workspace.save().skipped] == ["d"]
    monkeypatch.setattr(os, "scandir", plain)
    workspace.gc()
    saved, was = workspace.save(), picture(work)
    shutil.rmtree(work / "d")
    workspace.restore(saved.id)
    assert picture(work) == was


def test_a_directory_that_does_not_exist_is_created(tmp_path, kind):
    made = Workspace(tmp_path / "new" / "work", tmp_path / "store", environment=kind)
    assert (tmp_path / "new" / "work").is_dir()
    (tmp_path / "new" / "work").rmdir()
    with pytest.raises(InvalidInput, match="not a directory"):
        reopen(made.settings)
    assert not (tmp_path / "new" / "work").exists()


class Counter:
    """A custom environment whose state is a number."""

    def __init__(self):
        self.value, self.kept = 0, {}

    def checkpoint(self):
        self.kept[str(len(self.kept))] = self.value
        return str(len(self.kept) - 1)

    def restore(self, id):
        self.value = self.kept[id]

    def delete(self, id):
        del self.kept[id]


class Careful(Counter):
    """A custom environment that takes the safety snapshot of a restore itself."""

    takes_safety = True

    def restore(self, id):
        safety = self.checkpoint()
        super().restore(id)
        return SimpleNamespace(safety=safety)


@pytest.mark.parametrize("environment", [Counter, Careful])
def test_a_custom_environment_can_save_and_restore(work, tmp_path, environment):
    counter = environment()
    workspace = Workspace(work, tmp_path / "store", environment=counter)
    first = workspace.create("zero")
    counter.value = 7
    done = workspace.restore("zero")
    assert counter.value == 0
    assert list(counter.kept.values()) == [0, 7]
    assert [one.id for one in workspace.list()] == [done.safety, first.id]
    workspace.restore(done.safety)
    assert counter.value == 7
    with pytest.raises(InvalidInput, match="can only take"):
        workspace.diff(first.id)
    workspace.delete(first.id)
    assert "0" not in counter.kept
    with pytest.raises(InvalidInput, match="not an environment"):
        Workspace(work, tmp_path / "other", environment=object())


def test_the_undo_stack_undoes_files_and_the_whole_workspace(workspace, work):
    depths, stack = [], workspace.undo_stack
    workspace.on("created", lambda _: depths.append(workspace.undo_stack.depth))  # it need not wait for the stack
    (work / "a").write_text("1")
    stack.snapshot("edit", ["a"])
    (work / "a").write_text("2")
    stack.snapshot("shell")
    assert (depths, stack.depth) == ([1, 2], 2)
    (work / "a").write_text("3")
    (work / "b").write_text("4")
    (done,) = stack.undo()
    assert (done.restored, done.deleted) == (("a",), ("b",))
    assert (work / "a").read_text() == "2"
    assert not (work / "b").exists()
    stack.undo()
    assert (work / "a").read_text() == "1"
    workspace.restore(done.safety)
    assert ((work / "a").read_text(), (work / "b").read_text()) == ("3", "4")


def test_a_snapshot_that_the_undo_stack_needs_is_not_pruned(work, tmp_path, kind):
    workspace = Workspace(work, tmp_path / "store", environment=kind, max_checkpoints=2)
    (work / "a").write_text("before")
    workspace.undo_stack.snapshot("bash: make")
    for number in range(5):
        (work / "a").write_text(str(number))
        workspace.save()
    assert [one.kind for one in workspace.list()] == ["manual", "manual"]
    assert not workspace.undo_stack.undo()[0].conflicts
    assert (work / "a").read_text() == "before"
    workspace.undo_stack.clear()
    assert workspace.undo_stack.history == ()


def test_a_snapshot_kept_by_a_checkpoint_outlives_the_undo_stack(workspace, work):
    """After a shell call without changes, a checkpoint's snapshot outlives the entry of the undo stack."""
    (work / "a").write_text("1")
    workspace.undo_stack.snapshot("bash: ls")
    kept = engine_of(workspace).save(engine.new_snapshot("a checkpoint"), is_new=False)
    safety = workspace.restore(kept.id).safety
    workspace.undo_stack.clear()
    assert workspace.get(kept.id) == kept
    assert workspace.get(safety) is not None


def test_snapshots_of_another_version_are_refused_and_stay_as_they_are(work, tmp_path, kind):
    with Workspace(work, tmp_path / "store", environment=kind) as workspace:
        workspace.create("first")
    with closing(sqlite3.connect(tmp_path / "store" / "catalog.db")) as db:
        db.execute("PRAGMA user_version = 1")
    before = (tmp_path / "store" / "catalog.db").read_bytes()
    with pytest.raises(Unavailable, match="another version of agentgit"):
        Workspace(work, tmp_path / "store", environment=kind)
    assert (tmp_path / "store" / "catalog.db").read_bytes() == before


def test_many_can_open_a_new_storage_at_once(work, tmp_path, kind):
    for number in range(20):
        with ThreadPoolExecutor(8) as pool:
            opened = list(pool.map(lambda _, n=number: Workspace(work, tmp_path / f"{n}", environment=kind), range(8)))
        for one in opened:
            one.close()


def test_a_storage_belongs_to_one_workspace(work, tmp_path, kind):
    """A storage refuses another workspace or environment, and accepts the same directory after a move."""
    (work / "a").write_text("1")
    saved = Workspace(work, tmp_path / "store", environment=kind).save()
    other = tmp_path / "other"
    other.mkdir()
    with pytest.raises(InvalidInput, match="another storage_dir"):
        Workspace(other, tmp_path / "store", environment=kind)
    with pytest.raises(InvalidInput, match="another storage_dir"):
        Workspace(work, tmp_path / "store", environment={"git": "directory", "directory": "git"}[kind])
    moved = work.rename(tmp_path / "moved")
    work.mkdir()
    (moved / "a").write_text("2")
    Workspace(moved, tmp_path / "store", environment=kind).restore(saved.id)
    assert (moved / "a").read_text() == "1"


def test_safety_snapshots_count_toward_the_limit(work, tmp_path, kind):
    workspace = Workspace(work, tmp_path / "store", environment=kind, max_checkpoints=2)
    told = []
    workspace.on("created", told.append)
    (work / "a").write_text("wanted")
    wanted = workspace.save("wanted")
    for number in range(4):
        (work / "a").write_text(str(number))
        done = workspace.restore(wanted.id)
        assert told[-1].id == done.safety
    assert [one.id for one in workspace.list()] == [done.safety, wanted.id]
    assert len(told) == 5
    workspace.restore(done.safety)
    assert (work / "a").read_text() == "3"


def test_a_snapshot_that_cannot_be_deleted_stops_nothing(work, tmp_path):
    counter = Counter()
    in_use = {"0"}

    def delete(id):
        if id in in_use:
            raise Conflict("in use")
        counter.kept[id] = "deleted"

    counter.delete = delete
    workspace = Workspace(work, tmp_path / "store", environment=counter, max_checkpoints=2)
    failed = []
    workspace.on("failed", failed.append)
    for _ in range(5):
        workspace.save()
    assert list(counter.kept.values()) == [0, "deleted", "deleted", 0, 0]
    assert failed
    with pytest.raises(Conflict):
        workspace.delete(workspace.list()[-1].id)
    in_use.clear()
    workspace.save()
    assert counter.kept["0"] == "deleted"


WILD = "a\x1b[31m\n\u202e\udcff.txt"
TAME = r"a\x1b[31m\n\u202e\udcff.txt"


def test_names_that_no_terminal_can_show_are_saved_and_escaped_in_every_text(workspace, work):
    (work / WILD).write_text("1")
    first = workspace.save(WILD, name="\udcfe")
    assert workspace.get("\udcfe") == first
    (work / WILD).write_text("2")
    diff, plan = workspace.diff(first.id), workspace.plan_restore(first.id)
    assert diff.modified_files == (WILD,)
    workspace.undo_stack.snapshot(f"edit_file: {work / WILD}", [os.fsencode(work / WILD)])
    (work / WILD).write_text("3")
    (undone,) = workspace.undo_stack.undo()
    done = workspace.restore(first.id)
    for text in map(str, (first, diff, diff.diff_content, plan, undone, done)):
        assert TAME in text
        assert all(c.isprintable() or c == "\n" for c in text), text
    workspace.restore(done.safety, paths=[os.fsencode(WILD)])
    assert (work / WILD).read_text() == "2"
    assert Workspace(os.fsencode(work), workspace.storage_dir, environment=workspace.settings["environment"]).list()


def test_a_file_deleted_during_a_snapshot_hides_no_other(workspace, work, monkeypatch):
    workspace.save()
    (work / "stays").write_text("1")
    (work / "goes").write_text("1")
    scandir = os.scandir

    @contextmanager
    def listed(at):
        with scandir(at) as entries:
            found = list(entries)
        (work / "goes").unlink(missing_ok=True)
        yield iter(found)

    monkeypatch.setattr(os, "scandir", listed)
    saved = workspace.save()
    monkeypatch.undo()
    (work / "stays").unlink()
    workspace.restore(saved.id)
    assert [path.name for path in work.iterdir()] == ["stays"]


def test_a_path_that_is_too_long_is_left_out_and_listed(workspace, work):
    (work / "a").write_text("1")
    here = os.open(work, os.O_RDONLY)
    for _ in range(30):
        os.mkdir("d" * 200, dir_fd=here)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    saved = workspace.save()
    assert [why for _, why in left_out(workspace)] == ["its path is too long"]
    (work / "a").unlink()
    assert workspace.restore(saved.id).restored == ("a",)
    shutil.rmtree(work / ("d" * 200))


def test_a_snapshot_is_flushed_before_it_is_listed(workspace, work, tmp_path, kind, monkeypatch):
    """The contents and names of a snapshot are on the disk before it is listed, so it survives a loss of power."""
    (work / "a.txt").write_text("one")
    flushed, plain = [], os.fsync

    def fsync(file):
        flushed.append((Path(os.readlink(f"/proc/self/fd/{file}")).name, len(workspace.list())))
        plain(file)

    monkeypatch.setattr(os, "fsync", fsync)
    workspace.save("one")
    assert len(workspace.list()) == 1
    assert {count for _, count in flushed} == {0}
    assert len([name for name, _ in flushed if name.startswith("tmp_")]) == 2  # the pack file and its index
    assert "pack" in {name for name, _ in flushed}


def test_a_callback_that_opens_and_saves_the_workspace_again_is_refused(workspace, work, kind, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 0.01)
    (work / "a").write_text("1")
    other, told = Workspace(work, workspace.storage_dir, environment=kind), []

    def call(*_):
        with pytest.raises(Unavailable, match="a callback is using the workspace"):
            other.save()
        told.append(True)

    workspace.on("created", call)
    first = workspace.save()
    assert told
    assert unsaved(other) == ()
    assert [one.id for one in other.list()] == [first.id]


def test_six_threads_open_a_new_file_catalog_without_a_lock_error(tmp_path):
    """Threads that open a new catalog at once get no lock error while SQLite starts its write-ahead log."""
    for n in range(60):
        beside = threading.Barrier(6)

        def opened(path=str(tmp_path / f"{n}.db"), beside=beside):
            beside.wait(60)
            Catalog(path).close()

        with ThreadPoolExecutor(6) as pool:
            for done in [pool.submit(opened) for _ in range(6)]:
                done.result(60)
