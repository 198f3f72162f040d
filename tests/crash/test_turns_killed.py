"""T1: a process that is killed anywhere in a turn pays nothing twice, however the graph calls its tools.

Real processes are killed, the world is a shop that outlives them, and the journal is held beside it after each kill.
"""

from __future__ import annotations

import random
import shutil
import signal

import processes
import pytest
import shop_graphs
from shop import Shop
from test_killed import is_true, told

import agentgit

ONCE = dict.fromkeys(shop_graphs.ITEMS.values(), 1)

SHORT, LONG = 3, 20
"""How many lives of each kind are lived; nearly each has two kills."""


@pytest.fixture(params=[False, True], ids=["told", "verified"])
def verify(request):
    """Whether the tools can look what became of a call."""
    return request.param


class Life:
    """A session in which one turn is run until it ends, by processes that die.

    Args:
        folder: for its files.
        kind: which graph.
        verify: True if the tools can look what became of a call.
    """

    def __init__(self, folder, kind, verify):
        folder.mkdir()
        self.url, self.path, self.told = str(folder / "a.db"), str(folder / "shop.db"), folder / "told"
        self.kind, self.verify = kind, verify
        self.shop = Shop(self.path)

    def process(self, dies_at=None):
        """Run the turn in another process, or go on with it; tell whether it lived."""
        given = (self.url, self.path, self.kind, self.verify, dies_at, str(self.told))
        process = processes.forking().Process(target=shop_graphs.main, args=given)
        process.start()
        process.join(300)
        assert process.exitcode in (0, -signal.SIGKILL), f"it failed; killed before at {dies_at}"
        return process.exitcode == 0

    def looks(self):
        """Hold the journal beside the shop, and tell as a person does what nobody knows."""
        with agentgit.open(self.url) as repo:
            if not repo.sessions():
                return
            for branch in repo.session("s").branches():
                repo.session("s").recover(branch=branch.name)
            is_true(repo, self.shop)
            if not self.verify:
                told(repo, self.shop)

    def ends(self):
        """Hold what the turn has left: everything once, and all that can be taken back is taken back."""
        assert self.shop.standing == ONCE
        with agentgit.open(self.url) as repo:
            is_true(repo, self.shop)
            track = [call for call in repo.session("s").tool_track() if call.tool_name in shop_graphs.ITEMS]
            assert sorted(call.tool_name for call in track if call.status == "done") == sorted(shop_graphs.ITEMS)


@pytest.fixture(scope="session")
def lengths():
    """How many calls of functions a turn takes, by kind of graph."""
    return {}


def killed(kind, verify, folder, lengths, chance):
    """Live one life, which is killed once in its turn and perhaps once more when it goes on."""
    life = Life(folder, kind, verify)
    if kind not in lengths:
        probe = Life(folder / "probe", kind, verify)
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
@pytest.mark.parametrize("kind", shop_graphs.GRAPHS)
def test_t1_a_turn_killed_anywhere_pays_once(kind, verify, tmp_path, lengths):
    """T1: the process that continues a killed turn makes only the missing payments, and the journal says which."""
    chance = random.Random(f"{kind} {verify}")  # noqa: S311  # the same kills each time
    assert sum(killed(kind, verify, tmp_path / str(n), lengths, chance) for n in range(SHORT))


@pytest.mark.long
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("kind", shop_graphs.GRAPHS)
def test_t1_a_payment_is_made_once_despite_hundreds_of_kills(kind, part, verify, tmp_path, lengths):
    """T1: hundreds of kills at any call of a function leave no duplicate payment and no untrue status."""
    chance = random.Random(f"{kind} {verify} {part}")  # noqa: S311  # the same kills each time
    lives = LONG // 4
    kills = sum(killed(kind, verify, tmp_path / str(n), lengths, chance) for n in range(lives))
    assert 2 * kills > lives  # 16 kinds and ways × 4 parts × 5 lives, some of which end before their kill
