"""Effects of every kind of tool are recorded, reversed and redone, also after errors and cancellation."""

import asyncio
from typing import Annotated, Any

import backend
import pytest
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, RetryPolicy, interrupt
from scripted import GRAPHS, call, calls, node_graph, say, scripted, tool_node_graph

from agentgit import RollbackBlocked, RollbackIncomplete, compensable, reversible

DIRECT = ("tool_node", "create_agent", "nested")
"""The kinds of graphs that call tools through a ToolNode."""


def begun(repo, world, graph, **more):
    """Wrap a graph whose tool `order` puts its item into the world, and make the checkpoint `before`."""
    agent = repo.wrap(graph, "s", effects={"order": reversible(world.remove)} | more)
    agent.checkpoint("before")
    return agent


@pytest.mark.parametrize("kind", DIRECT)
def test_a_tool_that_streams_and_returns_a_command_is_one_call_and_is_reversed(kind, repo, world):
    @tool
    def order(item: str, tool_call_id: Annotated[str, InjectedToolCallId]) -> Command[Any]:
        """Order in steps, and say so in the state."""
        writer = get_stream_writer()
        for step in ("asked", "packed"):
            writer({item: step})
        world.items.append(item)
        return Command(update={"messages": [ToolMessage(f"ordered {item}", tool_call_id=tool_call_id)]})

    agent = begun(repo, world, GRAPHS[kind](scripted(call("order", item="a"), "ok"), [order]))
    told = list(agent.stream(say(), stream_mode="custom", subgraphs=True))
    assert [chunk for _, chunk in told] == [{"a": "asked"}, {"a": "packed"}]
    assert [m["content"] for m in agent.history()] == ["go", "", "ordered a", "ok"]
    assert [(c.tool_name, c.status) for c in agent.tool_track()] == [("order", "done")]
    assert world.items == ["a"]
    agent.rollback("before")
    assert world.items == []


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("retried", [False, True])
async def test_a_tool_that_ends_with_a_parent_command_acts_once(retried, is_async, repo, world):
    fails = ["no answer"] if retried else []
    delegate_to = node_graph(lambda state: Command(goto="after", graph=Command.PARENT))

    @tool
    def order(item: str) -> str:
        """Order, and end with a Command of an inner graph."""
        world.items.append(item)
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
    agent = begun(repo, world, graph.compile(), other="idempotent")
    said = await agent.ainvoke(say()) if is_async else await asyncio.to_thread(agent.invoke, say())
    assert said["messages"][-1].content == "handed over"
    assert world.items == ["a"]
    assert [c.status for c in await agent.atool_track() if c.tool_name == "order"] == ["done"]
    back = await agent.arollback("before")
    assert world.items == []
    again = await back.aredo()
    assert world.items == ["a"]
    assert not again.report.drifted


@pytest.mark.parametrize("inner_fails", [False, True])
def test_an_outer_tool_call_is_reversed_before_its_inner_call(inner_fails, repo, world):
    @tool
    def part(item: str) -> str:
        """Order a part."""
        if inner_fails:
            raise ConnectionError("not reached")
        world.items.append(item)
        return item

    @tool
    def order(item: str) -> str:
        """Order an item and a part of it."""
        world.items.append(item)
        try:
            return item + part.invoke({"item": f"part of {item}"})
        except ConnectionError:
            return item

    graph = tool_node_graph(scripted(call("order", item="a"), "ok"), [order, part])
    agent = begun(repo, world, graph, part=reversible(world.remove))
    agent.invoke(say())
    inner = "unknown" if inner_fails else "done"
    assert [(c.tool_name, c.status) for c in agent.tool_track()] == [("order", "done"), ("part", inner)]
    agent.rollback("before")
    assert world.items == []
    assert [args["item"] for args in world.happened("remove")] == (["a"] if inner_fails else ["a", "part of a"])


@pytest.mark.parametrize("kind", GRAPHS)
def test_an_effect_before_an_interrupt_in_a_tool_is_not_reversed(kind, repo, world):
    """A tool that acts and then asks acts twice; the documentation says to ask first."""

    @tool
    def order(item: str) -> str:
        """Order, and then ask whether that was right."""
        world.items.append(item)
        return str(interrupt("right?"))

    agent = begun(repo, world, GRAPHS[kind](scripted(call("order", item="a"), "ok"), [order]))
    agent.invoke(say())
    assert [c.status for c in agent.tool_track()] == ["paused"]
    agent.invoke(Command(resume="yes"))
    assert [(c.status, c.runs) for c in agent.tool_track()] == [("done", 2)]
    assert "started 2 times" in str(agent.plan_rollback("before"))
    assert "started 2 times" in agent.tool_track()._repr_html_()
    agent.rollback("before")
    assert world.items == ["a"]


@pytest.mark.parametrize("looks", [False, True])
async def test_a_cancelled_call_is_unknown_until_it_is_settled(looks, repo, world):
    """`verify` or a person settles it; then it is reversed."""
    acted = asyncio.Event()

    @tool
    async def order(item: str) -> str:
        """Order, and wait for the answer."""
        world.items.append(item)
        acted.set()
        await asyncio.sleep(60)
        return item

    look = (lambda invocation: invocation.args["item"] in world.items) if looks else None
    graph = tool_node_graph(scripted(call("order", item="a"), "ok"), [order])
    agent = begun(repo, world, graph, order=reversible(world.remove, verify=look))
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
    assert world.items == []


@pytest.mark.parametrize("again", [False, True])
def test_a_cancelled_undo_or_redo_is_unknown(again, repo, world):
    slow = []

    async def undo(args: dict[str, Any], result: Any) -> None:
        world.items.remove(args["item"])
        await asyncio.sleep(sum(slow))

    @tool
    async def order(item: str) -> str:
        """Order, and wait for the answer."""
        world.items.append(item)
        await asyncio.sleep(sum(slow))
        return item

    graph = tool_node_graph(scripted(call("order", item="a"), "ok"), [order])
    agent = begun(repo, world, graph, order=reversible(undo))
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


def test_sync_world_restores_the_world_of_each_nested_fork(repo, world):
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


@pytest.mark.parametrize("form", ["command", "message", "list of commands", "content and artifact"])
def test_a_result_of_any_form_is_redone_and_answered_in_this_form(repo, form):
    """A new call id in the result is no drift, and an answer from the record has the id of the new call."""
    response_format = "content_and_artifact" if form == "content and artifact" else "content"

    @tool(response_format=response_format)
    def pay(euros: int, call_id: Annotated[str, InjectedToolCallId]) -> Any:
        """Pay."""
        message = ToolMessage(f"paid {euros}", tool_call_id=call_id)
        command = Command(update={"messages": [message]})
        given = {"command": command, "message": message, "list of commands": [command]}
        return given.get(form, ("paid 5", {"euros": euros}))

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
    asked, answer = again.messages()[1:3]
    assert (answer.type, answer.content, answer.tool_call_id) == ("tool", "paid 5", asked.tool_calls[0]["id"])
    assert answer.artifact == ({"euros": 5} if form == "content and artifact" else None)


@pytest.mark.parametrize(("replay", "declared"), [("redo", True), ("execute", True), ("execute", False)])
def test_a_nested_tool_call_is_not_made_twice_by_a_replay(replay, declared, repo, world):
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
def test_a_plan_blocks_the_replay_of_a_tool_that_asked_a_person(replay, repo, world):
    replies = (call("add", item="a"), call("add_if_approved", item="b"), "done")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.invoke(say("add them"))
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


def test_a_redo_of_a_tool_that_asks_a_person_fails_with_the_reason(repo, world):
    trusted = [True]

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
