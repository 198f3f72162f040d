"""The output and exit codes of the commands for events and the audit trail."""

import json
import shutil
import subprocess
import sys

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
    assert [event["kind"] for event in every[:2]] == ["session.created", "checkpoint.created"]
    later = json.loads(at("events", "--after", every[-3]["cursor"], "--json")[1])
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
