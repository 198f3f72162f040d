"""`agentgit workspace`: its output, its exit codes and its confirmations."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import Ran, run

from agentgit import Ambiguous, InvalidInput, NotFound, PlanChanged, Workspace, WorkspaceChanged

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


class Folder:
    """A folder of files, and the folder of its snapshots, both below a path."""

    def __init__(self, path: Path) -> None:
        self.work, self.store = path / "work", path / "store"
        self.work.mkdir()

    def write(self, **texts: str) -> None:
        for name, text in texts.items():
            (self.work / name).write_text(text)

    @property
    def texts(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in sorted(self.work.iterdir())}

    def words(self, *words: str) -> list[str]:
        return ["workspace", *words, "--dir", str(self.work), "--store", str(self.store)]

    def run(self, *words: str, say: str | io.TextIOBase = "") -> Ran:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COLUMNS", "100")
            return run(*self.words(*words), stdin=say)


class Thinking(io.StringIO):
    """Says yes after a while, in which a person edits a file."""

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.folder = folder

    def readline(self, *_: Any) -> str:
        self.folder.write(a="a person's")
        return "yes\n"


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


def plainly(text: str) -> str:
    """Replace the times and ids, which differ from run to run."""
    text = re.sub(r"\b[0-9a-f]{16}\b", "<id>", re.sub(r"\b[0-9a-f]{10}\b", "<short id>", text))
    return re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d(:\d\d)?", "<time>", text)


def test_workspace_commands_match_their_recorded_output(folder):
    told = []

    def tell(*words: str, say: str = "") -> None:
        done = folder.run(*words, say=say)
        told.append(f"$ agentgit workspace {' '.join(words)}\n{done.out}{done.err}")

    tell("list")
    folder.write(a="one\n", b="same\n")
    tell("save", "a first draft", "--name", "draft")
    folder.write(a="two\n", c="new\n")
    (folder.work / "b").unlink()
    tell("diff")
    tell("show", "draft")
    tell("save", "a second one")
    tell("diff", "draft", "last", "a", "c")
    tell("restore", "draft", say="y\n")
    assert folder.texts == {"a": "one\n", "b": "same\n"}
    tell("list", "-n", "2")
    tell("restore", "latest", "--yes")
    assert folder.texts == {"a": "two\n", "c": "new\n"}
    tell("delete", "draft", "--yes")
    tell("list")
    assert plainly("".join(told)) == (GOLDEN / "cli-workspace.txt").read_text(encoding="utf-8")


def test_nothing_is_restored_without_confirmation(folder):
    folder.write(a="one", b="one")
    folder.run("save", "--name", "first")
    folder.write(a="two", b="two")
    folder.run("save")
    for say in ("", "n\n"):
        asked = folder.run("restore", "first", say=say)
        assert (asked.code, asked.err) == (1, "Restore? [y/N] Nothing was done.\n")
        assert "2 files to restore, 0 to delete" in asked.out
    assert folder.run("restore", "first", "b", "--yes").code == 0
    assert folder.texts == {"a": "two", "b": "one"}
    assert folder.run("restore", "last", "b", "--yes").code == 0  # a snapshot has what a restore wrote
    assert folder.run("delete", "first").code == 1
    assert folder.run("delete", "first", "--json").code == InvalidInput.exit_code
    assert len(json.loads(folder.run("list", "--json").out)) >= 2


def test_the_undo_stack_works_on_the_command_line(folder):
    assert folder.run("undo").out == "There is nothing to undo.\n"
    folder.write(a="one", b="one")
    folder.run("save")
    with Workspace(folder.work, folder.store) as workspace:
        workspace.undo_stack.snapshot("edit_file: a", ["a"])
    folder.write(a="two", b="two")
    asked = folder.run("undo", say="n\n")
    assert (asked.code, asked.err) == (1, "Undo? [y/N] Nothing was done.\n")
    assert "1 file to restore, 0 to delete" in asked.out
    assert folder.texts == {"a": "two", "b": "two"}
    assert folder.run("undo", say=Thinking(folder)).code == PlanChanged.exit_code
    assert folder.texts == {"a": "a person's", "b": "two"}
    assert folder.run("undo", "--yes").out.startswith("undone  edit_file: a\nrestored  a\n")
    assert folder.texts == {"a": "one", "b": "two"}


def test_wrong_names_and_paths_have_their_exit_codes(folder, tmp_path):
    folder.write(a="one")
    for number in range(17):  # at least two ids begin with the same hex digit
        folder.run("save", "--name", f"draft-{number}")
    firsts = [one["id"][0] for one in json.loads(folder.run("list", "--json").out)]
    twice = next(first for first in firsts if firsts.count(first) > 1)
    assert folder.run("show", twice).code == Ambiguous.exit_code
    unknown = folder.run("show", "drft-1")
    assert unknown.code == NotFound.exit_code
    assert "Did you mean draft-1" in unknown.err
    assert folder.run("restore", "last", "../x", "--yes").code == InvalidInput.exit_code
    assert folder.run("undo", "0").code == 2
    assert run("workspace", "save", "--dir", str(tmp_path / "nowhere")).code == InvalidInput.exit_code


def test_hostile_file_names_write_no_escapes(folder):
    wild = "\x1b[31mred\u202e"
    folder.write(**{wild: f"{wild}\r\n"})
    for words in (["save", wild, "--name", wild], ["show", wild], ["list"]):
        done = folder.run(*words)
        assert done.out.replace("\n", "").isprintable()
    folder.write(**{wild: "other"})
    assert "x1b[31mred" in folder.run("diff").out
    assert folder.run("diff").out.replace("\n", "").isprintable()


def test_a_file_that_a_person_changed_is_overwritten_only_with_force(folder):
    folder.write(a="one")
    folder.run("save", "--name", "first")
    folder.write(a="two")
    folder.run("save", "--name", "second")

    for words in ((), ("--force",)):
        folder.write(a="two")
        folder.run("save")
        assert folder.run("restore", "first", *words, say=Thinking(folder)).code == PlanChanged.exit_code
        assert folder.texts == {"a": "a person's"}
    stopped = folder.run("restore", "first", "--yes")
    assert (stopped.out, stopped.code) == ("", WorkspaceChanged.exit_code)
    assert "Changed since the last snapshot: a." in stopped.err
    assert folder.texts == {"a": "a person's"}
    done = json.loads(folder.run("restore", "first", "--yes", "--force", "--json").out)
    assert folder.texts == {"a": "one"}
    folder.run("restore", done["safety"], "--yes")
    assert folder.texts == {"a": "a person's"}
