"""A turn whose process is killed anywhere pays nothing twice, however the graph calls its tools.

Real processes are killed, the world is a shop that outlives them, and each kill is followed by a check of the journal.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import signal

import processes
import pytest
import shop_graphs
import soaks
from payment_graphs import SHAPES
from shop import Shop
from test_killed import is_true, told, verify

import agentgit

__all__ = ["verify"]  # a fixture

ONCE = dict.fromkeys(shop_graphs.ITEMS.values(), 1)


class Life:
    """A session with one turn, which processes run and resume until it ends.

    Args:
        folder: The folder for its files.
        template: The file of an empty database.
        kind: The kind of graph.
        verify: Whether the tools have a `verify` function.
    """

    def __init__(self, folder, template, kind, verify):
        folder.mkdir()
        shutil.copy(template, folder / "a.db")
        self.url, self.path, self.told = str(folder / "a.db"), str(folder / "shop.db"), folder / "told"
        self.kind, self.verify = kind, verify
        self.shop = Shop(self.path)

    def process(self, dies_at=None):
        """Run or resume the turn in another process, and return whether the process survived."""
        given = (self.url, self.path, self.kind, self.verify, dies_at, str(self.told))
        code = processes.exit_code(shop_graphs.main, *given)
        assert code in (0, -signal.SIGKILL), f"it failed; killed before at {dies_at}"
        return code == 0

    def looks(self):
        """Check the journal against the shop, and resolve unclear calls as a person does if there is no `verify`."""
        with agentgit.open(self.url) as repo:
            if not repo.sessions():
                return
            for branch in repo.session("s").branches():
                repo.session("s").recover(branch=branch.name)
            is_true(repo, self.shop)
            if not self.verify:
                told(repo, self.shop)

    def ends(self):
        """Check that the shop has each item once and that each payment is one done call on the track."""
        assert self.shop.standing == ONCE
        with agentgit.open(self.url) as repo:
            is_true(repo, self.shop)
            track = [call for call in repo.session("s").tool_track() if call.tool_name in shop_graphs.ITEMS]
            assert sorted(call.tool_name for call in track if call.status == "done") == sorted(shop_graphs.ITEMS)


@pytest.fixture(scope="session")
def lengths():
    """Return a dict for the number of function calls in a turn, by kind of graph."""
    return {}


def killed(kind, verify, folder, template, lengths, chance):
    """Run a turn with up to two kills, check its result, and return the number of kills."""
    life = Life(folder, template, kind, verify)
    if kind not in lengths:
        probe = Life(folder / "probe", template, kind, verify)
        assert probe.process()
        probe.ends()
        lengths[kind] = int(probe.told.read_text("utf-8"))
    kills = 0
    for dies_at in (chance.randint(1, lengths[kind]), chance.randint(1, 2 * lengths[kind])):
        if life.process(dies_at):
            break
        kills += 1
        life.looks()
    else:
        assert life.process()
    life.ends()
    shutil.rmtree(folder)
    return kills


@pytest.mark.long
@pytest.mark.parametrize(
    "wanted", [1, pytest.param(soaks.KILLS / (2 * len(shop_graphs.GRAPHS)), marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("kind", shop_graphs.GRAPHS)
def test_a_turn_killed_anywhere_pays_once(kind, verify, wanted, tmp_path, sqlite_template, lengths):
    """The process that continues a killed turn makes only the missing payments, and the journal says which."""
    chance = random.Random(f"{kind} {verify} {soaks.SEED}")  # noqa: S311  # the same kills with the same seed
    kills = 0
    for number in itertools.count():
        kills += killed(kind, verify, tmp_path / str(number), sqlite_template, lengths, chance)
        if kills >= wanted:
            break


LIVES = "import sys, payment_graphs; payment_graphs.main(*sys.argv[1:])"


@pytest.mark.long
@pytest.mark.parametrize("kills", ["[[7], [9], [10, 4]]", pytest.param("all", marks=pytest.mark.soak)])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_killed_during_a_payment_pays_nobody_twice(tmp_path, shape, kills):
    """Killed before, during or after a payment, alone and before a second kill, it makes only the remaining ones."""
    done = processes.run(LIVES, tmp_path, shape, kills, timeout=840)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["kills"] >= (seen["moments"] if kills == "all" else 3)
