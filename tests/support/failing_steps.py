"""Steps whose calls fail: each makes three calls at once, and should leave all three effects, or none."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolCall
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from scripted import Graph, say, tool_node_graph

import agentgit
from agentgit import RollbackIncomplete, reversible
from agentgit.demo import ScriptedModel
from agentgit.effects import ToolInvocation

WANTED = ("book", "reserve", "charge")

ATTEMPTS = 60
"""The number of attempts at a step or a rollback before a policy gives up."""


class Broken(RuntimeError):
    """The error of a failing call."""


class World:
    """The existing orders, and the failures of calls.

    Args:
        rate: The fraction of calls that fail, from 0 to 1.
        seed: The seed; the same seed makes the same calls fail.
    """

    def __init__(self, rate: float, seed: int) -> None:
        self.rate, self.seed = rate, seed
        self.orders: dict[int, tuple[str, int]] = {}
        self._numbers = count(1)
        self._asked: Counter[tuple[str, int]] = Counter()
        self._lock = threading.Lock()

    def do(self, name: str, step: int, act: Callable[[], Any]) -> Any:
        """Run an action; the call may fail before or after it."""
        with self._lock:
            self._asked[name, step] += 1
            dice = random.Random(f"{self.seed} {name} {step} {self._asked[name, step]}").random()  # noqa: S311  # a script
            if dice < self.rate / 2:
                raise Broken(f"{name} of step {step} was refused")
            result = act()
            if dice < self.rate:
                raise Broken(f"the answer to {name} of step {step} was lost")
            return result

    def tools(self) -> list[BaseTool]:
        """Make the tools."""

        def made(name: str) -> Callable[[int], dict[str, int]]:
            def order(step: int) -> dict[str, int]:
                """Order something for a step."""
                return self.do(name, step, lambda: self._order(name, step))  # type: ignore[no-any-return]  # act gives it

            return order

        return [tool(name)(made(name)) for name in WANTED]

    def _order(self, name: str, step: int) -> dict[str, int]:
        number = next(self._numbers)
        self.orders[number] = (name, step)
        return {"order": number}

    def cancel(self, args: Any, result: Any, invocation: ToolInvocation) -> None:
        """Undo an order; a cancelled order stays cancelled."""
        name = f"cancel {invocation.tool_name}"
        self.do(name, args["step"], lambda: self.orders.pop(result["order"], None))

    def look(self, invocation: ToolInvocation) -> dict[str, int] | bool:
        """Return whether the order of a call exists; without a result, return the order or False."""
        if invocation.result is not None:
            return invocation.result["order"] in self.orders
        wanted = (invocation.tool_name, invocation.args["step"])
        found = [number for number, order in self.orders.items() if order == wanted]
        return {"order": found[-1]} if found else False

    def of(self, step: int) -> Counter[str]:
        """Count the existing orders of a step, by tool."""
        return Counter(name for name, of in self.orders.values() if of == step)


def build(world: World, checkpointer: Any = None) -> Graph:
    """Build a graph with a model that makes the three calls of a step, and tools that may raise."""

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        if messages[-1].type != "human":
            return AIMessage("Done.")
        args = {"step": int(str(messages[-1].content))}
        return AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=None) for name in WANTED])

    return tool_node_graph(ScriptedModel(rule=rule), world.tools(), checkpointer)


# -- the policies; each one runs the steps in order


def none(world: World, steps: int, folder: Path) -> None:
    """Leave a failed step unchanged."""
    graph: Graph = build(world, InMemorySaver())
    for step in range(steps):
        try:
            graph.invoke(say(str(step)), {"configurable": {"thread_id": "t"}})
        except Broken:
            continue


def retry(world: World, steps: int, folder: Path) -> None:
    """Continue a failed step until it succeeds, as LangGraph does."""
    graph, config = build(world, InMemorySaver()), {"configurable": {"thread_id": "t"}}
    for step in range(steps):
        given = say(str(step))
        for _ in range(ATTEMPTS):
            try:
                graph.invoke(given, config)
                break
            except Broken:
                given = None


def blind(world: World, steps: int, folder: Path) -> None:
    """Roll back before each new attempt, with tools that cannot verify a call."""
    _roll_back(world, steps, folder, looks=False)


def looking(world: World, steps: int, folder: Path) -> None:
    """Roll back before each new attempt, with tools that can verify whether a call happened."""
    _roll_back(world, steps, folder, looks=True)


def _roll_back(world: World, steps: int, folder: Path, *, looks: bool) -> None:
    undo = reversible(world.cancel, verify=world.look if looks else None)
    graph = build(world)
    with agentgit.open(folder / "agentgit.db") as repo:
        agent = repo.wrap(graph, session="s", effects=dict.fromkeys(WANTED, undo))
        for step in range(steps):
            before = agent.checkpoint()
            for _ in range(ATTEMPTS):
                try:
                    agent.invoke(say(str(step)))
                    break
                except Broken:
                    agent = _whole(repo, agent, before)


def _whole(repo: Any, agent: Any, before: Any) -> Any:
    """Roll back, resume until everything is reversed, and return the agent on the new branch."""
    try:
        return agent.rollback(before)
    except RollbackIncomplete as stopped:
        operation = stopped.operation
    for _ in range(ATTEMPTS):
        try:
            report = repo.resume(operation)
        except RollbackIncomplete:
            continue
        return agent.switch(report.branch)
    raise RuntimeError(f"operation {operation} was not whole after {ATTEMPTS} times")


POLICIES: dict[str, Callable[[World, int, Path], None]] = {
    "none": none,
    "naive retry": retry,
    "agentgit, tools that cannot look": blind,
    "agentgit, tools that can look": looking,
}


def judged(world: World, steps: int) -> tuple[int, int, int, int]:
    """Count the complete steps, the steps without effects, the other steps, and the surplus effects."""
    found = [world.of(step) for step in range(steps)]
    whole = sum(one == Counter(WANTED) for one in found)
    nothing = sum(not one for one in found)
    extra = sum(max(0, number - 1) for one in found for number in one.values())
    return whole, nothing, steps - whole - nothing, extra
