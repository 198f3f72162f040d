"""The fence: after a rollback, an effect that was not reversed does not happen a second time."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading

import backend
import processes
import pytest
from banking import Bank, pay, says
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel, Field
from scripted import GRAPHS, call, calls, node_graph, tool_node_graph

import agentgit
from agentgit import Fenced, InvalidInput, effect, reversible


@pytest.fixture
def bank():
    """Create a bank without payments."""
    return Bank()


def wrapped(repo, bank, *replies, **options):
    graph = tool_node_graph(says(*replies), bank.tools())
    return repo.wrap(graph, "s", **{"effects": bank.effects(), **options})


def paid_and_back(repo, bank):
    """Pay Ann 5 on main, and roll back to before the payment."""
    agent = wrapped(repo, bank, pay(), "paid")
    agent.run("pay Ann")
    return agent.rollback("main#1", force=True)


def test_a_payment_is_made_once_despite_many_rollbacks_and_restarts(repo, bank):
    """The model invents a new reference at each attempt."""
    wrapped(repo, bank, pay(), "paid").run("pay Ann")
    for _ in range(3):
        with agentgit.open(backend.url(repo)) as later:
            agent = wrapped(later, bank, pay(), "paid").rollback("main#1", force=True)
            agent.run("pay Ann")
            assert agent.history()[2]["content"] == json.dumps({"receipt": 1, "reference": bank.ledger[0][2]})
    assert len(bank.ledger) == 1


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_kind_of_graph_is_fenced(repo, bank, kind, way):
    """The answer from the record is on the track and names the original call, which alone is in a plan."""
    graph = GRAPHS[kind](says(pay(), "paid", pay(), "paid again"), bank.tools())
    agent = repo.wrap(graph, "s", effects=bank.effects(), check_effects=False)
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    answer = retry.run("pay Ann") if way == "sync" else asyncio.run(retry.arun("pay Ann"))
    assert answer == "paid again"
    assert len(bank.ledger) == 1
    (made,), (taken,) = repo.session("s").tool_track(branch="main"), retry.tool_track()
    assert (taken.kind, taken.replay_of, taken.status, taken.position) == ("replay", made.id, "done", 0)
    assert (taken.result, taken.effect, taken.identity) == (made.result, "irreversible", made.identity)
    assert taken.args["reference"] != made.args["reference"]
    assert [step.invocation.id for step in retry.plan_rollback("main#1").steps] == [made.id]


def test_a_call_with_a_plain_text_is_identified_by_the_whole_text(repo):
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    graph = node_graph(lambda state: {"messages": [("ai", send.invoke(state["messages"][-1].content))]})
    mail = effect("irreversible", identity_args=["to"])
    agent = repo.wrap(graph, "s", effects={"send": mail}, check_effects=False)
    agent.run("Ann")
    retry = agent.rollback("main#1", force=True)
    retry.run("Bob")
    assert retry.run("Ann") == "sent"
    assert sent == ["Ann", "Bob"]
    assert [call.kind for call in retry.tool_track()] == ["call", "replay"]


def test_each_effect_answers_one_call_with_its_arguments(repo, bank):
    """Two equal payments of one message count as two; another amount or person is another payment."""
    more = calls(pay(), pay(amount=6), pay(), pay(to="Bob"), pay())
    agent = wrapped(repo, bank, calls(pay(), pay()), "paid", more, "paid")
    agent.run("pay Ann twice")
    assert len(bank.ledger) == 2
    retry = agent.rollback("main#1", force=True)
    retry.run("pay Ann three times, more, and Bob")
    assert sorted(call.kind for call in retry.tool_track()) == ["call", "call", "call", "replay", "replay"]
    assert sorted(entry[:2] for entry in bank.ledger[2:]) == [("Ann", 5), ("Ann", 6), ("Bob", 5)]


def test_a_fence_holds_on_nested_branches(repo, bank):
    """Also after a rollback of a fork of the new branch, but not on a fork from before the rollback."""
    agent = wrapped(repo, bank, *[pay(), "paid"] * 4)
    start = agent.checkpoint("start")
    agent.run("pay Ann")
    beside = agent.fork(start)
    fork = agent.rollback(start, force=True).fork()
    fork.run("pay Ann")
    fork.rollback(fork.checkpoints()[0], force=True).run("pay Ann")
    assert len(bank.ledger) == 1
    beside.switch(beside.branch, sync="ignore").run("pay Ann")
    assert len(bank.ledger) == 2


def test_a_fence_can_refuse_or_be_switched_off(repo, bank):
    """A refusal ends the turn, even of a graph that reports tool errors to its model."""
    graph = tool_node_graph(says(pay(), "paid", pay(), pay()), bank.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=bank.effects(), fence="raise")
    agent.run("pay Ann")
    for way in ("sync", "async"):
        agent = agent.rollback("main#1", force=True)
        with pytest.raises(Fenced, match="is already done") as refused:
            agent.run("pay Ann") if way == "sync" else asyncio.run(agent.arun("pay Ann"))
        assert refused.value.invocation == repo.session("s").tool_track(branch="main")[0].id
        assert [message["role"] for message in agent.history()][-1] == "assistant"
    assert len(bank.ledger) == 1
    agent.rollback("main#1", force=True)
    wrapped(repo, bank, pay(), "paid", fence="off").run("pay Ann")
    assert len(bank.ledger) == 2
    with pytest.raises(InvalidInput, match="'replay', 'raise' or 'off'"):
        wrapped(repo, bank, fence="on")


def test_a_call_declared_once_runs_once_everywhere(repo, bank):
    agent = wrapped(repo, bank, call("use", ticket="t"), call("use", ticket="t"), "used")
    start = agent.checkpoint("start")
    agent.run("use it")
    options = {"fence": "off"}
    for other in (agent.fork(start), agent.rollback(start, force=True), agent):
        other = other.switch(other.branch, sync="ignore")
        wrapped(repo, bank, call("use", ticket="t"), "used", branch=other.branch.name, **options).run("use it")
    with agentgit.open(backend.url(repo)) as later:
        wrapped(later, bank, call("use", ticket="t"), call("use", ticket="u"), "used").run("use it")
    assert bank.used == ["t", "u"]


def test_a_call_declared_once_runs_again_after_its_undo(repo, world):
    """But not a third time: `once` counts effects in place."""
    asked = [call("add", item="x"), "added", call("add", item="x"), "added"]
    once = {"add": reversible(world.remove, once=True)}

    def adding():
        return repo.wrap(tool_node_graph(says(*asked), [world.tool("add")]), "s", effects=once)

    adding().run("add")
    assert adding().rollback("main#1").report.reversed
    assert world.items == []
    agent = adding()
    agent.run("add")
    agent.run("add again")
    assert world.items == ["x"]
    assert [one.kind for one in agent.tool_track()] == ["call", "replay"]


def test_a_running_payment_is_not_made_concurrently(repo, bank):
    started, go = threading.Event(), threading.Event()

    class SlowLedger(list):
        def append(self, payment):
            if payment[0] == "Bob":
                started.set()
                assert go.wait(60)
            super().append(payment)

    bank.ledger = SlowLedger()
    agent = paid_and_back(repo, bank)
    first = wrapped(repo, bank, pay("Bob"), "paid", branch=agent.branch.name)
    second = wrapped(repo, bank, pay("Bob"), "paid", branch=agent.fork().branch.name)
    thread = threading.Thread(target=first.run, args=("pay Bob",))
    thread.start()
    assert started.wait(60)
    with pytest.raises(Fenced, match="is running now"):
        second.run("pay Bob")
    go.set()
    thread.join(60)
    assert [entry[0] for entry in bank.ledger] == ["Ann", "Bob"]


PAYING = """
import fcntl
import sys
from pathlib import Path
import agentgit
from agentgit import Fenced, WorldDiverged
from banking import Bank, pay
from test_effect_fences import wrapped
address, branch, ready, gate = sys.argv[1:]
bank = Bank()
with agentgit.open(address) as repo, open(gate) as go:
    agent = wrapped(repo, bank, pay("Bob"), "paid", branch=branch)
    Path(ready).write_text("x")
    fcntl.flock(go, fcntl.LOCK_SH)
    try:
        agent.run("pay Bob")
    except (Fenced, WorldDiverged):
        pass
print(len(bank.ledger))
"""


@pytest.mark.long
def test_only_one_of_several_concurrent_processes_pays(repo, bank, tmp_path):
    """The check and the record are one step, also between processes: of four equal payments, one is made."""
    agent = paid_and_back(repo, bank)
    names = [agent.branch.name, *(agent.fork().branch.name for _ in range(3))]
    ready, gate = tmp_path / "ready", tmp_path / "gate"
    os.mkfifo(ready)
    with gate.open("w") as shut, open(os.open(ready, os.O_RDWR), "rb", buffering=0) as waiting:
        fcntl.flock(shut, fcntl.LOCK_EX)  # each process waits for this lock before it pays
        started = [processes.Started(PAYING, backend.address(repo), name, ready, gate) for name in names]
        assert [waiting.read(1) for _ in started] == [b"x"] * 4
    ended = [one.wait() for one in started]
    assert [one.returncode for one in ended] == [0] * 4, [one.stderr for one in ended]
    assert sorted(one.stdout.strip() for one in ended) == ["0", "0", "0", "1"]


# -- forms of answers


def test_an_answer_that_cannot_be_rebuilt_is_refused(repo):
    sent = []

    class Own:
        pass

    @tool
    def send(text: str, runtime: ToolRuntime) -> Command:
        """Send a text."""
        sent.append(text)
        message = ToolMessage("sent", tool_call_id=runtime.tool_call_id)
        return Command(update={"messages": [message], "beside": Own()})

    graph = tool_node_graph(says(call("send", text="x"), "ok", call("send", text="x"), "ok"), [send])
    agent = repo.wrap(graph, "s", effects={"send": "irreversible"})
    agent.run("send x")
    retry = agent.rollback("main#1", force=True)
    with pytest.raises(Fenced, match="cannot be rebuilt"):
        retry.run("send x")
    assert sent == ["x"]


@pytest.mark.long
def test_nested_calls_are_replayed_with_their_caller(repo, bank):
    paying = bank.tools()[0]

    @tool
    def order(item: str) -> str:
        """Order an item, and pay for it."""
        paying.invoke({"to": "shop", "amount": 7, "reference": item})
        return f"ordered {item}"

    effects = {"order": "irreversible", "pay": effect("irreversible", identity_args=["to", "amount"])}
    replies = (call("order", item="chair"), "ok") * 2
    agent = repo.wrap(tool_node_graph(says(*replies), [order]), "s", effects=effects, check_effects=False)
    agent.run("a chair")
    retry = agent.rollback("main#1", force=True)
    retry.run("a chair")
    assert [(c.tool_name, c.kind) for c in retry.tool_track()] == [("order", "replay"), ("pay", "replay")]
    assert retry.plan_rollback("HEAD").steps == []
    assert len(bank.ledger) == 1


def test_an_unused_answer_is_available_to_a_later_call(repo, bank):
    """A call with wrong arguments fails without using its answer, and the corrected call receives it."""
    wrong = call("pay", to="Ann", amount=5)
    graph = tool_node_graph(says(pay(), "paid", wrong, pay(), "paid"), bank.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=bank.effects())
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    retry.run("pay Ann")
    assert [(c.kind, c.status) for c in retry.tool_track()] == [("replay", "failed"), ("replay", "done")]
    assert len(bank.ledger) == 1


SPELLED = [
    ({"to": "Ann"}, {"to": "Ann", "euros": 5}),
    ({"to": "Ann", "euros": 5}, {"to": "Ann", "euros": "5", "fee": 1, "memo": None}),
    ({"to": "Ann"}, {"to": "Ann", "tags": [], "address": {"city": "Paris", "country": "FR"}}),
    ({"to": "Ann", "address": {"city": "Paris"}}, {"to": "Ann", "euros": 5.0, "address": {"country": "FR"}}),
]
OTHERS = [({"to": "Ann"}, {"to": "Ann", "euros": 6}), ({"to": "Ann"}, {"to": "Ann", "tags": ["x"]})]


class Address(BaseModel):
    """A postal address."""

    city: str = "Paris"
    country: str = "FR"


@pytest.mark.parametrize(("first", "then", "same"), [*((*p, True) for p in SPELLED), *((*p, False) for p in OTHERS)])
def test_default_and_converted_arguments_do_not_bypass_the_fence(repo, first, then, same):
    paid = []

    class Payment(BaseModel):
        to: str
        euros: int = 5
        fee: float = 1
        memo: str | None = None
        tags: list[str] = Field(default_factory=list)
        address: Address | None = Address()

    @tool(args_schema=Payment)
    def give(to: str, **more: object) -> str:
        """Pay somebody."""
        paid.append(to)
        return "given"

    graph = tool_node_graph(says(call("give", **first), "done", call("give", **then), "done"), [give])
    agent = repo.wrap(graph, "s", effects={"give": "irreversible"})
    agent.run("give")
    agent.rollback("main#1", force=True).run("give")
    assert len(paid) == (1 if same else 2)
