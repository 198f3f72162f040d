"""Every kind of wrapped graph is recorded as it ran, and the given graph stays unchanged."""

import threading
import time

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from scripted import GRAPHS, agent_graph, call, calls, functional_graph, say, scripted, tool_node_graph

from agentgit import Conflict, InvalidInput, NotFound

STORY = (calls(call("add", item="chair"), call("look")), "a chair", calls(call("add", item="table")), "a table")


def kinds_of(agent) -> list[str]:
    return [point.metadata["kind"] for point in agent.checkpoints()]


@pytest.mark.parametrize("kind", GRAPHS)
async def test_every_kind_of_graph_is_recorded_as_it_ran(kind, repo, world):
    """State, conversation and tool calls, in the order of the AI message, whichever method runs the turn."""
    agent = repo.wrap(GRAPHS[kind](scripted(*STORY, "bye", "bye"), world.tools()), "s", effects=world.effects())
    agent.invoke(say("order a chair"))
    assert [chunk async for chunk in agent.astream(say("and a table"))]
    track = await agent.atool_track()
    assert track[1].result in ("nothing", "chair")  # `look` runs beside `add`
    assert [(c.tool_name, c.args, c.result, c.status) for c in track] == [
        ("add", {"item": "chair"}, {"item": "chair", "number": 1}, "done"),
        ("look", {}, track[1].result, "done"),
        ("add", {"item": "table"}, {"item": "table", "number": 2}, "done"),
    ]
    assert [c.position for c in track] == [0, 1, 2]
    assert all(c.started_at <= c.ended_at for c in track)
    roles = "user assistant tool tool assistant user assistant tool assistant"
    assert [m["role"] for m in agent.history()] == roles.split()
    head = agent.head
    assert head.conversation_history == agent.history()
    assert [c["tool_name"] for c in head.tool_invocations] == ["add", "look", "add"]
    assert head.get_tool_track_position() == 3
    assert [event async for event in agent.astream_events(say("thanks"), version="v2")]
    await agent.ainvoke(say("thanks"))
    assert kinds_of(agent) == ["before", "after"] * 4


def test_wrapping_leaves_the_given_graph_unchanged(repo, world):
    """The wrapped graph streams as before; the given one records nothing, and its own saver stores nothing."""
    saver = InMemorySaver()
    graph = tool_node_graph(scripted(*STORY), world.tools(), saver)
    before, tools = dict(vars(graph)), graph.nodes["tools"].bound.tools_by_name["add"]
    agent = repo.wrap(graph, "s", effects=world.effects())
    streamed = list(agent.stream(say("order a chair"), stream_mode="updates"))
    assert list(saver.list(None)) == []
    assert vars(graph) == before
    assert graph.nodes["tools"].bound.tools_by_name["add"] is tools
    plain = graph.stream(say("order a chair"), {"configurable": {"thread_id": "t"}}, stream_mode="updates")
    assert [list(chunk) for chunk in streamed] == [list(chunk) for chunk in plain] == [["model"], ["tools"], ["model"]]
    assert len(agent.tool_track()) == 2


def test_an_interrupted_call_is_paused_and_resumed_as_one_invocation(repo, world):
    """A fork of the waiting branch asks again, and each branch keeps its own answer."""
    graph = tool_node_graph(scripted(calls(call("add_if_approved", item="sofa")), "done"), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    asked = agent.invoke(say("order a sofa"))
    assert asked["__interrupt__"][0].value == {"add": "sofa"}
    assert [c.status for c in agent.tool_track()] == ["paused"]
    assert kinds_of(agent) == ["before"]
    other = agent.fork()
    agent.invoke(Command(resume="yes"))
    (only,) = agent.tool_track()
    assert (only.status, only.result) == ("done", {"item": "sofa", "number": 1})
    assert kinds_of(agent) == ["before", "after", "after"]  # one of them is where the fork begins
    other.switch(other.branch, sync="ignore").invoke(Command(resume="no"))
    assert other.tool_track()[-1].result == "not approved"
    assert agent.tool_track() == [only]
    assert world.happened("add_if_approved") == [{"item": "sofa"}]


def test_a_failed_turn_leaves_the_branch_usable(repo, world):
    """The call may have acted, so it is unknown; the turn has no end checkpoint, and a new one can be made."""
    graph = tool_node_graph(scripted(calls(call("fail", why="boom")), "well"), world.tools())
    agent = repo.wrap(graph, "s", effects=world.effects())
    with pytest.raises(RuntimeError, match="boom"):
        agent.run("try")
    (failed,) = agent.tool_track()
    assert (failed.status, failed.error_message, failed.result) == ("unknown", "RuntimeError: boom", None)
    assert kinds_of(agent) == ["before"]
    assert agent.branch.status == "open"
    saved = agent.checkpoint("after the failure")
    assert [m["role"] for m in saved.conversation_history] == ["user"]
    assert saved.get_tool_track_position() == 0


def test_results_are_recorded_as_values_and_not_as_text(repo):
    """Text that looks like a number stays text, and an object becomes plain data."""
    from pydantic import BaseModel

    class Order(BaseModel):
        number: int

    @tool
    def text() -> str:
        """Return a text."""
        return "123"

    @tool
    def thing() -> Order:
        """Return an object."""
        return Order(number=7)

    agent = repo.wrap(tool_node_graph(scripted(calls(call("text"), call("thing")), "ok"), [text, thing]), "s")
    agent.run("go")
    assert [c.result for c in agent.tool_track()] == ["123", {"number": 7}]


def test_parallel_calls_are_recorded_in_the_order_of_the_ai_message(repo):
    slow_may_go = threading.Event()

    @tool
    def slow() -> str:
        """Wait for the other call."""
        assert slow_may_go.wait(60)
        return "slow"

    @tool
    def fast() -> str:
        """Release the other call."""
        slow_may_go.set()
        return "fast"

    for session, build in (("a", tool_node_graph), ("b", agent_graph), ("c", functional_graph)):
        slow_may_go.clear()
        agent = repo.wrap(build(scripted(calls(call("slow"), call("fast")), "ok"), [slow, fast]), session)
        agent.invoke(say("go"))
        assert [c.tool_name for c in agent.tool_track()] == ["slow", "fast"]


def test_call_ids_repeated_in_every_turn_keep_the_track_in_order(repo, world):
    model = scripted(
        calls(call("add", "call_1", item="a")), calls(call("add", "call_1", item="b"), call("add", "call_2", item="c")),
        "ok", calls(call("add", "call_1", item="d")), "ok",
    )  # fmt: skip
    agent = repo.wrap(tool_node_graph(model, world.tools()), "s", effects=world.effects())
    agent.run("go")
    agent.run("on")
    assert [c.args["item"] for c in agent.tool_track()] == ["a", "b", "c", "d"]


# -- automatic and named checkpoints


def test_a_turn_has_a_checkpoint_before_and_after(repo, world):
    """By default each user message is a restore point, also without an id, and each turn's end a checkpoint."""
    agent = repo.wrap(tool_node_graph(scripted(*STORY), world.tools()), "s", effects=world.effects())
    agent.invoke({"messages": [HumanMessage("order a chair", id="m1")]})
    before, after = agent.checkpoints()
    assert before.is_auto
    assert after.is_auto
    assert before.metadata["restore_point"] == "m1"
    assert (before.metadata["kind"], before.metadata["message_count"]) == ("before", 0)
    assert (after.metadata["kind"], after.metadata["message_count"]) == ("after", 5)
    assert before.metadata["description"] == "order a chair"
    assert after.metadata["description"] == "a chair"
    agent.run("and a table")
    assert agent.checkpoints()[2].metadata["restore_point"] == agent.messages()[5].id


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_tool_checkpoints_follow_whole_batches(durability, repo, world):
    """`auto_checkpoint="tool"` adds one after each finished batch, with its calls, however late LangGraph saves."""
    agent = repo.wrap(
        tool_node_graph(scripted(*STORY), world.tools()), "s", effects=world.effects(), auto_checkpoint="tool"
    )
    for text in ("order a chair", "and a table"):
        agent.invoke(say(text), durability=durability)
    assert kinds_of(agent) == ["before", "tools", "after"] * 2
    points = agent.checkpoints()
    assert [p.get_tool_track_position() for p in points] == [0, 2, 2, 2, 3, 3]
    for point in points:
        answered = {m["tool_call_id"] for m in point.conversation_history if m["role"] == "tool"}
        asked = {c["id"] for m in point.conversation_history for c in m["tool_calls"]}
        assert asked == answered
        assert len(answered) == len(point.tool_invocations)


@pytest.mark.long
def test_a_checkpoint_is_made_after_a_turn_if_the_newest_one_is_old(repo, world):
    agent = repo.wrap(tool_node_graph(scripted("1", "2", "3"), []), "s", auto_checkpoint="2s")
    agent.run("one")
    agent.run("two")
    assert [one.metadata["reference"] for one in agent.session.checkpoints()] == ["main#1"]
    time.sleep(2.1)
    agent.run("three")
    assert len(agent.session.checkpoints()) == 2


@pytest.mark.parametrize(("auto", "positions"), [("tool:1", [1, 3, 4, 5]), ("tool:2", [3, 4]), ("tool:5", [5])])
def test_a_checkpoint_is_made_after_every_nth_tool_call(auto, positions, repo, world):
    """ "tool:n" makes a checkpoint after the batch with every n-th call, counted across turns."""
    add = call("add", item="x")
    story = [calls(add), calls(add, add), "done", calls(add), calls(add), "done"]
    for _ in range(2):  # a new agent each time, as after a restart of the program
        graph = tool_node_graph(scripted(*story), world.tools())
        agent = repo.wrap(graph, "s", effects=world.effects(), auto_checkpoint=auto)
        agent.run("go")
    made = [point.get_tool_track_position() for point in agent.checkpoints() if point.metadata["kind"] == "tools"]
    assert made == positions


@pytest.mark.parametrize(
    "auto",
    ["tool:0", "tool:-1", "tool:", "tools", "", 0, -1, True, None, 1.5, "5", "0m", "5 m", "m", "5d", "-5m"],
)
def test_an_invalid_interval_is_refused_before_a_session_exists(auto, repo):
    with pytest.raises(InvalidInput, match="'off' or a number of turns"):
        repo.wrap(tool_node_graph(scripted("hi"), []), "s", auto_checkpoint=auto)
    assert repo.sessions() == []


@pytest.mark.parametrize(("auto", "kinds"), [("off", []), (2, ["after", "after"]), (3, ["after"])])
def test_a_checkpoint_is_made_after_every_nth_turn_or_never(auto, kinds, repo):
    for n in range(5):  # a new agent each time, as after a restart of the program
        agent = repo.wrap(tool_node_graph(scripted(*"abcde"), []), "s", auto_checkpoint=auto)
        agent.run(str(n))
    assert kinds_of(agent) == kinds


def test_a_named_checkpoint_keeps_its_name_description_and_data(repo):
    agent = repo.wrap(tool_node_graph(scripted("hello"), []), "s", auto_checkpoint="off")
    empty = agent.checkpoint()
    agent.run("hi")
    named = agent.checkpoint("greeted", description="we have met", data={"score": 1})
    assert (empty.checkpoint_name, empty.is_auto, empty.conversation_history) == (None, False, [])
    assert (named.checkpoint_name, named.is_auto) == ("greeted", False)
    assert (named.metadata["description"], named.metadata["data"]) == ("we have met", {"score": 1})
    assert agent.head.id == named.id
    assert [p.id for p in agent.checkpoints()] == [empty.id, named.id]


def test_state_values_other_than_messages_are_captured(repo, world):
    """A checkpoint holds the other values of the state, but not LangGraph's bookkeeping."""
    agent = repo.wrap(GRAPHS["nested"](scripted("hi", "ho"), world.tools()), "s", effects=world.effects())
    agent.run("a")
    agent.run("b")
    assert agent.head.session_state == {"visits": 2}
    assert agent.branch.session_state == {"visits": 2}
    assert agent.get_state().values["visits"] == 2
    assert len(list(agent.get_state_history())) > 2


def test_update_state_makes_one_checkpoint_and_no_restore_point(repo):
    agent = repo.wrap(tool_node_graph(scripted("hello"), []), "s")
    agent.run("hi")
    agent.update_state(None, {"messages": [AIMessage("psst")]}, as_node="model")
    assert agent.history()[-1]["content"] == "psst"
    assert kinds_of(agent) == ["before", "after", "after"]


async def test_agent_verbs_have_async_twins_with_equal_results(repo, world):
    agent = repo.wrap(tool_node_graph(scripted("hello", "again"), world.tools()), "s", effects=world.effects())
    assert await agent.arun("hi") == "hello"
    await agent.acheckpoint("x")
    assert [p.id for p in await agent.acheckpoints()] == [p.id for p in agent.checkpoints()]
    assert await agent.ahistory() == agent.history()
    assert str(await agent.atree()) == str(agent.tree())
    assert (await agent.aplan_rollback("x")).is_admissible
    assert (await agent.aget_state()).values == agent.get_state().values
    assert len([s async for s in agent.aget_state_history()]) == len(list(agent.get_state_history()))
    await agent.aupdate_state(None, {"messages": [AIMessage("psst")]}, as_node="model")
    back = await agent.arollback("x")
    assert [b.name for b in await back.session.abranches()] == ["main", "main-2"]
    other = await back.afork(name="other")
    main = await other.aswitch("main")
    assert (main.branch.name, other.branch.name) == ("main", "other")
    assert (await main.aundo()).branch.name == "main-3"


# -- bad input


def test_a_second_agent_on_a_moved_branch_raises_a_conflict(repo, world):
    first = repo.wrap(tool_node_graph(scripted("one", "two", "three"), []), "s")
    second = repo.wrap(tool_node_graph(scripted("one", "two", "three"), []), "s")
    first.run("a")
    with pytest.raises(Conflict, match="has moved") as caught:
        second.run("b")
    assert caught.value.head == first.head.id
    assert second.switch("main").run("b") == "two"
    assert len(second.history()) == 4


def test_a_running_branch_refuses_a_second_turn(repo):
    """Meanwhile a fork can run."""
    agent = repo.wrap(tool_node_graph(scripted("one", "two"), []), "s")
    stream = agent.stream(say("a"))
    next(stream)
    with pytest.raises(Conflict, match="running"):
        repo.wrap(tool_node_graph(scripted("one"), []), "s").run("b")
    assert repo.wrap(tool_node_graph(scripted("one"), []), "s").fork().run("b") == "one"
    stream.close()
    assert agent.branch.status == "open"
    assert agent.run("again") in ("one", "two")


def test_bad_graphs_effects_and_options_are_refused(repo, world):
    uncompiled = StateGraph(MessagesState)
    uncompiled.add_node("model", lambda state: state)
    uncompiled.add_edge(START, "model")
    graph = tool_node_graph(scripted("hi"), world.tools())
    for bad, why in [
        (lambda: repo.wrap(uncompiled, "s"), "compile"),
        (lambda: repo.wrap("graph", "s"), "not a LangGraph graph"),
        (lambda: repo.wrap(graph, "s", effects={"ad": "read_only"}), "has no tool ad"),
        (lambda: repo.wrap(graph, "s", effects={"add": "harmless"}), "not an effect"),
        (lambda: repo.wrap(graph, " "), "name"),
    ]:
        with pytest.raises(InvalidInput, match=why):
            bad()
    assert repo.sessions() == []


def test_bad_configs_and_names_are_refused(repo):
    agent = repo.wrap(tool_node_graph(scripted("hi"), []), "s")
    with pytest.raises(InvalidInput, match="thread_id"):
        agent.invoke(say("a"), {"configurable": {"thread_id": "mine"}})
    with pytest.raises(InvalidInput, match="fork"):
        agent.invoke(say("a"), {"configurable": {"checkpoint_id": "x"}})
    with pytest.raises(InvalidInput, match="name"):
        agent.checkpoint("")
    with pytest.raises(NotFound, match="main"):
        agent = agent.switch("mian")
    assert agent.checkpoints() == []


def test_hostile_text_is_stored_and_returned_unchanged(repo):
    """NUL, lone surrogates, escape sequences and megabytes in messages, names and arguments survive."""
    nasty = "a\0b\x1b[31m\ud800 '; DROP TABLE checkpoint; --" + "x" * 1_000_000

    @tool
    def echo(text: str) -> str:
        """Return the text."""
        return text

    agent = repo.wrap(tool_node_graph(scripted(calls(call("echo", text=nasty)), "ok"), [echo]), "s'; --\0")
    agent.invoke({"messages": [HumanMessage(nasty)]})
    (only,) = agent.tool_track()
    assert (only.args, only.result) == ({"text": nasty}, nasty)
    assert agent.history()[0]["content"] == nasty
    assert agent.checkpoint("n\0\ud800").checkpoint_name == "n\0\ud800"
    assert repo.session("s'; --\0").name == "s'; --\0"
