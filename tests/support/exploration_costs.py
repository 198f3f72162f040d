"""The model calls and tokens to explore n steps with a choices each, and to run each path from its beginning."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

import agentgit
from agentgit.demo import ScriptedModel
from bench.graphs import Graph

COST = 10
"""The tokens of one call."""


@dataclass
class Spent:
    """The cost of a run.

    Args:
        calls: The number of model calls.
        tokens: The number of tokens.
    """

    calls: int = 0
    tokens: int = 0

    def graph(self, checkpointer: InMemorySaver | None = None) -> Graph:
        """Build a chat graph that counts its calls and tokens."""

        def rule(messages: Sequence[BaseMessage]) -> AIMessage:
            self.calls += 1
            self.tokens += COST
            usage = {"input_tokens": COST - 1, "output_tokens": 1, "total_tokens": COST}
            return AIMessage("yes", usage_metadata=usage)

        model = ScriptedModel(rule=rule)
        graph = StateGraph(MessagesState)
        graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
        graph.add_edge(START, "model")
        return graph.compile(checkpointer=checkpointer)


def explored(choices: int, steps: int, folder: Path) -> Spent:
    """Explore with agentgit, and return the cost."""
    spent = Spent()
    with agentgit.open(folder / f"explored-{choices}-{steps}.db") as repo:
        found = repo.wrap(spent.graph(), session="s").explore([f"step {n}" for n in range(steps)], choices)
    if len(found.leaves) != choices**steps:
        raise AssertionError(f"{len(found.leaves)} leaves, and not {choices**steps}")
    return spent


def from_scratch(choices: int, steps: int) -> Spent:
    """Run each path from its beginning with LangGraph alone, and return the cost."""
    spent = Spent()
    graph = spent.graph(InMemorySaver())
    for way in itertools.product(range(choices), repeat=steps):
        for n in range(steps):
            graph.invoke({"messages": [("user", f"step {n}")]}, {"configurable": {"thread_id": str(way)}})
    return spent
