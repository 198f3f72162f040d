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
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel, Field
from scripted import GRAPHS, agent_graph, call, calls, tool_node_graph

import agentgit
from agentgit import Fenced, InvalidInput, WorldDiverged, compensable, effect, reversible


@pytest.fixture
def bank():
    """Create a bank without payments."""
    return Bank()


def wrapped(repo, bank, *replies, **options):
    """Wrap a graph with the bank's tools and a model that gives these replies."""
    graph = tool_node_graph(says(*replies), bank.tools())
    return repo.wrap(graph, "s", **{"effects": bank.effects(), **options})


def paid_and_back(repo, bank, *later, **options):
    """Pay Ann 5 on main, and roll back to before the payment; the model then replies with `later`."""
    agent = wrapped(repo, bank, pay(), "paid", *later, **options)
    agent.run("pay Ann")
    return agent.rollback("main#1", force=True)


def test_a_payment_is_made_once_despite_many_rollbacks(repo, bank):
    """The model invents a new reference at each attempt, and Ann is paid once."""
    script = [reply for _ in range(6) for reply in (pay(), "paid")]
    agent = wrapped(repo, bank, *script)
    agent.run("pay Ann")
    for _ in range(5):
        agent = agent.rollback("main#1", force=True)
        agent.run("pay Ann")
        assert agent.history()[2]["content"] == json.dumps({"receipt": 1, "reference": bank.ledger[0][2]})
    assert len(bank.ledger) == 1


@pytest.mark.long
def test_an_answer_from_the_record_has_a_place_on_the_track(repo, bank):
    """A replayed call names the original call and holds its result, and a plan lists only the original."""
    agent = paid_and_back(repo, bank, pay(), "paid")
    agent.run("pay Ann")
    (made,), (taken,) = repo.session("s").tool_track(branch="main"), agent.tool_track()
    assert (taken.kind, taken.replay_of, taken.status, taken.position) == ("replay", made.id, "done", 0)
    assert (taken.result, taken.effect, taken.identity) == (made.result, "irreversible", made.identity)
    assert taken.args["reference"] != made.args["reference"]
    plan = agent.plan_rollback("main#1")
    assert [step.invocation.id for step in plan.steps] == [made.id]


@pytest.mark.parametrize("kind", GRAPHS)
@pytest.mark.parametrize("way", ["sync", "async"])
def test_every_kind_of_graph_is_fenced(repo, bank, kind, way):
    """ToolNode, create_agent, subgraphs and tasks, sync and async, get the recorded answer."""
    graph = GRAPHS[kind](says(pay(), "paid", pay(), "paid again"), bank.tools())
    agent = repo.wrap(graph, "s", effects=bank.effects(), check_effects=False)
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    answer = retry.run("pay Ann") if way == "sync" else asyncio.run(retry.arun("pay Ann"))
    assert answer == "paid again"
    assert len(bank.ledger) == 1
    assert [call.kind for call in retry.tool_track()] == ["replay"]


def test_a_call_with_a_plain_text_is_identified_by_the_whole_text(repo):
    """A plain text has no argument name, so the whole text identifies the call."""
    sent: list[str] = []

    @tool
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    builder = StateGraph(MessagesState)
    builder.add_node("node", lambda state: {"messages": [("ai", send.invoke(state["messages"][-1].content))]})
    builder.add_edge(START, "node")
    mail = effect("irreversible", identity_args=["to"])
    agent = repo.wrap(builder.compile(), "s", effects={"send": mail}, check_effects=False)
    agent.run("Ann")
    retry = agent.rollback("main#1", force=True)
    retry.run("Bob")
    assert retry.run("Ann") == "sent"
    assert sent == ["Ann", "Bob"]
    assert [call.kind for call in retry.tool_track()] == ["call", "replay"]


def test_each_effect_answers_one_call_of_a_branch(repo, bank):
    """Two equal payments of one message count as two; after a rollback both are answered, and a third one is
    new.
    """
    agent = wrapped(repo, bank, calls(pay(), pay()), "paid", calls(pay(), pay(), pay()), "paid")
    agent.run("pay Ann twice")
    assert len(bank.ledger) == 2
    retry = agent.rollback("main#1", force=True)
    retry.run("pay Ann three times")
    assert len(bank.ledger) == 3
    assert sorted(call.kind for call in retry.tool_track()) == ["call", "replay", "replay"]


def test_a_call_with_other_arguments_is_a_different_call(repo, bank):
    """Two calls are the same only if the tool and the identity arguments are equal."""
    agent = paid_and_back(repo, bank, pay(amount=6), pay(to="Bob"), pay(), "paid")
    agent.run("pay")
    assert [entry[:2] for entry in bank.ledger] == [("Ann", 5), ("Ann", 6), ("Bob", 5)]


def test_a_fence_holds_on_nested_branches(repo, bank):
    """On a fork of the new branch, and after its rollback, the first payment still answers."""
    agent = paid_and_back(repo, bank, pay(), "paid", pay(), "paid")
    fork = agent.fork()
    fork.run("pay Ann")
    fork.rollback(fork.checkpoints()[0], force=True).run("pay Ann")
    assert len(bank.ledger) == 1


def test_a_fork_without_a_rollback_pays_again(repo, bank):
    """Without a rollback, the same payment on a fork is made."""
    agent = wrapped(repo, bank, pay(), "paid", pay(), "paid")
    start = agent.checkpoint("start")
    agent.run("pay Ann")
    other = agent.fork(start)
    other = other.switch(other.branch, sync="ignore")
    other.run("pay Ann")
    assert len(bank.ledger) == 2


def test_a_compensated_payment_is_made_again(repo, bank):
    """An effect reversed by a rollback answers no later call."""
    refund = compensable(lambda args, result: bank.ledger.pop(), identity_args=["to", "amount"])
    agent = wrapped(repo, bank, pay(), "paid", pay(), "paid", effects=bank.effects(pay=refund))
    agent.run("pay Ann")
    retry = agent.rollback("main#1")
    assert bank.ledger == []
    retry.run("pay Ann")
    assert len(bank.ledger) == 1
    assert [call.kind for call in retry.tool_track()] == ["call"]


@pytest.mark.long
def test_a_fence_survives_a_restart(repo, bank):
    """Another repository object on the same database also answers from the record."""
    paid_and_back(repo, bank)
    with agentgit.open(backend.url(repo)) as later:
        wrapped(later, bank, pay(), "paid").run("pay Ann")
    assert len(bank.ledger) == 1


def test_a_fence_can_refuse_or_be_switched_off(repo, bank):
    """`raise` refuses and names the earlier call, `off` makes the call, and any other value is refused."""
    agent = paid_and_back(repo, bank, pay(), "paid", fence="raise")
    with pytest.raises(Fenced, match="is already done") as refused:
        agent.run("pay Ann")
    assert refused.value.invocation == repo.session("s").tool_track(branch="main")[0].id
    assert len(bank.ledger) == 1
    wrapped(repo, bank, pay(), "paid", fence="off").run("pay Ann")
    assert len(bank.ledger) == 2
    with pytest.raises(InvalidInput, match="'replay', 'raise' or 'off'"):
        wrapped(repo, bank, fence="on")


def test_a_refusal_ends_the_turn_instead_of_reaching_the_model(repo, bank):
    """A graph that reports tool errors to its model does not report a refusal; the turn ends."""
    graph = tool_node_graph(says(pay(), "paid", pay(), pay()), bank.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=bank.effects(), fence="raise")
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    for way in ("sync", "async"):
        with pytest.raises(Fenced):
            retry.run("pay Ann") if way == "sync" else asyncio.run(retry.arun("pay Ann"))
        assert [message["role"] for message in retry.history()][-1] == "assistant"
        retry = retry.rollback("main#1", force=True)
    assert len(bank.ledger) == 1


def test_a_call_declared_once_runs_once_everywhere(repo, bank):
    """A call declared `once` runs once on its branch, on a fork, after a rollback and after a restart."""
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


def test_a_call_declared_once_runs_again_after_its_undo(repo, bank):
    """`once` counts effects in place: after its undo the same call runs again, but not a third time."""
    made = []

    @tool
    def grant(to: str) -> str:
        """Grant an approval."""
        made.append(to)
        return "granted"

    asked = [call("grant", to="Ann"), "granted", call("grant", to="Ann"), "granted"]
    once = {"grant": reversible(lambda args, result: made.remove(args["to"]), once=True)}

    def granting():
        return repo.wrap(tool_node_graph(says(*asked), [grant]), "s", effects=once)

    granting().run("grant")
    assert granting().rollback("main#1").report.reversed
    assert made == []
    agent = granting()
    agent.run("grant")
    agent.run("grant again")
    assert made == ["Ann"]
    assert [one.kind for one in agent.tool_track()] == ["call", "replay"]


def test_a_running_payment_is_not_made_concurrently(repo, bank):
    """While one branch pays, the same payment on another branch is refused."""
    started, go = threading.Event(), threading.Event()
    tools = bank.tools()
    paying = tools[0].func

    def slow(to: str, amount: int, reference: str) -> dict:
        """Pay after a delay."""
        started.set()
        assert go.wait(60)
        return paying(to, amount, reference)

    agent = paid_and_back(repo, bank)
    branches = [agent.branch.name, agent.fork().branch.name]
    graph = tool_node_graph(says(pay("Bob"), "paid"), [tool("pay")(slow)])
    first = repo.wrap(graph, "s", effects=bank.effects(), branch=branches[0], check_effects=False)
    second = wrapped(repo, bank, pay("Bob"), "paid", branch=branches[1])
    thread = threading.Thread(target=first.run, args=("pay Bob",))
    thread.start()
    assert started.wait(60)
    with pytest.raises(Fenced, match="is running now"):
        second.run("pay Bob")
    go.set()
    thread.join(60)
    assert [entry[0] for entry in bank.ledger] == ["Ann", "Bob"]


@pytest.mark.long
def test_only_one_of_several_concurrent_branches_pays(repo, bank):
    """The check and the record are one step: of four concurrent equal payments, one is made."""
    agent = paid_and_back(repo, bank)
    names = [agent.branch.name, *(agent.fork().branch.name for _ in range(3))]
    together, ended = threading.Barrier(4), []

    def run(name: str) -> None:
        with agentgit.open(backend.url(repo)) as own:
            other = wrapped(own, bank, pay("Bob"), "paid", branch=name)
            together.wait(60)
            try:
                ended.append(other.run("pay Bob"))
            except (Fenced, WorldDiverged) as error:
                ended.append(error)

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(ended) == 4
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


@pytest.mark.parametrize(("seen", "paid"), [(True, 1), ({"receipt": 1}, 1), (False, 2), (None, 1)])
def test_verify_decides_about_an_interrupted_payment(repo, bank, seen, paid):
    """`verify` decides about an interrupted payment; if it does not know, nothing is paid."""
    tools = bank.tools()
    paying, broken = tools[0].func, [True]

    def breaking(to: str, amount: int, reference: str) -> dict:
        """Pay, and interrupt the first attempt."""
        result = paying(to, amount, reference)
        if broken.pop() if broken else False:
            raise KeyboardInterrupt
        return result

    effects = bank.effects(pay=effect("irreversible", identity_args=["to"], verify=lambda call: seen))
    graph = tool_node_graph(says(pay(), pay(), "paid"), [tool("pay")(breaking), tools[1]])
    agent = repo.wrap(graph, "s", effects=effects)
    with pytest.raises(KeyboardInterrupt):
        agent.run("pay Ann")
    retry = agent.rollback("main#1", tools="keep")
    if seen is None:
        with pytest.raises(Fenced, match="is unknown whether"):
            retry.run("pay Ann")
    else:
        retry.run("pay Ann")
    assert len(bank.ledger) == paid


# -- forms of answers


def test_an_answer_that_cannot_be_rebuilt_is_refused(repo):
    """A command with custom objects cannot be rebuilt, so the call is neither answered nor made."""
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
    """The payment inside an order is replayed with the order, and is not made again."""
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


def test_wrapping_does_not_modify_the_users_tools(repo, bank):
    """Wrapping marks copies, and the user's tools carry no mark."""
    tools = bank.tools()
    repo.wrap(agent_graph(says("hi"), tools), "s", effects=bank.effects()).run("hi")
    assert [made.metadata for made in tools] == [None, None]


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
    """Spelled-out defaults and numbers as text make the same call; other values make a new one."""
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
