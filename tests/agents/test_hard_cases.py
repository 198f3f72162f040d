"""Regression tests for order, pauses, cancellation, nested graphs and concurrent rollbacks."""

import asyncio
import threading
import time

import faults
import points
import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted import GRAPHS, call, calls, functional_graph, node_graph, say, scripted, tool_node_graph

from agentgit import Conflict, InvalidInput, PlanChanged, RollbackIncomplete, reversible

# -- positions


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_a_slow_save_does_not_move_a_checkpoint(durability, repo, world):
    bound = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    replies = (call("add", item="1"), call("create_checkpoint", name="mine"), call("add", item="2"), "ok")
    graph = tool_node_graph(scripted(*replies), [*world.tools(), *bound.checkpoint_tools()])
    agent = repo.wrap(graph, "s", effects=world.effects())
    with faults.slow(points.SAVE_STATE, 0.03):
        agent.invoke(say(), durability=durability)
    (mine,) = [p for p in agent.checkpoints() if p.checkpoint_name == "mine"]
    results = [m for m in mine.conversation_history if m["role"] == "tool"]
    assert mine.get_tool_track_position() == len(results) - 1  # create_checkpoint itself is not on the track
    agent.rollback("mine")
    assert world.items == ["1"]


@pytest.mark.parametrize("kind", GRAPHS)
def test_a_rollback_to_a_question_reverses_what_its_answer_did(kind, repo, world):
    agent = repo.wrap(GRAPHS[kind](scripted(call("add_if_approved", item="x"), "ok"), world.tools()), "s",
                      effects=world.effects())  # fmt: skip
    agent.invoke(say("order"))
    asked = agent.checkpoint("asked")
    waiting = agent.fork(name="waiting")
    agent.invoke(Command(resume="yes"))
    assert world.items == ["x"]
    assert waiting.tool_track() == []
    back = agent.rollback(asked)
    assert world.items == []
    back.invoke(Command(resume="yes"))
    assert world.items == ["x"]
    assert [(c.tool_name, c.status) for c in back.tool_track()] == [("add_if_approved", "done")]


def test_a_retried_batch_is_one_batch(repo, world):
    graph = tool_node_graph(scripted(calls(call("add", item="x"), call("fail", why="b")), "ok"), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    for value in (say(), None):
        with pytest.raises(RuntimeError):
            agent.invoke(value)
    assert world.items == ["x"]
    before = agent.checkpoint("before the batch")
    assert (before.get_tool_track_position(), before.metadata["message_count"]) == (0, 1)
    agent.rollback(before)
    assert world.items == []


def test_an_edited_call_is_undone_with_the_arguments_it_ran_with(repo, world):
    agent = repo.wrap(tool_node_graph(scripted(call("add_if_approved", "c1", item="chair"), "ok"), world.tools()), "s",
                      effects=world.effects())  # fmt: skip
    agent.invoke(say("order"))
    asked = agent.messages()[-1]
    edited = AIMessage("", id=asked.id, tool_calls=[{"name": "add_if_approved", "args": {"item": "sofa"}, "id": "c1"}])
    agent.update_state(None, {"messages": [edited]}, as_node="model")
    agent.invoke(None)
    agent.invoke(Command(resume="yes"))
    assert world.items == ["sofa"]
    assert [c.args for c in agent.tool_track()] == [{"item": "sofa"}]
    agent.rollback("main#1")
    assert world.undone == [("remove", {"item": "sofa"}, {"item": "sofa", "number": 1})]


# -- nested graphs


@pytest.mark.parametrize("caller", ["node", "tool", "whole node"])
def test_a_wrapped_agent_inside_another_graph_keeps_its_conversation(repo, world, caller):
    """An agent called from a node, from a tool or as a node runs on its own branch, and is recorded once."""
    inner = repo.wrap(tool_node_graph(scripted(call("add", item="a"), "one", "two"), world.tools()), "inner",
                      effects=world.effects())  # fmt: skip

    @tool
    def consult(question: str) -> str:
        """Ask the other agent."""
        return inner.run(question)

    def from_node(state):
        return {"messages": [AIMessage(inner.run("q"))]}

    if caller == "tool":
        graph = tool_node_graph(scripted(call("consult", question="q"), "said"), [consult])
    else:
        node = from_node if caller == "node" else lambda state: inner.invoke(state)
        graph = node_graph(node)
    found = [[m.content for m in graph.invoke(say("q"))["messages"] if m.content in ("one", "two")] for _ in range(2)]
    assert [one[-1] for one in found] == ["one", "two"]
    assert [m["content"] for m in inner.history() if m["role"] == "user"] == ["q", "q"]
    assert world.items == ["a"]
    assert [c.tool_name for c in inner.tool_track()] == ["add"]


async def test_a_wrapped_agent_streams_inside_another_graph(repo, world):
    inner = repo.wrap(tool_node_graph(scripted("one", "two", "three"), []), "inner")

    async def ask(state, config):
        chunks = [chunk async for chunk in inner.astream(say("q"), config)]
        return {"messages": [chunks[-1]["messages"][-1]] if "messages" in chunks[-1] else [AIMessage("?")]}

    await node_graph(ask).ainvoke(say("hi"))
    list(inner.stream(say("again")))
    assert len(inner.history()) == 4


def test_tools_the_graph_does_not_expose_can_be_declared(repo, world):
    """A tool that only a node calls is declared by its decorator, or by its name; one that is not found is refused."""
    undone = []

    @tool
    @reversible(lambda args, result: undone.append(result))
    def hidden_order(item: str) -> str:
        """Order."""
        return f"ordered {item}"

    note = world.tool("note")

    def work(state):
        return {"messages": [AIMessage(hidden_order.invoke({"item": "x"}) + note.invoke({"text": "y"}))]}

    graph = StateGraph(MessagesState).add_node("work", work).add_edge(START, "work")
    graph.add_node("chat", tool_node_graph(scripted("hi", "ho"), [world.tool("look")])).add_edge("work", "chat")
    with pytest.raises(InvalidInput, match="check_effects"):
        repo.wrap(graph.compile(), "s", effects={"notes": "read_only"})
    agent = repo.wrap(graph.compile(), "s", effects={"note": "read_only"})
    agent.run("go")
    assert [(c.tool_name, c.effect) for c in agent.tool_track()] == [
        ("hidden_order", "reversible"), ("note", "read_only"),
    ]  # fmt: skip
    agent.undo()
    assert undone == ["ordered x"]


def test_a_users_tool_with_a_checkpoint_tools_name_is_recorded(repo):
    @tool
    def create_checkpoint(name: str) -> str:
        """Save the weights."""
        return name

    for build in (tool_node_graph, functional_graph):
        session = build.__name__
        agent = repo.wrap(build(scripted(call("create_checkpoint", name="w"), "ok"), [create_checkpoint]), session,
                          effects={"create_checkpoint": "irreversible"})  # fmt: skip
        agent.invoke(say())
        assert [c.tool_name for c in agent.tool_track()] == ["create_checkpoint"]


# -- streams and tasks that end early


@pytest.fixture
def slow_to_begin():
    """Delay the start of turns; yield an event that is set when one starts and an event that releases it."""
    begins, go = threading.Event(), threading.Event()

    def wait():
        begins.set()
        assert go.wait(60)

    with faults.before(points.BEGIN_TURN, wait):
        yield begins, go


async def cancelled(agent, begins, then=lambda: None):
    """Cancel a turn while it acquires the branch, and call a function before the turn has ended."""
    task = asyncio.create_task(agent.ainvoke(say("hi")))
    await asyncio.to_thread(begins.wait, 60)
    task.cancel()
    then()
    await task


async def test_a_turn_waits_for_a_cancelled_turn_to_release_the_branch(repo, slow_to_begin):
    agent = repo.wrap(tool_node_graph(scripted("one"), []), "s")
    begins, go = slow_to_begin
    with pytest.raises(asyncio.CancelledError):
        await cancelled(agent, begins)
    asyncio.get_running_loop().call_later(0.5, go.set)
    await agent.ainvoke(say("again"))
    assert [m["content"] for m in agent.history()] == ["again", "one"]
    assert agent.branch.status == "open"


def test_a_loop_that_ends_during_acquisition_releases_the_branch(repo, slow_to_begin):
    """As after Ctrl-C in `asyncio.run`."""
    agent = repo.wrap(tool_node_graph(scripted("one"), []), "s")
    begins, go = slow_to_begin
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(cancelled(agent, begins, threading.Timer(0.1, go.set).start))
    assert agent.branch.status == "open"
    assert agent.run("again") == "one"


def test_a_stopped_loop_releases_the_branch(repo, slow_to_begin):
    """As after Ctrl-C in a chat, whose loop is stopped and not closed."""
    agent = repo.wrap(tool_node_graph(scripted("one"), []), "s")
    begins, go = slow_to_begin
    with asyncio.Runner() as runner:
        with pytest.raises(asyncio.CancelledError):
            runner.run(cancelled(agent, begins))
        assert agent.branch.status == "open"  # the turn has not acquired it yet
        go.set()
        until = time.monotonic() + 60
        while (ended := [e.kind for e in repo.events.list(session="s", kinds="turn.*")]) != ["turn.failed"]:
            assert time.monotonic() < until, ended
            time.sleep(0.01)
        assert agent.branch.status == "open"
        assert agent.run("again") == "one"


async def test_a_turn_waits_for_an_abandoned_stream_to_close(repo):
    async def slow(state):
        if state["messages"][-1].content == "hi":
            get_stream_writer()("begun")
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)
        return {"messages": [("ai", "well")]}

    agent = repo.wrap(node_graph(slow), "s")
    async for _ in agent.astream(say("hi"), stream_mode="custom"):
        break
    assert (await agent.ainvoke(say("again")))["messages"][-1].content == "well"
    assert agent.branch.status == "open"


def test_a_config_of_the_current_state_is_accepted(repo):
    agent = repo.wrap(tool_node_graph(scripted("hello", "again"), []), "s")
    agent.run("hi")
    config = agent.update_state(None, {"messages": [("user", "more")]}, as_node="__start__")
    assert agent.invoke(None, config)["messages"][-1].content == "again"
    assert agent.get_state(agent.get_state().config).values == agent.state


# -- concurrent rollbacks


def test_only_one_rollback_of_a_session_runs_at_a_time(repo, world):
    agent = repo.wrap(tool_node_graph(scripted(call("add", item="a"), "ok", "more"), world.tools()), "s",
                      effects=world.effects(add=reversible(lambda args, result: tries())))  # fmt: skip
    agent.run("go")
    refused = []

    def tries() -> None:
        world.items.clear()
        for verb in (lambda: agent.rollback("main#1"), lambda: agent.run("on")):
            try:
                verb()
            except Conflict as error:
                refused.append(str(error))

    agent.rollback("main#1")
    assert len(refused) == 2
    assert all("rollback" in text.lower() for text in refused)
    agent = agent.switch("main", sync="ignore")
    assert agent.run("on") == "more"


def test_a_stopped_rollback_holds_its_branch_and_is_resumed_where_the_session_is(repo, world):
    """A confirmed resume also reverses newer effects, and does not move a session that switched to another branch."""
    replies = (call("add", item="a"), "ok", call("add", item="b"), "ok")
    agent = repo.wrap(tool_node_graph(scripted(*replies), world.tools()), "s", effects=world.effects())
    agent.run("one")
    world.broken.add("a")
    with pytest.raises(RollbackIncomplete, match="half way") as stopped:
        agent.rollback("main#1", name="half")
    half = repo.wrap(agent.graph, "s", branch="half", effects=world.effects())
    for verb in (lambda: agent.switch("half"), half.checkpoint, half.fork):
        with pytest.raises(Conflict, match="resume"):
            verb()
    agent.run("two")
    agent.fork(name="elsewhere").switch("elsewhere")
    world.broken.clear()
    with pytest.raises(PlanChanged) as changed:
        repo.resume(stopped.value.operation)
    report = repo.resume(stopped.value.operation, plan=changed.value.plan)
    assert [item.invocation.args["item"] for item in report.reversed] == ["b", "a"]
    assert world.items == []
    assert repo.session("s").branch().name == "elsewhere"


def test_a_running_agent_stays_on_its_branch(repo, world):
    agent = repo.wrap(tool_node_graph(scripted("one", "two"), []), "s")
    agent.run("hi")
    agent.fork(name="other")
    stream = agent.stream(say("again"))
    next(stream)
    with pytest.raises(Conflict, match="running"):
        agent = agent.switch("other")
    with pytest.raises(Conflict, match="running"):
        repo.wrap(agent.graph, "s", branch="other").rollback("main#1")
    list(stream)
    assert [p.metadata["reference"] for p in agent.checkpoints()][-1] == "main#4"
    assert agent.switch("other").branch.name == "other"


def test_an_invocation_has_one_position_everywhere(repo, world):
    seen = []
    slow = threading.Event()

    @tool
    def read() -> str:
        """Read slowly."""
        assert slow.wait(60)
        return "x"

    @tool
    def write() -> str:
        """Write at once."""
        slow.set()
        return "y"

    undo = reversible(lambda args, result, invocation: seen.append(invocation.position))
    graph = tool_node_graph(scripted(calls(call("read"), call("write")), "ok"), [read, write])
    agent = repo.wrap(graph, "s", effects={"read": "read_only", "write": undo})
    agent.run("go")
    assert [(c.tool_name, c.position) for c in agent.tool_track()] == [("read", 0), ("write", 1)]
    assert agent.plan_rollback("main#1").steps[0].invocation.position == 1
    agent.rollback("main#1")
    assert seen == [1]


def test_a_rollback_blocked_after_its_request_keeps_the_answer(repo, world):
    bound = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    replies = ("hello", calls(call("rollback_to_checkpoint", checkpoint="main#2"), call("send", text="x")), "done")
    graph = tool_node_graph(scripted(*replies), [*world.tools(), *bound.checkpoint_tools()])
    agent = repo.wrap(graph, "s", effects=world.effects())
    agent.run("hi")
    assert agent.run("send and go back") == "done"
    if agent.rollback_error is not None:  # the mail was sent after the plan was made; else the tool refused it
        assert "cannot be undone" in str(agent.rollback_error)
    assert (agent.branch.name, world.sent) == ("main", ["x"])


# -- values


def test_results_that_can_be_read_only_once_reach_the_program_unread(repo):
    got = []

    @tool
    def numbers() -> object:
        """Count."""
        return iter([1, 2, 3])

    def work(state):
        got.extend(numbers.invoke({}))
        return {"messages": [AIMessage("done")]}

    agent = repo.wrap(node_graph(work), "s")
    agent.run("go")
    assert got == [1, 2, 3]
    assert agent.tool_track()[0].status == "done"


def test_wrong_arguments_raise_typed_errors(repo):
    agent = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    agent.run("hi")
    for bad in (
        lambda: agent.fork(name=5), lambda: agent.checkpoint("x", description=5),
        lambda: agent.rollback("main#1", request_id="\ud800"), lambda: agent.rollback("main#1", request_id="x" * 65),
        lambda: repo.wrap(agent.graph, "s", effects=["add"]),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            bad()
    with pytest.raises(LookupError):
        repo.session("s").get_checkpoint(10**30)
