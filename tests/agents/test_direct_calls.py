"""Calls of tools from a graph's own code, which are recorded, fenced and answered as in a ToolNode."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from uuid import uuid4

import backend
import faults
import points
import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import BaseTool, StructuredTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, RetryPolicy, interrupt
from scripted import call, node_graph, say, scripted, tool_node_graph

import agentgit
from agentgit import AgentGitError, Fenced, InvalidInput, effect, reversible
from agentgit.effects import idempotency_key

AGAIN = RetryPolicy(max_attempts=4, initial_interval=0.001, jitter=False, retry_on=ConnectionError)
BROKEN_OFF = ValueError("broken off")
PAY = effect("irreversible", identity_args=["to", "amount"])


class Bank:
    """A bank with a ledger, the idempotency keys of its payments and the errors that it raises next."""

    def __init__(self) -> None:
        self.ledger: list[tuple[str, int]] = []
        self.keys: list[str] = []
        self.lock = threading.Lock()
        self.faults: list[BaseException] = []

    def fail(self) -> None:
        """Raise the next error, if there is one."""
        if self.faults:
            raise self.faults.pop()

    def tool(self) -> BaseTool:
        """Create the payment tool."""

        @tool
        def pay(to: str, amount: int = 5, reference: str = "") -> int:
            """Pay somebody."""
            with self.lock:
                self.ledger.append((to, amount))
                self.keys.append(idempotency_key())
                return len(self.ledger)

        return pay

    def node(self, work: Callable[[BaseTool], Any], pay: BaseTool | None = None, **options: Any) -> Any:
        """Build a graph whose node works with the payment tool, fails if the bank has an error, and says the result."""
        pay = pay or self.tool()

        def act(state: MessagesState) -> dict[str, Any]:
            result = work(pay)
            self.fail()
            return {"messages": [("ai", str(result))]}

        return node_graph(act, **options)

    @property
    def paid(self) -> list[str]:
        """The names of the people paid, sorted."""
        return sorted(to for to, _ in self.ledger)


@pytest.fixture
def bank():
    """Create a bank without payments."""
    return Bank()


def wrapped(repo, graph, effects=None, **options):
    """Wrap a graph that does not expose its tools."""
    return repo.wrap(graph, "s", effects=effects or {"pay": PAY}, check_effects=False, **options)


# -- the shapes: each pays Ann twice and Bob once, then fails if the bank has an error, and returns the results

WANTED = ("Ann", "Ann", "Bob")


def by_node(bank: Bank) -> Any:
    return bank.node(lambda pay: [pay.invoke({"to": to}) for to in WANTED], retry_policy=AGAIN)


def by_async_node(bank: Bank) -> Any:
    """Build a graph whose async node makes two async calls and one sync call."""
    pay = bank.tool()

    async def act(state: MessagesState) -> dict[str, Any]:
        got = [await pay.ainvoke({"to": "Ann"}), pay.invoke({"to": "Ann"}), await pay.ainvoke({"to": "Bob"})]
        bank.fail()
        return {"messages": [("ai", str(got))]}

    return node_graph(act, retry_policy=AGAIN)


def by_new_ids(bank: Bank) -> Any:
    """Build a graph whose node makes tool calls with new ids at each attempt."""

    def paid(pay: BaseTool, to: str) -> int:
        return int(pay.invoke(call("pay", uuid4().hex, to=to)).content)

    return bank.node(lambda pay: [paid(pay, to) for to in WANTED], retry_policy=AGAIN)


def by_run(bank: Bank) -> Any:
    """Build a graph whose node calls `run`, and passes callbacks to some of its calls."""

    def work(pay: BaseTool) -> list[Any]:
        given = {"callbacks": [BaseCallbackHandler()]}
        return [pay.run({"to": "Ann"}), pay.run({"to": "Ann"}, callbacks=[]), pay.invoke({"to": "Bob"}, given)]

    return bank.node(work, retry_policy=AGAIN)


SHAPES = {made.__name__: made for made in (by_run, by_node, by_async_node, by_new_ids)}


def run(agent: Any, shape: str, given: Any) -> Any:
    """Run a turn, on an event loop if the shape needs one."""
    return asyncio.run(agent.ainvoke(given)) if shape == "by_async_node" else agent.invoke(given)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_node_that_runs_again_repeats_no_payment(repo, bank, shape):
    """Neither in the attempts of a RetryPolicy nor if another repository object continues a turn that failed."""
    agent = wrapped(repo, SHAPES[shape](bank))
    bank.faults = [ConnectionError(), ConnectionError()]
    assert run(agent, shape, say())["messages"][-1].content == "[1, 2, 3]"
    assert bank.paid == ["Ann", "Ann", "Bob"]
    assert [(one.status, one.result) for one in agent.tool_track()] == [("done", 1), ("done", 2), ("done", 3)]
    bank.faults = [BROKEN_OFF]
    with pytest.raises(ValueError, match="broken off"):
        run(agent, shape, say("again"))
    with agentgit.open(backend.url(repo)) as later:
        again = wrapped(later, SHAPES[shape](bank))
        assert run(again, shape, None)["messages"][-1].content == "[4, 5, 6]"
    assert bank.paid == ["Ann"] * 4 + ["Bob"] * 2
    assert len(set(bank.keys)) == 6


@pytest.mark.parametrize("is_async", [False, True])
def test_a_restarted_functional_graph_repeats_no_payment(repo, bank, is_async):
    """LangGraph #6577: an entrypoint restarts on a retry and on an answer, and no payment is repeated."""
    pay = bank.tool()

    @task
    def act(to: str) -> int:
        return pay.invoke({"to": to})

    @entrypoint(retry_policy=[AGAIN])
    def agent(given: Any) -> Any:
        got = [pay.invoke({"to": "Ann"}), act("Ann").result(), act("Bob").result()]
        bank.fail()
        return [*got, interrupt("more?"), pay.invoke({"to": "Cid"})]

    wrapper = wrapped(repo, agent)
    bank.faults = [ConnectionError(), ConnectionError()]
    for given in (1, Command(resume="yes")):
        got = asyncio.run(wrapper.ainvoke(given)) if is_async else wrapper.invoke(given)
    assert bank.paid == ["Ann", "Ann", "Bob", "Cid"]
    assert got == [1, 2, 3, "yes", 4]


def test_questions_of_a_node_and_its_tools_keep_their_answers(repo, bank):
    said: list[tuple[str, str]] = []

    @tool
    def ask(what: str) -> str:
        """Ask, and act."""
        answer = interrupt(what)
        said.append((what, answer))
        return answer

    def act(state: MessagesState) -> dict[str, Any]:
        got = [interrupt("1"), ask.invoke({"what": "2"}), interrupt("3"), ask.invoke({"what": "4"}), interrupt("5")]
        return {"messages": [("ai", "".join(got))]}

    agent = wrapped(repo, node_graph(act), {"ask": "irreversible"})
    answer = agent.invoke(say())
    for number in "12345":
        assert answer["__interrupt__"][0].value == number
        answer = agent.invoke(Command(resume=number))
    assert answer["messages"][-1].content == "12345"
    assert said == [("2", "2"), ("4", "4")]
    assert [one.runs for one in agent.tool_track()] == [2, 2]


BROKEN = {
    "it happened": (effect("irreversible", verify=lambda call: True), 1),
    "it did not happen": (effect("irreversible", verify=lambda call: False), 2),
    "nobody knows": (effect("irreversible", verify=lambda call: None), None),
    "reversible": (reversible(lambda args, result: None), None),
    "idempotent": (effect("idempotent"), 2),
    "only reads": (effect("read_only"), 2),
}


@pytest.mark.parametrize("case", BROKEN)
def test_an_interrupted_payment_is_never_blindly_repeated(repo, bank, case):
    declared, runs = BROKEN[case]
    made: list[str] = []

    @tool
    def pay(to: str) -> str:
        """Pay."""
        made.append(idempotency_key())
        bank.fail()
        return "paid"

    agent = wrapped(repo, node_graph(lambda state: {"messages": [("ai", str(pay.invoke({"to": "Ann"})))]}),
                    {"pay": declared})  # fmt: skip
    bank.faults = [KeyboardInterrupt()]
    with pytest.raises(KeyboardInterrupt):
        agent.invoke(say())
    if runs is None:
        with pytest.raises(Fenced, match=r"repo\.resolve") as refused:
            agent.invoke(None)
        repo.resolve(refused.value.invocation, "happened", result="seen")
        assert agent.invoke(None)["messages"][-1].content == "seen"
    else:
        agent.invoke(None)
    assert len(made) == (runs or 1)
    assert len(set(made)) == 1


def test_changed_arguments_do_not_bypass_a_payment_of_the_task(repo, bank):
    sums = [5, 6]
    graph = bank.node(lambda pay: pay.invoke({"to": "Ann", "amount": sums.pop(0)}))
    agent = wrapped(repo, graph)
    bank.faults = [BROKEN_OFF]
    with pytest.raises(ValueError, match="broken off"):
        agent.invoke(say())
    with pytest.raises(Fenced, match=r"'amount': 6.*pay\(to='Ann', amount=5.*It was not made"):
        agent.invoke(None)
    assert bank.ledger == [("Ann", 5)]
    sums[:] = [6]
    wrapped(repo, graph, fence="off").invoke(None)
    assert bank.ledger == [("Ann", 5), ("Ann", 6)]


def test_only_identity_arguments_count(repo, bank):
    """A new reference on every attempt does not make a new payment."""
    graph = bank.node(lambda pay: pay.invoke({"to": "Ann", "reference": uuid4().hex}), retry_policy=AGAIN)
    agent = wrapped(repo, graph)
    bank.faults = [ConnectionError(), ConnectionError()]
    agent.invoke(say())
    assert bank.ledger == [("Ann", 5)]


def test_a_fork_has_separate_idempotency_keys(repo, bank):
    pay = bank.tool()

    def act(state: MessagesState) -> dict[str, Any]:
        first = pay.invoke({"to": "Ann"})
        answer = interrupt("more?")
        return {"messages": [("ai", f"{first} {answer} {pay.invoke({'to': 'Bob'})}")]}

    agent = wrapped(repo, node_graph(act))
    agent.invoke(say())
    fork = agent.fork()
    assert agent.invoke(Command(resume="yes"))["messages"][-1].content == "1 yes 2"
    fork = fork.switch(fork.branch, sync="ignore")
    assert fork.invoke(Command(resume="no"))["messages"][-1].content == "1 no 3"
    assert bank.paid == ["Ann", "Bob", "Bob"]
    assert len(set(bank.keys)) == 3


@pytest.mark.parametrize("kind", ["irreversible", "idempotent"])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("how", [{"durability": "exit"}, {"durability": "async"}, {}])
def test_a_call_waits_until_its_step_is_saved(repo, kind, is_async, how):
    """However slow a save is, another repository object sees the turn at the node; a repetition has the same key."""
    found: list[Any] = []
    keys: list[str] = []

    @tool
    def pay(to: str) -> str:
        """Read the turn's next node through another repository, and pay; interrupt the first idempotent attempt."""
        with agentgit.open(backend.url(repo)) as other:
            found.append(wrapped(other, graph, effects).get_state().next)
        keys.append(idempotency_key())
        if kind == "idempotent" and len(keys) == 1:
            raise KeyboardInterrupt
        return keys[-1]

    effects = {"pay": effect(kind)}
    graph = node_graph(lambda state: {"messages": [("ai", pay.invoke({"to": "Ann"}))]})
    agent = wrapped(repo, graph, effects)
    interrupted = nullcontext() if kind == "irreversible" else pytest.raises(KeyboardInterrupt)
    with faults.slow(points.SAVE_STATE, 0.2), interrupted:
        asyncio.run(agent.ainvoke(say(), **how)) if is_async else agent.invoke(say(), **how)
    assert found == [("act",)]
    if kind == "idempotent":
        agent.invoke(None, **how)
        assert len(keys) == 2
    assert "" not in keys
    assert len(set(keys)) == 1


@pytest.mark.parametrize("how", [{"durability": "sync"}, {}])
async def test_a_call_that_blocks_the_event_loop_is_made_after_its_step_is_saved(repo, bank, how):
    """A slow save goes on in a thread while the call waits, also in the first step, for which LangGraph does not."""
    pay = bank.tool()

    @entrypoint()
    async def work(names: list[str]) -> str:
        return " ".join(str(pay.invoke({"to": name})) for name in names)

    agent = wrapped(repo, work)
    with faults.slow(points.SAVE_STATE, 0.1):
        assert await agent.ainvoke(["Ann", "Bob"], **how) == "1 2"
    assert bank.paid == ["Ann", "Bob"]


def test_a_call_is_not_made_if_its_step_cannot_be_saved(repo, bank):
    pay = bank.tool()

    class Odd(MessagesState):
        """A state with a value that cannot be stored."""

        odd: Any

    graph = StateGraph(Odd)
    graph.add_node("plan", lambda state: {"odd": threading.Lock()})
    graph.add_node("act", lambda state: {"messages": [("ai", str(pay.invoke({"to": "Ann"})))]})
    graph.add_edge(START, "plan")
    graph.add_edge("plan", "act")
    agent = wrapped(repo, graph.compile())
    with pytest.raises(AgentGitError, match="lock"):
        agent.invoke(say())
    assert bank.ledger == []
    assert agent.tool_track() == []


# -- other graphs and tools


class Heard(BaseCallbackHandler):
    """A handler that collects LangChain's tool events, without ids."""

    def __init__(self) -> None:
        self.all: list[Any] = []

    def on_tool_start(self, serialized: Any, input_str: str, **kwargs: Any) -> None:
        self.all.append(("start", serialized, input_str, kwargs.get("inputs"), kwargs.get("metadata")))

    def on_tool_end(self, output: Any, **kwargs: Any) -> None:
        self.all.append(("end", output))

    def on_tool_error(self, error: BaseException, **kwargs: Any) -> None:
        self.all.append(("error", type(error), str(error)))


def test_unwrapped_graphs_are_not_affected(repo, bank):
    @tool(response_format="content_and_artifact")
    def both(number: int) -> tuple[str, int]:
        """Return both."""
        if number > 1:
            raise ValueError("too much")
        return str(number), number

    plain = BaseTool.run.__wrapped__
    before = dict(vars(both))
    wrapped(repo, node_graph(lambda state: {"messages": [("ai", str(both.invoke({"number": 1})))]})).invoke(say())
    assert dict(vars(both)) == before
    heard: list[list[Any]] = []
    for way in (BaseTool.run, plain):
        handler = Heard()
        assert way(both, {"number": 1}, callbacks=[handler]) == "1"
        with pytest.raises(ValueError, match="too much"):
            way(both, {"number": 2}, None, "green", "green", [handler])
        heard.append(handler.all)
    assert heard[0] == heard[1]
    assert len(heard[0]) == 4


def test_a_tool_that_overrides_run_is_refused(repo, bank):
    class Own(StructuredTool):
        """A tool that overrides `run`."""

        def run(self, tool_input: Any, *args: Any, **kwargs: Any) -> Any:
            from langchain_core.callbacks import CallbackManager

            manager = CallbackManager.configure(kwargs.get("callbacks"), inheritable_metadata=kwargs.get("metadata"))
            running = manager.on_tool_start({"name": self.name}, str(tool_input), inputs=tool_input)
            value = self._run(config={}, **tool_input)
            running.on_tool_end(value)
            return value

    pay = Own.from_function(lambda to: bank.ledger.append((to, 5)) or len(bank.ledger), name="pay", description="Pay.")

    agent = wrapped(repo, bank.node(lambda pay: pay.invoke({"to": "Ann"}), pay), {"pay": "irreversible"})
    with pytest.raises(InvalidInput, match="_run"):
        agent.invoke(say())
    assert bank.ledger == []


@pytest.mark.parametrize("where", ["node", "tool"])
def test_a_wrapped_agent_inside_another_agents_turn_is_refused(repo, bank, where):
    """It is refused before it runs; its plain graph is allowed and recorded."""
    pay = bank.tool()
    inner = repo.wrap(tool_node_graph(scripted(call("pay", to="Ann"), "paid"), [pay]), "inner", effects={"pay": PAY})

    def graph(called: Any) -> Any:
        if where == "node":
            return node_graph(lambda state: {"messages": called.invoke(say())["messages"][-1:]})

        @tool
        def delegate(what: str) -> str:
            """Delegate to another agent."""
            return str(called.invoke(say())["messages"][-1].content)

        return tool_node_graph(scripted(call("delegate", what="x"), "done"), [delegate], handle_tool_errors=True)

    outer = repo.wrap(graph(inner), "outer")
    with pytest.raises(InvalidInput, match=r"agent\.graph"):
        outer.invoke(say())
    assert bank.ledger == []
    agent = repo.wrap(graph(inner.graph), "other", effects={"pay": PAY}, check_effects=False)
    agent.invoke(say())
    assert [one.tool_name for one in agent.tool_track() if one.effect == "irreversible"] == ["pay"]
    assert not agent.plan_rollback("main#1").is_admissible
