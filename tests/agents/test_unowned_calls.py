"""Calls of tools in threads that a node starts: with the context they belong to the turn, without it to no turn."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from langchain_core.runnables.config import ContextThreadPoolExecutor
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from scripted import call, calls, say, scripted, tool_node_graph

import agentgit
from agentgit import Fenced, compensable, effect
from agentgit.errors import UnownedCall

SENTENCE = "it was called 2 times in threads that no turn owns: not recorded, check by hand"


class Shop:
    """A ledger outside, and the tool that writes to it."""

    def __init__(self) -> None:
        self.orders: list[str] = []
        self.gate = threading.Event()
        self.late: list[threading.Thread] = []
        shop = self

        @tool
        def create_order(item: str) -> str:
            """Order something."""
            shop.orders.append(item)
            return f"ordered {item}"

        self.tool: BaseTool = create_order

    def order(self) -> None:
        """Order two things."""
        for item in ("chair", "table"):
            self.tool.invoke({"item": item})

    def graph(self, start: Any, *others: BaseTool) -> Any:
        """Build a graph whose node starts a thread; the graph finds the tools in the node's closure."""
        order, held = self.order, [self.tool, *others]

        def act(state: MessagesState) -> dict[str, Any]:
            start(order)
            return {"messages": [("ai", f"done with {held[0].name}")]}

        return StateGraph(MessagesState).add_node("act", act).add_edge(START, "act").compile()

    def cancel(self, args: dict[str, Any], result: Any) -> None:
        """Undo an order."""
        self.orders.remove(args["item"])


@pytest.fixture
def shop():
    """Open a shop without orders."""
    return Shop()


def in_thread(order: Any) -> None:
    thread = threading.Thread(target=order)
    thread.start()
    thread.join()


def in_pool(order: Any) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(order).result()


def in_fresh_context(order: Any) -> None:
    contextvars.Context().run(order)


def with_context(order: Any) -> None:
    thread = threading.Thread(target=contextvars.copy_context().run, args=(order,))
    thread.start()
    thread.join()


def in_context_pool(order: Any) -> None:
    with ContextThreadPoolExecutor(1) as pool:
        pool.submit(order).result()


def by_to_thread(order: Any) -> None:
    asyncio.run(asyncio.to_thread(order))


OWNED = (with_context, in_context_pool, by_to_thread)
UNOWNED = (in_thread, in_pool, in_fresh_context)


def said(plan_or_report: Any) -> str:
    """Return a text without its line breaks."""
    return " ".join(str(plan_or_report).split())


def wrapped(repo: Any, shop: Shop, start: Any, **options: Any) -> Any:
    effects = {"create_order": compensable(shop.cancel)}
    return repo.wrap(shop.graph(start), "s", effects=effects, check_effects=False, **options)


@pytest.mark.parametrize("start", OWNED, ids=lambda one: one.__name__)
def test_calls_in_a_thread_that_got_the_context_belong_to_the_turn(repo, shop, start):
    agent = wrapped(repo, shop, start)
    before = agent.checkpoint("before")
    agent.invoke(say())
    assert [one.args["item"] for one in agent.tool_track()] == ["chair", "table"]
    agent.rollback(before)
    assert shop.orders == []


@pytest.mark.parametrize("start", UNOWNED, ids=lambda one: one.__name__)
def test_plans_and_reports_name_calls_in_threads_that_no_turn_owns(repo, database, shop, start):
    """They run as plain code, a warning names the tool, and another process knows of them."""
    agent = wrapped(repo, shop, start)
    before = agent.checkpoint("before")
    with pytest.warns(UnownedCall, match="create_order was called in a thread"):
        agent.invoke(say())
    assert shop.orders == ["chair", "table"]
    assert SENTENCE in said(agent.plan_rollback(before))
    with agentgit.open(database.url) as other:
        assert SENTENCE in said(other.session("s").plan_rollback("before"))
    assert SENTENCE in said(agent.rollback(before).report)
    assert shop.orders == ["chair", "table"]
    assert repo.maintenance.fsck(3).is_sound


async def two_at_once(made: BaseTool) -> None:
    await asyncio.gather(made.ainvoke({"item": "chair"}), made.ainvoke({"item": "table"}))


def by_subagent(made: BaseTool) -> None:
    orders = calls(*(call("create_order", item=item) for item in ("chair", "table")))
    tool_node_graph(scripted(orders, "done"), [made]).invoke(say())


LATE: dict[str, Any] = {
    "invoke": lambda made: [made.invoke({"item": item}) for item in ("chair", "table")],
    "ainvoke": lambda made: asyncio.run(two_at_once(made)),
    "batch": lambda made: made.batch([{"item": "chair"}, {"item": "table"}]),
    "subagent": by_subagent,
}
"""Ways to call a tool twice. Most of them run it in threads that begin when it is called."""


def late_agent(repo: Any, shop: Shop, work: Any, **options: Any) -> Any:
    """Wrap a graph whose node starts a thread that does some work when the gate opens, after the turn."""

    def later(order: Any) -> None:
        shop.late.append(threading.Thread(target=lambda: (shop.gate.wait(10), work(shop.tool))))
        shop.late[0].start()

    return wrapped(repo, shop, later, **options)


@pytest.mark.parametrize("way", LATE)
def test_a_thread_that_outlives_its_turn_is_still_counted_for_it(repo, shop, way):
    agent = late_agent(repo, shop, LATE[way])
    before = agent.checkpoint("before")
    agent.invoke(say())
    assert "threads that no turn owns" not in said(agent.plan_rollback(before))
    shop.gate.set()
    with pytest.warns(UnownedCall):
        shop.late[0].join()
    assert sorted(shop.orders) == ["chair", "table"]
    assert said(agent.plan_rollback(before)).count("in threads that no turn owns") == 1
    assert SENTENCE in said(agent.plan_rollback(before))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("way", LATE)
def test_a_call_of_a_thread_that_outlives_its_turn_can_be_refused(repo, shop, way):
    agent = late_agent(repo, shop, LATE[way], unowned_calls="refuse")
    agent.invoke(say())
    shop.gate.set()
    shop.late[0].join()
    assert shop.orders == []


@pytest.mark.filterwarnings("ignore::agentgit.errors.UnownedCall")
def test_late_calls_before_and_after_a_checkpoint_are_counted_apart(repo, shop):
    called, again = threading.Event(), threading.Event()

    def twice(made: BaseTool) -> None:
        made.invoke({"item": "chair"})
        called.set()
        again.wait(10)
        made.invoke({"item": "table"})

    agent = late_agent(repo, shop, twice)
    before = agent.checkpoint("before")
    agent.invoke(say())
    shop.gate.set()
    assert called.wait(10)
    between = agent.checkpoint("between")
    again.set()
    shop.late[0].join()
    for checkpoint, lines in ((before, 2), (between, 1)):
        assert said(agent.plan_rollback(checkpoint)).count("it was called 1 time in threads") == lines


@pytest.mark.filterwarnings("ignore::agentgit.errors.UnownedCall")
@pytest.mark.parametrize("is_closed", [False, True])
def test_a_thread_that_outlives_its_session_calls_its_tools(database, shop, is_closed):
    """Calls that a turn made are not erased unasked, though it did not own their threads."""

    def later(order: Any) -> None:
        in_thread(order)
        shop.late.append(threading.Thread(target=lambda: (shop.gate.wait(10), order())))
        shop.late[0].start()

    with agentgit.open(database.url) as repo:
        agent = wrapped(repo, shop, later)
        agent.invoke(say())
        if not is_closed:
            with pytest.raises(agentgit.Conflict, match="create_order"):
                agent.session.delete()
            agent.session.delete(force=True)
            shop.gate.set()
            shop.late[0].join()
    shop.gate.set()
    shop.late[0].join()
    assert shop.orders == ["chair", "table"] * 2


def test_other_tools_and_turns_that_do_not_run_are_not_mentioned(repo, shop, recwarn):
    agent = wrapped(repo, shop, lambda order: in_thread(lambda: Shop().tool.invoke({"item": "sofa"})))
    before = agent.checkpoint("before")
    agent.invoke(say())
    shop.order()
    assert "no turn owns" not in said(agent.plan_rollback(before))
    assert not [one for one in recwarn if one.category is UnownedCall]


@pytest.mark.parametrize("face", ["wrap", "graph"])
def test_they_can_be_refused(repo, shop, face):
    errors: list[BaseException] = []

    def caught(order: Any) -> None:
        def run() -> None:
            try:
                order()
            except Fenced as error:
                errors.append(error)

        in_thread(run)

    graph, effects = shop.graph(caught), {"create_order": compensable(shop.cancel)}
    if face == "wrap":
        repo.wrap(graph, "s", effects=effects, check_effects=False, unowned_calls="refuse").invoke(say())
    else:
        app = repo.graph(graph, effects=effects, check_effects=False, unowned_calls="refuse")
        app.invoke(say(), {"configurable": {"thread_id": "t"}})
    assert "copy_context" in str(errors[0])
    assert shop.orders == []
    with pytest.raises(agentgit.InvalidInput, match="unowned_calls"):
        repo.wrap(graph, "t", unowned_calls="maybe")


def test_a_call_that_arrives_after_its_turn_has_ended_says_so(repo, shop):
    errors: list[BaseException] = []

    def later(order: Any) -> None:
        def wait() -> None:
            shop.gate.wait(10)
            try:
                order()
            except agentgit.Conflict as error:
                errors.append(error)

        shop.late.append(threading.Thread(target=contextvars.copy_context().run, args=(wait,)))
        shop.late[0].start()

    agent = wrapped(repo, shop, later)
    agent.invoke(say())
    shop.gate.set()
    shop.late[0].join()
    assert "after its turn had ended" in str(errors[0])
    assert shop.orders == []


@pytest.mark.parametrize("mode", ["report", "refuse"])
def test_a_call_that_a_switch_makes_again_belongs_to_no_turn_that_runs_beside_it(repo, mode):
    """It is in the journal of its own session, and an undo may call tools, too."""
    shop, began = Shop(), threading.Event()

    @tool
    def cancel_order(item: str) -> str:
        """Cancel an order."""
        shop.orders.remove(item)
        return "cancelled"

    effects = {
        "create_order": compensable(lambda args, result: cancel_order.invoke(args)),
        "cancel_order": effect("irreversible"),
    }

    def wait(order: Any) -> None:
        began.set()
        shop.gate.wait(20)

    graph = tool_node_graph(scripted(call("create_order", item="chair"), "done"), [shop.tool, cancel_order])
    first = repo.wrap(graph, "s", effects=effects)
    start = first.checkpoint("start")
    first.invoke(say())
    beside = repo.wrap(shop.graph(wait, cancel_order), "beside", effects=effects, unowned_calls=mode)
    turn = threading.Thread(target=beside.invoke, args=(say(),))
    turn.start()
    assert began.wait(20)
    try:
        first.rollback(start)
        first.session.switch("main", sync="world")
    finally:
        shop.gate.set()
        turn.join()
    assert shop.orders == ["chair"]
    assert beside.tool_track() == []
