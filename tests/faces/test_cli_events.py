"""The output and exit codes of the commands for events, the audit trail and webhooks."""

import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing

import pytest
from test_cli_maintenance import _run
from typer.testing import CliRunner

from agentgit import AgentGitError
from agentgit.cli.app import app
from agentgit.sessions.webhooks import verify

pytestmark = pytest.mark.usefixtures("webhooks_allowed")


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


@pytest.mark.long
@pytest.mark.usefixtures("long_webhook_pauses")
def test_a_webhook_is_managed_on_the_command_line(at, tmp_path, receiver):  # the fixture
    """A webhook is added, listed, delivered, retried and removed; its secret is in a file and never shown."""
    code, _, err = at("webhooks", "add", receiver.url)
    assert (code, "--secret-env" in err) == (2, True)
    made = json.loads(at("webhooks", "add", receiver.url, "-k", "tag.*", "--secret-file", "key", "--json")[1])
    secret = (tmp_path / "key").read_text().strip()
    assert stat.S_IMODE(os.stat(tmp_path / "key").st_mode) == 0o600
    at("tag", "HEAD", "v1")
    receiver.answers.append(500)
    assert at("webhooks", "deliver")[1] == "0 sent; 1 failed, will be retried; 1 waiting\n"
    shown = at("webhooks", "list")[1]
    assert "1 pending; the receiver" in shown
    assert at("webhooks", "retry", str(made["id"]))[1] == "1 due\n"
    assert json.loads(at("webhooks", "deliver", "--json")[1])["sent"] == 1
    verify(secret, *receiver.got[-1])
    assert at("webhooks", "remove", str(made["id"]))[0] == 0
    assert at("webhooks", "remove", str(made["id"]))[0] == 3
    assert at("webhooks", "list")[1].startswith("no webhooks yet")
    assert secret not in shown + json.dumps(made) + at("events")[1]


@pytest.mark.long
def test_a_delivery_worker_runs_until_it_is_stopped(at, tmp_path, receiver):  # the fixture
    """--follow delivers later events and exits without an error when it is stopped."""
    at("webhooks", "add", receiver.url, "-k", "tag.*", "--secret-file", "key")
    command = [sys.executable, "-m", "agentgit", "webhooks", "deliver", "--follow", "--json"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as worker:  # noqa: S603  # our own command
        at("tag", "HEAD", "v1")
        said = json.loads(worker.stdout.readline())
        worker.terminate()
        _, err = worker.communicate(timeout=120)
    assert (said["sent"], worker.returncode, err) == (1, 0, "")
