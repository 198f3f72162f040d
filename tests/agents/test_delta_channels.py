"""Graphs with a DeltaChannel have the same checkpoints as the same graphs without one."""

import itertools
from typing import Annotated, TypedDict

import backend
import faults
import points
import pytest
from delta_graphs import all_seen, chat, delta, joined, said, seen, total
from foreign_threads import sqlite_origin
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel
from langgraph.graph import START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, Overwrite, interrupt
from scripted import World, call, scripted

import agentgit

PLAIN = Annotated[list, add_messages]
DURABILITIES = ("sync", "async", "exit")


def expect_true(agent):
    """Assert that the head shows the values that LangGraph computes from the writes."""
    state = agent.state
    assert agent.history() == agent.head.conversation_history
    assert [message.id for message in state["messages"]] == [message["id"] for message in agent.history()]
    assert agent.head.metadata["message_count"] == len(state["messages"])
    assert agent.head.session_state.get("log", []) == state.get("log", [])


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_delta_channel_looks_like_any_other_channel(repo, durability):
    """Counts, state hashes, conversations and states equal those of the same graph without a DeltaChannel."""
    agents = [repo.wrap(chat(kind), name) for kind, name in ((PLAIN, "plain"), (delta(5), "delta"))]
    for turn, agent in itertools.product(range(7), agents):
        agent.invoke(said(f"q{turn}", f"h{turn}"), durability=durability)
    plain, spread = agents
    assert all_seen(spread) == all_seen(plain)
    assert spread.head.metadata["message_count"] == 14
    expect_true(spread)


def reduce_messages(state, writes):
    """Reduce messages as LangGraph does, in a function of another package, such as that of deepagents."""
    return _messages_delta_reducer(state, writes)


@pytest.mark.parametrize("item", ["hi", {"role": "user", "content": "hi"}, HumanMessage("hi")], ids=type)
@pytest.mark.parametrize(
    "kind", [PLAIN, delta(3), delta(3, reduce_messages)], ids=["add_messages", "delta", "delta of another package"]
)
def test_a_message_without_an_id_can_be_edited_whatever_reduces_it(repo, kind, item):
    """The checkpoint before a user's message has its title and its id, which LangGraph would give it, too."""
    agent = repo.wrap(chat(kind), "s")
    agent.run("first")
    if isinstance(item, str):
        agent.run(item)
    else:
        agent.invoke({"messages": [item]})
    asked = agent.messages()[2]
    before = agent.get_checkpoint(f"message:{asked.id}").metadata
    assert (before["description"], before["restore_point"]) == ("hi", asked.id)
    agent.edit(asked.id, "ho")
    assert [message.text for message in agent.at("main-2").messages()] == ["first", "re 1", "ho", "re 3"]


@pytest.mark.parametrize("durability", DURABILITIES)
async def test_a_delta_channel_works_in_async_runs(repo, durability):
    """Async turns with a DeltaChannel record the same as the graph without one."""
    agents = [repo.wrap(chat(kind), name) for kind, name in ((PLAIN, "plain"), (delta(3), "delta"))]
    for turn, agent in itertools.product(range(4), agents):
        await agent.ainvoke(said(f"q{turn}", f"h{turn}"), durability=durability)
    assert all_seen(agents[1]) == all_seen(agents[0])


CHANGE = st.one_of(
    st.tuples(st.just("say"), st.integers(0, 9)),
    st.tuples(st.just("remove"), st.integers(0, 9)),
    st.tuples(st.just("overwrite"), st.integers(0, 9)),
)


def change(state, what, number):
    """Return the update for one change of a conversation, which is the same for every kind of channel."""
    ids = [message.id for message in state["messages"]]
    if what == "remove":
        return {"messages": [RemoveMessage(id=ids[number % len(ids)])]}
    if what == "overwrite":
        return {"messages": Overwrite([HumanMessage("anew", id=f"m{number}")])}
    return {"messages": [AIMessage(f"{len(ids)} {number}", id=f"m{number}")]}


@pytest.mark.long
@settings(max_examples=15, deadline=None)
@given(st.lists(CHANGE, min_size=1, max_size=8), st.integers(1, 6), st.sampled_from(DURABILITIES))
def test_any_conversation_is_equal_with_a_delta_channel(changes, every, durability):
    """Added, removed and overwritten messages produce equal checkpoints, also after a rollback to each one."""
    with agentgit.open(":memory:") as repo:
        agents = []
        for kind, name in ((PLAIN, "plain"), (delta(every), "delta")):
            todo = iter(changes)
            graph = chat(kind, answer=lambda state, todo=todo: change(state, *next(todo)))
            agents.append(repo.wrap(graph, name))
        for turn, agent in itertools.product(range(len(changes)), agents):
            agent.invoke(said(f"q{turn}", f"h{turn}"), durability=durability)
        plain, spread = agents
        assert all_seen(spread) == all_seen(plain)
        expect_true(spread)
        for point in spread.checkpoints()[1::2]:
            retry = spread.rollback(point)
            assert seen(retry.head) == seen(point)
            expect_true(retry)


@pytest.mark.long
@pytest.mark.parametrize("durability", DURABILITIES)
def test_branches_of_a_delta_channel_continue_correctly(repo, durability):
    """After a rollback, an undo or a fork the value continues from there, and the original branch is unchanged."""
    agent = repo.wrap(chat(delta(3)), "s")
    for turn in range(4):
        agent.invoke(said(f"q{turn}", f"h{turn}"), durability=durability)
    before = all_seen(agent)
    third = agent.checkpoints()[4]
    for retry in (agent.rollback(third), agent.undo(), agent.fork(), agent.fork(third)):
        at = seen(retry.head)
        retry.invoke(said("again", "again"), durability=durability)
        expect_true(retry)
        assert retry.head.metadata["message_count"] == at[0] + 2
        assert retry.rollback("HEAD~1").head.metadata["state_hash"] == at[1]
    assert all_seen(agent) == before
    expect_true(agent)


def test_a_delta_channel_survives_reopening(repo):
    """A reopened repository continues with the correct value."""
    for turn in range(5):
        with agentgit.open(backend.url(repo)) as again:
            agent = again.wrap(chat(delta(100)), "s")
            agent.invoke(said(f"q{turn}", f"h{turn}"))
            expect_true(agent)
    assert len(repo.session("s").get_checkpoint("HEAD").conversation_history) == 10


def test_update_state_changes_a_delta_channel(repo):
    """`update_state` applies to a DeltaChannel both as a plain write and as an overwrite."""
    agent = repo.wrap(chat(delta(100)), "s")
    agent.invoke(said("q", "h"))
    agent.update_state(None, {"messages": [HumanMessage("by hand", id="hand")]}, as_node="say")
    expect_true(agent)
    assert agent.history()[-1]["content"] == "by hand"
    agent.update_state(None, {"messages": Overwrite([HumanMessage("all", id="all")])}, as_node="say")
    expect_true(agent)
    assert agent.head.metadata["message_count"] == 1


def test_an_interrupted_turn_with_a_delta_channel_can_be_resumed(repo):
    """A turn that waits for an answer, and its fork, continue with the correct conversation."""

    def answer(state):
        return {"messages": [AIMessage(interrupt("name?"), id=f"a{len(state['messages'])}")]}

    agent = repo.wrap(chat(delta(100), answer=answer), "s")
    agent.invoke(said("q", "h"))
    other = agent.fork()
    for one, name in ((agent, "Ann"), (other, "Bob")):
        one.invoke(Command(resume=name))
        expect_true(one)
        assert one.history()[-1]["content"] == name


def test_tool_checkpoints_work_with_a_delta_channel(repo):
    """Checkpoints after tools hold the conversation so far, and a rollback to one reverses later effects."""
    world = World()
    model = scripted(call("add", item="chair"), call("add", item="table"), "done")

    class State(TypedDict):
        messages: delta(100)

    graph = StateGraph(State).add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(world.tools())).add_edge(START, "model").add_edge("tools", "model")
    built = graph.add_conditional_edges("model", tools_condition).compile()
    agent = repo.wrap(built, "s", effects=world.effects(), auto_checkpoint="tool")
    agent.invoke(said("a chair and a table", "h"))
    made = agent.checkpoints()
    assert [one.metadata["message_count"] for one in made] == [0, 3, 5, 6]
    assert [len(one.conversation_history) for one in made] == [0, 3, 5, 6]
    retry = agent.rollback(made[1])
    assert world.items == ["chair"]
    assert [message["role"] for message in retry.history()] == ["user", "assistant", "tool"]
    assert "table" in str(agentgit.diff(made[1], made[3]))


def test_a_subgraph_and_its_graph_keep_separate_delta_channels(repo):
    """A graph and its subgraph have a DeltaChannel of one name with two reducers, and each keeps a separate value."""

    class Inner(TypedDict):
        messages: delta(100)
        log: delta(100, lambda state, writes: [*state, len(writes)])

    inner = StateGraph(Inner).add_node("in", lambda state: {"messages": [AIMessage("inner", id="i")], "log": [7]})

    class Outer(TypedDict):
        messages: delta(100)
        log: delta(100, total)

    outer = StateGraph(Outer).add_node("sub", inner.add_edge(START, "in").compile(checkpointer=True))
    agent = repo.wrap(outer.add_edge(START, "sub").compile(), "s")
    for turn in range(3):
        agent.invoke(said(f"q{turn}", f"h{turn}"))
        expect_true(agent)
    assert agent.rollback("HEAD~2").history() == agent.checkpoints()[-3].conversation_history


# -- values other than messages


class Things(TypedDict):
    """A state of numbers, files and names, each in a DeltaChannel."""

    numbers: delta(7, lambda state, writes: sorted({*state, *itertools.chain(*writes)}))
    files: Annotated[dict, DeltaChannel(joined, snapshot_frequency=5)]
    names: Annotated[set, DeltaChannel(lambda state, writes: state.union(*writes), snapshot_frequency=4)]


def things():
    """Build a graph that writes numbers, files and names."""

    def step(state):
        count = len(state["files"])
        return {"numbers": [count, -count], "files": {f"f{count}": "x" * 1000}, "names": {f"n{count}"}}

    return StateGraph(Things).add_node("step", step).add_edge(START, "step").compile()


@pytest.mark.parametrize("durability", DURABILITIES)
def test_a_delta_channel_can_hold_values_other_than_messages(repo, durability):
    """A channel with a custom reducer shows the reducer's value, and the state hash changes with it."""
    agent = repo.wrap(things(), "s")
    for turn in range(9):
        agent.invoke({"numbers": [100 + turn]}, durability=durability)
        shown = agent.head.session_state
        assert shown["numbers"] == agent.state["numbers"]
        assert shown["files"] == agent.state["files"]
    hashes = [one.metadata["state_hash"] for one in agent.checkpoints() if one.metadata["kind"] == "after"]
    assert len(set(hashes)) == 9
    assert agent.head.metadata["message_count"] == 0


def test_large_values_of_a_dict_are_stored_once(repo):
    """A file is not stored again when another one changes."""
    agent = repo.wrap(things(), "s")
    for _ in range(20):
        agent.invoke({"numbers": [1]})
    with backend.reading(repo) as transaction:
        (size,) = transaction.connection.exec_driver_sql("SELECT sum(size) FROM blob WHERE type = 'json'").one()
    assert size < 40_000
    assert len(agent.head.session_state["files"]) == 20


def test_a_failing_reducer_does_not_break_the_run(repo):
    """A value that cannot be rebuilt is shown as not computed, and the hash of the state still changes with it."""
    failed = []

    def moody(state, writes):
        if failed and failed[-1] == "now":
            failed[-1] = "before"
            raise RuntimeError("no")
        return [*state, *itertools.chain(*writes)]

    def failing(fold):
        def do(*args):
            failed.append("now")
            return fold(*args)

        return do

    class State(TypedDict):
        log: delta(100, moody)
        n: int

    graph = StateGraph(State).add_node("step", lambda state: {"n": 1}).add_edge(START, "step").compile()
    agent = repo.wrap(graph, "s")
    folds = lambda plain, *args: {name: failing(fold) for name, fold in plain(*args).items()}  # noqa: E731
    with faults.around(points.FOLDS_OF_DELTA_CHANNELS, folds):
        for turn in (1, 2):
            agent.invoke({"log": [turn]}, durability="sync")
            assert agent.head.session_state == {"n": 1, "log": "<not computed at this step>"}
    assert set(failed) == {"before"}
    assert agent.state["log"] == [1, 2]
    repo.import_(agent.checkpoints(), session="again")
    assert repo.session("again").get_checkpoint("HEAD").session_state == {"n": 1}
    hashes = [one.metadata["state_hash"] for one in agent.checkpoints() if one.metadata["kind"] == "after"]
    assert len(set(hashes)) == 2


# -- imported threads


@pytest.mark.parametrize("known", [False, True])
def test_imported_threads_keep_their_delta_channels(repo, tmp_path, known):
    """An imported thread has its conversation at each checkpoint, also after it has grown and is imported again."""
    spread = sqlite_origin(tmp_path)
    for turns in (range(3), range(3, 5)):
        for turn in turns:
            spread.talk(lambda saver: chat(delta(100), saver, full=100), "t", said(f"q{turn}", f"h{turn}"))
        with spread.saver() as source:
            if known:
                agent = repo.wrap(chat(delta(100), source, full=100), "t", thread_id="t")
            else:
                repo.import_langgraph(spread.url)
                agent = repo.wrap(chat(delta(100), full=100), "t")
        points = agent.checkpoints()
        assert [one.metadata["message_count"] for one in points if one.metadata["kind"] == "after"] == [
            2 * turn + 2 for turn in range(turns[-1] + 1)
        ]
        assert all(one.metadata["message_count"] == len(one.conversation_history) for one in points)
        assert (agent.head.session_state.get("log") == agent.state["log"]) is known
        assert len({one.metadata["state_hash"] for one in points}) == turns[-1] + 2
    agent.invoke(said("here", "here"))
    expect_true(agent)
