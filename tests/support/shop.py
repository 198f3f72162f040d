"""A shop that outlives its customers: a SQLite file with a row for each order, and for all that was asked of it.

It is the true world beside which the journal is held. An item is ordered by one decision only, so that its name tells
which call an order belongs to; made again by a redo, it is another order of the same item.

As a file named by `$SHOP` its functions can be imported: `shop:cancel`, `shop:look_for`, by processes that are killed.
"""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import BaseTool
from scripted import Graph, call, quick_tool, tool_node_graph

from agentgit import NotDone, ToolInvocation
from agentgit.demo import ScriptedModel
from agentgit.effects import Effect
from agentgit.effects.effects import COMPENSABLE, IRREVERSIBLE, REVERSIBLE

DECLARED = ("order", "pay", "mail")
"""The tools whose effects are declared; of `note` nothing is."""

UNDOABLE = ("order", "pay")

BEFORE, AFTER, REFUSED = "before", "after", "refused"
"""When a call that fails does so: without having acted, having acted, or without and saying so."""


class Broken(RuntimeError):
    """What the shop answers where it was told to fail."""


class Shop:
    """One shop.

    Args:
        path: of its file; it is made if it is not there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.faults: dict[str, str] = {}
        """Items whose next order fails, and when."""
        self.stuck: dict[str, str] = {}
        """Items whose orders cannot be cancelled until they are taken out of here, and when that fails."""
        self._write("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, tool, item, standing)")
        self._write("CREATE TABLE IF NOT EXISTS asked (what, item)")

    # -- what the tools do

    def act(self, name: str, item: str) -> dict[str, Any]:
        """Do what a tool does; give its result."""
        fault = self.faults.pop(item, None)
        self._write("INSERT INTO asked VALUES (?, ?)", name, item)
        if fault == REFUSED:
            raise NotDone(f"{name} {item} was refused")
        if fault == BEFORE:
            raise Broken(f"the shop was not reached for {name} {item}")
        order = self._write("INSERT INTO orders (tool, item, standing) VALUES (?, ?, 1)", name, item)
        if fault == AFTER:
            raise Broken(f"the answer to {name} {item} was lost")
        return {"order": order, "item": item}

    def cancel(self, args: dict[str, Any], result: Any) -> None:
        """Undo `order` or `pay`; an order that does not stand cannot be cancelled."""
        item, fault = args["item"], self.stuck.get(args["item"])
        order = result["order"] if result is not None else (self._newest(item) or 0)
        self._write("INSERT INTO asked VALUES ('cancel', ?)", item)
        if fault == BEFORE:
            raise Broken(f"{item} is stuck")
        if not self.stands(order):
            raise Broken(f"order {order} of {item} does not stand")
        self._write("UPDATE orders SET standing = 0 WHERE id = ?", order)
        self._write("INSERT INTO asked VALUES ('cancelled', ?)", item)
        if fault == AFTER:
            raise Broken(f"the answer to cancelling {item} was lost")

    def look_for(self, call: ToolInvocation) -> dict[str, Any] | bool:
        """Verify: tell the newest order of an item that stands, False if none does."""
        if call.result is not None:
            return self.stands(call.result["order"])
        order = self._newest(call.args["item"])
        return {"order": order, "item": call.args["item"]} if order else False

    def _newest(self, item: str) -> int | None:
        """Find the newest order of an item that stands: all there is to go by where no result was recorded."""
        found = self._read("SELECT max(id) FROM orders WHERE item = ? AND standing", item)
        return found[0][0]

    # -- what a person sees who looks

    def stands(self, order: int) -> bool:
        """Tell whether an order is in the world."""
        return bool(self._read("SELECT 1 FROM orders WHERE id = ? AND standing", order))

    @property
    def standing(self) -> Counter[str]:
        """How many orders of each item are in the world."""
        return Counter(item for (item,) in self._read("SELECT item FROM orders WHERE standing"))

    def orders(self, item: str) -> list[int]:
        """List the orders of an item that are in the world, oldest first."""
        return [order for (order,) in self._read("SELECT id FROM orders WHERE item = ? AND standing ORDER BY id", item)]

    def asked(self, what: str) -> Counter[str]:
        """How often something was asked for, by item: a tool, or `cancel`; and what was really `cancelled`."""
        return Counter(item for (item,) in self._read("SELECT item FROM asked WHERE what = ?", what))

    # -- for agentgit

    def tools(self) -> list[BaseTool]:
        """Make the tools: order and pay can be undone, mail cannot, of note nobody says anything."""
        return [quick_tool(function) for function in self._functions()]

    def effects(self, *, verify: bool = False) -> dict[str, Effect]:
        """Declare them, with functions of this process."""
        return _declared(self.cancel, self.look_for if verify else None)

    def graph(self) -> Graph:
        """Build a graph that does what the user's message says; see `wish`."""
        return tool_node_graph(ScriptedModel(rule=_obey), self.tools(), handle_tool_errors=True)

    def _functions(self) -> list[Callable[..., Any]]:
        def order(item: str) -> dict[str, Any]:
            """Order an item."""
            return self.act("order", item)

        def pay(item: str) -> dict[str, Any]:
            """Pay for an item."""
            return self.act("pay", item)

        def mail(item: str) -> dict[str, Any]:
            """Mail about an item."""
            return self.act("mail", item)

        def note(item: str) -> dict[str, Any]:
            """Note an item."""
            return self.act("note", item)

        return [order, pay, mail, note]

    # -- its file; every statement is on the disk when it returns

    def _write(self, statement: str, *values: Any) -> int:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous=OFF")  # what is killed is a process, not the machine
            return int(file.execute(statement, values).lastrowid or 0)

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as file:
            return file.execute(query, values).fetchall()


# -- what is wished


def wish(*batches: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Write the input of a turn: batches of (tool, item), one after the other."""
    return {"messages": [("user", orjson.dumps(batches).decode())]}


def _obey(messages: Sequence[Any]) -> AIMessage:
    """Do what the last message of the user says, one batch after the other."""
    last = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
    batches = orjson.loads(str(messages[last].content))
    done = sum(isinstance(message, AIMessage) for message in messages[last:])
    if done >= len(batches):
        return AIMessage("done")
    return AIMessage("", tool_calls=[call(name, item=item) for name, item in batches[done]])


# -- the same for processes that know only the path: these are found by `shop:cancel`


def here() -> Shop:
    """Give the shop of this process."""
    return Shop(os.environ["SHOP"])


def cancel(args: dict[str, Any], result: Any) -> None:
    """Undo, in the shop of this process."""
    here().cancel(args, result)


def look_for(invocation: ToolInvocation) -> dict[str, Any] | bool:
    """Verify, in the shop of this process."""
    return here().look_for(invocation)


def imported(*, verify: bool) -> dict[str, Effect]:
    """Declare the tools, with functions that any process can import."""
    return _declared("shop:cancel", "shop:look_for" if verify else None)


def _declared(undo: Any, look: Any) -> dict[str, Effect]:
    return {
        "order": Effect(REVERSIBLE, undo, verify=look),
        "pay": Effect(COMPENSABLE, undo, verify=look),
        "mail": Effect(IRREVERSIBLE, verify=look),
    }
