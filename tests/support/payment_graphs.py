"""Graphs that pay in their own code, in processes that are killed; the ledger is a file outside agentgit.

A life is a turn that is killed once or twice, at any moment before or after a write, and continues in new processes
until it ends. A call with an unknown outcome is resolved from the ledger, as a person would do.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Annotated, Any, TypedDict

import points
from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.tools import tool
from langgraph.func import entrypoint, task
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send
from scripted import call, calls, saying, scripted

import agentgit
from agentgit import Fenced, effect

WANTED = ["Ann", "Ann", "Bob"]
"""The names to pay; one name occurs twice."""

DATABASE = "agentgit.db"


class Ledger:
    """The actual payments, one line each.

    Args:
        path: The path of the ledger file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def add(self, name: str) -> int:
        """Record a payment, and return its number."""
        with self.path.open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        return len(self.lines())

    def lines(self) -> list[str]:
        """List the paid names."""
        return self.path.read_text("utf-8").splitlines() if self.path.exists() else []


# -- the graphs


def pay_of(ledger: Ledger) -> Any:
    @tool
    def pay(name: str) -> dict[str, Any]:
        """Pay somebody."""
        moment()
        number = ledger.add(name)
        moment()
        return {"receipt": number}

    return pay


def in_a_node(pay: Any) -> Any:
    def act(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", json.dumps([pay.invoke({"name": name}) for name in WANTED]))]}

    return _line(act)


def in_an_async_node(pay: Any) -> Any:
    """Build a graph whose async node awaits two calls of the tool and makes one sync call."""

    async def act(state: MessagesState) -> dict[str, Any]:
        first = [await pay.ainvoke({"name": name}) for name in WANTED[:2]]
        return {"messages": [("ai", json.dumps([*first, pay.invoke({"name": WANTED[2]})]))]}

    return _line(act)


def with_new_ids(pay: Any) -> Any:
    def act(state: MessagesState) -> dict[str, Any]:
        made = [pay.invoke({**call("pay", os.urandom(8).hex(), name=name)}) for name in WANTED]
        return {"messages": [("ai", str([message.content for message in made]))]}

    return _line(act)


def in_tasks(pay: Any) -> Any:
    """Build a graph with the functional API that runs each payment in a task."""

    @task
    def act(name: str) -> Any:
        return pay.invoke({"name": name})

    @entrypoint()
    def agent(given: Any) -> Any:
        running = [act(name) for name in WANTED[:2]]
        return [*(one.result() for one in running), act(WANTED[2]).result()]

    return agent


class Sent(TypedDict):
    """The state that the workers update."""

    messages: Annotated[list[Any], lambda old, new: [*(old or []), *new]]


def in_workers(pay: Any) -> Any:
    """Build a graph whose first node sends each payment to a worker."""
    graph = StateGraph(Sent).add_node("plan", lambda state: {"messages": []}).add_edge(START, "plan")
    graph.add_node("worker", lambda name: {"messages": [json.dumps(pay.invoke({"name": name}))]})
    graph.add_conditional_edges("plan", lambda state: [Send("worker", name) for name in WANTED], ["worker"])
    return graph.compile()


def in_a_subgraph(pay: Any) -> Any:
    return _line(_two_steps(pay).compile())


def in_a_called_graph(pay: Any, **options: Any) -> Any:
    inner = _two_steps(pay).compile(**options)
    return _line(lambda state: {"messages": inner.invoke({"messages": []})["messages"]})


def in_a_graph_without_memory(pay: Any) -> Any:
    return in_a_called_graph(pay, checkpointer=False)


def in_a_tool(pay: Any) -> Any:
    """Build an agent with a tool that runs another agent and has no declared effect."""
    asked = [calls(*(call("pay", f"c{number}", name=name) for number, name in enumerate(WANTED))), "paid"]

    @tool
    def delegate(what: str) -> str:
        """Let somebody do it."""
        inner = create_agent(scripted(*asked), [pay])
        return str(inner.invoke({"messages": [("user", what)]})["messages"][-1].content)

    return create_agent(scripted(call("delegate", "d0", what="pay"), "done"), [delegate])


def in_a_batch_of_a_tool(pay: Any) -> Any:
    return _delegating(lambda names: pay.batch([{"name": name} for name in names], {"max_concurrency": 4}), WANTED)


def gathered_in_a_tool(pay: Any) -> Any:
    async def gather(names: list[str]) -> list[Any]:
        return await asyncio.gather(*(pay.ainvoke({"name": name}) for name in names))

    return _delegating(lambda names: asyncio.run(gather(names)), WANTED)


def in_two_agents(pay: Any) -> Any:
    """Build a graph whose ToolNode runs two agents at once, which are asked for in one message."""

    def act(names: list[str]) -> str:
        asked = calls(*(call("pay", f"c{number}", name=name) for number, name in enumerate(names)))
        return str(create_agent(saying(asked, "paid"), [pay]).invoke({"messages": [("user", "pay")]})["messages"])

    return _delegating(act, WANTED[:1], WANTED[1:])


def in_gathered_agents(pay: Any, **config: Any) -> Any:
    """Build a graph with a tool that runs two agents at once, which begin in another order each time."""

    async def ask(names: list[str]) -> Any:
        await asyncio.sleep(random.uniform(0.0, 0.02))  # noqa: S311  # no secret
        agent = create_agent(scripted(calls(*(call("pay", name=name) for name in names)), "paid"), [pay])
        return await agent.ainvoke({"messages": [("user", str(names))]}, config or None)

    async def gather(names: list[str]) -> list[Any]:
        return await asyncio.gather(ask(names[:1]), ask(names[1:]))

    return _delegating(lambda names: asyncio.run(gather(names)), WANTED)


def in_gathered_agents_with_own_threads(pay: Any) -> Any:
    return in_gathered_agents(pay, configurable={"thread_id": "desk"})


def in_threads_of_a_node(pay: Any) -> Any:
    """Build a graph with a node that pays in threads that get its context, all at once."""

    def act(state: MessagesState) -> dict[str, Any]:
        with ThreadPoolExecutor() as pool:
            made = [pool.submit(copy_context().run, pay.invoke, {"name": name}) for name in WANTED]
        return {"messages": [("ai", json.dumps([one.result() for one in made]))]}

    return _line(act)


def _delegating(act: Callable[[list[str]], Any], *groups: list[str]) -> Any:
    """Build a graph whose ToolNode calls a tool for each group of names at once."""

    @tool
    def delegate(names: list[str]) -> str:
        """Let somebody do it."""
        return str(act(names))

    asked = calls(*(call("delegate", f"d{number}", names=names) for number, names in enumerate(groups)))
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asked.model_copy(update={"id": "asked"})]})
    graph.add_node("tools", ToolNode([delegate]))
    return graph.add_edge(START, "model").add_edge("model", "tools").compile()


def with_middleware(pay: Any) -> Any:
    """Build an agent whose middleware makes each call twice, and a third time with different arguments."""

    @wrap_tool_call
    def again(request: Any, handler: Any) -> Any:
        handler(request)
        handler(request)
        return handler(request.override(tool_call={**request.tool_call, "args": {"name": "Bob"}}))

    return create_agent(scripted(call("pay", "c0", name="Ann"), "done"), [pay], middleware=[again])


def in_a_tool_node(pay: Any) -> Any:
    asked = calls(*(call("pay", f"c{number}", name=name) for number, name in enumerate(WANTED)))
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asked.model_copy(update={"id": "asked"})]})
    graph.add_node("tools", ToolNode([pay]))
    return graph.add_edge(START, "model").add_edge("model", "tools").compile()


def _two_steps(pay: Any) -> Any:
    def paying(names: list[str]) -> Any:
        return lambda state: {"messages": [("ai", str([pay.invoke({"name": name}) for name in names]))]}

    graph = StateGraph(MessagesState).add_node("one", paying(WANTED[:1])).add_node("two", paying(WANTED[1:]))
    return graph.add_edge(START, "one").add_edge("one", "two")


def _line(act: Any) -> Any:
    graph = StateGraph(MessagesState).add_node("plan", lambda state: {"messages": [("ai", "I pay")]})
    graph.add_node("act", act)
    return graph.add_edge(START, "plan").add_edge("plan", "act").compile()


SHAPES: dict[str, Callable[[Any], Any]] = {
    made.__name__: made
    for made in (
        in_a_node, in_an_async_node, with_new_ids, in_tasks, in_workers, in_a_subgraph, in_a_called_graph,
        in_a_graph_without_memory, in_a_tool, in_a_batch_of_a_tool, gathered_in_a_tool, in_two_agents,
        in_gathered_agents, in_gathered_agents_with_own_threads, in_threads_of_a_node, with_middleware, in_a_tool_node,
    )
}  # fmt: skip
ASYNC = ("in_an_async_node",)


# -- killed processes


_left: list[int] = []
_moments = [0]


def moment() -> None:
    """Count a moment at which a process can be killed, and kill this process at the chosen moment."""
    _moments[0] += 1
    if _left and _moments[0] == _left[0]:
        os.kill(os.getpid(), signal.SIGKILL)


def hooked() -> None:
    """Add a moment before and after each write."""
    for point in (points.WRITE_INTENT, points.WRITE_OUTCOME, points.SAVE_STATE, points.SAVE_TASK):
        setattr(*point.place, _with_moments(getattr(*point.place)))


def _with_moments(plain: Any) -> Any:
    def hook(*args: Any, **kwargs: Any) -> Any:
        moment()
        value = plain(*args, **kwargs)
        moment()
        return value

    return hook


# -- a life


def turn(folder: Path, shape: str, die_at: int) -> None:
    """Start or continue the turn in this process, until it ends or the process is killed."""
    ledger = Ledger(folder / "ledger")
    _moments[0], _left[:] = 0, [die_at]
    effects = {"pay": effect("irreversible")}
    with agentgit.open(f"sqlite:///{folder / DATABASE}") as repo:
        agent = repo.wrap(SHAPES[shape](pay_of(ledger)), "s", effects=effects, check_effects=False)
        _settle(repo, ledger)
        given = None if agent.get_state().created_at else _given(shape)
        if given is not None:
            assert ledger.lines() == [], "it was paid before the turn was saved"
        try:
            asyncio.run(agent.ainvoke(given)) if shape in ASYNC else agent.invoke(given)
        except Fenced:
            sys.exit(3)
        (folder / "moments").write_text(str(_moments[0]))
        paid = [call for call in agent.tool_track() if call.tool_name == "pay"]
        _expect([call.args["name"] for call in paid if call.status == "done"], ledger)


def _given(shape: str) -> Any:
    return "go" if shape == "in_tasks" else {"messages": [("user", "go")]}


def _settle(repo: Any, ledger: Ledger) -> None:
    """Resolve the calls with an unknown outcome from the ledger, as a person would do."""
    if not repo.sessions():
        return
    track = repo.session("s").tool_track()
    paid = Counter(ledger.lines())
    done = Counter(call.args["name"] for call in track if call.status == "done" and call.tool_name == "pay")
    for lost in track:
        if lost.status == "unknown" and lost.tool_name == "pay":
            name = lost.args["name"]
            if paid[name] > done[name]:
                done[name] += 1
                repo.resolve(lost, "happened", result={"receipt": 0})
            else:
                repo.resolve(lost, "did_not_happen")


def _expect(recorded: list[str], ledger: Ledger) -> None:
    assert sorted(ledger.lines()) == sorted(WANTED), f"paid: {ledger.lines()}"
    assert sorted(recorded) == sorted(WANTED), f"recorded: {recorded}"


def exit_code(work: Callable[[], None]) -> int:
    """Run a function in a forked process, and return the exit code."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except SystemExit as left:
            code = int(left.code or 0)
        except BaseException as error:  # noqa: BLE001  # the parent process reports the failure
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def life(folder: Path, shape: str, *kills: int) -> int:
    """Run one life, check that each payment was made once, and return the actual number of kills.

    Args:
        folder: The folder of the life, which must not exist yet.
        shape: The name of the graph.
        kills: The moments at which the first processes are killed, one for each process.
    """
    folder.mkdir(parents=True)
    shutil.copy(folder.parent / DATABASE, folder / DATABASE)
    killed = 0
    for attempt in range(20):
        die_at = kills[attempt] if attempt < len(kills) else 0
        code = exit_code(lambda die_at=die_at: turn(folder, shape, die_at))
        if code == 0:
            return killed
        assert code in (-signal.SIGKILL, 3), f"{shape} {kills}: it ended with {code}"
        killed += code != 3
    raise AssertionError(f"{shape} {kills}: it does not end")


def main(folder: str, shape: str, kills: str) -> None:
    """Run several lives, each in its own folder.

    Args:
        folder: The parent folder.
        shape: The name of the graph.
        kills: A JSON list with the kills of each life; or `all`: each moment alone, and with two second kills.
    """
    hooked()
    base, count = Path(folder), 0
    base.mkdir(parents=True, exist_ok=True)
    assert exit_code(lambda: agentgit.open(f"sqlite:///{base / DATABASE}").close()) == 0
    (base / "warm").mkdir()
    turn(base / "warm", shape, 0)  # each forked process inherits the modules loaded here
    moments = int((base / "warm" / "moments").read_text())
    every = range(1, moments + 1)
    again = [[number, 1 + number * step % moments] for step in (5, 11) for number in every]
    plans = [*([number] for number in every), *again] if kills == "all" else json.loads(kills)
    for number, plan in enumerate(plans):
        count += life(base / str(number), shape, *plan)
    sys.stdout.write(json.dumps({"moments": moments, "kills": count}))
