"""Common helpers: a world made of lists, tools that change it, and all kinds of graphs with a scripted model.

Example: `world = World(); graph = tool_node_graph(scripted(call("add", item="chair"), "done"), world.tools())`.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, AnyMessage, BaseMessage, ToolCall
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.pregel import Pregel
from langgraph.types import RetryPolicy, interrupt

from agentgit import compensable, reversible
from agentgit.demo import ScriptedModel
from agentgit.effects import Effect

Graph = Pregel[Any, Any, Any, Any]


def call(name: str, /, call_id: str | None = None, **args: Any) -> ToolCall:
    """Build one tool call; without an id, the model generates a new one."""
    return ToolCall(name=name, args=args, id=call_id, type="tool_call")


def calls(*wanted: ToolCall, text: str = "") -> AIMessage:
    """Build an AI message that asks for all tool calls at once."""
    return AIMessage(text, tool_calls=list(wanted))


def scripted(*replies: AIMessage | str | ToolCall) -> ScriptedModel:
    """Make a model from its replies: a text, an AI message, or one `call(...)`."""
    return ScriptedModel(replies=[calls(reply) if isinstance(reply, dict) else reply for reply in replies])


def saying(*replies: AIMessage | str | ToolCall) -> ScriptedModel:
    """Make a model that gives its replies one after the other, whatever other models have said before."""
    rest = iter(
        [calls(one) if isinstance(one, dict) else AIMessage(one) if isinstance(one, str) else one for one in replies]
    )
    return ScriptedModel(rule=lambda messages: next(rest))


def say(text: str = "go") -> dict[str, Any]:
    """Build the input of a turn: one user message."""
    return {"messages": [("user", text)]}


def obedient() -> ScriptedModel:
    """Make a model that obeys user messages like `add chair; charge 5; look`; other text is chat."""

    def rule(messages: Sequence[BaseMessage]) -> AIMessage:
        last = messages[-1]
        wanted = [_wanted(order.split()) for order in str(last.content).split(";")] if last.type == "human" else []
        return calls(*(one for one in wanted if one is not None), text="done" if last.type == "tool" else "hm")

    return ScriptedModel(rule=rule)


def _wanted(words: list[str]) -> ToolCall | None:
    arguments = {"add": "item", "charge": "amount", "send": "text", "note": "text", "fail": "why"}
    arguments["add_if_approved"] = "item"
    name = words[0] if words else ""
    if name == "look":
        return call("look")
    if name not in arguments:
        return None
    return call(name, **{arguments[name]: int(words[1]) if name == "charge" else words[1]})


_SCHEMAS: dict[str, Any] = {}
"""The argument schemas of tools, by the names of their functions."""


def quick_tool(function: Callable[..., Any]) -> BaseTool:
    """Make a tool from a function; its argument schema is cached by the function's name, which saves 6 ms."""
    name = f"{function.__module__}.{function.__qualname__}"
    made = tool(function, args_schema=_SCHEMAS.get(name))
    _SCHEMAS[name] = made.args_schema
    return made


class World:
    """A world made of lists, and the tools that act on it.

    `items` and `charges` are the current state; `sent` and `notes` cannot be undone. `log` has the (name, args) of each
    actual call of a tool or an undo function. `undone` has the (name, args, result) of each successful undo. An undo of
    an item in `broken` raises.
    """

    def __init__(self) -> None:
        self.items: list[str] = []
        self.charges: list[int] = []
        self.sent: list[str] = []
        self.notes: list[str] = []
        self.log: list[tuple[str, dict[str, Any]]] = []
        self.undone: list[tuple[str, dict[str, Any], Any]] = []
        self.broken: set[str] = set()

    def happened(self, name: str) -> list[dict[str, Any]]:
        """Return the arguments of every actual call of one tool or undo function."""
        return [args for called, args in self.log if called == name]

    def remove(self, args: dict[str, Any], result: Any) -> None:
        """Undo `add`; raise if the item is already removed."""
        self._undo("remove", args, result, args["item"])
        self.items.remove(args["item"])

    def refund(self, args: dict[str, Any], result: Any) -> None:
        """Undo `charge`."""
        self._undo("refund", args, result, str(args["amount"]))
        self.charges.remove(args["amount"])

    def _undo(self, name: str, args: dict[str, Any], result: Any, what: str) -> None:
        self.log.append((name, args))
        if what in self.broken:
            raise RuntimeError(f"{what} is stuck")
        self.undone.append((name, args, result))

    def effects(self, **more: Effect | str) -> dict[str, Effect | str]:
        """Declare the effects of all tools except `note`; `more` adds or replaces declarations."""
        undo = reversible(self.remove)
        declared: dict[str, Effect | str] = {"add": undo, "add_later": undo, "add_if_approved": undo, "fail": undo}
        declared |= {"charge": compensable(self.refund), "look": "read_only", "send": "irreversible"}
        return declared | more

    def tools(self) -> list[BaseTool]:
        """Make the tools: add, charge, look, send, note, fail, add_if_approved (asks a person), add_later (async)."""
        return [quick_tool(function) for function in self._functions()]

    def tool(self, name: str) -> BaseTool:
        """Make one of the tools."""
        return next(quick_tool(function) for function in self._functions() if function.__name__ == name)

    def _put(self, name: str, item: str) -> dict[str, Any]:
        self.log.append((name, {"item": item}))
        self.items.append(item)
        return {"item": item, "number": len(self.items)}

    def _functions(self) -> list[Callable[..., Any]]:
        def add(item: str) -> dict[str, Any]:
            """Put an item into the world."""
            return self._put("add", item)

        async def add_later(item: str) -> dict[str, Any]:
            """Put an item into the world, without blocking."""
            await asyncio.sleep(0)
            return self._put("add_later", item)

        def add_if_approved(item: str) -> dict[str, Any] | str:
            """Put an item into the world if a person says yes."""
            return self._put("add_if_approved", item) if interrupt({"add": item}) == "yes" else "not approved"

        def charge(amount: int) -> dict[str, Any]:
            """Take money."""
            self.log.append(("charge", {"amount": amount}))
            self.charges.append(amount)
            return {"charged": amount}

        def look() -> str:
            """Look at the world."""
            self.log.append(("look", {}))
            return ", ".join(self.items) or "nothing"

        def send(text: str) -> str:
            """Say something that cannot be unsaid."""
            self.log.append(("send", {"text": text}))
            self.sent.append(text)
            return "sent"

        def note(text: str) -> str:
            """Write something down; nobody declares this tool."""
            self.log.append(("note", {"text": text}))
            self.notes.append(text)
            return "noted"

        def fail(why: str) -> str:
            """Fail, always."""
            self.log.append(("fail", {"why": why}))
            raise RuntimeError(why)

        return [add, add_later, add_if_approved, charge, look, send, note, fail]


def _asking(model: ScriptedModel) -> RunnableLambda[MessagesState, dict[str, Any]]:
    """Make the node that asks the model, sync and async."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"])]}

    async def aask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return RunnableLambda(ask, afunc=aask)


def node_graph(act: Any, **options: Any) -> Graph:
    """Build a graph with one node, `act`; the options are those of `add_node`."""
    return StateGraph(MessagesState).add_node("act", act, **options).add_edge(START, "act").compile()


def tool_node_graph(
    model: ScriptedModel,
    tools: Sequence[BaseTool],
    checkpointer: Any = None,
    *,
    handle_tool_errors: Any = False,
    retry: RetryPolicy | None = None,
    schema: type = MessagesState,
    **settings: Any,
) -> Graph:
    """Build model → ToolNode → model; by default a tool that raises ends the turn.

    Args:
        checkpointer: A saver; None for that of the caller; True for a subgraph that keeps its own thread.
        retry: When LangGraph runs all calls of the ToolNode again.
        settings: Other settings of the ToolNode.
    """
    graph = StateGraph(schema)
    graph.add_node("model", _asking(model))
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=handle_tool_errors, **settings), retry_policy=retry)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile(checkpointer=checkpointer)


def obeying(repo: Any, world: World | None = None, session: str = "s", **options: Any) -> Any:
    """Wrap a graph that does what it is told, with the tools and the effects of a world."""
    world = world or World()
    return repo.wrap(tool_node_graph(obedient(), world.tools()), session, effects=world.effects(), **options)


def agent_graph(model: ScriptedModel, tools: Sequence[BaseTool], checkpointer: Any = None, **options: Any) -> Graph:
    """Build a graph with LangChain's `create_agent`, which runs each tool call as a separate task."""
    from langchain.agents import create_agent  # an optional dependency

    return create_agent(model, list(tools), checkpointer=checkpointer, **options)


def functional_graph(model: ScriptedModel, tools: Sequence[BaseTool], checkpointer: Any = None) -> Graph:
    """Build a graph with the functional API: model and tool calls are tasks, `previous` is the conversation."""
    named = {made.name: made for made in tools}

    @task
    def ask(messages: list[AnyMessage]) -> Any:
        return model.invoke(messages)

    @task
    def act(wanted: ToolCall) -> Any:
        return named[wanted["name"]].invoke(wanted)

    @entrypoint(checkpointer=checkpointer)
    def agent(inputs: dict[str, Any], *, previous: Any = None) -> Any:
        messages: Any = add_messages(previous or [], inputs["messages"])
        while (reply := ask(messages).result()).tool_calls:
            running = [act(wanted) for wanted in reply.tool_calls]
            messages = add_messages(messages, [reply, *(done.result() for done in running)])
        messages = add_messages(messages, [reply])
        return entrypoint.final(value={"messages": messages}, save=messages)

    return agent


class Visited(MessagesState):
    """A conversation and the number of turns."""

    visits: Annotated[int, operator.add]


def nested_graph(
    model: ScriptedModel, tools: Sequence[BaseTool], checkpointer: Any = None, *, own_thread: bool = False
) -> Graph:
    """Build an outer graph that counts turns in `visits` and has a `tool_node_graph` as its node `agent`.

    Args:
        own_thread: True if the subgraph keeps its own history (`checkpointer=True`).
    """
    graph = StateGraph(Visited)
    graph.add_node("count", lambda state: {"visits": 1})
    graph.add_node("agent", tool_node_graph(model, tools, checkpointer=True if own_thread else None))
    graph.add_edge(START, "count")
    graph.add_edge("count", "agent")
    return graph.compile(checkpointer=checkpointer)


GRAPHS: dict[str, Callable[..., Graph]] = {
    "tool_node": tool_node_graph,
    "create_agent": agent_graph,
    "functional": functional_graph,
    "nested": nested_graph,
}
"""Every kind of graph, for `@pytest.mark.parametrize("kind", GRAPHS)`."""
