"""Effects in the world after rollbacks and after failed calls, counted outside of agentgit."""

from __future__ import annotations

from collections import Counter

import failing_steps
import pytest
from failing_steps import WANTED, World, judged

import agentgit
from bench import payments
from bench.payments import Bank


@pytest.mark.parametrize("is_idempotent", [False, True])
def test_time_travel_in_langgraph_pays_again_each_time(is_idempotent, tmp_path):
    bank = Bank(is_idempotent)
    payments.time_travel(bank, 5, tmp_path)
    assert (bank.most, len(bank.used)) == (6, 6)


@pytest.mark.parametrize("is_idempotent", [False, True])
@pytest.mark.parametrize("way", [payments.fenced, payments.refunded])
def test_a_rollback_in_agentgit_never_pays_twice(way, is_idempotent, tmp_path):
    """At most one payment exists at a time, one remains at the end, and the approval is used once."""
    bank = Bank(is_idempotent)
    way(bank, 5, tmp_path)
    assert (bank.most, len(bank.paid) - len(bank.refunded), len(bank.used)) == (1, 1, 1)


@pytest.mark.long
def test_a_step_with_failing_calls_is_complete_after_rollback_and_retry(tmp_path):
    steps, found = 8, {}
    for name, policy in failing_steps.POLICIES.items():
        world = World(0.3, seed=1)
        (tmp_path / name).mkdir()
        policy(world, steps, tmp_path / name)
        found[name] = judged(world, steps)
    assert found["agentgit, tools that can look"] == (steps, 0, 0, 0)
    whole, _, worse, extra = found["naive retry"]
    assert (worse, whole + worse) == (steps - whole, steps)
    assert extra > 0
    assert found["none"][2] > 0


@pytest.mark.long
def test_calls_of_unknown_outcome_are_listed_in_the_plan(tmp_path):
    world = World(0.3, seed=1)
    failing_steps.blind(world, 8, tmp_path)
    with agentgit.open(tmp_path / "agentgit.db") as repo:
        agent = repo.wrap(failing_steps.build(world), session="s", effects=dict.fromkeys(WANTED, "irreversible"))
        told = Counter(
            (step.invocation.tool_name, step.invocation.args["step"])
            for step in agent.plan_rollback("main#1").steps
            if step.invocation.status in ("done", "unknown")
        )
        assert Counter(world.orders.values()) <= told
