"""The last write beside a restore or an undo is in the workspace, in a snapshot or at a reported path."""

from __future__ import annotations

import errno
import os
import sys
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path

import faults
import pytest
from workspace_fixtures import adopt

from agentgit import Workspace

NAMES = [f"{number:02}" for number in range(12)]


@pytest.fixture(params=["links", "EPERM", "ENOTSUP"])
def system(request):
    """Run a test with hard links, and without them as on a file system that lacks them."""
    has_them = request.param == "links"
    with nullcontext() if has_them else faults.no_links(getattr(errno, request.param)):
        yield request.param


@pytest.fixture
def work(tmp_path):
    made = tmp_path / "work"
    made.mkdir()
    for name in NAMES:
        (made / name).write_text("begin")
    return made


class Writer(threading.Thread):
    """A thread that renames new contents over files continuously; `ledger` has the last content of each file."""

    def __init__(self, work, aside, prefix):
        super().__init__()
        self.ledger, self.stopping, self._work, self._aside, self._prefix = {}, False, work, aside, prefix

    def run(self):
        number = 0
        while not self.stopping:
            for name in NAMES:
                number += 1
                text = f"{self._prefix} {number}"
                (self._aside / "new").write_text(text)
                os.replace(self._aside / "new", self._work / name)
                self.ledger[name] = text


@contextmanager
def writing(work, aside, prefix):
    writer = Writer(work, aside, prefix)
    writer.start()
    try:
        yield writer
    finally:
        writer.stopping = True
        writer.join()


def texts(folder):
    return {path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()}


def held(workspace, id, into):
    into.mkdir()
    with Workspace(into, into.with_name(f"{into.name}-store"), max_checkpoints=None) as copy:
        adopt(copy, workspace, id)
        copy.restore(id)
    return texts(into)


@pytest.mark.parametrize("rounds", [12, pytest.param(150, marks=pytest.mark.soak)])
@pytest.mark.parametrize("wanted", ["files", "nothing"])
def test_no_acknowledged_write_is_lost_during_restores(work, tmp_path, wanted, rounds):
    (tmp_path / "aside").mkdir()
    workspace = Workspace(work, tmp_path / "store", max_checkpoints=None)
    ids = [workspace.save("with files").id]
    for name in NAMES:
        (work / name).unlink()
    ids.append(workspace.save("without").id)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for number in range(rounds):
            with writing(work, tmp_path / "aside", f"round {number}") as writer:
                while len(writer.ledger) < len(NAMES):
                    pass
                done = workspace.restore(ids[wanted == "nothing"])
            now, kept = texts(work), held(workspace, done.safety, tmp_path / f"held-{number}")
            aside = {Path(to).read_text() for _, to in done.moved_aside}
            lost = {
                name: text
                for name, text in writer.ledger.items()
                if now.get(name) != text and kept.get(name) != text and text not in aside
            }
            assert lost == {}
            assert not [name for name in os.listdir(work) if name.startswith(".agentgit-")]
    finally:
        sys.setswitchinterval(interval)


ACTS = {
    "renames another file over it": lambda at: (at.with_name("n").write_text("mine"), at.with_name("n").replace(at)),
    "writes into it": lambda at: at.write_text("mine"),
    "makes it a link": lambda at: (at.unlink(), at.symlink_to("mine")),
    "makes it a directory": lambda at: (at.unlink(missing_ok=True), at.mkdir(), (at / "in").write_text("mine")),
}


def shown(at):
    return os.readlink(at) if at.is_symlink() else (at / "in").read_text() if at.is_dir() else at.read_text()


@pytest.mark.each_value_once
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["change", "removal"])
def test_a_change_between_check_and_restore_is_kept_and_reported(work, tmp_path, system, act, kind):
    workspace = Workspace(work, tmp_path / "store")
    wanted = workspace.save()
    if kind == "removal":
        for name in NAMES:
            (work / name).unlink()
        wanted = workspace.save()
    for name in NAMES:
        (work / name).write_text("now")
    acted = []
    with faults.as_a_file_is_replaced(lambda path: (acted.append(path), ACTS[act](work / path))):
        done = workspace.restore(wanted.id)
    assert done.conflicts == ((acted[0], "changed during the restore"),)
    assert shown(work / acted[0]) == "mine"
    others = sorted(set(NAMES) - {acted[0]})
    assert sorted(done.deleted if kind == "removal" else done.restored) == others
    assert done.moved_aside == ()
    assert not [name for name in os.listdir(work) if name.startswith(".agentgit-")]


def test_a_file_created_where_a_restore_puts_one_is_kept(work, tmp_path, system):
    workspace = Workspace(work, tmp_path / "store")
    wanted = workspace.save()
    (work / "05").unlink()
    with faults.as_a_file_is_replaced(lambda path: (work / path).write_text("mine")):
        done = workspace.restore(wanted.id)
    assert (done.conflicts, done.restored) == ((("05", "changed during the restore"),), ())
    assert (work / "05").read_text() == "mine"


@pytest.mark.parametrize("kind", ["change", "removal"])
def test_an_overtaken_write_is_moved_aside_and_reported(work, tmp_path, system, kind):
    workspace = Workspace(work, tmp_path / "store")
    if kind == "removal":
        for name in NAMES:
            (work / name).unlink()
    wanted = workspace.save()
    (work / "00").write_text("now")

    def write_again(path):
        (work / "n").write_text("second")
        (work / "n").replace(work / path)

    with (
        faults.as_a_file_is_replaced(lambda path: (work / path).write_text("first")),
        faults.as_a_file_goes_back(write_again),
    ):
        done = workspace.restore(wanted.id)
    assert done.conflicts == (("00", "changed during the restore"),)
    assert (work / "00").read_text() == "second"
    assert [(path, Path(to).read_text()) for path, to in done.moved_aside] == [("00", "first")]


@pytest.mark.each_value_once
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["change", "removal"])
def test_an_undo_keeps_and_reports_a_concurrent_change(work, tmp_path, system, act, kind):
    if kind == "removal":
        (work / "00").unlink()
    stack = Workspace(work, tmp_path / "store").undo_stack
    stack.snapshot("edit", ["00", "01"])
    (work / "00").write_text("now")
    (work / "01").write_text("now")
    with faults.as_a_file_is_replaced(lambda path: ACTS[act](work / path)):
        (done,) = stack.undo()
    assert done.conflicts == (("00", "changed during the restore"),)
    assert done.restored == ("01",)
    assert shown(work / "00") == "mine"
