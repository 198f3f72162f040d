"""Effects of every kind of tool are recorded, reversed and redone, also after errors and cancellation."""

import asyncio
from typing import Annotated, Any

import backend
import pytest
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import BaseTool, InjectedToolCallId, tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt
from scripted import GRAPHS, World, call, calls, scripted, tool_node_graph

from agentgit import RollbackBlocked, RollbackIncomplete, compensable, reversible

DIRECT = ("tool_node", "create_agent", "nested")
"""The kinds of graphs that call tools through a ToolNode."""


class Moody:
    """A world whose calls may raise.

    Args:
        moods: For each call in turn, whether it raises `before` or `after` it acts, or None.
    """

    def __init__(self, *moods: Any) -> None:
        self.world, self.moods = World(), list(moods)

    def put(self, item: str) -> str:
        """Add an item, and raise before or after that if the call's mood says so."""
        mood = self.moods.pop(0) if self.moods else None
        if mood == "before":
            raise ConnectionError("not reached")
        self.world.items.append(item)
        if mood == "after":
            raise ConnectionError("no answer")
        return item

    def undo(self, args: dict[str, Any], result: Any) -> None:
        """Remove an item."""
        self.world.items.remove(args["item"])

    def look(self, invocation: Any) -> Any:
        """Return an item that is in the world, or False."""
        return args["item"] if (args := invocation.args)["item"] in self.world.items else False

    def effects(self, *names: str, looks: bool = False) -> dict[str, Any]:
        """Declare tools that add their `item`."""
        return dict.fromkeys(names, reversible(self.undo, verify=self.look if looks else None))


def ordering(moody: Moody) -> BaseTool:
    """Make a tool that adds an item."""

    @tool
    def order(item: str) -> str:
        """Order."""
        return moody.put(item)

    return order


def say(text: str = "go") -> dict[str, Any]:
    return {"messages": [("user", text)]}


def begun(repo, graph, effects, **more):
    """Wrap a graph, and make the checkpoint `before`."""
    agent = repo.wrap(graph, "s", effects=effects, **more)
    agent.checkpoint("before")
    return agent


@pytest.mark.parametrize("kind", DIRECT)
async def test_effects_of_async_tools_are_reversed(kind, repo):
    """A rollback reverses what async tools did, whichever kind of graph awaits them."""
    world = World()
    graph = GRAPHS[kind](scripted(calls(call("add_later", item="a"), call("add_later", item="b")), "ok"), world.tools())
    agent = begun(repo, graph, world.effects())
    await agent.ainvoke(say())
    assert sorted(world.items) == ["a", "b"]
    await agent.arollback("before")
    assert world.items == []


@pytest.mark.parametrize("kind", DIRECT)
def test_a_streaming_tool_is_recorded_as_one_call(kind, repo):
    """A tool that streams its progress is one call, and its chunks reach the stream."""
    moody = Moody()

    @tool
    def order(item: str) -> str:
        """Order in steps."""
        writer = get_stream_writer()
        for step in ("asked", "packed"):
            writer({item: step})
        return moody.put(item)

    agent = begun(repo, GRAPHS[kind](scripted(call("order", item="a"), "ok"), [order]), moody.effects("order"))
    told = list(agent.stream(say(), stream_mode="custom", subgraphs=True))
    assert [chunk for _, chunk in told] == [{"a": "asked"}, {"a": "packed"}]
    assert [(c.tool_name, c.status, c.result) for c in agent.tool_track()] == [("order", "done", "a")]
    agent.rollback("before")
    assert moody.world.items == []


@pytest.mark.parametrize("mood", ["before", "after"])
@pytest.mark.parametrize("looks", [False, True])
def test_a_retried_node_repeats_a_call_unless_verify_saw_it_act(mood, looks, repo):
    """RetryPolicy repeats a raised call, but not one whose `verify` shows that it acted."""
    moody = Moody(mood)
    order = ordering(moody)
    model = scripted(call("order", item="a"), "ok")
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    policy = RetryPolicy(initial_interval=0.001, retry_on=ConnectionError)
    graph.add_node("tools", ToolNode([order], handle_tool_errors=False), retry_policy=policy)
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    agent = begun(repo, graph.compile(), moody.effects("order", looks=looks))
    agent.invoke(say())
    twice = mood == "after" and not looks
    assert moody.world.items == ["a"] * (1 + twice)
    back = agent.rollback("before")
    assert moody.world.items == ["a"] * twice
    assert [item.invocation.status for item in back.report.kept] == (
        ["unknown"] if not looks else ["failed"] if mood == "before" else []
    )


@pytest.mark.parametrize("mood", ["before", "after"])
def test_a_tool_with_retry_records_each_attempt(mood, repo):
    """With_retry around a tool makes one recorded call per attempt, each with its true status."""
    moody = Moody(mood)
    stubborn = ordering(moody).with_retry(wait_exponential_jitter=False, retry_if_exception_type=(ConnectionError,))

    def work(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(stubborn.invoke({"item": "a"}))]}

    graph = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    agent = begun(repo, graph.compile(), moody.effects("order", looks=True), check_effects=False)
    agent.invoke(say())
    known = [c.status for c in agent.tool_track()]
    assert known == (["failed", "done"] if mood == "before" else ["done", "done"])
    agent.rollback("before")
    assert moody.world.items == []


@pytest.mark.parametrize("kind", DIRECT)
def test_a_tool_that_returns_a_command_is_recorded_and_reversed(kind, repo):
    """A tool that updates the state with a Command is recorded and reversed like any other."""
    moody = Moody()

    @tool
    def order(item: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Order, and say so in the state."""
        moody.put(item)
        return Command(update={"messages": [ToolMessage(f"ordered {item}", tool_call_id=tool_call_id)]})

    agent = begun(repo, GRAPHS[kind](scripted(call("order", item="a"), "ok"), [order]), moody.effects("order"))
    assert [m["content"] for m in (agent.invoke(say()), agent.history())[1]] == ["go", "", "ordered a", "ok"]
    assert moody.world.items == ["a"]
    agent.rollback("before")
    assert moody.world.items == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("retried", [False, True])
async def test_a_tool_that_ends_with_a_parent_command_acts_once(retried, is_async, repo):
    """A tool that ends with a Command of a graph it runs is done once, and can be reversed and redone."""
    moody, fails = Moody(), ["no answer"] if retried else []
    inner = StateGraph(MessagesState)
    inner.add_node("leave", lambda state: Command(goto="after", graph=Command.PARENT))
    inner.add_edge(START, "leave")
    delegate_to = inner.compile()

    @tool
    def order(item: str) -> str:
        """Order, and end with a Command of an inner graph."""
        moody.put(item)
        delegate_to.invoke({"messages": []})
        return "never said"

    @tool
    def other() -> str:
        """Fail once."""
        if fails:
            raise ConnectionError(fails.pop())
        return "well"

    asked = calls(*[call("other")] * retried, call("order", item="a"))
    model, graph = scripted(asked), StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([order, other]), retry_policy=RetryPolicy(initial_interval=0, max_attempts=2))
    graph.add_node("after", lambda state: {"messages": [("ai", "handed over")]})
    graph.add_edge(START, "model")
    graph.add_edge("model", "tools")
    agent = begun(repo, graph.compile(), moody.effects("order") | {"other": "idempotent"})
    said = await agent.ainvoke(say()) if is_async else await asyncio.to_thread(agent.invoke, say())
    assert said["messages"][-1].content == "handed over"
    assert moody.world.items == ["a"]
    assert [c.status for c in await agent.atool_track() if c.tool_name == "order"] == ["done"]
    back = await agent.arollback("before")
    assert moody.world.items == []
    again = await back.aredo()
    assert moody.world.items == ["a"]
    assert not again.report.drifted


@pytest.mark.parametrize("inner_fails", [False, True])
def test_an_outer_tool_call_is_reversed_before_its_inner_call(inner_fails, repo):
    """The effect of the outer tool is reversed first; an inner call that raised is not reversed."""
    moody, order = Moody(None, "before" if inner_fails else None), []

    @tool
    def inner(item: str) -> str:
        """Order a part."""
        return moody.put(item)

    @tool
    def outer(item: str) -> str:
        """Order an item and a part of it."""
        moody.put(item)
        try:
            return item + inner.invoke({"item": f"part of {item}"})
        except ConnectionError:
            return item

    def undo(args: dict[str, Any], result: Any) -> None:
        order.append(args["item"])
        moody.undo(args, result)

    graph = tool_node_graph(scripted(call("outer", item="a"), "ok"), [outer, inner])
    agent = begun(repo, graph, {"outer": reversible(undo), "inner": reversible(undo)})
    agent.invoke(say())
    assert [(c.tool_name, c.status) for c in agent.tool_track()] == [
        ("outer", "done"), ("inner", "unknown" if inner_fails else "done"),
    ]  # fmt: skip
    agent.rollback("before")
    assert moody.world.items == []
    assert order == (["a"] if inner_fails else ["a", "part of a"])


@pytest.mark.parametrize("kind", GRAPHS)
def test_an_effect_before_an_interrupt_in_a_tool_is_not_reversed(kind, repo):
    """A tool that acts and then asks acts twice; a rollback reverses only the completed call."""
    world = World()

    @tool
    def order(item: str) -> str:
        """Order, and then ask whether that was right."""
        world.items.append(item)
        return str(interrupt("right?"))

    def undo(args: dict[str, Any], result: Any) -> None:
        world.items.remove(args["item"])

    agent = begun(repo, GRAPHS[kind](scripted(call("order", item="a"), "ok"), [order]), {"order": reversible(undo)})
    agent.invoke(say())
    assert [c.status for c in agent.tool_track()] == ["paused"]
    agent.invoke(Command(resume="yes"))
    assert [c.status for c in agent.tool_track()] == ["done"]
    agent.rollback("before")
    # An effect before the question is not recorded; the documentation says to ask first.
    assert world.items == ["a"]


@pytest.mark.parametrize("looks", [False, True])
async def test_a_cancelled_call_is_unknown_until_it_is_settled(looks, repo):
    """A call cancelled after it acted is unknown, and is reversed once `verify` or a person settles it."""
    moody, acted = Moody(), asyncio.Event()

    @tool
    async def order(item: str) -> str:
        """Order, and wait for the answer."""
        moody.put(item)
        acted.set()
        await asyncio.sleep(60)
        return item

    graph = tool_node_graph(scripted(call("order", item="a"), "ok"), [order])
    agent = begun(repo, graph, moody.effects("order", looks=looks))
    turn = asyncio.create_task(agent.ainvoke(say()))
    await acted.wait()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    (known,) = await agent.atool_track()
    assert known.status == "unknown"
    if not looks:
        assert not (await agent.aplan_rollback("before")).is_admissible
        await asyncio.to_thread(repo.resolve, known, "happened", result="a")
    await agent.arollback("before")
    assert moody.world.items == []


async def test_a_failed_batch_waits_for_its_remaining_calls(repo):
    """A turn with a failed call ends after its other calls, and each call has an outcome."""
    moody = Moody()

    @tool
    async def order(item: str) -> str:
        """Order, slowly."""
        await asyncio.sleep(0.2)
        return moody.put(item)

    @tool
    async def fail() -> str:
        """Fail at once."""
        raise ConnectionError("no answer")

    graph = tool_node_graph(scripted(calls(call("order", item="a"), call("fail")), "ok"), [order, fail])
    agent = begun(repo, graph, moody.effects("order"))
    with pytest.raises(ConnectionError):
        await agent.ainvoke(say())
    assert moody.world.items == ["a"]
    assert [(c.tool_name, c.status) for c in await agent.atool_track()] == [("order", "done"), ("fail", "failed")]
    await agent.arollback("before")
    assert moody.world.items == []


@pytest.mark.parametrize("again", [False, True])
def test_a_cancelled_undo_or_redo_is_unknown(again, repo):
    """An undo or a redo cancelled with its event loop may have acted, so it must be resolved before resume."""
    world, slow = World(), []

    async def undo(args: dict[str, Any], result: Any) -> None:
        world.items.remove(args["item"])
        await asyncio.sleep(sum(slow))

    @tool
    async def order(item: str) -> str:
        """Order, and wait for the answer."""
        world.items.append(item)
        await asyncio.sleep(sum(slow))
        return item

    agent = begun(repo, tool_node_graph(scripted(call("order", item="a"), "ok"), [order]), {"order": reversible(undo)})
    asyncio.run(agent.ainvoke(say()))
    left = agent.rollback("before") if again else agent
    slow.append(60)

    async def broken_off() -> None:
        before = list(world.items)
        work = asyncio.ensure_future(left.aredo() if again else left.arollback("before"))
        while world.items == before:
            await asyncio.sleep(0.01)
        work.cancel()

    asyncio.run(broken_off())
    (stopped,) = [one for one in repo.session("s").operations() if one.status != "done"]
    slow.clear()
    with pytest.raises(RollbackIncomplete, match="unknown"):
        repo.resume(stopped)
    (unknown,) = [one for one in backend.journal(repo) if one.status.endswith("unknown")]
    repo.resolve(unknown, "happened", result="a" if again else None)
    assert repo.resume(stopped).status == "done"
    assert world.items == (["a"] if again else [])


def test_rollbacks_and_redo_match_the_world_to_the_path(repo):
    """After a rollback, a second one and a redo, the world has the effects of the path each time."""
    world = World()
    replies = (call("add", item="a"), "ok", call("add", item="b"), "ok", call("add", item="c"), "ok")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    points = []
    for turn in ("one", "two", "three"):
        agent.run(turn)
        points.append(agent.head)
    once = agent.rollback(points[1])
    assert world.items == ["a", "b"]
    twice = once.rollback(points[0])
    assert world.items == ["a"]
    forward = twice.rollback(points[2], replay="redo")
    assert world.items == ["a", "b", "c"]
    assert sorted(item.invocation.args["item"] for item in forward.report.redone) == ["b", "c"]
    again = forward.redo()
    assert again.branch.name == twice.branch.name
    assert world.items == ["a"]


def test_sync_world_restores_the_world_of_each_nested_fork(repo):
    """A switch with sync='world' to any of four nested branches restores the effects of its path."""
    world = World()
    replies = [reply for n in range(4) for reply in (call("add", item=str(n)), "ok")]
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.run("one")
    line = [agent]
    for _ in range(3):
        line.append(line[-1].fork())
        line[-1].run("more")
    assert world.items == ["0", "1", "2", "3"]
    for depth in (0, 3, 1, 2, 0):
        line[depth] = line[depth].switch(line[depth].branch.name, "world")
        assert sorted(world.items) == [str(n) for n in range(depth + 1)]
        assert [c.args["item"] for c in line[depth].tool_track()] == [str(n) for n in range(depth + 1)]


@pytest.mark.parametrize("whole", [True, False])
def test_a_redone_command_or_message_keeps_its_type(repo, whole):
    """A new call id in the result is no drift, and the fence answers with the same type of result."""

    @tool
    def pay(euros: int, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Pay."""
        message = ToolMessage(f"paid {euros}", tool_call_id=call_id)
        return Command(update={"messages": [message]}) if whole else message

    effects = {"pay": compensable(lambda args, result: None)}
    graph = tool_node_graph(scripted(call("pay", euros=5), "done", call("pay", euros=5), "done"), [pay])
    agent = repo.wrap(graph, "s", effects=effects)
    agent.run("pay")
    forward = agent.rollback("main#1").rollback("main#2", replay="redo")
    assert [item.invocation.args for item in forward.report.redone] == [{"euros": 5}]
    assert not forward.report.drifted
    again = forward.rollback("main#1", tools="keep")
    again.run("pay")
    assert again.tool_track()[0].kind == "replay"
    answer = again.history()[2]
    assert (answer["role"], answer["content"]) == ("tool", "paid 5")
    assert answer["tool_call_id"] == again.history()[1]["tool_calls"][0]["id"]


@pytest.mark.parametrize(("replay", "declared"), [("redo", True), ("execute", True), ("execute", False)])
def test_a_nested_tool_call_is_not_made_twice_by_a_replay(replay, declared, repo):
    """A tool that calls a recorded tool blocks redo and execute; with force the inner call runs at most once."""
    world = World()
    add = world.tool("add")

    @tool
    def order(item: str) -> str:
        """Order, by another tool."""
        add.invoke({"item": item})
        return item

    effects = {"add": world.effects()["add"]}
    effects |= {"order": reversible(lambda args, result: None)} if declared else {}
    agent = repo.wrap(tool_node_graph(scripted(call("order", item="a"), "ok"), [order, add]), "s", effects=effects)
    agent.run("order it")
    end, retry = agent.head, agent.rollback("main#1")
    assert world.items == []
    with pytest.raises(RollbackBlocked, match=r"it called add|not declared"):
        retry.rollback(end, replay=replay)
    assert world.items == []
    forward = retry.rollback(end, replay=replay, force=True)
    gone = {item.invocation.tool_name for group in ("gone", "answered") for item in getattr(forward.report, group)}
    if replay == "redo":
        assert (world.items, gone) == (["a"], {"order"})
    else:
        assert (world.items, gone) == ([], {"order", "add"})
    forward.rollback("main#1")
    assert world.items == []


@pytest.mark.parametrize("replay", ["redo", "execute"])
def test_a_plan_blocks_the_replay_of_a_tool_that_asked_a_person(replay, repo):
    """A call that asked a person blocks redo and execute, because nobody can answer outside a turn."""
    world = World()
    replies = (call("add", item="a"), call("add_if_approved", item="b"), "done")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.run("add them")
    agent.invoke(Command(resume="yes"))
    end = agent.head
    retry = agent.rollback("main#1")
    (blocked,) = retry.plan_rollback(end, replay=replay).blockers
    assert (blocked.invocation.args, "asked a person" in blocked.why) == ({"item": "b"}, True)
    with pytest.raises(RollbackBlocked, match="asked a person"):
        retry.rollback(end, replay=replay)
    assert world.items == []
    retry.rollback(end, replay=replay, force=True)
    assert world.items == ["a"]


def test_a_redo_of_a_tool_that_asks_a_person_fails_with_the_reason(repo):
    """The error says that the tool asks a person, and does not suggest repo.resolve."""
    world, trusted = World(), [True]

    @tool
    def add(item: str) -> str:
        """Add an item, and ask a person first unless it is trusted."""
        if trusted.pop() if trusted else interrupt("may I?"):
            world.items.append(item)
        return item

    graph = tool_node_graph(scripted(call("add", item="a"), "done"), [add])
    agent = repo.wrap(graph, "s", effects={"add": reversible(lambda args, result: world.items.remove(args["item"]))})
    agent.run("add it")
    retry = agent.rollback("main#1")
    with pytest.raises(RollbackIncomplete, match="asks a person") as caught:
        retry.redo()
    assert "repo.resolve" not in str(caught.value)
    assert repo.resume(caught.value.operation, force=True).status == "done"
    assert world.items == []
