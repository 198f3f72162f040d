"""Two tools called `order`, one that the graph shows and one that it does not, with a ledger outside as the truth."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

import agentgit
from agentgit import RollbackBlocked, compensable, effect, reversible
from agentgit.demo import ScriptedModel

KINDS = ("reversible", "compensable", "irreversible", "read_only")


class Ledger:
    """A file with a line for each thing that a tool or an undo function really did."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)

    def write(self, *words: str) -> None:
        with self.path.open("a") as file:
            file.write(" ".join(words) + "\n")

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def standing(self) -> list[str]:
        """Return the orders that were not cancelled, and each cancellation of one that does not stand."""
        orders: list[str] = []
        for what, order in (line.split(" ", 1) for line in self.lines()):
            if what == "order":
                orders.append(order)
            elif order in orders:
                orders.remove(order)
            else:
                orders.append(f"cancelled too often: {order}")
        return orders


class Desk:
    """Somebody who orders: an object that nothing tells apart from another one of its class after a restart."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


def declared(kind: str, who: str | Desk, ledger: Ledger) -> Any:
    """Return the effect of a tool whose undo cancels what this tool ordered, whatever it is called with."""

    def cancel(args: Any, result: Any) -> None:
        ledger.write("cancel", str(who), args["item"])

    return {"reversible": reversible, "compensable": compensable}[kind](cancel) if kind in KINDS[:2] else effect(kind)


def placing(kind: str, who: str | Desk, ledger: Ledger) -> Callable[[str], str]:
    def place(item: str) -> str:
        if kind != "read_only":
            ledger.write("order", str(who), item)
        return f"{who} {item}"

    return place


def visible_tool(kind: str, ledger: Ledger) -> BaseTool:
    place = placing(kind, "visible", ledger)

    @tool("order")
    @declared(kind, "visible", ledger)
    def visible_order(item: str) -> str:
        """Order something."""
        return place(item)

    return visible_order


def hidden_tool(kind: str, ledger: Ledger) -> BaseTool:
    place = placing(kind, "hidden", ledger)

    @tool("order")
    @declared(kind, "hidden", ledger)
    def hidden_order(item: str) -> str:
        """Order something elsewhere."""
        return place(item)

    return hidden_order


def made_tool(kind: str, who: str, ledger: Ledger) -> BaseTool:
    """Return a tool of a factory, whose functions all have the same names and hold the same plain values."""
    return tool_of(kind, Desk(who), ledger)


def tool_of(kind: str, who: str | Desk, ledger: Ledger) -> BaseTool:
    """Return a tool of a factory. Its functions hold who orders: a plain value, or an object."""
    place = placing(kind, who, ledger)

    @tool("order")
    @declared(kind, who, ledger)
    def order(item: str) -> str:
        """Order something."""
        return place(item)

    return order


class Order(BaseTool):
    """A tool of a class of its own."""

    name: str = "order"
    description: str = "Order something."
    shop: str | Desk
    ledger: Any

    def _run(self, item: str) -> str:
        self.ledger.write("order", str(self.shop), item)
        return item


def shop_of(form: str, shop: str | Desk, kind: str, ledger: Ledger, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Build a graph with the tool of one shop, and the effects to wrap it with."""

    def cancel(args: Any, result: Any) -> None:
        ledger.write("cancel", str(shop), args["item"])

    effect_of_shop = {"reversible": reversible, "compensable": compensable}[kind](cancel, **options)

    @tool
    def order(item: str) -> str:
        """Order something."""
        ledger.write("order", str(shop), item)
        return item

    ordering = Order(shop=shop, ledger=ledger) if form == "class" else order
    if form == "decorator":
        return shown([effect_of_shop(ordering)]), {}
    return shown([ordering]), {"order": effect_of_shop}


def wants(name: str, item: str) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": name, "args": {"item": item}, "id": None, "type": "tool_call"}])


def obeying(name: str) -> ScriptedModel:
    """Return a model that has a tool order what the user names."""
    return ScriptedModel(
        rule=lambda messages: (
            AIMessage(messages[-1].text) if isinstance(messages[-1], ToolMessage) else wants(name, messages[-1].text)
        )
    )


def clerk(messages: Any) -> AIMessage:
    """Order `visible chair` with the tool that the graph shows, and `hidden chair` with the other one."""
    last = messages[-1]
    if isinstance(last, ToolMessage):
        return AIMessage("done")
    name, item = last.text.split(" ", 1)
    return wants("order" if name == "visible" else "ask", item)


def shown(tools: list[BaseTool], then: Any = None) -> Any:
    model = ScriptedModel(rule=clerk)
    builder = StateGraph(MessagesState)
    builder.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    builder.add_node("tools", ToolNode(tools, handle_tool_errors=False))
    builder.add_edge(START, "model")
    builder.add_conditional_edges("model", tools_condition)
    if then is None:
        builder.add_edge("tools", "model")
    else:
        builder.add_node("then", then)
        builder.add_edge("tools", "then")
    return builder.compile()


def asking(call: Callable[[str], str], acall: Any = None) -> BaseTool:
    """Return the tool `ask`, which lets a function order something."""

    @tool
    @effect("state")
    def ask(item: str) -> str:
        """Let somebody else order."""
        return call(item)

    if acall is not None:

        async def aask(item: str) -> str:
            return await acall(item)

        ask.coroutine = aask
    return ask


def by_subagent(visible: BaseTool, hidden: BaseTool) -> Any:
    desk = create_agent(obeying("order"), [hidden])

    def call(item: str) -> str:
        return desk.invoke({"messages": [("user", item)]})["messages"][-1].text

    async def acall(item: str) -> str:
        return (await desk.ainvoke({"messages": [("user", item)]}))["messages"][-1].text

    return shown([visible, asking(call, acall)])


def by_closure(visible: BaseTool, hidden: BaseTool) -> Any:
    async def acall(item: str) -> str:
        return await hidden.ainvoke({"item": item})

    return shown([visible, asking(lambda item: hidden.invoke({"item": item}), acall)])


def by_dict(visible: BaseTool, hidden: BaseTool) -> Any:
    desks = {"tools": [{"order": hidden}]}
    return shown([visible, asking(lambda item: desks["tools"][0]["order"].invoke({"item": item}))])


def by_helper(visible: BaseTool, hidden: BaseTool) -> Any:
    class Desk:
        def __init__(self) -> None:
            self.by_name = {"order": hidden}

        def help_out(self, item: str) -> str:
            return self.by_name["order"].invoke({"item": item})

    desk = Desk()

    def helped(item: str) -> str:
        return desk.help_out(item)

    return shown([visible, asking(lambda item: helped(item))])


def by_node(visible: BaseTool, hidden: BaseTool) -> Any:
    @tool
    @effect("state")
    def ask(item: str) -> str:
        """Let the next node order."""
        return item

    class Node:
        def __call__(self, state: Any) -> Any:
            if state["messages"][-1].name == "ask":
                hidden.invoke({"item": state["messages"][-1].text})
            return {"messages": [("ai", "done")]}

    return shown([visible, ask], Node())


def by_override(visible: BaseTool, hidden: BaseTool) -> Any:
    class Swap(AgentMiddleware):
        def wrap_tool_call(self, request: Any, handler: Any) -> Any:
            return handler(self.swapped(request))

        async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
            return await handler(self.swapped(request))

        def swapped(self, request: Any) -> Any:
            is_hidden = request.tool_call["args"]["item"].startswith("hidden")
            return request.override(tool=hidden) if is_hidden else request

    def rule(messages: Any) -> AIMessage:
        return AIMessage("done") if isinstance(messages[-1], ToolMessage) else wants("order", messages[-1].text)

    return create_agent(ScriptedModel(rule=rule), [visible], middleware=[Swap()])


FORMS: dict[str, Callable[[BaseTool, BaseTool], Any]] = {
    "subagent": by_subagent,
    "closure": by_closure,
    "dict": by_dict,
    "helper": by_helper,
    "node": by_node,
    "override": by_override,
    "factory": by_closure,
}


def graph_of(form: str, visible: str, hidden: str, ledger: Ledger) -> Any:
    """Build a graph that shows one tool and reaches another one of the same name in some form."""
    if form == "factory":
        return by_closure(made_tool(visible, "visible", ledger), made_tool(hidden, "hidden", ledger))
    return FORMS[form](visible_tool(visible, ledger), hidden_tool(hidden, ledger))


def pairs() -> list[tuple[str, str]]:
    return [(visible, hidden) for visible in KINDS for hidden in KINDS]


def session_name(form: str, visible: str, hidden: str) -> str:
    return f"{form}-{visible}-{hidden}"


def go_back(agent: Any) -> list[str]:
    """Roll back to the beginning, and return the effects of the calls that block it."""
    try:
        agent.rollback("start")
    except RollbackBlocked as error:
        return sorted(step.invocation.effect for step in error.plan.steps if step.action == "block")
    return []


def go_back_everywhere(address: str, folder: str) -> None:
    """Go back in each session of a database, and write the effects of the calls that block it, by session."""
    blocked = {}
    with agentgit.open(address) as repo:
        for form in FORMS:
            for visible, hidden in pairs():
                name = session_name(form, visible, hidden)
                blocked[name] = go_back(repo.wrap(graph_of(form, visible, hidden, Ledger(Path(folder) / name)), name))
    sys.stdout.write(json.dumps(blocked))


def tool_of_key(key: str, ledger: Ledger) -> BaseTool:
    """Return a tool that holds a key."""

    @tool
    def order(item: str) -> str:
        """Order something."""
        ledger.write("order", key, item)
        return item

    return order
