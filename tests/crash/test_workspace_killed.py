"""Workspaces survive kills, concurrent use and failures, and the user's git configuration has no influence."""

from __future__ import annotations

import os
import shutil
import signal
import textwrap
from pathlib import Path

import processes
import pytest
from file_trees import both, folder, gone, link, picture, write
from workspace_fixtures import left_out, unsaved

from agentgit import Workspace


@pytest.fixture
def work(tmp_path):
    """Create a workspace directory with files, a link and an empty folder."""
    made = tmp_path / "work"
    made.mkdir()
    BEFORE(made)
    return made


BEFORE = both(
    *(write(f"d{n % 3}/{n}", str(n).encode()) for n in range(12)),
    write("secret", b"1", 0o600),
    link("l", "d0"),
    folder("empty"),
    write("becomes/a/directory"),
)

CHANGE = both(
    *(write(f"d{n % 3}/{n}", b"changed") for n in range(6)),
    *(gone(f"d{n % 3}/{n}") for n in range(6, 12)),
    write("new/file"),
    gone("l"),
    write("l"),
    gone("empty"),
    gone("becomes"),
    write("becomes"),
)

POINTS = {
    "before the snapshot": ("WRITE_TREE", 1),
    "in the snapshot": ("HASH_FILE", 5),
    "before the catalog": ("ENTER_SNAPSHOT", 1),
    "before the restore": ("SET_VALUE", 1),
    "after its beginning": ("RUN_RESTORE", 1),
    "at its first removal": ("REPLACE_FILE", 1),
    "at the first file": ("CREATE_FILE", 1),
    "while a file has no name": ("LINK_FILE", 2),
    "after a file took its place": ("REMOVE_OLD_FILE", 7),
    "before the end": ("SET_VALUE", 2),
}
"""The points at which the process is killed, each with the number of the occurrence."""

DYING = """
    import sys
    import faults, points
    from agentgit import Workspace
    work, store, ref, point, time = sys.argv[1:]
    with faults.killed(getattr(points, point), time=int(time)):
        Workspace(work, store).restore(ref)
"""


def run(script, *arguments):
    return processes.run(textwrap.dedent(script), *arguments)


def expect_finished_or_without_effect(work, store, first, was, changed):
    """Open a workspace after a kill: all files are old, or all are restored; and either state can be restored."""
    again = Workspace(work, store)
    again.initialize()
    assert picture(work) in (was, changed)
    assert not [name for name in os.listdir(work) if name.startswith(".agentgit-")]
    again.restore(first.id)
    assert (picture(work), unsaved(again)) == (was, ())
    again.gc()
    again.restore(next(one.id for one in again.list() if one.kind == "safety"))
    assert picture(work) == changed


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_restore_is_finished_or_has_no_effect(work, tmp_path, point):
    first, was = Workspace(work, tmp_path / "store").save("before"), picture(work)
    CHANGE(work)
    changed = picture(work)
    done = run(DYING, work, tmp_path / "store", first.id, *POINTS[point])
    assert done.returncode == -signal.SIGKILL, done.stderr
    expect_finished_or_without_effect(work, tmp_path / "store", first, was, changed)


KILLED_AT = """
    import os, sys
    import faults
    from agentgit import Workspace
    work, store, ref, last = sys.argv[1:]
    calls = 0
    def count():
        global calls
        calls += 1
        if calls == int(last):
            faults.die()
    def counted(plain):
        def call(*arguments, **named):
            count()
            return plain(*arguments, **named)
        return call
    workspace = Workspace(work, store)
    workspace.initialize()
    for name in ("unlink", "rename", "link", "symlink", "mkdir", "rmdir", "chmod", "fchmod"):
        setattr(os, name, counted(getattr(os, name)))
    workspace.restore(ref)
    print(calls)
"""
"""A script that restores, and dies before the disk change with the given number."""


def linked(work, outside):
    """Make hard links in the workspace and outside, and return a function that changes them."""
    for name, bits in (("a", 0o600), ("b", 0o644), ("c", 0o644)):
        write(name, b"same", bits)(work)
    os.link(work / "a", outside / "a")
    os.link(work / "c", work / "d")

    def change():
        gone("b")(work)
        os.link(work / "a", work / "b")  # b now has the mode of a
        os.link(work / "d", outside / "d")
        (work / "d").chmod(0o640)
        (work / "c").write_bytes(b"through both names")
        gone("d0")(work)
        write("d0", b"in the way")(work)
        os.link(work / "d0", outside / "d0")

    return change


def kill_once(place, number):
    """Kill a restore before a disk change, finish it, restore both states, and return whether it was killed."""
    work, outside = place / "work", place / "outside"
    work.mkdir(parents=True)
    outside.mkdir()
    BEFORE(work)
    change = linked(work, outside)
    first, was = Workspace(work, place / "store").save("before"), picture(work)
    change()
    changed, elsewhere = picture(work), picture(outside)
    done = run(KILLED_AT, work, place / "store", first.id, number)
    expect_finished_or_without_effect(work, place / "store", first, was, changed)
    assert picture(outside) == elsewhere
    return done.returncode == -signal.SIGKILL


@pytest.mark.parametrize("number", [2, 9, 16, 23, 30, 37])
def test_a_killed_restore_of_linked_files_changes_nothing_outside(tmp_path, number):
    assert kill_once(tmp_path, number)


@pytest.mark.long
def test_a_restore_of_linked_files_survives_a_kill_at_every_change(tmp_path):
    number = 1
    while kill_once(tmp_path / str(number), number):
        number += 1
    assert number > 30


WRITTEN_BETWEEN = """
    import os, sys
    import faults, points
    from agentgit import Workspace
    work, store, ref, when = sys.argv[1:]
    acted = []
    def hiding(plain, entry, expected):
        if entry.path == b"d0/0" and not acted:
            acted.append(entry.path)
            with open(os.path.join(work, "mine"), "w") as file:
                file.write("mine")
            os.replace(os.path.join(work, "mine"), os.path.join(work, "d0/0"))
        return plain(entry, expected)
    def dying(plain, *arguments, **named):
        if acted and when == "before":
            faults.die()
        plain(*arguments, **named)
        if acted and when == plain.__name__:
            faults.die()
    with (
        faults.around(points.HIDE_FILE, hiding),
        faults.around(points.RENAME_FILE, dying),
        faults.around(points.LINK_FILE, dying),
    ):
        Workspace(work, store).restore(ref)
"""


@pytest.mark.parametrize("kind", ["change", "removal"])
@pytest.mark.parametrize("when", ["before", "rename", "link"])
def test_a_concurrent_write_held_by_a_killed_restore_is_kept(tmp_path, kind, when):
    work = tmp_path / "work"
    work.mkdir()
    BEFORE(work)
    workspace = Workspace(work, tmp_path / "store")
    if kind == "removal":
        gone("d0/0")(work)
    first = workspace.save("before")
    write("d0/0", b"changed")(work)
    died = run(WRITTEN_BETWEEN, work, tmp_path / "store", first.id, when)
    assert died.returncode == -signal.SIGKILL, died.stderr
    told = []
    again = Workspace(work, tmp_path / "store")
    again.on("restored", told.append)
    again.initialize()
    there = work / "d0" / "0"
    kept = [there.read_text()] if there.exists() else []
    kept += [Path(to).read_text() for path, to in told[0].moved_aside if path == "d0/0"]
    assert "mine" in kept
    assert [path for path, _ in told[0].conflicts] == ["d0/0"]
    assert not [name for name in os.listdir(work / "d0") if name.startswith(".agentgit-")]


def test_a_change_after_a_killed_restore_is_kept_and_reported(work, tmp_path):
    workspace = Workspace(work, tmp_path / "store")
    first = workspace.save("before")
    CHANGE(work)
    run(DYING, work, tmp_path / "store", first.id, "CREATE_FILE", 1)
    (work / "d0" / "3").write_text("a person's")
    (work / "new").mkdir(exist_ok=True)
    told = []
    again = Workspace(work, tmp_path / "store")
    again.on("restored", told.append)
    again.initialize()
    assert (work / "d0" / "3").read_text() == "a person's"
    assert told[0].conflicts == (("d0/3", "changed during the restore"),)


def test_a_directory_that_goes_after_a_killed_restore_comes_back(work, tmp_path):
    first = Workspace(work, tmp_path / "store").save("before")
    CHANGE(work)
    run(DYING, work, tmp_path / "store", first.id, "CREATE_FILE", 1)
    shutil.rmtree(work / "d0")
    told = []
    again = Workspace(work, tmp_path / "store")
    again.on("restored", told.append)
    again.initialize()
    assert told[0].conflicts == ()
    assert [path for path in told[0].restored if path.startswith("d0/")]
    assert all(os.path.lexists(work / path) for path in told[0].restored)


SAVING = """
    import sys
    from agentgit import Workspace
    with Workspace(*sys.argv[1:3]) as workspace:
        workspace.save(sys.argv[3])
        print(len(workspace.list()))
"""


def test_two_workspaces_of_one_process_and_other_processes_lose_no_snapshot(work, tmp_path):
    """To close a file drops all locks of the process on it, also those of SQLite."""
    first, second = Workspace(work, tmp_path / "store"), Workspace(work, tmp_path / "store")
    for number in range(5):
        run(SAVING, work, tmp_path / "store", f"theirs {number}")
        (work / "a").write_text(str(number))
        first.save(f"ours {number}")
    assert run(SAVING, work, tmp_path / "store", "last").stdout == "11\n"
    assert len(first.list()) == len(second.list()) == 11


WRITING = """
    import sys
    from pathlib import Path
    from agentgit import Workspace
    work, store, who = sys.argv[1:]
    workspace = Workspace(work, store)
    for number in range(6):
        Path(work, who).write_text(str(number))
        workspace.save(f"{who} {number}")
"""


def test_processes_that_save_at_once_lose_no_snapshot(work, tmp_path):
    workspace = Workspace(work, tmp_path / "store")
    started = [
        processes.Started(textwrap.dedent(WRITING), work, tmp_path / "store", who) for who in ("one", "two", "three")
    ]
    assert [process.wait().returncode for process in started] == [0, 0, 0]
    saved = workspace.list()
    assert len(saved) == 18
    for snapshot in saved[::4]:
        who, number = snapshot.message.split()
        workspace.restore(snapshot.id, paths=[who])
        assert (work / who).read_text() == number


@pytest.fixture
def trapped(tmp_path, monkeypatch):
    """Create a home whose git configuration runs commands and changes bytes, and return the file that these leave."""
    trap = tmp_path / "ran"
    home = tmp_path / "home"
    hooks = home / "hooks"
    hooks.mkdir(parents=True)
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-checkout", "post-index-change"):
        (hooks / name).write_text(f"#!/bin/sh\necho {name} >> {trap}\nexit 1\n")
        (hooks / name).chmod(0o755)
    (home / "ignore").write_text("*.txt\n")
    (home / "attributes").write_text("* filter=trap text eol=crlf\n")
    (home / ".gitconfig").write_text(
        f"[core]\n hooksPath={hooks}\n autocrlf=true\n fsmonitor={hooks}/pre-commit\n excludesFile={home}/ignore\n"
        f' attributesFile={home}/attributes\n[filter "trap"]\n clean=echo x >> {trap}\n smudge=echo x >> {trap}\n'
        " required=true\n[commit]\n gpgsign=true\n[init]\n templateDir=/nowhere\n"
    )
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    return trap


def test_the_git_configuration_of_the_user_has_no_influence(work, tmp_path, trapped):
    (work / "a.txt").write_bytes(b"1\n2\r\n3")
    (work / ".gitattributes").write_bytes(b"* filter=trap text eol=crlf\n")
    (work / ".git").mkdir()
    (work / ".git" / "config").write_text(f"[core]\n fsmonitor=touch {trapped}\n")
    was, own = picture(work), (work / ".git" / "config").read_bytes()
    workspace = Workspace(work, tmp_path / "store")
    first = workspace.save()
    assert ("a.txt", "excluded") not in left_out(workspace)
    CHANGE(work)
    (work / "a.txt").write_bytes(b"\r\n")
    workspace.restore(first.id)
    assert picture(work) == was
    assert (work / ".git" / "config").read_bytes() == own
    workspace.gc()
    assert not trapped.exists()
    assert not (tmp_path / "elsewhere").exists()
    assert os.listdir(work / ".git") == ["config"]
