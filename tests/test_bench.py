"""The measurements of `bench/`: they run through, and what they print is medians and ratios. No time is asserted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.graphs import CHAT, TOOL, build, said, text
from bench.measure import Subject, interleaved, lines, ratio, rotated, table

ROOT = Path(__file__).parents[1]


def bench(*options: str | Path) -> str:
    """Run `python -m bench` as `make bench` does, and give what it printed."""
    command = [sys.executable, "-m", "bench", *map(str, options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # noqa: S603  # written here
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    """What a quick run of the sizes printed, what it wrote as JSON, and the folder it was told to use."""
    where = tmp_path_factory.mktemp("bench")
    told = bench("--only", "size", "--quick", "--where", where, "--json", where / "found.json")
    return told, json.loads((where / "found.json").read_text()), where


def test_a_quick_run_prints_sizes_with_ratios(measured: tuple[str, dict[str, Any], Path]):
    """The table names every contender, and each one's ratio to SqliteSaver."""
    told, found, _ = measured
    assert "Size of the database" in told
    assert "x SqliteSaver" in told
    sizes = found["subjects"]["size"]["lines"]
    for name in ("SQLModelSaver", "wrapped by agentgit"):
        assert name in told
        assert all(line["ratios"]["SqliteSaver"] > 0 for line in sizes if line["what"] == name)


def test_w13_storage_grows_with_new_data_only(measured: tuple[str, dict[str, Any], Path]):
    """W13: three times the turns add about three times the bytes, which is a count and no time."""
    _, found, _ = measured
    growth = [line["ratios"] for line in found["subjects"]["size"]["lines"] if line["case"] == "60 turns"]
    ours = [ratios["linear"] for ratios in growth if "SqliteSaver" in ratios and "linear" in ratios]
    assert ours
    assert all(0.8 < linear < 1.2 for linear in ours)


def test_no_path_of_the_machine_is_printed(measured: tuple[str, dict[str, Any], Path]):
    """Neither the table nor the JSON names a folder, but both say on what machine it was measured."""
    told, found, where = measured
    for output in (told, json.dumps(found)):
        assert str(where) not in output
        assert str(ROOT) not in output
    assert set(found["machine"]) >= {"cores", "Python", "SQLite", "langgraph", "disk"}


def test_the_folder_is_empty_afterwards(measured: tuple[str, dict[str, Any], Path]):
    """A run leaves nothing behind but the JSON it was asked for."""
    _, _, where = measured
    assert [path.name for path in where.iterdir()] == ["found.json"]


def test_a_ratio_is_the_median_of_the_rounds():
    """A round in which the machine was busy weighs no more than another."""
    assert ratio([2, 20, 3], [1, 10, 1]) == 2


def test_rounds_begin_with_another_one_each_time():
    """Whoever comes first in a round has no lasting advantage."""
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]


def test_everything_is_timed_once_a_round():
    """Interleaved runs have as many times each as there are rounds."""
    ran: list[str] = []
    times = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2)
    assert ran == ["a", "b", "b", "a"]
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_a_table_shows_medians_and_ratios():
    """A line has its median, its least and its ratio to the baseline; the baseline has none to itself."""
    found = lines("10 messages", {"ours": [0.002, 0.004, 0.003], "theirs": [0.001, 0.002, 0.001]}, ["theirs"])
    drawn = table(Subject("Time", "A note.", found)).splitlines()
    assert drawn[0] == "Time"
    assert drawn[3].split() == ["median", "least", "x", "theirs"]
    assert drawn[4].split() == ["10", "messages", "ours", "3.0", "ms", "2.0", "ms", "2.00"]
    assert drawn[5].split() == ["theirs", "1.0", "ms", "1.0", "ms"]


def test_the_turns_have_the_messages_that_are_claimed():
    """A chat turn adds two messages, one with a tool call four."""
    graph = build(length=50)
    for kind, count in ((CHAT, 2), (TOOL, 4)):
        assert len(graph.invoke({"messages": [("user", said(kind, 1, 50))]})["messages"]) == count


def test_texts_are_the_same_in_every_run_and_never_call_a_tool_by_chance():
    """Every contender and every run says the same, and chat stays chat."""
    assert text(7, 80) == text(7, 80) != text(8, 80)
    assert not any(said(CHAT, number, 50).startswith("order") for number in range(1000))
