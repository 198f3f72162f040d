"""Repeated rollbacks of a payment, with a model that generates a new reference at each decision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall
from langchain_core.tools import BaseTool, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import agentgit
from agentgit.demo import ScriptedModel
from agentgit.effects import Effect, compensable
from agentgit.effects.effects import effect
from bench.graphs import Graph
from bench.measure import Table
from bench.stage import Stage

TITLE = "Payments after going back"

NOTE = (
    "An approval is used and Ann is paid. Then the agent goes back to before that and decides again, as often as the\n"
    "table says, each time with a new reference. Ann should be paid once, and the approval used once."
)

TOKEN = "approval-1"  # noqa: S105  # no secret: the name of a ticket in a script

SAY: Any = {"messages": [("user", "pay Ann 5 euros")]}


@dataclass
class Bank:
    """A bank, and the desk that accepts approvals."""

    is_idempotent: bool
    paid: list[str] = field(default_factory=list)
    refunded: list[str] = field(default_factory=list)
    used: list[str] = field(default_factory=list)
    most: int = 0
    """The highest number of payments that were not refunded at the same time."""

    def tools(self) -> list[BaseTool]:
        """Make the tools: use, pay."""

        def use(token: str) -> str:
            """Use an approval."""
            self.used.append(token)
            return f"{token} was used"

        def pay(to: str, amount: int, reference: str) -> dict[str, Any]:
            """Pay somebody."""
            if not (self.is_idempotent and reference in self.paid):
                self.paid.append(reference)
            self.most = max(self.most, len(self.paid) - len(self.refunded))
            return {"reference": reference}

        return [tool(use), tool(pay)]

    def refund(self, args: Mapping[str, Any], result: Mapping[str, Any]) -> None:
        """Undo `pay`."""
        self.refunded.append(result["reference"])


def build(bank: Bank, checkpointer: Any = None) -> Graph:
    """Build a graph with a model that uses the approval, pays with a new reference, and confirms it."""
    references = count(1)

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        last = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
        said = sum(isinstance(message, AIMessage) for message in messages[last:])
        if said == 0:
            return _calls("use", token=TOKEN)
        return _calls("pay", to="Ann", amount=5, reference=f"r{next(references)}") if said == 1 else AIMessage("Paid.")

    model = ScriptedModel(rule=rule)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(bank.tools()))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


def _calls(name: str, **args: Any) -> AIMessage:
    return AIMessage("", tool_calls=[ToolCall(name=name, args=args, id=None)])


# -- the ways to go back


def time_travel(bank: Bank, times: int, folder: Path) -> None:
    """Go back as LangGraph does: find the state before the model's decision, and continue from there."""
    graph, config = build(bank, InMemorySaver()), {"configurable": {"thread_id": "t"}}
    graph.invoke(SAY, config)
    before = [state for state in graph.get_state_history(config) if state.next == ("model",)][-1]
    for _ in range(times):
        graph.invoke(None, before.config)


def roll_back(bank: Bank, times: int, folder: Path, pay: Effect) -> None:
    """Go back with agentgit: the payment is kept and answers the next one, or it is refunded."""
    with agentgit.open(folder / "agentgit.db") as repo:
        effects = {"use": effect("irreversible", once=True), "pay": pay}
        agent = repo.wrap(build(bank), session="s", effects=effects)
        before = agent.checkpoint("before")
        agent.invoke(SAY)
        for _ in range(times):
            agent = agent.rollback(before, force=True)
            agent.invoke(SAY)


def fenced(bank: Bank, times: int, folder: Path) -> None:
    """Go back with agentgit and an irreversible payment."""
    roll_back(bank, times, folder, effect("irreversible", identity_args=["to", "amount"]))


def refunded(bank: Bank, times: int, folder: Path) -> None:
    """Go back with agentgit and a payment that is refunded."""
    roll_back(bank, times, folder, compensable(bank.refund, identity_args=["to", "amount"]))


WAYS: dict[str, Callable[[Bank, int, Path], None]] = {
    "LangGraph's time travel": time_travel,
    "agentgit, irreversible": fenced,
    "agentgit, with a refund": refunded,
}


def measure(stage: Stage) -> Table:
    """Count the effects in the world after going back many times."""
    times, found = stage.scale.rollbacks, []
    for is_idempotent in (False, True):
        case = f"{'a' if is_idempotent else 'no'} server that knows references"
        for name, way in WAYS.items():
            bank = Bank(is_idempotent)
            with stage.folder() as folder:
                way(bank, times, folder)
            numbers = (times, len(bank.paid), len(bank.refunded), bank.most - 1, len(bank.used) - 1)
            found.append([case, name, *map(str, numbers)])
    columns = ("times back", "payments", "refunds", "too many at once", "approvals again")
    return Table(TITLE, NOTE, columns, found)
