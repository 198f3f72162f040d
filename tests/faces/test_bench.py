"""The benchmarks of `bench/` run to the end, and print medians and ratios; no test asserts a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest

from bench import aims, postgres
from bench.graphs import CHAT, TOOL, build, said, text
from bench.measure import Subject, interleaved, lines, ratio, rotated, table

ROOT = Path(__file__).parents[2]


def bench(*options: str | Path, **environment: str) -> str:
    """Run `python -m bench` as `make bench` does, and return its output."""
    command, env = [sys.executable, "-m", "bench", *map(str, options)], os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=800, check=False)  # noqa: S603  # written here
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """Measure the sizes in a quick run, and return its output, its JSON data and its folder."""
    where = tmp_path_factory.mktemp("bench")
    told = bench("--only", "size", "--quick", "--where", where, "--json", where / "found.json")
    return told, json.loads((where / "found.json").read_text()), where


@pytest.mark.long
def test_a_quick_run_prints_sizes_with_ratios(measured: tuple[str, dict[str, Any], Path]):
    """The table names every contender and the ratio of each one to SqliteSaver."""
    told, found, _ = measured
    assert "Size of the database" in told
    assert "PostgreSQL" in told
    assert "x SqliteSaver" in told
    sizes = found["subjects"]["size"]["lines"]
    for name in ("SQLModelSaver", "wrapped by agentgit"):
        assert name in told
        assert all(line["ratios"]["SqliteSaver"] > 0 for line in sizes if line["what"] == name)


@pytest.mark.long
def test_storage_grows_with_new_data_only(measured: tuple[str, dict[str, Any], Path]):
    """Three times the turns add about three times the bytes, which are counted and not timed."""
    _, found, _ = measured
    growth = [line["ratios"] for line in found["subjects"]["size"]["lines"] if line["case"] == "60 turns"]
    ours = [ratios["linear"] for ratios in growth if "SqliteSaver" in ratios and "linear" in ratios]
    assert ours
    assert all(0.8 < linear < 1.2 for linear in ours)


def test_the_output_contains_no_path_of_the_machine(measured: tuple[str, dict[str, Any], Path]):
    """Neither the table nor the JSON names a folder, and both say on what machine it was measured."""
    told, found, where = measured
    for output in (told, json.dumps(found)):
        assert str(where) not in output
        assert str(ROOT) not in output
    assert set(found["machine"]) >= {"cores", "Python", "SQLite", "langgraph", "disk"}
    assert "The machine" in told
    for name, fact in found["machine"].items():
        assert name in told
        assert fact in told


def test_a_run_leaves_only_the_requested_json_file(measured: tuple[str, dict[str, Any], Path]):
    """A run leaves nothing behind except the JSON file it was asked for."""
    _, _, where = measured
    assert [path.name for path in where.iterdir()] == ["found.json"]


@pytest.mark.long
def test_a_quick_run_measures_the_savers(tmp_path: Path):
    """Every table of the savers lists SQLModelSaver beside SqliteSaver."""
    where = tmp_path / "where"
    where.mkdir()
    printed = bench("--only", "saver", "--quick", "--where", where, "--json", tmp_path / "found.json")
    found = json.loads((tmp_path / "found.json").read_text())["subjects"]
    assert list(found) == ["saver-turn", "saver-size", "saver-put", "saver-list", "saver-fork"]
    for subject in found.values():
        whats = {line["what"] for line in subject["lines"]}
        assert any(what.startswith("SQLModelSaver") for what in whats)
        assert any(what.startswith("SqliteSaver") for what in whats)
        assert subject["title"] in printed
    assert not list(where.iterdir())


OTHER_SUBJECTS = [
    "turn",
    "graph",
    "first",
    "large",
    "model",
    "history",
    "fork",
    "log",
    "compare",
    "find",
    "import",
    "upkeep",
    "memory",
    "rerun",
    "rerun-workers",
    "honest",
    "multiuser",
    "workspace-snapshots",
]


@pytest.mark.long
@pytest.mark.parametrize("subject", OTHER_SUBJECTS)
def test_a_quick_run_measures_every_other_subject(tmp_path: Path, subject: str):
    """A quick run of each subject that has no other test ends without an error."""
    printed = bench("--only", subject, "--quick", "--where", tmp_path)
    assert "All of this took" in printed


@pytest.mark.long
def test_a_quick_run_measures_the_undo_stack(tmp_path: Path):
    """A snapshot of known paths is measured beside a copy and git, and docs/benchmarks.md has its title."""
    printed = bench("--only", "workspace-undo", "--quick", "--where", tmp_path)
    assert "UndoStack.snapshot" in printed
    assert "### Files: the undo stack" in (ROOT / "docs/benchmarks.md").read_text("utf-8")


@pytest.mark.long
def test_a_run_without_a_server_omits_its_contenders_and_says_so(tmp_path: Path):
    """Without a PostgreSQL server the other contenders are still measured, and the output says that some are left
    out.
    """
    nowhere = "postgresql+psycopg://postgres@127.0.0.1:1/none"
    printed = bench("--only", "saver-fork", "--quick", "--where", tmp_path, AGENTGIT_TEST_POSTGRES_URL=nowhere)
    assert "no server answers: left out" in printed
    assert "SQLModelSaver, fork" in printed
    assert "PostgresSaver" not in printed


@pytest.mark.long
def test_a_scratch_database_is_dropped(postgres_url: object):
    """A measurement on a server leaves no database behind."""
    with postgres.scratch() as url:
        assert postgres.size(url) == 0
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        postgres.size(url)


def test_an_aim_is_reached_or_missed_by_its_measured_number():
    """An aim is compared with its measured number, and an aim that was not measured is not shown."""
    times = {"SQLModelSaver": [0.001], "SqliteSaver": [0.002]}
    found = {"saver-turn": Subject("Time", "", lines("2 messages", times, ["SqliteSaver"]))}
    told = aims.table(found)
    assert told is not None
    assert told.splitlines()[1].split()[-5:] == ["reached", "at", "most", "1", "0.5"]
    slow = {"saver-turn": Subject("Time", "", lines("2,000 messages", times, ["SqliteSaver"]))}
    assert "missed" in (aims.table(slow) or "")
    assert aims.table({}) is None


def test_a_ratio_is_the_median_of_the_rounds():
    """A ratio is the median of the ratios of all rounds, so a round on a busy machine counts no more than another."""
    assert ratio([2, 20, 3], [1, 10, 1]) == 2


def test_each_round_starts_with_a_different_contender():
    """The contender that runs first changes with each round, so that none has a lasting advantage."""
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]


def test_every_contender_is_timed_once_per_round():
    """Interleaved runs time each contender as many times as there are rounds."""
    ran: list[str] = []
    times = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2)
    assert ran == ["a", "b", "b", "a"]
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_a_table_shows_medians_and_ratios():
    """A line has its median, its least and its ratio to the baseline; the baseline has no ratio."""
    found = lines("10 messages", {"ours": [0.002, 0.004, 0.003], "theirs": [0.001, 0.002, 0.001]}, ["theirs"])
    drawn = table(Subject("Time", "A note.", found)).splitlines()
    assert drawn[0].split() == ["median", "least", "x", "theirs"]
    assert drawn[1].split() == ["10", "messages", "ours", "3.0", "ms", "2.0", "ms", "2.00"]
    assert drawn[2].split() == ["theirs", "1.0", "ms", "1.0", "ms"]


def test_each_kind_of_turn_adds_the_claimed_number_of_messages():
    """A chat turn adds two messages, and a turn with a tool call adds four."""
    graph = build(length=50)
    for kind, count in ((CHAT, 2), (TOOL, 4)):
        assert len(graph.invoke({"messages": [("user", said(kind, 1, 50))]})["messages"]) == count


def test_texts_are_reproducible_and_call_no_tool_by_chance():
    """Every contender and every run uses the same texts, and chat texts call no tool."""
    assert text(7, 80) == text(7, 80) != text(8, 80)
    assert not any(said(CHAT, number, 50).startswith("order") for number in range(1000))
