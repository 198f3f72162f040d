"""A graph that calls its payment tool directly pays nobody twice when it is killed during a payment."""

from __future__ import annotations

import json

import processes
import pytest
from payment_graphs import SHAPES

LIVES = "import sys, payment_graphs; payment_graphs.main(*sys.argv[1:])"


def lived(tmp_path, shape, kills):
    """Run killed and resumed turns in another process, and return its counts of moments and kills."""
    done = processes.run(LIVES, tmp_path, shape, kills, timeout=840)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_killed_during_a_payment_pays_nobody_twice(tmp_path, shape):
    """A turn killed before, during or after a payment continues and makes only the remaining payments."""
    seen = lived(tmp_path, shape, "[[7], [9], [10, 4]]")
    assert seen["kills"] >= 3


@pytest.mark.soak
@pytest.mark.parametrize("shape", SHAPES)
def test_a_turn_killed_at_each_moment_of_its_payments_pays_nobody_twice(tmp_path, shape):
    """A turn killed at each moment, alone and before a second kill, makes only the remaining payments."""
    seen = lived(tmp_path, shape, "all")
    assert seen["kills"] >= seen["moments"]
