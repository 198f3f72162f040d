"""An agent has the methods of its graph, and they return what the graph returns."""

import asyncio

import pytest
from foreign_threads import rule
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.stream import StreamTransformer
from langgraph.types import Command
from scripted import World, nested_graph, obedient, tool_node_graph
from served import THREAD, said

from agentgit import InvalidInput
from agentgit.demo import ScriptedModel


@pytest.fixture
def graph():
    return tool_node_graph(obedient(), World().tools(), InMemorySaver())


@pytest.fixture
def agent(repo, world):
    return repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())


def test_an_agent_is_a_graph_of_the_kind_of_its_graph(repo, world, agent):
    """Its saver only reads the branch, and no other saver takes its place."""
    assert isinstance(agent, CompiledStateGraph)
    called = entrypoint()(lambda given: given)
    functional = repo.wrap(called, "functional")
    assert isinstance(functional, Pregel)
    assert not isinstance(functional, CompiledStateGraph)
    assert functional.invoke(1) == called.invoke(1) == 1
    agent.run("add chair")
    newest = agent.get_state().config
    thread = {"configurable": {"thread_id": newest["configurable"]["thread_id"]}}
    assert agent.checkpointer.get_tuple(thread).config == newest
    assert [one.config for one in agent.checkpointer.list(thread)] == [one.config for one in agent.get_state_history()]
    with pytest.raises(InvalidInput):
        agent.checkpointer.put_writes(newest, [], "task")
    copied = agent.copy({"checkpointer": InMemorySaver()})
    copied.run("add table")
    assert world.items == ["chair", "table"]
    assert len(copied.undo().history()) == 4


@pytest.mark.parametrize("build", [tool_node_graph, nested_graph])
async def test_an_agent_describes_itself_as_its_graph(repo, world, build):
    graph = build(obedient(), world.tools(), InMemorySaver())
    agent = repo.wrap(graph, "s", effects=world.effects())
    assert (agent.name, agent.get_name(), list(agent.nodes), list(agent.channels)) == (
        graph.name, graph.get_name(), list(graph.nodes), list(graph.channels),
    )  # fmt: skip
    assert agent.get_graph().to_json() == graph.get_graph().to_json()
    assert (await agent.aget_graph()).to_json() == graph.get_graph().to_json()
    for name in ("get_input_jsonschema", "get_output_jsonschema", "get_context_jsonschema"):
        assert getattr(agent, name)() == getattr(graph, name)(), name
    assert (agent.InputType, agent.OutputType) == (graph.InputType, graph.OutputType)
    assert agent.get_input_schema().model_fields.keys() == graph.get_input_schema().model_fields.keys()
    assert (agent.context_schema, agent.stream_mode) == (graph.context_schema, graph.stream_mode)
    assert (agent.stream_channels_list, agent.stream_channels_asis) == (
        graph.stream_channels_list, graph.stream_channels_asis,
    )  # fmt: skip
    subgraphs = [(ns, type(one)) for ns, one in graph.get_subgraphs(recurse=True)]
    assert [(ns, type(one)) for ns, one in agent.get_subgraphs(recurse=True)] == subgraphs
    assert bool(subgraphs) is (build is nested_graph)
    assert [(ns, type(one)) async for ns, one in agent.aget_subgraphs(recurse=True)] == subgraphs


class Failing(StreamTransformer):
    """A transformer that fails at the first update."""

    required_stream_modes = ("updates",)

    def init(self):
        return {}

    def process(self, event):
        if event["method"] == "updates":
            raise ValueError("this transformer fails")
        return True


def shape(event):
    """Return the parts of an event that do not depend on ids and times."""
    return event["method"], event["params"]["namespace"]


@pytest.mark.filterwarnings("ignore::langchain_core._api.beta_decorator.LangChainBetaWarning")
class TestVersion3:
    """Version 3 of LangGraph's streams."""

    async def test_a_stream_has_the_events_of_the_graph(self, agent, graph, world):
        """Sync and async, and the turn is recorded as any turn."""
        expected = list(map(shape, graph.stream_events(said("add chair"), THREAD, version="v3")))
        assert list(map(shape, agent.stream_events(said("add chair"), version="v3"))) == expected
        theirs = await graph.astream_events(said("add table"), THREAD, version="v3")
        ours = await agent.astream_events(said("add table"), version="v3")
        assert [shape(one) async for one in ours] == [shape(one) async for one in theirs]
        assert [call.tool_name for call in agent.tool_track()] == ["add", "add"]
        assert len(await agent.session.acheckpoints()) == 4
        assert len(agent.undo().history()) == 4
        assert world.items == ["chair"]

    def test_a_stream_has_the_output_and_the_messages(self, agent, graph):
        ours = agent.stream_events(said("add chair"), version="v3")
        theirs = graph.stream_events(said("add chair"), THREAD, version="v3")
        assert [len(list(one.text)) for one in ours.messages] == [len(list(one.text)) for one in theirs.messages]
        assert ours.output["messages"][-1].content == theirs.output["messages"][-1].content
        assert (ours.interrupted, ours.interrupts) == (False, [])

    async def test_a_stream_that_is_left_early_releases_the_branch(self, agent):
        """The next turn can run after a stream was aborted or never read."""
        async with await agent.astream_events(said("add chair"), version="v3") as run:
            async for _ in run.values:
                break
        await agent.astream_events(said("add chair"), version="v3")
        assert (await agent.ainvoke(said("hello")))["messages"][-1].content
        with agent.stream_events(said("add table"), version="v3") as run:
            next(iter(run))
        assert agent.invoke(said("hello"))["messages"][-1].content

    async def test_an_error_of_a_tool_or_a_transformer_ends_the_turn(self, agent):
        """The reader gets the error, sync and async, and the next turn can run."""
        with pytest.raises(RuntimeError, match="because"):
            _ = agent.stream_events(said("fail because"), version="v3").output
        assert agent.branch.status == "open"
        with pytest.raises(ValueError, match="this transformer fails"):
            _ = agent.stream_events(said("add chair"), version="v3", transformers=[Failing]).output
        assert agent.run("hello")
        run = await agent.astream_events(said("add chair"), version="v3", transformers=[Failing])
        with pytest.raises(ValueError, match="this transformer fails"):
            await run.output()
        assert await agent.arun("hello")

    @pytest.mark.parametrize("is_async", [False, True])
    def test_a_stream_inside_another_graph_has_its_own_events(self, agent, is_async):
        seen = []

        def node(state):
            run = agent.stream_events(said("add chair"), version="v3")
            seen.append(([len(list(one.text)) for one in run.messages], run.output["messages"][-1].content))
            return {}

        async def anode(state):
            run = await agent.astream_events(said("add chair"), version="v3")
            messages = [one async for one in run.messages]
            seen.append(([len(await one.text) for one in messages], (await run.output())["messages"][-1].content))
            return {}

        outer = (
            StateGraph(MessagesState).add_node("inner", anode if is_async else node).add_edge(START, "inner").compile()
        )
        given = said("go")
        asyncio.run(outer.ainvoke(given)) if is_async else outer.invoke(given)
        assert [output for _, output in seen] == ["done"]
        assert len(seen[0][0]) == 2


def test_with_config_sets_the_config_of_each_turn(repo, world):
    """Also after a rollback; the other agent stays as it was, and no config moves the turns of an agent."""
    seen = []

    class Model(ScriptedModel):
        def _generate(self, messages, stop=None, run_manager=None, **kwargs):
            seen.append(sorted(set(run_manager.tags) & {"a", "b"}))
            return super()._generate(messages, stop, run_manager, **kwargs)

    graph = tool_node_graph(Model(rule=obedient().rule), world.tools())
    first = repo.wrap(graph, "s", effects=world.effects())
    tagged = first.with_config({"tags": ["a"]})
    tagged.run("hello")
    tagged.invoke(said("hello"), {"tags": ["b"]})
    for one in (first, first.with_config(tags=["b"]), tagged):  # they take turns on one branch
        one.run("hello")
    assert len(first.history()) == 2 * 5
    tagged.undo().run("hello")
    assert seen == [["a"], ["a", "b"], [], ["b"], ["a"], ["a"]]
    assert tagged.config["tags"] == ["a"]
    assert first.config is None
    with pytest.raises(InvalidInput, match="own thread"):
        first.with_config({"configurable": {"thread_id": "elsewhere"}})
    for place in ({"checkpoint_id": "1f"}, {"checkpoint_ns": "agent"}, {"checkpoint_map": {}}):
        with pytest.raises(InvalidInput, match="head"):
            first.with_config({"configurable": place})


async def test_an_async_update_runs_the_async_functions_of_the_graph(repo):
    """A condition that exists only as a coroutine function, on an agent and on a served graph."""

    async def route(state):
        return "__end__"

    graph = StateGraph(MessagesState).add_node("answer", lambda state: {"messages": []}).add_edge(START, "answer")
    graph = graph.add_conditional_edges("answer", route).compile()
    for one, config in ((repo.wrap(graph, "s"), None), (repo.graph(graph), THREAD)):
        await one.aupdate_state(config, said("hello"), as_node="answer")
        state = await one.aget_state(config)
        assert (state.values["messages"][-1].text, state.next) == ("hello", ())


def edit(agent, item):
    """Edit the call that waits in the subgraph of an agent's graph, and return the config before."""
    waiting = agent.get_state(subgraphs=True).tasks[0].state
    message = waiting.values["messages"][-1]
    changed = message.model_copy(update={"tool_calls": [{**message.tool_calls[0], "args": {"item": item}}]})
    agent.update_state(waiting.config, {"messages": [changed]})
    return waiting.config


def test_the_state_of_a_waiting_subgraph_can_be_edited(repo, world):
    """An edit with the config that `get_state(subgraphs=True)` gave changes the call that a person approves."""
    agent = repo.wrap(nested_graph(ScriptedModel(rule=rule), world.tools()), "s", effects=world.effects())
    agent.invoke(said("ask for a lamp"))
    before = edit(agent, "bed")
    agent.invoke(None)
    assert agent.get_state().interrupts[0].value == {"add": "bed"}
    with pytest.raises(InvalidInput, match="head"):
        agent.update_state(before, {"messages": []})
    without_root = {"configurable": {k: v for k, v in before["configurable"].items() if k != "checkpoint_map"}}
    with pytest.raises(InvalidInput, match="head"):
        agent.update_state(without_root, {"messages": []})
    agent.invoke(Command(resume="yes"))
    assert world.items == ["bed"]
    assert [(call.args, call.status) for call in agent.tool_track()] == [({"item": "bed"}, "done")]
    undone = agent.rollback("HEAD~1")
    assert world.items == []
    assert undone.history() == []
