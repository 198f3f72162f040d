"""Each subject of `bench/` runs to the end beside its peer; no test asserts a time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from bench import postgres, size
from bench.__main__ import SUBJECTS
from bench.contenders import FILE, OURS, WRAPPED, Talk
from bench.graphs import CHAT, MESSAGES
from bench.measure import Table, compared, interleaved, rotated, rows
from bench.stage import QUICK, Stage

ROOT = Path(__file__).parents[2]

PEERS = {"files": "git add, write-tree", "clients": "PostgresSaver"}


def bench(*options: str | Path, **environment: str) -> str:
    command, env = [sys.executable, "-m", "bench", *map(str, options)], os.environ | environment
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=800, check=False)  # noqa: S603  # written here
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_quick_run_measures_each_subject_beside_its_peer(subject: str, tmp_path: Path):
    """A quick run prints the machine and the peer without a path of it, and leaves nothing behind."""
    printed = bench("--only", subject, "--quick", "--where", tmp_path)
    assert PEERS.get(subject, "SqliteSaver") in printed
    assert "ms for 4 KB and fsync" in printed
    assert "All of this took" in printed
    assert str(tmp_path) not in printed
    assert str(ROOT) not in printed
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_storage_grows_with_new_data_only(tmp_path: Path):
    """Three times the turns add about three times the bytes, which are counted and not timed."""
    with Stage(tmp_path, QUICK).open({name: FILE[name] for name in (OURS, WRAPPED)}, size.LENGTH) as contenders:
        talk = Talk(contenders, CHAT, size.LENGTH)
        sizes = [[size.stored(one) for one in contenders.values()]]
        for turns in (20, 60):
            talk.grow(turns * MESSAGES[CHAT])
            sizes.append([size.stored(one) for one in contenders.values()])
    for empty, few, many in zip(*sizes, strict=True):
        assert 0.8 < (many - empty) / (few - empty) / 3 < 1.2


@pytest.mark.long
def test_a_run_without_a_server_omits_its_contenders_and_says_so(tmp_path: Path):
    nowhere = "postgresql+psycopg://postgres@127.0.0.1:1/none"
    printed = bench("--only", "saver", "--quick", "--where", tmp_path, AGENTGIT_TEST_POSTGRES_URL=nowhere)
    assert "no server answers: left out" in printed
    assert "SQLModelSaver" in printed
    assert "PostgresSaver" not in printed


@pytest.mark.long
def test_a_scratch_database_is_dropped(postgres_url: object):
    with postgres.scratch() as url:
        assert postgres.size(url) == 0
    with pytest.raises(psycopg.OperationalError, match="does not exist"):
        postgres.size(url)


def test_the_contenders_take_turns():
    """Each round begins with another contender, and times each once, so that none has a lasting advantage."""
    assert [rotated(["a", "b", "c"], number)[0] for number in range(4)] == ["a", "b", "c", "a"]
    ran: list[str] = []
    times = interleaved({"a": lambda: ran.append("a"), "b": lambda: ran.append("b")}, rounds=2)
    assert ran == ["a", "b", "b", "a"]
    assert {name: len(found) for name, found in times.items()} == {"a": 2, "b": 2}


def test_a_table_shows_medians_and_the_median_ratio_of_the_rounds():
    """A ratio is the median of the ratios of all rounds, so a round on a busy machine counts no more than another."""
    cells = compared({"ours": [0.002, 0.02, 0.003], "theirs": [0.001, 0.01, 0.001]}, "theirs")
    drawn = str(Table("Time", "A note.", ("time", "x theirs"), rows("10 messages", cells))).splitlines()
    assert drawn[:3] == ["Time", "A note.", ""]
    assert drawn[4].split() == ["10", "messages", "ours", "3.0", "ms", "2.00"]
    assert drawn[5].split() == ["theirs", "1.0", "ms"]
