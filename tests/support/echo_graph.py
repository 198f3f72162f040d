"""A graph that repeats the user's message through a tool, and many processes that run it.

Example: `main("sqlite:///a.db", 8, 5)` starts 8 processes. Each runs 5 turns in its own thread; every second process
uses a wrapped graph.
"""

import os
import traceback
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.tools import tool
from scripted import Graph, call, calls, tool_node_graph

import agentgit
from agentgit import SQLModelSaver
from agentgit.demo import ScriptedModel

HOW = ("saver", "wrap")
"""The two ways to run a graph: with a saver alone, or as a wrapped graph."""


@tool
def echo(text: str) -> str:
    """Say it back."""
    return text


def rule(messages: list[BaseMessage]) -> AIMessage:
    """Call the tool with the user's message, then report the result."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage(f"did {last.content}")
    return calls(call("echo", f"call-{len(messages)}", text=last.content))


def echoing(saver: Any = None) -> Graph:
    return tool_node_graph(ScriptedModel(rule=rule), [echo], saver)


def said(name: str, turn: int) -> dict[str, Any]:
    """Build the input of one turn; no two turns of a conversation are equal."""
    return {"messages": [("user", f"{name} {turn}")]}


def whole(name: str, turns: int) -> list[str]:
    """Return the texts of a complete conversation without foreign messages."""
    return [text for n in range(turns) for text in (f"{name} {n}", "", f"{name} {n}", f"did {name} {n}")]


def texts(values: dict[str, Any]) -> list[str]:
    return [message.content for message in values["messages"]]


def talk(url: str, how: str, name: str, turns: int) -> None:
    """Run turns with a new saver or a new wrapped graph."""
    if how == "wrap":
        with agentgit.open(url) as repo:
            agent = repo.wrap(echoing(), session=name)
            for turn in range(turns):
                agent.invoke(said(name, turn))
        return
    with SQLModelSaver.from_conn_string(url) as saver:
        graph = echoing(saver)
        for turn in range(turns):
            graph.invoke(said(name, turn), {"configurable": {"thread_id": name}})


def main(url: str, processes: int, turns: int) -> int:
    """Start all processes at once, and return how many failed; forked processes need no imports."""
    children = []
    for number in range(processes):
        child = os.fork()
        if child == 0:
            try:
                talk(url, HOW[number % 2], f"p{number}", turns)
            except BaseException:  # noqa: BLE001  # the parent must see any failure
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)
