"""A graph for `langgraph dev` with a tool that takes long, and a payment. Its ledger is a file."""

import os
import time
from pathlib import Path

from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_store
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import agentgit
from agentgit.demo import ScriptedModel

folder = Path(os.environ["SHOP_FOLDER"])


def write(line):
    """Write a line to the ledger."""
    with (folder / "ledger").open("a") as ledger:
        ledger.write(f"{line}\n")


@tool
def order(item: str) -> str:
    """Order an item."""
    write(f"order {item}")
    return item


@tool
def slow(item: str) -> str:
    """Order an item, which takes two seconds."""
    write(f"begin {item}")
    time.sleep(2)
    write(f"order {item}")
    return item


@tool
def pay(item: str) -> str:
    """Pay for an item."""
    write(f"pay {item}")
    return item


@tool
def remember(item: str) -> str:
    """Remember an item for all threads."""
    get_store().put(("items",), item, {"name": item})
    return item


def cancel(args, result):
    """Undo an order."""
    write(f"cancel {args['item']}")


def refund(args, result):
    """Make a payment good."""
    write(f"refund {args['item']}")


def obey(messages):
    """Call the tools that the last user message names, one after the other: `order chair; pay chair`."""
    last = max(n for n, message in enumerate(messages) if message.type == "human")
    orders, done = str(messages[last].content).split(";"), sum(m.type == "tool" for m in messages[last:])
    if done == len(orders) or " " not in orders[0].strip():
        return AIMessage("done")
    name, item = orders[done].split()
    return AIMessage(
        "", tool_calls=[{"name": name, "args": {"item": item}, "id": f"{len(messages)}", "type": "tool_call"}]
    )


tools, model = [order, slow, pay, remember], ScriptedModel(rule=obey)
builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
builder.add_node("tools", ToolNode(tools))
builder.add_edge(START, "model")
builder.add_conditional_edges("model", tools_condition)
builder.add_edge("tools", "model")


def was_ordered(call):
    """Look into the ledger for an order that was interrupted."""
    return f"order {call.args['item']}\n" in (folder / "ledger").read_text()


undo = agentgit.reversible(cancel, verify=was_ordered)
repo = agentgit.open(folder / "agentgit.db")
graph = repo.graph(
    builder.compile(),
    effects={"order": undo, "slow": undo, "remember": "state", "pay": agentgit.compensable(refund)},
).copy({"checkpointer": None})
checkpointer = repo.saver()
