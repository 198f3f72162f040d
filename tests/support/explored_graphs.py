"""Graphs of explorations in other processes: their factories are functions of a module, so that they can be pickled.

A ledger is a file outside of the database to which the graphs append what they do, each line at once.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, TypedDict

from chains import chain
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from agentgit import effect


def append(ledger: str, line: str) -> None:
    if not ledger:
        return
    with open(ledger, "a", encoding="utf-8") as file:
        file.write(f"{line}\n")


def entries(ledger: Path) -> Counter[str]:
    return Counter(ledger.read_text("utf-8").split("\n")[:-1]) if ledger.exists() else Counter()


def _asked(state: MessagesState) -> str:
    return str(next(m.content for m in reversed(state["messages"]) if isinstance(m, HumanMessage)))


def chat(ledger: str, wait: float, branch: str) -> Any:
    """Build a graph whose model takes some time, and notes each call with its process."""

    def model(state: MessagesState):
        time.sleep(wait)
        append(ledger, f"{branch} {os.getpid()}")
        return {"messages": [("ai", f"did {_asked(state)}")]}

    return chain(model)


def mortal(ledger: str, branch: str) -> Any:
    """Build a graph of two steps whose process is killed between them, the first time that a user says `die`."""

    @tool
    def note(text: str) -> str:
        """Note a text."""
        append(ledger, f"note {text}")
        return text

    def act(state: MessagesState):
        note.invoke({"text": f"{branch} {_asked(state)}"})
        return {"messages": []}

    def answer(state: MessagesState):
        if _asked(state) == "die" and not entries(Path(ledger))["killed"]:
            append(ledger, "killed")
            time.sleep(0.5)  # longer than a step waits to be written
            os.kill(os.getpid(), signal.SIGKILL)
        append(ledger, f"answer {branch}")
        return {"messages": [("ai", f"did {_asked(state)}")]}

    return chain(act, answer)


class Odd(Exception):
    def __init__(self, one: str, other: str) -> None:
        super().__init__(f"{one} {other}")


def failing(branch: str) -> Any:
    def model(state: MessagesState):
        if _asked(state) == "fail":
            raise Odd("no", "answer")
        return {"messages": [("ai", "fine")]}

    return chain(model)


def folder(root: str, branch: str) -> Any:
    """Build a graph in a world of its own: a folder for each branch, a copy of that of the branch before."""
    before, own = Path(root, branch.rpartition("/")[0]), Path(root, branch)
    if not own.exists():
        copied = Path(root, f".{os.getpid()}", branch)
        shutil.copytree(before, copied, ignore=lambda _, names: [name for name in names if name.isdigit()])
        copied.rename(own)

    @tool
    def write(text: str) -> int:
        """Write a text into a file of the world."""
        with (own / "notes").open("a") as file:
            return file.write(text)

    def act(state: MessagesState):
        write.invoke({"text": _asked(state)})
        return {"messages": [("ai", (own / "notes").read_text())]}

    return chain(act)


def acting(branch: str) -> Any:
    @effect("irreversible")
    @tool
    def send(text: str) -> str:
        """Send a mail."""
        return text

    graph = StateGraph(MessagesState).add_node("tools", ToolNode([send])).add_edge(START, "tools")
    return graph.compile()


class Notes(TypedDict):
    note: str


def forgetful(branch: str) -> Any:
    return StateGraph(Notes).add_node("note", lambda state: state).add_edge(START, "note").compile()


def leaving(branch: str) -> Any:
    """End the process instead of building a graph, as if all were well."""
    sys.exit(0)


def leaving_later(branch: str) -> Any:
    """Build a graph whose node ends the process, as if all were well."""
    return chain(lambda state: sys.exit(0))


def broken(branch: str) -> Any:
    raise OSError("no such model")
