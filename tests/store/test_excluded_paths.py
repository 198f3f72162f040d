"""Paths that a snapshot excludes are recorded, named in every plan and report, and lost in no restore."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from file_trees import gone, listening
from workspace_fixtures import adopt, kind, left_out, unsaved, work

from agentgit import InvalidInput, Unavailable, Workspace
from agentgit.workspace.api import engine_of
from agentgit.workspace.engine import new_snapshot

__all__ = ["kind", "work"]  # the fixtures

LIMIT = 1000


@pytest.fixture
def opened(work, tmp_path, kind):
    return lambda **options: Workspace(
        work, tmp_path / "store", environment=kind, **{"max_file_size": LIMIT, **options}
    )


@pytest.fixture
def workspace(opened):
    return opened()


def take(workspace):
    """Take a snapshot, or return the newest of the same files."""
    with engine_of(workspace).locked():
        return engine_of(workspace).save(new_snapshot(""), is_new=False)


def large(path: Path, fill: bytes = b"1", size: int = LIMIT + 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(fill * size)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def repository(path: Path) -> None:
    """Create a directory with a file, as `git init` does."""
    path.mkdir(parents=True)
    (path / "HEAD").write_text("ref: refs/heads/main")


MAKE = {
    "a large file": ("left", "larger than 1,000 bytes", large),
    "a pipe": ("left", "a named pipe", pipe),
    "a socket": ("left", "a socket", lambda path: listening(path.name)(path.parent)),
    "an ignored directory": ("left", "excluded", repository),
    "a repository": (".git", "excluded", repository),
    "a repository in a directory": ("sub/.git", "excluded", repository),
}
"""Paths that a snapshot leaves out, each with the reason and how it is made."""


@pytest.mark.parametrize("what", MAKE)
def test_a_deleted_excluded_path_is_reported_everywhere(workspace, work, what):
    name, why, make = MAKE[what]
    if what == "an ignored directory":
        (work / ".gitignore").write_text("left\n")
    make(work / name)
    (work / "a").write_text("1")
    first = workspace.save()
    if (work / name).is_dir():
        (work / name / "index").write_text("a command of git")
        assert not unsaved(workspace)
        assert not workspace.diff(first.id)
    gone(name)(work)
    missing = ((name, f"left out of the snapshot ({why})"),)
    assert unsaved(workspace) == (name,)
    assert workspace.plan_restore(first.id).missing == missing
    assert f"missing:  {name} (left out of the snapshot ({why}))" in str(workspace.plan_restore(first.id))
    assert workspace.diff(first.id).deleted_files == (name,)
    done = workspace.restore(first.id)
    assert done.missing == missing
    assert done.to_dict()["missing"] == [list(pair) for pair in missing]
    assert not done.restored
    second = workspace.save()
    assert workspace.diff(first.id, second.id).deleted_files == (name,)
    assert unsaved(workspace) == ()


@pytest.mark.parametrize("why", ["larger than 1,000 bytes", "excluded"])
def test_a_changed_or_new_excluded_file_is_reported_and_kept(workspace, work, why):
    if why == "excluded":
        (work / ".gitignore").write_text("left\n")
    large(work / "left")
    first = workspace.save()
    large(work / "left", b"2", LIMIT + 7)
    large(work / "new")
    told = (
        ("left", f"changed since; left out of the snapshot ({why})"),
        ("new", "added since; left out (larger than 1,000 bytes)"),
    )
    assert unsaved(workspace) == ("left", "new")
    assert workspace.plan_restore(first.id).left == told
    diff = workspace.diff(first.id)
    assert (diff.modified_files, diff.added_files) == (("left",), ("new",))
    assert f"left is not compared: left out ({why})" in diff.diff_content
    assert workspace.restore(first.id).left == told
    assert (work / "left").read_bytes() == b"2" * (LIMIT + 7)
    assert (work / "new").exists()


def test_an_excluded_file_that_fits_now_is_not_deleted(workspace, work):
    large(work / "data.csv")
    (work / "a").write_text("1")
    first = workspace.save()
    (work / "data.csv").write_text("small")
    (work / "a").write_text("2")
    second = workspace.save()
    plan = workspace.plan_restore(first.id)
    assert (plan.deleted, plan.restored) == ((), ("a",))
    told = (("data.csv", "changed since; left out of the snapshot (larger than 1,000 bytes)"),)
    assert plan.left == told
    assert workspace.diff(first.id, second.id).added_files == ()
    assert workspace.diff(first.id, second.id).modified_files == ("a", "data.csv")
    done = workspace.restore(first.id)
    assert (done.deleted, done.restored, done.left) == ((), ("a",), told)
    assert (work / "data.csv").read_text() == "small"
    assert unsaved(workspace) == ()
    again = workspace.restore(second.id)
    assert (again.restored, again.deleted, again.left) == (("a",), (), ())
    assert (work / "data.csv").read_text() == "small"


def test_changed_exclude_patterns_lose_no_file(opened, work):
    for name in ("node_modules/a/b", "node_modules/c", "build/out", "x.log", "kept"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("1")
    patterns = ["node_modules", "build", "*.log"]
    excluding = opened(exclude_patterns=patterns)
    first = excluding.save()
    assert left_out(excluding) == (("build", "excluded"), ("node_modules", "excluded"), ("x.log", "excluded"))
    (work / "build/out").unlink()
    plain = opened(exclude_patterns=[])
    second = plain.save()
    (work / "came").write_text("1")
    assert plain.plan_restore(first.id).deleted == ("came",)
    done = plain.restore(first.id)
    assert (done.deleted, done.deleted_directories) == (("came",), ())
    assert (work / "node_modules/a/b").read_text() == "1"
    assert (work / "build").is_dir()  # although it is empty now
    (work / "x.log").unlink()
    assert plain.plan_restore(first.id).missing == (("x.log", "left out of the snapshot (excluded)"),)
    assert opened(exclude_patterns=patterns).restore(second.id).restored == ("x.log",)
    assert (work / "node_modules/c").read_text() == "1"


def test_keep_takes_a_snapshot_when_only_excluded_files_changed(workspace, work):
    (work / "a").write_text("1")
    large(work / "left")
    first = take(workspace)
    assert take(workspace).id == first.id
    large(work / "left", b"2", LIMIT + 5)
    second = take(workspace)
    assert second.id != first.id
    assert take(workspace).id == second.id
    assert workspace.plan_restore(second.id).left == ()
    assert workspace.plan_restore(first.id).left != ()


def test_a_copied_snapshot_keeps_its_record_of_excluded_paths(opened, work, tmp_path, kind):
    large(work / "left")
    (work / "a").write_text("1")
    first = opened().save()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "left").write_text("small")
    other = Workspace(tmp_path / "other", tmp_path / "other-store", environment=kind)
    other.save()
    adopted = adopt(other, opened(), first.id)
    assert other.plan_restore(adopted.id).deleted == ()
    other.restore(adopted.id)
    assert (tmp_path / "other" / "left").read_text() == "small"
    (tmp_path / "other" / "left").unlink()
    assert other.plan_restore(adopted.id).missing == (("left", "left out of the snapshot (larger than 1,000 bytes)"),)


def test_a_partial_restore_reports_only_its_paths(workspace, work):
    for name in ("d/left", "left"):
        large(work / name)
    (work / "d/a").write_text("1")
    first = workspace.save()
    (work / "d/a").write_text("2")
    for name in ("d/left", "left"):
        (work / name).unlink()
    done = workspace.restore(first.id, paths=["d"])
    assert [path for path, _ in done.missing] == ["d/left"]
    assert done.restored == ("d/a",)


@pytest.mark.parametrize("above", [False, True], ids=["the directory", "one above it"])
def test_a_link_in_the_place_of_the_open_workspace_is_not_followed(tmp_path, kind, above):
    work = tmp_path / "above" / "work"
    work.mkdir(parents=True)
    workspace, stack = (
        Workspace(work, tmp_path / "store", environment=kind),
        Workspace(work, tmp_path / "stack").undo_stack,
    )
    (work / "a").write_text("1")
    first = workspace.save()
    stack.snapshot("edit", ["a"])
    (work / "a").write_text("2")
    place = work.parent if above else work
    place.rename(tmp_path / "moved")
    theirs = tmp_path / "theirs" / ("work" if above else "")
    theirs.mkdir(parents=True)
    (theirs / "a").write_text("2")
    place.symlink_to(tmp_path / "theirs")
    for verb in (
        lambda: workspace.restore(first.id), workspace.save, lambda: take(workspace), lambda: unsaved(workspace),
        workspace.diff, lambda: workspace.plan_restore(first.id), lambda: workspace.undo_stack, stack.undo,
    ):  # fmt: skip
        with pytest.raises(Unavailable, match="symbolic link"):
            verb()
    assert (theirs / "a").read_text() == "2"
    assert len(workspace.list()) == 1
    place.unlink()
    (tmp_path / "moved").rename(place)
    assert (work / "a").read_text() == "2"
    assert stack.undo()[0].restored == ("a",)
    (work / "a").write_text("3")
    assert workspace.restore(first.id).restored == ("a",)


def test_a_restore_below_a_link_replaces_the_link(workspace, work, tmp_path):
    """Paths: `restore(paths=["src/main.py"])` replaces a link `src` and does not write through it."""
    for name in ("src/main.py", "src/other.py", "lib/main.py"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(name)
    first = workspace.save()
    (work / "src/main.py").unlink()
    (work / "src/other.py").unlink()
    (work / "src").rmdir()
    for target in ("lib", str(tmp_path)):
        (work / "src").symlink_to(target)
        (work / "lib/main.py").write_text("theirs")
        assert workspace.plan_restore(first.id, paths=["src/main.py"]).restored == ("src/main.py",)
        assert workspace.diff(first.id, paths=["src/main.py"]).deleted_files == ("src/main.py",)
        done = workspace.restore(first.id, paths=["src/main.py"])
        assert (done.restored, done.deleted, done.moved_aside) == (("src/main.py",), ("src",), ())
        assert (work / "lib/main.py").read_text() == "theirs"
        assert not (work / "src").is_symlink()
        assert os.listdir(work / "src") == ["main.py"]
        assert not (tmp_path / "main.py").exists()
        workspace.restore(done.safety)
        assert os.readlink(work / "src") == target
        (work / "src").unlink()


def test_nothing_is_moved_aside_through_a_link(tmp_path):
    outside, work = tmp_path / "outside", tmp_path / "work"
    for folder in (outside, work):
        folder.mkdir()
    (work / "made").write_text("as it was")
    with Workspace(work, tmp_path / "store") as workspace:
        first = workspace.save()
        (work / "made").unlink()
        (work / ".gitignore").write_text("made/")
        (work / "made").mkdir()
        (work / "made/mine").write_text("mine")
        told = (("made", ".agentgit-aside is not a directory that can be written"),)
        (work / ".agentgit-aside").write_text("a file")
        assert workspace.plan_restore(first.id).impossible == told
        (work / ".agentgit-aside").unlink()
        (work / ".agentgit-aside").symlink_to(outside)
        assert workspace.plan_restore(first.id).impossible == told
        with pytest.raises(Unavailable, match="is a symbolic link; remove it"):
            workspace.restore(first.id)
        assert (work / "made/mine").read_text() == "mine"
        assert not any(outside.iterdir())
        (work / ".agentgit-aside").unlink()
        workspace.restore(first.id)
    assert (work / "made").read_text() == "as it was"


def test_a_device_is_left_out_with_its_kind_as_the_reason(workspace, work):
    try:
        os.mknod(work / "null", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        os.mknod(work / "loop", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    except PermissionError:
        pytest.skip("only root can make a device, and not in every container")
    (work / "a").write_text("1")
    first = workspace.save()
    assert left_out(workspace) == (("loop", "a device"), ("null", "a device"))
    (work / "a").write_text("2")
    assert workspace.restore(first.id).restored == ("a",)
    assert stat.S_ISCHR((work / "null").stat().st_mode)
    assert stat.S_ISBLK((work / "loop").stat().st_mode)


@pytest.mark.parametrize("paths", [[""], ["a\0b"], ["\ud800"], [1], b"a", Path("a")])
def test_an_invalid_path_is_refused(workspace, work, paths):
    (work / "a").write_text("1")
    first = workspace.save()
    (work / "a").write_text("2")
    for verb in (workspace.restore, workspace.plan_restore, workspace.diff):
        with pytest.raises(InvalidInput, match="path"):
            verb(first.id, paths=paths)
    assert (work / "a").read_text() == "2"


def test_a_link_to_itself_above_an_excluded_path_stops_no_plan(workspace, work):
    large(work / "d/e/left")
    first = workspace.save()
    gone("d")(work)
    (work / "d").symlink_to("d")
    assert workspace.plan_restore(first.id).missing == (
        ("d/e/left", "left out of the snapshot (larger than 1,000 bytes)"),
    )
