"""Exported files are complete after an import, and no accepted path or link leads outside the workspace."""

from __future__ import annotations

import base64
import json
import os
import signal
import stat
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from io import BytesIO

import backend
import command_line
import points
import processes
import pytest
from exports import everything, rows, written
from file_tools import Desk, desk, home
from file_trees import picture
from hypothesis import given
from hypothesis import strategies as st
from process_memory import traced_memory
from test_damaged_exports import exports, target, with_files

import agentgit
from agentgit import Conflict, InvalidInput, Workspace, WorkspaceChanged
from agentgit.store.transfer import file_trees, paths
from agentgit.store.transfer.file_trees import FOLDER, LINK, PART_BYTES, FileChecker, Item
from agentgit.workspace.catalog import Catalog

__all__ = ["desk", "exports", "home", "target"]  # the fixtures


@pytest.fixture
def other():
    with agentgit.open(":memory:") as repo:
        yield repo


def wrapped(repo, desk, session="s", **more):
    return repo.wrap(
        desk.graph(), session, effects=desk.world.effects(), check_effects=False, workspace=desk.root, **more
    )


@pytest.fixture
def agent(repo, desk):
    """Create an agent that wrote files of several kinds, with the checkpoint `before` in the middle."""
    agent = wrapped(repo, desk)
    (desk.root / "raw.bin").write_bytes(bytes(range(256)) * 2048)
    (desk.root / "tool.sh").write_text("#!/bin/sh\n")
    (desk.root / "tool.sh").chmod(0o700)
    (desk.root / "in").mkdir()
    (desk.root / "in" / "link").symlink_to("../a.txt")
    (desk.root / "empty").mkdir(0o750)
    agent.run("write a.txt one; add chair")
    agent.checkpoint("before")
    agent.run("write a.txt two; write new/b.txt made; delete raw.bin")
    return agent


def moved(repo, other, place, ref="s", **how):
    return other.import_(BytesIO(written(repo, ref, files=True)), workspace=place, **how)


def test_files_are_exported_and_restored_after_an_import(repo, agent, other, desk, tmp_path):
    now = picture(desk.root)
    there = tmp_path / "there"
    made = moved(repo, other, there)
    assert (made.snapshots, made.left_out) == (3, {})
    assert made.files == 5  # a.txt twice, raw.bin, tool.sh, new/b.txt
    assert everything(repo, "s") == everything(other, "s")
    assert list(there.iterdir()) == []
    ours, theirs = (one.session("s").diff("main#1", "HEAD") for one in (repo, other))
    assert theirs.added_files == ["a.txt", "new/b.txt"]
    assert theirs.diff_content == ours.diff_content
    new = Desk(there)
    back = wrapped(other, new)
    back.rewind_files("HEAD")
    assert picture(there) == now
    retry = back.rollback("before")
    assert (there / "raw.bin").read_bytes() == bytes(range(256)) * 2048
    assert (there / "a.txt").read_text() == "one"
    assert not (there / "new").exists()
    assert stat.S_IMODE((there / "tool.sh").stat().st_mode) == 0o700
    retry.run("write c.txt more")
    assert retry.undo().branch.name
    assert picture(desk.root) == now


def test_an_export_of_an_import_has_and_omits_the_same_files(repo, agent, other, desk, tmp_path):
    (desk.root / "aux.py").write_text("x")
    agent.run("write c.txt more")
    moved(repo, other, tmp_path / "there")
    found = []
    for one in (repo, other):
        records = [json.loads(line) for line in written(one, "s", files=True).splitlines()]
        found.append(sorted(str(one) for one in records if one.get("record") in ("part", "file", "folder")))
    assert found[0] == found[1]
    assert other.session("s").export(BytesIO(), files=True).left_paths == {"aux.py": ODD["aux.py"]}


@pytest.mark.parametrize("cut", ["branch", "point"])
def test_a_branch_or_checkpoint_export_has_the_files_of_its_path(repo, agent, other, desk, tmp_path, cut):
    fork = agent.rollback("before")
    fork.run("write d.txt other")
    data = BytesIO()
    if cut == "branch":
        repo.session("s").export(data, branch="main-2", files=True)
    else:
        repo.session("s").export(data, checkpoint="before", files=True)
    made = other.import_(BytesIO(data.getvalue()), workspace=tmp_path / "there")
    new = Desk(tmp_path / "there")
    there = wrapped(other, new)
    there.rewind_files("HEAD")
    assert new.root.joinpath("a.txt").read_text() == "one"
    assert (new.root / "d.txt").exists() == (cut == "branch")
    assert made.snapshots == (4 if cut == "branch" else 2)
    assert b"two" not in b"".join(line for line in data.getvalue().splitlines() if b'"part"' in line[:20])


@pytest.mark.parametrize("who", ["a person", "another session"])
def test_files_of_others_are_not_overwritten_after_an_import(repo, agent, other, tmp_path, who):
    new = Desk(tmp_path / "there")
    if who == "a person":
        (new.root / "a.txt").write_text("theirs")
    else:
        wrapped(other, new, "another").run("write a.txt theirs")
    moved(repo, other, new.root)
    back = wrapped(other, new)
    for verb in (lambda: back.rollback("before", tools="keep"), lambda: back.rewind_files("before")):
        with pytest.raises(WorkspaceChanged, match=r"a\.txt"):
            verb()
        assert new.files == {"a.txt": "theirs"}
    done = back.rewind_files("HEAD", files="overwrite")
    assert new.root.joinpath("a.txt").read_text() == "two"
    Workspace(new.root).restore(done.safety)
    assert new.files == {"a.txt": "theirs"}
    back.run("write b.txt more")
    with pytest.raises(WorkspaceChanged, match=r"a\.txt"):  # that a turn has seen the file does not make it the turn's
        back.rollback("before", tools="keep")
    assert back.rollback("before", tools="keep", files="overwrite").report.files.safety
    assert new.root.joinpath("a.txt").read_text() == "one"


@pytest.mark.long
def test_imported_files_do_not_make_branches_diverge(repo, agent, other, tmp_path):
    agent.rollback("before").run("write d.txt other")
    moved(repo, other, tmp_path / "there")
    new = Desk(tmp_path / "there")
    main = wrapped(other, new, branch="main")
    main.run("write e.txt first")
    with pytest.raises(agentgit.WorldDiverged, match=r"d\.txt|a\.txt"):
        wrapped(other, new, branch="main-2").run("write f.txt second")
    main.switch("main-2", sync="world").run("write f.txt second")
    there = {path.name for path in new.root.iterdir()}
    assert there >= {"a.txt", "d.txt", "f.txt", "raw.bin"}
    assert "e.txt" not in there


@pytest.mark.parametrize("environment", ["git", "directory"])
def test_git_and_directory_workspaces_read_each_others_snapshots(repo, other, tmp_path, environment):
    desk, new = Desk(tmp_path / "work"), Desk(tmp_path / "there")
    agent = repo.wrap(
        desk.graph(), "s", check_effects=False,
        workspace=Workspace(desk.root, tmp_path / "from", environment=environment),
    )  # fmt: skip
    (desk.root / "link").symlink_to("a.txt")
    (desk.root / "odd").mkdir(0o700)
    agent.run("write a.txt one; write b/c.txt two")
    agent.run("delete a.txt; write b/d.txt two")
    to = Workspace(new.root, tmp_path / "to", environment={"git": "directory", "directory": "git"}[environment])
    moved(repo, other, to)
    back = other.wrap(new.graph(), "s", check_effects=False, workspace=to)
    back.rewind_files("main#2")
    assert new.files == {"a.txt": "one", "b/c.txt": "two", "link": "one"}
    back.rewind_files("main#4")
    assert picture(new.root) == picture(desk.root)


def test_snapshots_of_a_custom_environment_are_only_counted(repo, other, tmp_path):
    class Counter:
        kept = 0

        def checkpoint(self):
            self.kept += 1
            return str(self.kept)

        def restore(self, id):
            raise AssertionError(id)

    desk = Desk(tmp_path / "work")
    own = Workspace(desk.root, tmp_path / "own", environment=Counter())
    repo.wrap(desk.graph(), "s", check_effects=False, workspace=own).run("write a.txt one")
    data = BytesIO()
    left = {file_trees.CUSTOM_ENVIRONMENT: 2}
    assert repo.session("s").export(data, files=True).left_out == left
    made = other.import_(BytesIO(data.getvalue()), workspace=tmp_path / "there")
    assert (made.snapshots, made.left_out) == (0, left)
    with pytest.raises(InvalidInput, match="directory"):
        other.import_(BytesIO(data.getvalue()), workspace=own)


def test_a_missing_snapshot_is_counted_and_does_not_stop_an_export(repo, agent, other, desk, tmp_path):
    store = Workspace(desk.root)
    gone = repo.session("s").get_checkpoint("main#1")
    store.delete(store.list()[-1].id)
    assert repo.session("s").export(tmp_path / "x", files=True).left_out == {file_trees.NO_LONGER_STORED: 1}
    made = other.import_(tmp_path / "x", workspace=tmp_path / "there")
    assert (made.snapshots, made.left_out) == (2, {file_trees.NO_LONGER_STORED: 1})
    assert other.session("s").get_checkpoint("main#1").metadata["workspace_snapshot"] is None
    assert gone.metadata["workspace_snapshot"] is not None
    store.close()
    os.rename(store.storage_dir, tmp_path / "lost")
    assert repo.session("s").export(tmp_path / "x", files=True).left_out == {file_trees.NO_LONGER_STORED: 3}
    assert not os.path.exists(store.storage_dir)


def test_a_snapshot_with_too_many_paths_is_counted(repo, agent, monkeypatch):
    monkeypatch.setattr("agentgit.handles.snapshot_transfer.MOST_PATHS", 6)
    made = repo.session("s").export(BytesIO(), files=True)
    assert made.left_out == {file_trees.TOO_MANY_PATHS: 1}
    assert made.snapshots == 2


ODD = {
    "Icon\r": "has control characters",
    "a\nb": "has control characters",
    ".GIT": "is in a git repository",
    "con.txt": "is a device, another path or no path on some systems",
    "aux.py": "is a device, another path or no path on some systems",
    "a?b": "is a device, another path or no path on some systems",
    "a|b": "is a device, another path or no path on some systems",
    "b ": "is a device, another path or no path on some systems",
    "b.": "is a device, another path or no path on some systems",
    "A.TXT": "is the same as 'a.txt' on some systems",
    "out": "is a link that may lead out of the workspace",
    "s": "has a setuid, setgid or sticky bit",
}
"""Paths that some systems cannot have beside `a.txt`, each with the reason."""


@pytest.mark.parametrize("name", ODD)
def test_a_nonportable_path_is_omitted_and_reported(repo, desk, other, tmp_path, name):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one")
    odd = desk.root / name
    odd.symlink_to("/etc/passwd") if name == "out" else odd.write_text("x")
    if name == "s":
        odd.chmod(0o4755)
    agent.run("write b.txt two")
    odd.unlink()
    agent.run("write c.txt three")
    data = BytesIO()
    made = repo.session("s").export(data, files=True)
    assert (made.left_out, made.left_paths, made.snapshots) == ({}, {name: ODD[name]}, 6)
    records = [json.loads(line) for line in data.getvalue().splitlines()]
    folders = [one["items"] for one in records if one.get("record") == "folder"]
    assert {tuple(one[name]) for one in folders if name in one} == {("left", ODD[name], 0)}
    assert "x" not in [one["data"] for one in records if one.get("record") == "part"]
    back = other.import_(BytesIO(data.getvalue()), workspace=tmp_path / "there")
    assert (back.left_paths, back.to_dict()["left_paths"]) == (made.left_paths, {name: ODD[name]})
    new = Desk(tmp_path / "there")
    there = wrapped(other, new)
    for place, files in (("main#4", ["a.txt", "b.txt"]), ("HEAD", ["a.txt", "b.txt", "c.txt"])):
        done = there.rewind_files(place)
        assert sorted(new.files) == files
        missing = [(one.path, one.why) for one in done.changes if one.action == "missing"]
        assert missing == ([(name, f"left out of the snapshot ({ODD[name]})")] if place == "main#4" else [])


def test_the_files_of_a_directory_with_a_special_bit_are_exported(repo, desk, other, tmp_path):
    agent = wrapped(repo, desk)
    (desk.root / "shared").mkdir()
    (desk.root / "shared").chmod(0o2755)
    agent.run("write shared/a.txt one")
    assert moved(repo, other, tmp_path / "there").left_paths == {}
    new = Desk(tmp_path / "there")
    wrapped(other, new).rewind_files("HEAD")
    assert new.files == {"shared/a.txt": "one"}
    assert stat.S_IMODE((new.root / "shared").stat().st_mode) == 0o755


def test_of_names_that_differ_in_case_only_one_is_exported(repo, desk, other, tmp_path):
    agent = wrapped(repo, desk)
    agent.run("write Makefile big; write makefile small; write a.txt one")
    agent.run("delete Makefile")
    made = moved(repo, other, tmp_path / "there")
    assert made.left_paths == {"Makefile": "is the same as 'makefile' on some systems"}
    new = Desk(tmp_path / "there")
    there = wrapped(other, new)
    there.rewind_files("main#2")
    assert new.files == {"makefile": "small", "a.txt": "one"}
    there.rewind_files("HEAD")
    assert new.files == {"makefile": "small", "a.txt": "one"}


def test_a_nonportable_link_is_omitted_only_from_its_snapshot(repo, desk, other, tmp_path):
    agent = wrapped(repo, desk)
    agent.run("write a.txt one; write b.txt two")
    agent.run("shell rm a.txt && ln -s /etc/passwd a.txt")
    agent.run("shell rm a.txt && echo -n three > a.txt")
    made = moved(repo, other, tmp_path / "there")
    assert made.left_paths == {"a.txt": ODD["out"]}
    new = Desk(tmp_path / "there")
    there = wrapped(other, new)
    for place, files in (
        ("main#2", {"a.txt": "one", "b.txt": "two"}), ("main#4", {"a.txt": "one", "b.txt": "two"}),
        ("HEAD", {"a.txt": "three", "b.txt": "two"}),
    ):  # fmt: skip
        there.rewind_files(place)
        assert new.files == files


def run(*words):
    """Run a command that must succeed, and return its output."""
    done = command_line.run(*words)
    assert done.code == 0
    return done.out


# -- imports into a workspace


@pytest.fixture
def export(exports):
    return exports(with_files)


def test_a_failed_import_removes_its_snapshots(export, target, monkeypatch):
    repo, workspace = target
    repo.session("taken", create=True)
    before = workspace.list()
    with pytest.raises(Conflict):
        repo.import_(BytesIO(export), session="taken", workspace=workspace)
    assert workspace.list() == before
    with monkeypatch.context() as patch:
        patch.setattr(Catalog, "add", lambda *_, **how: (_ for _ in ()).throw(agentgit.Unavailable("full")))
        with pytest.raises(agentgit.Unavailable, match="full"):
            repo.import_(BytesIO(export), workspace=workspace)
    assert workspace.list() == before


def test_an_import_without_temporary_space_is_refused(export, target, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    repo, workspace = target
    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.raises(agentgit.Unavailable, match=r"No space left on device\. Free some space"):
        repo.import_(BytesIO(export), workspace=workspace)
    assert repo.sessions() == []
    assert len(workspace.list()) == 1


def test_imported_snapshots_are_kept_while_a_checkpoint_uses_them(export, tmp_path):
    with agentgit.open(":memory:") as repo:
        (tmp_path / "there").mkdir()
        small = Workspace(tmp_path / "there", max_checkpoints=1)
        made = repo.import_(BytesIO(export), workspace=small)
        for n in range(3):
            (tmp_path / "there" / "x").write_text(str(n))
            small.save()
        assert len(small.list()) == 3 + 1
        repo.session(made.session).retention.clear()
        repo.maintenance.gc()
        small.save()
        assert len(small.list()) < 3 + 1


def test_a_large_file_is_checked_in_parts():
    parts = 64
    data = os.urandom(PART_BYTES)
    whole = sha256()
    for _ in range(parts):
        whole.update(data)
    checker = FileChecker()
    coded = base64.b64encode(data).decode()
    with traced_memory():
        for _ in range(parts):
            checker.check_part({"data": {"base64": coded}})
        checker.check_file({"id": whole.digest(), "size": parts * PART_BYTES})
        assert tracemalloc.get_traced_memory()[1] < 4 * PART_BYTES


NAMES = st.sampled_from(["a", "b", "..", ".", "", "A", "c/d", "/", "\0", "\udcff", "é", "con", ".git"])


@given(st.lists(NAMES, min_size=1, max_size=5).map("/".join))
def test_an_accepted_name_stays_inside_the_workspace(value):
    try:
        found = paths.name(value)
    except ValueError:
        return
    whole = os.path.normpath(os.path.join(b"/root/work", found))
    assert whole == b"/root/work/" + found
    assert paths.text_of(found) == value


ITEMS = st.dictionaries(
    st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join),
    st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=5).map("/".join),
    min_size=1, max_size=6,
)  # fmt: skip


def is_accepted(links):
    """Check a snapshot that has only these links and the directories above them."""
    checker, count = FileChecker(), 0

    def check(prefix):
        nonlocal count
        items = {}
        for name in {path[len(prefix) :].partition("/")[0] for path in links if path.startswith(prefix)}:
            aim, is_above = links.get(prefix + name), any(path.startswith(f"{prefix}{name}/") for path in links)
            if aim is not None and is_above:
                raise ValueError
            what = (LINK, paths.link(aim)) if aim is not None else (FOLDER, check(f"{prefix}{name}/"))
            items[name.encode()] = Item(*what, 0o777)
        count += 1
        checker.check_folder({"id": count, "items": items})
        return count

    try:
        checker.check_snapshot({"id": 1, "tree": check(""), "why": None})
    except ValueError:
        return False
    return True


@given(ITEMS)
def test_accepted_links_stay_inside_the_workspace(tmp_path_factory, items):
    made = {}
    for path, aim in items.items():
        if is_accepted({**made, path: aim}):
            made[path] = aim
    root = tmp_path_factory.mktemp("links") / "x"
    for path, aim in made.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).symlink_to(aim)
    for path in made:
        found = os.path.realpath(root / path)
        assert found == str(root) or found.startswith(f"{root}/")


def test_the_command_line_exports_and_imports_files_and_names_what_it_omits(desk, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with agentgit.open("a.db") as repo:
        agent = wrapped(repo, desk)
        (desk.root / "a\x1b[2Jb").write_text("x")
        (desk.root / "aux.py").symlink_to("/dev/null")
        agent.run("write a.txt one")
    said = run("export", "s", "x", "--files", "--db", "a.db")
    assert "2 snapshots of 1 file\n" in said
    assert "\x1b[2J" not in said
    assert "left out: aux.py is a device, another path or no path on some systems" in said
    assert "[2Jb has control characters" in said
    left = run("import", "x", "--db", "b.db").splitlines()
    assert left[1] == "  2 snapshots left out: no workspace was given to restore them into"
    said = run("import", "x", "--workspace", "there", "--session", "t", "--db", "b.db", "--json")
    assert sorted(json.loads(said)["left_paths"]) == ["a\x1b[2Jb", "aux.py"]
    run("rewind-files", "t", "HEAD", "--yes", "--db", "b.db")
    assert (tmp_path / "there" / "a.txt").read_text() == "one"


KILLED = """
import sys
import agentgit, faults
from points import Point
url, file, workspace, when, *point = sys.argv[1:]
with getattr(faults, when)(Point(*point), faults.die):
    agentgit.open(url).import_(file, workspace=workspace)
"""
STEPS = [
    ("after", *points.WRITE_TREE),
    ("before", "store.transfer.import_", "check_session"),
    ("before", "handles.snapshot_transfer", "SnapshotImporter.store_into"),
    ("after", "store.transfer.import_", "_NewRows._row"),
    ("after", "store.transfer.import_", "record_event"),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: f"{step[0]} {step[2]}")
def test_an_import_killed_at_any_step_changes_nothing_visible(repo, export, tmp_path, step):
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    before, file = rows(repo), tmp_path / "x"
    file.write_bytes(export)
    done = processes.run(KILLED, backend.address(repo), file, there, *step)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert rows(repo) == before
    assert os.listdir(there) == ["mine.txt"]
    assert repo.import_(file, workspace=there).snapshots == 3
    assert repo.maintenance.fsck(3).is_sound
    assert wrapped(repo, Desk(there)).rewind_files("HEAD", force=True).changes


def test_two_concurrent_imports_into_one_workspace_both_work(export, database, tmp_path):
    with agentgit.open(database.url) as repo, ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda _: repo.import_(BytesIO(export), workspace=tmp_path / "there"), range(2)))
        assert sorted(one.session.session_name for one in made) == ["s", "s-2"]
        for one in made:
            wrapped(repo, Desk(tmp_path / "there"), one.session.session_name).rewind_files("HEAD", force=True)
            assert (tmp_path / "there" / "a.txt").read_text() == "three"
