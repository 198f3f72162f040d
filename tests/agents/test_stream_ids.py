"""The messages that a turn streams have the ids of the stored ones."""

import json

import pytest
from chains import chain
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from scripted import World, obedient, scripted, tool_node_graph

ORDER = {"messages": [("user", "add chair")]}


class Streaming(GenericFakeChatModel):
    """A model that streams its answer word by word."""

    def bind_tools(self, tools, **options):
        return self


def node_without_ids(state):
    return {"messages": [AIMessage("one"), AIMessage("two")]}


GRAPHS = {
    "tool node": lambda world: tool_node_graph(obedient(), world.tools()),
    "create_agent": lambda world: create_agent(obedient(), world.tools()),
    "streaming model": lambda world: create_agent(
        Streaming(messages=iter([AIMessage("three words here"), AIMessage("more")])), world.tools()
    ),
    "no ids": lambda world: chain(node_without_ids),
    "subgraph": lambda world: chain(chain(node_without_ids)),
}


def messages_of(chunk):
    """Return the messages in a chunk of any stream mode."""
    if isinstance(chunk, BaseMessage):
        return [chunk]
    parts = chunk.values() if isinstance(chunk, dict) else chunk if isinstance(chunk, list | tuple) else ()
    return [message for part in parts for message in messages_of(part)]


@pytest.fixture(params=GRAPHS)
def agent(repo, request):
    world = World()
    return repo.wrap(GRAPHS[request.param](world), "s", check_effects=False)


@pytest.mark.parametrize("mode", ["updates", "messages", ["updates", "messages"]], ids=str)
async def test_a_streamed_message_has_the_id_of_the_stored_one(agent, mode):
    sync_chunks = list(agent.stream(ORDER, stream_mode=mode))
    async_chunks = [chunk async for chunk in agent.astream(ORDER, stream_mode=mode)]
    stored = {message["id"]: message["role"] for message in agent.history()}
    for chunks in (sync_chunks, async_chunks):
        streamed = {message.id for chunk in chunks for message in messages_of(chunk)}
        assert streamed
        assert streamed <= stored.keys()
    answers = {id for id, role in stored.items() if role != "user"}
    assert answers <= {message.id for chunk in [*sync_chunks, *async_chunks] for message in messages_of(chunk)}


@pytest.mark.parametrize("input", [ORDER, {"messages": [HumanMessage("add chair", id="mine")]}], ids=["new", "own"])
def test_the_metadata_of_the_messages_stream_names_the_restore_point(agent, input):
    """Each chunk of `messages` names the user's message, to which a rollback goes back to before the turn."""
    chunks = list(agent.stream(input, stream_mode="messages"))
    [restore_point] = {metadata["agentgit_restore_point"] for _, metadata in chunks}
    asked = agent.history()[0]
    assert restore_point == asked["id"] == agent.checkpoints()[0].metadata["restore_point"]
    assert agent.rollback(restore_point).history() == []


def test_the_restore_point_is_not_stored_with_each_step(repo):
    agent = repo.wrap(tool_node_graph(scripted("hello"), []), "s")
    agent.run("hi")
    history = list(agent.get_state_history({"configurable": {}}))
    assert history
    assert "agentgit_restore_point" not in json.dumps([step.metadata for step in history])
