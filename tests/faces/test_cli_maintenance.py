"""The output and exit codes of the commands for maintenance and events."""

import json
import shutil
import subprocess
import sys

import processes
import pytest
from sqlalchemy import create_engine, text


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo")
    _run(folder, "demo")
    return folder


@pytest.fixture
def at(told, tmp_path):
    """Return a function that runs a command on a copy of the demo, and returns its exit code and both outputs."""
    shutil.copy(told / "agentgit.db", tmp_path)
    return lambda *words: _run(tmp_path, *words)


def _run(folder, *words):
    done = processes.agentgit(*words, cwd=folder, COLUMNS="100", NO_COLOR="1", AGENTGIT_DATABASE_URL="")
    return done.returncode, done.stdout, done.stderr


def _json(at, *words):
    code, out, err = at(*words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.long
def test_stats_are_written_as_json_and_as_text(at):
    found = _json(at, "stats", "demo", "--price", "*=1,2", "--storage")
    assert (found["checkpoints"], found["rollbacks"], found["reversal_success"], found["cost"]) == (11, 1, 1.0, 0.0)
    assert found["storage"]["own"] > 1000
    assert _json(at, "stats", "demo@main")["checkpoints"] == 5
    assert _json(at, "stats", "--all")["sessions"] == 1
    code, out, _ = at("stats")
    assert code == 0
    assert "reversals    2, 100% succeeded" in out


@pytest.mark.long
def test_a_session_is_deleted_only_after_confirmation(at):
    code, out, err = at("delete", "demo")
    assert (code, out, err) == (1, "", "Permanently delete session demo? [y/N] Nothing was done.\n")
    code, out, err = at("delete", "demo", "--json")
    assert (code, out) == (2, "")
    assert json.loads(err)["message"] == "--json cannot ask for confirmation. Add --yes to confirm."
    code, out, err = at("delete", "demo", "--yes")
    assert (code, out) == (6, "")
    assert "nobody could undo" in err
    assert _json(at, "delete", "demo", "--yes", "--force")["rows"]["checkpoint"] == 11
    assert _json(at, "sessions") == []


@pytest.mark.long
def test_retention_is_set_shown_tried_and_turned_off(at):
    """A dry run stores nothing, and setting a part of the retention keeps the rest of it."""
    assert "keeps everything" in at("retention")[1]
    tried = _json(at, "retention", "demo", "--compress-after", "3", "--keep-last", "2", "--dry-run")
    assert [one["reference"] for one in tried["gone"]] == ["main#2", "main#4", "main-2#2", "main-2#3"]
    assert _json(at, "retention", "demo")["retention"] is None
    at("retention", "demo", "--max", "0", "--compress-after", "3")
    kept = _json(at, "retention", "demo", "--max-age", "7", "--keep-last", "2")["retention"]
    assert kept == {"compress_after": 3, "keep_last": 2, "max_checkpoints": None, "max_age": 604800.0}
    assert len(_json(at, "retention", "demo", "--now")["gone"]) == 4
    assert _json(at, "stats", "demo")["checkpoints"] == 7
    assert _json(at, "retention", "demo", "--off")["retention"] is None


@pytest.mark.long
def test_gc_reports_deletions_and_fsck_reports_findings(at, tmp_path):
    file = tmp_path / "agentgit.db"
    size = file.stat().st_size
    would, done = _json(at, "gc", "--dry-run", "--keep-steps"), _json(at, "gc")
    assert (would["steps"], would["dry_run"]) == (0, True)
    assert done["steps"] > 0
    assert file.stat().st_size < size  # a write-ahead log counts as disk, too, while it is there
    assert {"disk_before", "disk_after"} <= done.keys()
    assert "there is nothing to delete" in at("gc", "--no-shrink", "--imports")[1]
    assert _json(at, "fsck", "--level", "3")["is_sound"] is True
    engine = create_engine(f"sqlite:///{tmp_path / 'agentgit.db'}")
    with engine.begin() as connection:
        connection.execute(text("UPDATE checkpoint SET graph_checkpoint_id = 'odd' || char(27) WHERE number = 2"))
    engine.dispose()
    code, out, _ = at("fsck", "--level", "1")
    assert code == 12
    assert "its graph checkpoint odd" in out
    assert "\x1b" not in out
    assert "restore the database from a backup." in out
    assert "2 findings: " in out


@pytest.mark.long
def test_events_are_filtered_and_shown_as_text_or_json(at):
    code, out, err = at("events", "demo", "--kind", "rollback.*")
    assert (code, err) == (0, "")
    assert [line.split()[2:4] for line in out.splitlines()] == [
        ["rollback.begun", "demo@main-2"], ["rollback.done", "demo@main-2"],
    ]  # fmt: skip
    every = _json(at, "events", "-n", "1000")
    assert [event["kind"] for event in every[:2]] == ["session.created", "checkpoint.created"]
    assert _json(at, "events", "--after", every[-3]["cursor"]) == every[-2:]
    assert at("events", "--since", "2100-01-01")[1] == "no events found\n"


@pytest.mark.long
def test_follow_writes_events_of_other_processes(at, tmp_path):
    command = [sys.executable, "-m", "agentgit", "events", "--follow", "--json", "-n", "1"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as follower:  # noqa: S603  # our own command
        first = json.loads(follower.stdout.readline())
        at("tag", "HEAD", "v1")
        second = json.loads(follower.stdout.readline())
        follower.terminate()
        _, err = follower.communicate(timeout=120)
    assert (first["kind"], second["kind"], second["detail"]["name"]) == ("turn.done", "tag.created", "v1")
    assert (follower.returncode, err) == (0, "")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["fsck", "--level", "9"], 2, "level must be"),
        (["retention", "--off", "--on"], 2, "Leave out the other options"),
        (["retention", "--off", "--now"], 2, "nothing to delete"),
        (["retention", "--now"], 2, "keeps everything"),
        (["retention", "nobody"], 3, "nobody"),
        (["retention", "--max-age", "1e300"], 2, "not a valid number of days"),
        (["retention", "--max", "99999999999"], 2, "a number of checkpoints"),
        (["stats", "--all", "demo"], 2, "Leave out the session"),
        (["stats", "--price", "m=1"], 2, "not a price"),
        (["stats", "--price", "m=1,-1"], 2, "1.25"),
        (["stats", "demo@nobody"], 3, "no branch"),
        (["events", "--kind", "rolback.*"], 2, "Did you mean rollback"),
    ],
)
def test_bad_input_fails_with_one_line_and_its_exit_code(at, words, code, said):
    ended, out, err = at(*words)
    assert (ended, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1
