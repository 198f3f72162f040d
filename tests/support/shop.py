"""A shop that survives killed processes: a SQLite file with a row for each order and for each request."""

from __future__ import annotations

import functools
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
from agentgit.effects.kinds import COMPENSABLE, IRREVERSIBLE, REVERSIBLE

DECLARED = ("order", "pay", "mail")
"""The tools whose effects are declared; `note` is undeclared."""

HIDDEN = "hidden"
"""What the shop notes as the tool of an order that a hidden tool made."""

SOLD = (*DECLARED, "note")
"""The tools that act on the shop."""

UNDOABLE = ("order", "pay")

BEFORE, AFTER, REFUSED = "before", "after", "refused"
"""The kinds of failures of a call: before it acts, after it acts, or with a report (`NotDone`) that it did not act."""


DESK = "desk"
"""The name that marks a batch for the node of this name; see `indirect_calls.with_desk`."""


class Broken(RuntimeError):
    """An injected failure of the shop."""


class Shop:
    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self.faults: dict[str, str] = {}
        """Items whose next order fails, with the kind of failure."""
        self.stuck: dict[str, str] = {}
        """Items whose cancellation fails while they are in this dict, with the kind of failure."""
        self._write("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, tool, item, standing)")
        self._write("CREATE TABLE IF NOT EXISTS asked (what, item)")

    # -- the work of the tools

    def act(self, name: str, item: str) -> dict[str, Any]:
        """Do the work of a tool, and return its result."""
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

    def cancel(self, args: dict[str, Any], result: Any, *, hidden: bool = False) -> None:
        """Undo `order` or `pay`; raise if the order is not active."""
        item, fault = args["item"], self.stuck.get(args["item"])
        order = result["order"] if result is not None else (self._newest(item) or 0)
        self._write("INSERT INTO asked VALUES ('cancel', ?)", item)
        if fault == BEFORE:
            raise Broken(f"{item} is stuck")
        if not self._read("SELECT 1 FROM orders WHERE id = ? AND (tool = ?) = ?", order, HIDDEN, hidden):
            self._write("INSERT INTO asked VALUES ('wrong undo', ?)", item)
        if not self.stands(order):
            raise Broken(f"order {order} of {item} does not stand")
        self._write("UPDATE orders SET standing = 0 WHERE id = ?", order)
        self._write("INSERT INTO asked VALUES ('cancelled', ?)", item)
        if fault == AFTER:
            raise Broken(f"the answer to cancelling {item} was lost")

    def take_back(self, args: dict[str, Any], result: Any) -> None:
        """Undo the hidden `pay`."""
        self.cancel(args, result, hidden=True)

    def look_for(self, call: ToolInvocation) -> dict[str, Any] | bool:
        """Verify a call.

        Return whether the recorded order is active. Without a recorded result, return the newest active order of the
        item, or False.
        """
        if call.result is not None:
            return self.stands(call.result["order"])
        order = self._newest(call.args["item"])
        return {"order": order, "item": call.args["item"]} if order else False

    def _newest(self, item: str) -> int | None:
        """Find the newest active order of an item; a call without a recorded result has no order number."""
        found = self._read("SELECT max(id) FROM orders WHERE item = ? AND standing", item)
        return found[0][0]

    # -- the actual state of the shop

    def stands(self, order: int) -> bool:
        return bool(self._read("SELECT 1 FROM orders WHERE id = ? AND standing", order))

    @property
    def standing(self) -> Counter[str]:
        return Counter(item for (item,) in self._read("SELECT item FROM orders WHERE standing"))

    @property
    def visible(self) -> set[str]:
        """The items with an active order that no hidden tool made."""
        return {item for (item,) in self._read("SELECT item FROM orders WHERE standing AND tool != ?", HIDDEN)}

    def orders(self, item: str) -> list[int]:
        return [order for (order,) in self._read("SELECT id FROM orders WHERE item = ? AND standing ORDER BY id", item)]

    def asked(self, what: str) -> Counter[str]:
        return Counter(item for (item,) in self._read("SELECT item FROM asked WHERE what = ?", what))

    # -- for agentgit

    def tools(self) -> list[BaseTool]:
        return [quick_tool(function) for function in self._functions()]

    def effects(self, *, verify: bool = False) -> dict[str, Effect]:
        """Declare the effects of the tools, with functions of this process."""
        return _declared(self.cancel, self.look_for if verify else None)

    def hidden_tools(self) -> list[BaseTool]:
        """Make tools with the names of others, and with other effects; see `hidden_effects`."""

        def order(item: str) -> dict[str, Any]:
            """Order an item for good."""
            return self.act(HIDDEN, item)

        def pay(item: str) -> dict[str, Any]:
            """Pay for an item elsewhere."""
            return self.act(HIDDEN, item)

        return [quick_tool(function) for function in (order, pay)]

    def hidden_effects(self, enclosing: str, *, verify: bool = False) -> dict[str, Effect]:
        """Declare the effects of the hidden tools that an enclosing tool calls."""
        look = self.look_for if verify else None
        return {
            f"{enclosing}.order": Effect(IRREVERSIBLE, verify=look),
            f"{enclosing}.pay": Effect(COMPENSABLE, self.take_back, verify=look),
        }

    def graph(self) -> Graph:
        """Build a graph that obeys the user's message; see `wish`."""
        return tool_node_graph(ScriptedModel(rule=obey), self.tools(), handle_tool_errors=True)

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

    # -- the database file; each statement is committed when it returns

    def _write(self, statement: str, *values: Any) -> int:
        with closing(sqlite3.connect(self.path, timeout=30, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous=OFF")  # tests kill processes, not the machine
            return int(file.execute(statement, values).lastrowid or 0)

    def _read(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.path, timeout=30)) as file:
            return file.execute(query, values).fetchall()


# -- the input of a turn


def wish(*batches: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Build the input of a turn: consecutive batches of (tool, item)."""
    return {"messages": [("user", orjson.dumps(batches).decode())]}


def obey(messages: Sequence[Any]) -> AIMessage:
    """Ask for the batches of the last user message, one batch per reply, except what is for the desk."""
    last = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
    batches = [batch for batch in orjson.loads(str(messages[last].content)) if batch[0][0] != DESK]
    done = sum(isinstance(message, AIMessage) for message in messages[last:])
    if done >= len(batches):
        return AIMessage("done")
    return AIMessage("", tool_calls=[call(name, item=item) for name, item in batches[done]])


# -- functions for processes that have only the path; imported by names like `shop:cancel`


def here() -> Shop:
    """Return the shop of this process, which tools are made for again and again."""
    return _shop_at(os.environ["SHOP"])


@functools.cache
def _shop_at(path: str) -> Shop:
    return Shop(path)


def cancel(args: dict[str, Any], result: Any) -> None:
    """Undo a call in the shop of this process."""
    here().cancel(args, result)


def look_for(invocation: ToolInvocation) -> dict[str, Any] | bool:
    """Verify a call in the shop of this process."""
    return here().look_for(invocation)


def imported(*, verify: bool) -> dict[str, Effect]:
    """Declare the effects of the tools, with functions that any process can import."""
    return _declared("shop:cancel", "shop:look_for" if verify else None)


def _declared(undo: Any, look: Any) -> dict[str, Effect]:
    return {
        "order": Effect(REVERSIBLE, undo, verify=look),
        "pay": Effect(COMPENSABLE, undo, verify=look),
        "mail": Effect(IRREVERSIBLE, verify=look),
    }
