"""Calls that tools make themselves: each knows the call that it belongs to, also if many run at the same time."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from typing import Any

import faults
import points
import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import ToolRetryMiddleware
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy
from scripted import agent_graph, call, calls, node_graph, say, scripted, tool_node_graph

import agentgit
from agentgit import compensable, effect, reversible
from agentgit.demo import ScriptedModel


class Orders:
    """A ledger outside: what was ordered and not cancelled, and how often each was ordered."""

    def __init__(self) -> None:
        self.standing: list[str] = []
        self.made: list[str] = []
        self.lock = threading.Lock()

    def tool(self, name: str = "pay", seconds: float = 0.0) -> BaseTool:
        """Create a tool that orders something, which can be refunded."""

        @tool(name)
        def pay(to: str) -> str:
            """Pay somebody."""
            time.sleep(seconds)
            with self.lock:
                self.standing.append(to)
                self.made.append(to)
            return f"paid {to}"

        return pay

    def refund(self, args: dict[str, Any], result: Any) -> None:
        """Undo a payment."""
        with self.lock:
            self.standing.remove(args["to"])


@pytest.fixture
def orders():
    """Create an empty ledger."""
    return Orders()


def batch_tool(pay: BaseTool, *names: str) -> BaseTool:
    @tool
    def pay_all(what: str) -> str:
        """Pay several people at the same time."""
        return ", ".join(pay.batch([{"to": name} for name in names]))

    return pay_all


def asked(times: int, name: str = "pay_all", **args: Any) -> list[Any]:
    """Return the replies of a model that calls a tool in each turn."""
    given = args or {"what": "all"}
    return [reply for number in range(times) for reply in (call(name, f"c{number}", **given), "done")]


def test_parallel_calls_inside_a_tool_are_calls_of_that_tool_only(repo, orders):
    """The fence answers each payment that a forced rollback kept, and none is made twice."""
    pay = orders.tool(seconds=0.05)
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(2)), [batch_tool(pay, "Ann", "Bob", "Cid")]),
        "s",
        effects={"pay": "irreversible", "pay_all": "read_only"},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    outer, *inner = agent.tool_track()
    assert outer.tool_name == "pay_all"
    assert {one.parent_id for one in inner} == {outer.id}
    retry = agent.rollback(start, force=True)
    retry.invoke(say())
    assert sorted(orders.made) == ["Ann", "Bob", "Cid"]
    first, *replayed = retry.tool_track()
    assert {one.parent_id for one in replayed} == {first.id}
    assert {one.kind for one in replayed} == {"replay"}


def test_switching_makes_parallel_calls_inside_a_tool_again(repo, orders):
    """A call that runs beside another one is not taken for its inner call, so each can be made again."""
    pay = orders.tool(seconds=0.05)
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1)), [batch_tool(pay, "Ann", "Bob"), pay]),
        "s",
        effects={"pay": compensable(orders.refund), "pay_all": "read_only"},
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    agent.rollback(start)
    assert orders.standing == []
    agent.session.switch("main", sync="world")
    assert sorted(orders.standing) == ["Ann", "Bob"]


def test_a_tool_that_calls_another_one_is_not_made_again_outside_a_turn(repo, orders):
    """A second run of the track would act unrecorded, so it is blocked, however often it is asked for."""
    pay = orders.tool("book", seconds=0.05)
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1)), [batch_tool(pay, "Ann")]),
        "s",
        effects={"book": reversible(orders.refund), "pay_all": "read_only"},
        check_effects=False,
    )
    agent.invoke(say())
    for _ in range(2):
        with pytest.raises(agentgit.RollbackBlocked, match="it called book"):
            agent.rollback(agent.head, replay="execute")
    assert orders.made == ["Ann"]
    assert sum(one.tool_name == "book" for one in agent.tool_track()) == 1


def test_the_parents_of_calls_are_kept_on_new_branches_and_in_exports(repo, orders, tmp_path):
    pay = orders.tool()
    graph = tool_node_graph(scripted(*asked(3)), [batch_tool(pay, "Ann", "Bob")])
    agent = repo.wrap(graph, "s", effects={"pay": reversible(orders.refund)}, check_effects=False)
    agent.invoke(say())
    end = agent.head
    agent.invoke(say())
    fork = agent.rollback(end)
    agent.session.export(tmp_path / "s.jsonl")
    imported = repo.session(repo.import_(tmp_path / "s.jsonl", session="u").session)
    for branch in (fork, imported):
        outer, *inner = branch.tool_track()[:3]
        assert outer.parent_id is None
        assert [one.parent_id for one in inner] == [outer.id, outer.id]
    assert repo.maintenance.fsck(3).is_sound


@pytest.mark.parametrize("depth", [1, 20])
def test_calls_know_their_parents_at_any_depth(repo, orders, depth):
    """Twenty tools inside each other: a rollback reverses the one that acted, and the fence knows it."""
    inner: BaseTool = orders.tool()

    def around(wrapped_tool: BaseTool, number: int) -> BaseTool:
        @tool(f"level{number}")
        def level(what: str) -> str:
            """Pass it on."""
            given = {"to": what} if wrapped_tool.name == "pay" else {"what": what}
            return str(wrapped_tool.invoke(given))

        return level

    for number in range(depth):
        inner = around(inner, number)
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1, inner.name, what="Ann")), [inner]),
        "s",
        effects={"pay": reversible(orders.refund)},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    track = agent.tool_track()
    assert [one.parent_id for one in track[1:]] == [one.id for one in track[:-1]]
    assert len(track) == depth + 1
    agent.rollback(start)
    assert orders.standing == []


@pytest.mark.parametrize("depth", [1, 3])
def test_a_call_that_only_reads_is_written_no_earlier_than_the_calls_that_contain_it(repo, orders, depth):
    """A process that dies then leaves no call whose enclosing call is missing."""
    findings: list[Any] = []

    @tool
    def look(at: str) -> str:
        """Look at something."""
        return at

    def outer(inner: BaseTool, number: int) -> BaseTool:
        @tool(f"level{number}")
        def level(at: str) -> str:
            """Look at something, and check the database, which writes what waits."""
            inner.invoke({"at": at})
            findings.extend(repo.maintenance.fsck(3).findings)
            return at

        return level

    outermost: BaseTool = look
    for number in range(depth):
        outermost = outer(outermost, number)
    graph = tool_node_graph(scripted(*asked(1, outermost.name, at="it")), [outermost])
    agent = repo.wrap(graph, "s", effects=dict.fromkeys(["look", *(f"level{n}" for n in range(depth))], "read_only"))
    agent.invoke(say())
    assert findings == []
    recorded = {one.id: one for one in agent.tool_track()}
    assert [one.status for one in recorded.values()] == ["done"] * (depth + 1)
    assert len([one for one in recorded.values() if one.parent_id in recorded]) == depth


def test_a_hundred_parallel_calls_inside_a_tool_are_recorded_and_reversed(repo, orders):
    names = [f"n{number}" for number in range(100)]
    pay = orders.tool()
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1)), [batch_tool(pay, *names)]),
        "s",
        effects={"pay": reversible(orders.refund)},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    assert sorted(orders.standing) == sorted(names)
    agent.rollback(start)
    assert orders.standing == []
    assert len(orders.made) == 100


@pytest.mark.parametrize("seconds", [(0.3, 0.0), (0.0, 0.3)], ids=["ends before", "ends after"])
def test_a_call_belongs_to_the_tool_that_began_it_also_when_that_has_ended(repo, orders, seconds):
    """A node runs again, and the tool ends before or after the call that it has begun in the background."""
    pay, left, begun = orders.tool(), [*seconds], []

    @tool
    async def begin(to: str) -> str:
        """Begin to pay somebody."""
        wait = left.pop(0)

        async def later() -> None:
            await asyncio.sleep(wait)
            await pay.ainvoke({"to": to})

        begun[:] = [asyncio.create_task(later())]
        await asyncio.sleep(0.0 if wait else 0.2)
        return "begun"

    async def act(state: MessagesState) -> dict[str, Any]:
        await begin.ainvoke({"to": "Ann"})
        await begun[0]
        if left:
            raise ValueError("broken off")
        return {"messages": []}

    retry = RetryPolicy(max_attempts=2, retry_on=ValueError, initial_interval=0.01)
    effects = {"pay": "irreversible", "begin": "read_only"}
    agent = repo.wrap(node_graph(act, retry_policy=retry), "s", effects=effects, check_effects=False)
    asyncio.run(agent.ainvoke(say()))
    assert orders.made == ["Ann"]
    first, inner, *_ = agent.tool_track()
    assert inner.parent_id == first.id


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_that_is_cancelled_before_its_tool_runs_is_made_by_the_next_attempt(repo, orders, when):
    """The database is slow when the call begins, and its caller gives up before the tool runs."""
    slow = [True]

    def slowly(authorize: Any, *args: Any) -> None:
        if when == "after":
            authorize(*args)
        if slow:
            slow.clear()
            time.sleep(1.2)
        if when == "before":
            authorize(*args)

    @tool
    async def pay(to: str) -> str:
        """Pay somebody."""
        orders.made.append(to)
        return "paid"

    async def act(state: MessagesState) -> dict[str, Any]:
        try:
            await asyncio.wait_for(pay.ainvoke({"to": "Ann"}), 0.6 if slow else 5.0)
        except TimeoutError:
            await asyncio.sleep(1.0)
            raise
        return {"messages": []}

    retry = RetryPolicy(max_attempts=2, retry_on=TimeoutError, initial_interval=0.01)
    agent = repo.wrap(node_graph(act, retry_policy=retry), "s", effects={"pay": "irreversible"}, check_effects=False)
    with faults.around(points.AUTHORIZE_CALL, slowly):
        asyncio.run(agent.ainvoke(say()))
    assert orders.made == ["Ann"]
    assert [one.status for one in agent.tool_track()] == ["failed", "done"]


# -- subagents that run at the same time


@pytest.mark.parametrize("way", ["tool_node", "node"])
def test_subagents_that_change_places_keep_their_own_graphs(repo, orders, way):
    """Two subagents in one task; the turn is cancelled when both have paid, and continued in the other order."""
    pay, waits, stuck = orders.tool(), {"ann": 0.1, "bob": 0.0}, [30.0]

    def subagent(name: str) -> BaseTool:
        @tool(name)
        async def delegate(what: str) -> str:
            """Let somebody do it."""
            await asyncio.sleep(waits[name])
            inner = agent_graph(scripted(call("pay", f"pay-{name}", to=name), f"{name} is paid"), [pay])
            result = await inner.ainvoke({"messages": [("user", what)]})
            await asyncio.sleep(stuck[0])
            return str(result["messages"][-1].content)

        return delegate

    async def act(state: MessagesState) -> dict[str, Any]:
        got = await asyncio.gather(*(subagent(name).ainvoke({"what": "pay"}) for name in waits))
        return {"messages": [("ai", str(got))]}

    request = calls(call("ann", "c1", what="pay"), call("bob", "c2", what="pay")).model_copy(update={"id": "m"})

    def graph() -> Any:
        built = StateGraph(MessagesState)
        if way == "node":
            return built.add_node("act", act).add_edge(START, "act").compile()
        built.add_node("ask", lambda state: {"messages": [request]})
        built.add_node("tools", ToolNode([subagent("ann"), subagent("bob")]))
        return built.add_edge(START, "ask").add_edge("ask", "tools").compile()

    async def story() -> Any:
        effects = {"pay": compensable(orders.refund)}
        agent = repo.wrap(graph(), "s", effects=effects, check_effects=False)
        running = asyncio.ensure_future(agent.ainvoke(say()))
        while len(orders.made) < 2:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        waits.update(ann=0.0, bob=0.1)
        stuck[0] = 0.0
        agent = repo.wrap(graph(), "s", effects=effects, check_effects=False)
        return await agent.ainvoke(None)

    answer = str(asyncio.run(story())["messages"])
    assert answer.index("ann is paid") < answer.index("bob is paid")
    assert sorted(orders.made) == ["ann", "bob"]


@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
def test_a_new_call_beside_a_repeated_one_is_made_whichever_comes_first(repo, orders, is_async):
    """A task that runs again pays Bob before, and beside, Ann, whom it has paid already."""
    pay, names, broken = orders.tool(), ["Ann"], [True]

    def fail() -> None:
        if broken:
            broken.clear()
            raise ValueError("broken off")

    def act(state: MessagesState) -> dict[str, Any]:
        paid = pay.batch([{"to": name} for name in names])
        fail()
        return {"messages": [("ai", str(paid))]}

    async def aact(state: MessagesState) -> dict[str, Any]:
        paid = await asyncio.gather(*(pay.ainvoke({"to": name}) for name in names))
        fail()
        return {"messages": [("ai", str(paid))]}

    graph = StateGraph(MessagesState).add_node("act", aact if is_async else act).add_edge(START, "act").compile()
    agent = repo.wrap(graph, "s", effects={"pay": "irreversible"}, check_effects=False)

    def run(given: Any) -> Any:
        return asyncio.run(agent.ainvoke(given)) if is_async else agent.invoke(given)

    with pytest.raises(ValueError, match="broken off"):
        run(say())
    names[:] = ["Bob", "Ann"]
    run(None)
    assert sorted(orders.made) == ["Ann", "Bob"]


@pytest.mark.parametrize("again", ["retry", "continued"])
@pytest.mark.parametrize("checkpointer", [None, False], ids=["saved", "never saved"])
@pytest.mark.parametrize("place", ["tool", "node", "code"])
def test_a_subagent_that_begins_anew_pays_nobody_twice(repo, orders, place, checkpointer, again):
    """LangGraph asks its model again, whose message and ids are new; the place, the tool and the arguments are not."""
    broken = [True]

    def fail(state: MessagesState) -> dict[str, Any]:
        if broken:
            broken.clear()
            raise ValueError("broken off")
        return {}

    ask = ScriptedModel(rule=lambda messages: calls(call("pay", to="Ann"), call("pay", to="Ann")))
    built = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [ask.invoke(state["messages"])]})
    built.add_node("tools", ToolNode([orders.tool()])).add_node("fail", fail).add_edge(START, "ask")
    subagent = built.add_edge("ask", "tools").add_edge("tools", "fail").compile(checkpointer=checkpointer)

    @tool
    def desk(what: str) -> str:
        """Let the subagent do it."""
        return str(subagent.invoke(say())["messages"][-1].content)

    policy = RetryPolicy(max_attempts=2, retry_on=ValueError, initial_interval=0.01) if again == "retry" else None
    if place == "tool":
        graph = tool_node_graph(scripted(call("desk", what="pay"), "done"), [desk], retry=policy)
    else:
        act = subagent if place == "node" else lambda state: {"messages": subagent.invoke(state)["messages"][-1:]}
        graph = node_graph(act, retry_policy=policy)
    agent = repo.wrap(graph, "s", effects={"pay": "irreversible"}, check_effects=False)
    with nullcontext() if again == "retry" else pytest.raises(ValueError, match="broken off"):
        agent.invoke(say())
    agent.invoke(None)
    assert orders.made == ["Ann", "Ann"]
    assert [one.status for one in agent.tool_track() if one.tool_name == "pay"] == ["done", "done"]


# -- tools that an operation runs again


WAYS = ("declared", "decorated", "undeclared", "namesake", "subagent", "batch", "async", "caught", "thread", "deeper")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("outer", ["read_only", "idempotent", "reversible"])
def test_a_tool_that_runs_again_makes_no_call_that_the_record_would_miss(repo, orders, way, outer):
    """Its first run had nothing to pay; now it would, and no row would know of it."""
    due: list[str] = []
    pay = reversible(orders.refund)(orders.tool()) if way in ("decorated", "namesake") else orders.tool()

    @effect("read_only")
    def look(to: str) -> str:
        """Look at a payment."""
        return to

    visible = tool("pay")(look) if way == "namesake" else orders.tool("book")
    subagent = agent_graph(scripted(*(calls(call("pay", to="Ann")), "done")), [pay])

    @tool
    def pay_all(names: list[str]) -> str:
        """Pay several people."""
        return str([pay.invoke({"to": name}) for name in names])

    @tool
    def pay_due(what: str) -> str:
        """Pay what is due."""
        if way == "deeper":
            return str(pay_all.invoke({"names": due}))
        if way == "caught":
            with suppress(agentgit.Fenced):
                return str([pay.invoke({"to": name}) for name in due])
        if way == "thread":
            with ThreadPoolExecutor(1) as pool:
                return str(pool.submit(lambda: [pay.invoke({"to": name}) for name in due]).result())
        if way == "subagent" and due:
            return str(subagent.invoke(say())["messages"][-1].content)
        if way == "async":
            return str([asyncio.run(pay.ainvoke({"to": name})) for name in due])
        return str(pay.batch([{"to": name} for name in due]))

    effects = {"pay_due": reversible(lambda args, result: None) if outer == "reversible" else outer}
    if way == "deeper":
        effects |= {"pay_all": "read_only", "pay_due.pay": "read_only", "pay_all.pay": "irreversible"}
    elif way not in ("decorated", "undeclared", "namesake"):
        effects |= {"pay": "irreversible"}
    graph = tool_node_graph(scripted(*asked(1, "pay_due")), [pay_due, visible])
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    agent.invoke(say())
    assert orders.made == []
    due.append("Ann")
    if way == "undeclared" and outer != "read_only":  # what it does is part of the effect of the tool that calls it
        agent.rollback(agent.head, replay="execute", on_drift="continue")
        assert orders.made == ["Ann"]
        return
    with pytest.raises(agentgit.RollbackIncomplete, match="pay was called by pay_due, which runs again outside a turn"):
        agent.rollback(agent.head, replay="execute", force=True)
    assert orders.made == []


@pytest.mark.parametrize("way", ["fence", "retry", "continued"])
@pytest.mark.parametrize("outer", ["reversible", "read_only"])
def test_a_tool_whose_inner_call_the_record_answered_is_not_made_again_outside_a_turn(repo, orders, way, outer):
    """The plan says so before anything happens, although the call hangs on another attempt or another branch."""
    pay = orders.tool()
    entered: list[str] = []

    @tool
    def delegate(to: str) -> str:
        """Let somebody pay."""
        entered.append(to)
        paid = pay.invoke({"to": to})
        if way != "fence" and len(entered) == 1:
            raise ConnectionError("lost")
        return str(paid)

    undo = reversible(lambda args, result: entered.remove(args["to"]))
    middleware = [ToolRetryMiddleware(max_retries=1, initial_delay=0.01)] if way == "retry" else []
    agent = repo.wrap(
        create_agent(scripted(*asked(2, "delegate", to="Ann")), [delegate], middleware=middleware),
        "s",
        effects={"pay": compensable(orders.refund), "delegate": undo if outer == "reversible" else outer},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    with pytest.raises(ConnectionError) if way == "continued" else nullcontext():
        agent.invoke(say())
    if way == "continued":
        agent.invoke(None)
    if way == "fence":
        agent = agent.rollback(start, tools="reversible")
        agent.invoke(say())
    assert (orders.made, orders.standing) == (["Ann"], ["Ann"])
    for call_ in agent.tool_track():
        if call_.status == "unknown":
            repo.resolve(call_.id, "did_not_happen")
    ran = list(entered)
    with pytest.raises(agentgit.RollbackBlocked, match=r"it called pay.*, which is not recorded outside a turn"):
        agent.rollback(agent.head, replay="execute")
    assert (entered, orders.made, orders.standing) == (ran, ["Ann"], ["Ann"])
    if outer == "read_only":
        return  # redo leaves it alone
    back = agent.rollback(start)
    assert not back.plan_redo().is_admissible
    undone = list(entered)
    with pytest.raises(agentgit.RollbackBlocked, match=r"it called pay.*, which is not recorded outside a turn"):
        back.redo()
    assert (entered, orders.made) == (undone, ["Ann"])


@pytest.mark.parametrize("decision", ["happened", "did_not_happen"])
def test_a_tool_that_was_refused_a_call_is_not_run_again_before_a_person_decides(repo, orders, decision):
    """It may have acted before that call, so a resumed operation does not enter it a second time."""
    due, entered, pay = list[str](), list[str](), orders.tool()

    @tool
    def pay_due(what: str) -> str:
        """Pay what is due."""
        entered.append(what)
        return str([pay.invoke({"to": name}) for name in due])

    undo = reversible(lambda args, result: entered.remove(args["what"]))
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1, "pay_due")), [pay_due]),
        "s",
        effects={"pay_due": undo, "pay": "irreversible"},
        check_effects=False,
    )
    start = agent.checkpoint("start")
    agent.invoke(say())
    back = agent.rollback(start)
    due.append("Ann")
    with pytest.raises(agentgit.RollbackIncomplete, match="pay was called by pay_due") as caught:
        back.redo()
    assert entered == ["all"]
    for _ in range(2):
        with pytest.raises(agentgit.RollbackIncomplete, match=r"pay was called by pay_due.*resolve"):
            repo.resume(caught.value.operation)
    assert (entered, orders.made) == (["all"], [])
    due.clear()
    (failed,) = caught.value.report.failed
    repo.resolve(failed.invocation.id, decision)
    assert repo.resume(caught.value.operation).status == "done"
    assert entered == ["all"] * (1 if decision == "happened" else 2)


@pytest.mark.parametrize("way", ["declared", "decorated"])
def test_a_tool_that_runs_again_may_call_tools_that_only_read(repo, way):
    looked = []

    def look(to: str) -> str:
        """Look at a payment."""
        looked.append(to)
        return to

    made = tool(effect("read_only")(look) if way == "decorated" else look)

    @tool
    def look_around(what: str) -> str:
        """Look at all payments."""
        return str(made.invoke({"to": what}))

    effects = {"look_around": "read_only"} | ({"look": "read_only"} if way == "declared" else {})
    graph = tool_node_graph(scripted(*asked(1, "look_around")), [look_around])
    agent = repo.wrap(graph, "s", effects=effects, check_effects=False)
    agent.invoke(say())
    agent.rollback(agent.head, replay="execute")
    assert looked == ["all", "all"]


@pytest.mark.parametrize("durability", ["async", "exit"])
async def test_a_subagent_that_is_never_saved_runs_on_an_event_loop(repo, orders, durability):
    """LangGraph cannot run it with the durability that a graph with effects has there otherwise."""
    worker = tool_node_graph(scripted(*asked(1, "pay", to="Ann")), [orders.tool()], checkpointer=False)

    @tool
    async def delegate(what: str) -> str:
        """Let a subagent do it."""
        return str((await worker.ainvoke(say()))["messages"][-1].content)

    graph = tool_node_graph(scripted(*asked(1, "delegate")), [delegate])
    agent = repo.wrap(graph, "s", effects={"pay": reversible(orders.refund), "delegate": "read_only"})
    await agent.ainvoke(say(), durability=durability)
    assert orders.standing == ["Ann"]
    await agent.arollback("main#1")
    assert (orders.made, orders.standing) == (["Ann"], [])


# -- reruns


@pytest.mark.parametrize("outer", ["read_only", "state", "idempotent", "reversible", "undeclared"])
def test_a_rerun_that_answers_a_tool_which_called_others_does_not_become_real(repo, orders, outer):
    """Their effects would be reversed and not made again: the plan says so, and what makes it possible."""
    pay = orders.tool()

    @tool
    def desk(what: str) -> str:
        """Let the desk pay."""
        return str(pay.invoke({"to": "Ann"}))

    @tool
    def office(what: str) -> str:
        """Let the office pay."""
        return str(desk.invoke({"what": what}))

    undo = reversible(lambda args, result: None)
    effects = {"pay": reversible(orders.refund), "desk": "read_only"}
    effects |= {} if outer == "undeclared" else {"office": undo if outer == "reversible" else outer}
    agent = repo.wrap(
        tool_node_graph(scripted(*asked(1, "office")), [office]), "s", effects=effects, check_effects=False
    )
    agent.invoke(say())
    again = agent.rerun(name="again")
    assert again.report.is_same
    plan = agent.plan_switch("again")
    assert (plan.is_admissible, plan.is_forcible) == (False, False)
    for force in (False, True):
        with pytest.raises(agentgit.RollbackBlocked, match=r"it called pay.*, which the rerun neither made nor simul"):
            agent.switch("again", sync="world", force=force)
    assert (orders.made, orders.standing) == (["Ann"], ["Ann"])
    if outer not in ("read_only", "state"):
        return
    assert "agent.rerun(tools={'office': 'live'}) simulates it too" in str(plan)
    agent.rerun(name="partly", tools={"office": "live"})
    with pytest.raises(agentgit.RollbackBlocked, match=r"agent.rerun.tools={'desk': 'live'}. simulates it too"):
        agent.switch("partly", sync="world")
    agent.rerun(name="live", tools={"office": "live", "desk": "live"})
    real = agent.switch("live", sync="world")
    assert (orders.made, orders.standing) == (["Ann", "Ann"], ["Ann"])
    assert real.branch.status == "open"
    assert agent.switch("main", sync="world").branch.name == "main"
    assert orders.standing == ["Ann"]
    assert real.switch("live", sync="world").branch.name == "live"
    assert orders.standing == ["Ann"]
