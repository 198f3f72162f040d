"""The output and exit codes of the commands for events and the audit trail."""

import json
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from test_cli_maintenance import _run
from typer.testing import CliRunner

from agentgit import AgentGitError
from agentgit.cli.app import app


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """Run `agentgit demo` in a new folder, and return the folder."""
    folder = tmp_path_factory.mktemp("demo")
    _run(folder, "demo")
    return folder


@pytest.fixture
def at(played, tmp_path, monkeypatch):
    """Return a function that runs a command on a copy of the demo, and returns its exit code and both outputs."""
    shutil.copy(played / "agentgit.db", tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGIT_DATABASE_URL", raising=False)

    def run(*words):
        done = CliRunner().invoke(app, words)
        if isinstance(done.exception, AgentGitError):
            return done.exception.exit_code, done.stdout, str(done.exception)
        return done.exit_code, done.stdout, done.stderr

    return run


@pytest.mark.long
def test_events_are_filtered_and_shown_as_text_or_json(at):
    """`events` filters by kind, session, time or an earlier event, and refuses an unknown kind."""
    code, out, err = at("events", "demo", "--kind", "rollback.*")
    assert (code, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines()] == [
        ["rollback.begun", "demo@main-2"], ["rollback.done", "demo@main-2"],
    ]  # fmt: skip
    every = json.loads(at("events", "-n", "1000", "--json")[1])
    assert [event["number"] for event in every] == list(range(1, len(every) + 1))
    later = json.loads(at("events", "--after", str(every[-3]["id"]), "--json")[1])
    assert later == every[-2:]
    assert at("events", "--since", "2100-01-01")[1] == "no events found\n"
    code, _, err = at("events", "--kind", "rolback.*")
    assert code == 2
    assert "Did you mean rollback" in err


@pytest.mark.long
def test_follow_writes_events_of_other_processes(at, tmp_path):
    """--follow writes each event of another process as a line of JSON until it is stopped."""
    command = [sys.executable, "-m", "agentgit", "events", "--follow", "--json", "-n", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:  # noqa: S603  # our own command
        first = json.loads(follower.stdout.readline())
        at("tag", "HEAD", "v1")
        second = json.loads(follower.stdout.readline())
        follower.terminate()
        _, err = follower.communicate(timeout=120)
    assert (first["kind"], second["kind"], second["detail"]["name"]) == ("turn.done", "tag.created", "v1")
    assert (follower.returncode, err) == (0, "")


@pytest.mark.long
def test_audit_verify_finds_a_truncated_trail_by_saved_tips(at, tmp_path):
    """A whole trail is reported as intact, and saved tips show that a trail was truncated."""
    code, out, _ = at("audit", "verify")
    assert (code, out.startswith("the audit trail is intact")) == (0, True)
    (tmp_path / "tips.json").write_text(at("audit", "tips")[1])
    (tmp_path / "array.json").write_text(at("audit", "tips", "--json")[1])
    assert at("audit", "verify", "--tips", "array.json")[0] == 0
    with closing(sqlite3.connect(tmp_path / "agentgit.db")) as connection:
        connection.execute("DROP TRIGGER audit_event_no_delete")
        connection.execute("DELETE FROM audit_event WHERE seq = (SELECT max(seq) FROM audit_event)")
        connection.commit()
    assert at("audit", "verify")[0] == 0
    assert at("audit", "verify", "--tips", "array.json")[0] == 12
    code, out, _ = at("audit", "verify", "--tips", "tips.json")
    assert (code, "is missing now" in out) == (12, True)
    (tmp_path / "tips.json").write_text("[]")
    assert at("audit", "verify", "--tips", "tips.json")[0] == 2
    assert at("audit", "verify", "--tips", "nothing.json")[0] == 3
