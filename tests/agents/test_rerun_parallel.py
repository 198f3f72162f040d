"""Reruns in which equal calls run at the same time, or inside other calls, and begin in another order than recorded."""

import asyncio
import itertools
import operator
import threading
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from scripted import call, calls, saying
from typing_extensions import TypedDict

from agentgit.demo import ScriptedModel
from agentgit.testing import RecordedModel

WORKERS = ["ann", "bob", "cy"]


class Work(TypedDict):
    workers: list[str]
    results: Annotated[list[str], operator.add]


class Done(TypedDict):
    results: Annotated[list[str], operator.add]


class Turnstile:
    """Lets workers pass one after the other, in an order that a test chooses."""

    def __init__(self):
        self.order: list[str] = []
        self._changed = threading.Condition()

    def pass_in_turn(self, name, act):
        """Wait until it is the turn of a worker, let it act, and let the next one pass."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.order[:1] == [name], timeout=5)
        result = act()
        with self._changed:
            self.order.pop(0)
            self._changed.notify_all()
        return result


@pytest.fixture
def turnstile():
    return Turnstile()


@pytest.fixture
def draw():
    numbers = itertools.count(1)

    @tool
    def draw(item: str) -> str:
        """Draw a number."""
        return f"number {next(numbers)}"

    return draw


def nodes(work, model):
    builder = StateGraph(Work)
    for name in WORKERS:
        builder.add_node(name, lambda state, name=name: {"results": [work(name, model)]}).add_edge(START, name)
    return builder.compile()


def sends(work, model):
    builder = StateGraph(Work).add_node("work", lambda state: {"results": [work(state["workers"][0], model)]})
    builder.add_conditional_edges(START, lambda _: [Send("work", {"workers": [name]}) for name in WORKERS], ["work"])
    return builder.compile()


def tasks(work, model):
    start = task(lambda name: work(name, model), name="start")

    @entrypoint()
    def flow(workers: list[str], previous: Any = None) -> Any:
        results = [future.result() for future in [start(name) for name in workers]]
        return entrypoint.final(value=results, save=[*(previous or []), *results])

    return flow


def subgraphs(work, model):
    builder = StateGraph(Work)
    for name in WORKERS:
        inner = StateGraph(Work, output_schema=Done).add_node(
            "work", lambda state, name=name: {"results": [work(name, model)]}
        )
        builder.add_node(name, inner.add_edge(START, "work").compile()).add_edge(START, name)
    return builder.compile()


KINDS = [nodes, sends, tasks, subgraphs]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_calls_of_parallel_workers_keep_their_answers(repo, turnstile, draw, kind, is_async):
    def work(name: str, model: Any) -> str:
        return turnstile.pass_in_turn(name, lambda: f"{name}: {draw.invoke({'item': 'lot'})}")

    agent = repo.wrap(kind(work, None), "s", effects={"draw": "irreversible"}, check_effects=False)
    for _ in range(2):
        turnstile.order[:] = WORKERS
        agent.invoke(WORKERS if kind is tasks else {"workers": WORKERS})
    turnstile.order[:] = [*reversed(WORKERS)] * 2
    again = asyncio.run(agent.arerun()) if is_async else agent.rerun()
    assert (again.report.match_rate, again.report.is_same) == (1.0, True)
    assert again.state == agent.state


@pytest.mark.parametrize("kind", [nodes, sends, subgraphs])
def test_equal_calls_of_parallel_subagents_keep_their_answers(repo, turnstile, draw, kind):
    def reply(messages: list[Any]) -> Any:
        return AIMessage(messages[-1].text) if messages[-1].type == "tool" else calls(call("draw", item="lot"))

    def work(name: str, model: Any) -> str:
        agent = create_agent(model, tools=[draw], system_prompt=f"You are {name}.")
        ask = {"messages": [("user", "go")]}
        return turnstile.pass_in_turn(name, lambda: agent.invoke(ask)["messages"][-1].text)

    agent = repo.wrap(kind(work, ScriptedModel(rule=reply)), "s", effects={"draw": "irreversible"}, check_effects=False)
    turnstile.order[:] = WORKERS
    agent.invoke({"workers": WORKERS})
    turnstile.order[:] = [*reversed(WORKERS)]
    assert agent.rerun(kind(work, RecordedModel(agent))).report.is_same


def test_a_call_inside_an_answered_call_answers_no_other_call(repo, draw):
    """What a subagent did is part of its answer, so an equal call later gets its own answer, or none."""
    inner = saying(call("draw", item="lot"), "drawn")

    @tool
    def delegate(item: str) -> str:
        """Delegate."""
        return create_agent(inner, tools=[draw]).invoke({"messages": [("user", item)]})["messages"][-1].text

    def graph(model):
        return create_agent(model, tools=[delegate, draw])

    replies = [call("delegate", item="lot"), "one", call("draw", item="lot"), "two"]
    effects = {"delegate": "irreversible", "draw": "irreversible"}
    agent = repo.wrap(graph(saying(*replies)), "s", effects=effects)
    agent.run("first")
    agent.run("second")
    assert agent.rerun(graph(RecordedModel(agent))).report.is_same
    both = [call("delegate", item="lot"), call("draw", item="lot")]
    report = agent.rerun(graph(saying(*both, "one", call("draw", item="lot"), "two"))).report
    assert [one.is_matched for one in report.calls] == [True, True, False]
