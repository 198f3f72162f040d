"""`agentgit import --langgraph`: its standard output, its standard error and its exit codes."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import processes
import pytest
from foreign_threads import shop, sqlite_origin
from scripted import World

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden"


@pytest.fixture
def folder(tmp_path):
    """Create a SQLite file of SqliteSaver with three threads, one of them damaged and one with a hostile name."""
    origin = sqlite_origin(tmp_path)
    for thread in ("one", "damaged", "wild \x1b[31m[b]name"):
        origin.talk(shop(World()), thread, "order a chair", "hello")
    origin.execute("UPDATE checkpoints SET parent_checkpoint_id = checkpoint_id WHERE thread_id = 'damaged'")
    return tmp_path


def run(folder, *words):
    return processes.agentgit("import", "--langgraph", *words, cwd=folder, COLUMNS="100", NO_COLOR="1")


def test_an_import_writes_its_report(folder):
    done = run(folder, "langgraph.db", "--session-prefix", "old-")
    assert done.stdout == (GOLDEN / "cli-import.txt").read_text(encoding="utf-8")
    assert (done.stderr, done.returncode) == ("", 12)
    again = run(folder, "langgraph.db", "--session-prefix", "old-", "--thread", "one")
    assert again.stdout == "unchanged  one as old-one\n1 thread: 1 unchanged\n"
    assert again.returncode == 0


def test_an_import_writes_its_report_as_json(folder):
    done = run(folder, "langgraph.db", "--thread", "one", "--json")
    assert json.loads(done.stdout)["threads"] == [
        {
            "thread_id": "one", "session_name": "one", "status": "imported", "graph_checkpoints": 8, "checkpoints": 4,
            "tool_calls": 1, "left_out": 0, "hidden": [], "error": None,
        }
    ]  # fmt: skip
    assert (done.stderr, done.returncode) == ("", 0)


@pytest.mark.long
def test_a_terminal_shows_a_progress_bar(folder):
    ours, theirs = pty.openpty()
    try:
        env = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-m", "agentgit", "import", "--langgraph", "langgraph.db", "--thread", "one"]
        done = subprocess.run(  # noqa: S603  # our own command
            command, cwd=folder, env=env, text=True, check=False, stdout=subprocess.PIPE, stderr=theirs
        )
    finally:
        os.close(theirs)
    assert b" 1/1 " in processes.shown_on(ours)
    assert done.stdout == "imported   one  8 graph checkpoints, 4 checkpoints, 1 call\n1 thread: 1 imported\n"


def test_an_invalid_source_fails_with_one_line(folder):
    (folder / "text").write_text("hello, this is no database")
    done = run(folder, "text")
    assert done.stderr.startswith("error: text is not a SQLite database; it begins with b'hello, this is n'")
    assert done.stderr.count("\n") == 1
    assert (done.stdout, done.returncode) == ("", 11)
