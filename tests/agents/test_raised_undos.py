"""An undo that raised does not prove that nothing was undone, so it runs again only if that is known to be safe.

The ledger of a bank shows which payments and refunds were made.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import faults
import numpy
import points
import pytest
from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt
from scripted import call, node_graph, obedient, obeying, say, scripted, tool_node_graph

import agentgit
from agentgit import (
    Conflict,
    Fenced,
    InvalidInput,
    NotDone,
    RollbackBlocked,
    RollbackIncomplete,
    compensable,
    effect,
    reversible,
)
from agentgit.effects import idempotency_key

LOST = ConnectionError("no answer")
KINDS = {"compensable": compensable, "reversible": reversible}


class Declined(Exception):
    """The error of a bank that refuses a refund."""


class Bank:
    """A bank; `ledger` has each payment and, as a negative number, each refund.

    Args:
        moods: For each refund in turn, what it answers or raises, and whether it refunds `before` that.
    """

    def __init__(self, *moods: tuple[Any, bool]) -> None:
        self.ledger: list[int] = []
        self.moods = list(moods)
        self.keys: list[str] = []
        self.tool: BaseTool = tool(self.pay)

    def pay(self, euros: int) -> str:
        """Pay."""
        self.ledger.append(euros)
        return "paid"

    def refund(self, args: dict[str, Any], result: Any) -> Any:
        """Undo a payment."""
        self.keys.append(idempotency_key())
        answer, is_refunded = self.moods.pop(0) if self.moods else (None, True)
        if is_refunded:
            self.ledger.append(-args["euros"])
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def look(self, invocation: Any) -> bool:
        """Return whether a payment stands."""
        return sum(self.ledger) > 0


def wrapped(repo: Any, bank: Bank, kind: str, *, branch: str | None = None, **declared: Any) -> Any:
    graph = tool_node_graph(scripted(call("pay", euros=5), "paid"), [bank.tool])
    return repo.wrap(graph, "s", effects={"pay": KINDS[kind](bank.refund, **declared)}, branch=branch)


def paid(repo: Any, bank: Bank, kind: str, **declared: Any) -> Any:
    """Make the checkpoint `before`, and pay after it."""
    agent = wrapped(repo, bank, kind, **declared)
    agent.checkpoint("before")
    agent.invoke(say())
    return agent


def stopped(agent: Any) -> Any:
    """Roll back, and return the error of the undo that raised."""
    with pytest.raises(RollbackIncomplete) as caught:
        agent.rollback("before")
    return caught.value


def status(agent: Any) -> str:
    return str(agent.tool_track()[0].status)


def text(plan: Any) -> str:
    """Return a plan as a person reads it, in one line."""
    return " ".join(str(plan).split())


@pytest.fixture
def here() -> Any:
    """Open a repository in memory, because what an answer means does not depend on the database."""
    with agentgit.open(":memory:") as repo:
        yield repo


# -- what may run again


def test_a_compensation_that_raised_is_never_run_again_unasked(repo):
    bank = Bank((LOST, True))
    agent = paid(repo, bank, "compensable")
    error = stopped(agent)
    assert status(agent) == "reverse_unknown"
    with pytest.raises(RollbackIncomplete, match="unknown whether it was reversed"):
        repo.resume(error.operation)
    with pytest.raises(RollbackBlocked, match=r"repo\.resolve"):
        agent.rollback("before")
    again = wrapped(repo, bank, "compensable", branch="main")  # as another process wraps it
    assert not again.plan_rollback("before").is_admissible
    assert bank.ledger == [5, -5]
    repo.resolve(agent.tool_track()[0], "happened")
    assert repo.resume(error.operation).status == "done"
    assert bank.ledger == [5, -5]


def test_a_person_who_knows_that_nothing_was_refunded_lets_the_undo_run_again(repo):
    bank = Bank((LOST, False))
    agent = paid(repo, bank, "compensable")
    error = stopped(agent)
    resolved = repo.resolve(agent.tool_track()[0], "did_not_happen")
    assert "no answer" in (resolved.error_message or "")
    assert "again:" not in text(agent.plan_rollback("before"))
    assert repo.resume(error.operation).status == "done"
    assert bank.ledger == [5, -5]


@pytest.mark.parametrize(
    "answer", [NotDone("too late"), Declined("too late"), False], ids=lambda one: type(one).__name__
)
def test_an_undo_that_says_it_did_nothing_runs_again(repo, answer):
    bank = Bank((answer, False))
    agent = paid(repo, bank, "compensable", failed_on=(Declined,))
    error = stopped(agent)
    assert "nothing was undone" in str(error)
    assert status(agent) == "reverse_failed"
    assert repo.resume(error.operation).status == "done"
    assert bank.ledger == [5, -5]


def test_an_error_around_a_not_done_proves_nothing(repo):
    wrapping = RuntimeError("gave up")
    wrapping.__cause__ = NotDone("too late")
    bank = Bank((wrapping, True))
    agent = paid(repo, bank, "compensable")
    stopped(agent)
    assert status(agent) == "reverse_unknown"


@pytest.mark.parametrize("is_refunded", [True, False])
def test_verify_proves_whether_an_undo_that_raised_acted(repo, is_refunded):
    bank = Bank((LOST, is_refunded))
    agent = paid(repo, bank, "compensable", verify=bank.look)
    if is_refunded:
        agent.rollback("before")
    else:
        error = stopped(agent)
        assert repo.resume(error.operation).status == "done"
    assert bank.ledger == [5, -5]


def test_resume_runs_a_reversible_undo_again(repo):
    bank = Bank((LOST, False))
    error = stopped(paid(repo, bank, "reversible"))
    assert repo.resume(error.operation).status == "done"
    assert bank.ledger == [5, -5]


def test_a_new_rollback_says_that_it_runs_a_reversible_undo_again(repo):
    bank = Bank((LOST, False))
    agent = paid(repo, bank, "reversible")
    stopped(agent)
    assert status(agent) == "reverse_failed"
    plan = agent.plan_rollback("before")
    assert "again: its undo raised, it may have happened" in text(plan)
    agent.rollback("before")
    assert bank.ledger == [5, -5]


# -- declared safe to repeat


@pytest.mark.parametrize("how", ["resume", "rollback"])
def test_the_current_declaration_decides_whether_an_undo_runs_again(repo, how):
    bank = Bank((LOST, False), (LOST, False))
    agent = paid(repo, bank, "compensable", undo_if_unknown=True)
    error = stopped(agent)
    strict = wrapped(repo, bank, "compensable", branch="main")
    with pytest.raises(RollbackIncomplete if how == "resume" else RollbackBlocked):
        repo.resume(error.operation) if how == "resume" else strict.rollback("before")
    assert len(bank.moods) == 1
    safe = wrapped(repo, bank, "compensable", branch="main", undo_if_unknown=True)
    assert "again:" in text(safe.plan_rollback("before"))
    with pytest.raises(RollbackIncomplete):
        repo.resume(error.operation) if how == "resume" else safe.rollback("before")
    repo.resume(error.operation) if how == "resume" else safe.rollback("before")
    assert bank.ledger == [5, -5]
    assert len(set(bank.keys)) == 1  # of the call, so that the bank recognizes the refund


def test_what_was_reversible_and_is_compensable_now_blocks(repo):
    bank = Bank((LOST, True))
    stopped(paid(repo, bank, "reversible"))
    strict = wrapped(repo, bank, "compensable", branch="main")
    with pytest.raises(RollbackBlocked, match="its undo raised ConnectionError: no answer, but may have happened"):
        strict.rollback("before")


@pytest.mark.parametrize("kind", KINDS)
def test_the_undo_of_a_call_that_raised_runs_if_it_is_declared_safe(repo, kind):
    bank = Bank()
    ledger = bank.ledger

    def pay(euros: int) -> str:
        """Pay."""
        ledger.append(euros)
        raise LOST

    graph = tool_node_graph(scripted(call("pay", euros=5), "ok"), [tool(pay)], handle_tool_errors=True)
    closed = ["the bank is closed"]
    declared = KINDS[kind](bank.refund, undo_if_unknown=True, precheck=lambda call: closed.pop() if closed else None)
    agent = repo.wrap(graph, "s", effects={"pay": declared})
    agent.checkpoint("before")
    agent.invoke(say())
    (call_of_pay,) = agent.tool_track()
    assert call_of_pay.status == "unknown"
    assert "the bank is closed" in agent.plan_rollback("before").blockers[0].why
    assert "its undo is declared to be safe" in text(agent.plan_rollback("before"))
    agent.rollback("before")
    assert bank.ledger == [5, -5]
    assert bank.keys == [call_of_pay.idempotency_key]


def test_undo_if_unknown_is_for_tools_with_an_undo():
    with pytest.raises(InvalidInput, match="True or False"):
        reversible(Bank().refund, undo_if_unknown="yes")
    with pytest.raises(InvalidInput, match="never undone"):
        type(effect("idempotent"))("idempotent", undo_if_unknown=True)


# -- answers

UNCLEAR = [[], 0, "", {}, numpy.False_, numpy.True_, numpy.array([1, 2])]


@pytest.mark.each_value_once
@pytest.mark.parametrize("answer", UNCLEAR, ids=repr)
@pytest.mark.parametrize("role", ["undo", "verify", "precheck"])
def test_an_answer_that_is_neither_yes_nor_no_is_refused_by_name(here, role, answer):
    def unclear(*args: Any) -> Any:
        return answer

    def pay(euros: int) -> str:
        """Pay."""
        raise LOST

    def undo(args: Any, result: Any) -> Any:
        return answer

    named = {"undo": undo}.get(role, unclear).__qualname__
    roles = {} if role == "undo" else {role: unclear}
    is_verify = role == "verify"
    made: BaseTool = tool(pay if is_verify else Bank().pay)
    graph = tool_node_graph(scripted(call("pay", euros=5), "ok"), [made], handle_tool_errors=True)
    agent = here.wrap(graph, "s", effects={"pay": compensable(undo if role == "undo" else Bank().refund, **roles)})
    agent.checkpoint("before")
    agent.invoke(say())
    with pytest.raises(RollbackIncomplete if role == "undo" else RollbackBlocked) as caught:
        agent.rollback("before")
    told = agent.plan_rollback("before").blockers[0].why if is_verify else str(caught.value)
    assert f"{named} returned {answer!r}; it must return True, False, None, or a result" in told
    if is_verify:
        assert agent.tool_track()[0].status == "unknown"


# -- calls that still run


@pytest.fixture
def slow() -> Any:
    """Make a sync tool that waits before it pays, and what tells it to go on."""

    class Slow:
        def __init__(self) -> None:
            self.ledger: list[int] = []
            self.began, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
            self.error: Exception | None = None
            self.looked = 0

        def pay(self, euros: int) -> str:
            """Pay."""
            self.began.set()
            assert self.may_end.wait(30)
            self.ledger.append(euros)
            if self.error is not None:
                raise self.error
            return "paid"

        def refund(self, args: dict[str, Any], result: Any) -> None:
            self.ledger.remove(args["euros"])

        def look(self, invocation: Any) -> bool:
            self.looked += 1
            return bool(self.ledger)

    slow = Slow()
    yield slow
    slow.may_end.set()


def cancelled(repo: Any, slow: Any, *, own_class: bool = False, looks: bool = True) -> Any:
    """Cancel a turn whose tool still runs in its thread."""

    class Payment(BaseTool):
        name: str = "pay"
        description: str = "Pay."

        def _run(self, euros: int) -> str:
            return slow.pay(euros)

    graph = tool_node_graph(scripted(call("pay", euros=5), "ok", "ok"), [Payment() if own_class else tool(slow.pay)])
    declared = compensable(slow.refund, verify=slow.look if looks else None, undo_if_unknown=True)
    agent = repo.wrap(graph, "s", effects={"pay": declared})
    agent.checkpoint("before")

    async def begin() -> None:
        turn = asyncio.create_task(agent.ainvoke(say()))
        while not slow.began.is_set():
            await asyncio.sleep(0.01)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn

    loop = asyncio.new_event_loop()  # `asyncio.run` would wait for the thread
    loop.run_until_complete(begin())
    loop.close()
    return agent


def wait_for(agent: Any, condition: Callable[[Any], bool]) -> Any:
    """Wait until the call meets a condition, and return it."""
    for _ in range(200):
        (made,) = agent.tool_track()
        if condition(made):
            return made
        time.sleep(0.05)
    raise AssertionError(made)


@pytest.mark.parametrize("own_class", [False, True])
def test_a_call_that_still_runs_is_neither_settled_nor_verified_nor_undone(repo, slow, own_class):
    agent = cancelled(repo, slow, own_class=own_class)
    assert agent.tool_track()[0].status == "unknown"
    assert "it is running now; wait until it ends" in text(agent.plan_rollback("before"))
    with pytest.raises(RollbackBlocked, match="running now"):
        agent.rollback("before")
    with pytest.raises(Conflict, match="still runs in this process"):
        repo.resolve(agent.tool_track()[0], "did_not_happen")
    with pytest.raises(Fenced, match="running now"):
        agent.invoke(None)
    assert slow.looked == 0
    slow.may_end.set()
    assert wait_for(agent, lambda one: one.status != "unknown").status == "done"
    agent.rollback("before")
    assert slow.ledger == []


def test_a_call_whose_record_was_broken_off_does_not_run_any_more(repo, world):
    """When nothing can be written after a tool has acted, a person can settle the call in the same process."""
    agent = obeying(repo, world)

    def broken_off() -> None:
        if world.charges:
            raise KeyboardInterrupt

    with faults.setting(points.FLUSH_IN_BACKGROUND, lambda unit: None):
        with faults.before(points.EVERY_WRITE, broken_off), pytest.raises(KeyboardInterrupt):
            agent.run("charge 5")
        agent.session.recover()
        (charged,) = agent.tool_track()
        assert charged.status == "unknown"
        repo.resolve(charged, "happened")
        assert agent.tool_track()[0].status == "done"


@pytest.mark.parametrize("way", ["a task that outlives the turn", "a thread of arun"])
def test_a_call_that_a_node_starts_in_the_background_still_runs(repo, way):
    ledger: list[str] = []
    running = []

    async def later(to: str) -> str:
        """Pay somebody, after a while."""
        await asyncio.sleep(0.4)
        ledger.append(to)
        return "paid"

    def slowly(to: str) -> str:
        """Pay somebody, after a while."""
        time.sleep(0.4)
        ledger.append(to)
        return "paid"

    pay = tool("pay")(slowly if way == "a thread of arun" else later)

    async def act(state: Any) -> dict[str, Any]:
        running.append(asyncio.ensure_future(pay.arun({"to": "Ann"})))
        await asyncio.sleep(0.1)
        if way == "a thread of arun":
            running[0].cancel()
        return {"messages": []}

    agent = repo.wrap(node_graph(act), "s", effects={"pay": "irreversible"}, check_effects=False)

    async def story() -> None:
        await agent.ainvoke(say())
        with pytest.raises(Conflict, match="still runs in this process"):
            repo.resolve(agent.tool_track()[0], "did_not_happen")
        assert ledger == []
        await asyncio.sleep(0.8)

    asyncio.run(story())
    assert ledger == ["Ann"]
    assert agent.tool_track()[0].status == "done"


def test_a_sync_tool_that_was_cancelled_inside_can_be_resolved(repo):
    @tool
    def pay(to: str) -> str:
        """Pay somebody."""
        raise asyncio.CancelledError

    graph = node_graph(lambda state: {"messages": [("ai", pay.invoke({"to": "Ann"}))]})
    agent = repo.wrap(graph, "s", effects={"pay": "irreversible"}, check_effects=False)
    with pytest.raises(BaseException):  # noqa: B017, PT011  # LangGraph decides what becomes of it
        agent.invoke(say())
    assert repo.resolve(agent.tool_track()[0], "did_not_happen").status == "failed"


@pytest.mark.parametrize("looks", [False, True])
def test_the_late_error_of_a_call_is_recorded(repo, slow, looks):
    slow.error = LOST
    agent = cancelled(repo, slow, looks=looks)
    slow.may_end.set()
    if looks:
        assert wait_for(agent, lambda one: one.status != "unknown").status == "done"  # `verify` sees the payment
    else:
        late = wait_for(agent, lambda one: one.error_message == "ConnectionError: no answer")
        assert (late.status, late.ended_at is None) == ("unknown", False)
        while not agent.plan_rollback("before").is_admissible:  # until its thread has ended too
            time.sleep(0.05)
    agent.rollback("before")
    assert slow.ledger == []


def test_a_paused_call_is_listed_as_kept(repo):
    """By each plan, report and erasure."""
    ledger = []

    def book(seat: str) -> str:
        """Book a seat."""
        ledger.append(seat)
        return str(interrupt("sure?"))

    graph = tool_node_graph(scripted(call("book", seat="3a"), "ok"), [tool(book)])
    agent = repo.wrap(graph, "s", effects={"book": reversible(lambda args, result: ledger.remove(args["seat"]))})
    agent.checkpoint("before")
    agent.invoke(say())
    waiting = agent.checkpoint("waiting")
    (kept,) = agent.plan_rollback("before").kept
    assert "what it did before it asked stays" in kept.why
    assert agent.plan_rollback(waiting).kept == []  # it waits there too
    report = agent.rollback("before").report
    assert [item.invocation.tool_name for item in report.kept] == ["book"]
    assert ledger == ["3a"]
    with pytest.raises(Conflict, match=r"nobody could undo 1 effect in the world: book\(seat='3a'\)"):
        agent.session.delete()
    assert agent.session.delete(force=True).sessions == 1


def test_a_result_that_has_no_text_keeps_its_error(repo):
    class Wordless:
        def __str__(self) -> str:
            raise ValueError("no words")

        __repr__ = __str__

    def pay(euros: int) -> Any:
        """Pay."""
        return Wordless()

    graph = tool_node_graph(scripted(call("pay", euros=5), "ok"), [tool(pay)], handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects={"pay": "irreversible"})
    agent.checkpoint("before")
    agent.invoke(say())
    (recorded,) = agent.tool_track()
    assert (recorded.status, recorded.error_message) == ("unknown", "ValueError: no words")
    with pytest.raises(RollbackBlocked, match="no words"):
        agent.rollback("before")


# -- a redo asks the fence


def test_a_redo_makes_no_compensable_call_whose_equal_stands(repo, world):
    kept: list[int] = []
    charge = compensable(world.refund, precheck=lambda call: call.args["amount"] not in kept)
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects(charge=charge))
    agent.checkpoint("before")
    agent.run("charge 5; charge 5; charge 7")
    back = agent.rollback("before")
    assert world.charges == []
    back.run("charge 5")
    assert [step.action for step in back.plan_switch("main").steps].count("redo") == 3
    kept.append(5)
    plan = back.plan_switch("main")
    assert [step.action for step in plan.steps if step.invocation.args["amount"] == 5] == ["block", "gone", "redo"]
    assert "the same call stays in the world" in text(plan)
    back.switch("main", sync="world", force=True)
    assert sorted(world.charges) == [5, 5, 7]


# -- erasing a session


def test_a_session_with_standing_effects_is_erased_only_by_force(repo, world):
    agent = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("look; note hello")
    agent.run("add chair; charge 5")
    with pytest.raises(
        Conflict, match=r"nobody could undo 2 effects in the world: charge\(amount=5\).*add\(item='chair'\)"
    ):
        agent.session.delete()
    assert [one.session_name for one in repo.sessions()] == ["s"]
    agent.undo()
    assert repo.session("s").delete().sessions == 1
    kept = repo.wrap(agent.graph, "kept", effects=world.effects())
    kept.run("send hello")
    assert kept.session.delete(force=True).sessions == 1
    assert world.sent == ["hello"]


def test_an_admin_erases_a_user_with_standing_effects_only_by_force(repo, world):
    ada = repo.as_user(repo.users.add("ada"))
    agent = ada.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    agent.run("send secret")
    with pytest.raises(Conflict, match="send of session 's'") as caught:
        repo.users.delete("ada")
    assert "secret" not in str(caught.value)
    assert repo.users.delete("ada", force=True).sessions == 1
