"""The fence: after a rollback nothing is done a second time that could not be taken back (W4)."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Annotated

import backend
import pytest
from banking import Bank, pay, payments, says
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolRuntime
from langgraph.types import Command
from pydantic import BaseModel, Field
from scripted import GRAPHS, agent_graph, call, calls, tool_node_graph

import agentgit
from agentgit import Fenced, InvalidInput, WorldDiverged, compensable, effect, reversible


@pytest.fixture
def bank():
    """A bank where nothing was paid."""
    return Bank()


def wrapped(repo, bank, *replies, **options):
    """Wrap a graph with the bank's tools, whose model says these things."""
    graph = tool_node_graph(says(*replies), bank.tools())
    return repo.wrap(graph, "s", **{"effects": bank.effects(), **options})


def paid_and_back(repo, bank, *later, **options):
    """Pay Ann 5 on main, and go back to before that; the new branch says `later`."""
    agent = wrapped(repo, bank, pay(), "paid", *later, **options)
    agent.run("pay Ann")
    return agent.rollback("main#1", force=True)


def test_w4_no_payment_is_made_twice_in_many_rollbacks(repo, bank):
    """W4: the model invents a new reference at each attempt, and Ann is paid once."""
    script = [reply for _ in range(6) for reply in (pay(), "paid")]
    agent = wrapped(repo, bank, *script)
    agent.run("pay Ann")
    for _ in range(5):
        agent = agent.rollback("main#1", force=True)
        agent.run("pay Ann")
        assert agent.history()[2]["content"] == json.dumps({"receipt": 1, "reference": bank.ledger[0][2]})
    assert len(bank.ledger) == 1


@pytest.mark.long
def test_w4_an_answer_from_the_record_has_its_own_place_on_the_track(repo, bank):
    """W4: it names what it stands for, holds its result, and stands for nothing in the world itself."""
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
def test_w4_every_kind_of_graph_is_fenced(repo, bank, kind, way):
    """W4, T1: ToolNode, create_agent, subgraphs and tasks, sync and async, get the recorded answer."""
    graph = GRAPHS[kind](says(pay(), "paid", pay(), "paid again"), bank.tools())
    agent = repo.wrap(graph, "s", effects=bank.effects(), check_effects=False)
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    answer = retry.run("pay Ann") if way == "sync" else asyncio.run(retry.arun("pay Ann"))
    assert answer == "paid again"
    assert len(bank.ledger) == 1
    assert [call.kind for call in retry.tool_track()] == ["replay"]


def test_w4_a_call_with_a_bare_text_is_known_by_all_of_it(repo):
    """W4: a text has no argument's name; other texts are other calls, and the same one is the same call."""
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


def test_w4_each_effect_answers_one_call_of_a_branch(repo, bank):
    """W4: two equal payments of one message are two; after a rollback both are answered, and a third is a new one."""
    agent = wrapped(repo, bank, payments(pay(), pay()), "paid", payments(pay(), pay(), pay()), "paid")
    agent.run("pay Ann twice")
    assert len(bank.ledger) == 2
    retry = agent.rollback("main#1", force=True)
    retry.run("pay Ann three times")
    assert len(bank.ledger) == 3
    assert sorted(call.kind for call in retry.tool_track()) == ["call", "replay", "replay"]


def test_w4_other_arguments_are_another_call(repo, bank):
    """W4: only the tool and its identity arguments make two calls the same."""
    agent = paid_and_back(repo, bank, pay(amount=6), pay(to="Bob"), pay(), "paid")
    agent.run("pay")
    assert [entry[:2] for entry in bank.ledger] == [("Ann", 5), ("Ann", 6), ("Bob", 5)]


def test_w4_a_fence_holds_on_branches_of_branches(repo, bank):
    """W4: on a fork of the new branch, and after a rollback of that, the first payment still answers."""
    agent = paid_and_back(repo, bank, pay(), "paid", pay(), "paid")
    fork = agent.fork()
    fork.run("pay Ann")
    fork.rollback(fork.checkpoints()[0], force=True).run("pay Ann")
    assert len(bank.ledger) == 1


def test_w4_a_fork_is_another_try_on_purpose(repo, bank):
    """W4: without a rollback, the same payment on a fork is a payment."""
    agent = wrapped(repo, bank, pay(), "paid", pay(), "paid")
    start = agent.checkpoint("start")
    agent.run("pay Ann")
    other = agent.fork(start)
    other = other.switch(other.branch, sync="ignore")
    other.run("pay Ann")
    assert len(bank.ledger) == 2


def test_w4_what_was_compensated_is_done_anew(repo, bank):
    """W4: what a rollback took back does not stand, and answers nothing."""
    refund = compensable(lambda args, result: bank.ledger.pop(), identity_args=["to", "amount"])
    agent = wrapped(repo, bank, pay(), "paid", pay(), "paid", effects=bank.effects(pay=refund))
    agent.run("pay Ann")
    retry = agent.rollback("main#1")
    assert bank.ledger == []
    retry.run("pay Ann")
    assert len(bank.ledger) == 1
    assert [call.kind for call in retry.tool_track()] == ["call"]


@pytest.mark.long
def test_w4_a_restart_forgets_nothing(repo, bank):
    """W4: another repository object on the same database answers from the record too."""
    paid_and_back(repo, bank)
    with agentgit.open(backend.url(repo)) as later:
        wrapped(later, bank, pay(), "paid").run("pay Ann")
    assert len(bank.ledger) == 1


def test_w4_fence_can_refuse_or_be_off(repo, bank):
    """W4: `raise` refuses with what stands, `off` makes the call, and nothing else is understood."""
    agent = paid_and_back(repo, bank, pay(), "paid", fence="raise")
    with pytest.raises(Fenced, match="is already done") as refused:
        agent.run("pay Ann")
    assert refused.value.invocation == repo.session("s").tool_track(branch="main")[0].id
    assert len(bank.ledger) == 1
    wrapped(repo, bank, pay(), "paid", fence="off").run("pay Ann")
    assert len(bank.ledger) == 2
    with pytest.raises(InvalidInput, match="'replay', 'raise' or 'off'"):
        wrapped(repo, bank, fence="on")


def test_w4_a_refusal_is_no_result_of_a_tool(repo, bank):
    """W4: a graph that tells its model of errors does not tell it of a refusal; the turn ends."""
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


def test_w4_a_token_is_used_once_wherever(repo, bank):
    """W4: what is declared `once` is not called again: on its branch, a fork, after a rollback, a restart."""
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


def test_w4_what_happens_once_can_be_made_again_when_it_was_reversed(repo, bank):
    """W4: `once` counts what stands: after its undo the same call runs, and then not a third time."""
    made = []

    @tool
    def grant(to: str) -> str:
        """Give an approval."""
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


def test_w4_what_is_being_done_is_not_done_beside_it(repo, bank):
    """W4: while one branch pays, another one cannot, and is told to wait."""
    started, go = threading.Event(), threading.Event()
    tools = bank.tools()
    paying = tools[0].func

    def slow(to: str, amount: int, reference: str) -> dict:
        """Pay somebody, slowly."""
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
def test_w4_of_many_branches_at_once_one_pays(repo, bank):
    """W4: looking and writing down is one step, also between processes: of four that pay at once, one does."""
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


@pytest.mark.parametrize(("seen", "paid"), [(True, 1), ({"receipt": 1}, 1), (False, 2), (None, 1)])
def test_w4_nobody_pays_where_it_is_unknown_whether_it_was_paid(repo, bank, seen, paid):
    """W4: the tool's `verify` decides about a payment that was broken off; where it cannot see, nothing is paid."""
    tools = bank.tools()
    paying, broken = tools[0].func, [True]

    def breaking(to: str, amount: int, reference: str) -> dict:
        """Pay somebody, and break off the first time."""
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


# -- answers of every form


def test_w4_content_and_artifact_come_back_as_such(repo):
    """W4: a tool that returns a text and data gives both from the record."""
    sent = []

    @tool(response_format="content_and_artifact")
    def send(text: str) -> tuple[str, dict]:
        """Send a text."""
        sent.append(text)
        return "sent", {"id": len(sent)}

    graph = tool_node_graph(says(call("send", text="x"), "ok", call("send", text="x"), "ok"), [send])
    agent = repo.wrap(graph, "s", effects={"send": "irreversible"})
    agent.run("send x")
    retry = agent.rollback("main#1", force=True)
    retry.run("send x")
    answer = retry.messages()[2]
    assert (answer.content, answer.artifact, sent) == ("sent", {"id": 1}, ["x"])


@pytest.mark.parametrize("form", ["command", "message", "list"])
def test_w4_commands_and_messages_come_back_addressed_to_the_new_call(repo, form):
    """W4: an update of the state is given back whole, and its message answers the call that was made now."""
    sent = []

    @tool
    def send(text: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> object:
        """Send a text."""
        sent.append(text)
        message = ToolMessage("sent", tool_call_id=tool_call_id)
        command = Command(update={"messages": [message]})
        return {"command": command, "message": message, "list": [command]}[form]

    replies = calls(call("send", "one", text="x")), "ok", calls(call("send", "two", text="x")), "ok"
    agent = repo.wrap(tool_node_graph(says(*replies), [send]), "s", effects={"send": "irreversible"})
    agent.run("send x")
    retry = agent.rollback("main#1", force=True)
    assert retry.run("send x") == "ok"
    assert retry.messages()[2].tool_call_id == "two"
    assert (retry.messages()[2].content, sent) == ("sent", ["x"])


def test_w4_what_cannot_be_given_back_rightly_is_refused(repo):
    """W4: a command that holds objects of the program is in no record; the call is neither answered nor made."""
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
def test_w4_what_a_tool_called_is_taken_over_with_it(repo, bank):
    """W4: the payment inside of an order stands behind the order's answer, and is not made by anybody again."""
    paying = bank.tools()[0]

    @tool
    def order(item: str) -> str:
        """Order an item, and pay it."""
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


def test_w4_an_answer_that_was_not_taken_answers_later(repo, bank):
    """W4: a call with wrong arguments fails before it takes its answer; said rightly, it gets that answer."""
    wrong = call("pay", to="Ann", amount=5)
    graph = tool_node_graph(says(pay(), "paid", wrong, pay(), "paid"), bank.tools(), handle_tool_errors=True)
    agent = repo.wrap(graph, "s", effects=bank.effects())
    agent.run("pay Ann")
    retry = agent.rollback("main#1", force=True)
    retry.run("pay Ann")
    assert [(c.kind, c.status) for c in retry.tool_track()] == [("replay", "failed"), ("replay", "done")]
    assert len(bank.ledger) == 1


def test_w4_the_tools_themselves_stay_as_they_were(repo, bank):
    """W4: wrapping marks copies; the user's tools have no mark, and agents of one graph do not meet."""
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
    """Where somebody lives."""

    city: str = "Paris"
    country: str = "FR"


@pytest.mark.parametrize(("first", "then", "same"), [*((*p, True) for p in SPELLED), *((*p, False) for p in OTHERS)])
def test_w4_what_a_tool_fills_in_makes_no_other_call(repo, first, then, same):
    """W4: a default that the model spells out, or a number that it writes as a text, does not pass the fence."""
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
        """Give somebody money."""
        paid.append(to)
        return "given"

    graph = tool_node_graph(says(call("give", **first), "done", call("give", **then), "done"), [give])
    agent = repo.wrap(graph, "s", effects={"give": "irreversible"})
    agent.run("give")
    agent.rollback("main#1", force=True).run("give")
    assert len(paid) == (1 if same else 2)
