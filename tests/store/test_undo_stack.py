"""The undo stack restores files as they were before each call that changed them, byte for byte."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import faults
import processes
import pytest
from file_trees import both, gone, link, mode, picture, write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from workspace_fixtures import work

import agentgit
from agentgit import Workspace
from agentgit.errors import InvalidInput, Unavailable
from agentgit.workspace import engine
from agentgit.workspace.catalog import Catalog
from agentgit.workspace.disk import Place
from agentgit.workspace.locations import exclusive_lock

__all__ = ["work"]  # the fixture


@pytest.fixture
def stack(work, tmp_path):
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        yield stack


def bring_back(work, *safety):
    """Restore snapshots that undos have taken before."""
    with agentgit.Workspace(work, work.parent / "store") as workspace:
        for one in safety:
            workspace.restore(one)


SIZE = 1 << 20

CONTENTS = {
    "text": b"one\ntwo\n",
    "CRLF": b"one\r\ntwo\r\n",
    "binary": bytes(range(256)) * 10,
    "latin-1": "caf\xe9".encode("latin-1"),
    "empty": b"",
    "no newline at the end": b"x",
    "large": os.urandom(1000) * 9000,
}


@pytest.mark.parametrize("in_git", [False, True], ids=["plain directory", "git repository"])
def test_contents_are_restored_byte_for_byte(work, stack, in_git):
    if in_git:
        subprocess.run(["git", "init", "-q", work], check=True)  # noqa: S603, S607
        (work / ".gitattributes").write_text("* text=auto eol=lf\n")
    for name, content in CONTENTS.items():
        (work / name).write_bytes(content)
    before = picture(work)
    stack.snapshot("edit_file", list(CONTENTS))
    for name in CONTENTS:
        (work / name).write_bytes(b"changed")
    assert set(stack.undo()[0].restored) == set(CONTENTS)
    assert picture(work) == before


CHANGES = {
    "edit": write("secret", b"other", 0o600),
    "delete": gone("secret"),
    "link": both(gone("link"), link("link", "/etc/passwd")),
    "mode": mode("secret", 0o755),
    "replace by a link": both(gone("secret"), link("secret", "link")),
}


@pytest.mark.parametrize("change", CHANGES)
def test_every_kind_of_change_is_undone_and_comes_back(work, stack, change):
    both(write("secret", b"s", 0o600), link("link", "nowhere"))(work)
    before = picture(work)
    stack.snapshot(change, ["secret", "link"])
    CHANGES[change](work)
    after = picture(work)
    safety = stack.undo()[0].safety
    assert picture(work) == before
    bring_back(work, safety)
    assert picture(work) == after


def test_undo_deletes_files_and_directories_that_a_call_created(work, stack):
    stack.snapshot("write_file: a/b/c.txt", ["a/b/c.txt"])
    (work / "a/b").mkdir(parents=True)
    (work / "a/b/c.txt").write_text("new")
    (work / "a/mine").write_text("mine")
    (done,) = stack.undo()
    assert (done.deleted, done.deleted_directories, done.restored) == (("a/b/c.txt",), ("a/b",), ())
    assert {path: data for path, (_, data) in picture(work).items()} == {b"a": None, b"a/mine": b"mine"}
    bring_back(work, done.safety)
    assert (work / "a/b/c.txt").read_text() == "new"


def test_the_stack_lists_its_entries(work, stack):
    assert (stack.peek(), stack.depth, stack.history) == (None, 0, ())
    assert stack.undo() == ()
    for name in "abc":
        stack.snapshot(f"write_file: {name}", [name, "shared"])
    assert [one.message[-1] for one in stack.history] == ["a", "b", "c"]
    assert stack.peek() == stack.history[-1]
    assert stack.peek().files_changed == ("c", "shared")
    assert stack.peek().to_dict()["files_changed"] == ["c", "shared"]
    assert stack.depth == 3
    stack.clear()
    assert (stack.peek(), stack.depth, stack.history) == (None, 0, ())


def test_several_entries_are_undone_at_once(work, stack):
    for content in "123":
        stack.snapshot(f"to {content}", ["file"])
        (work / "file").write_text(content)
    undone = stack.undo(2)
    assert [(one.message, one.restored) for one in undone] == [("to 3", ("file",)), ("to 2", ("file",))]
    assert (work / "file").read_text() == "1"
    assert [one.message for one in stack.undo(7)] == ["to 1"]
    assert not (work / "file").exists()
    bring_back(work, undone[0].safety)
    assert (work / "file").read_text() == "3"
    with pytest.raises(InvalidInput, match="1 or more"):
        stack.undo(0)


def test_the_oldest_entry_is_dropped_beyond_the_limit(work, tmp_path):
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        stack.max_snapshots = 3
        for number in range(6):
            (work / "file").write_bytes(os.urandom(SIZE))
            stack.snapshot(str(number), ["file"])
        assert [one.message for one in stack.history] == ["3", "4", "5"]
        stack.undo(3)
        stack.clear()
    (work / "file").unlink()
    with Workspace(work, tmp_path / "store") as workspace:
        workspace.save()
        workspace.clear()
    assert sum(path.stat().st_size for path in (tmp_path / "store").rglob("*")) < SIZE / 4


def test_an_undo_keeps_what_a_person_changed_after_the_call(work, stack):
    (work / "other").write_text("mine")
    stack.snapshot("edit_file: file", ["file"])
    (work / "file").write_text("the agent's, then mine")
    (work / "other").write_text("mine, too")
    (done,) = stack.undo()
    assert (done.deleted, (work / "other").read_text()) == (("file",), "mine, too")
    (work / "file").write_text("newer")
    stack.snapshot("edit_file: other", ["other"])
    with agentgit.Workspace(work, work.parent / "store") as workspace:
        assert [one.kind for one in workspace.list()] == ["safety"]  # entries are found by their id only
        plan = workspace.plan_restore(done.safety)
        assert (plan.restored, plan.deleted, plan.missing, plan.left) == (("file",), (), (), ())
        restored = workspace.restore(done.safety)
        assert (restored.restored, (work / "file").read_text()) == (("file",), "the agent's, then mine")
        workspace.restore(restored.safety)
    assert (work / "file").read_text() == "newer"


def test_an_undo_leaves_and_names_what_snapshots_leave_out(work, stack):
    (work / ".gitignore").write_text("file\nbuild\n")
    (work / "build").mkdir()
    for name in ("file", "build/file"):
        (work / name).write_text("1")
    stack.snapshot("edit_file", ["file", "build/file", "other"])
    assert dict(stack.peek().skipped) == {"build": "excluded", "file": "excluded"}
    for name in ("file", "build/file", "other"):
        (work / name).write_text("two")
    (done,) = stack.undo()
    assert (done.deleted, done.restored) == (("other",), ())
    assert done.left == (
        ("build/file", "in build, which is left out"),
        ("file", "changed since; left out of the snapshot (excluded)"),
    )
    assert [(work / name).read_text() for name in ("file", "build/file")] == ["two", "two"]


def test_an_undo_restores_a_directory_and_keeps_what_came_in_its_place_in_a_snapshot(work, stack):
    (work / "folder").mkdir()
    (work / "folder/file").write_text("before")
    stack.snapshot("delete", ["folder"])
    (work / "folder/file").unlink()
    (work / "folder").rmdir()
    (work / "folder").write_text("mine")
    (done,) = stack.undo()
    assert (done.restored, done.deleted) == (("folder/file",), ("folder",))
    bring_back(work, done.safety)
    assert (work / "folder").read_text() == "mine"


def test_saves_count_what_changed_since_the_last_one_beside_entries(work, stack):
    with agentgit.Workspace(work, work.parent / "store") as workspace:
        for name in "abc":
            stack.snapshot(f"write_file: {name}", [name])
            (work / name).write_text(name)
        assert workspace.save().files_changed == ("a", "b", "c")
        stack.undo()
        assert workspace.save().files_changed == ("c",)


def test_the_stack_survives_a_restart(work, tmp_path):
    (work / "file").write_text("before")
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        stack.snapshot("edit_file: file", ["file"])
    (work / "file").write_text("after")
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        assert [one.message for one in stack.history] == ["edit_file: file"]
        assert str(stack.undo()[0]) == "restored: file"
    assert (work / "file").read_text() == "before"
    assert stat.S_IMODE((tmp_path / "store/catalog.db").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "path",
    ["../out", "/etc/passwd", "a/../../out", "", "out/secret", "link to out", "\0"],
)
def test_a_path_outside_of_the_workspace_is_refused(work, stack, path):
    (work.parent / "out").mkdir()
    (work.parent / "out/secret").write_text("s")
    (work / "out").symlink_to("../out")
    (work / "link to out").symlink_to("../out/secret")
    with pytest.raises(InvalidInput, match=r"is outside the workspace|is not the path of a file"):
        stack.snapshot("write_file", ["fine", path])
    assert stack.depth == 0


def test_every_spelling_of_a_path_in_the_workspace_is_accepted(work, stack):
    (work / "folder").mkdir()
    (work / "folder/real").write_text("before")
    (work / "way").symlink_to("folder")
    (work / "link").symlink_to("way/real")
    stack.snapshot("edit", [str(work / "a"), "./b", "way/c", "link", os.fsdecode(b"caf\xe9"), "new\nline"])
    assert stack.peek().files_changed == (
        "a",
        "b",
        os.fsdecode(b"caf\xe9"),
        "folder/c",
        "folder/real",
        "link",
        "new\nline",
        "way/c",
    )
    (work / "link").write_text("after")
    (work / os.fsdecode(b"caf\xe9")).write_text("new")
    stack.undo()
    assert (work / "link").read_text() == "before"
    assert not (work / os.fsdecode(b"caf\xe9")).exists()


def test_an_undo_replaces_what_is_no_longer_a_file_and_keeps_it_in_a_snapshot(work, stack):
    out = work.parent / "out"
    out.mkdir()
    (out / "file").write_text("not yours")
    (work / "folder").mkdir()
    (work / "folder/file").write_text("before")
    stack.snapshot("two", ["file", "folder/file"])
    (work / "file").mkdir()
    (work / "file/mine").write_text("mine")
    (work / "folder/file").unlink()
    (work / "folder").rmdir()
    (work / "folder").symlink_to(out)
    was = picture(work)
    (done,) = stack.undo()
    assert (done.restored, done.deleted) == (("folder/file",), ("file/mine", "folder"))
    assert (out / "file").read_text() == "not yours"
    assert (work / "folder/file").read_text() == "before"
    bring_back(work, done.safety)
    assert picture(work) == was


def failing(error):
    def fail(*_):
        raise error

    return fail


def test_a_refused_snapshot_says_what_to_do(work, stack):
    with pytest.raises(InvalidInput, match=r"write paths=\['a.txt'\]"):
        stack.snapshot("write", "a.txt")
    assert stack.depth == 0
    work.rename(work.with_name("elsewhere"))
    with pytest.raises(Unavailable, match="then try again"):
        stack.snapshot("write", ["a"])


def test_a_resumed_undo_leaves_files_that_a_person_changed(work, stack, monkeypatch):
    for name in "ab":
        (work / name).write_text("before")
    stack.snapshot("both", ["a", "b"])
    for name in "ab":
        (work / name).write_text("after")
    with monkeypatch.context() as patch:
        patch.setattr(Place, "replace", failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            stack.undo()
    (work / "a").write_text("mine")
    stack.snapshot("next", ["c"])
    assert [(work / name).read_text() for name in "ab"] == ["mine", "before"]


def die_in(work, store, where, point):
    """Start an undo in a child process, and kill the process before a function runs for the given time."""
    stack, seen = Workspace(work, store).undo_stack, []
    owner, name = {
        "replace": (Place, "replace"),
        "rename": (os, "rename"),
        "link": (os, "link"),
        "add": (Catalog, "add"),
    }[where]
    plain = getattr(owner, name)

    def hooked(*args, **how):
        seen.append(args)
        if len(seen) == point:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*args, **how)

    setattr(owner, name, hooked)
    if where == "add":
        stack.snapshot("killed", ["0", "1"])
    stack.undo()


RENAMES = [*(("rename", number) for number in range(1, 7)), *(("link", number) for number in range(1, 4))]


@pytest.mark.parametrize(("where", "point"), [("replace", 1), ("replace", 3), *RENAMES, ("add", 1)])
def test_kill_9_leaves_the_stack_consistent(work, tmp_path, where, point):
    for name in "012":
        (work / name).write_text("before")
    with Workspace(work, tmp_path / "store") as workspace:
        stack = workspace.undo_stack
        stack.snapshot("three", ["0", "1", "2"])
    for name in "012":
        (work / name).write_text("after")
    process = processes.forking().Process(target=die_in, args=(work, tmp_path / "store", where, point))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    workspace = Workspace(work, tmp_path / "store")
    stack = workspace.undo_stack
    if where == "add":
        assert [one.message for one in stack.history] == ["three"]
    (done,) = stack.undo()
    assert done.message == "three"
    assert [(work / name).read_text() for name in "012"] == ["before"] * 3
    assert sorted(path.name for path in work.iterdir()) == ["0", "1", "2"]
    bring_back(work, done.safety)
    assert [(work / name).read_text() for name in "012"] == ["after"] * 3
    workspace.close()


def test_parallel_snapshots_lose_no_entry(work, tmp_path):
    stacks = [Workspace(work, tmp_path / "store").undo_stack for _ in range(3)]

    def tools(number):
        for round in range(5):
            name = f"{number}-{round}"
            stacks[number % 3].snapshot(name, [name])
            (work / name).write_text(name)

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(tools, range(6)))
    assert stacks[0].depth == 30
    assert [len(one.deleted) for one in stacks[1].undo(30)] == [1] * 30
    assert picture(work) == {}


def test_waiting_for_a_locked_stack_times_out(work, stack, tmp_path, monkeypatch):
    monkeypatch.setattr(engine, "PATIENCE", 0.01)
    lock = exclusive_lock(tmp_path / "store/lock", timeout=0, description="it")
    with ThreadPoolExecutor(1) as other:  # its lock excludes this thread like one of another process
        other.submit(lock.__enter__).result(60)
        with pytest.raises(Unavailable, match="is using the workspace"):
            stack.snapshot("edit", ["file"])
        other.submit(lock.__exit__, None, None, None).result(60)
    stack.snapshot("edit", ["file"])
    with (
        pytest.raises(Unavailable, match="No such file"),
        exclusive_lock(work / "no/lock", timeout=0, description="it"),
    ):
        pass


NAMES = st.sampled_from(["a", "b", "d/e", "d/f"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, st.binary(max_size=20)),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("chmod"), NAMES, st.sampled_from([0o600, 0o755])),
        st.tuples(st.just("undo")),
        st.tuples(st.just("bring back")),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_any_sequence_of_calls_can_be_undone_and_comes_back(steps):
    with TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        with Workspace(work, Path(folder) / "store") as workspace:
            stack = workspace.undo_stack
            past, undone = [], []
            for verb, *how in steps:
                now = picture(work)
                if verb == "undo":
                    done = stack.undo()
                    undone = [(now, one.safety) for one in done]
                    assert picture(work) == (past.pop() if past else now)
                elif verb == "bring back":
                    for was, safety in undone:
                        bring_back(work, safety)
                        assert picture(work) == was
                        bring_back(work, safety)
                        assert picture(work) == was
                        stack.snapshot("again", [])
                        past.append(was)
                    undone = []
                else:
                    stack.snapshot(verb, [how[0]])
                    past.append(now)
                    undone = []
                    act(work / how[0], verb, *how[1:])
                assert stack.depth == len(past)


def act(path, verb, *how):
    if verb == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(*how)
    elif path.exists():
        path.unlink() if verb == "delete" else path.chmod(*how)


def test_a_retried_undo_undoes_no_second_entry(work, stack):
    (work / "a").write_text("1")
    stack.snapshot("first", ["a"])
    (work / "a").write_text("2")
    stack.snapshot("second", ["a"])
    (work / "a").write_text("3")
    with faults.full_disk(), pytest.raises(Unavailable):
        stack.undo()
    assert [one.message for one in stack.undo()] == ["second"]
    assert (work / "a").read_text() == "2"
    assert [entry.message for entry in stack.history] == ["first"]


def test_two_workspaces_of_a_directory_have_the_same_stack(work, tmp_path, monkeypatch):
    monkeypatch.setenv("AGENTGIT_HOME", str(tmp_path / "home"))
    stack = agentgit.Workspace(work).undo_stack
    stack.snapshot("write_file: a", ["a"])
    (work / "a").write_text("1")
    assert agentgit.Workspace(work).undo_stack.undo()[0].deleted == ("a",)
    assert stack.depth == 0


def test_the_snapshots_of_the_whole_workspace_that_no_entry_needs_are_deleted(work, tmp_path):
    workspace = agentgit.Workspace(work, tmp_path / "store")
    (work / "file").write_text("1")
    with workspace:
        stack = workspace.undo_stack
        stack.max_snapshots = 2
        for content in "234":
            stack.snapshot("bash")
            (work / "file").write_text(content)
        assert (workspace.list(), stack.depth) == ([], 2)
        workspace.restore(stack.peek().id)
        assert stack.depth == 2
        workspace.delete(stack.peek().id)
        assert stack.depth == 1
        assert stack.undo()[0].restored == ("file",)
        assert (work / "file").read_text() == "2"
        stack.clear()
        assert [one.kind for one in workspace.list()] == ["safety", "safety"]
