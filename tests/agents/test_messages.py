"""Messages keep their ids, types and order, ids work as references, and agents warn when their session moved."""

import datetime as dt
import inspect
import json
import warnings
from decimal import Decimal

import pytest
from chains import chain
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from scripted import World, obedient, scripted, tool_node_graph

import agentgit
from agentgit.demo import ScriptedModel
from agentgit.errors import BranchMoved, InvalidInput, NotFound
from agentgit.handles.retention import SessionRetention
from agentgit.handles.sharing import Sharing
from agentgit.repository.maintenance import Maintenance
from agentgit.repository.users import Keys, Users


@pytest.fixture
def agent(repo, world):
    made = repo.wrap(tool_node_graph(obedient(), world.tools()), "s", effects=world.effects())
    made.run("add chair")
    made.run("add table")
    return made


def ids(agent):
    """Return the ids of the user's messages, oldest first."""
    return [message["id"] for message in agent.history() if message["role"] == "user"]


def test_a_message_id_names_the_checkpoint_before_that_message(agent):
    first, second = ids(agent)
    for form in (second, f"message:{second}"):
        found = agent.get_checkpoint(form)
        assert (found.metadata["reference"], len(found.conversation_history)) == ("main#3", 4)
        assert agent.session.get_checkpoint(form).id == found.id
        assert agent.plan_rollback(form).checkpoint_id == found.id
        assert agent.session.diff(f"message:{first}", form).common_messages == 0
        assert agent.session.fork(form).branch
    with pytest.raises(NotFound, match="no restore point 'message:nothing'"):
        agent.get_checkpoint("message:nothing")


def test_a_repeated_message_id_means_the_asking_branch(repo):
    """A checkpoint's name wins over an equal message id, and the form `message:` means the message."""
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    agent.invoke({"messages": [HumanMessage("one", id="wish")]})
    edited = agent.rollback("message:wish")
    edited.invoke({"messages": [HumanMessage("two", id="wish")]})
    assert agent.get_checkpoint("message:wish").metadata["reference"] == "main#3"
    assert edited.get_checkpoint("message:wish").metadata["reference"].startswith("main-2#")
    named = edited.checkpoint("wish")
    assert edited.get_checkpoint("wish").id == named.id
    assert edited.get_checkpoint("message:wish").id != named.id


def test_an_edited_message_replaces_the_old_one(agent, world):
    _, second = ids(agent)
    edited = agent.edit(second, "add lamp")
    assert world.items == ["chair", "lamp"]
    assert [m["content"] for m in edited.history() if m["role"] == "user"] == ["add chair", "add lamp"]
    assert (agent.branch.name, edited.branch.name) == ("main", "main-2")
    with pytest.raises(NotFound):
        agent.edit("nothing", "add sofa")
    assert len(agent.session.branches()) == 2


async def test_aedit_does_the_same_as_edit(agent, world):
    edited = await agent.aedit(ids(agent)[1], "add lamp", name="rather a lamp")
    assert (edited.branch.name, world.items) == ("rather a lamp", ["chair", "lamp"])


@pytest.mark.long
def test_an_agent_on_a_branch_its_session_left_warns_once(repo):
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    back = agent.rollback("main#1")
    with pytest.warns(BranchMoved, match=r"now on branch 'main-2'.*runs on 'main'") as told:
        agent.run("hello")
    assert told[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error", BranchMoved)
        agent.run("hello again")
        back.run("hello")
        agent.at("main").run("and again")
    back.session.switch("main")
    with pytest.warns(BranchMoved, match=r"now on branch 'main'.*runs on 'main-2'"):
        back.run("hello")


def test_each_branch_verb_returns_a_new_agent(agent):
    made = [agent.fork(name="side"), agent.rollback("main#1"), agent.undo(), agent.switch("side")]
    made.append(made[1].redo())
    assert agent.branch.name == "main"
    assert all(one is not agent for one in made)
    assert [one.branch.name for one in made] == ["side", "main-2", "main-3", "side", "main"]


def test_each_session_verb_returns_a_report(agent):
    session = agent.session
    reports = [session.fork(name="side"), session.rollback("main#1"), session.redo(), session.switch("side")]
    moves = [("fork", "side"), ("rollback", "main-2"), ("switch", "main"), ("switch", "side")]
    assert [(one.kind, one.branch) for one in reports] == moves
    assert {one.status for one in reports} == {"done"}
    assert reports[-1].operation_id == 0


def test_session_and_repository_verbs_have_async_twins():
    """Each public method that does IO has an `a` twin with the same signature."""
    without = {"close", "trust", "wrap", "agent", "graph", "saver", "trajectories"}
    for kind in (agentgit.Session, Sharing, SessionRetention, agentgit.Repository, Maintenance, Users, Keys):
        public = {n: f for n, f in inspect.getmembers(kind, inspect.isfunction) if not n.startswith("_")}
        verbs = {n for n in public if not (n.startswith("a") and n[1:] in public)} - without
        own = {n for n in verbs if public[n].__qualname__.startswith(kind.__name__)}
        assert {f"a{n}" for n in own} <= set(public), kind
        for name in own:
            assert inspect.signature(public[f"a{name}"]) == inspect.signature(public[name]), name


def test_a_rollback_that_does_not_move_the_session_warns_nobody(repo):
    agent = repo.wrap(tool_node_graph(obedient(), []), "s")
    agent.run("hello")
    side = agent.fork(name="side")
    side.run("hello")
    side.rollback("side#1")
    agent.rollback("main#1", conversation=False)
    assert agent.session.branch().name == "main"
    with warnings.catch_warnings():
        warnings.simplefilter("error", BranchMoved)
        agent.run("hello")


def test_a_failed_edit_names_the_branch_to_continue_on(repo):
    def fails(messages):
        if "fail" in str(messages[-1].content):
            raise RuntimeError("no model")
        return AIMessage("ok")

    agent = repo.wrap(tool_node_graph(ScriptedModel(rule=fails), []), "s")
    agent.run("hello")
    with pytest.raises(RuntimeError) as raised:
        agent.edit(ids(agent)[0], "fail")
    assert "branch 'main-2'" in raised.value.__notes__[-1]
    assert agent.at().branch.name == "main-2"


def test_names_that_look_like_message_references_are_refused(agent):
    for name in (lambda: agent.session.tag("HEAD", "message:x"), lambda: agent.fork(name="message:x")):
        with pytest.raises(InvalidInput, match="message:"):
            name()
    assert agent.session.get_checkpoint(agent.checkpoint("message: sent").checkpoint_name).checkpoint_name


def handing(*messages):
    """Compile a graph whose only node returns these messages."""
    return chain(lambda state: {"messages": list(messages)})


def test_messages_keep_the_types_of_their_values(repo):
    when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    odd = {"when": when, "raw": b"\0\xff", "price": Decimal("1.10"), "set": {1, 2}, 7: 8}
    said = [
        HumanMessage("hi", id="h", additional_kwargs={"odd": odd}),
        AIMessage([{"type": "image", "raw": b"\0"}], id="a", response_metadata={"odd": odd}, tool_calls=[
            {"name": "buy", "args": {"odd": odd}, "id": "c", "type": "tool_call"}
        ]),
        ToolMessage("ok", id="t", tool_call_id="c", artifact=odd),
    ]  # fmt: skip
    agent = repo.wrap(handing(*said), "s")
    agent.run("go")
    fresh = repo.wrap(handing(), "s")
    for one in (agent, fresh, agent.fork()):
        assert one.messages()[1:] == one.state["messages"][1:] == said
    assert [one["role"] for one in agent.history()] == ["user", "user", "assistant", "tool"]


def test_search_orders_merged_messages_by_the_time_of_the_merge(repo):
    agent = repo.wrap(handing(("ai", "ok")), "s")
    agent.run("word one")
    side, later = agent.fork(name="side"), agent.fork(name="later")
    side.run("word two")
    side.run("word three")
    agent.run("word four")
    agent.merge("side")
    later.run("word five")
    found = [(hit.reference.split("#")[0], hit.snippet) for hit in repo.session("s").search("word", all_branches=True)]
    assert found == [
        ("later", "word five"), ("main", "word three"), ("main", "word two"), ("main", "word four"),
        ("side", "word three"), ("side", "word two"), ("main", "word one"),
    ]  # fmt: skip
    texts = [hit.snippet for hit in repo.session("s").search("word", branch="main")]
    assert texts == ["word three", "word two", "word four", "word one"]


# -- streams


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
def any_agent(repo, request):
    world = World()
    return repo.wrap(GRAPHS[request.param](world), "s", check_effects=False)


@pytest.mark.each_value_once
@pytest.mark.parametrize("mode", ["updates", "messages", ["updates", "messages"]], ids=str)
async def test_a_streamed_message_has_the_id_of_the_stored_one(any_agent, mode):
    sync_chunks = list(any_agent.stream(ORDER, stream_mode=mode))
    async_chunks = [chunk async for chunk in any_agent.astream(ORDER, stream_mode=mode)]
    stored = {message["id"]: message["role"] for message in any_agent.history()}
    for chunks in (sync_chunks, async_chunks):
        streamed = {message.id for chunk in chunks for message in messages_of(chunk)}
        assert streamed
        assert streamed <= stored.keys()
    answers = {id for id, role in stored.items() if role != "user"}
    assert answers <= {message.id for chunk in [*sync_chunks, *async_chunks] for message in messages_of(chunk)}


@pytest.mark.parametrize("input", [ORDER, {"messages": [HumanMessage("add chair", id="mine")]}], ids=["new", "own"])
def test_the_metadata_of_the_messages_stream_names_the_restore_point(any_agent, input):
    """Each chunk of `messages` names the user's message, to which a rollback goes back to before the turn."""
    chunks = list(any_agent.stream(input, stream_mode="messages"))
    [restore_point] = {metadata["agentgit_restore_point"] for _, metadata in chunks}
    asked = any_agent.history()[0]
    assert restore_point == asked["id"] == any_agent.checkpoints()[0].metadata["restore_point"]
    assert any_agent.rollback(restore_point).history() == []


def test_the_restore_point_is_not_stored_with_each_step(repo):
    agent = repo.wrap(tool_node_graph(scripted("hello"), []), "s")
    agent.run("hi")
    history = list(agent.get_state_history({"configurable": {}}))
    assert history
    assert "agentgit_restore_point" not in json.dumps([step.metadata for step in history])
