"""`agentgit explore` runs several futures, and `agentgit switch --sync world` continues on one of them."""

import json

import processes
import pytest

from agentgit.demo import orders

WITH = ("agentgit.demo:build", "s", "--effects", "agentgit.demo:EFFECTS")

JUDGE = """
def cheap(leaf):
    return -int(leaf.answer.split(" for ")[1].split()[0])

NUMBER = 7
"""


@pytest.fixture
def run(tmp_path):
    (tmp_path / "judge.py").write_text(JUDGE)

    def run(*words):
        done = processes.agentgit(*words, cwd=tmp_path, COLUMNS="100", NO_COLOR="1")
        return done.returncode, done.stdout, done.stderr

    return run


def open_orders(folder) -> list[str]:
    return [order.item for order in orders(folder / "shop.db") if order.status == "open"]


@pytest.mark.long
def test_branches_are_explored_scored_and_promoted(run, tmp_path):
    ways = ("--choice", "order a sofa", "--choice", "order a lamp", "--score", "judge:cheap")
    code, out, err = run("explore", *WITH, *ways)
    assert (code, err) == (0, "")
    assert out.splitlines()[:2] == ["session s", "explore, from main: 2 turns, 2 leaves"]
    assert out.splitlines()[2].startswith("  explore/2  score -25  ")
    assert open_orders(tmp_path) == []
    found = json.loads(run("explore", *WITH, "--step", "order a chair", "--choices", "1", "--json")[1])
    assert [one["name"] for one in found["branches"]] == ["explore-2/1"]
    promote = ("switch", "s", "explore/2", "--sync", "world", "--trust", "agentgit.demo:build")
    assert run(*promote, "--json")[0] == 2  # it needs --yes
    code, out, _ = run(*promote, "--yes")
    assert (code, out.splitlines()[0]) == (0, "Switch done: session s, branch explore/2.")
    assert open_orders(tmp_path) == ["lamp"]
    assert "branch   explore/2" in run("status")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Give the message of each step"),
        (["--step", "a", "--choice", "b"], "Give the message of each step"),
        (["--choices", "2"], "Give the message of each step"),
        (["--step", "a", "--score", "judge:NUMBER"], "judge:NUMBER is not a function"),
    ],
)
def test_invalid_explore_options_fail_with_one_line(run, words, said):
    code, out, err = run("explore", *WITH, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
