"""After kill -9 at any named point, each effect has one true status, and the interrupted work can be finished.

Real processes are killed, and the world is a shop that outlives them. Without `verify` a person checks the shop and
calls `repo.resolve`; with it nobody has to.
"""

from __future__ import annotations

import functools
import json
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

import backend
import killed_process
import processes
import pytest
from killed_process import POINTS, wrapped
from shop import Shop, wish

import agentgit
from agentgit import RollbackIncomplete

HAPPENED, NOT = "happened", "did_not_happen"

UNCLEAR = {"unknown", "reverse_unknown"}

SOLD = {"order", "pay", "mail", "note"}
"""The tools of the shop, without tools that run another agent."""


@pytest.fixture
def shop(tmp_path, monkeypatch):
    """Create the shop, whose path every process finds in the environment."""
    monkeypatch.setenv("SHOP", str(tmp_path / "shop.db"))
    return Shop(tmp_path / "shop.db")


@pytest.fixture(params=[False, True], ids=["told", "verified"])
def verify(request):
    return request.param


def live(repo, *, verify):
    """Make a branch with an order before the checkpoint `start`, and an order and a payment between it and `end`."""
    agent = wrapped(repo, verify=verify)
    agent.invoke(wish([("order", "a")]))
    agent.checkpoint("start")
    agent.invoke(wish([("order", "b")], [("pay", "c")]))
    agent.checkpoint("end")


LIVES = {verify: functools.partial(live, verify=verify) for verify in (False, True)}
ORDERS = {}
"""The content of the shop's file after `live`, by the value of `verify`."""


@pytest.fixture
def repo(lived_through, shop, verify):
    """Return a repository with the branch of `live`, whose orders are in the shop."""
    repo = lived_through(LIVES[verify])
    file = Path(shop.path)
    if shop.standing:
        ORDERS[verify] = file.read_bytes()
    else:
        file.write_bytes(ORDERS[verify])
    assert shop.standing == dict.fromkeys("abc", 1)
    return repo


@pytest.fixture
def agent(repo, verify):
    return wrapped(repo, verify=verify)


@pytest.fixture
def killed(repo, shop, verify):
    """Return a context in which a verb was killed in another process, and the database is open again as after that.

    The journal is true then, unless the verb worked in a shop of its own.
    """

    @contextmanager
    def killed(verb, point, own=None):
        where = (own or shop).path
        code = processes.exit_code(killed_process.main, backend.address(repo), where, verb, point, verify)
        assert code == -signal.SIGKILL, f"it was not killed {point}"
        with agentgit.open(backend.url(repo)) as again:
            if own is None:
                is_true(again, shop)
            yield again, wrapped(again, verify=verify)

    return killed


def journal(repo):
    return [call for call in backend.journal(repo) if call.tool_name in SOLD]


def told(repo, shop):
    """Resolve unclear calls from the shop, as a person does, and return their number."""
    unclear = [call for call in journal(repo) if call.status in UNCLEAR]
    for call in unclear:
        there = bool(shop.look_for(call))
        repo.resolve(call, HAPPENED if there == (call.status == "unknown") else NOT)
    return len(unclear)


def is_true(repo, shop):
    """Check the journal against the shop: nothing is missing, and each status is true."""
    calls = journal(repo)
    for call in calls:
        if call.status in ("done", "reverse_failed"):
            assert shop.look_for(call), f"{call} is said to be {call.status}"
        elif call.status == "reversed":
            assert call.result is None or not shop.look_for(call), f"{call} is said to be reversed"
    may_stand = {call.args["item"] for call in calls if call.status not in ("reversed", "failed")}
    assert set(shop.standing) <= may_stand
    assert max(shop.standing.values(), default=0) <= 1
    assert max(shop.asked("cancelled").values(), default=0) <= 1


def known(agent, shop):
    """Return the expected result of each call of a track, or None for a call that was resolved without a result."""
    results = [{"order": shop.orders(item)[0], "item": item} for item in "abc"]
    return [None if call.result is None else result for call, result in zip(agent.tool_track(), results, strict=True)]


def finished(repo, shop, operation, verify):
    """Resume an operation, resolve unclear calls if it stops at them, and return its report."""
    with suppress(RollbackIncomplete):
        repo.resume(operation)
    if operation.id in {one.id for one in repo.session("s").operations() if one.status != "done"}:
        assert not verify, "verify could have told"
        assert told(repo, shop), "it stopped, and asked for nothing that could be told"
    report = repo.resume(operation)
    cancelled, standing = shop.asked("cancel"), shop.standing
    assert repo.resume(operation).to_dict() == report.to_dict(), "resuming again does nothing"
    assert (shop.asked("cancel"), shop.standing) == (cancelled, standing)
    return report


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["run"])
def test_a_turn_killed_at_any_point_can_be_rolled_back(point, shop, verify, killed):
    """Its calls are reported or verified, and a rollback restores the world from before it."""
    with killed("run", point) as (repo, agent):
        plan = agent.plan_rollback("end")
        assert set(shop.standing) - {"a", "b", "c"} <= {s.invocation.args["item"] for s in plan.steps}
        if not plan.is_admissible:
            assert not verify
            assert told(repo, shop)
        is_true(repo, shop)
        agent.rollback("end")
        assert shop.standing == dict.fromkeys("abc", 1)
        is_true(repo, shop)


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["rollback"])
def test_a_rollback_killed_at_any_point_is_finished_once(point, shop, agent, verify, killed):
    history = agent.history()
    with killed("rollback", point) as (repo, agent):
        if point == "before the operation":
            assert not repo.session("s").operations()
            agent.rollback("start", request_id="r")
        operation = repo.session("s").operations()[0]
        report = finished(repo, shop, operation, verify)
        assert repo.wrap(agent.graph, "s", branch="main", check_effects=False).history() == history
        assert shop.standing == {"a": 1}
        assert shop.asked("cancelled") == {"b": 1, "c": 1}
        assert [item.invocation.args["item"] for item in report.reversed] == ["c", "b"]
        assert repo.session("s").branch().name == report.branch == "main-2"
        is_true(repo, shop)


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["switch"])
def test_a_switch_killed_at_any_point_is_finished_once(point, shop, agent, verify, killed):
    agent.rollback("start").invoke(wish([("order", "f")]))
    with killed("switch", point) as (repo, agent):
        operation = repo.session("s").operations()[0]
        if operation.kind != "switch":
            assert point == "before the operation"
            agent.switch("main", "world")
            operation = repo.session("s").operations()[0]
        finished(repo, shop, operation, verify)
        assert shop.standing == dict.fromkeys("abc", 1)
        assert shop.asked("cancelled") == {"b": 1, "c": 1, "f": 1}
        assert repo.session("s").branch().name == "main"
        is_true(repo, shop)
        wrapped(repo, verify=verify).invoke(wish([("order", "g")]))
        assert shop.standing == dict.fromkeys("abcg", 1)


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["execute"])
def test_an_executed_replay_killed_at_any_point_is_finished_once(point, shop, agent, verify, killed):
    how = {"replay": "execute", "on_drift": "continue", "request_id": "r"}
    history = agent.history()
    with killed("execute", point) as (repo, agent):
        if point == "before the operation":
            assert not repo.session("s").operations()
            agent.rollback("end", **how)
        report = finished(repo, shop, repo.session("s").operations()[0], verify)
        left = repo.wrap(agent.graph, "s", branch="main", effects=killed_process.shop.imported(verify=verify))
        assert left.history() == history
        assert shop.standing == dict.fromkeys("abc", 1)
        assert shop.asked("cancelled") == dict.fromkeys("abc", 1)
        fresh = wrapped(repo, verify=verify)
        assert fresh.branch.name == report.branch == "main-2"
        assert [call.result for call in fresh.tool_track()] == known(fresh, shop)
        answers = [json.loads(m["content"])["order"] for m in fresh.history() if m["role"] == "tool"]
        then = [1, 2, 3]  # the old answers, which stay if the new result is unknown
        now = [call.result["order"] if call.result else old for call, old in zip(fresh.tool_track(), then, strict=True)]
        assert answers == now
        asked = shop.asked("order")
        assert left.rollback("end", **how).branch.name == "main-2"
        assert shop.asked("order") == asked
        is_true(repo, shop)
        assert not repo.maintenance.fsck().findings
        fresh.rollback("main#1")
        assert shop.standing == {}


@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["fork"])
def test_a_server_killed_at_any_point_of_a_fork_is_asked_again(point, shop, verify, killed):
    """After a kill in the rollback or the run of a fork, the same run leaves the world as its branch tells it."""
    with killed("fork", point) as (repo, _):
        for operation in repo.session("s").operations():
            finished(repo, shop, operation, verify)
        told(repo, shop)
        answer = killed_process.forked(repo, verify=verify)
        assert answer["messages"][-1].content == "done"
        assert shop.standing == {"a": 1, "d": 1}
        is_true(repo, shop)
        assert repo.maintenance.fsck().is_sound


@pytest.mark.long
@pytest.mark.each_value_once
@pytest.mark.parametrize("point", POINTS["fresh"])
def test_template_calls_killed_at_any_point_are_finished_once(point, shop, verify, killed, tmp_path, monkeypatch):
    """When a kill stops the calls of a template in a new session, the same call of wrap finishes them."""
    before = shop.standing, shop.asked("order")
    monkeypatch.setenv("SHOP", str(tmp_path / "fresh.db"))
    there = Shop(tmp_path / "fresh.db")
    with killed("fresh", point, there) as (repo, _):
        with suppress(RollbackIncomplete):
            killed_process.begun_afresh(repo, verify=verify)
        told(repo, there)
        fresh = killed_process.begun_afresh(repo, verify=verify)
        assert there.standing == dict.fromkeys("abc", 1)
        assert [call.result for call in fresh.tool_track()] == known(fresh, there)
        assert (shop.standing, shop.asked("order")) == before
        assert not repo.maintenance.fsck().findings
        fresh.rollback("main#1")
        assert there.standing == {}
